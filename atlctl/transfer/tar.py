"""tar streams: an incremental reader, and a writer for a local file or folder.

The reader parses ustar, GNU long names and pax in chunks from an event loop; the standard library's needs a blocking
file. Input is untrusted. It opens no files; names are bytes as received, and the caller decides what to do with them.
Formats: POSIX.1-2008 `pax`, and the GNU tar manual's "Basic Tar Format".

A written stream holds `data`, the requested content, then the empty file `end`, which marks the stream as complete.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError

BLOCK = 512
#: Most bytes of an extension header (a long name, pax records): far more than any path needs.
MAX_EXTENSION = 1 << 20
#: Most headers of a stream, so that an endless stream of empty entries ends.
MAX_HEADERS = 10_000_000
#: Most zero bytes after the end mark: tar pads its last record, of 10 KiB by default.
MAX_PADDING = 4 << 20
#: The latest time that is kept, in seconds since the epoch; file systems reject larger ones.
_LATEST = 1 << 33

Kind = Literal["file", "folder", "symlink", "hardlink", "device", "fifo", "sparse", "other"]

_KINDS: dict[bytes, Kind] = {
    b"0": "file", b"\0": "file", b"7": "file", b"1": "hardlink", b"2": "symlink", b"3": "device", b"4": "device",
    b"5": "folder", b"6": "fifo",
}  # fmt: skip
#: Kinds without data after the header, whatever its size field says.
_EMPTY = frozenset(("hardlink", "symlink", "device", "fifo", "folder"))
#: Names that are kept of each kind; the others are counted.
NAMED = 8
PIECE = 1 << 20
_RECORD = 10240
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class BadStreamError(Exception):
    """The bytes are not a complete tar stream. The text is for users and holds nothing from the stream."""


_NO_NUMBER = Message("the tar stream is damaged: a field is not a number")


@dataclass(frozen=True, slots=True)
class TarEntry:
    """An entry. `size` in bytes; `mode` holds permission bits only; `mtime` in seconds since the epoch."""

    name: bytes
    kind: Kind
    size: int
    mode: int
    mtime: float


class Taker(Protocol):
    """Receives the entries of a stream in order: `begin`, for files `data` for each chunk, then `end`."""

    def begin(self, entry: TarEntry) -> None: ...

    def data(self, piece: memoryview) -> None: ...

    def end(self) -> None: ...


class TarReader:
    """Incremental tar reader: `feed` calls `taker`. `ended`: the end mark was seen."""

    def __init__(self, taker: Taker) -> None:
        self.ended = False
        self._taker = taker
        self._block = bytearray()
        #: Bytes of the member still expected, and of the padding after them.
        self._left = self._filling = 0
        self._in_file = False
        #: The extension header that is being read: its type and bytes.
        self._extension: tuple[bytes, bytearray] | None = None
        self._long_name: bytes | None = None
        self._records: dict[bytes, bytes] = {}
        self._headers = self._zeros = self._padding = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Parse a chunk. Raises BadStreamError, and the errors of the taker."""
        view = memoryview(data)
        while view:
            if self.ended:
                self._padding += len(view)
                if self._padding > MAX_PADDING:
                    raise BadStreamError(Message("the tar stream continues after its end"))
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
        """Handle the end of a member."""
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
            raise BadStreamError(
                Message("the tar stream is damaged") if self._zeros else Message("the tar stream has too many members")
            )
        if not _sum_is_right(block):
            raise BadStreamError(Message("the tar stream is damaged: a header's checksum is wrong"))
        flag = block[156:157]
        size = _number(block[124:136])
        if flag in (b"x", b"X", b"g", b"L", b"K"):
            if size > MAX_EXTENSION:
                raise BadStreamError(Message("the tar stream has a header that is too long"))
            self._extension = (flag, bytearray())
        else:
            size = self._member(block, flag, size)
        self._left, self._filling = size, -size % BLOCK
        if not size:
            self._close()

    def _member(self, block: bytes, flag: bytes, size: int) -> int:
        """Pass on the header of a member; returns the size of its data."""
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
            raise BadStreamError(Message("the tar stream has a sparse file in an unsupported format"))
        if kind in _EMPTY:
            size = 0
        mtime = _moment(records[b"mtime"]) if b"mtime" in records else _number(block[136:148], negative=True)
        mtime = max(-_LATEST, min(mtime, _LATEST))
        self._taker.begin(TarEntry(name, kind, size, _number(block[100:108]) & 0o7777, mtime))
        self._in_file = kind == "file"
        return size

    def _extend(self, kind: bytes, body: bytes) -> None:
        if kind == b"L":
            self._long_name = body.split(b"\0", 1)[0]
        elif kind in (b"x", b"X"):
            self._records = _pax(body)
        # K is the target of a link, which is never created; g is global to all members, and nothing in it is needed.


def _sum_is_right(block: bytes) -> bool:
    return _number(block[148:156]) == sum(block) - sum(block[148:156]) + 8 * 0x20


def _name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _number(field: bytes, negative: bool = False) -> int:
    """Parse a number of a header: octal digits, or base 256 if the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=False) - (0x80 << 8 * (len(field) - 1))
        if field[0] & 0x40:
            if not negative:
                raise BadStreamError(Message("the tar stream is damaged: a number is negative"))
            return value - (0x80 << 8 * (len(field) - 1))
        return value
    digits = field.strip(b" \0").split(b"\0", 1)[0]
    if not digits:
        return 0
    if digits.translate(None, b"01234567"):
        raise BadStreamError(_NO_NUMBER)
    return int(digits, 8)


def _decimal(text: bytes) -> int:
    if not (0 < len(text) <= 19 and text.isdigit()):
        raise BadStreamError(_NO_NUMBER)
    return int(text)


def _moment(text: bytes) -> float:
    try:
        value = float(text) if len(text) <= 64 else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadStreamError(Message("the tar stream is damaged: a time is not a number"))
    return value


def _pax(body: bytes) -> dict[bytes, bytes]:
    """Parse the records of a pax header: `LENGTH KEY=VALUE` and a newline; LENGTH counts the whole record."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 8)
        if space < 0 or not body[at:space].isdigit():
            raise BadStreamError(Message("the tar stream is damaged: a record has no length"))
        end = at + int(body[at:space])
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(body) or body[end - 1 : end] != b"\n" or not equals:
            raise BadStreamError(Message("the tar stream is damaged: a record is cut"))
        records[key] = value
        at = end
    return records


@dataclass(slots=True)
class CountedNames:
    """Names of one kind: the first few, and a count of all."""

    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, name: str) -> None:
        if len(self.first) < NAMED:
            self.first.append(name)
        self.count += 1


class SourceError(AtlctlError):
    """The source changed during the copy, or reading failed."""


@dataclass(slots=True)
class LocalSource:
    """A local file or folder to send. `skipped`: links and special files below a folder, which are not sent.

    `name` is empty if the path has none (`/`, `.`); then the folder's contents are sent.
    """

    path: str
    kind: str = "file"
    name: str = ""
    size: int = 0
    mode: int = 0
    files: int = 0
    bytes: int = 0
    skipped: CountedNames = field(default_factory=CountedNames)


def survey(path: str) -> LocalSource:
    """Inspect `path` before it is sent. If `path` itself is a link it is followed, others never.

    Raises UsageError if it does not exist, NotAllowed for the first file that cannot be read.
    """
    try:
        found = os.stat(path)
        source = LocalSource(path, name=own_name(path), mode=stat.S_IMODE(found.st_mode))
        if stat.S_ISDIR(found.st_mode):
            source.kind = "folder"
            folder = os.open(path, _OPEN | os.O_DIRECTORY)
            for _ in _members(folder, b"", source):
                pass
            return source
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(Message("{path} is neither a file nor a folder", path=path))
        os.close(os.open(path, _OPEN))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            Message("{path}: no such file or folder", path=path), Message("a path on a worker is written WORKER:PATH")
        ) from error
    except OSError as error:
        raise _refusal(error, path) from error
    source.files, source.bytes, source.size = 1, found.st_size, found.st_size
    return source


def archive(source: LocalSource) -> Iterator[bytes]:
    """The source as a tar stream. Raises SourceError; the stream then has no `end`."""
    try:
        yield from _gathered(_archive(source))
    except OSError as error:
        raise _gone(source, error) from error


def plain(source: LocalSource) -> Iterator[bytes]:
    """The bytes of one file. Raises SourceError."""
    try:
        file = os.open(source.path, _OPEN)
        try:
            yield from _bytes(file, source.size, source.path)
        finally:
            os.close(file)
    except OSError as error:
        raise _gone(source, error) from error


def _archive(source: LocalSource) -> Iterator[bytes]:
    written = 0
    for piece in _data(source):
        written += len(piece)
        yield piece
    last = _header(b"end", tarfile.REGTYPE, 0, 0o600, 0)
    end = written + len(last) + 2 * tarfile.BLOCKSIZE
    yield last + bytes(2 * tarfile.BLOCKSIZE + -end % _RECORD)


def _data(source: LocalSource) -> Iterator[bytes]:
    if source.kind == "file":
        file = os.open(source.path, _OPEN)
        try:
            found = os.fstat(file)
            yield from _file(file, b"data", found, source.path)
        finally:
            os.close(file)
        return
    folder = os.open(source.path, _OPEN | os.O_DIRECTORY)
    found = os.fstat(folder)
    yield _header(b"data", tarfile.DIRTYPE, 0, found.st_mode, found.st_mtime)
    for name, status, member in _members(folder, b"data/", None):
        if member is None:
            yield _header(name, tarfile.DIRTYPE, 0, status.st_mode, status.st_mtime)
        else:
            yield from _file(member, name, status, os.fsdecode(name.removeprefix(b"data/")))


def _members(
    folder: int, prefix: bytes, source: LocalSource | None
) -> Iterator[tuple[bytes, os.stat_result, int | None]]:
    """Everything below the descriptor `folder`, which is closed: name, status, and a descriptor for files.

    With `source` files are only counted, not opened, and skipped entries are recorded.
    """
    try:
        for name in sorted(os.listdir(folder)):
            path = prefix + os.fsencode(name)
            found = os.lstat(name, dir_fd=folder)
            if stat.S_ISDIR(found.st_mode):
                below = os.open(name, _OPEN | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                yield path, found, None
                yield from _members(below, path + b"/", source)
            elif not stat.S_ISREG(found.st_mode):
                if source is not None:
                    source.skipped.add(f"{os.fsdecode(path)} ({_sort(found.st_mode)})")
            elif source is not None:
                source.files += 1
                source.bytes += found.st_size
                if not os.access(name, os.R_OK, dir_fd=folder, effective_ids=True):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))
            else:
                file = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=folder)
                try:
                    yield path, os.fstat(file), file
                finally:
                    os.close(file)
    finally:
        os.close(folder)


def _sort(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def _file(file: int, name: bytes, found: os.stat_result, path: str) -> Iterator[bytes]:
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(Message("{path} changed while it was read", path=path))
    yield _header(name, tarfile.REGTYPE, found.st_size, found.st_mode, found.st_mtime)
    yield from _bytes(file, found.st_size, path)
    if found.st_size % tarfile.BLOCKSIZE:
        yield bytes(-found.st_size % tarfile.BLOCKSIZE)


def _bytes(file: int, size: int, path: str) -> Iterator[bytes]:
    """Exactly `size` bytes: later growth of the file is ignored, a file that has shrunk is an error."""
    while size:
        piece = os.read(file, min(size, PIECE))
        if not piece:
            raise SourceError(Message("{path} became shorter while it was read", path=path))
        size -= len(piece)
        yield piece


def _header(name: bytes, kind: bytes, size: int, mode: int, mtime: float) -> bytes:
    """A header with user and group 0, in GNU's format, which every tar on workers reads."""
    info = tarfile.TarInfo(os.fsdecode(name))
    info.type, info.size, info.mode, info.mtime = kind, size, mode & 0o777, max(0, int(mtime))
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small chunks, so that thousands of small files do not need as many writes."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PIECE:
            yield b"".join(held) if len(held) > 1 else piece
            held, size = [], 0
    if held:
        yield b"".join(held)


def _gone(source: LocalSource, error: OSError) -> SourceError:
    return SourceError(Message("{path} can no longer be read: {why}", path=source.path, why=error.strerror))


def _refusal(error: OSError, path: str) -> AtlctlError:
    place = os.path.join(path, os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
    return NotAllowed(Message("cannot read {path}: {why}", path=place, why=error.strerror), Message("nothing was sent"))


def own_name(path: str) -> str:
    """The last part of a path, empty for `/`, `.` and `..`: then the folder's contents are meant."""
    name = os.path.basename(path.rstrip("/"))
    return "" if name in (".", "..") else name
