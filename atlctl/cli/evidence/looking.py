"""Inspect the ranks of a job, for commands about ranks, and for `errors` on a running job without a failure in its
logs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from atlctl.cli import say
from atlctl.i18n import Message
from atlctl.jobs.errors import TimedOut, Unreachable
from atlctl.jobs.model import Job, State, Worker

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, Executor
    from atlctl.diagnosis.evidence import JobEvidence
    from atlctl.diagnosis.hang import Scene
    from atlctl.diagnosis.result import Diagnosis
    from atlctl.stacks.look import Look

#: Seconds that the look may take.
SECONDS = 15.0
#: Workers to which py-spy is sent at once. Of more, only to this many: those of the ranks that others wait for, and one
#: of each group of equal ranks.
SPIED = 16
#: Seconds over which their second look measures CPU time.
_SPY_WINDOW = 0.1
#: Bytes that a py-spy has at most.
_MAX_PROGRAM = 64 << 20


def pyspy_path() -> str | None:
    """The py-spy of this machine."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.path.exists(beside) else shutil.which("py-spy")


def own_pyspy() -> bytes | bool:
    """The py-spy of this machine, a program for Linux; True if there is none, so that only workers may have one."""
    try:
        with open(pyspy_path() or os.devnull, "rb") as file:
            data = file.read(_MAX_PROGRAM + 1)
    except OSError:
        return True
    return data if data.startswith(b"\x7fELF") and len(data) <= _MAX_PROGRAM else True


async def look_at(
    executor: Executor, job: Job, workers: Sequence[Worker], timeout: float, pyspy: bytes | bool, *, dump: bool = False
) -> list[Look]:
    """Looks at the ranks of `workers`. See `look`."""
    from atlctl.stacks.look import look, with_stacks

    if isinstance(pyspy, bool) or len(workers) <= SPIED:
        return await look(executor, workers, timeout, pyspy, dump=dump, watching=say.running)
    looks = await look(executor, workers, timeout, True, dump=dump, watching=say.running)
    scene = scene_of(looks, job)
    bare = [rank for rank in scene.culprits if not rank.frames]
    bare += [group.first for group in scene.groups if not group.first.frames]
    names = list(dict.fromkeys(rank.worker for rank in bare))[:SPIED]
    chosen = [worker for worker in workers if worker.name in names]
    # Its stacks alone are used, so that it need not last.
    again = await look(executor, chosen, timeout, pyspy, window=_SPY_WINDOW, watching=say.running)
    spied = {item.worker.name: item for item in again}
    return [with_stacks(item, spied.get(item.worker.name)) for item in looks]


def scene_of(looks: Sequence[Look], job: Job) -> Scene:
    """The scene of all ranks of the inspected workers."""
    from atlctl.diagnosis.hang import diagnose

    reports = {item.worker.name: item.report for item in looks if item.report is not None}
    whole = len(looks) == job.expected and not job.missing
    # A worker that has ended holds no rank any more; one that could not be asked may.
    asked = all(item.report is not None or not item.worker.state.active for item in looks)
    silent = {
        item.worker.name: item.error.message
        for item in looks
        if isinstance(item.error, Unreachable | TimedOut) and item.worker.state.active
    }
    return diagnose(reports, whole and asked, silent)


async def with_ranks(
    source: Backend, job: Job, found: Diagnosis, evidence: JobEvidence, *, pyspy: bool = True
) -> tuple[Diagnosis, Scene | None]:
    """`found` as it is if it has an answer or nothing of the job runs, else with a look at its ranks; and what they do.

    None if no rank was seen. `pyspy`: take Python stacks with py-spy.
    """
    from atlctl.diagnosis.result import Verdict

    if found.verdict not in (Verdict.NONE, Verdict.UNDECIDED):
        return found, None
    if not any(worker.state is State.RUNNING for worker in job.workers):
        return found, None
    from atlctl.diagnosis.hang import with_look
    from atlctl.jobs.naming import fold_names, names_by_reason
    from atlctl.stacks.look import WINDOW

    say.note(Message("no failure in the logs so far; inspecting the ranks for {seconds:g} s", seconds=WINDOW))
    executor = source.executor(job)
    try:
        looks = await look_at(executor, job, job.workers, SECONDS, own_pyspy() if pyspy else False)
    finally:
        await executor.aclose()
    unseen = names_by_reason(
        (item.worker.name, item.error.message) for item in looks if item.error is not None and item.worker.state.active
    )
    remarks: list[str] = [
        Message("{workers} could not be inspected: {why}", workers=fold_names(names), why=why)
        for why, names in unseen.items()
    ]
    scene = scene_of(looks, job)
    seen = any(rank.report is not None for rank in scene.ranks)
    if seen:
        found = with_look(found, scene, _quiet(evidence))
    elif not unseen:
        remarks.append(scene.why)
    return replace(found, remarks=(*found.remarks, *remarks)), scene if seen else None


def _quiet(evidence: JobEvidence) -> float | None:
    """Seconds since the last line of any log; None if no log has timestamps."""
    logs = [worker.log for worker in evidence.workers if worker.log is not None]
    times = [log.last.seconds for log in logs if log.last is not None and log.last.absolute]
    return time.time() - max(times) if times else None
