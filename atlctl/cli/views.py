"""Jobs and workers as tables and as JSON-ready data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.i18n import COLON, Message, joined, translated
from atlctl.jobs.model import Job, State, Worker
from atlctl.jobs.naming import fold_names, names_by_reason
from atlctl.render.palette import Tone, Toned
from atlctl.render.streams import Streams
from atlctl.render.table import Column, Table, human_age, render_table, rfc3339
from atlctl.render.width import display_width

if TYPE_CHECKING:
    from atlctl.jobs.model import Usage


#: How dispensable an empty column is.
_EMPTY = 99
#: Cells of a reason that is shown beside its state.
_REASON = 20


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    return value if isinstance(value, str) else str(value)


def _render(
    columns: list[Column], rows: list[list[str | Toned]], notes: Sequence[Toned], streams: Streams, wide: bool
) -> str:
    """On a terminal, where room is short, empty columns are left out, in the wide form only for others; pipes have them
    all."""
    if streams.stdout_tty:
        empty = {i for i in range(len(columns)) if all(row[i] == "-" for row in rows)}
        columns = [replace(column, spare=_EMPTY) if i in empty else column for i, column in enumerate(columns)]
        told = [i for i in range(len(columns)) if wide or i not in empty]
        columns, rows = [columns[i] for i in told], [[row[i] for i in told] for row in rows]
    return render_table(Table(columns, rows, notes), streams, wide)


def _states(found: Sequence[Job] | Sequence[Worker], streams: Streams) -> tuple[list[Toned], list[Toned]]:
    """The cells of their states, and the notes below the table: on a terminal a long reason is in such a note."""
    cells: list[Toned] = []
    notes: dict[State, list[tuple[str, str]]] = {}
    for one in found:
        long = streams.stdout_tty and display_width(translated(one.reason)) > _REASON
        state = one.state.label
        cells.append(Toned(state if long else say.state(one.state, one.reason), say.STATE_TONES[one.state], state))
        if long:
            notes.setdefault(one.state, []).append((one.name, one.reason))
    return cells, [
        Toned(joined(parts, COLON), say.STATE_TONES[state], state.label)
        for state, reasons in ((state, names_by_reason(pairs)) for state, pairs in notes.items())
        for why, names in reasons.items()
        if (parts := (state.label, *((fold_names(names),) if len(reasons) > 1 else ()), why))
    ]


def jobs_table(jobs: Sequence[Job], streams: Streams, wide: bool, *, spread: bool = False) -> str:
    """`spread`: jobs of several namespaces, which are then shown in any width."""
    now = time.time()
    states, notes = _states(jobs, streams)
    columns = [
        Column(Message("NAME")),
        Column(Message("KIND"), spare=1),
        Column(Message("STATE")),
        Column(Message("WORKERS"), "right", spare=2),
        Column(Message("GPUS"), "right", spare=4),
        _age_column(streams, 3, Message("CREATED")),
        Column(Message("NAMESPACE"), wide_only=not spread, spare=0 if spread else 5),
        Column(Message("BACKEND"), wide_only=True, spare=6),
        Column("UID", wide_only=True, spare=7),
    ]
    rows: list[list[str | Toned]] = [
        [
            job.name,
            job.kind,
            state,
            f"{job.ready}/{job.expected}",
            _text(job.gpus),
            say.moment(job.created, streams, now),
            _text(job.namespace),
            job.backend,
            job.uid,
        ]
        for job, state in zip(jobs, states, strict=True)
    ]
    return _render(columns, rows, notes, streams, wide)


def _age_column(streams: Streams, spare: int, since: Message) -> Column:
    """Ages on a terminal, times on a pipe."""
    return Column(Message("AGE"), "right", spare=spare) if streams.stdout_tty else Column(since)


def workers_table(
    workers: Sequence[Worker],
    missing: Sequence[int],
    streams: Streams,
    wide: bool,
    steps: Mapping[str, tuple[int, float]] | None = None,
) -> str:
    """`missing`: indexes that should have a worker; each gets its row. Usage has columns if the backend queries it, and
    `steps` (by name: the last training step and its age in seconds) if there are any. On a terminal, columns that
    repeat others or are the same for all workers are shown only in the wide form."""
    now, terminal = time.time(), streams.stdout_tty
    states, notes = _states(workers, streams)
    used = any(worker.usage is not None for worker in workers)
    ranks = terminal and all(one.node_rank in (None, one.index) for one in workers)
    roles = terminal and len({one.role for one in workers}) < 2
    places = terminal and all(one.name == (one.pod or one.host) for one in workers)
    calm = terminal and not any(one.restarts for one in workers)
    columns = [
        Column(Message("INDEX"), "right"),
        Column(Message("NODE RANK"), "right", wide_only=ranks, spare=11),
        Column(Message("ROLE"), wide_only=roles, spare=10),
        Column(Message("NAME")),
        Column(Message("STATE")),
        Column(Message("RESTARTS"), "right", wide_only=calm, spare=1),
        Column(Message("POD/HOST"), wide_only=places, spare=5),
        Column(Message("ADDRESS"), spare=9),
        Column(Message("GPUS"), "right", spare=3),
        _age_column(streams, 4, Message("STARTED")),
        *(_use_columns() if used else ()),
        *((Column(Message("STEP"), "right", spare=2), Column(Message("STEP AGE"), "right", spare=2)) if steps else ()),
        Column(Message("NODE"), wide_only=True, spare=8),
        Column("PID", "right", wide_only=True, spare=12),
        Column(Message("ENDED"), wide_only=True, spare=12),
        Column(Message("MESSAGE"), wide_only=True, spare=6, least=30),
    ]
    rows: list[tuple[int, list[str | Toned]]] = [
        (
            worker.index,
            [
                str(worker.index),
                _text(worker.node_rank),
                _text(worker.role),
                worker.name,
                state,
                str(worker.restarts),
                _text(worker.pod or worker.host),
                _text(worker.address),
                _text(worker.gpus),
                say.moment(worker.started, streams, now),
                *(_usage(worker.usage) if used else ()),
                *(_step(steps.get(worker.name)) if steps else ()),
                _text(worker.node),
                _text(worker.pid),
                say.moment(worker.ended, streams, now),
                _text(worker.message),
            ],
        )
        for worker, state in zip(workers, states, strict=True)
    ]
    blank = ["-"] * (len(columns) - 5)
    absent = Toned(Message("missing"), Tone.LOST)
    rows += [(index, [str(index), "-", "-", "-", absent, *blank]) for index in missing]
    rows.sort(key=lambda row: row[0])
    return _render(columns, [cells for _, cells in rows], notes, streams, wide)


def _step(found: tuple[int, float] | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (str(found[0]), human_age(found[1]))


def _use_columns() -> tuple[Column, ...]:
    return (
        Column(Message("LOAD"), "right", spare=7),
        Column(Message("RANKS"), "right", spare=6),
        Column(Message("GPU USE"), spare=2),
    )


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
