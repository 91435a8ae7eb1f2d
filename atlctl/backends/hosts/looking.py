"""Query the hosts of a job for its workers: states, logs, files. One query for each host.

If a host cannot be queried, the state of its worker is unknown. A log has marks between its lines, so that a follower
can continue after a lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from atlctl.backends.base import Event, Executor, Exited, LogLine, LogRequest, Output, awaiting_log
from atlctl.backends.hosts import asking
from atlctl.backends.hosts.asking import NoAnswer
from atlctl.backends.hosts.logs import MAX_LINE, PIECES, Joiner, stamp
from atlctl.backends.hosts.records import Record
from atlctl.backends.hosts.states import Seen, of_workers, understood
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, TimedOut, Unreachable
from atlctl.jobs.model import Job, RankMap, State, Worker
from atlctl.jobs.naming import safe_file_name
from atlctl.remote.supervisor import asked
from atlctl.remote.supervisor.telling import Refused

#: Seconds without a line after which a log that is followed says that nothing new has come.
QUIET_SECONDS = 0.1
#: Seconds between two tries after a lost connection, and for how long they go on without success.
AGAIN_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
#: Seconds until a host must have begun to send, and without a byte of a log that is read to its end.
SILENT_SECONDS = 30.0
#: Lines of a file that stay without their end for longer than this are none of ours.
MAX_RAW = 1 << 20
_MARK = re.compile(rb"@ ([0-9]{1,20}) ([0-9]{1,20})")


async def look(
    executor: Executor, record: Record, timeout: float = asking.ANSWER_SECONDS, only: Collection[str] | None = None
) -> dict[str, Seen]:
    """All workers, or those of the names in `only`, within `timeout` seconds for each host."""
    plain = {worker.name: worker for worker in workers(record) if only is None or worker.name in only}
    answers = await asking.each(plain, lambda name: asking.ask(executor, name, "look", record.details(name), timeout))
    return {name: _seen(plain[name], answer) for name, answer in answers.items()}


def of_answers(record: Record, answers: Mapping[str, dict[str, Any] | AtlctlError]) -> dict[str, Seen]:
    """All workers by the answers of their wrappers. The end of one that does not answer may be on shared storage."""
    found = {worker.name: _seen(worker, answers[worker.name]) for worker in workers(record)}
    for name, one in found.items():
        if one.problem is not None:
            with contextlib.suppress(Refused):
                own = f"{record.placed(name).folder}/workers/{safe_file_name(name)}"
                ended = understood(one.worker, asked.seen(own, "elsewhere", ""))
                if ended is not None and not ended.worker.state.active:
                    found[name] = ended
    return found


def workers(record: Record) -> tuple[Worker, ...]:
    """The workers as recorded, without a query."""
    return tuple(
        Worker(placed.name, index, State.UNKNOWN, node_rank=index, role="worker", host=placed.host.name)
        for index, placed in enumerate(record.workers)
    )


def _seen(worker: Worker, answer: dict[str, Any] | AtlctlError) -> Seen:
    if isinstance(answer, NoAnswer) and answer.nothing_there:
        return Seen(replace(worker, state=State.LOST, reason=answer.message))
    if not isinstance(answer, AtlctlError):
        if (seen := understood(worker, answer)) is not None:
            return seen
        answer = asking.unclear()
    problem = asking.for_user(worker.name, answer)
    return Seen(replace(worker, reason=problem.message), problem=problem)


def ranks(seen: Mapping[str, Seen]) -> RankMap | None:
    """The worker of each global rank, from the environments of living torchrun children; None if there are none."""
    found = {rank: name for name, one in seen.items() for rank in one.ranks}
    return RankMap(found, Message("running torchrun processes")) if found else None


def job(record: Record, seen: Mapping[str, Seen]) -> Job:
    """The job; workers that are not in `seen` are unknown."""
    found = tuple(seen[worker.name].worker if worker.name in seen else worker for worker in workers(record))
    plain = Job(
        *(record.name, record.kind, "ssh", State.UNKNOWN, record.uid, len(found), found),
        created=record.created,
        command=shlex.join(record.argv),
    )
    return of_workers(plain, found, [name for name, one in seen.items() if one.doubtful])


# Logs and files


async def lines(
    executor: Executor, record: Record, name: str, request: LogRequest, waiting: Callable[[str], None] | None = None
) -> AsyncGenerator[Sequence[LogLine], None]:
    """As `LogSource.lines`; a log that is followed continues after lost connections, each of which is reported to
    `waiting`. Raises AtlctlError if the log cannot be read or was cut off."""
    reading = _Reading(record, name, request)
    while True:
        try:
            async with aclosing(reading.batches(executor)) as batches:
                async for batch in batches:
                    yield batch
            break
        except (Unreachable, TimedOut) as error:
            first = reading.lost_at is None
            if not reading.goes_on():
                raise
            if first and waiting is not None:
                waiting(awaiting_log(name, error))
        yield []
        await asyncio.sleep(AGAIN_SECONDS)
    if rest := list(reading.joiner.rest()):
        yield rest


class _Reading:
    """One log on its way, over one connection or several."""

    def __init__(self, record: Record, name: str, request: LogRequest) -> None:
        self._name, self._follow = name, request.follow
        moment = int((request.since or 0) * 1e9)
        self.joiner = Joiner(moment)
        self._wanted = {
            **record.details(name),
            "tail": request.tail,
            "since": stamp(moment) if request.since else "",
            "moment": moment,
            "follow": request.follow,
            "attempt": request.attempt,
            "pieces": PIECES,
            "longest": MAX_LINE,
        }
        #: The last mark, and how many lines have come behind it. Of a lost connection they come again.
        self._mark: tuple[int, int] | None = None
        self._behind = 0
        self._again = 0
        #: When the last connection was lost; None while one delivers data.
        self.lost_at: float | None = None
        self._told: dict[str, Any] | None = None

    def goes_on(self) -> bool:
        """After a lost connection: whether it is worth to ask again, and can be done without a loss."""
        now = asyncio.get_running_loop().time()
        if self.lost_at is None:
            self.lost_at = now
        return self._follow and self._mark is not None and now - self.lost_at < PATIENCE_SECONDS

    async def batches(self, executor: Executor) -> AsyncGenerator[Sequence[LogLine], None]:
        """The lines of one connection. Raises AtlctlError; returns at the end of the log."""
        self._told = None
        begun = asyncio.get_running_loop().time()
        wanted = {**self._wanted, "mark": self._mark}
        execution = executor.run(asking.worker_of(self._name), asking.request("log", wanted))
        said, buffer = bytearray(), b""
        last: Event | None = None
        try:
            async for event in _patiently(aiter(execution), self._follow):
                if event is None:
                    unheard = self._told is None and asyncio.get_running_loop().time() - begun > SILENT_SECONDS
                    if unheard or not self._follow:
                        raise asking.silent(self._name, SILENT_SECONDS).at(self._name)
                    yield []
                    continue
                last = event
                if isinstance(event, Output) and event.stream == "stdout":
                    *found, buffer = (buffer + event.data).split(b"\n")
                    if len(buffer) > MAX_RAW:
                        raise AtlctlError(Message("{name}: its log is malformed", name=self._name))
                    if batch := self._take(found):
                        yield batch
                elif isinstance(event, Output):
                    said = (said + event.data)[-asking.MAX_SAID :]
        finally:
            await execution.aclose()
        told = self._answer()
        if not (isinstance(last, Exited) and last.exit_code == 0 and told is not None and told["event"] == "log"):
            raise asking.failure(last, told, bytes(said)).at(self._name)

    def _answer(self) -> dict[str, Any] | None:
        # `batches` has set it to None, and read there it would be None for mypy: it does not see what `_take` does.
        return self._told

    def _take(self, raw: list[bytes]) -> list[LogLine]:
        """Lines as they came, the answer's first one and marks among them."""
        batch = []
        for line in raw:
            if self._told is None:
                # The login shell may print lines before it.
                told = asking.parsed(line)
                if told is not None and "event" in told:
                    self._told, self.lost_at = told, None
                    if told.get("resumed") is not True:
                        self._behind = 0
                    self._again = self._behind
            elif mark := _MARK.fullmatch(line):
                self._mark, self._behind = (int(mark[1]), int(mark[2])), 0
            elif self._again:
                self._again -= 1
            else:
                self._behind += 1
                taken = self.joiner.take(line)
                if taken is not None:
                    batch.append(taken)
        return batch


async def _patiently(events: AsyncIterator[Event], follow: bool) -> AsyncGenerator[Event | None, None]:
    """The events, and None for each while in which none has come."""
    pending: asyncio.Future[Event | None] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events, None))
            done, _ = await asyncio.wait([pending], timeout=QUIET_SECONDS if follow else SILENT_SECONDS)
            if not done:
                yield None
                continue
            event, pending = pending.result(), None
            if event is None:
                return
            yield event
    finally:
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pending


async def read_file(executor: Executor, record: Record, name: str, path: str, limit: int) -> bytes | None:
    """The first `limit` bytes of a regular file; None if it cannot be read. A relative path starts in the worker's
    working folder; a symbolic link as the last component is not followed. Raises AtlctlError without an answer."""
    wanted = {**record.details(name), "path": path, "limit": limit}
    try:
        told, data = await asking.ask_for_bytes(executor, name, "read", wanted, limit)
    except AtlctlError as error:
        raise asking.for_user(name, error) from error
    return data if told.get("event") == "file" else None
