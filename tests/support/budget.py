"""Size of the package, compared with `tests/budget.toml`: a change may lower the counts, and must not raise them
silently.

`python -m tests.support.budget` prints today's counts beside the budget; with `--write` it lowers the budget to them.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support import rules
from tests.support.rules import Module

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "budget.toml"
HEAD = """\
# The size of atlctl/, kept by tests/unit/test_house_rules.py. `make check` lowers it to what is there. Raise a number
# by hand, and say why in the message of the same commit.
"""
#: Files of the program, counted by lines and number.
SOURCES = (".py", ".sh", ".c")
#: A text of this many words is a sentence.
WORDS = 4
#: Modules found by name and not by imports: one file per command, job kind and backend; programs sent to workers.
BY_NAME = ("cli.commands", "backends.kubernetes.kinds", "remote", "cli.demo_job", "packaging")


def counts(folder: Path, modules: Sequence[Module]) -> dict[str, int]:
    """Today's counts of the package in `folder`, which holds `modules`."""
    files = [path for path in folder.rglob("*") if path.suffix in SOURCES]
    return {
        "lines": sum(len(path.read_bytes().splitlines()) for path in files),
        "files": len(files),
        "modules_with_one_importer": len(one_importer(modules)),
        "class_names_twice": len(classes_twice(modules)),
        "sentences_twice": len(sentences_twice(modules)),
    }


def one_importer(modules: Sequence[Module]) -> list[str]:
    """Modules imported by exactly one other module, except those found by name."""
    known = {module.name for module in modules}
    importers: dict[str, set[str]] = {}
    for module in modules:
        for _, full in rules.inner(module):
            name = full if full in known else full.rpartition(".")[0]
            if name != module.name:
                importers.setdefault(name, set()).add(module.name)
    return sorted(
        module.name
        for module in modules
        if not module.is_package
        and len(importers.get(module.name, ())) == 1
        and not any(rules.within(module.name, scope) for scope in BY_NAME)
    )


def classes_twice(modules: Sequence[Module]) -> list[str]:
    """Names of top-level classes defined in several modules, except in standalone programs."""
    names = Counter(
        node.name
        for module in modules
        if module.layer != "remote"
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def sentences_twice(modules: Sequence[Module]) -> list[str]:
    """Texts of at least `WORDS` words, with `{}` for filled-in values, that occur in several places."""
    texts = Counter(itertools.chain.from_iterable(_sentences(module.tree) for module in modules))
    return sorted(text for text, count in texts.items() if count > 1)


def _sentences(tree: ast.Module) -> Iterator[str]:
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in told or id(node) in inner:
                continue
            text = node.value
        else:
            continue
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= WORDS and " " in text.strip():
            yield text.strip()


def main() -> None:
    modules = rules.load(ROOT / "atlctl")
    have = counts(ROOT / "atlctl", modules)
    budget: dict[str, int] = tomllib.loads(FILE.read_text()) if FILE.exists() else {}
    for name, count in have.items():
        print(f"{name:28}{count:8}{budget.get(name, count):8}")
    if "--list" in sys.argv:
        print(*one_importer(modules), *classes_twice(modules), *sentences_twice(modules), sep="\n")
    if "--write" in sys.argv:
        lowered = {name: min(count, budget.get(name, count)) for name, count in have.items()}
        FILE.write_text(HEAD + "".join(f"{name} = {count}\n" for name, count in lowered.items()))


if __name__ == "__main__":
    main()
