"""Reading what agents answer, which may be anything."""

from __future__ import annotations

import math


def number(value: object) -> float | None:
    """A finite number that is not negative, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def text(value: object) -> str:
    """Words of a worker, shortened; hostile still."""
    return value[:200] if isinstance(value, str) else ""
