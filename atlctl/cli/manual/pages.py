"""Every command of the app with what a page about it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typer.main import get_command

from atlctl.cli.app import app
from atlctl.cli.parser import Group


@dataclass(frozen=True)
class Page:
    """One command: its full name below `atlctl` (empty for the program), its parser and a context to describe it."""

    path: str
    command: Any
    ctx: Any

    @property
    def title(self) -> str:
        """The command as it is typed: `atlctl local run`."""
        return f"atlctl {self.path}".strip()

    @property
    def slug(self) -> str:
        """The name of its files: `local-run`, and `atlctl` for the program itself."""
        return self.path.replace(" ", "-") or "atlctl"

    @property
    def commands(self) -> list[str]:
        """Full names of the commands of a group, without aliases."""
        if not isinstance(self.command, Group):
            return []
        return [f"{self.path} {name}".strip() for name in self.command.table]


def pages(command: Any = None, parent: Any = None) -> Iterator[Page]:
    """Every command of the app, groups before their commands. Imports all of them."""
    command = command or get_command(app)
    settings = {**command.context_settings}
    if parent is None:
        settings["help_option_names"] = ["-h", "--help"]
    ctx = command.context_class(command, info_name=command.path or "atlctl", parent=parent, **settings)
    yield Page(command.path, command, ctx)
    if isinstance(command, Group):
        for name in command.table:
            yield from pages(command.commands[name], ctx)


#: The document that tells more about a command, in both languages.
GUIDES = {
    "jobs": "kubernetes",
    "ps": "glossary",
    "exec": "exec",
    "shell": "exec",
    "logs": "exec",
    "top": "top",
    "errors": "errors",
    "stacks": "stacks",
    "smoke": "smoke",
    "record": "record",
    "report": "report",
    "events": "kubernetes",
    "cp": "cp",
    "stop": "stop",
    "resume": "stop",
    "local": "local-jobs",
    "local run": "local-jobs",
    "local rm": "local-jobs",
    "ssh": "ssh",
    "ssh run": "ssh",
    "ssh rm": "ssh",
    "demo": "tutorial-local",
    "doctor": "doctor",
    "completion": "completion",
}
