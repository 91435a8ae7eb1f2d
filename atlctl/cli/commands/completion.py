"""`atlctl completion SHELL`: the packaged completion script on stdout."""

from __future__ import annotations

from typing import Annotated

import typer

from atlctl.cli.completion.scripts import SCRIPTS
from atlctl.cli.options import one_of
from atlctl.cli.runtime import context
from atlctl.i18n import Message

EXAMPLES = Message(
    """\
atlctl completion bash > ~/.local/share/bash-completion/completions/atlctl
atlctl completion zsh > "${fpath[1]}/_atlctl"
atlctl completion fish > ~/.config/fish/completions/atlctl.fish"""
)


def command(
    shell: Annotated[str, typer.Argument(metavar="SHELL", parser=one_of(*SCRIPTS), help=Message("bash, zsh or fish"))],
) -> int:
    context().writer.put("stdout", SCRIPTS[shell].encode())
    return 0
