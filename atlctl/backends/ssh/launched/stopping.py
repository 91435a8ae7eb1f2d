"""Ends the workers of a job, and removes what is left of one that has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlctl.backends.base import Executor, StopResult
from atlctl.backends.ssh.launched import asking
from atlctl.backends.ssh.launched.asking import Refused
from atlctl.backends.ssh.launched.looking import details
from atlctl.backends.ssh.launched.records import Record, forget
from atlctl.jobs.errors import AtlctlError

#: Seconds that a host has beyond the grace: for the connection, and for the end itself.
MARGIN_SECONDS = 30.0


async def stop(executor: Executor, record: Record, names: Sequence[str], grace: float) -> list[StopResult]:
    """SIGTERM to each of these workers, after `grace` seconds SIGKILL to all that is left of it. Nothing is raised: a
    host that cannot be reached has a worker that was not stopped."""

    async def one(name: str) -> dict[str, Any]:
        wanted = {**details(record, name), "grace": grace}
        return await asking.ask(executor, name, "stop", wanted, grace + MARGIN_SECONDS)

    answers = await asking.each(names, one)
    return [_result(name, answers[name]) for name in names]


def _result(name: str, answer: dict[str, Any] | AtlctlError) -> StopResult:
    if isinstance(answer, Refused):
        if answer.why in ("absent", "replaced"):
            return StopResult(name, "already-ended", reason=answer.message)
        answer = answer.at(name)
    if isinstance(answer, AtlctlError):
        return StopResult(name, "not-stopped", reason=answer.message.removeprefix(f"{name}: "))
    processes, reason = asking.whole(answer.get("processes")) or 0, asking.text(answer.get("reason"))
    how = answer.get("how")
    if how == "terminated":
        return StopResult(name, "terminated", processes, reason)
    if how == "killed":
        return StopResult(name, "killed", processes, reason)
    if how == "already-ended":
        return StopResult(name, "already-ended", processes, reason)
    return StopResult(name, "not-stopped", processes, reason or "some of its processes do not end")


async def remove_folders(executor: Executor, record: Record, names: Sequence[str]) -> dict[str, AtlctlError]:
    """Delete the folders of these workers on their hosts; the errors of those where that was not done."""
    answers = await asking.each(names, lambda name: asking.ask(executor, name, "remove", details(record, name)))
    return {name: asking.for_user(name, answer) for name, answer in answers.items() if isinstance(answer, AtlctlError)}


async def remove(executor: Executor, record: Record) -> dict[str, AtlctlError]:
    """Delete what is left of an ended job: its folders on the hosts, and where all of that was done the record."""
    errors = await remove_folders(executor, record, [placed.name for placed in record.workers])
    if not errors:
        forget(record)
    return errors
