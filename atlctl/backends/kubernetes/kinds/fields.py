"""Fields of objects that a server sent: absent and wrongly typed ones give a neutral value, never an error."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from atlctl.backends.kubernetes.api import Object

_NOTHING: Object = {}
_NO_LIST: list[Any] = []
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: Larger numbers of workers, ranks and attempts are no numbers of such things.
MAX_COUNT = 100_000
_MAX_DIGITS = 18


def mapping(value: object) -> Object:
    """`value` where it is an object, else an empty one. Not a copy: do not write to it."""
    return value if type(value) is dict else _NOTHING


def entries(value: object) -> list[Object]:
    """The objects of a list."""
    if type(value) is not list:
        return _NO_LIST
    return [item for item in value if type(item) is dict]


def text(value: object) -> str:
    """`value` where it is a string, else an empty one."""
    return value if type(value) is str else ""


def count(value: object) -> int | None:
    """A number from 0 to MAX_COUNT, also where a label writes it as digits; None for anything else."""
    if type(value) is str and len(value) <= _MAX_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    return None


def code(value: object) -> int | None:
    """An exit code or a signal: a 32-bit number."""
    return value if type(value) is int and -(2**31) <= value < 2**31 else None


def moment(value: object) -> float | None:
    """An RFC 3339 time in seconds since the epoch. The epoch itself stands for "never" (as in a StartError)."""
    if type(value) is not str or len(value) > 40:
        return None
    try:
        parsed = dt.datetime.fromisoformat(value)
        return (parsed - _EPOCH).total_seconds() or None
    except (ValueError, TypeError, OverflowError):  # TypeError: a time without a zone
        return None


def dig(value: object, *path: str) -> Any:
    """The value below nested objects, None where the path ends early."""
    for key in path:
        if type(value) is not dict:
            return None
        value = value.get(key)
    return value


def meta(obj: Object) -> Object:
    return mapping(obj.get("metadata"))


def labels(obj: Object) -> Object:
    return mapping(meta(obj).get("labels"))


def notes(obj: Object) -> Object:
    """Its annotations."""
    return mapping(meta(obj).get("annotations"))


def spec(obj: Object) -> Object:
    return mapping(obj.get("spec"))


def status(obj: Object) -> Object:
    return mapping(obj.get("status"))


def name(obj: Object) -> str:
    return text(meta(obj).get("name"))


def namespace(obj: Object) -> str:
    return text(meta(obj).get("namespace"))


def uid(obj: Object) -> str:
    return text(meta(obj).get("uid"))


def created(obj: Object) -> float | None:
    return moment(meta(obj).get("creationTimestamp"))


def controller(obj: Object) -> Object | None:
    """The owner reference that controls `obj`: at most one, says the API."""
    for owner in entries(meta(obj).get("ownerReferences")):
        if owner.get("controller") is True:
            return owner
    return None


def conditions(obj: Object) -> dict[str, Object]:
    """Conditions by type. Their order says nothing: a controller rewrites them in place."""
    return {text(item.get("type")): item for item in entries(status(obj).get("conditions"))}


def holds(found: Mapping[str, Object], *types: str) -> Object | None:
    """The first of these conditions that is True."""
    for kind in types:
        condition = found.get(kind)
        if condition is not None and condition.get("status") == "True":
            return condition
    return None


def word(condition: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of a condition."""
    return text(condition.get("reason")), text(condition.get("message"))


def total(values: Iterable[object]) -> int:
    """The sum of counts, bounded like each of them."""
    return min(sum(count(value) or 0 for value in values), MAX_COUNT)
