"""`exec -o json`: JSON Lines, one object for each whole line of output, each outcome, and the summary."""

from __future__ import annotations

import base64
import codecs
import time
from collections.abc import Sequence
from typing import TypeVar

from atlctl.backends.base import Stream
from atlctl.cli.output.live import line_limit
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.jobs.model import Worker
from atlctl.render.jsonout import dumps, output_lines
from atlctl.render.lines import LinePrefixer, Piece, Spill
from atlctl.render.table import rfc3339
from atlctl.render.writer import Writer

#: A multiple of three, so that base64 of the parts is base64 of the whole.
_CHUNK = 3 << 16
T = TypeVar("T", str, bytes)
_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


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
    """What was split at newlines, each with its newline again."""
    last = parts[-1]
    lines: list[T] = [part + newline for part in parts[:-1]]
    if last:
        lines.append(last)
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
