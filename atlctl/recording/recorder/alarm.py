"""Handles failures in a recording: fetches the files of failed workers, then of the others, then runs a command.

A platform deletes the pods of a failed job within seconds, the running ones first, so nothing urgent waits for anything
that can be done later.

A running worker sends its files (error files, dumps, then logs of its ranks) separated by a random mark. Names and
bytes are hostile: a name only sets the file's path below the worker's folder; counts and sizes are bounded.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from atlctl.backends.base import Argv, Backend, Executor
from atlctl.diagnosis.torchelastic import ERROR_FILE_LIMIT, all_attempts
from atlctl.i18n import COLON, COMMA, Message, joined
from atlctl.jobs.config import FAILED_TITLE, SLOW_TITLE
from atlctl.jobs.errors import AtlctlError, by_signal
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import fold_names, safe_file_name
from atlctl.jobs.statedir import write_all
from atlctl.recording.recorder.roll import RecordedWorker, ask, look_for_seats
from atlctl.recording.recorder.store import Store, create_in
from atlctl.recording.save import stem

#: Workers whose files are fetched in parallel, with separate limits for failed workers and others.
URGENT = 32
OTHERS = 16
#: Seconds to check the job's state before a failure in a log is reported.
LOOK_SECONDS = 1.0
#: Seconds that the on-failure command waits for files.
PATIENCE = 10.0
#: Most files of one worker that are taken from its log.
_MOST = 256
_NAMED = re.compile(rb"error_file: (/[^\n\r]{1,1000}?error\.json)")
FREEZE_SECONDS = 30.0
#: Bytes of one file (its last ones), bytes and files of one worker.
FILE_LIMIT = 8 << 20
LIMIT = 256 << 20
MAX_FILES = 4096
_DEPTH = 10
_NAME = 4096
#: $1: the mark, $2: bytes of a file. Then folders, and prefixes of dumps after the word `-`. Sends only the files of
#: torchelastic and the flight recorder, because a launcher's folder may hold any other files.
_SCRIPT = r"""
m=$1 n=$2; shift 2
one() {
  [ -f "$1" ] && [ ! -L "$1" ] && printf '\n%s %s\n' "$m" "$1" && tail -c "$n" "$1"
}
every() {
  while IFS= read -r x; do one "$x"; done
}
what=root
for p in "$@"; do
  if [ "$p" = - ]; then what=dump; continue; fi
  if [ $what = root ]; then [ -f "$p" ] && one "$p"; [ -d "$p" ] && find "$p" -type f -name '*error.json' | every
  else for x in "$p"*; do one "$x"; done; fi
done
for p in "$@"; do
  [ "$p" = - ] && break
  [ -d "$p" ] && find "$p" -type f \( -name stdout.log -o -name stderr.log \) | every
done
printf '\n%s\n' "$m"
"""
#: The on-failure command: seconds it may take, seconds from SIGTERM to SIGKILL, bytes of its output that are kept.
HOOK_SECONDS = 60.0
HOOK_GRACE = 2.0
HOOK_OUTPUT = 64 * 1024


class Said(Protocol):
    """Receiver of the recorder's notes and warnings. Texts may be hostile."""

    def note(self, text: str, /) -> None: ...

    def warning(self, text: str, /) -> None: ...


#: Programs of `notify`.
_SEND = '"$PYTHON" -P -m atlctl notify "$NAME" --title="$TITLE"'
_SEND_CAUSE = f'"$PYTHON" -P -m atlctl errors --from "$ATLCTL_RECORDING" --color never | {_SEND}'
_SEND_TEXT = f'printf %s "$TEXT" | {_SEND}'


class Alarm:
    """Detects and handles failures. `raised`: a worker has failed, until no worker is failed any more."""

    def __init__(
        self,
        source: Backend,
        job: Job,
        store: Store,
        said: Said,
        closed: Callable[[int], None],
        on_failure: str | None,
        notify: str | None,
        again: Callable[[], Awaitable[None]],
    ) -> None:
        """`notify`: where messages go, as in `atlctl notify`. `again` updates the job's state now: a stop ends trainers
        too, but is not a failure."""
        self._source, self._job, self._store, self._said = source, job, store, said
        self._closed, self._again = closed, again
        self._hooks = {"on-failure": on_failure, "notify": _SEND_CAUSE if notify else None}
        self._notify = notify
        self._urgent, self._others = asyncio.Semaphore(URGENT), asyncio.Semaphore(OTHERS)
        self._named: dict[tuple[str, int], set[str]] = {}
        self._known: set[tuple[str, int]] = set()
        self.raised = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._hook: asyncio.Future[Any] | None = None

    def heard(self, entry: RecordedWorker, data: bytes, everyone: Iterable[RecordedWorker]) -> bool:
        """Handles a failure found in the log of `entry`. Returns whether it is new."""
        key = entry.worker.name, entry.run
        named = self._named.setdefault(key, set())
        before = len(named)
        for path in _NAMED.findall(data):
            if len(named) < _MOST:
                named.update(all_attempts(os.fsdecode(path)))
        if key not in self._known:
            self._known.add(key)
            self._spawn(self._fetch(entry, self._urgent))
            self._spawn(self._unless_stopped(entry, everyone))
            return True
        if len(named) > before:
            self._spawn(self._fetch(entry, self._urgent))
        return False

    def see(self, everyone: Iterable[RecordedWorker]) -> bool:
        """Checks the states of all workers. Returns whether another one has failed."""
        entries = list(everyone)
        fresh = [e for e in entries if e.failed and (e.worker.name, e.run) not in self._known]
        if fresh:
            for entry in fresh:
                self._known.add((entry.worker.name, entry.run))
                self._spawn(self._fetch(entry, self._urgent))
            self._raise(fresh, entries)
        elif self.raised and not any(entry.failed for entry in entries):
            self.raised = False
        return bool(fresh)

    async def _unless_stopped(self, entry: RecordedWorker, everyone: Iterable[RecordedWorker]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._again()
        if entry.failed:
            self._raise([entry], everyone)

    def _raise(self, failed: list[RecordedWorker], everyone: Iterable[RecordedWorker]) -> None:
        names = fold_names(entry.worker.name for entry in failed)
        states = dict.fromkeys(joined(filter(None, (e.shown.state, e.shown.reason)), COLON) for e in failed)
        self._said.warning(Message("{workers} failed ({why})", workers=names, why=joined(states, COMMA)))
        first, self.raised = not self.raised, True
        if first:
            fetching = list(self._tasks)
            for entry in everyone:
                if entry not in failed and entry.alive:
                    self._spawn(self._fetch(entry, self._others))
            if self._hook is None or self._hook.done():
                self._hook = asyncio.gather(
                    *(self._run(name, command, names, fetching) for name, command in self._hooks.items() if command)
                )

    async def _fetch(self, entry: RecordedWorker, gate: asyncio.Semaphore) -> None:
        worker = entry.worker
        place = FilePlace(self._store, [stem(worker.name), f"run-{entry.run}"], self._closed)
        named = self._named.get((worker.name, entry.run), set())
        async with gate:
            try:
                problem = (
                    await self._from_living(entry, place, named)
                    if entry.alive
                    else Message("it is {state}", state=worker.state.label)
                )
                if problem:
                    await self._read_named(entry, place, named, problem)
            except OSError as error:
                self._said.warning(
                    Message("files of {worker} cannot be saved: {why}", worker=worker.name, why=error.strerror or error)
                )
            except AtlctlError as error:
                self._said.warning(
                    Message("files of {worker} cannot be fetched: {why}", worker=worker.name, why=error.message)
                )

    async def _from_living(self, entry: RecordedWorker, place: FilePlace, named: set[str]) -> str:
        """Fetches all files of the worker's launcher with one command in it; returns the problem, empty on success."""
        executor = self._source.executor(self._job)
        try:
            if not entry.seats.roots and not named and entry.failed:
                entry.seats = (await look_for_seats(executor, entry.worker) or {}).get(entry.worker.name, entry.seats)
            wanted = {*entry.seats.roots, *(path for path in named if not _below(path, entry.seats.roots))}
            if not wanted and not entry.seats.dumps:
                return ""
            got = await freeze(executor, entry.worker, wanted, entry.seats.dumps, place)
        finally:
            await executor.aclose()
        if got.files and entry.failed:
            self._said.note(Message("{worker}: {count} files saved", worker=entry.worker.name, count=got.files))
        return got.problem

    async def _read_named(self, entry: RecordedWorker, place: FilePlace, named: set[str], problem: str) -> None:
        """Reads the error files that its log names, one by one: those of a local worker remain after it has ended."""
        saved = 0
        for path in sorted(named):
            data = await self._source.read_file(self._job, entry.worker, path, ERROR_FILE_LIMIT)
            if data is not None:
                place.keep(path, data)
                saved += 1
        if entry.failed and named and not saved:
            self._said.warning(
                Message("the files of {worker} cannot be fetched: {why}", worker=entry.worker.name, why=problem)
            )

    def slow(self, text: str) -> None:
        """Warns that the training has become slow."""
        self._said.warning(text)
        if self._notify:
            self._spawn(self._run("notify", _SEND_TEXT, "", (), text))

    async def _run(
        self, name: str, command: str, names: str, fetching: Collection[asyncio.Task[None]], text: str = ""
    ) -> None:
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
        if name == "notify":
            title = (SLOW_TITLE if text else FAILED_TITLE).filled(job=self._job.name, worker=names)
            env |= {"PYTHON": sys.executable, "NAME": self._notify or "", "TITLE": title, "TEXT": text}
        how, printed = await run_hook(command, env)
        for line in (*printed.decode("utf-8", "backslashreplace").splitlines()[-20:], how):
            self._said.note(Message("{name}: {line}", name=name, line=line))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Waits until all files are fetched. Each fetch has a time limit."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self, *, wait: bool) -> None:
        """Cancels all tasks; with `wait`, first waits for the on-failure command."""
        try:
            if wait and self._hook is not None:
                await self._hook
        finally:
            left: list[asyncio.Future[Any]] = [*self._tasks, *([self._hook] if self._hook else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def _below(path: str, roots: Iterable[str]) -> bool:
    return any(path.startswith(f"{root}/") for root in roots)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The folder for one worker's files: `below` in the recording. `closed` syncs and closes a descriptor."""

    store: Store
    below: list[str]
    closed: Callable[[int], None]

    def create(self, path: str) -> int:
        """Creates a file for the worker's file `path` and returns its descriptor. Raises OSError."""
        parts = [part for part in path.split("/") if part not in ("", ".", "..")] or ["file"]
        folder = self.store.below([*self.below, *parts[:-1][-_DEPTH:]])
        try:
            return create_in(folder, safe_file_name(parts[-1]))
        finally:
            os.close(folder)

    def keep(self, path: str, data: bytes) -> None:
        """Saves `data` as the worker's file `path`. Raises OSError."""
        fd = self.create(path)
        try:
            write_all(fd, data)
        finally:
            self.closed(fd)


@dataclass(frozen=True, slots=True)
class Frozen:
    """The result of fetching files: `files` were saved; `problem` is the reason why some may be missing, or empty."""

    files: int
    problem: str = ""


async def freeze(
    executor: Executor, worker: Worker, roots: Iterable[str], dumps: Iterable[str], place: FilePlace
) -> Frozen:
    """Saves the files of a running worker. Raises OSError if they cannot be written."""
    mark = f"@atlctl-{secrets.token_hex(16)}"
    taking = Taking(mark.encode(), place)
    words = ("sh", "-c", _SCRIPT, "sh", mark, str(FILE_LIMIT), *sorted(roots), "-", *sorted(dumps))
    try:
        problem = await ask(executor, worker, Argv(words), FREEZE_SECONDS, taking.feed)
    finally:
        taking.close()
    if taking.full:
        problem = Message("more than {size} MiB or {count} files", size=LIMIT >> 20, count=MAX_FILES)
    elif not problem and not taking.whole:
        problem = Message("the answer was cut")
    return Frozen(taking.files, problem)


class Taking:
    """Splits the stream of files. `whole`: the end mark was received; `full`: a limit was reached."""

    def __init__(self, mark: bytes, place: FilePlace) -> None:
        self.files = 0
        self.whole = self.full = False
        self._mark = b"\n" + mark
        self._place = place
        self._held = b""
        self._fd = -1
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Takes the next bytes. Raises OSError."""
        self._held += data
        while not self.whole:
            at = self._held.find(self._mark)
            if at < 0:
                sure = len(self._held) - len(self._mark)
                if sure > 0:
                    self._write(self._held[:sure])
                    self._held = self._held[sure:]
                return
            end = self._held.find(b"\n", at + len(self._mark))
            if end < 0:
                return
            self._write(self._held[:at])
            name, self._held = self._held[at + len(self._mark) : end], self._held[end + 1 :]
            self._next(name)

    def _next(self, name: bytes) -> None:
        self.close()
        if not name:
            self.whole = True
            return
        if self.files >= MAX_FILES:
            self.full = True
            return
        self._fd = self._place.create(os.fsdecode(name[1 : _NAME + 1]))
        self.files += 1

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            return
        self._size += len(data)
        if self._size > LIMIT:
            self.full = True
            self.close()
            return
        write_all(self._fd, data)

    def close(self) -> None:
        if self._fd >= 0:
            self._place.closed(self._fd)
            self._fd = -1


async def run_hook(command: str, more: Mapping[str, str]) -> tuple[str, bytes]:
    """Runs `sh -c COMMAND` with `more` in its environment; returns its end as text, and the last part of its output.

    When it has ended or takes too long, its process group is killed. Never raises because of the command.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            env={**os.environ, **more},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Message("could not be started: {why}", why=error.strerror), b""
    printed = bytearray()

    async def read() -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(HOOK_OUTPUT):
            printed.extend(data)
            del printed[:-HOOK_OUTPUT]

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(HOOK_SECONDS):
            code = await process.wait()
        how = Message("exit code {code}", code=code) if code >= 0 else by_signal(-code)
    except TimeoutError:
        how = Message("ended after {seconds:g} s", seconds=HOOK_SECONDS)
        _signal(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(HOOK_GRACE):
                await process.wait()
    finally:
        _signal(process.pid, signal.SIGKILL)
        await asyncio.wait({reading}, timeout=HOOK_GRACE)
        reading.cancel()
        await process.wait()
    return how, bytes(printed)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
