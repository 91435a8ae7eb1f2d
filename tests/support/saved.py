"""Synthetic evidence folders of any size: ranks train for a minute, one fails, and the others lose it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 11, 20, 17, 45, tzinfo=UTC)
PEER_GONE = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4242"


def evidence(
    folder: Path,
    workers: int,
    *,
    culprit: int = 1,
    name: str = "worker-{}",
    words: str = "ValueError: shard 17",
    steps: int = 60,
) -> Path:
    """A folder as `record` writes it. `words`: message of the failing rank; `name`: of a worker, by its number."""
    folder.mkdir()
    names = [name.format(number) for number in range(workers)]
    for number, worker in enumerate(names):
        (folder / f"{worker}.ts.log").write_text(_log(number, number == culprit, words, steps), "utf-8")
    (folder / "atlctl.json").write_text(json.dumps(_manifest(names, culprit)), "utf-8")
    events = [
        {
            "time": _at(-40 + number / 10),
            "worker": worker,
            "kind": "Pod",
            "reason": "Started",
            "message": "Started container",
        }
        for number, worker in enumerate(names)
    ]
    events.append(
        {
            "time": _at(30.0),
            "node": "gpu-01",
            "kind": "Node",
            "reason": "NodeNotReady",
            "message": f"not ready: {words}",
        }
    )
    _lines(folder / "events.jsonl", events)
    states = [{"time": _at(-38), "worker": worker, "state": "Running", "reason": "", "message": ""} for worker in names]
    states.append({"time": _at(63), "worker": names[culprit], "state": "Failed", "reason": "Error", "message": words})
    _lines(folder / "states.jsonl", states)
    return folder


def _at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def _log(number: int, fails: bool, words: str, steps: int) -> str:
    lines: list[tuple[float, str]] = [
        (-30, "PyTorch version: 2.8.0+cu128"),
        (-29, "NCCL version 2.27.3+cuda12.8"),
        *((step, f"[rank{number}]: step {step}/{steps} loss={1 / (step + 1):.4f}") for step in range(0, steps, 2)),
    ]
    end = steps + (0.25 if fails else 0.9 + number % 7 / 10)
    said = words if fails else PEER_GONE
    lines += [
        (end, f"[rank{number}]: Traceback (most recent call last):"),
        (end, f'[rank{number}]:   File "/workspace/train.py", line {101 if fails else 88}, in main'),
        (end, f"[rank{number}]:     train(loader)"),
        (end, f"[rank{number}]: {said}"),
        (
            end + 1,
            "E1120 17:46:05.000000 1 torch/x.py:1] failed (exitcode: 1) local_rank: 0 (pid: 14) of binary: python",
        ),
        (end + 1.2, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
        (end + 1.2, "=" * 60),
        (end + 1.2, "train.py FAILED"),
        (end + 1.2, "-" * 60),
        (end + 1.2, "Failures:"),
        (end + 1.2, "  <NO_OTHER_FAILURES>"),
        (end + 1.2, "-" * 60),
        (end + 1.2, "Root Cause (first observed failure):"),
        (end + 1.2, "[0]:"),
        (end + 1.2, f"  time      : {(START + timedelta(seconds=end)).strftime('%Y-%m-%d_%H:%M:%S')}"),
        (end + 1.2, f"  host      : worker-{number}"),
        (end + 1.2, f"  rank      : {number} (local_rank: 0)"),
        (end + 1.2, "  exitcode  : 1 (pid: 14)"),
        (end + 1.2, "  error_file: <N/A>"),
        (end + 1.2, "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"),
        (end + 1.2, "=" * 60),
    ]
    return "".join(f"{_at(time)} {line}\n" for time, line in lines)


def _manifest(names: list[str], culprit: int) -> dict[str, Any]:
    workers = [
        {
            "name": name,
            "index": number,
            "node_rank": number,
            "pod": f"train-7-{name}",
            "node": f"gpu-{number:02d}",
            "addresses": [f"10.0.{number // 250}.{number % 250 + 1}"],
            "state": "Failed" if number == culprit else "Held",
            "reason": "Error" if number == culprit else "",
            "exit_code": 1 if number == culprit else None,
            "started": START.timestamp() - 38,
        }
        for number, name in enumerate(names)
    ]
    job = {"name": "train-7", "kind": "PyTorchJob", "uid": "4711", "state": "Failed", "expected_workers": len(names)}
    return {"version": 1, "job": job, "workers": workers}


def _lines(path: Path, items: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items), "utf-8")


def smoke_document(workers: int, *, name: str = "worker-{}", words: str = "slow") -> dict[str, Any]:
    """Output of `smoke -o json`: one link is slow, and one worker has a slow card."""
    names = [name.format(number) for number in range(workers)]

    def speed(one: int, other: int) -> float | None:
        if one == other:
            return None
        base = 11_800 + (one * 37 + other * 91) % 500
        return base * (0.5 if 3 in (one, other) else 0.7 if (one, other) == (1, 2) else 1)

    matrix = [[speed(one, other) for other in range(workers)] for one in range(workers)]
    finding = {
        "check": "throughput",
        "severity": "fail",
        "culprit": {
            "kind": "worker",
            "worker": names[3 % workers],
            "peer": None,
            "gpu": None,
            "rank": None,
            "path": None,
        },
        "evidence": f"half of the others' speed: {words}",
        "confirmed": True,
        "advice": "have its network card looked at",
    }
    checks = [
        {"check": "roll-call", "verdict": "pass", "note": f"{workers} of {workers} workers answer", "seconds": 1.2},
        {"check": "facts", "verdict": "pass", "note": "torch 2.8.0, CUDA 12.8", "seconds": 0.4},
        {"check": "throughput", "verdict": "fail", "note": words, "seconds": 21.0},
        {"check": "ddp", "verdict": "not_judged", "note": "no GPU", "seconds": 0.0},
    ]
    facts = [
        {"worker": one, "index": at, "answered": True, "torch": "2.8.0", "driver": "570.86" if at else "550.54"}
        for at, one in enumerate(names)
    ]
    data = {
        "job": "train-7",
        "uid": "4711",
        "tier": "standard",
        "verdict": "fail",
        "findings": [finding],
        "checks": checks,
        "workers": facts,
        "timings": {"total": 24.5},
        "figures": {"throughput": {"workers": names, "matrix_mb_per_s": matrix}},
        "may_still_run": [],
    }
    return {"apiVersion": "atlctl/v1", "command": "smoke", "status": "success", "data": data, "errors": []}
