"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.apiserver import statuses

Object = dict[str, Any]
Test = Callable[[Object], bool]

_SET = re.compile(r"^\s*([\w./-]+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_KEY = re.compile(r"^[\w./-]+$")
#: Commas inside parentheses belong to a set.
_COMMA = re.compile(r",(?![^(]*\))")


def selector(labels: str, fields: str) -> Test | None:
    """A test for both selectors; None if they select everything. Raises Refusal (400) for invalid ones."""
    tests = [_label(part) for part in _COMMA.split(labels) if part.strip()]
    tests += [_field(part) for part in fields.split(",") if part.strip()]
    if not tests:
        return None
    return lambda obj: all(test(obj) for test in tests)


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _label(part: str) -> Test:
    if found := _SET.match(part):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda obj: _labels(obj).get(key) in values
        return lambda obj: _labels(obj).get(key) not in values
    for operator in ("!=", "==", "="):
        key, found_operator, value = part.partition(operator)
        if found_operator:
            key, value = key.strip(), value.strip()
            _check(key, part)
            if operator == "!=":
                return lambda obj: _labels(obj).get(key) != value
            return lambda obj: _labels(obj).get(key) == value
    key = part.strip()
    if key.startswith("!"):
        key = key[1:].strip()
        _check(key, part)
        return lambda obj: key not in _labels(obj)
    _check(key, part)
    return lambda obj: key in _labels(obj)


def _check(key: str, part: str) -> None:
    if not _KEY.match(key):
        raise statuses.bad_request(f'unable to parse requirement: invalid label key "{part}"')


def _field(part: str) -> Test:
    for operator in ("!=", "==", "="):
        path, found, value = part.partition(operator)
        if found:
            keys = path.strip().split(".")
            if operator == "!=":
                return lambda obj: _at(obj, keys) != value
            return lambda obj: _at(obj, keys) == value
    raise statuses.bad_request(f"invalid field selector: {part}; can't understand '{part}'")


def _at(obj: Object, keys: list[str]) -> str:
    value: Any = obj
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)
