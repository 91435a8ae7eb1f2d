"""What every training script of the corpus has beside it: the faults armed in its process, and the truth told of them.

`CORPUS_FAULTS` holds the faults as JSON (see `case.Fault`), `CORPUS_WORKER` this worker's name, `CORPUS_EVENTS` the
folder for the truth: just before a process fails it writes there who it is and what it is about to do. Nothing of this
is ever printed: the log is what any training script leaves.
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # mypy would read all of torch
    torch: Any
    dist: Any
else:
    import torch
    import torch.distributed as dist

#: The variable of this name may be a virtual one, the folder's name never is.
LOCAL_RANK = int(Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent.name)
RANK = int(os.environ["RANK"])
WORKER = os.environ["CORPUS_WORKER"]
EVENTS = Path(os.environ["CORPUS_EVENTS"])
#: Set by `agree_on_a_moment`: seconds since the epoch.
_moment = math.inf


@functools.cache
def this_round() -> int:
    """Which start of this local rank on this worker it is, from 0.

    torchelastic's own count is each agent's: it differs between workers in one and the same round.
    """
    path = EVENTS / f"starts.{WORKER}.{LOCAL_RANK}"
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size - 1


def fault_at(step: int, point: str = "") -> str:
    """The kind of this process's fault at this step and point of the script, after the truth is told; else nothing."""
    here = {"step": step, "round": this_round()}
    for fault in json.loads(os.environ.get("CORPUS_FAULTS", "[]")):
        place, _, kind = fault["do"].rpartition(":")
        mine = fault["worker"] in (WORKER, None) and fault["local_rank"] in (LOCAL_RANK, None)
        if mine and place == point and here.items() <= fault.items():
            if fault["at"] is not None:
                time.sleep(max(0.0, _moment + fault["at"] - time.time()))
            _tell_truth(fault)
            return str(kind)
    return ""


def mark(step: int) -> None:
    """Tells the maker that this process has come so far."""
    this_round()  # counts this start, also where no fault is asked for in it
    if str(step) == os.environ.get("CORPUS_MARK_STEP"):
        (EVENTS / f"reached.{WORKER}.{LOCAL_RANK}").touch()


def agree_on_a_moment(group: Any = None) -> None:
    """A full second in the near future, the same for all ranks: faults with `at` come so much after it."""
    global _moment
    now = torch.tensor([time.time()], dtype=torch.float64)
    dist.all_reduce(now, op=dist.ReduceOp.MAX, group=group)
    _moment = math.ceil(now.item()) + 1


def _tell_truth(fault: dict[str, Any]) -> None:
    """Who is about to fail, for the maker."""
    event = {
        "id": fault["id"],
        "event": fault["do"],
        "node": WORKER,
        "rank": RANK,
        "local_rank": LOCAL_RANK,
        "world_size": int(os.environ["WORLD_SIZE"]),
        "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "round": this_round(),
        "pid": os.getpid(),
        "step": fault["step"],
        "at_true": time.time(),
    }
    with (EVENTS / f"event.{WORKER}.{LOCAL_RANK}.{this_round()}.json").open("w") as file:
        json.dump(event, file)
