"""Read fields of untrusted JSON: files, agents, servers.

A value of the wrong type or size gives a neutral value, never an error.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from atlctl.i18n import Message, from_data

#: Most digits of an integer that is kept: 64 bits need at most 20 with the sign.
_DIGITS = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: dict[str, Any] = {}


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Numbers that are not finite or need more than 64 bits become None.

    Raises ValueError, RecursionError.
    """
    return json.loads(text, parse_int=_integer, parse_float=_real, parse_constant=_nothing)


class NotRead(ValueError):
    """A JSON document that cannot be read. `why` is the reason."""

    def __init__(self, why: Message) -> None:
        super().__init__(why)
        self.why = why


def read_json(text: str | bytes) -> Any:
    """Parse JSON as `parse_json` does. Raises NotRead."""
    try:
        return parse_json(text)
    except RecursionError:
        raise NotRead(Message("nested too deeply")) from None
    except ValueError as error:
        raise NotRead(Message("not valid JSON (cut off?): {why}", why=str(error)[:200])) from None


def _integer(digits: str) -> int | None:
    return whole(int(digits)) if len(digits) <= _DIGITS else None


def _real(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _nothing(_: str) -> None:
    return None


def mapping(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty dict. Not a copy: do not write to it."""
    return value if type(value) is dict else _NOTHING


def items(value: object, most: int | None = None) -> list[Any]:
    """`value` if it is a list (or a tuple of a pickle), else an empty list; at most the first `most` items."""
    found = value if type(value) is list else list(value) if type(value) is tuple else []
    return found if most is None else found[:most]


def entries(value: object, most: int | None = None) -> list[dict[str, Any]]:
    """The objects among the first `most` items of a list."""
    return [item for item in items(value, most) if type(item) is dict]


def text(value: object, most: int | None = None) -> str:
    """The first `most` characters of `value` if it is a string, else an empty string."""
    if type(value) is not str:
        return ""
    return without_surrogates(value if most is None else value[:most])


def message(value: object, most: int | None = None) -> str:
    """The message of a program on a worker (`remote/sentences.py`); any other value is read as by `text`."""
    if type(value) is dict:
        return from_data(value, text(value.get("text"), most))
    return text(value, most)


def texts(value: object) -> list[str]:
    """The strings of a list."""
    return [text(item) for item in items(value) if type(item) is str]


def without_surrogates(text: str) -> str:
    """Replace each lone surrogate, which JSON can hold, by a question mark, so that `text` can be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def whole(value: object, bits: int = 64) -> int | None:
    """`value` if it is a whole number (not a bool) that a signed integer of `bits` can hold, else None."""
    return value if type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1 else None


def number(value: object, least: float = -(1 << 63)) -> float | None:
    """`value` as a float if it is a finite number (not a bool) from `least` to 2**63, else None."""
    if type(value) is not float and type(value) is not int:
        return None
    return float(value) if least <= value < 1 << 63 else None  # false for NaN too


def moment(value: object) -> float | None:
    """Unix time in seconds of an RFC 3339 time with a zone, or of a number; else None.

    0 and earlier are None: Kubernetes and Go write "never" that way.
    """
    if type(value) is str and len(value) <= 40:
        try:
            value = (datetime.fromisoformat(value) - _EPOCH).total_seconds()
        except (ValueError, TypeError, OverflowError):  # TypeError: a time without a zone
            return None
    found = number(value)
    return found if found is not None and 0 < found < 1e11 else None  # 1e11 s is the year 5138
