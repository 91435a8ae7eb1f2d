"""What a recorder does when a worker fails: the files of those that failed first, then of the others, then a command.

A platform deletes the pods of a failed job within seconds, those that still run first, so nothing here waits for
anything that can come later.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from atlctl.backends.base import Backend
from atlctl.diagnosis.errorfile import SIZE_LIMIT
from atlctl.diagnosis.torchelastic import all_attempts
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Job
from atlctl.jobs.naming import fold_names
from atlctl.recording.recorder import hook
from atlctl.recording.recorder.freeze import Place, freeze
from atlctl.recording.recorder.ranks import look
from atlctl.recording.recorder.roll import Entry
from atlctl.recording.recorder.store import Store
from atlctl.recording.save import stem

#: Workers whose files are fetched at once: those that failed have places of their own.
URGENT = 32
OTHERS = 16
#: Seconds that the command on a failure waits for files.
PATIENCE = 10.0
#: Files that a log names, of one worker.
_MOST = 256
_NAMED = re.compile(rb"error_file: (/[^\n\r]{1,1000}?error\.json)")


class Said(Protocol):
    """Where the recorder says what it does. Texts may be hostile."""

    def note(self, text: str, /) -> None: ...

    def warning(self, text: str, /) -> None: ...


class Alarm:
    """Notices failures. `raised`: a worker has failed; that is over when none is failed any more."""

    def __init__(
        self,
        source: Backend,
        job: Job,
        store: Store,
        said: Said,
        closed: Callable[[int], None],
        on_failure: str | None,
    ) -> None:
        self._source, self._job, self._store, self._said = source, job, store, said
        self._closed, self._command = closed, on_failure
        self._urgent, self._others = asyncio.Semaphore(URGENT), asyncio.Semaphore(OTHERS)
        self._named: dict[tuple[str, int], set[str]] = {}
        self._known: set[tuple[str, int]] = set()
        self.raised = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._hook: asyncio.Task[None] | None = None

    def heard(self, entry: Entry, data: bytes, everyone: Iterable[Entry]) -> bool:
        """The log of `entry` tells of a failure. Whether that is news."""
        key = entry.worker.name, entry.run
        named = self._named.setdefault(key, set())
        before = len(named)
        for path in _NAMED.findall(data):
            if len(named) < _MOST:
                named.update(all_attempts(os.fsdecode(path)))
        if key not in self._known:
            self._raise([entry], everyone)
            return True
        if len(named) > before:
            self._spawn(self._fetch(entry, self._urgent))
        return False

    def see(self, everyone: Iterable[Entry]) -> bool:
        """Looks at the states of all. Whether one has failed since."""
        entries = list(everyone)
        fresh = [e for e in entries if e.failed and (e.worker.name, e.run) not in self._known]
        if fresh:
            self._raise(fresh, entries)
        elif self.raised and not any(entry.failed for entry in entries):
            self.raised = False
        return bool(fresh)

    def _raise(self, failed: list[Entry], everyone: Iterable[Entry]) -> None:
        for entry in failed:
            self._known.add((entry.worker.name, entry.run))
            self._spawn(self._fetch(entry, self._urgent))
        names = fold_names(entry.worker.name for entry in failed)
        why = ", ".join(dict.fromkeys(": ".join(filter(None, (e.shown.state, e.shown.reason))) for e in failed))
        self._said.warning(f"{names} failed ({why})")
        first, self.raised = not self.raised, True
        if first:
            fetching = list(self._tasks)
            for entry in everyone:
                if entry not in failed and entry.alive:
                    self._spawn(self._fetch(entry, self._others))
            if self._command is not None and (self._hook is None or self._hook.done()):
                self._hook = asyncio.create_task(self._run(self._command, names, fetching))

    async def _fetch(self, entry: Entry, gate: asyncio.Semaphore) -> None:
        worker = entry.worker
        place = Place(self._store, [stem(worker.name), f"run-{entry.run}"], self._closed)
        named = self._named.get((worker.name, entry.run), set())
        async with gate:
            try:
                problem = await self._from_living(entry, place, named) if entry.alive else f"it is {worker.state}"
                if problem:
                    await self._read_named(entry, place, named, problem)
            except OSError as error:
                self._said.warning(f"files of {worker.name} cannot be saved: {error.strerror or error}")
            except AtlctlError as error:
                self._said.warning(f"files of {worker.name} cannot be fetched: {error.message}")

    async def _from_living(self, entry: Entry, place: Place, named: set[str]) -> str:
        """All that its launcher keeps, by one command in it; what went wrong, empty where nothing did."""
        executor = self._source.executor(self._job)
        try:
            if not entry.seats.roots and not named and entry.failed:
                entry.seats = (await look(executor, entry.worker) or {}).get(entry.worker.name, entry.seats)
            wanted = {*entry.seats.roots, *(path for path in named if not _below(path, entry.seats.roots))}
            if not wanted and not entry.seats.dumps:
                return ""
            got = await freeze(executor, entry.worker, wanted, entry.seats.dumps, place)
        finally:
            await executor.aclose()
        if got.files and entry.failed:
            self._said.note(f"{entry.worker.name}: {got.files} files saved")
        return got.problem

    async def _read_named(self, entry: Entry, place: Place, named: set[str], problem: str) -> None:
        """The error files that its log names, one by one: a worker of this machine keeps them beyond its end."""
        saved = 0
        for path in sorted(named):
            data = await self._source.read_file(self._job, entry.worker, path, SIZE_LIMIT)
            if data is not None:
                place.keep(path, data)
                saved += 1
        if entry.failed and named and not saved:
            self._said.warning(f"the files of {entry.worker.name} are out of reach: {problem}")

    async def _run(self, command: str, names: str, fetching: list[asyncio.Task[None]]) -> None:
        if fetching:
            await asyncio.wait(fetching, timeout=PATIENCE)
        env = {
            "ATLCTL_JOB": self._job.name,
            "ATLCTL_BACKEND": self._source.name,
            "ATLCTL_RECORDING": self._store.path,
            "ATLCTL_FAILED_WORKERS": names,
        }
        if self._job.namespace:
            env["ATLCTL_NAMESPACE"] = self._job.namespace
        how, printed = await hook.run(command, env)
        for line in printed.decode("utf-8", "backslashreplace").splitlines()[-20:]:
            self._said.note(f"on-failure: {line}")
        self._said.note(f"on-failure: {how}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Waits until all files are fetched: each is bounded in time."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self, *, wait: bool) -> None:
        """Ends what goes on; with `wait` only after the command."""
        try:
            if wait and self._hook is not None:
                await self._hook
        finally:
            for task in (*self._tasks, *([self._hook] if self._hook else [])):
                task.cancel()
            await asyncio.gather(*self._tasks, *([self._hook] if self._hook else []), return_exceptions=True)


def _below(path: str, roots: Iterable[str]) -> bool:
    return any(path.startswith(f"{root}/") for root in roots)
