"""Hands one saved log to the readers of the workers whose lines it holds.

A log of one worker goes through the scanner, which leaves out lines that say nothing. Lines with prefixes, JSON
lines and the kubelet's own format are looked at one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from atlctl.diagnosis.reading.reader import LogReader
from atlctl.diagnosis.scanning.scanner import Scanner
from atlctl.recording.jsonlines import newest_first, unwrap
from atlctl.recording.lines import LineReader, Uncri, unstamped
from atlctl.recording.overwritten import Overwritten
from atlctl.recording.prefixes import Prefix, find_prefix, kubectl_pod

Told = Literal["file", "prefix", "json", "host"]

#: Bytes at both ends of a log in which every line is looked at: when it began and how it goes on.
_EDGE = 8 * 1024
#: Bytes of one worker's log that show its form.
_FORM = 32 * 1024
#: RFC 3339, as a JSON line's stamp has to be to serve as one.
_RFC3339 = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")


class Readers(Protocol):
    """Where the lines go."""

    def reader(self, name: str, how: Told | None) -> LogReader:
        """The reader of a worker: of a file of its own, or (`how`) told from its lines."""

    def mixed(self, name: str) -> None:
        """The log of `name` holds other workers' lines as well."""


@dataclass(slots=True)
class Alone:
    """Gives all lines of a log to one reader."""

    own: LogReader

    def reader(self, name: str, how: Told | None) -> LogReader:  # noqa: ARG002
        return self.own

    def mixed(self, name: str) -> None:
        """Nothing to note: no worker is told from these lines."""


class Feed:
    """One log. `number` is that of its last line so far, counted over all logs; `holes` are runs of NUL bytes."""

    def __init__(
        self, readers: Readers, name: str, number: int, literals: frozenset[bytes], start: bytes, *, alone: bool
    ) -> None:
        """`start` is the log's beginning, from which its form is told. `alone`: every line is of the worker `name`."""
        self.number = number
        self.backwards = False
        self._holes = 0
        self._first = number
        self._readers = readers
        self._name = name
        self._alone = alone
        self._own = readers.reader(name, None)
        self._uncri = Uncri()
        self._overwritten = Overwritten(alone=alone)
        self._lines = LineReader()
        self._prefix: Prefix | None = None
        self._scanner = Scanner(literals, self._take, head=_EDGE, tail=_EDGE) if self._plain(start) else None

    @property
    def holes(self) -> int:
        return self._lines.holes + self._holes

    def overwritten(self) -> str | None:
        """What tells that several processes wrote over each other in this log; goes behind the file's name."""
        return self._overwritten.verdict(self.holes)

    def _plain(self, start: bytes) -> bool:
        """Whether all lines are one worker's and stand as it printed them, but for a stamp."""
        # Whose lines they are shows late in a merged log; the form of one worker's shows at once.
        sample = start[: _FORM if self._alone else None].split(b"\n")
        bare = [text for line in sample if (text := unstamped(line)) is not None]
        wrapped = [found for line in bare if line.startswith(b'{"') and (found := unwrap(line))]
        self.backwards = newest_first([found.time for found in wrapped])
        if not self._alone:
            self._prefix = find_prefix(bare)
            if self._prefix or any(line[:5] == b"[pod/" for line in bare):
                return False
        return not wrapped and b"\0" not in start and not any(Uncri.made(line) for line in sample[:200])

    def feed(self, data: bytes) -> None:
        """The next bytes of the log."""
        if self._scanner is not None:
            self._holes += data.count(b"\n\0") if b"\0" in data else 0
            self._scanner.feed(data)
        else:
            self._each(self._lines.feed(data))

    def finish(self) -> None:
        """The log has ended."""
        if self._scanner is not None:
            self.number = self._first + self._scanner.finish()
            return
        self._each(self._lines.finish())
        if rest := self._uncri.finish():
            self._line(rest)

    def _take(self, number: int, line: bytes) -> bool:
        self._overwritten.feed_line(unstamped(line))
        return self._own.feed(self._first + number, line)

    def _each(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.number += 1
            if (text := self._uncri(line)) is not None:
                self._line(text)

    def _line(self, line: bytes) -> None:
        bare = unstamped(line)
        self._overwritten.feed_line(bare)
        stamp = line[: len(line) - len(bare)]
        if bare[:2] == b'{"' and (found := unwrap(bare)):
            pod = None if self._alone else found.pod
            reader = self._own if pod is None else self._other(pod, "json")
            at = f"{found.time} ".encode() if _RFC3339.fullmatch(found.time) else stamp
            for part in found.text:
                reader.feed(self.number, at + part)
            return
        told = None
        if not self._alone:
            told = kubectl_pod(bare) if bare[:5] == b"[pod/" else self._prefix.split(bare) if self._prefix else None
        if told is None:
            self._own.feed(self.number, line)
        else:
            # A stamp may stand behind the prefix as well: then it is the worker's.
            text = told[1] if unstamped(told[1]) != told[1] else stamp + told[1]
            self._other(told[0], "prefix").feed(self.number, text)

    def _other(self, worker: str, how: Told) -> LogReader:
        self._readers.mixed(self._name)
        return self._readers.reader(worker, how)


def pump(read: Callable[[int], bytes], feed: Feed, start: bytes, chunk: int) -> None:
    """Reads to the end. `read` gives b"" there."""
    data = start
    while data:
        feed.feed(data)
        data = read(chunk)
    feed.finish()
