"""What Kubernetes objects have in common: metadata, labels, owners, conditions.

Absent and wrongly typed fields give a neutral value, never an error; fields of any JSON are read by `jobs.fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from atlctl.backends.kubernetes.api import Object
from atlctl.jobs.fields import entries, mapping, moment, text

#: Larger numbers of workers, ranks and attempts are no numbers of such things.
MAX_COUNT = 100_000
_MAX_DIGITS = 18


def count(value: object) -> int | None:
    """A number from 0 to MAX_COUNT, also where a label writes it as digits; None for anything else."""
    if type(value) is str and len(value) <= _MAX_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
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
