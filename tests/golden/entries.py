"""Jobs written by hand, so that everything about them but their age is known."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.unit.diagnosis.samples import PEER_GONE, block, entry

HOST = "gpu-node-1"
ERROR = "RuntimeError: CUDA error: device-side assert triggered 训练"


def write(state: Path, name: str, created: float, exits: list[dict[str, Any] | None], logs: list[list[str]]) -> None:
    """A job of another machine. A worker without an exit may still run there."""
    folder = state / "local" / name
    uid = f"00000000-0000-4000-8000-{len(name):012d}"
    record = {
        "name": name,
        "uid": uid,
        "created": created,
        "argv": ["python3", "train.py"],
        "master_port": 29500,
        "workers": [{"name": f"worker-{n}", "env": {"RANK": str(n)}} for n in range(len(exits))],
        "supervisor": {"pid": 100, "start": 1, "host": HOST, "boot_id": "b", "pid_namespace": "n"},
    }
    for number, (end, lines) in enumerate(zip(exits, logs, strict=True)):
        own = folder / "workers" / f"worker-{number}"
        own.joinpath("log").mkdir(parents=True)
        own.joinpath("proc.json").write_text(json.dumps({"pid": 101 + number, "start": 2, "started": created + 1}))
        if end is not None:
            own.joinpath("exit.json").write_text(
                json.dumps({"exit_code": None, "signal": None, "ended": created + 60, "stopped": False, **end})
            )
        with own.joinpath("log/0.log").open("w") as log:
            for at, line in enumerate(lines):
                stamp = datetime.fromtimestamp(created + 2 + at + number / 10, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
                log.write(f"{stamp}000Z {'stderr' if at % 2 else 'stdout'} F {line}\n")
    folder.joinpath("job.json").write_text(json.dumps(record))


def write_all(state: Path, created: float) -> None:
    """train-7 succeeded; in train-8 worker-1 failed first, worker-0 by it, worker-2 by a signal; far is Unknown."""
    write(state, "train-7", created, [{"exit_code": 0}] * 2, [["step 1", "step 2"], ["step 1", "训练 完成"]])
    root = entry(rank=1, text=ERROR, time="2026-11-20_17:45:05")
    peer = entry(rank=0, text=PEER_GONE, time="2026-11-20_17:45:07")
    write(
        state,
        "train-8",
        created,
        [{"exit_code": 1}, {"exit_code": 1}, {"signal": 9}],
        [block(peer), block(root), ["started"]],
    )
    write(state, "far", created, [None, {"exit_code": 0}], [["here"], []])
