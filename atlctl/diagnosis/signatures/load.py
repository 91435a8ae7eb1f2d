"""Signatures from TOML: those of the package, and files that users add.

A file holds `[[signature]]` entries; the first that matches a line wins.

    [[signature]]
    id = "license_server"              # small letters, digits, _
    category = "license"               # one of the package's, or a new one
    role = "root"                      # root, cascade, ambiguous, context, noise
    pattern = 'license server \\S{1,200} (?:is down|refused us)'
    meaning_en = "The license server did not answer"

Optional: `meaning_zh`, `advice_en`, `advice_zh`, `scope` (rank, worker), `hardware`, `where` (anywhere, exception,
unhandled), `literals`. Without advice the category's is taken, which needs a category of the package. A Chinese text
that is missing is taken from the English one.

`literals` are texts of which every matching line contains at least one: lines without any are never looked at,
that is what makes gigabytes quick to scan. Left out, they are read from the pattern. Refused are a pattern
that can match a line without a plain text of 4 bytes, and literals that the pattern does not imply: no signature is
ever tried on every line. What patterns may use stands in `pattern.py`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from atlctl.diagnosis.signatures.model import Category, Role, Scope, Signature, Signatures, Text, Where
from atlctl.diagnosis.signatures.pattern import MIN_LITERAL, Refused, shape
from atlctl.jobs.config import read_toml
from atlctl.jobs.errors import UsageError

MAX_SIGNATURES = 500

_FOLDER = os.path.dirname(__file__)
_WHAT = "signatures file"
_ID = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NEEDED = ("id", "category", "role", "pattern", "meaning_en")
_OPTIONAL = ("meaning_zh", "advice_en", "advice_zh", "scope", "hardware", "where", "literals")
_TEXT_LIMIT = 2_000
_FORM = f"an entry needs {', '.join(_NEEDED)}"

_Word = TypeVar("_Word", bound=StrEnum)


@functools.cache
def builtin() -> Signatures:
    """The package's own signatures and categories. Read once; the tests check what `load` checks."""
    entries = read_toml(os.path.join(_FOLDER, "signatures.toml"), _WHAT)["signature"]
    categories = {
        entry["id"]: Category(
            entry["id"],
            Text(entry["title_en"], entry["title_zh"]),
            Text(entry["meaning_en"], entry["meaning_zh"]),
            Text(entry["advice_en"], entry["advice_zh"]),
            entry.get("hardware", False),
        )
        for entry in read_toml(os.path.join(_FOLDER, "categories.toml"), _WHAT)["category"]
    }
    return Signatures(tuple(_signature(entry, categories, entry["literals"]) for entry in entries), categories)


def load(path: str) -> tuple[Signature, ...]:
    """The signatures of a user's file, in its order. Raises UsageError that names file, entry and mistake."""
    try:
        tables = read_toml(path, _WHAT)
    except FileNotFoundError as error:
        hint = "check errors.signatures in the configuration, or ATLCTL_SIGNATURES"
        raise UsageError(f"{_WHAT} {path} does not exist", hint) from error
    entries = tables.pop("signature", [])
    if tables or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{_WHAT} {path} must hold [[signature]] entries and nothing else", _FORM)
    if len(entries) > MAX_SIGNATURES:
        raise UsageError(f"{_WHAT} {path} has more than {MAX_SIGNATURES} entries", "split it")
    categories = builtin().categories
    found: dict[str, Signature] = {}
    for number, entry in enumerate(entries, 1):
        problem = _Problem(path, entry.get("id"), number)
        literals = _checked(entry, categories, problem)
        if entry["id"] in found:
            problem.refuse("id: used twice", "give each entry its own id")
        found[entry["id"]] = _signature(entry, categories, literals)
    return tuple(found.values())


def _signature(entry: Mapping[str, Any], categories: Mapping[str, Category], literals: tuple[str, ...]) -> Signature:
    category = categories.get(entry["category"])
    meaning = Text(entry["meaning_en"], entry.get("meaning_zh", entry["meaning_en"]))
    if "advice_en" in entry:
        advice = Text(entry["advice_en"], entry.get("advice_zh", entry["advice_en"]))
    else:
        assert category is not None
        advice = category.advice
    return Signature(
        entry["id"],
        entry["category"],
        Role(entry["role"]),
        entry["pattern"],
        tuple(literals),
        meaning,
        advice,
        Scope(entry.get("scope", Scope.RANK)),
        entry.get("hardware", category.hardware if category else False),
        Where(entry.get("where", Where.ANYWHERE)),
        entry.get("death", False),
    )


class _Problem:
    """Where a mistake stands. Entries without a usable id are named by their number."""

    def __init__(self, path: str, ident: object, number: int) -> None:
        name = ident if isinstance(ident, str) and _ID.fullmatch(ident) else f"number {number}"
        self._place = f"{_WHAT} {path}, entry {name}"

    def refuse(self, what: str, hint: str) -> NoReturn:
        raise UsageError(f"{self._place}: {what}", hint)


def _checked(entry: Mapping[str, Any], categories: Mapping[str, Category], problem: _Problem) -> tuple[str, ...]:
    """Refuses every mistake of one entry; its literals, given or read from its pattern."""
    for key in entry:
        if key not in _NEEDED and key not in _OPTIONAL:
            problem.refuse(f"unknown key {key}", f"known are {', '.join((*_NEEDED, *_OPTIONAL))}")
    for key in (*_NEEDED, "meaning_zh", "advice_en", "advice_zh", "scope", "where"):
        value = entry.get(key, None if key in _NEEDED else "-")
        if value is None:
            problem.refuse(f"{key} is missing", _FORM)
        if not isinstance(value, str) or not value.strip() or len(value) > _TEXT_LIMIT:
            problem.refuse(f"{key} must be a text of 1 to {_TEXT_LIMIT} characters", f'write it as {key} = "..."')
    for key in ("id", "category"):
        if not _ID.fullmatch(entry[key]):
            problem.refuse(f"{key}: {entry[key]!r} is no name", "use small letters, digits and _, at most 64")
    _word(entry, "role", Role, problem)
    _word(entry, "scope", Scope, problem)
    _word(entry, "where", Where, problem)
    if not isinstance(entry.get("hardware", False), bool):
        problem.refuse("hardware must be true or false", "write it without quotes")
    if "advice_en" not in entry and ("advice_zh" in entry or entry["category"] not in categories):
        problem.refuse("advice_en is missing", "only entries of the package's own categories can do without it")
    return _literals(entry, problem)


def _word(entry: Mapping[str, Any], key: str, words: type[_Word], problem: _Problem) -> None:
    if key in entry and entry[key] not in list(words):
        problem.refuse(f"{key}: {entry[key]!r} is not known", f"known are {', '.join(words)}")


def _literals(entry: Mapping[str, Any], problem: _Problem) -> tuple[str, ...]:
    try:
        found = shape(entry["pattern"])
    except Refused as refused:
        problem.refuse(f"pattern: {refused}", "example: 'license server \\S{1,200} (?:is down|refused us)'")
    given = entry.get("literals")
    if given is None:
        derived = found.literals()
        if not derived:
            problem.refuse(
                f"pattern: some of its matches contain no plain text of {MIN_LITERAL} bytes, which scanning needs",
                "add a word that all matching lines have",
            )
        return derived
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        problem.refuse("literals must be a list of texts", 'write it as literals = ["..."]')
    if any(len(item.encode(errors="replace")) < MIN_LITERAL for item in given):
        problem.refuse(f"literals: each needs at least {MIN_LITERAL} bytes", "leave literals out to have them read")
    if not found.covered(given):
        problem.refuse("literals: the pattern matches lines that contain none of them", "leave literals out")
    return tuple(given)
