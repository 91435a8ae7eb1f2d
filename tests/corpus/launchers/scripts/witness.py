"""Records the truth: who fails, and how. The maker reads it; nothing of this is ever printed.

`plan.json` beside the scripts names the fault and its rank. Each event is a file in `events/`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_EVENTS = _FOLDER / "events"
PLAN: dict[str, Any] = json.loads((_FOLDER / "plan.json").read_text(encoding="utf-8"))
#: The step at which the maker may act from outside, and all faults of a step happen.
STEP = 3


class Me:
    """This process. `place` is called once, before anything else."""

    rank = -1
    local_rank = -1
    size = 0


def place(rank: int, local_rank: int, size: int) -> None:
    """Sets who this process is."""
    Me.rank, Me.local_rank, Me.size = rank, local_rank, size


def armed(fault: str) -> bool:
    """Whether this fault is planned for this process."""
    return PLAN["fault"] == fault and (PLAN["ranks"] is None or Me.rank in PLAN["ranks"])


def record(kind: str = "event") -> None:
    """Writes who this process is: an `event` just before it fails, `reached` at the step of the fault."""
    text = {
        "event": PLAN["fault"],
        "rank": Me.rank,
        "local_rank": Me.local_rank,
        "world_size": Me.size,
        "pid": os.getpid(),
        "at_true": time.time(),
    }
    part = _EVENTS / f"part.{kind}.{os.getpid()}"
    part.write_text(json.dumps(text))
    part.rename(_EVENTS / f"{kind}.{Me.rank}.{os.getpid()}.json")
