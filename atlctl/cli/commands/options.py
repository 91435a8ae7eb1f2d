"""`atlctl options`: the options that every command has."""

from __future__ import annotations

from atlctl.cli import helptext, say
from atlctl.cli.commands.help import program
from atlctl.cli.runtime import context
from atlctl.i18n import Message

EXAMPLES = Message("atlctl options")


def command() -> int:
    say.out(helptext.shared_options(*program(), color=context().streams.stdout_color))
    return 0
