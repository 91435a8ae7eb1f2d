from __future__ import annotations

from typing import Annotated

import typer

from atlctl.cli import options

EXAMPLES = "atlctl command"


def command(
    what: Annotated[str, typer.Argument(metavar="SHELL")],
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    from tests.unit.cli.sample import act

    return act(what)
