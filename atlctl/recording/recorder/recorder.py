"""The recorder: follows a job to its end, and saves the data that its platform does not keep."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from atlctl.backends.base import Backend
from atlctl.diagnosis.stepfile import StepsFile
from atlctl.diagnosis.steps import Slowdown, step_sieve
from atlctl.diagnosis.stepwatch import StepWatch, slow_text
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import AtlctlError, NothingMatched, Replaced
from atlctl.jobs.model import Job, State
from atlctl.jobs.statedir import file_error
from atlctl.recording import manifest
from atlctl.recording.folder import cannot_write
from atlctl.recording.recorder.alarm import Alarm, Said
from atlctl.recording.recorder.follow import Follower, WorkerLog
from atlctl.recording.recorder.roll import RecordedWorker, Roll, look_for_seats
from atlctl.recording.recorder.store import Events, States, Store
from atlctl.recording.save import stem

#: Seconds between polls of the job: a local one, one in a cluster, one with more than `MANY` workers.
PERIODS = (0.5, 2.0, 5.0)
MANY = 256
#: Seconds between polls of the platform's events, and between writes of an unchanged `atlctl.json`.
EVENTS_SECONDS = 10.0
NOTE_SECONDS = 15.0
#: Seconds after the start of a worker, or of an attempt in it, at which its ranks are queried until they are known.
LOOKS = (3.0, 12.0, 40.0, 120.0, 400.0)
#: Workers whose ranks are queried in parallel.
ASKED = 4
#: After the job's end, a log is complete after so many seconds without a line: if its pod is gone, or (more, because
#: the connection may have to be restored) if it still exists. And the most seconds to wait for last lines.
QUIET, QUIET_LIVING = 1.0, 3.0
LAST_SECONDS = 60.0
#: Seconds between polls of a job with a failed worker, because it may end soon.
ALARMED_PERIOD = 0.5


@dataclass(slots=True)
class Result:
    """The result of a recording. `over`: the job has ended. `gone`: its object was deleted. `failed` are workers,
    `incomplete` maps workers with incomplete logs to the reason. `slow`: the slow phases that were warned of."""

    state: State = State.UNKNOWN
    over: bool = False
    gone: bool = False
    failed: list[str] = field(default_factory=list)
    incomplete: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    slow: list[Slowdown] = field(default_factory=list)


class Recorder:
    """Records one job to one folder. `find` returns the job's current state. Call `run`, then `close`, once each."""

    def __init__(
        self,
        source: Backend,
        job: Job,
        store: Store,
        before: Mapping[str, Any],
        find: Callable[[], Awaitable[Job]],
        said: Said,
        *,
        keep: int,
        on_failure: str | None,
        notify: str | None,
    ) -> None:
        """`before`: the `atlctl.json` of the folder's earlier recorder, empty for a new folder. `keep` in bytes."""
        self.result = Result()
        self._source, self._store, self._find, self._said, self._keep = source, store, find, said, keep
        self._roll = Roll(job, before)
        self._events, self._states, self._steps = Events(store), States(store), StepsFile(store)
        self._watch = StepWatch()
        self._followers: dict[str, Follower] = {}
        self._alarm = Alarm(source, job, store, said, self._sync, on_failure, notify, self._look_again)
        self._looked: dict[str, tuple[float, int]] = {}
        #: Workers whose ranks are final: two queries returned the same ones.
        self._settled: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Semaphore(ASKED)
        self._unreachable = self._full = self._stuck_said = False
        self._events_at = self._noted_at = 0.0
        began = (before.get("recorder") or {}).get("started")
        self._about = {
            "backend": source.name,
            "started": began if isinstance(began, int | float) else time.time(),
            "ended": None,
            "keep_mib": keep / 2**20,
        }
        many = len(job.workers) > MANY
        self._period = PERIODS[0] if source.name == "local" else PERIODS[2 if many else 1]

    async def run(self) -> Result:
        """Records until the job has ended or its object is gone. If cancelled, a later recorder can continue."""
        job = self._roll.job
        try:
            while True:
                self._see(job)
                if not job.state.active:
                    break
                await asyncio.sleep(min(self._period, ALARMED_PERIOD) if self._alarm.raised else self._period)
                try:
                    job = await self._now(job)
                except (NothingMatched, Replaced):
                    self.result.gone = True
                    self._roll.vanish()
                    break
            self.result.over = True
            await self._finish()
        finally:
            await self._stop()
        return self.result

    def size(self) -> int:
        """The size of the logs so far, in bytes. May be called from another thread."""
        return sum(follower.log.size for follower in list(self._followers.values()))

    async def close(self, *, wait: bool) -> None:
        """Ends the on-failure command, or waits for it, and releases the folder."""
        try:
            await self._alarm.close(wait=wait)
        finally:
            self._store.close()

    async def _now(self, job: Job) -> Job:
        try:
            found = await self._find()
        except (NothingMatched, Replaced):
            raise
        except AtlctlError as error:
            if not self._unreachable:
                self._said.warning(Message("{why}; continuing with later data", why=error.message))
            self._unreachable = True
            return job
        self._unreachable = False
        if job.uid and found.uid != job.uid:
            raise Replaced(job.name)
        return found

    async def _look_again(self) -> None:
        """Polls the job now: workers' states show a stop before their logs do."""
        with contextlib.suppress(NothingMatched, Replaced):  # the next poll handles it
            self._see(await self._now(self._roll.job))

    def _see(self, job: Job) -> None:
        new, restarted = self._roll.take(job)
        for entry in new:
            self._follow(entry)
        for entry in restarted:
            self._looked.pop(entry.worker.name, None)
            self._said.note(Message("{worker} was restarted; its log is still followed", worker=entry.worker.name))
        for entry in self._roll.entries.values():
            self._followers[entry.worker.name].worker = entry.worker
            self._look_for_ranks(entry)
        fresh = self._alarm.see(self._roll.entries.values())
        self._written(lambda: self._states.take(entry.shown for entry in self._roll.entries.values()))
        self._written(lambda: self._steps.add(self._watch.fresh()))
        now = time.monotonic()
        if fresh or now - self._events_at >= EVENTS_SECONDS:
            self._events_at = now
            self._spawn(self._take_events(job))
        if new or restarted or fresh or now - self._noted_at >= NOTE_SECONDS:
            self._note()
            # The Kubernetes client makes garbage collection rare, but broken connections hold buffers.
            gc.collect()

    def _follow(self, entry: RecordedWorker) -> None:
        worker = entry.worker
        try:
            log = WorkerLog(self._store, stem(worker.name), self._keep, self._sync)
        except OSError as error:
            raise file_error(
                error, Message("the log of {worker} in {path}", worker=worker.name, path=self._store.path)
            ) from error
        follower = Follower(
            self._source,
            self._roll.job,
            worker,
            log,
            came=self._came,
            failed=self._failed,
            begun=self._begun,
            stuck=self._stuck,
        )
        self._followers[worker.name] = follower
        follower.start(self._roll.earlier(worker))

    def _came(self, name: str, data: bytes) -> None:
        """Looks for training steps in the lines of a log."""
        if not step_sieve()(data):
            return
        for line in data.splitlines():
            if slow := self._watch.feed(stem(name), line):
                self._alarm.slow(slow_text(slow))

    def _failed(self, name: str, data: bytes) -> None:
        """Handles a trainer's failure in the log: fetches its files at once, before the platform reports it."""
        entry = self._roll.entries[name]
        entry.held = True
        if self._alarm.heard(entry, data, self._roll.entries.values()):
            self._note()

    def _begun(self, name: str) -> None:
        entry = self._roll.entries[name]
        entry.held = False
        self._looked.pop(name, None)
        self._settled.discard((name, entry.run))

    def _stuck(self, name: str, problem: str, unwritten: bool) -> None:
        """Warns once if this machine cannot write a log. Other problems of logs are reported at the end."""
        if unwritten and not self._stuck_said:
            self._stuck_said = True
            self._said.warning(
                Message(
                    "the log of {worker} {problem}; recording of the others continues, and it is retried",
                    worker=name,
                    problem=problem,
                )
            )

    # -- ranks -----------------------------------------------------------------------------------------------------

    def _look_for_ranks(self, entry: RecordedWorker) -> None:
        name, now = entry.worker.name, time.monotonic()
        if entry.worker.state is not State.RUNNING or (name, entry.run) in self._settled:
            return
        begun, looks = self._looked.setdefault(name, (now, 0))
        if looks < len(LOOKS) and now - begun >= LOOKS[looks]:
            self._looked[name] = begun, looks + 1
            self._spawn(self._ask_ranks(entry))

    async def _ask_ranks(self, entry: RecordedWorker) -> None:
        async with self._asking:
            if not entry.alive:
                return
            executor = self._source.executor(self._roll.job)
            try:
                found = await look_for_seats(executor, entry.worker)
            except AtlctlError:
                found = None  # queried again later; an unreachable worker is reported by its log's follower
            finally:
                await executor.aclose()
        for name, seats in (found or {}).items():
            other = self._roll.entries.get(name)
            if other is None or not (seats.seats or seats.gpus):
                continue
            if seats.seats and seats.seats == other.seats.seats:
                self._settled.add((name, other.run))
            seats.roots |= other.seats.roots
            seats.dumps |= other.seats.dumps
            other.seats = seats
            self._noted_at = 0.0

    # -- notes -----------------------------------------------------------------------------------------------------

    async def _take_events(self, job: Job) -> None:
        try:
            found = await self._source.raw_events(job)
        except AtlctlError:
            return  # optional: recording continues without events; `doctor` reports missing permissions
        self._written(lambda: self._events.take(found))

    def _note(self) -> None:
        self._noted_at = time.monotonic()
        about = {**self._about, "incomplete": [{"worker": n, "reason": why} for n, why in self._incomplete().items()]}
        self._written(lambda: self._store.replace(manifest.NAME, self._roll.data(about)))

    def _incomplete(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, follower in self._followers.items():
            why = joined([*follower.gaps, *([follower.problem] if follower.problem else [])])
            if why:
                found[name] = why
        return found

    def _written(self, write: Callable[[], None]) -> None:
        """Runs `write`, and warns about the first failed write after a successful one."""
        try:
            write()
        except OSError as error:
            if not self._full:
                self._said.warning(cannot_write(self._store.path, error))
            self._full = True
        else:
            self._full = False

    def _sync(self, fd: int) -> None:
        """Syncs and closes a descriptor in another thread."""
        asyncio.get_running_loop().run_in_executor(None, _sync, fd).add_done_callback(self._synced)

    def _synced(self, done: asyncio.Future[None]) -> None:
        """Handles errors of a sync: a full disk may be reported only now."""
        self._written(done.result)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Waits for the last log lines, the last events, and the files that are being fetched."""
        self._spawn(self._take_events(self._roll.job))
        ended = time.monotonic()

        def more() -> bool:
            """Whether more lines may arrive."""
            now = time.monotonic()
            for name, follower in self._followers.items():
                patience = QUIET_LIVING if self._roll.entries[name].present else QUIET
                if not follower.ended and now - max(follower.moved, ended) < patience:
                    return now - ended < LAST_SECONDS
            return False

        while more():  # noqa: ASYNC110 - a log is complete after some time without lines
            await asyncio.sleep(0.1)
        await self._alarm.finished()

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(follower.stop() for follower in self._followers.values()))
        result = self.result
        result.state = self._roll.job.state
        result.failed = [name for name, entry in self._roll.entries.items() if entry.failed]
        result.incomplete = self._incomplete()
        result.bytes = self.size()
        result.slow = self._watch.warned()
        self._about["ended"] = time.time() if result.over else None
        self._written(lambda: self._states.take(entry.shown for entry in self._roll.entries.values()))
        self._written(lambda: self._steps.add(self._watch.rest()))
        self._note()
        for follower in self._followers.values():
            if (fd := follower.log.sync()) is not None:
                self._sync(fd)
            follower.log.close()
        self._followers.clear()


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not support fsync
            raise
    finally:
        os.close(fd)
