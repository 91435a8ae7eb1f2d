"""Live output of `exec`: whole lines after `NAME: `, or one worker's bytes as they come."""

from __future__ import annotations

from atlctl.backends.base import Stream
from atlctl.fanout.outcome import Outcome
from atlctl.jobs.model import Worker
from atlctl.render.lines import LinePrefixer, prefix_for
from atlctl.render.sanitize import OutputSanitizer
from atlctl.render.streams import Streams
from atlctl.render.writer import Writer

#: Memory for lines whose end has not come yet, all workers together, in bytes.
_LINE_BUDGET = 48 << 20
_LINE_LEAST = 4 << 10
_LINE_MOST = 1 << 20

_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


def line_limit(workers: int) -> int:
    """Bytes of one unfinished line to keep in memory: each worker has two streams."""
    return max(_LINE_LEAST, min(_LINE_MOST, _LINE_BUDGET // (2 * max(workers, 1))))


def sanitizer_for(stream: Stream, streams: Streams, raw: bool) -> OutputSanitizer | None:
    """What bytes for `stream` must pass: pipes get them as they are, and so does `--raw`."""
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
            lines = self._lines[worker.name, stream] = self._prefixer(worker.name, stream)
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

    def _prefixer(self, name: str, stream: Stream) -> LinePrefixer:
        color = self._streams.stdout_color if stream == "stdout" else self._streams.stderr_color
        prefix = prefix_for(name, color) if self._prefix else b""
        return LinePrefixer(prefix, self._limit, sanitizer_for(stream, self._streams, self._raw))
