"""Phrases that readers stumble over, counted in messages, documents, docstrings and comments.

`python -m tests.support.style` prints today's counts beside those of `tests/style.toml`, with `--list AREA` each place
of an area, with `--write` it lowers the file to today's counts.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from atlctl.packaging import messages
from tests.support import rules
from tests.support.rules import Module

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "style.toml"
HEAD = """\
# Phrases that readers stumble over, counted by tests/support/style.py. `make check` lowers the counts to what is there;
# nothing raises them. `.venv/bin/python -m tests.support.style --list AREA` shows each place of an area.
"""

_VERB = r"(?:is|are|was|were|has|have|had|does|do|did|may|can|cannot|could|must|might|would|will|needs?|fails?|failed)"
_SUBJECT = r"(?:there|it|they|this|that|these|one|none|nothing|no|not|both|all|only|neither|nobody)"
_STATE = r"(?:not|no|none|one|known|set|named|asked|given|selected|allowed|possible|missing|empty|needed|found)"
_CONDITION = "|".join(
    (
        r"\b(?:None|False|True|empty|missing|nothing) where\b",
        rf"\bwhere {_SUBJECT}\b(?: \w+)? {_VERB}\b",
        r"\bwhere there (?:is|are|was|were)\b",
        rf"(?:^|[.;:)] )Where [^.;:]{{3,90}}? {_VERB}\b[^.;:]*, ",
        rf"\bwhere (?:[\w`'-]+ ){{1,4}}(?:is|are|was|were) {_STATE}\b",
    )
)
#: What is counted in English texts, named so that the name says what to write instead.
ENGLISH = {
    "where, for: if": re.compile(_CONDITION),
    "is no X, for: is not an X": re.compile(
        r"(?<![Tt]here )\b(?:is|are|was|were|be) no (?!longer\b|more\b|less\b|matter\b|need\b|way\b)"
    ),
    "tells, for: reports, shows, says": re.compile(r"\b(?:tells?|told|telling)\b|\bsays? of\b", re.IGNORECASE),
    "somebody, for: the user, no worker": re.compile(r"\b(?:somebody|nobody|whoever|who asks)\b", re.IGNORECASE),
    "stands or lives, for: is": re.compile(
        r"\b(?:stands?|stood|lies|lives)\b(?!-)(?! (?:for|in|still)\b)"
        r"|\bwhere (?:[\w'`-]+ ){1,2}(?:live|lie)\b|\b(?:they|ranks|workers|processes) (?:live|lie) on\b",
        re.IGNORECASE,
    ),
    "what-clause, for: a noun": re.compile(
        r"(?:^|[.;:] )[Ww]hat (?!to\b)[a-z][^?.]*(?:[.;:]|$)|\bwhat (?:followed|is missing)\b"
    ),
    "of its own, for: by itself": re.compile(
        r"\bof (?:its|their|one's) own\b|\bwithout a (?:word|sound)\b|\bwords of its\b"
    ),
    "own idioms": re.compile(
        r"\bleft out:|\blogin programs?\b|\brepeats unite\b|\breaders? that (?:has|have|is|are) gone\b"
        r"|\b(?:worker|rank|server)'s (?:own )?words\b|\bnone of the [\w ]+'s business\b",
    ),
}
_CJK = r"[\u3400-\u9fff]"
#: What is counted in Chinese texts, but for what is code.
CHINESE = {
    "half-width punctuation": re.compile(rf"{_CJK}[,:;!?(]|[,:;!?)]{_CJK}"),
    "no blank beside Latin": re.compile(rf"{_CJK}[A-Za-z0-9]|[A-Za-z0-9%]{_CJK}"),
}
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(r"\]\([^)]*\)|<[^>]*>|[*]{2}")
_CODE = re.compile(r"`[^`]*`")


def counts(package: Sequence[Module]) -> dict[str, dict[str, int]]:
    """Today's counts, by area and by what is counted. `package` is `atlctl`."""
    return {area: dict(sorted(Counter(name for name, _ in found(area, package)).items())) for area in AREAS}


def found(area: str, package: Sequence[Module]) -> Iterator[tuple[str, str]]:
    """Each place of an area: what is counted there, and the place with the words around it."""
    patterns = CHINESE if area.endswith("chinese") else ENGLISH
    for place, lines in AREAS[area](package):
        text = re.sub(r"\s+", " ", _CODE.sub("`x`", lines)).strip()
        for name, pattern in patterns.items():
            for match in pattern.finditer(text):
                yield name, f"{place}: …{text[max(0, match.start() - 40) : match.end() + 40]}"


def _messages(_package: Sequence[Module]) -> Iterator[tuple[str, str]]:
    for _, one, many in messages.read("zh_CN"):
        yield from (("message", text) for text in (one, many) if text)
    yield from _signatures("_en")


def _translations(_: Sequence[Module]) -> Iterator[tuple[str, str]]:
    yield from (("translation", text) for text in messages.read("zh_CN").values())
    yield from _signatures("_zh")


def _signatures(suffix: str) -> Iterator[tuple[str, str]]:
    data = tomllib.loads((ROOT / "atlctl/diagnosis/signatures.toml").read_text(encoding="utf-8"))
    for table in (table for tables in data.values() for table in tables):
        for key, value in table.items():
            if key.endswith(suffix):
                yield "signatures.toml", value


def _documents(*patterns: str) -> Iterator[tuple[str, str]]:
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        prose = _MARKUP.sub("", _FENCE.sub("", path.read_text(encoding="utf-8")))
        for paragraph in re.split(r"\n\n|\n(?=[|#*-])|(?<=\|) ", prose):
            if not paragraph.startswith("#"):
                yield str(path.relative_to(ROOT)), paragraph.strip("-| \n")


def _english(_: Sequence[Module]) -> Iterator[tuple[str, str]]:
    return _documents("README.md", "CONTRIBUTING.md", "docs/en/*.md")


def _chinese(_: Sequence[Module]) -> Iterator[tuple[str, str]]:
    return _documents("README.zh-CN.md", "docs/zh/*.md")


def _code(package: Sequence[Module]) -> Iterator[tuple[str, str]]:
    for module in package:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield module.name, ast.get_docstring(node) or ""
        run: list[str] = []
        for line in [*module.text.splitlines(), ""]:
            alone = re.match(r"\s*#:? ?(.*)", line)
            if alone:
                run.append(alone[1])
                continue
            behind = re.search(r"  #:? (.*)", line)
            yield module.name, " ".join(run)
            yield module.name, behind[1] if behind else ""
            run.clear()


AREAS = {"messages": _messages, "chinese": _translations, "docs": _english, "docs_chinese": _chinese, "code": _code}


def main() -> None:
    package = rules.load(ROOT / "atlctl")
    if "--list" in sys.argv:
        print(*(f"{name}: {place}" for name, place in found(sys.argv[-1], package)), sep="\n")
        return
    have = counts(package)
    kept = tomllib.loads(FILE.read_text()) if FILE.exists() else have
    text = HEAD
    for area, table in have.items():
        text += f"\n[{area}]\n"
        for name, allowed in kept[area].items():
            count = table.get(name, 0)
            print(f"{area:14}{name:40}{count:6}{allowed:6}")
            if count and allowed:
                text += f'"{name}" = {min(count, allowed)}\n'
    if "--write" in sys.argv:
        FILE.write_text(text)


if __name__ == "__main__":
    main()
