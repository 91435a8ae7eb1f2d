"""JSON that others wrote: files and agents whose bytes are not trusted."""

from __future__ import annotations

import json
import math
from typing import Any

#: Digits of a whole number that is kept: no 64 bits hold more than 20 with their sign.
_DIGITS = 20


def parse_json(text: str | bytes) -> Any:
    """The value of a document; numbers that are not finite, or beyond 64 bits, are None, and the rest is kept.

    Raises ValueError, RecursionError.
    """
    return json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=_nothing)


def _whole(digits: str) -> int | None:
    value = int(digits) if len(digits) <= _DIGITS else None
    return value if value is not None and -(1 << 63) <= value < 1 << 63 else None


def _real(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _nothing(_: str) -> None:
    return None
