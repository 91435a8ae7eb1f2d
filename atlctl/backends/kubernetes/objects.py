"""Accessors for common fields of Kubernetes objects: metadata, labels, owners, conditions.

Missing fields and fields of the wrong type give a neutral value, never an error; `jobs.fields` reads fields of any
JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from atlctl.backends.kubernetes.api import Object
from atlctl.jobs.fields import entries, mapping, moment, text

#: Maximum valid number of workers, ranks and attempts.
MAX_COUNT = 100_000
_MAX_DIGITS = 18


def count(value: object) -> int | None:
    """An integer from 0 to MAX_COUNT, or its digits in a label; None for anything else."""
    if type(value) is str and len(value) <= _MAX_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    return None


def dig(value: object, *path: str) -> Any:
    """The value at a path of nested objects; None if the path does not exist."""
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
    """The owner reference that controls `obj`; the API allows one."""
    for owner in entries(meta(obj).get("ownerReferences")):
        if owner.get("controller") is True:
            return owner
    return None


def conditions(obj: Object) -> dict[str, Object]:
    """Conditions by type. Their order has no meaning: controllers rewrite them in place."""
    return {text(item.get("type")): item for item in entries(status(obj).get("conditions"))}


def holds(found: Mapping[str, Object], *types: str) -> Object | None:
    """The first of these conditions that is True."""
    for kind in types:
        condition = found.get(kind)
        if condition is not None and condition.get("status") == "True":
            return condition
    return None


def word(condition: Mapping[str, Any]) -> tuple[str, str]:
    return text(condition.get("reason")), text(condition.get("message"))


def total(values: Iterable[object]) -> int:
    """The sum of counts, limited like a single one."""
    return min(sum(count(value) or 0 for value in values), MAX_COUNT)
