"""Reads saved logs, error files and standard input as the evidence of a job's workers.

Everything is streamed: what is kept of a log does not grow with it. Lines are counted over all logs, so that one
number says which line of which file is meant.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from atlctl.diagnosis.agentnotes import NoteKind
from atlctl.diagnosis.errorfile import SIZE_LIMIT, ErrorRecord, parse_error_file
from atlctl.diagnosis.finding import WorkerEvidence
from atlctl.diagnosis.torchelastic import SummaryParser
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, UsageError
from atlctl.jobs.model import State
from atlctl.recording.folder import FolderContent, group, look, natural
from atlctl.recording.hosts import Found, by_host
from atlctl.recording.jsonlines import newest_first, unwrap
from atlctl.recording.lines import CHUNK, LineReader, Unstamp, lines_of, not_text
from atlctl.recording.prefixes import Prefix, find_prefix, kubectl_pod

#: The worker of lines that nothing tells apart.
INPUT = "input"
#: Standard input, as it is named in messages.
STDIN = "-"
#: Workers in one merged log; lines of further ones count as `INPUT`.
MAX_WORKERS = 10_000
#: Bytes of a merged log that are read before its prefix is decided.
_SAMPLE = 512 * 1024

Told = Literal["file", "prefix", "json", "host"]


@dataclass(frozen=True, slots=True)
class SavedLog:
    """One log that was read. `first` is the number of its first line over all logs, from 1."""

    path: str
    first: int
    lines: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Saved:
    """What was read. `told`: how workers were told apart. `problems`: what could not be read, the rest could.

    `remarks` are sentences for the user. A worker's state is `Succeeded` where its log does not end in a failure
    (which proves nothing), else `Unknown`.
    """

    workers: tuple[WorkerEvidence, ...]
    logs: tuple[SavedLog, ...]
    error_files: int
    told: tuple[Told, ...]
    problems: tuple[AtlctlError, ...]
    remarks: tuple[str, ...]

    def place(self, line_no: int) -> tuple[str, int]:
        """The file and the line in it (from 1) of a line number of the evidence."""
        log = self.logs[max(0, bisect_right(self.logs, line_no, key=lambda log: log.first) - 1)]
        return log.path, line_no - log.first + 1


def read_saved(paths: Sequence[str], *, error_files: bool = True, stdin: int = 0) -> Saved:
    """Reads files, folders and `-` (the descriptor `stdin`).

    Raises UsageError (not a log, or named twice), NothingMatched (missing, empty, no logs in a folder), NotAllowed
    (not readable), AtlctlError (a read failed); one unreadable log among others is a problem instead.
    """
    reader = _Reader(error_files, stdin, many=len(paths) > 1)
    if len({os.path.normpath(path) for path in paths}) < len(paths):
        raise UsageError("--from names the same path twice", "name each file or folder once")
    plain: dict[str, list[str]] = {}
    for path in paths:
        if path == "":
            raise UsageError("--from: the path is empty", "name a file, a folder, or - for standard input")
        if path != STDIN and _is_folder(path):
            reader.add_folder(path)
        else:
            plain.setdefault(os.path.dirname(path), []).append(path)
    for folder, files in plain.items():
        named = {os.path.basename(path): path for path in files}
        logs = [name for name in named if name.endswith(".log") and name != ".log"]
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
        raise _mapped(error, path) from error


def _mapped(error: OSError, path: str) -> AtlctlError:
    """A failed read in the project's error tree."""
    shown = "standard input" if path == STDIN else path
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return NothingMatched(f"{shown}: {error.strerror}", "name a log, a folder of logs, or - for standard input")
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotAllowed(f"{shown}: {error.strerror}", "run it as a user who may read it")
    return AtlctlError(f"{shown} cannot be read: {error.strerror}")


@dataclass(slots=True)
class _Reader:
    """Collects evidence.

    `many`: several paths were named, so that a file's name tells its worker. `named`: parsers of logs of one worker,
    of which `streams` may hold others' lines too, and `shared` does; `split`: of workers told from lines.
    """

    error_files: bool
    stdin: int
    many: bool
    named: dict[str, SummaryParser] = field(default_factory=dict)
    split: dict[str, SummaryParser] = field(default_factory=dict)
    records: dict[str, dict[str, ErrorRecord]] = field(default_factory=dict)
    logs: list[SavedLog] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    told: dict[Told, None] = field(default_factory=dict)
    problems: list[AtlctlError] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add_folder(self, folder: str) -> None:
        try:
            content = look(folder, error_files=self.error_files)
        except OSError as error:
            raise _mapped(error, folder) from error
        if not content.logs and not content.error_files:
            raise NothingMatched(f"{folder}: no logs in it{_links(content)}", "a log there is named WORKER.log")
        for path in content.links:
            self.remarks.append(f"{path} is a symbolic link and was not read")
        taken = set(self.named)
        for worker in sorted({*content.logs, *content.error_files}, key=natural):
            name = os.path.join(folder, worker) if worker in taken else worker
            self.named[name] = SummaryParser()
            for path in content.logs.get(worker, ()):
                self._keep_going(partial(self._read_file, path, name, alone=True))
            for path in content.error_files.get(worker, ()):
                self._keep_going(partial(self._read_error_file, path, name))
            if worker in content.omitted:
                self.remarks.append(f"{name}: too many files or folders; not all of its error files were read")
        self.remarks += [f"{path}: {why}" for path, why in content.unreadable]

    def add_stream(self, path: str, name: str) -> None:
        """One file, or standard input, that may hold many workers' lines."""
        name = name if self.many else INPUT
        self.streams.add(name)
        self._keep_going(partial(self._read_file, path, name, alone=False))

    def _keep_going(self, read: Callable[[], None]) -> None:
        try:
            read()
        except AtlctlError as problem:
            self.problems.append(problem)

    def _read_file(self, path: str, name: str, *, alone: bool) -> None:
        """`alone`: every line is of the worker `name`."""
        try:
            # Standard input stays open: it is not ours.
            fd = self.stdin if path == STDIN else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._read_open(fd, path, name, alone)
            finally:
                if path != STDIN:
                    os.close(fd)
        except OSError as error:
            raise _mapped(error, path) from error

    def _read_open(self, fd: int, path: str, name: str, alone: bool) -> None:
        size = 0

        def read(limit: int) -> bytes:
            nonlocal size
            data = os.read(fd, limit)
            size += len(data)
            return data

        start = _start(read, _SAMPLE)
        if what := not_text(start):
            shown = "standard input" if path == STDIN else path
            raise UsageError(f"{shown} is no log but {what[0]}", what[1].format(path=path))
        lines = LineReader()
        first = self.logs[-1].first + self.logs[-1].lines if self.logs else 1
        feed = _Feed(self, name, first - 1, alone)
        feed.decide(start, path)
        for batch in lines_of(read, lines, start):
            feed.batch(batch)
        feed.finish()
        self.logs.append(SavedLog(path, first, feed.number - first + 1, size))
        if lines.holes:
            self.remarks.append(
                f"{path} has {lines.holes} holes: several processes wrote over each other in it, lines may be missing"
            )

    def _read_error_file(self, path: str, name: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                data = _start(lambda limit: os.read(fd, limit), SIZE_LIMIT + 1)
            finally:
                os.close(fd)
        except OSError as error:
            raise _mapped(error, path) from error
        record, reason = parse_error_file(data)
        if record is None:
            self.remarks.append(f"{path}: {reason}")
        else:
            self.records.setdefault(name, {})[path] = record

    def parser(self, name: str, how: Told | None) -> SummaryParser:
        """The parser of one worker: of a file of its own, or (`how`) told from its lines."""
        if how is None:
            return self.named.setdefault(name, SummaryParser())
        if name not in self.split:
            if len(self.split) >= MAX_WORKERS:
                return self.named.setdefault(INPUT, SummaryParser())
            self.told[how] = None
            self.split[name] = SummaryParser()
        return self.split[name]

    def result(self, paths: Sequence[str]) -> Saved:
        if not self.logs and self.problems:
            raise self.problems[0]
        if self.logs and not any(log.bytes for log in self.logs) and not self.records:
            shown = ", ".join("standard input" if path == STDIN else path for path in paths[:4])
            raise NothingMatched(f"{shown}: empty", "name the log of a job that has printed something")
        found = self._by_worker()
        if set(self.named) & set(found) - {INPUT}:
            self.told["file"] = None
        names = sorted(found, key=natural)
        return Saved(
            tuple(self._evidence(name, index, found[name]) for index, name in enumerate(names)),
            tuple(self.logs),
            sum(map(len, self.records.values())),
            tuple(self.told),
            tuple(self.problems),
            tuple(self.remarks),
        )

    def _by_worker(self) -> Mapping[str, Found]:
        merged = {name: Found.of(parser) for name, parser in self.split.items()}
        for name, parser in self.named.items():
            own = Found.of(parser)
            if name in self.shared and not own:
                continue  # lines without a prefix, and they say nothing
            parts: Mapping[str, Found] = {name: own}
            if name in self.streams and own:
                parts = by_host(own, name)
                if len(parts) == 1 and name != INPUT:
                    parts = {name: own}  # the file's name tells as much
                elif set(parts) != {name}:
                    self.told["host"] = None
            for worker, part in parts.items():
                merged.setdefault(worker, Found()).add(part)
        return merged

    def _evidence(self, name: str, index: int, found: Found) -> WorkerEvidence:
        failed = found.summaries or any(note.kind in (NoteKind.SIGNALLED, NoteKind.RENDEZVOUS) for note in found.notes)
        return WorkerEvidence(
            name,
            index,
            found.summaries,
            self.records.get(name, {}),
            found.notes,
            found.tracebacks,
            State.UNKNOWN if failed else State.SUCCEEDED,
        )


class _Feed:
    """Hands the lines of one log to the parsers of their workers. `number` is that of the last line."""

    def __init__(self, reader: _Reader, name: str, number: int, alone: bool) -> None:
        self.number = number
        self._reader = reader
        self._name = name
        self._alone = alone
        self._own = reader.parser(name, None)
        self._prefix: Prefix | None = None
        self._unstamp = Unstamp()

    def decide(self, start: bytes, path: str) -> None:
        """Finds the prefix of this log. Raises UsageError where it runs backwards."""
        unstamp = Unstamp()
        sample = [text for line in start.split(b"\n") if (text := unstamp(line)) is not None]
        times = [found.time for line in sample if line.startswith(b'{"') and (found := unwrap(line))]
        if newest_first(times):
            shown = "standard input" if path == STDIN else path
            raise UsageError(f"{shown}: its newest lines come first", "for Loki: logcli query --forward; else: tac")
        if not self._alone:
            self._prefix = find_prefix(sample)

    def batch(self, lines: Sequence[bytes]) -> None:
        unstamp, feed, alone = self._unstamp, self._own.feed_line, self._alone
        for line in lines:
            self.number += 1
            text = unstamp(line) if line[10:11] == b"T" else line  # spares most lines a call
            if text is None:
                continue
            if alone and text[:2] != b'{"':
                feed(text, self.number)
            else:
                self._line(text)

    def finish(self) -> None:
        if rest := self._unstamp.finish():
            self._line(rest)

    def _line(self, text: bytes) -> None:
        if text[:2] == b'{"' and (found := unwrap(text)):
            pod = None if self._alone else found.pod
            parser = self._own if pod is None else self._other(pod, "json")
            for part in found.text:
                parser.feed_line(part, self.number)
            return
        if self._alone:
            self._own.feed_line(text, self.number)
            return
        told = kubectl_pod(text) if text[:5] == b"[pod/" else self._prefix.split(text) if self._prefix else None
        if told is None:
            self._own.feed_line(text, self.number)
            return
        # A stamp may stand behind the prefix as well.
        self._other(told[0], "prefix").feed_line(Unstamp()(told[1]) or b"", self.number)

    def _other(self, worker: str, how: Told) -> SummaryParser:
        self._reader.shared.add(self._name)
        return self._reader.parser(worker, how)


def _start(read: Callable[[int], bytes], size: int) -> bytes:
    """The first `size` bytes: a pipe gives them in pieces."""
    data = read(min(size, CHUNK))
    while data and len(data) < size and (more := read(size - len(data))):
        data += more
    return data


def _links(content: FolderContent) -> str:
    return f" but {len(content.links)} symbolic links, which are not followed" if content.links else ""
