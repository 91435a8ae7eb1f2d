"""Reads saved logs, error files and standard input as the evidence of a job's workers.

Logs are streamed: memory use does not grow with their size. Lines are numbered over all logs, so that one number
identifies the file and the line.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from atlctl.diagnosis.evidence import JobEvidence, RankLogFacts, WorkerEvidence
from atlctl.diagnosis.flightrecorder import DUMP_LIMIT, FlightDump, parse_dump
from atlctl.diagnosis.logfacts import LogFacts, LogReader, literals_of
from atlctl.diagnosis.platform import Event
from atlctl.diagnosis.signatures import Matcher
from atlctl.diagnosis.torchelastic import ERROR_FILE_LIMIT, ErrorRecord, parse_error_file
from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs import podnews
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, UsageError, unreadable
from atlctl.jobs.model import State
from atlctl.jobs.naming import natural_key
from atlctl.jobs.statedir import READ_FLAGS, lines_within
from atlctl.recording.events import parse_events
from atlctl.recording.feed import Alone, Feed, Readers, Told, of_several, pump, task_number
from atlctl.recording.folder import LOOSE, FolderContent, RankLogFile, group, log_name, look
from atlctl.recording.hosts import by_host, merged, of_ranks
from atlctl.recording.lines import CHUNK, NAME_A_LOG, STDIN, as_utf8, no_log, not_text
from atlctl.recording.manifest import SIZE_LIMIT as MANIFEST_LIMIT
from atlctl.recording.manifest import Manifest, read_manifest
from atlctl.recording.packed import PlainBytes, unpacked_name

#: The worker of lines that cannot be assigned to one.
INPUT = "input"
#: Workers in one merged log; lines of further ones count as `INPUT`.
MAX_WORKERS = 10_000
#: Bytes at the start of a log that are read to detect its prefix.
_SAMPLE, _END = 512 * 1024, 128 * 1024
#: A recorder's stamp. All are in UTC, so comparing bytes compares times; seconds are precise enough.
_STAMP = re.compile(rb"(?:^|\n)(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+Z ")
#: Binary search in a log: bytes that are searched for a stamp, and the precision in bytes.
_WINDOW, _NEAR = 1 << 16, 1 << 18


@dataclass(frozen=True, slots=True)
class SavedLog:
    """One log that was read. `first` is the number of its first line over all logs, from 1.

    `skipped`: the number of lines before it that were not read.
    """

    path: str
    first: int
    lines: int
    bytes: int
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Saved:
    """The evidence that was read. `problems`: inputs that could not be read.

    `remarks` are sentences for the user. `cut` are workers with logs of which only the end was read, on purpose.
    """

    job: JobEvidence
    logs: tuple[SavedLog, ...]
    error_files: int
    dumps: int
    told: tuple[Told, ...]  # how workers were identified
    problems: tuple[AtlctlError, ...]
    remarks: tuple[str, ...]
    cut: frozenset[str] = frozenset()

    def place(self, line_no: int) -> tuple[str, int]:
        """The file, and the line number in it (from 1), for a line number of the evidence."""
        log = self.logs[max(0, bisect_right(self.logs, line_no, key=lambda log: log.first) - 1)]
        return log.path, line_no - log.first + 1 + log.skipped


def read_saved(
    paths: Sequence[str],
    matcher: Matcher,
    *,
    error_files: bool = True,
    stdin: int = 0,
    ends: Ends | None = None,
    count: Callable[[int], object] = int,
) -> Saved:
    """Reads files, folders and `-` (the descriptor `stdin`).

    `ends`: read only the end of each worker's log in a folder. `count` is called with the number of bytes of each read.

    Raises UsageError (not a log, or named twice), NothingMatched (missing, empty, no logs in a folder), NotAllowed (no
    permission), AtlctlError (a read failed). An unreadable log among others is only added to `problems`.
    """
    reader = _EvidenceReader(matcher, error_files, stdin, many=len(paths) > 1, ends=ends, count=count)
    if len({os.path.normpath(path) for path in paths}) < len(paths):
        raise UsageError(Message("--from names the same path twice"), Message("give each file or folder once"))
    plain: dict[str, list[str]] = {}
    for path in paths:
        if path == "":
            raise UsageError(Message("--from: the path is empty"), NAME_A_LOG)
        if path != STDIN and _is_folder(path):
            reader.add_folder(path)
        else:
            plain.setdefault(os.path.dirname(path), []).append(path)
    for folder, files in plain.items():
        named: dict[str, str] = {}
        for path in sorted(files, key=lambda path: unpacked_name(path) != path):
            base = os.path.basename(path)
            named.setdefault(name if (name := log_name(base)) and name not in named else base, path)
        logs = [name for name in named if log_name(name) == name]
        chosen = group(logs) | {name: [name] for name in named if name not in logs}
        for worker, names in chosen.items():
            name = INPUT if worker == STDIN else worker
            if name in reader.named:
                name = os.path.join(folder, worker)
            for file in names:
                reader.add_stream(named[file], name)
    return reader.result(paths)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise mapped(error, path) from error


def shown_path(path: str) -> str:
    """A path as shown in messages."""
    return Message("standard input") if path == STDIN else path


def mapped(error: OSError, path: str) -> AtlctlError:
    """Converts the OSError of a failed read to an AtlctlError."""
    shown = shown_path(path)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return NothingMatched(Message("{path}: {why}", path=shown, why=error.strerror), NAME_A_LOG)
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotAllowed(
            Message("{path}: {why}", path=shown, why=error.strerror), Message("run it as a user with read permission")
        )
    return AtlctlError(unreadable(shown, error.strerror))


@dataclass(slots=True)
class _EvidenceReader:
    """Collects evidence.

    `many`: several paths were given, so a file's name is that of its worker. `named`: log readers by file; `streams`
    of them may hold lines of several workers, and `shared` do. `split`: log readers of workers that were identified by
    their lines, some of them `tasks` of a launcher. `only`: the folder has one log. `read`: workers with a log that was
    read; `lacking`: workers with a log that lacks lines. `refused`: the number of logs that unpack to too much.
    """

    matcher: Matcher
    error_files: bool
    stdin: int
    many: bool
    ends: Ends | None = None
    count: Callable[[int], object] = int
    cut: set[str] = field(default_factory=set)
    lacking: set[str] = field(default_factory=set)
    named: dict[str, LogReader] = field(default_factory=dict)
    split: dict[str, LogReader] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    records: dict[str, dict[str, ErrorRecord]] = field(default_factory=dict)
    rank_logs: dict[str, list[RankLogFacts]] = field(default_factory=dict)
    dumps: dict[str, list[FlightDump]] = field(default_factory=dict)
    manifest: Manifest | None = None
    events: list[Event] = field(default_factory=list)
    logs: list[SavedLog] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)
    told: dict[Told, None] = field(default_factory=dict)
    problems: list[AtlctlError] = field(default_factory=list)
    refused: int = 0
    remarks: list[str] = field(default_factory=list)
    launcher: WorkerEvidence | None = None
    only: bool = False

    def add_folder(self, folder: str) -> None:
        try:
            content = look(folder, error_files=self.error_files)
        except OSError as error:
            raise mapped(error, folder) from error
        check_logs(content, folder)
        for path in content.links:
            self.remarks.append(Message("{path} is a symbolic link and was not read", path=path))
        if content.manifest:
            self._keep_going(partial(self._read_manifest, content.manifest))
        streams = self.manifest.streams if self.manifest else frozenset()
        taken = set(self.named)
        self.only = not content.manifest and sum(map(len, content.logs.values())) == 1
        for path in content.dumps.pop(LOOSE, ()):
            self._keep_going(partial(self._read_dump, path, LOOSE))
        workers = {*content.logs, *content.error_files, *content.rank_logs, *content.dumps}
        for worker in sorted(workers, key=natural_key):
            name = os.path.join(folder, worker) if worker in taken else worker
            self.named[name] = LogReader(self.matcher)
            for path, skip in self._wanted(content.logs.get(worker, ()), name):
                alone = unpacked_name(os.path.basename(path)) not in streams
                if not alone:
                    self.streams.add(name)
                self._note_cut(path, folder, name)
                self._keep_going(partial(self._read_file, path, name, alone=alone, skip=skip))
            for path in content.error_files.get(worker, ()):
                self._keep_going(partial(self._read_error_file, path, name))
            for item in content.rank_logs.get(worker, ()):
                self._note_cut(item.path, folder, name)
                self._keep_going(partial(self._read_rank_log, item, name))
            for path in content.dumps.get(worker, ()):
                self._keep_going(partial(self._read_dump, path, name))
            if worker in content.omitted:
                self.remarks.append(
                    Message("{worker}: too many files or folders; not all of its error files were read", worker=name)
                )
        if content.events:
            self._keep_going(partial(self._read_events, content.events))
        self.remarks += [Message("{path}: {why}", path=path, why=why) for path, why in content.unreadable]

    def _note_cut(self, path: str, folder: str, name: str) -> None:
        """Notes a log of the worker `name` that is the copy of a cut one."""
        if self.manifest and unpacked_name(os.path.relpath(path, folder)) in self.manifest.cut:
            self.lacking.add(name)
            lacks = Message("{path} lacks lines: it is the copy of a file that was cut or damaged", path=path)
            self.problems.append(AtlctlError(lacks))

    def _wanted(self, paths: Sequence[str], name: str) -> list[tuple[str, int]]:
        """Files of a log, and the number of bytes to skip at the start of each."""
        if self.ends is None:
            return [(path, 0) for path in paths if os.path.lexists(path)] or [(path, 0) for path in paths]
        wanted, cut = self.ends.of(paths)
        if cut:
            self.cut.add(name)
        return wanted

    def add_stream(self, path: str, name: str) -> None:
        """Reads one file, or standard input, that may hold lines of several workers."""
        name = name if self.many else INPUT
        self.streams.add(name)
        self._keep_going(partial(self._read_file, path, name, alone=False))

    def _keep_going(self, read: Callable[[], None]) -> None:
        try:
            read()
        except AtlctlError as problem:
            self.problems.append(problem)

    def _read_file(self, path: str, name: str, *, alone: bool, skip: int = 0) -> None:
        """`alone`: every line is of the worker `name`. `skip`: bytes to skip, up to the end of a line."""
        try:
            # Standard input belongs to the caller and stays open.
            fd = self.stdin if path == STDIN else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._read_open(fd, path, name, alone, skipped=_skip_lines(fd, skip) if skip else 0)
            finally:
                if path != STDIN:
                    os.close(fd)
        except OSError as error:
            raise mapped(error, path) from error

    def _read_open(
        self, fd: int, path: str, name: str, alone: bool, readers: Readers | None = None, skipped: int = 0
    ) -> None:
        size = 0

        def raw(limit: int) -> bytes:
            nonlocal size
            data = os.read(fd, limit)
            size += len(data)
            self.count(len(data))
            return data

        shown = shown_path(path)
        plain = PlainBytes(raw, shown, path, "errors")
        read, start = as_utf8(plain.read, _start(plain.read, _SAMPLE))
        packed = plain.unpacking
        if packed is not None and packed.wrong is not None and not start:
            raise UsageError(Message("{path} {problem}", path=shown, problem=packed.wrong), NAME_A_LOG)
        if what := not_text(start):
            raise no_log(what, shown, path, "errors")
        first = self.logs[-1].first + self.logs[-1].lines if self.logs else 1
        alone = alone and not (self.only and readers is None and of_several(start))
        end = b"" if packed else _end(fd)
        feed = Feed(readers or self, name, first - 1, literals_of(self.matcher), start, alone=alone, end=end)
        if feed.backwards:
            raise UsageError(
                Message("{path}: its newest lines are at the top", path=shown),
                Message("for Loki: logcli query --forward; otherwise: tac"),
            )
        pump(read, feed, start, CHUNK)
        if packed is not None and packed.wrong is not None:
            self.lacking.add(name)
            self.refused += packed.refused
            self.problems.append(AtlctlError(Message("{path} {problem}", path=shown, problem=packed.wrong)))
        for worker, why in feed.unread.items():
            self.lacking.add(worker)
            self.problems.append(AtlctlError(Message("{path}: {why}", path=shown, why=why)))
        if readers is None and not (packed and packed.refused):
            self.read.add(name)
        self.logs.append(SavedLog(path, first, feed.number - first + 1, size, skipped))
        if wrong := feed.overwritten():
            self.remarks.append(Message("{path} {problem}", path=path, problem=wrong))

    def _read_rank_log(self, item: RankLogFile, name: str) -> None:
        """Reads torchelastic's log of one rank into its own reader; its lines are numbered like those of other logs."""
        reader = LogReader(self.matcher)
        fd = _open_file(item.path)
        try:
            self._read_open(fd, item.path, name, alone=True, readers=Alone(reader))
        finally:
            os.close(fd)
        self.rank_logs.setdefault(name, []).append(RankLogFacts(item.attempt, item.local_rank, reader.facts()))

    def _read_dump(self, path: str, name: str) -> None:
        """Reads a flight-recorder dump."""
        dump, reason = parse_dump(_whole_file(path, DUMP_LIMIT), os.path.basename(path))
        if dump is None:
            self.remarks.append(Message("{path}: {why}", path=path, why=reason))
        elif name == LOOSE and dump.rank in (None, *(other.rank for other in self.dumps.get(name, ()))):
            why = Message("its name must end in its rank, and no other dump's in the same one: it was not read")
            self.remarks.append(Message("{path}: {why}", path=path, why=why))
        else:
            self.dumps.setdefault(name, []).append(dump)

    def _read_manifest(self, path: str) -> None:
        self.manifest = read_manifest(_whole_file(path, MANIFEST_LIMIT))

    def _read_events(self, path: str) -> None:
        with open(_open_file(path), "rb") as file:
            events, remarks = parse_events(lines_within(file))
        self.events += events
        self.remarks += [Message("{path}, {remark}", path=path, remark=remark) for remark in remarks]

    def _read_error_file(self, path: str, name: str) -> None:
        record, reason = parse_error_file(_whole_file(path, ERROR_FILE_LIMIT))
        if record is None:
            self.remarks.append(Message("{path}: {why}", path=path, why=reason))
        else:
            self.records.setdefault(name, {})[path] = record

    def reader(self, name: str, how: Told | None) -> LogReader:
        """The reader of a worker that has a separate file (`how` is None), or was identified by its lines."""
        if how is None:
            if name not in self.named:
                self.named[name] = LogReader(self.matcher)
            return self.named[name]
        if name not in self.split:
            if len(self.split) >= MAX_WORKERS:
                return self.reader(INPUT, None)
            self.told["prefix" if how == "task" else how] = None
            self.split[name] = LogReader(self.matcher)
            if how == "task":
                self.tasks.add(name)
        return self.split[name]

    def mixed(self, name: str) -> None:
        """Notes that the log of `name` also holds lines of other workers."""
        self.shared.add(name)

    def result(self, paths: Sequence[str]) -> Saved:
        if len(self.logs) == self.refused and self.problems:
            raise self.problems[0]
        if self.logs and not any(log.lines for log in self.logs) and not self.records:
            shown = joined((shown_path(path) for path in paths[:4]), COMMA)
            raise NothingMatched(Message("{path}: empty", path=shown), Message("name a log that is not empty"))
        found = self._by_worker()
        if set(self.named) & set(found) - {INPUT}:
            self.told["file"] = None
        return Saved(
            self._job(found),
            tuple(self.logs),
            sum(map(len, self.records.values())),
            sum(map(len, self.dumps.values())),
            tuple(self.told),
            tuple(self.problems),
            tuple(self.remarks),
            frozenset(self.cut),
        )

    def _by_worker(self) -> Mapping[str, LogFacts]:
        found = {name: reader.facts() for name, reader in self.split.items()}
        mixed = self.named[next(iter(self.shared))].facts() if self.tasks else LogFacts()
        ranks = of_ranks({task_number(name): found[name] for name in self.tasks}, mixed)
        if ranks is not None:
            found = {name: facts for name, facts in found.items() if name not in self.tasks}
            found[next(iter(self.shared))] = ranks
        for name, reader in self.named.items():
            if ranks is not None and name in self.shared:
                continue
            own = reader.facts()
            if name in self.shared and own.only_reports:
                # Its lines without a prefix are a launcher's, or hold no facts.
                self.launcher = WorkerEvidence(name, len(found), own) if own.said else self.launcher
                continue
            parts: Mapping[str, LogFacts] = {name: own}
            if name in self.streams and own.said:
                parts = by_host(own, name)
                if len(parts) == 1 and name != INPUT:
                    parts = {name: own}  # one worker only: keep the file's name
                elif set(parts) != {name}:
                    self.told["host"] = None
            for worker, part in parts.items():
                found[worker] = merged(found[worker], part) if worker in found else part
                found[worker].cut |= name in self.lacking
        for name in found if self.lacking & self.shared else ():
            found[name].cut |= name not in self.named or name in self.shared
        return found

    def _job(self, found: Mapping[str, LogFacts]) -> JobEvidence:
        """The workers that have a log, in the manifest's order if it lists them all, else by name."""
        known = {item.name: item for item in self.manifest.workers} if self.manifest else {}
        pods = {item.pod: item.name for item in known.values() if item.pod}
        job = self.manifest.job.name if self.manifest else ""
        names = sorted(found, key=natural_key)
        if set(names) <= set(known):
            names.sort(key=lambda name: known[name].index)
        workers = [
            WorkerEvidence(
                name,
                index,
                None if name in self.named and name not in self.read else found[name],
                error_files=self.records.get(name, {}),
                rank_logs=self.rank_logs.get(name, ()),
                dumps=self.dumps.get(name, ()),
                state=known[name].state if name in known else State.UNKNOWN,
                platform=known[name].platform if name in known else None,
            )
            for index, name in enumerate(names)
        ]
        return JobEvidence(
            tuple(workers),
            dumps=self.dumps.get(LOOSE, ()),
            launcher=self.launcher,
            expected=self.manifest.job.expected_workers if self.manifest else None,
            missing=tuple(name for name in known if name not in found),
            events=tuple(
                replace(event, worker=pods.get(event.worker) or podnews.worker_of(job, event.worker) or event.worker)
                if event.worker
                else event
                for event in self.events
            ),
        )


def _open_file(path: str) -> int:
    """Opens a file of an untrusted folder: never follows a link, never blocks. Raises AtlctlError."""
    try:
        return os.open(path, READ_FLAGS)
    except OSError as error:
        raise mapped(error, path) from error


def _whole_file(path: str, limit: int) -> bytes:
    """The bytes of a file; of a larger file, the first `limit` + 1. Raises AtlctlError."""
    fd = _open_file(path)
    try:
        return _start(lambda size: os.read(fd, size), limit + 1)
    except OSError as error:
        raise mapped(error, path) from error
    finally:
        os.close(fd)


def _skip_lines(fd: int, size: int) -> int:
    """Skips `size` bytes and the rest of the line in which they end; returns the number of skipped lines."""
    lines = 0
    left = size - 1  # if `size` bytes end with a newline, the next line is not skipped
    while left > 0 and (data := os.read(fd, min(left, 1 << 20))):
        lines += data.count(b"\n")
        left -= len(data)
    while data := os.read(fd, CHUNK):
        end = data.find(b"\n")
        if end >= 0:
            os.lseek(fd, end + 1 - len(data), os.SEEK_CUR)
            return lines + 1
    return lines


def _start(read: Callable[[int], bytes], size: int) -> bytes:
    """Reads the first `size` bytes; a pipe returns them in pieces."""
    data = read(min(size, CHUNK))
    while data and len(data) < size and (more := read(size - len(data))):
        data += more
    return data


def _end(fd: int) -> bytes:
    """The last lines of a file that is longer than the sample of its start."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or about.st_size < _SAMPLE + _END:
        return b""
    return os.pread(fd, _END, about.st_size - _END).partition(b"\n")[2]


def check_logs(content: FolderContent, path: str) -> None:
    """Raises NothingMatched if the folder `path` has no logs, no error files and no dumps of flight recorders."""
    if content.logs or content.error_files or content.rank_logs or content.dumps:
        return
    why = Message("no logs in it")
    if content.links:
        why = Message("no logs in it, only {count} symbolic links, which are not followed", count=len(content.links))
    raise NothingMatched(
        Message("{path}: {why}", path=path, why=why), Message("logs in a folder must be named WORKER.log or WORKER.out")
    )


@dataclass(frozen=True, slots=True)
class Ends:
    """The part of each worker's log to read: at least the last `share` bytes, and all lines printed since `since`.

    `since` is in seconds since the epoch, None for no such limit. It is used only for logs with time stamps.
    """

    share: int
    since: float | None = None

    def of(self, paths: Sequence[str]) -> tuple[list[tuple[str, int]], bool]:
        """Existing files of one log, oldest first, with the bytes of each to skip; and whether anything is skipped.

        A running recorder removes the oldest file from time to time.
        """
        there = [path for path in paths if os.path.lexists(path)] or list(paths)
        begin = None if self.since is None else f"{datetime.fromtimestamp(self.since, UTC):%Y-%m-%dT%H:%M:%S}".encode()
        left = self.share
        wanted: list[tuple[str, int]] = []
        for path in reversed(there):
            if unpacked_name(path) != path:
                wanted.append((path, 0))  # its size says nothing
                continue
            skip = max(0, os.lstat(path).st_size - left)
            left -= os.lstat(path).st_size
            early = begin is not None and skip > 0
            if early and begin is not None:
                skip = min(skip, _before(path, begin))
            wanted.append((path, skip))
            if skip or (left <= 0 and not early):
                break
        return wanted[::-1], len(wanted) < len(there) or any(skip for _, skip in wanted)


def _before(path: str, begin: bytes) -> int:
    """The number of bytes of a file printed before `begin`, rounded down; 0 if its lines have no time stamps."""
    fd = os.open(path, READ_FLAGS)
    try:
        low, high = 0, os.fstat(fd).st_size
        while high - low > _NEAR:
            middle = (low + high) // 2
            found = _STAMP.search(os.pread(fd, _WINDOW, middle))
            if found is None:
                return 0
            if found[1] < begin:
                low = middle + found.start()
            else:
                high = middle
        return low
    finally:
        os.close(fd)
