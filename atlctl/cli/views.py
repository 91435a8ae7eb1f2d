"""Jobs and workers as tables and as JSON-ready data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.i18n import Message
from atlctl.jobs.model import Job, Worker
from atlctl.render.streams import Streams
from atlctl.render.table import Column, Table, render_table, rfc3339

if TYPE_CHECKING:
    from atlctl.jobs.model import Usage


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    return value if isinstance(value, str) else str(value)


def _tells(column: Column, cell: str) -> bool:
    return cell != "-" and not (column.title == "RESTARTS" and cell == "0")


def _render(columns: list[Column], rows: list[list[str]], streams: Streams, wide: bool) -> str:
    """On a terminal, where room is short, columns that say nothing are left out; `wide` and pipes have them all."""
    if streams.stdout_tty and not wide:
        told = [i for i, column in enumerate(columns) if any(_tells(column, row[i]) for row in rows)]
        columns, rows = [columns[i] for i in told], [[row[i] for i in told] for row in rows]
    return render_table(Table(columns, rows), streams, wide)


def jobs_table(jobs: Sequence[Job], streams: Streams, wide: bool, *, spread: bool = False) -> str:
    """`spread`: jobs of several namespaces, which are then shown in any width."""
    now = time.time()
    columns = [
        Column(Message("NAME")),
        Column(Message("KIND")),
        Column(Message("STATE")),
        Column(Message("WORKERS"), "right"),
        Column(Message("GPUS"), "right"),
        Column(Message("AGE") if streams.stdout_tty else Message("CREATED"), "right" if streams.stdout_tty else "left"),
        Column(Message("NAMESPACE"), wide_only=not spread),
        Column(Message("BACKEND"), wide_only=True),
        Column("UID", wide_only=True),
    ]
    rows = [
        [
            job.name,
            job.kind,
            say.state(job.state, job.reason),
            f"{job.ready}/{job.expected}",
            _text(job.gpus),
            say.moment(job.created, streams, now),
            _text(job.namespace),
            job.backend,
            job.uid,
        ]
        for job in jobs
    ]
    return _render(columns, rows, streams, wide)


def workers_table(workers: Sequence[Worker], missing: Sequence[int], streams: Streams, wide: bool) -> str:
    """`missing`: indexes that should have a worker; each gets a row of its own. What workers do has columns where a
    backend looks at that."""
    now = time.time()
    used = any(worker.usage is not None for worker in workers)
    columns = [
        Column(Message("INDEX"), "right"),
        Column(Message("NODE RANK"), "right"),
        Column(Message("ROLE")),
        Column(Message("NAME")),
        Column(Message("STATE")),
        Column(Message("RESTARTS"), "right"),
        Column(Message("POD/HOST")),
        Column(Message("ADDRESS")),
        Column(Message("GPUS"), "right"),
        Column(Message("AGE") if streams.stdout_tty else Message("STARTED"), "right" if streams.stdout_tty else "left"),
        *(_use_columns() if used else ()),
        Column(Message("NODE"), wide_only=True),
        Column("PID", "right", wide_only=True),
        Column(Message("ENDED"), wide_only=True),
        Column(Message("MESSAGE"), wide_only=True),
    ]
    rows: list[tuple[int, list[str]]] = [
        (
            worker.index,
            [
                str(worker.index),
                _text(worker.node_rank),
                _text(worker.role),
                worker.name,
                say.state(worker.state, worker.reason),
                str(worker.restarts),
                _text(worker.pod or worker.host),
                _text(worker.address),
                _text(worker.gpus),
                say.moment(worker.started, streams, now),
                *(_usage(worker.usage) if used else ()),
                _text(worker.node),
                _text(worker.pid),
                say.moment(worker.ended, streams, now),
                _text(worker.message),
            ],
        )
        for worker in workers
    ]
    blank = ["-"] * (len(columns) - 5)
    rows += [(index, [str(index), "-", "-", "-", Message("missing"), *blank]) for index in missing]
    rows.sort(key=lambda row: row[0])
    return _render(columns, [cells for _, cells in rows], streams, wide)


def _use_columns() -> tuple[Column, ...]:
    return Column(Message("LOAD"), "right"), Column(Message("RANKS"), "right"), Column(Message("GPU USE"))


def _usage(usage: Usage | None) -> tuple[str, str, str]:
    """Load of how many CPUs, ranks that live there, and what its GPUs do: `93% 560/640 GiB`."""
    if usage is None:
        return "-", "-", "-"
    load = "-" if usage.load is None else f"{usage.load:g}{'' if usage.cpus is None else f'/{usage.cpus}'}"
    parts = [] if usage.utilization is None else [f"{usage.utilization:.0f}%"]
    if usage.memory is not None:
        used, total = usage.memory
        parts.append(f"{used / 1024:.0f}/{total / 1024:.0f} GiB")
    return load, _text(usage.ranks), " ".join(parts) or "-"


def _usage_data(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    gpus = None if usage.gpus is None else [asdict(gpu) for gpu in usage.gpus]
    return {"load": usage.load, "cpus": usage.cpus, "ranks": usage.ranks, "gpus": gpus}


def _when(epoch: float | None) -> str | None:
    return None if epoch is None else rfc3339(epoch, "microseconds")


def job_data(job: Job) -> dict[str, Any]:
    """A job without its workers, as `-o json` shows it. Times are RFC 3339, UTC."""
    return {
        "name": job.name,
        "kind": job.kind,
        "backend": job.backend,
        "namespace": job.namespace,
        "uid": job.uid,
        "state": str(job.state),
        "reason": job.reason,
        "message": job.message or None,
        "queue": job.queue,
        "workers": {"expected": job.expected, "present": len(job.workers), "running": job.ready},
        "missing": list(job.missing),
        "gpus": job.gpus,
        "created": _when(job.created),
        "ended": _when(job.ended),
    }


def worker_data(worker: Worker) -> dict[str, Any]:
    """A worker as `-o json` shows it. Times are RFC 3339, UTC."""
    return {
        "index": worker.index,
        "node_rank": worker.node_rank,
        "role": worker.role,
        "name": worker.name,
        "state": str(worker.state),
        "reason": worker.reason,
        "message": worker.message or None,
        "container": worker.container,
        "attempt": worker.attempt,
        "restarts": worker.restarts,
        "pod": worker.pod,
        "host": worker.host,
        "node": worker.node,
        "address": worker.address,
        "gpus": worker.gpus,
        "pid": worker.pid,
        "started": _when(worker.started),
        "ended": _when(worker.ended),
        "exit_code": worker.exit_code,
        "signal": worker.signal,
        "usage": _usage_data(worker.usage),
    }
