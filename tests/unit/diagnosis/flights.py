"""Flight-recorder dumps in torch's format, with the fields of a real dump and made-up values."""

from __future__ import annotations

from typing import Any

from atlctl.diagnosis.flightrecorder import FlightDump, parse_dump

FRAMES = [
    {"name": "all_reduce", "filename": "/opt/venv/lib/python3.11/site-packages/torch/distributed/d.py", "line": 3245},
    {"name": "step", "filename": "/workspace/train.py", "line": 8},
    {"name": "<module>", "filename": "/workspace/train.py", "line": 40},
]


def entry(seq: int, operation: str = "all_reduce", state: str = "completed", **more: Any) -> dict[str, Any]:
    """One entry of the default group."""
    group = more.pop("group", ("0", "default_pg"))
    return {
        "frames": FRAMES,
        "record_id": seq - 1,
        "pg_id": 0 if group[0] == "0" else 1,
        "process_group": group,
        "thread_name": "python",
        "thread_id": "140031363201920",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_795_289_768_000_000_000 + seq,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 8]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **more,
    }


def document(entries: list[dict[str, Any]], groups: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A whole dump. `groups`: name to ranks, as text; the group 0 is the default one."""
    last = max((item["collective_seq_id"] for item in entries), default=-1)
    ended = max((item["collective_seq_id"] for item in entries if item["state"] == "completed"), default=-1)
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": {
            name: {"name": name, "desc": "default_pg" if name == "0" else "tp", "ranks": ranks}
            for name, ranks in (groups or {"0": "[0, 1, 2, 3]"}).items()
        },
        "pg_status": {
            "0": {
                "last_enqueued_collective": last,
                "last_started_collective": ended,
                "last_completed_collective": ended,
            }
        },
        "entries": entries,
        **more,
    }


def dump(data: bytes, rank: int) -> FlightDump:
    """The parsed dump of a rank; fails if it cannot be read."""
    found, reason = parse_dump(data, f"nccl_trace_rank_{rank}")
    assert found is not None, reason
    return found
