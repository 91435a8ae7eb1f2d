"""From what a supervisor has written of a worker to its state, and from the workers to their job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from atlctl.backends.base import end_words
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.fields import items, mapping, number, text, whole
from atlctl.jobs.model import DOUBTFUL_REASON, HELD_REASON, Job, State, Worker
from atlctl.jobs.naming import fold_names

#: Programs that do not train: the rest of a launch script that sleeps after its trainer has ended.
IDLE_PROGRAMS = frozenset(
    {"sh", "bash", "dash", "ash", "zsh", "sleep", "tail", "tee", "cat", "tini", "dumb-init", "pause", "timeout"}
)
#: Characters of a text of a host.
_LIMIT = 500

#: Of a worker's supervisor.
Presence = Literal["alive", "gone", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One worker as its machine shows it. `problem`: why that could not be asked; the state is Unknown then.

    `doubtful`: it exited with 0, and its trainer has failed. `load`: the machine's load average. `processes`: how many
    the worker has. `ranks`: the global ranks of the children of torchrun among them.
    """

    worker: Worker
    doubtful: bool = False
    load: tuple[float, float, float] | None = None
    cpus: int | None = None
    processes: int | None = None
    ranks: tuple[int, ...] = ()
    problem: AtlctlError | None = None


def understood(worker: Worker, answer: Mapping[str, Any]) -> Seen | None:
    """`worker` with its state, from the answer of `remote.supervisor.asked.look`; None if that is not an answer."""
    presence = next((one for one in get_args(Presence) if one == answer.get("presence")), None)
    if answer.get("event") != "seen" or presence is None:
        return None
    process, trainer_failed = mapping(answer.get("process")), answer.get("trainer_failed") is True
    worker = replace(
        worker,
        state=State.RUNNING,
        pid=whole(process.get("pid")),
        started=number(process.get("started")),
        step=_step(answer.get("step")),
        attempt=whole(answer.get("attempt")) or None,
    )
    ended = mapping(answer.get("exit"))
    code, signal = whole(ended.get("exit_code")), whole(ended.get("signal"))
    doubtful = False
    held = mapping(answer.get("held"))
    if held and presence == "alive":
        worker = _held(worker, code, signal, held)
    elif (code is None) != (signal is None):
        worker = _ended(worker, code, signal, ended)
        if doubtful := worker.state is State.SUCCEEDED and trainer_failed:
            worker = replace(worker, reason=joined(filter(None, (DOUBTFUL_REASON, worker.reason))))
    elif presence == "elsewhere":
        worker = replace(
            worker, state=State.UNKNOWN, reason=Message("runs on {place}", place=text(answer.get("place"), _LIMIT))
        )
    elif presence == "gone":
        worker = replace(worker, state=State.LOST, reason=Message("its supervisor was killed or the machine restarted"))
    elif answer.get("stopping") is True:
        worker = replace(worker, state=State.STOPPING)
    elif trainer_failed:
        # A script that starts its trainer again is running.
        programs = answer.get("programs")
        if isinstance(programs, list) and all(text(program) in IDLE_PROGRAMS for program in programs):
            worker = replace(worker, state=State.HELD, reason=HELD_REASON)
        else:
            worker = replace(worker, reason=Message("one of its trainers has failed before"))
    ranks = {rank for item in items(answer.get("ranks")) if (rank := whole(item)) is not None and rank >= 0}
    return Seen(
        worker,
        doubtful,
        _load(answer.get("load")),
        whole(answer.get("cpus")),
        whole(answer.get("processes")),
        tuple(sorted(ranks)),
    )


def _held(worker: Worker, code: int | None, signal: int | None, held: Mapping[str, Any]) -> Worker:
    """A worker that its wrapper keeps after the end of its command; `held["left"]`: seconds, if they are limited."""
    how: str = Message("not started") if code is None and signal is None else end_words(code, signal)
    left = number(held.get("left"))
    rest = Message("until it is released") if left is None else Message("{minutes:.0f} min left", minutes=left / 60)
    if held.get("waiting") is True:
        rest = Message("waits for the verdict")
    state = State.DEBUGGING if held.get("debugging") is True else State.HELD
    return replace(worker, state=state, reason=joined((how, rest)), exit_code=code, signal=signal)


def _step(value: object) -> tuple[int, float] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    count, at = whole(value[0]), number(value[1])
    return None if count is None or at is None else (count, at)


def _load(value: object) -> tuple[float, float, float] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    one, five, fifteen = map(number, value)
    return None if one is None or five is None or fifteen is None else (one, five, fifteen)


def _ended(worker: Worker, code: int | None, signal: int | None, record: Mapping[str, Any]) -> Worker:
    reason: str = end_words(code, signal)
    if record.get("stopped") is True:
        state = State.STOPPED
    elif code == 0:
        state, reason = State.SUCCEEDED, ""
    else:
        state = State.FAILED
    if lost := whole(record.get("log_bytes_lost")):
        reason = joined(filter(None, (reason, Message("{count} bytes of its log were lost", count=lost))))
    ended = number(record.get("ended"))
    return replace(worker, state=state, reason=reason, exit_code=code, signal=signal, ended=ended)


def of_workers(job: Job, workers: Sequence[Worker], doubtful: Collection[str]) -> Job:
    """`job` with its workers, and the state that follows from theirs. `doubtful`: the names of those, see `Seen`."""
    active = any(worker.state.active for worker in workers)
    ends = [worker.ended for worker in workers if worker.ended is not None]
    state, reason = _job_state(workers, doubtful)
    return replace(
        job,
        workers=tuple(workers),
        expected=len(workers),
        state=state,
        reason=reason,
        ended=None if active else max(ends, default=None),
    )


def _job_state(workers: Sequence[Worker], doubtful: Collection[str]) -> tuple[State, str]:
    """A failed worker makes the job failed at once; success needs an exit code 0 of every worker."""

    def of(state: State) -> list[str]:
        return [worker.name for worker in workers if worker.state is state]

    for state, told in (
        (State.LOST, Message("{workers} lost")),
        (State.FAILED, Message("{workers} failed")),
        (State.STOPPING, Message("{workers} stopping")),
        (State.DEBUGGING, Message("{workers} kept for debugging")),
        (State.HELD, Message("{workers} held")),
        (State.STOPPED, Message("{workers} stopped")),
    ):
        if found := of(state):
            if state is State.STOPPED and any(worker.state.active for worker in workers):
                continue
            return state, told.filled(workers=fold_names(found))
    if len(of(State.SUCCEEDED)) == len(workers):
        return State.SUCCEEDED, Message(
            "exit 0, but the log of {workers} shows a failure", workers=fold_names(doubtful)
        ) if doubtful else ""
    unknown = [worker.reason for worker in workers if worker.state is State.UNKNOWN]
    return (State.UNKNOWN, unknown[0] or Message("its hosts were not asked")) if unknown else (State.RUNNING, "")
