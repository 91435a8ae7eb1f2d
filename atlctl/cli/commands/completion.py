"""`atlctl completion SHELL`: the packaged completion script on stdout."""

from __future__ import annotations

from typing import Annotated

import typer

from atlctl.cli.completion.scripts import SCRIPTS
from atlctl.cli.options import one_of
from atlctl.cli.runtime import context


def command(shell: Annotated[str, typer.Argument(metavar="SHELL", parser=one_of(*SCRIPTS))]) -> int:
    context().writer.put("stdout", SCRIPTS[shell].encode())
    return 0
