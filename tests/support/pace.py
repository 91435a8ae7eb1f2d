"""Limits on durations, for machines that are slow or have other work."""

from __future__ import annotations

import subprocess
import sys
import time

#: Seconds of `_WORK` on a machine at rest for which the limits of the tests are meant.
NOMINAL = 0.15
_WORK = "import asyncio, json, subprocess"


def within(seconds: float, limit: float) -> bool:
    """Whether `seconds` is below `limit`, which grows as much as this machine is slower than one at rest."""
    return seconds < limit or seconds < limit * slowness()


def slowness() -> float:
    """How many times longer a Python program takes here and now than on a machine at rest; at least 1."""
    return max(1.0, *(_measured() / NOMINAL for _ in range(3)))


def _measured() -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", _WORK], check=True)
    return time.monotonic() - begun
