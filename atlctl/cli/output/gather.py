"""`exec --gather`: equal outputs and outcomes are shown once, under the folded range of the workers that had them."""

from __future__ import annotations

import difflib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from atlctl.backends.base import Stream
from atlctl.cli.output.live import sanitizer_for
from atlctl.cli.output.summary import LATER, TRUNCATED, folded, outcome_label
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.i18n import COMMA, Message, joined, translated
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Worker
from atlctl.jobs.naming import natural_key
from atlctl.render.lines import Spill
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams
from atlctl.render.writer import Writer

#: Memory for the output of all workers together, in bytes; beyond it, output goes to one unnamed file.
MEMORY = 64 << 20
_DIFF_BYTES = 256 << 10
_DIFF_LINES = 4000
#: Seconds for all diffs together: difflib takes its time for lines that repeat.
_DIFF_SECONDS = 5.0
_CHUNK = 256 << 10
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
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(outcome_label(outcome), outcome.reason, held, later)
        else:
            self._in_memory -= len(held.memory)
        group.names.append(outcome.worker.name)

    async def report(self) -> None:
        """Prints the groups, largest first; the others with their diff where more than half of the workers agree."""
        groups = sorted(self._groups.values(), key=_order)
        total = sum(len(group.names) for group in groups)
        majority = groups[0] if groups and 2 * len(groups[0].names) > total else None
        deadline = time.monotonic() + _DIFF_SECONDS
        for group in groups:
            self._head(Message("{workers} {how}", workers=group.text, how=_state(group)))
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
        """Everything that is in memory; what does not fit stays there."""
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
            # Told to the user as output that is truncated: commands go on, and what came so far is shown.
            self._full = True

    def _content(self, held: _Held) -> Iterator[bytes]:
        for start, length in held.parts:
            assert self._spill is not None
            for offset in range(start, start + length, _CHUNK):
                yield self._spill.read_at(offset, min(_CHUNK, start + length - offset))
        if held.memory:
            yield bytes(held.memory)

    def _head(self, head: Message) -> None:
        text = clean(translated(head))
        line = f"\x1b[1m{text}\x1b[0m\n" if self._streams.stdout_color else f"{text}\n"
        self._writer.put("stdout", line.encode())

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
            await self._show(iter([b"".join(_closed(line) for line in diff)]), "diff")

    def _lines(self, held: _Held) -> list[bytes] | None:
        """None where difflib would take too long."""
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


def _state(group: _Group) -> Message:
    how = Message("{label}, {more}", label=group.label, more=LATER) if group.later else group.label
    if group.reason:
        how = Message("{label}: {why}", label=how, why=group.reason)
    parts = [how, *([TRUNCATED] if group.held.truncated else []), *([] if group.held.size else [Message("no output")])]
    return joined(parts, COMMA)
