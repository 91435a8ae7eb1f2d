"""A worker's log as it stands in its files: from a tail or a time on, over rotations, followed until it has ended.

Between the lines stand marks, `@ INODE OFFSET`: a reader that has lost its connection goes on from the last of them.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from contextlib import closing
from typing import Any

from . import folders
from .logfiles import Reader
from .telling import say, write

POLL_SECONDS = 0.1
#: How often it is asked whether the worker has ended.
ENDED_SECONDS = 0.2
#: Nanoseconds that a clock may have been wrong when a file was rotated.
SLACK = 3600 * 10**9
STAMP = len("2026-11-20T17:45:05.757882235Z")


def log(wanted: dict[str, Any]) -> None:
    """One line of JSON, then the lines of the files. Raises Refused, or OSError where nobody reads."""
    folder = wanted["folder"]
    record = folders.record(folder, wanted["uid"])
    own = f"{folder}/workers/{wanted['worker']}"
    folders.presence(record)
    with closing(Reader(f"{own}/log")) as reader:
        mark = wanted["mark"]
        say({"event": "log", "resumed": mark is not None and reader.go_on(*mark)})
        ended = _Ended(record, own) if wanted["follow"] else None
        try:
            if mark is None:
                _begin(reader, wanted, whole=ended is None)
            if wanted["tail"] is None or ended is not None:
                _copy(reader, ended)
        except BrokenPipeError:
            raise
        except OSError as error:
            # Standard output is the log's by now.
            sys.stderr.write(f"{error.filename or own}: {error.strerror}\n")
            raise SystemExit(1) from None


def _begin(reader: Reader, wanted: dict[str, Any], *, whole: bool) -> None:
    """Write what lies before that from which on all is wanted. `whole`: a line that is begun counts as one."""
    tail, since = wanted["tail"], wanted["since"].encode()
    if tail is not None:
        lines = _last(reader, tail, since, wanted["pieces"], wanted["longest"], whole=whole)
        write(b"".join(lines) + _mark(reader))
    elif since:
        reader.skip_older(wanted["moment"] - SLACK)
        _skip(reader, since)


def _mark(reader: Reader) -> bytes:
    return b"@ %d %d\n" % reader.position()


class _Ended:
    """Whether a worker may still write to its log."""

    def __init__(self, record: dict[str, Any], own: str) -> None:
        self._record, self._own = record, own
        self._asked = 0.0
        self._is = False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._is and now - self._asked >= ENDED_SECONDS:
            self._asked = now
            self._is = os.path.exists(f"{self._own}/exit.json") or folders.presence(self._record)[0] != "alive"
            self._is = self._is or not os.path.isdir(self._own)
        return self._is


def _copy(reader: Reader, ended: _Ended | None) -> None:
    while True:
        done = ended is None or ended()
        found = False
        for block in reader.blocks():
            found = True
            write(block + _mark(reader))
        if done:
            return
        if not found:
            time.sleep(POLL_SECONDS)


def _lines(block: bytes) -> list[bytes]:
    return [line + b"\n" for line in block[:-1].split(b"\n")]


class _Grouped:
    """Lines of the files by the lines of the log that they are pieces of."""

    def __init__(self, keep: int | None, since: bytes, longest: int) -> None:
        self.whole: deque[list[bytes]] = deque(maxlen=keep)
        self.begun: dict[bytes, list[bytes]] = {}
        self._sizes: dict[bytes, int] = {}
        self._since, self._longest = since, longest

    def take(self, line: bytes) -> None:
        """`line` with its newline."""
        stamp, stream, tag, text = (line.split(b" ", 3) + [b""] * 3)[:4]
        if len(stamp) != STAMP or tag not in (b"F", b"P"):
            self.whole.append([line])  # torn by a full disk
            return
        self.begun.setdefault(stream, []).append(line)
        self._sizes[stream] = self._sizes.get(stream, 0) + len(text) - 1
        if tag == b"F" or self._sizes[stream] >= self._longest:
            self.end(stream)

    def end(self, stream: bytes) -> None:
        pieces = self.begun.pop(stream)
        self._sizes[stream] = 0
        if pieces[0][:STAMP] >= self._since:
            self.whole.append(pieces)


def _last(reader: Reader, count: int, since: bytes, more: int, longest: int, *, whole: bool) -> list[bytes]:
    """The last `count` lines; the reader goes on behind them. `whole`: what is begun counts as a line."""
    reach = count + more  # the first line found may lack its beginning, and must not be among the last
    while True:
        lines = _Grouped(count, since, longest)
        from_start = reader.skip_to_last(reach)
        for block in reader.blocks():
            for line in _lines(block):
                lines.take(line)
        if from_start or len(lines.whole) == count:
            break
        reader.close()
        reach *= 8
    if whole:
        for stream in sorted(lines.begun, reverse=True):
            lines.end(stream)
    found = [line for pieces in lines.whole for line in pieces]
    found += [line for pieces in lines.begun.values() for line in pieces]
    return found


def _skip(reader: Reader, since: bytes) -> None:
    """Write from the first line on that is not older; with the beginning of what it may be a piece of."""
    begun: dict[bytes, list[bytes]] = {}
    for block in reader.blocks():
        lines = _lines(block)
        for at, line in enumerate(lines):
            stamp, stream, tag = (line.split(b" ", 3) + [b""] * 3)[:3]
            if len(stamp) == STAMP and stamp >= since:
                first = [piece for pieces in begun.values() for piece in pieces]
                write(b"".join([*first, *lines[at:], _mark(reader)]))
                return
            if tag == b"P":
                begun.setdefault(stream, []).append(line)
            elif tag == b"F":
                begun.pop(stream, None)
