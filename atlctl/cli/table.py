"""The app as plain data, and what is generated from it.

    python -m atlctl.cli.table --write

writes `atlctl/cli/completion/table.json` (for completion), `completions/`, a page for each command (`docs/en/commands`,
`docs/zh/commands`) and man pages (`docs/man`); without `--write` it lists the files that are out of date and exits
with 1. A test does the same.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from atlctl.cli import helptext
from atlctl.cli.completion.scripts import FILES, SCRIPTS
from atlctl.cli.manual import man_pages, markdown_pages, pages
from atlctl.cli.parser import Group
from atlctl.i18n import Language

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


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


def generated() -> dict[str, str]:
    """Every generated file: path in the source tree -> content."""
    table = json.dumps(completion_table(), indent=1, sort_keys=False)
    files = {
        "atlctl/cli/completion/table.json": f"{table}\n",
    }
    files |= {f"completions/{FILES[shell]}": text for shell, text in SCRIPTS.items()}
    every = list(pages())
    places: dict[Language, str] = {"en": "docs/man/man1", "zh": "docs/man/zh_CN/man1"}
    for lang, man in places.items():
        files |= {f"docs/{lang}/commands/{name}": text for name, text in markdown_pages(every, lang).items()}
        files |= {f"{man}/{name}": text for name, text in man_pages(every, lang).items()}
    return files


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
