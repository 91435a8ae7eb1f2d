"""The app as plain data, and what is generated from it.

    python -m atlctl.cli.table --write

writes `atlctl/cli/table.json` (for completion), `docs/en/reference.md`, `docs/zh/reference.md` and `completions/`;
without `--write` it lists the files that are out of date and exits with 1. A test does the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typer.main import get_command

from atlctl.cli import catalogue, helptext
from atlctl.cli.app import app
from atlctl.cli.catalogue import Language
from atlctl.cli.parser import Group
from atlctl.cli.scripts import FILES, SCRIPTS

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class Page:
    """One command: its full name below `atlctl` (empty for the program), its parser and a context to describe it."""

    path: str
    command: Any
    ctx: Any


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


def completion_table(command: Any = None, parent: Any = None) -> dict[str, Any]:
    """What completion needs: option -> kind of its value (null for flags), kinds of arguments, commands."""
    page = next(pages(command, parent))
    command = page.command
    visible = [param for param in command.get_params(page.ctx) if not param.hidden]
    node: dict[str, Any] = {
        "options": {
            opt: None if param.is_flag or param.count else param.metavar or ""
            for param in visible
            if param.param_type_name == "option"
            # typer keeps the names of the help option in a set, whose order changes from run to run.
            for opt in sorted(param.opts, key=lambda opt: (len(opt), opt))
        }
    }
    arguments = [helptext.spelling(param) for param in visible if param.param_type_name == "argument"]
    if arguments:
        node["arguments"] = arguments
    if isinstance(command, Group):
        node["commands"] = {name: completion_table(command.commands[name], page.ctx) for name in command.table}
        aliases = {alias: name for name, entry in command.table.items() for alias in entry.aliases}
        if aliases:
            node["aliases"] = aliases
    elif not page.ctx.allow_interspersed_args:
        node["options_first"] = True
    return node


def reference(lang: Language) -> str:
    """The command reference as Markdown: a section per command with usage, examples and options."""
    label = catalogue.texts(lang)
    parts = [f"# {label['label.reference']}\n\n{label['label.generated']}\n"]
    parts += [_section(page, lang) for page in pages()]
    return "\n".join(parts)


def _section(page: Page, lang: Language) -> str:
    name = helptext.dotted(page.path)
    lines = [f"## {f'atlctl {page.path}'.strip()}", "", catalogue.find(lang, f"{name}.summary")]
    if catalogue.has(f"{name}.text"):
        lines += ["", catalogue.find(lang, f"{name}.text")]
    lines += ["", "```text", helptext.usage(page.ctx), "```"]
    label = catalogue.texts(lang)
    if catalogue.has(f"{name}.examples"):
        examples = catalogue.find(lang, f"{name}.examples")
        lines += ["", f"**{label['label.examples']}**", "", "```console", *examples.splitlines(), "```"]
    if isinstance(page.command, Group):
        lines += ["", f"**{label['label.commands']}**", ""]
        for sub in page.command.table:
            path = f"{page.path} {sub}".strip()
            anchor = f"atlctl-{path.replace(' ', '-')}"
            lines.append(f"- [`atlctl {path}`](#{anchor}) {catalogue.find(lang, helptext.dotted(path) + '.summary')}")
    for heading, params in helptext.sections(page.command, page.ctx):
        if heading == "label.shared":
            continue
        lines += ["", f"**{label[heading]}**", ""]
        for param in params:
            text = helptext.describe(page.path, param, lang)
            lines.append(f"- `{helptext.spelling(param).strip()}` {text}")
    return "\n".join(lines) + "\n"


def generated() -> dict[str, str]:
    """Every generated file: path in the source tree -> content."""
    table = json.dumps(completion_table(), indent=1, sort_keys=False)
    files = {
        "atlctl/cli/table.json": f"{table}\n",
        "docs/en/reference.md": reference("en"),
        "docs/zh/reference.md": reference("zh"),
    }
    return files | {f"completions/{FILES[shell]}": text for shell, text in SCRIPTS.items()}


def stale(root: str = _ROOT) -> list[str]:
    """Generated files that differ from what they should be."""
    return [path for path, text in generated().items() if _read(os.path.join(root, path)) != text]


def write(root: str = _ROOT) -> list[str]:
    """Write the generated files that are out of date; returns their paths."""
    changed = stale(root)
    files = generated()
    for path in changed:
        target = os.path.join(root, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            file.write(files[path])
    return changed


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def main(arguments: list[str]) -> int:
    """`--write` writes what is out of date, otherwise list it; 1 where something is."""
    changed = write() if arguments == ["--write"] else stale()
    for path in changed:
        sys.stdout.write(f"{path}\n")
    return int(bool(changed) and arguments != ["--write"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
