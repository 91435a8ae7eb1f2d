"""Where the output of `exec` goes: live, as JSON lines, into a folder, or gathered; and the summary at its end."""

from __future__ import annotations

import base64
import codecs
import contextlib
import difflib
import errno
import hashlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from atlctl.backends.base import Stream
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.i18n import COMMA, Message, joined, translated
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.jobs.model import Worker
from atlctl.jobs.naming import by_frequency, fold_names, natural_key, safe_file_name
from atlctl.jobs.statedir import write_all
from atlctl.render.jsonout import dumps, output_lines
from atlctl.render.lines import LinePrefixer, Piece, Spill, prefix_for
from atlctl.render.palette import Tone, Toned, painted
from atlctl.render.sanitize import OutputSanitizer, clean
from atlctl.render.streams import Streams
from atlctl.render.table import rfc3339
from atlctl.render.writer import Writer

# Live output of `exec`: whole lines after `NAME: `, or one worker's bytes as they come.

#: Memory for lines whose end has not come yet, all workers together, in bytes.
_LINE_BUDGET = 48 << 20
_LINE_LEAST = 4 << 10
_LINE_MOST = 1 << 20

_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


def line_limit(workers: int) -> int:
    """Bytes of one unfinished line to keep in memory: each worker has two streams."""
    return max(_LINE_LEAST, min(_LINE_MOST, _LINE_BUDGET // (2 * max(workers, 1))))


def sanitizer_for(stream: Stream, streams: Streams, raw: bool) -> OutputSanitizer | None:
    """The sanitiser for `stream`; None for pipes and with `--raw`, which get bytes unchanged."""
    if stream == "stdout":
        tty, color = streams.stdout_tty, streams.stdout_color
    else:
        tty, color = streams.stderr_tty, streams.stderr_color
    return OutputSanitizer(color) if tty and not raw else None


class LiveSink:
    """A worker's stdout to stdout, its stderr to stderr, never two workers on one line.

    `workers`: how many are selected. Exactly one has no prefix, and its bytes do not wait for the end of a line.
    """

    def __init__(
        self, writer: Writer, streams: Streams, workers: int, *, prefix: bool = True, raw: bool = False
    ) -> None:
        self._writer = writer
        self._streams = streams
        self._single = workers == 1
        self._prefix = prefix and not self._single
        self._raw = raw
        self._limit = line_limit(workers)
        self._lines: dict[tuple[str, Stream], LinePrefixer] = {}
        self._passed: dict[Stream, OutputSanitizer | None] = {
            stream: sanitizer_for(stream, streams, raw) for stream in _STREAMS
        }

    async def started(self, worker: Worker) -> None:
        """Nothing is shown for it."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        """Waits while the reader is slow. Raises AtlctlError when a long line finds no space on disk."""
        await self._writer.drain()
        if self._single:
            sanitizer = self._passed[stream]
            self._writer.put(stream, data if sanitizer is None else sanitizer.feed(data), worker.name)
            return
        lines = self._lines.get((worker.name, stream))
        if lines is None:
            lines = self._lines[worker.name, stream] = self._prefixer(worker, stream)
        self._writer.put(stream, lines.feed(data), worker.name)

    async def finished(self, outcome: Outcome) -> None:
        """Never waits: at most the last line is left."""
        name = outcome.worker.name
        for stream in _STREAMS:
            sanitizer = self._passed[stream]
            if self._single and sanitizer is not None:
                self._writer.put(stream, sanitizer.finish(), name)
            lines = self._lines.pop((name, stream), None)
            if lines is not None:
                self._writer.put(stream, lines.finish(), name)

    def _prefixer(self, worker: Worker, stream: Stream) -> LinePrefixer:
        color = self._streams.stdout_color if stream == "stdout" else self._streams.stderr_color
        prefix = prefix_for(worker, color) if self._prefix else b""
        return LinePrefixer(prefix, self._limit, sanitizer_for(stream, self._streams, self._raw))


# `exec -o json`: JSON Lines, one object for each whole line of output, each outcome, and the summary.

#: A multiple of three, so that base64 of the parts is base64 of the whole.
_CHUNK = 3 << 16
T = TypeVar("T", str, bytes)


class JsonSink:
    """Writes to stdout alone. `workers`: how many are selected."""

    def __init__(self, writer: Writer, workers: int) -> None:
        self._writer = writer
        self._limit = line_limit(workers)
        self._lines: dict[tuple[str, Stream], LinePrefixer] = {}
        self._counts = {"ok": 0, "failed": 0, "failed_to_start": 0, "timeout": 0, "lost": 0, "cancelled": 0}

    async def started(self, worker: Worker) -> None:
        """Nothing is printed for it."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        """Waits while the reader is slow. Raises AtlctlError when a long line finds no space on disk."""
        await self._writer.drain()
        lines = self._lines.get((worker.name, stream))
        if lines is None:
            lines = self._lines[worker.name, stream] = LinePrefixer(b"", self._limit)
        self._put(worker.name, stream, lines.feed(data))

    async def finished(self, outcome: Outcome) -> None:
        name = outcome.worker.name
        for stream in _STREAMS:
            lines = self._lines.pop((name, stream), None)
            if lines is not None:
                self._put(name, stream, lines.finish())
        exited = outcome.kind is EndKind.EXITED
        self._counts[("ok" if outcome.ok else "failed") if exited else outcome.kind.value] += 1
        self._put_object(
            {
                "type": "outcome",
                "worker": name,
                "outcome": outcome.kind.value,
                "exit_code": outcome.exit_code,
                "signal": outcome.signal,
                "reason": outcome.reason,
                "guarded": outcome.guarded,
                "may_still_run": outcome.may_still_run,
                "truncated": outcome.truncated,
            }
        )

    def summary(self, exit_code: int) -> None:
        """The last object: a stream without it was cut."""
        total, ok = sum(self._counts.values()), self._counts["ok"]
        status = "success" if ok == total and not exit_code else "partial" if ok else "error"
        self._put_object({"type": "summary", "status": status, "exit_code": exit_code, "counts": self._counts})

    def _put_object(self, value: dict[str, object]) -> None:
        self._writer.put("stdout", dumps(value).encode() + b"\n")

    def _put(self, name: str, stream: Stream, pieces: Sequence[Piece]) -> None:
        """Whole lines as objects. A spill is the start of the first of them."""
        fields = {"type": "output", "worker": name, "stream": stream, "time": rfc3339(time.time(), "microseconds")}
        head = dumps(fields)[:-1]
        data = b"".join(piece for piece in pieces if not isinstance(piece, Spill))
        for spill in pieces:
            if isinstance(spill, Spill):
                end = data.find(b"\n") + 1 or len(data)
                try:
                    spill.append(data[:end])
                    key, value = _long_value(spill)
                finally:
                    spill.close()
                self._writer.put("stdout", [f'{head}, "{key}": "'.encode(), value, b'"}\n'])
                data = data[end:]
        if data:
            self._writer.put("stdout", _objects(head, data).encode())


def _objects(head: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "".join([line_object(head, line) for line in _whole(data.split(b"\n"), b"\n")])
    return output_lines(f'{head}, "data": ', _whole(text.split("\n"), "\n"))


def line_object(head: str, line: bytes) -> str:
    """One line as one object. `head` is the object, open before its last value: `{"type": "output"`."""
    try:
        return output_lines(f'{head}, "data": ', [line.decode()])
    except UnicodeDecodeError:
        return f'{head}, "data_b64": "{base64.b64encode(line).decode()}"}}\n'


def _whole(parts: list[T], newline: T) -> list[T]:
    """Lines that were split at newlines, with their newlines restored."""
    lines: list[T] = [part + newline for part in parts[:-1]]
    if parts[-1]:
        lines.append(parts[-1])
    return lines


def _long_value(line: Spill) -> tuple[str, Spill]:
    """The key and the text of the JSON string for a line that is too long for memory."""
    offsets = range(0, line.size, _CHUNK)
    decoder = codecs.getincrementaldecoder("utf-8")()
    value = Spill()
    try:
        for offset in offsets:
            text = decoder.decode(line.read_at(offset, _CHUNK), final=offset + _CHUNK >= line.size)
            value.append(dumps(text)[1:-1].encode())
    except UnicodeDecodeError:
        value.close()
    else:
        return "data", value
    value = Spill()
    for offset in offsets:
        value.append(base64.b64encode(line.read_at(offset, _CHUNK)))
    return "data_b64", value


# `exec --output-dir`: one file for each worker's stdout, one for its stderr, for their owner alone.

_SUFFIX: dict[Stream, str] = {"stdout": ".out", "stderr": ".err"}
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC


class FolderSink:
    """Writes `NAME.out` for each worker that started, and `NAME.err` if there is any; bytes unchanged.

    The folder is created (0700) if it is missing, its parent must exist; a symbolic link is refused. Files of `workers`
    from an earlier run are removed first. Only the folder's descriptor is kept open, for any number of workers.
    `truncated`: workers whose output is incomplete after a failure to write.

    Raises UsageError or NotAllowed when the folder cannot be used.
    """

    def __init__(self, folder: str, workers: Sequence[Worker]) -> None:
        self.truncated: set[str] = set()
        self._folder = folder
        self._failed = False
        #: Device, inode and owner of every file created, so that no other file is appended to.
        self._made: dict[str, tuple[int, int, int]] = {}
        self._dir = _open_folder(folder)
        try:
            for worker in workers:
                for suffix in _SUFFIX.values():
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(safe_file_name(worker.name) + suffix, dir_fd=self._dir)
        except OSError as error:
            os.close(self._dir)
            raise _refused(folder, error) from error

    async def started(self, worker: Worker) -> None:
        """Makes the file, so that no output and no start differ."""
        self._append(worker.name, "stdout", b"")

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        """Raises AtlctlError once when the disk is full; later output is dropped."""
        self._append(worker.name, stream, data)

    async def finished(self, outcome: Outcome) -> None:
        """Nothing is left to write."""

    def close(self) -> None:
        """Gives back the folder's descriptor. Safe to call twice."""
        if self._dir >= 0:
            os.close(self._dir)
            self._dir = -1

    def _append(self, name: str, stream: Stream, data: bytes) -> None:
        if self._failed:
            if data:
                self.truncated.add(name)
            return
        file = safe_file_name(name) + _SUFFIX[stream]
        try:
            fd = self._open(file)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            self._failed = True
            self.truncated.add(name)
            raise AtlctlError(
                Message("cannot write {path}: {why}", path=os.path.join(self._folder, file), why=error.strerror),
                hint=Message("free some space, or choose another folder with --output-dir"),
            ) from error

    def _open(self, file: str) -> int:
        made = self._made.get(file)
        if made is None:
            fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=self._dir)
            os.fchmod(fd, 0o600)  # A umask may have taken bits that the owner needs.
            self._made[file] = _identity(fd)
            return fd
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | _SAFE, dir_fd=self._dir)
        if _identity(fd) != made:
            os.close(fd)
            raise OSError(errno.ESTALE, Message("it was replaced meanwhile"))
        return fd


def _identity(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_uid


def _open_folder(folder: str) -> int:
    # With a slash at the end the system would follow a link in spite of O_NOFOLLOW.
    path = folder.rstrip("/") or "/"
    try:
        try:
            os.mkdir(path, 0o700)
            made = True
        except FileExistsError:
            made = False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
        if made:
            os.fchmod(fd, 0o700)
    except OSError as error:
        raise _refused(folder, error) from error
    return fd


def _refused(folder: str, error: OSError) -> AtlctlError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotAllowed(Message("cannot write to {folder}: {why}", folder=folder, why=error.strerror))
    if os.path.islink(folder.rstrip("/")):
        return UsageError(
            Message("{folder} is a link", folder=folder), hint=Message("name the folder itself with --output-dir")
        )
    return UsageError(
        Message("cannot use {folder} for output: {why}", folder=folder, why=error.strerror),
        hint=Message("name a folder with --output-dir"),
    )


# The closing summary of `exec`: which workers ended how, by folded range.

#: The most reasons shown for one way to end; a thousand hosts may give a thousand texts.
_REASONS = 8

_ORDER = (EndKind.EXITED, EndKind.FAILED_TO_START, EndKind.TIMEOUT, EndKind.LOST, EndKind.CANCELLED)
_LABELS = {
    EndKind.FAILED_TO_START: Message("failed to start"),
    EndKind.TIMEOUT: Message("timed out"),
    EndKind.LOST: Message("lost"),
    EndKind.CANCELLED: Message("cancelled"),
}
_TONES = {
    EndKind.EXITED: Tone.FAIL,
    EndKind.FAILED_TO_START: Tone.FAIL,
    EndKind.TIMEOUT: Tone.WARN,
    EndKind.LOST: Tone.LOST,
    EndKind.CANCELLED: Tone.WARN,
}


def outcome_label(outcome: Outcome) -> Message:
    """How a command ended, in a few words and without the reason: `ok`, `exit 1`, `killed by SIGKILL`, `lost`."""
    if outcome.kind is not EndKind.EXITED:
        return _LABELS[outcome.kind]
    if outcome.signal is None:
        return Message("ok") if outcome.ok else Message("exit {code}", code=outcome.exit_code)
    try:
        return Message("killed by {signal}", signal=signal.Signals(outcome.signal).name)
    except ValueError:
        return Message("killed by signal {number}", number=outcome.signal)


def folded(names: Iterable[str]) -> str:
    """`worker-[0-2] (3)`, cleaned."""
    kept = list(names)
    return f"{clean(fold_names(kept))} ({len(kept)})"


#: Of a command that exited: processes that it left behind hold its output open, and are not waited for.
LATER = Message("later output not shown")
TRUNCATED = Message("output truncated")


def ended(label: str, tone: Tone, names: Iterable[str], reason: str = "") -> Toned:
    """A line about workers that are alike: `lost: worker-[0-2] (3): no answer`."""
    text = Message("{label}: {workers}: {why}") if reason else Message("{label}: {workers}")
    return Toned(text.filled(label=label, workers=folded(names), why=reason), tone, label)


def by_reason(label: str, tone: Tone, reasons: Iterable[tuple[str, str]]) -> list[Toned]:
    """A line for each reason, the most frequent first. `reasons`: names of workers and why they ended so."""
    by_size = by_frequency(reasons)
    shown = by_size if len(by_size) <= _REASONS else by_size[: _REASONS - 1]
    lines = [ended(label, tone, names, reason) for reason, names in shown]
    rest = [name for _, names in by_size[len(shown) :] for name in names]
    return [*lines, ended(label, tone, rest, Message("other reasons"))] if rest else lines


def outcome_tone(outcome: Outcome) -> Tone:
    return Tone.OK if outcome.ok else _TONES[outcome.kind]


def summary_lines(outcomes: Sequence[Outcome], truncated: Collection[str] = ()) -> list[Toned]:
    """One line for each way to end, then what needs attention. `truncated`: more workers whose output is not whole."""
    groups: dict[tuple[int, int, Message], list[tuple[str, str]]] = {}
    tones: dict[Message, Tone] = {}
    for outcome in outcomes:
        label, code = outcome_label(outcome), outcome.code if outcome.kind is EndKind.EXITED else 0
        groups.setdefault((_ORDER.index(outcome.kind), code, label), []).append((outcome.worker.name, outcome.reason))
        tones[label] = outcome_tone(outcome)
    lines = [line for key, reasons in sorted(groups.items()) for line in by_reason(key[2], tones[key[2]], reasons)]
    behind = {outcome.worker.name for outcome in outcomes if outcome.truncated and outcome.kind is EndKind.EXITED}
    cut = {outcome.worker.name for outcome in outcomes if outcome.truncated} - behind | set(truncated)
    for label, tone, chosen in (
        (Message("not guarded"), Tone.WARN, [o for o in outcomes if o.guarded is False]),
        (Message("may still run"), Tone.WARN, [o for o in outcomes if o.may_still_run]),
        (TRUNCATED, Tone.WARN, [o for o in outcomes if o.worker.name in cut]),
        (LATER, Tone.NOTE, [o for o in outcomes if o.worker.name in behind]),
    ):
        if chosen:
            lines.append(ended(label, tone, (o.worker.name for o in chosen)))
    return lines


# `exec --gather`: equal outputs and outcomes are shown once, under the folded range of the workers that had them.

#: Memory for the output of all workers together, in bytes; beyond it, output goes to one unnamed file.
MEMORY = 32 << 20
_DIFF_BYTES = 256 << 10
_DIFF_LINES = 4000
#: Seconds for all diffs together: difflib takes its time for lines that repeat.
_DIFF_SECONDS = 5.0
_READ = 256 << 10
_NO_NEWLINE = b"\\ No newline at end of file\n"


class _Held:
    """Output of one worker, stdout and stderr in order of arrival: parts on disk, then what is in memory."""

    __slots__ = ("hashes", "memory", "parts", "truncated")

    def __init__(self) -> None:
        self.memory = bytearray()
        self.parts: list[tuple[int, int]] = []
        # One for each stream: how the two were interleaved is chance, and must not split a group.
        self.hashes: dict[Stream, hashlib.blake2b] = {"stdout": hashlib.blake2b(), "stderr": hashlib.blake2b()}
        self.truncated = False

    @property
    def size(self) -> int:
        return len(self.memory) + sum(length for _, length in self.parts)


@dataclass(slots=True)
class _Group:
    """Workers with the same output and outcome. `held` is the output of the first of them to finish."""

    label: Message
    tone: Tone
    reason: str
    held: _Held
    #: Processes that the command left behind held its output open.
    later: bool
    names: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return folded(self.names)


class GatherSink:
    """Holds all output until `report`. Memory is bounded by `memory` bytes; the rest is on disk.

    When the disk is full, output is cut: the groups say so, and so does `truncated`.
    """

    def __init__(self, writer: Writer, streams: Streams, *, raw: bool = False, memory: int = MEMORY) -> None:
        self.truncated: set[str] = set()
        self._writer = writer
        self._streams = streams
        self._raw = raw
        self._limit = memory
        self._in_memory = 0
        self._held: dict[str, _Held] = {}
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._spill: Spill | None = None
        self._full = False

    async def started(self, worker: Worker) -> None:
        """Nothing is shown before the end."""

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        held = self._held.get(worker.name)
        if held is None:
            held = self._held[worker.name] = _Held()
        if self._in_memory + len(data) > self._limit and not self._full:
            self._to_disk()
        # Once something was dropped nothing may follow it: output is cut, never holed.
        if held.truncated or (self._full and self._in_memory + len(data) > self._limit):
            held.truncated = True
            self.truncated.add(worker.name)
            return
        held.hashes[stream].update(data)
        held.memory += data
        self._in_memory += len(data)

    async def finished(self, outcome: Outcome) -> None:
        """Folds at once: of equal outputs one is kept."""
        held = self._held.pop(outcome.worker.name, None) or _Held()
        later = outcome.truncated and outcome.kind is EndKind.EXITED
        held.truncated |= outcome.truncated and not later
        digests = tuple(digest.digest() for digest in held.hashes.values())
        key = (digests, held.truncated, later, outcome.kind, outcome.exit_code, outcome.signal, outcome.reason)
        if key in self._groups:
            self._in_memory -= len(held.memory)
        else:
            self._groups[key] = _Group(outcome_label(outcome), outcome_tone(outcome), outcome.reason, held, later)
        self._groups[key].names.append(outcome.worker.name)

    async def report(self) -> None:
        """Prints the groups, largest first; the others with their diff where more than half of the workers agree."""
        groups = sorted(self._groups.values(), key=_order)
        total = sum(len(group.names) for group in groups)
        majority = groups[0] if groups and 2 * len(groups[0].names) > total else None
        deadline = time.monotonic() + _DIFF_SECONDS
        for group in groups:
            self._head(Message("{workers} {how}", workers=group.text, how=_state(group)), group.tone)
            await self._show(self._content(group.held), group.text)
            if majority is not None and group is not majority:
                await self._compare(majority, group, deadline)

    def close(self) -> None:
        """Gives back memory and disk space. Safe to call twice."""
        self._held.clear()
        self._groups.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def _to_disk(self) -> None:
        """Write everything in memory to disk; the rest stays if the disk is full."""
        try:
            if self._spill is None:
                self._spill = Spill()
            for held in (*self._held.values(), *(group.held for group in self._groups.values())):
                if held.memory:
                    offset = self._spill.size
                    self._spill.append(held.memory)
                    held.parts.append((offset, len(held.memory)))
                    self._in_memory -= len(held.memory)
                    held.memory = bytearray()
        except AtlctlError:
            # Reported as truncated output: commands continue, and the output so far is shown.
            self._full = True

    def _content(self, held: _Held) -> Iterator[bytes]:
        for start, length in held.parts:
            assert self._spill is not None
            for offset in range(start, start + length, _READ):
                yield self._spill.read_at(offset, min(_READ, start + length - offset))
        if held.memory:
            yield bytes(held.memory)

    def _head(self, head: Message, tone: Tone = Tone.STRONG) -> None:
        text = clean(translated(head))
        self._writer.put("stdout", f"{painted(text, tone, self._streams.stdout_color)}\n".encode())

    async def _show(self, chunks: Iterator[bytes], owner: str) -> None:
        sanitizer = sanitizer_for("stdout", self._streams, self._raw)
        for chunk in chunks:
            await self._writer.drain()
            self._writer.put("stdout", chunk if sanitizer is None else sanitizer.feed(chunk), owner)
        if sanitizer is not None:
            self._writer.put("stdout", sanitizer.finish(), owner)

    async def _compare(self, majority: _Group, group: _Group, deadline: float) -> None:
        names = Message("{some} and {others}", some=majority.text, others=group.text)
        old, new = self._lines(majority.held), self._lines(group.held)
        if old is None or new is None:
            self._head(Message("{names}: too large to diff", names=names))
        elif time.monotonic() > deadline:
            self._head(Message("{names}: not compared, too many groups differ", names=names))
        elif old != new:
            files = (majority.text.encode(), group.text.encode())
            diff = difflib.diff_bytes(difflib.unified_diff, old, new, *files)
            self._head(Message("diff of {names}", names=names))
            color = self._streams.stdout_color
            await self._show(iter([b"".join(_marked(_closed(line), color) for line in diff)]), "diff")

    def _lines(self, held: _Held) -> list[bytes] | None:
        """The lines of the output; None if difflib would take too long."""
        if held.size > _DIFF_BYTES:
            return None
        lines = [line + b"\n" for line in b"".join(self._content(held)).split(b"\n")]
        last = lines.pop()
        if last != b"\n":
            lines.append(last[:-1])
        return lines if len(lines) <= _DIFF_LINES else None


def _order(group: _Group) -> tuple[int, tuple[object, ...]]:
    return -len(group.names), min(natural_key(name) for name in group.names)


def _closed(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n" + _NO_NEWLINE


def _marked(line: bytes, color: bool) -> bytes:
    """A line of a diff, removed and added ones in colours."""
    tone = {b"-": Tone.WARN, b"+": Tone.OK, b"@": Tone.NOTE}.get(line[:1]) if color else None
    return line if tone is None else b"\x1b[%sm%s\x1b[0m\n" % (tone.value.encode(), line[:-1])


def _state(group: _Group) -> Message:
    how = Message("{label}, {more}", label=group.label, more=LATER) if group.later else group.label
    if group.reason:
        how = Message("{label}: {why}", label=how, why=group.reason)
    parts = [how, *([TRUNCATED] if group.held.truncated else []), *([] if group.held.size else [Message("no output")])]
    return joined(parts, COMMA)
