"""Ends the workers of a job on hosts, and removes what is left of one that has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlctl.backends.base import Executor, StopResult
from atlctl.backends.hosts import asking
from atlctl.backends.hosts.asking import NoAnswer
from atlctl.backends.hosts.backend import ended
from atlctl.backends.hosts.records import Record, forget
from atlctl.jobs.errors import AtlctlError

#: Seconds that a host has beyond the grace: for the connection, and for the end itself.
MARGIN_SECONDS = 30.0


async def stop(executor: Executor, record: Record, names: Sequence[str], grace: float) -> list[StopResult]:
    """SIGTERM to each of these workers, after `grace` seconds SIGKILL to all that is left of it. Nothing is raised: a
    host that cannot be reached has a worker that was not stopped."""

    async def one(name: str) -> dict[str, Any]:
        wanted = {**record.details(name), "grace": grace}
        return await asking.ask(executor, name, "stop", wanted, grace + MARGIN_SECONDS)

    answers = await asking.each(names, one)
    return [result(name, answers[name]) for name in names]


def result(name: str, answer: Mapping[str, Any] | AtlctlError) -> StopResult:
    """The end of a worker by the answer of its host."""
    if isinstance(answer, NoAnswer) and answer.nothing_there:
        return StopResult(name, "already-ended", reason=answer.message)
    if isinstance(answer, AtlctlError):
        return StopResult(name, "not-stopped", reason=answer.message)
    return ended(name, answer)


async def remove_folders(executor: Executor, record: Record, names: Sequence[str]) -> dict[str, AtlctlError]:
    """Delete the folders of these workers on their hosts. Returns the errors, by worker."""
    answers = await asking.each(names, lambda name: asking.ask(executor, name, "remove", record.details(name)))
    return {name: asking.for_user(name, answer) for name, answer in answers.items() if isinstance(answer, AtlctlError)}


async def remove(executor: Executor, record: Record) -> dict[str, AtlctlError]:
    """Delete what is left of an ended job: its folders on the hosts, and where all of that was done the record."""
    errors = await remove_folders(executor, record, [placed.name for placed in record.workers])
    if not errors:
        forget(record)
    return errors
