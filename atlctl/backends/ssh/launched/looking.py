"""How the workers of a job are: one question to each host. A host that cannot be asked is unknown, never wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from atlctl.backends.base import Executor
from atlctl.backends.ssh.launched import asking
from atlctl.backends.ssh.launched.asking import Refused, number, text, whole
from atlctl.backends.ssh.launched.records import Record
from atlctl.backends.supervised.states import IDLE_PROGRAMS, Presence, Written, confirm_held, job_state, state_of
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Job, RankMap, State, Worker
from atlctl.jobs.naming import safe_file_name

KIND = "SSH"


@dataclass(frozen=True, slots=True)
class Seen:
    """One worker as its host tells it. `problem`: why the host could not be asked; the state is Unknown then.

    `load`: the machine's load average. `processes`: how many the worker has. `ranks`: the global ranks of the children
    of torchrun among them.
    """

    worker: Worker
    load: tuple[float, float, float] | None = None
    cpus: int | None = None
    processes: int | None = None
    ranks: tuple[int, ...] = ()
    problem: AtlctlError | None = None


def details(record: Record, name: str) -> dict[str, Any]:
    """What every question about a worker begins with."""
    return {"folder": record.placed(name).folder, "uid": record.uid, "worker": safe_file_name(name)}


async def look(
    executor: Executor,
    record: Record,
    timeout: float = asking.ANSWER_SECONDS,
    only: Collection[str] | None = None,
) -> dict[str, Seen]:
    """All workers, or those of the names in `only`, within `timeout` seconds for each host."""
    names = [placed.name for placed in record.workers if only is None or placed.name in only]
    answers = await asking.each(names, lambda name: asking.ask(executor, name, "look", details(record, name), timeout))
    plain = {worker.name: worker for worker in workers(record)}
    return {name: _seen(plain[name], answers[name]) for name in names}


def workers(record: Record) -> tuple[Worker, ...]:
    """The workers as far as the record alone tells."""
    return tuple(
        Worker(
            name=placed.name,
            index=index,
            state=State.UNKNOWN,
            node_rank=index,
            role="worker",
            host=placed.host.name,
        )
        for index, placed in enumerate(record.workers)
    )


def _seen(worker: Worker, answer: dict[str, Any] | AtlctlError) -> Seen:
    if isinstance(answer, Refused):
        if answer.why in ("absent", "replaced"):
            return Seen(replace(worker, state=State.LOST, reason=answer.message))
        answer = answer.at(worker.name)
    if isinstance(answer, AtlctlError):
        return Seen(replace(worker, reason=answer.message), problem=answer)
    presence: Presence | None = next((one for one in get_args(Presence) if one == answer.get("presence")), None)
    if answer.get("event") != "seen" or presence is None:
        error = AtlctlError(f"{worker.name}: its answer cannot be understood")
        return Seen(replace(worker, reason=error.message), problem=error)
    process = _object(answer.get("process"))
    running = replace(
        worker, state=State.RUNNING, pid=whole(process.get("pid")), started=number(process.get("started"))
    )
    written = Written(
        presence,
        text(answer.get("place")),
        _exit(answer.get("exit")),
        answer.get("trainer_failed") is True,
        answer.get("stopping") is True,
    )
    programs = answer.get("programs")
    idle = isinstance(programs, list) and all(text(program) in IDLE_PROGRAMS for program in programs)
    return Seen(
        confirm_held(state_of(running, written), lambda: idle),
        _load(answer.get("load")),
        whole(answer.get("cpus")),
        whole(answer.get("processes")),
        _numbers(answer.get("ranks")),
    )


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _exit(value: object) -> dict[str, Any] | None:
    """How a worker ended, from a file of its host; None where it has not, or where that says nothing of it."""
    raw = _object(value)
    code, signal = whole(raw.get("exit_code")), whole(raw.get("signal"))
    if (code is None) == (signal is None):
        return None
    lost = whole(raw.get("log_bytes_lost")) or 0
    stopped = raw.get("stopped") is True
    return {
        "exit_code": code,
        "signal": signal,
        "ended": number(raw.get("ended")),
        "stopped": stopped,
        "log_bytes_lost": lost,
    }


def _load(value: object) -> tuple[float, float, float] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    one, five, fifteen = (number(item) for item in value)
    return None if one is None or five is None or fifteen is None else (one, five, fifteen)


def _numbers(value: object) -> tuple[int, ...]:
    found = (whole(item) for item in value) if isinstance(value, list) else ()
    return tuple(sorted({number for number in found if number is not None and number >= 0}))


def ranks(seen: Mapping[str, Seen]) -> RankMap | None:
    """Which worker holds which global rank, as living children of torchrun tell; None where none was seen."""
    found = {rank: name for name, one in seen.items() for rank in one.ranks}
    return RankMap(found, "living torchrun processes") if found else None


def job(record: Record, seen: Mapping[str, Seen]) -> Job:
    """The job; workers that are not in `seen` are unknown."""
    found = tuple(seen[worker.name].worker if worker.name in seen else worker for worker in workers(record))
    unknown = [worker for worker in found if worker.state is State.UNKNOWN]
    reason = (unknown[0].reason or "its hosts were not asked") if unknown else ""
    state, reason = job_state(found, reason)
    ends = [worker.ended for worker in found]
    return Job(
        name=record.name,
        kind=KIND,
        backend="ssh",
        state=state,
        uid=record.uid,
        expected=len(found),
        workers=found,
        reason=reason,
        created=record.created,
        ended=None
        if any(worker.state.active for worker in found)
        else max((end for end in ends if end is not None), default=None),
    )
