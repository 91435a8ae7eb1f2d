"""`atlctl help`: the help page of a command, as with `--help`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.main import get_command

from atlctl.cli import helptext, say
from atlctl.cli.parser import Group
from atlctl.cli.runtime import context
from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError

EXAMPLES = Message(
    """\
atlctl help errors
atlctl help local run"""
)


def command(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help=Message("the command; default: the program"))
    ] = None,
) -> int:
    found, ctx = program()
    rest = list(words or ())
    while rest:
        if not isinstance(found, Group):
            title = f"atlctl {found.path}"
            raise UsageError(Message("'{command}' has no commands", command=title), f"{title} -h")
        name, found, rest = found.resolve_command(ctx, rest)
        ctx = found.context_class(found, info_name=name, parent=ctx, **found.context_settings)
    say.out(helptext.render(found, ctx, color=context().streams.stdout_color))
    return 0


def program() -> tuple[Any, Any]:
    """The program itself as a command, and a context to describe it."""
    from atlctl.cli.app import app

    root = get_command(app)
    return root, root.context_class(root, info_name="atlctl", help_option_names=["-h", "--help"])
