"""A tar stream, taken apart as it comes: ustar, GNU's long names, pax. Hostile input is the rule.

A reader that is fed, instead of the standard library's, which pulls: chunks come from an event loop. It knows no
files; names are bytes as they came, and whoever takes the entries decides what may be made of them.
Formats: POSIX.1-2008 `pax`, and the GNU tar manual's "Basic Tar Format".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

BLOCK = 512
#: Bytes of one extension header (a long name, pax records): far beyond any path.
MAX_EXTENSION = 1 << 20
#: Headers of one stream, of every kind: an endless stream of empty entries has an end.
MAX_HEADERS = 10_000_000
#: Zero bytes behind the end mark: tar fills its last record, of 10 KiB by default.
MAX_PADDING = 4 << 20
#: Times are kept within what file systems take: seconds since the epoch.
_LATEST = 1 << 33

Kind = Literal["file", "folder", "symlink", "hardlink", "device", "fifo", "sparse", "other"]

_KINDS: dict[bytes, Kind] = {
    b"0": "file", b"\0": "file", b"7": "file", b"1": "hardlink", b"2": "symlink", b"3": "device", b"4": "device",
    b"5": "folder", b"6": "fifo",
}  # fmt: skip
#: Kinds whose size says nothing about bytes behind the header.
_EMPTY = frozenset(("hardlink", "symlink", "device", "fifo", "folder"))


class BadStreamError(Exception):
    """The bytes are no whole tar stream. Its text is for people and holds nothing from the stream."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One member. `size` in bytes; `mode` holds permission bits only; `mtime` in seconds since the epoch."""

    name: bytes
    kind: Kind
    size: int
    mode: int
    mtime: float


class Taker(Protocol):
    """Gets the entries of a stream in order: `begin`, for files `data` as often as there is some, and `end`."""

    def begin(self, entry: Entry) -> None: ...

    def data(self, piece: memoryview) -> None: ...

    def end(self) -> None: ...


class TarReader:
    """Feeds `taker` with what `feed` is given. `ended`: the end mark was seen."""

    def __init__(self, taker: Taker) -> None:
        self.ended = False
        self._taker = taker
        self._block = bytearray()
        #: Bytes of the member that are still to come, and of the filling behind them.
        self._left = self._filling = 0
        self._in_file = False
        #: An extension header that is being read: its type and its bytes.
        self._extension: tuple[bytes, bytearray] | None = None
        self._long_name: bytes | None = None
        self._records: dict[bytes, bytes] = {}
        self._headers = self._zeros = self._padding = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Raises BadStreamError, and what the taker raises."""
        view = memoryview(data)
        while view:
            if self.ended:
                self._padding += len(view)
                if self._padding > MAX_PADDING:
                    raise BadStreamError("the tar stream goes on behind its end")
                return
            if self._left:
                view = self._body(view)
            elif self._filling:
                cut = min(self._filling, len(view))
                self._filling -= cut
                view = view[cut:]
            else:
                cut = BLOCK - len(self._block)
                self._block += view[:cut]
                view = view[cut:]
                if len(self._block) == BLOCK:
                    block = bytes(self._block)
                    self._block.clear()
                    self._header(block)

    def _body(self, view: memoryview) -> memoryview:
        piece, rest = view[: self._left], view[self._left :]
        self._left -= len(piece)
        if self._extension is not None:
            self._extension[1].extend(piece)
        elif self._in_file:
            self._taker.data(piece)
        if not self._left:
            self._close()
        return rest

    def _close(self) -> None:
        """A member has all its bytes."""
        if self._extension is not None:
            kind, body = self._extension
            self._extension = None
            self._extend(kind, bytes(body))
        elif self._in_file:
            self._in_file = False
            self._taker.end()

    def _header(self, block: bytes) -> None:
        if not any(block):
            self._zeros += 1
            self.ended = self._zeros == 2
            return
        self._headers += 1
        if self._zeros or self._headers > MAX_HEADERS:
            raise BadStreamError("the tar stream is damaged" if self._zeros else "the tar stream has too many members")
        if not _sum_is_right(block):
            raise BadStreamError("the tar stream is damaged: a header's checksum is wrong")
        flag = block[156:157]
        size = _number(block[124:136])
        if flag in (b"x", b"X", b"g", b"L", b"K"):
            if size > MAX_EXTENSION:
                raise BadStreamError("the tar stream has a header that is too long")
            self._extension = (flag, bytearray())
        else:
            size = self._member(block, flag, size)
        self._left, self._filling = size, -size % BLOCK
        if not size:
            self._close()

    def _member(self, block: bytes, flag: bytes, size: int) -> int:
        """Hand on the header of a member; gives how many bytes belong to it."""
        records, self._records = self._records, {}
        long_name, self._long_name = self._long_name, None
        name = records.get(b"path", long_name if long_name is not None else _name(block))
        kind = _KINDS.get(flag, "other")
        if flag == b"\0" and name.endswith(b"/"):
            kind = "folder"
        if b"size" in records:
            size = _decimal(records[b"size"])
        if flag == b"S" or any(key.startswith(b"GNU.sparse.") for key in records):
            kind = "sparse"
        if flag == b"S" and block[482]:
            raise BadStreamError("the tar stream holds a sparse file of a form that is not read")
        if kind in _EMPTY:
            size = 0
        mtime = _moment(records[b"mtime"]) if b"mtime" in records else _number(block[136:148], negative=True)
        mtime = max(-_LATEST, min(mtime, _LATEST))
        self._taker.begin(Entry(name, kind, size, _number(block[100:108]) & 0o7777, mtime))
        self._in_file = kind == "file"
        return size

    def _extend(self, kind: bytes, body: bytes) -> None:
        if kind == b"L":
            self._long_name = body.split(b"\0", 1)[0]
        elif kind in (b"x", b"X"):
            self._records = _pax(body)
        # K is the target of a link, which is never made; g holds for all members, and nothing of it is needed.


def _sum_is_right(block: bytes) -> bool:
    return _number(block[148:156]) == sum(block) - sum(block[148:156]) + 8 * 0x20


def _name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].split(b"\0", 1)[0]
        if prefix:
            return prefix + b"/" + name
    return name


def _number(field: bytes, negative: bool = False) -> int:
    """A number of a header: octal digits, or base 256 where the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=False) - (0x80 << 8 * (len(field) - 1))
        if field[0] & 0x40:
            if not negative:
                raise BadStreamError("the tar stream is damaged: a number is negative")
            return value - (0x80 << 8 * (len(field) - 1))
        return value
    digits = field.strip(b" \0").split(b"\0", 1)[0]
    if not digits:
        return 0
    if digits.translate(None, b"01234567"):
        raise BadStreamError("the tar stream is damaged: a number is none")
    return int(digits, 8)


def _decimal(text: bytes) -> int:
    if not (0 < len(text) <= 19 and text.isdigit()):
        raise BadStreamError("the tar stream is damaged: a number is none")
    return int(text)


def _moment(text: bytes) -> float:
    try:
        value = float(text) if len(text) <= 64 else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadStreamError("the tar stream is damaged: a time is none")
    return value


def _pax(body: bytes) -> dict[bytes, bytes]:
    """The records of a pax header: `LENGTH KEY=VALUE` and a newline, LENGTH counting all of it."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 8)
        if space < 0 or not body[at:space].isdigit():
            raise BadStreamError("the tar stream is damaged: a record has no length")
        end = at + int(body[at:space])
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(body) or body[end - 1 : end] != b"\n" or not equals:
            raise BadStreamError("the tar stream is damaged: a record is cut")
        records[key] = value
        at = end
    return records
