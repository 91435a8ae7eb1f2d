"""From what a supervisor has written of a worker to its state, and from the workers' states to the job's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from atlctl.jobs.model import State, Worker
from atlctl.jobs.naming import fold_names

#: Programs that do no training: what is left of a launch script that sleeps on after its trainer has ended.
IDLE_PROGRAMS = frozenset(
    {"sh", "bash", "dash", "ash", "zsh", "sleep", "tail", "tee", "cat", "tini", "dumb-init", "pause", "timeout"}
)

#: Why a worker that exited with 0 did not succeed.
DOUBTFUL = "exit 0, but its log shows that its trainer failed"

Presence = Literal["alive", "gone", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Written:
    """What is there of one worker. `presence`: of its supervisor, which is at `place` where that is elsewhere."""

    presence: Presence
    place: str
    exit: Mapping[str, Any] | None
    trainer_failed: bool
    stopping: bool


def state_of(worker: Worker, written: Written) -> Worker:
    """`worker` with its state. Held is what looks like it: `confirm_held` says whether it is."""
    if written.exit:
        return _ended(worker, written.exit, trainer_failed=written.trainer_failed)
    if written.presence == "elsewhere":
        return replace(worker, state=State.UNKNOWN, reason=f"runs on {written.place}")
    if written.presence == "gone":
        return replace(worker, state=State.LOST, reason="its supervisor was killed or the machine restarted")
    if written.stopping:
        return replace(worker, state=State.STOPPING)
    if written.trainer_failed:
        return replace(worker, state=State.HELD, reason="its trainer has failed; the launch script lives on")
    return worker


def _ended(worker: Worker, record: Mapping[str, Any], trainer_failed: bool) -> Worker:
    code, signal = record.get("exit_code"), record.get("signal")
    how = f"exit {code}" if signal is None else f"signal {signal}"
    if record.get("stopped"):
        state, reason = State.STOPPED, how
    elif code == 0:
        state = State.SUCCEEDED
        reason = DOUBTFUL if trainer_failed else ""
    else:
        state, reason = State.FAILED, how
    if record.get("log_bytes_lost"):
        reason = f"{reason}; {record['log_bytes_lost']} bytes of its log were lost".lstrip("; ")
    return replace(worker, state=state, reason=reason, exit_code=code, signal=signal, ended=record.get("ended"))


def confirm_held(worker: Worker, idle: Callable[[], bool]) -> Worker:
    """Held only where nothing but idle programs are left: a script that starts its trainer again is running."""
    if worker.state is State.HELD and not idle():
        return replace(worker, state=State.RUNNING, reason="a trainer of it has failed before")
    return worker


def job_state(workers: Sequence[Worker], unknown: str = "") -> tuple[State, str]:
    """A failed worker makes the job failed at once; success needs an exit code 0 of every worker.

    `unknown`: why some of them cannot be told, where that is so.
    """

    def of(state: State) -> list[str]:
        return [worker.name for worker in workers if worker.state is state]

    for state, verb in (
        (State.LOST, "lost"),
        (State.FAILED, "failed"),
        (State.STOPPING, "stopping"),
        (State.HELD, "held"),
        (State.STOPPED, "stopped"),
    ):
        if found := of(state):
            if state is State.STOPPED and any(worker.state.active for worker in workers):
                continue
            return state, f"{fold_names(found)} {verb}"
    if len(of(State.SUCCEEDED)) == len(workers):
        doubtful = [w.name for w in workers if w.reason.startswith(DOUBTFUL)]
        return State.SUCCEEDED, f"exit 0, but the log of {fold_names(doubtful)} shows a failure" if doubtful else ""
    if unknown:
        return State.UNKNOWN, unknown
    return State.RUNNING, ""
