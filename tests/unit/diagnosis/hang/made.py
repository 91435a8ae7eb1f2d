"""Workers' reports in the probe's format, with one unusual property at a time."""

from __future__ import annotations

import json
from typing import Any

from atlctl.diagnosis.hang import Scene, diagnose
from atlctl.diagnosis.rankreport import StackReport, parse_report

SITE = "/opt/conda/lib/python3.11/site-packages"
COLLECTIVE = [
    ["all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3252],
    ["_exception_logger.<locals>.wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 83],
    ["main", "/job/train.py", 17],
]
NOW = 2_000_000_000.0
#: System call and timeout for each kind of wait.
_CALLS = {"sleep": "clock_nanosleep", "file": "openat", "read": "read", "child": "wait4", "poll": "epoll_wait"}


def stack(*frames: list[Any], source: str = "py-spy") -> dict[str, Any]:
    return {"source": source, "threads": [{"tid": None, "name": "MainThread", "active": False, "frames": list(frames)}]}


def rank(number: int | None, sign: str = "gloo", each: int = 4, world: int = 16, **more: Any) -> dict[str, Any]:
    """A rank whose main thread shows `sign`. `more` replaces fields."""
    state = {"busy": "R", "starved": "R", "stopped": "T", "traced": "t", "disk": "D"}.get(sign, "S")
    call = _CALLS.get(sign, "futex")
    if state != "S":
        call = {"R": "running", "D": "read"}.get(state, "none")
    look = {"name": "python", "state": state, "wchan": None, "syscall": call, "timed": sign == "peer", "target": None}
    gloo = [["pt_gloo_runloop", "S", "futex", False, None, 1]]
    if sign in ("gloo", "lock", "peer"):
        gloo.append(["pt_gloo_runloop", "S", "futex", sign == "gloo", None, 1])
    numbers: dict[str, Any] = {"ticks": 0, "main_ticks": 0, "run_ns": 0, "wait_ns": 0, "switches": 0}
    if sign == "busy":
        numbers = {"ticks": 198, "main_ticks": 198, "run_ns": int(1.98e9), "wait_ns": 0, "switches": 30}
    if sign == "starved":
        numbers = {"ticks": 10, "main_ticks": 10, "run_ns": int(0.1e9), "wait_ns": int(1.8e9), "switches": 30}
    if sign == "moving":
        numbers = {"ticks": 20, "main_ticks": 20, "run_ns": int(0.2e9), "wait_ns": 0, "switches": 200}
    local = (number or 0) % each
    environ = {"world_size": world, "local_rank": local, "local_world_size": each}
    return {
        "rank": number,
        "pid": 1000 + (number if number is not None else 99),
        "start": 5000,
        "started": NOW - 1000,
        "parent": 7,
        "environ": {name: str(value) for name, value in environ.items()} if number is not None else {},
        "comm": "python",
        "command": "python train.py",
        "unread": None if number is not None else "no answer in 0.5 s",
        "looks": [] if sign == "ended" else [look, look],
        **numbers,
        "tracer": 0,
        "frozen": sign == "frozen",
        "threads": 4,
        "moved": [],
        "waits": [] if sign == "futex" else gloo,
        "children": [],
        "stack": None,
        "recorder": None,
        "problems": [],
        **more,
    }


def report(*ranks: dict[str, Any], **more: Any) -> StackReport:
    memory = {"headroom": 1 << 30, "of": "cgroup", "needed": 1 << 27}
    found = {"atlctl_stacks": 1, "seconds": 2.0, "ticks_per_second": 100, "cpus": 8, "now": NOW, "memory": memory}
    made = parse_report(json.dumps({**found, "hidden": 0, "problem": None, "ranks": list(ranks), **more}).encode())
    assert made is not None
    return made


def job(odd: dict[int, dict[str, Any] | None], *, usual: str = "gloo", whole: bool = True, **more: Any) -> Scene:
    """Four workers with four ranks, all `usual` except `odd`; None: no process has that rank."""
    ranks = {number: rank(number, usual, **more) for number in range(16)} | odd
    workers = {
        f"worker-{index}": report(*[found for number in range(index * 4, index * 4 + 4) if (found := ranks[number])])
        for index in range(4)
    }
    return diagnose(workers, whole)


def recorder(entered: int, *, pending: bool) -> dict[str, Any]:
    """A flight recorder of the group of all ranks: `entered` collectives, the last one perhaps pending."""
    entries = [
        {
            "collective_seq_id": seq,
            "input_sizes": [[4]],
            "is_p2p": False,
            "process_group": ["0", "default_pg"],
            "profiling_name": "gloo:all_reduce",
            "record_id": seq - 1,
            "retired": not (pending and seq == entered),
            "state": "scheduled",
            "time_created_ns": int((NOW - 100 + seq) * 1e9),
        }
        for seq in range(1, entered + 1)
    ]
    status = {
        "0": {"last_enqueued_collective": entered, "last_started_collective": -1, "last_completed_collective": -1}
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ""}}
    dump = {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": status}
    return {"source": "torch", "json": dump}
