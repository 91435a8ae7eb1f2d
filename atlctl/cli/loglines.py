"""Lines of many logs on stdout: after `NAME: `, or as JSON Lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from atlctl.backends.base import LogLine, LogRequest, LogSource, Stream
from atlctl.cli.sinks import line_object, sanitizer_for
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import fold_numbers
from atlctl.render.jsonout import dumps
from atlctl.render.lines import prefix_for
from atlctl.render.streams import Streams
from atlctl.render.table import rfc3339
from atlctl.render.writer import Writer

Chunk = Sequence[tuple[Worker, LogLine]]
_SECOND = 1_000_000_000


def lines_of(source: LogSource, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
    """As `LogSource.lines`. A container's log has its attempts by `atlctl rerun` one after the other."""
    if job.backend != "kubernetes" or request.attempt is None or request.previous:
        return source.lines(job, worker, request)
    whole = source.lines(job, worker, replace(request, attempt=None, tail=None))
    return _of_attempt(whole, job, request.attempt, request.tail)


def no_attempt(job: Job, number: int, last: int) -> NothingMatched:
    """The error for an attempt after the last one."""
    text = Message("job {job} has no attempt {number}; its attempts: {numbers}")
    return NothingMatched(text.filled(job=job.name, number=number, numbers=fold_numbers(range(1, last + 1))))


async def _of_attempt(
    whole: AsyncIterator[Sequence[LogLine]], job: Job, number: int, tail: int | None
) -> AsyncIterator[Sequence[LogLine]]:
    from atlctl.diagnosis.logline import ATTEMPT, ATTEMPT_LITERAL, clean_line  # no other log needs its patterns

    now, last = 1, deque[LogLine](maxlen=tail)
    async for batch in whole:
        found = []
        for line in batch:
            if line.data.startswith(ATTEMPT_LITERAL) and (match := ATTEMPT.match(clean_line(line.data))):
                now = int(match[1])
            if now == number:
                found.append(line)
        if tail is None:
            yield found
        else:
            last.extend(found)
    if tail is not None:
        yield list(last)
    if number > now:
        raise no_attempt(job, number, now)


class TextLines:
    """Payloads byte-exact on pipes, sanitised on a terminal unless `raw`.

    `prefix` False omits the worker's name. `apart`: a worker's stderr goes to stderr; without it the whole log goes to
    stdout. `pattern`: only lines it matches.
    """

    def __init__(
        self,
        writer: Writer,
        streams: Streams,
        *,
        prefix: bool,
        raw: bool = False,
        apart: bool = False,
        pattern: re.Pattern[bytes] | None = None,
    ) -> None:
        self._writer = writer
        self._colors: dict[Stream, bool] = {"stdout": streams.stdout_color, "stderr": streams.stderr_color}
        self._sanitizers = {stream: sanitizer_for(stream, streams, raw) for stream in self._colors}
        self._with_prefix = prefix
        self._apart = apart
        self._pattern = pattern
        self._prefixes: dict[tuple[str, Stream], bytes] = {}

    def put(self, chunk: Chunk) -> None:
        """Hands runs of lines to the writer at once. After a line without its end, another worker begins a new one."""
        pattern = self._pattern
        pending: list[bytes] = []
        target: Stream = "stdout"
        for worker, line in chunk:
            if pattern is not None and not pattern.search(line.data):
                continue
            stream: Stream = line.stream if self._apart else "stdout"
            if pending and stream != target:
                self._writer.put(target, b"".join(pending))
                pending = []
            target = stream
            sanitizer = self._sanitizers[stream]
            data = line.data + b"\n" if line.complete else line.data
            if sanitizer is not None:
                data = sanitizer.feed(data) + sanitizer.finish()
            pending += (self._prefix(worker, stream), data)
            if not line.complete:
                self._writer.put(stream, b"".join(pending), worker.name)
                pending = []
        if pending:
            self._writer.put(target, b"".join(pending))

    def _prefix(self, worker: Worker, stream: Stream) -> bytes:
        if not self._with_prefix:
            return b""
        key = (worker.name, stream)
        if key not in self._prefixes:
            self._prefixes[key] = prefix_for(worker, self._colors[stream])
        return self._prefixes[key]

    def ended(self, worker: Worker, problem: AtlctlError | None) -> None:
        """Nothing is shown for it."""

    def summary(self, read: int, lost: int, exit_code: int) -> None:
        """Nothing is shown for it."""


class JsonLines:
    """One object for each line, one for each log that ended or could not be read, and the summary."""

    def __init__(self, writer: Writer, pattern: re.Pattern[bytes] | None = None) -> None:
        self._writer = writer
        self._pattern = pattern
        self._heads: dict[tuple[str, Stream], str] = {}
        self._second = -1
        self._stamp = ""

    def put(self, chunk: Chunk) -> None:
        pattern = self._pattern
        texts: list[str] = []
        for worker, line in chunk:
            if pattern is None or pattern.search(line.data):
                head = f'{self._head(worker.name, line.stream)}, "time": {self._time(line.time)}'
                texts.append(line_object(head, line.data + b"\n" if line.complete else line.data))
        self._writer.put("stdout", "".join(texts).encode())

    def _head(self, name: str, stream: Stream) -> str:
        key = (name, stream)
        if key not in self._heads:
            self._heads[key] = dumps({"type": "output", "worker": name, "stream": stream})[:-1]
        return self._heads[key]

    def _time(self, nanoseconds: int | None) -> str:
        if nanoseconds is None:
            return "null"
        second, rest = divmod(nanoseconds, _SECOND)
        if second != self._second:
            self._second, self._stamp = second, rfc3339(second).removesuffix("Z")
        return f'"{self._stamp}.{rest // 1000:06d}Z"'

    def ended(self, worker: Worker, problem: AtlctlError | None) -> None:
        """`exited`: its log was read to the end. `lost`: it was not. Exit code and signal are those of the worker."""
        read = "exited" if problem is None else "lost"
        how = {"outcome": read, "exit_code": worker.exit_code, "signal": worker.signal}
        reason = "" if problem is None else problem.message
        self._put_object({"type": "outcome", "worker": worker.name, **how, "reason": reason})

    def summary(self, read: int, lost: int, exit_code: int) -> None:
        """The last object: a stream without it was cut."""
        status = "success" if not lost else "partial" if read else "error"
        counts = {"exited": read, "lost": lost}
        self._put_object({"type": "summary", "status": status, "exit_code": exit_code, "counts": counts})

    def _put_object(self, value: dict[str, object]) -> None:
        self._writer.put("stdout", dumps(value).encode() + b"\n")
