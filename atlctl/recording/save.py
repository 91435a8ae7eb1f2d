"""Saves a job's evidence to a folder that `errors --from` reads, before stopping the job removes its logs.

It first saves the end of every log, which shows the failure, then as much of each log as time and size allow. The
result names missing files; a problem with one worker never stops the saving of the others.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from atlctl.backends.base import PREVIOUS, LogLine, LogRequest
from atlctl.diagnosis.logfacts import LogFacts
from atlctl.diagnosis.torchelastic import ERROR_FILE_LIMIT, all_attempts
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError, why_of
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import open_below, write_all
from atlctl.recording import manifest
from atlctl.recording.folder import NEW_FOLDER, cannot_write, is_tag, opened

#: Seconds for everything, bytes of all logs, logs that are read in parallel.
DEADLINE = 60.0
LIMIT = 1 << 30
READERS = 32
#: The step after the logs.
SAVING_ERROR_FILES = Message("saving the error files")
#: First pass: lines of each log, and bytes of them that are held.
TAIL = 20_000
TAIL_BYTES = 4 << 20
#: Second pass: to get more lines than this, the whole log is read; the used share of the space for a log.
MAX_TAIL = 1_000_000
_USED = 0.8
MAX_EVENTS = 20_000
#: Seconds for a cancelled read to end.
_ENDING = 2.0
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_second: tuple[int, bytes] = (-1, b"")
#: Most error files of one worker, and files that are read in parallel.
_MOST_FILES, _FILE_READERS = 256, 16
#: Trailing components of a file's path that are kept: torchelastic's, and some before them.
_PATH_DEPTH = 8
_MOUNTINFO = "/proc/self/mountinfo"
_MOUNTINFO_LIMIT = 4 << 20
_ESCAPE = re.compile(r"\\([0-7]{3})")
#: File systems that are shared with other machines.
_SHARED = frozenset(
    (
        *("nfs", "nfs4", "ceph", "lustre", "gpfs", "virtiofs", "9p", "beegfs", "glusterfs", "cifs", "smb3", "ocfs2"),
        *("gfs2", "afs", "wekafs", "pvfs2", "orangefs", "panfs", "cpfs"),
    )
)
#: FUSE file systems that are not shared: lxcfs, image layers, desktop mounts.
_OWN_FUSE = frozenset(("fuse.lxcfs", "fuse.fuse-overlayfs", "fuse.gvfsd-fuse", "fuse.portal"))
#: File systems that are removed with the container.
_PASSING = frozenset(("overlay", "aufs", "tmpfs", "ramfs", "devtmpfs", "fuse.fuse-overlayfs"))
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/run/secrets", "/var/run/secrets", "/usr", "/lib")


class EvidenceSource(Protocol):
    """The part of a backend that saving evidence needs."""

    def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]: ...

    async def raw_events(self, job: Job) -> Sequence[Mapping[str, Any]]: ...


@dataclass(slots=True)
class SavedEvidence:
    """The saved evidence. `logs` counts files; `missing`: missing or incomplete items and the reason (hostile text)."""

    folder: str
    logs: int = 0
    bytes: int = 0
    missing: list[tuple[str, str]] = field(default_factory=list)


class Folder:
    """A new folder of mode 0700, or an existing empty one; files in it are 0600. No symbolic link is followed.

    Its parent must exist. Raises UsageError or NotAllowed if it cannot be used, with `elsewhere` as hint.
    """

    elsewhere = Message("name another folder with --out, or --no-save")

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        try:
            self._fd, made = opened(self.path)
            if not made and os.listdir(self._fd):
                os.close(self._fd)
                raise UsageError(Message("{path} is not empty", path=path), Message("name a new folder with --out"))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise NotAllowed(cannot_write(path, error), NEW_FOLDER) from error
            raise UsageError(
                Message("cannot save to {path}: {why}", path=path, why=why_of(error)), self.elsewhere
            ) from error

    def size(self) -> int:
        """Total size in bytes of the files in it and its subfolders. Raises OSError."""
        found = os.fwalk(".", dir_fd=self._fd)
        return sum(
            os.stat(name, dir_fd=at, follow_symlinks=False).st_size for _, _, names, at in found for name in names
        )

    def create(self, name: str) -> int:
        fd = os.open(name, _OPEN, 0o600, dir_fd=self._fd)
        os.fchmod(fd, 0o600)
        return fd

    def write(self, name: str, data: bytes) -> None:
        fd = self.create(name)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def create_below(self, parts: Sequence[str]) -> int:
        """Creates a file below the folder and returns its descriptor. Raises OSError, also if it exists."""
        names = [self.named(part) for part in parts]
        below = open_below(self._fd, names[:-1])
        try:
            fd = os.open(names[-1], _OPEN, 0o600, dir_fd=below)
            os.fchmod(fd, 0o600)
            return fd
        finally:
            os.close(below)

    def named(self, name: str) -> str:
        """The name in this folder for a worker's file or folder."""
        return safe_file_name(name)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def close(self) -> None:
        os.close(self._fd)


async def save(
    source: EvidenceSource, job: Job, folder: Folder, *, deadline: float = DEADLINE, limit: int = LIMIT
) -> SavedEvidence:
    """Saves logs (`NAME.ts.log`, `NAME.previous.ts.log`), `atlctl.json` and `events.jsonl` of `job`.

    `deadline` in seconds, `limit` in bytes over all logs. Failed reads and writes never raise: see `missing`.
    """
    saving = _Saving(source, job, folder, limit)
    await saving.run(deadline)
    return saving.saved


@dataclass(slots=True)
class _Log:
    """One log to save. `size` and `lines` are those that are saved."""

    worker: Worker
    previous: bool
    name: str
    told: str  # its name in messages
    state: Literal["not read", "cut", "tail", "whole"] = "not read"
    size: int = 0
    lines: int = 0


class _Saving:
    def __init__(self, source: EvidenceSource, job: Job, folder: Folder, limit: int) -> None:
        self.saved = SavedEvidence(folder.path)
        self._source, self._job, self._folder = source, job, folder
        self._gate = asyncio.Semaphore(READERS)
        logs = [_Log(w, False, f"{stem(w.name)}.ts.log", w.name) for w in job.workers]
        logs += [
            _Log(w, True, f"{stem(w.name)}.previous.ts.log", Message("{worker} before its restart", worker=w.name))
            for w in job.workers
            if w.restarts
        ]
        self._logs = logs
        self._share = limit // max(1, len(logs))

    async def run(self, deadline: float) -> None:
        self._put(manifest.NAME, describe(self._job), Message("the description of the job"))
        end = asyncio.get_running_loop().time() + deadline
        events = asyncio.create_task(self._events())
        try:
            await self._all([*(asyncio.create_task(self._end_of(log)) for log in self._logs), events], end)
            rest = [log for log in self._logs if log.state == "tail"]
            await self._all([asyncio.create_task(self._more(log)) for log in rest], end)
        finally:
            events.cancel()
        late = Message("not read within {seconds:g} s", seconds=deadline)
        for log in self._logs:
            if log.state == "tail":
                self._miss(
                    log.told,
                    Message(
                        "only its last {lines} lines: more could not be read within {seconds:g} s",
                        lines=log.lines,
                        seconds=deadline,
                    ),
                )
            elif log.state == "not read":
                self._miss(log.told, late)
        if events.cancelled():
            self._miss("events", late)
        self.saved.missing.sort()

    async def _all(self, tasks: list[asyncio.Task[None]], end: float) -> None:
        """Waits for `tasks` until `end`, then cancels the unfinished ones."""
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=max(0.0, end - asyncio.get_running_loop().time()))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_ENDING)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _end_of(self, log: _Log) -> None:
        """Saves the last lines, also those that were read before a deadline or an error."""
        held: deque[bytes] = deque()
        cut = False
        room = min(TAIL_BYTES, self._share)
        why = ""
        try:
            request = LogRequest(tail=TAIL, attempt=PREVIOUS if log.previous else None)
            async with self._gate, closing(self._source.lines(self._job, log.worker, request)) as batches:
                async for batch in batches:
                    for line in batch:
                        held.append(stamped(line))
                        log.size += len(held[-1])
                    while log.size > room and held:
                        log.size -= len(held.popleft())
                        cut = True
            log.state = "tail" if cut or len(held) >= TAIL else "whole"
        except AtlctlError as error:
            log.state, why = "cut", error.message
        finally:
            if (held or log.state == "whole") and self._put(log.name, b"".join(held), log.told):
                self.saved.logs += 1
                self.saved.bytes += log.size
                log.lines = len(held)
                if log.state in ("cut", "not read"):
                    broken = Message("reading stopped early; its last lines may be missing")
                    log.state, why = "cut", Message("{what} ({why})", what=broken, why=why) if why else broken
            if why:
                self._miss(log.told, why)

    async def _more(self, log: _Log) -> None:
        """Saves as much of the log as fits into its share, to a second file that then replaces the first."""
        fitting = int(_USED * self._share * log.lines / max(1, log.size))
        if fitting <= log.lines:
            self._too_large(log)
            return
        wanted = fitting if fitting <= MAX_TAIL else None
        part = f".{log.name}.part"
        size = lines = 0
        fd = -1
        try:
            fd = self._folder.create(part)
            request = LogRequest(tail=wanted, attempt=PREVIOUS if log.previous else None)
            async with self._gate, closing(self._source.lines(self._job, log.worker, request)) as batches:
                async for batch in batches:
                    data = b"".join(map(stamped, batch))
                    lines += len(batch)
                    size += len(data)
                    if size > self._share:
                        self._too_large(log)
                        return
                    write_all(fd, data)
            self._folder.rename(part, log.name)
            self.saved.bytes += size - log.size
            log.lines, log.size, log.state = lines, size, "whole"
            if wanted is not None and lines >= wanted:
                self._too_large(log)
        except (AtlctlError, OSError) as error:
            log.state = "cut"
            self._miss(log.told, Message("only its last {lines} lines: {why}", lines=log.lines, why=why_of(error)))
        finally:
            if fd >= 0:
                os.close(fd)
                self._folder.remove(part)

    def _too_large(self, log: _Log) -> None:
        log.state = "cut"
        self._miss(
            log.told,
            Message(
                "only its last {lines} lines: it is larger than its share of {size:.3g} MiB",
                lines=log.lines,
                size=self._share / 2**20,
            ),
        )

    async def _events(self) -> None:
        try:
            found = await self._source.raw_events(self._job)
        except AtlctlError as error:
            self._miss("events", error.message)
            return
        if found:
            lines = "".join(f"{json.dumps(event)}\n" for event in found[-MAX_EVENTS:])
            self._put("events.jsonl", lines.encode(), "events")

    def _put(self, name: str, data: bytes, told: str) -> bool:
        try:
            self._folder.write(name, data)
        except OSError as error:
            self._miss(told, why_of(error))
            return False
        return True

    def _miss(self, what: str, why: str) -> None:
        self.saved.missing.append((what, why))


@asynccontextmanager
async def closing(batches: AsyncIterator[Sequence[LogLine]]) -> AsyncIterator[AsyncIterator[Sequence[LogLine]]]:
    """Closes an iterator that is left early, so that its connection is released at once."""
    try:
        yield batches
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()


def stem(name: str) -> str:
    """The stem of a worker's file names: safe, and without a part that looks like the tag of a log."""
    safe = safe_file_name(name)
    return safe.replace(".", "%2E") if any(map(is_tag, safe.split("."))) else safe


def stamped(line: LogLine) -> bytes:
    """A line as `kubectl logs --timestamps` shows it: RFC 3339 with nanoseconds, a blank, the text."""
    global _second
    if line.time is None:
        return line.data + b"\n"
    seconds, rest = divmod(line.time, 1_000_000_000)
    if seconds != _second[0]:
        moment = datetime.fromtimestamp(seconds, UTC)
        _second = seconds, moment.strftime("%Y-%m-%dT%H:%M:%S").encode()
    return b"%s.%09dZ %s\n" % (_second[1], rest, line.data)


def describe(job: Job) -> bytes:
    """The contents of `atlctl.json` (see `manifest`). Workers have the names of their files."""
    workers = [describe_worker(worker) for worker in job.workers]
    whole = {"version": manifest.VERSION, "job": describe_job(job), "workers": workers}
    return json.dumps(whole, indent=1).encode() + b"\n"


def describe_job(job: Job) -> dict[str, Any]:
    """The `job` of `atlctl.json`."""
    return {
        "name": job.name,
        "kind": job.kind,
        "uid": job.uid,
        "state": str(job.state),
        "namespace": job.namespace,
        "expected_workers": job.expected,
        "command": job.command,
    }


def describe_worker(worker: Worker) -> dict[str, Any]:
    """One of the `workers` of `atlctl.json`."""
    return {
        "name": stem(worker.name),
        "index": worker.index,
        "node_rank": worker.node_rank,
        "pod": worker.pod,
        "node": worker.node or worker.host,
        "image": worker.image,
        "addresses": [worker.address] if worker.address else [],
        "state": str(worker.state),
        "reason": worker.reason,
        "message": worker.message,
        "exit_code": worker.exit_code,
        "signal": worker.signal,
        "restarts": worker.restarts,
        "started": worker.started,
        "ended": worker.ended,
    }


class FileSource(Protocol):
    """The part of a backend that reading error files needs."""

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None: ...


def named_in(log: LogFacts) -> list[str]:
    """Paths of error files in the worker: those that its summaries name, and those of earlier attempts."""
    named = [entry.error_file for summary in log.summaries for entry in summary.entries if entry.error_file]
    return list(dict.fromkeys(path for name in named for path in all_attempts(name)))[:_MOST_FILES]


def error_file_parts(worker: Worker, path: str) -> list[str]:
    """The path of a worker's file in an evidence folder: the worker's name, then the end of the file's path."""
    return [stem(worker.name), *[part for part in path.split("/") if part not in ("", ".", "..")][-_PATH_DEPTH:]]


async def fetch_error_files(
    source: FileSource, job: Job, logs: Mapping[str, LogFacts], keep: Callable[[Worker, str, bytes], None]
) -> None:
    """Reads the error files that the logs name and passes each to `keep`, with its path. `logs` is by the stem of the
    worker's name. Unreadable and too large files are skipped."""
    gate = asyncio.Semaphore(_FILE_READERS)

    async def of(worker: Worker, log: LogFacts) -> None:
        for path in named_in(log):
            async with gate:
                data = await source.read_file(job, worker, path, ERROR_FILE_LIMIT + 1)
            if data is not None and len(data) <= ERROR_FILE_LIMIT:
                keep(worker, path, data)

    known = [(worker, logs.get(stem(worker.name))) for worker in job.workers]
    await asyncio.gather(*(of(worker, log) for worker, log in known if log is not None))


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One mount: the folder `root` of a file system is mounted at `point`."""

    point: str
    root: str
    kind: str
    writable: bool

    @property
    def shared(self) -> bool:
        """Whether other machines can access it too."""
        return self.kind in _SHARED or (self.kind.startswith("fuse.") and self.kind not in _OWN_FUSE)

    @property
    def passing(self) -> bool:
        """Whether it is removed with the container, or with the pod (an emptyDir)."""
        return self.kind in _PASSING or "/kubernetes.io~empty-dir/" in self.root


def parse_mounts(text: str) -> list[MountPoint]:
    """Parses a mountinfo file, in file order; invalid lines are skipped."""
    found = []
    for line in text.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, behind = head.split(" "), tail.split(" ")
        if dash and len(fields) >= 6 and len(behind) >= 3:
            options = {*fields[5].split(","), *behind[2].split(",")}
            found.append(MountPoint(_plain(fields[4]), _plain(fields[3]), behind[0], "ro" not in options))
    return found


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def mounts(path: str = _MOUNTINFO) -> list[MountPoint]:
    """The mounts of this process; empty if they cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse_mounts(file.read(_MOUNTINFO_LIMIT))
    except OSError:
        return []


def mount_of(path: str, known: Sequence[MountPoint]) -> MountPoint | None:
    """The mount that contains `path`; the path itself need not exist."""
    real = os.path.realpath(path)
    best: MountPoint | None = None
    for mount in known:  # of two mounts at one point, the later one hides the other
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def shared_folder(known: Sequence[MountPoint], here: str) -> str | None:
    """A writable folder on a shared file system: `here` if it is on one, else the mount point of one."""
    own = mount_of(here, known)
    if own is not None and own.shared and _usable(own, here):
        return here
    for mount in known:
        if mount.shared and _usable(mount, mount.point) and mount_of(mount.point, known) == mount:
            return mount.point
    return None


def _usable(mount: MountPoint, folder: str) -> bool:
    system = any(mount.point == place or mount.point.startswith(place + "/") for place in _SYSTEM)
    return mount.writable and not system and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
