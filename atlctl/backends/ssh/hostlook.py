"""One look at a host: its load, its GPUs, and the ranks that live there. Needs `sh` alone."""

from __future__ import annotations

import math

from atlctl.backends.base import Argv, Executor
from atlctl.backends.guarded.asking import told_by
from atlctl.backends.guarded.ranks import SCRIPT as RANKS
from atlctl.jobs.gpus import QUERY, parse
from atlctl.jobs.model import Worker
from atlctl.jobs.usage import Usage

#: A driver that hangs must not keep the rest from being told, so it is asked last.
_SCRIPT = (
    r"""
read -r l _ </proc/loadavg && echo "L $l"
echo "C `getconf _NPROCESSORS_ONLN 2>/dev/null || grep -c ^processor /proc/cpuinfo`"
(
"""
    + RANKS.strip()
    + r"""
) | sort -u | { n=0; while read -r r; do n=$((n+1)); done; echo "R $n"; }
command -v nvidia-smi >/dev/null || exit 0
echo G
"""
    + f"timeout 10 {QUERY[0]} '{QUERY[1]}' '{QUERY[2]}' 2>&1\nexit 0\n"
)
_LIMIT = 256 * 1024


async def look(executor: Executor, worker: Worker) -> Usage:
    """What the host of `worker` tells. Raises AtlctlError where it cannot be asked."""
    return read(await told_by(executor, worker, Argv(("sh", "-c", _SCRIPT)), _LIMIT))


def read(said: bytes) -> Usage:
    """What the script printed; what cannot be understood counts as not told."""
    own, gpus, rows = said.partition(b"\nG\n")
    told = {line[:1]: line[2:40].decode("ascii", "replace") for line in own.splitlines() if line[1:2] == b" "}
    readout = parse(rows) if gpus else None
    return Usage(
        _number(told.get(b"L", "")),
        _whole(told.get(b"C", "")),
        _whole(told.get(b"R", "")),
        None if readout is None or not (readout.gpus or readout.none) else readout.gpus,
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1e6 else None


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
