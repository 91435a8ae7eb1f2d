"""`stacks` as data. The fields are in docs/en/stacks.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlctl.diagnosis.hang.joined import Pending
from atlctl.diagnosis.hang.judge import Judged
from atlctl.diagnosis.hang.repeat import Change
from atlctl.diagnosis.hang.report import Child, Moment, Report
from atlctl.diagnosis.hang.scene import Scene
from atlctl.diagnosis.tracebacks import Frame


def to_data(scene: Scene, changed: Sequence[Change] | None) -> dict[str, Any]:
    """The answer, without the job's name."""
    return {
        "verdict": str(scene.what),
        "confidence": scene.confidence,
        "why": scene.why,
        "culprits": [{"rank": rank.rank, "worker": rank.worker} for rank in scene.culprits],
        "seconds": scene.seconds,
        "world_size": scene.world,
        "unseen_ranks": list(scene.unseen),
        "groups": [
            {
                **_verdict(group.first),
                "ranks": [rank.rank for rank in group.ranks],
                "workers": list(dict.fromkeys(rank.worker for rank in group.ranks)),
                "stack": [_frame(frame) for frame in group.first.frames],
            }
            for group in scene.groups
        ],
        "ranks": [_rank(rank) for rank in scene.ranks],
        "changes": None
        if changed is None
        else [{"rank": change.rank, "worker": change.worker, "moved": change.how} for change in changed],
    }


def worker_data(name: str, report: Report | None) -> dict[str, Any]:
    """What a worker's answer says beside its ranks."""
    return {
        "worker": name,
        "seen": report is not None,
        "memory_headroom_bytes": report.headroom if report else None,
        "throttled_microseconds": report.throttled_us if report else None,
        "hidden_processes": report.hidden if report else None,
        "launchers": report.launchers if report else None,
        "problem": report.problem if report else None,
    }


def _verdict(rank: Judged) -> dict[str, Any]:
    return {
        "verdict": str(rank.what),
        "confidence": rank.confidence,
        "why": rank.why,
        "collective": _pending(rank.pending),
    }


def _pending(pending: Pending | None) -> dict[str, Any] | None:
    if pending is None:
        return None
    return {"number": pending.seq, "operation": pending.operation, "group": pending.group}


def _rank(rank: Judged) -> dict[str, Any]:
    data: dict[str, Any] = {"rank": rank.rank, "worker": rank.worker, **_verdict(rank)}
    report = rank.report
    if report is None:
        return {**data, "process": None, "threads": []}
    process = {
        "pid": report.pid,
        "started": report.started,
        "command": report.command,
        "main_thread": _moment(report.looks[-1]) if report.looks else None,
        "cpu_ticks": report.ticks,
        "main_thread_cpu_ticks": report.main_ticks,
        "context_switches": report.switches,
        "run_nanoseconds": report.run_ns,
        "wait_nanoseconds": report.wait_ns,
        "still": rank.still,
        "frozen": report.frozen,
        "tracer": report.tracer or None,
        "children": [_child(child) for child in report.children],
        "stack_source": report.source,
        "problems": [*report.problems, *([f"environ: {report.unread}"] if report.unread else [])],
    }
    threads = [
        {
            "name": thread.name,
            "main": thread.main,
            "active": thread.active,
            "frames": [_frame(frame) for frame in thread.frames],
        }
        for thread in report.threads
    ]
    return {**data, "process": process, "threads": threads}


def _moment(at: Moment) -> dict[str, Any]:
    return {"state": at.state, "wchan": at.wchan, "syscall": at.syscall, "target": at.target}


def _child(child: Child) -> dict[str, Any]:
    return {"pid": child.pid, "name": child.at.name, "cpu_ticks": child.ticks, **_moment(child.at)}


def _frame(frame: Frame) -> dict[str, Any]:
    return {"function": frame.function, "file": frame.path, "line": frame.line}
