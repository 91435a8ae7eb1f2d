"""What is to be seen of one worker: who lives, what was written, how much the machine has to do."""

from __future__ import annotations

import os
from typing import Any

from . import folders, processes

#: Names of programs that are told.
MAX_PROGRAMS = 50


def look(wanted: dict[str, Any]) -> dict[str, Any]:
    """Raises Refused."""
    folder = wanted["folder"]
    record = folders.record(folder, wanted["uid"])
    own = f"{folder}/workers/{wanted['worker']}"
    # The order matters: a worker that ends meanwhile has its exit written by now, or is seen as running.
    presence, place = folders.presence(record)
    process = folders.read_json(f"{own}/proc.json") or {}
    found: dict[str, Any] = {
        "event": "seen",
        "presence": presence,
        "place": place,
        "host": os.uname().nodename,
        "process": process,
        "exit": folders.read_json(f"{own}/exit.json"),
        "trainer_failed": os.path.exists(f"{own}/trainer.json"),
        "stopping": os.path.exists(f"{own}/stopping"),
        "load": list(os.getloadavg()),
        "cpus": os.cpu_count(),
        "processes": 0,
        "programs": [],
        "ranks": [],
    }
    if presence == "alive":
        table = processes.everything()
        children = processes.children_of(table)
        everything = processes.below(children, (record["supervisor"]["pid"],))
        found["processes"] = len(everything)
        found["ranks"] = sorted(rank for rank in map(_rank, everything) if rank is not None)
        if found["trainer_failed"] and isinstance(process.get("pid"), int):
            family = processes.below(children, (process["pid"],)) | {process["pid"]}
            found["programs"] = sorted({table[pid].comm for pid in family if pid in table})[:MAX_PROGRAMS]
    return found


def _rank(pid: int) -> int | None:
    """The global rank of a child of torchrun. In other processes `RANK` counts workers."""
    env = processes.environment(pid)
    rank = env.get(b"RANK", b"")
    torch = b"TORCHELASTIC_RUN_ID" in env and env.get(b"LOCAL_RANK", b"").isdigit()
    return int(rank) if torch and rank.isdigit() and len(rank) < 10 else None
