"""Unpacks logs that are compressed with gzip or zstd, as a stream with bounded memory.

The content decides, not the name. Files come from anywhere: one that unpacks to more than `MOST` bytes, or to more than
`RATIO` times its size, is not read to its end, and of a damaged one everything before the damage is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError

#: The most bytes that one file may unpack to, and the largest ratio to its own bytes; files that unpack to less than
#: `SMALL` may have any ratio.
MOST = 64 << 30
RATIO = 1_000
SMALL = 16 << 20
#: Endings of the names of compressed logs.
ENDINGS = (".gz", ".zst")

#: Bytes at a file's start that show whether it is compressed.
MAGIC = 4
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: Bytes that are read at once; bytes that are unpacked at once. A KiB of zstd data may unpack to 32 MiB.
_CHUNK = 256 * 1024
_GZIP_STEP, _ZSTD_STEP = 16 * 1024, 1024


def unpacked_name(name: str) -> str:
    """A file's name without the ending that compression adds."""
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


class _DamagedError(Exception):
    """The data cannot be unpacked; the message is the library's."""


class _Codec(Protocol):
    """One compression format. `whole`: the data ends here as it should."""

    @property
    def whole(self) -> bool: ...

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """Unpacks the next bytes of the file. Raises _DamagedError."""

    def rest(self) -> bytes:
        """Bytes that were held back, at the end of the file."""


class _Gzip:
    """gzip data, of one or more members, with zeros after them."""

    def __init__(self) -> None:
        self._member: zlib._Decompress | None = None
        self._members = 0

    @property
    def whole(self) -> bool:
        return self._member is None

    def unpack(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _GZIP_STEP):
            yield from self._step(data[start : start + _GZIP_STEP])

    def _step(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member is None:
                data = data.lstrip(b"\0") if self._members else data
                if not data:
                    return
                self._member = zlib.decompressobj(31)
                self._members += 1
            member = self._member
            before = member.copy()
            try:
                piece = member.decompress(data, _CHUNK)
            except zlib.error as error:
                yield _until_damage(before, data)
                raise _DamagedError(str(error)) from None
            yield piece
            if member.eof:
                data, self._member = member.unused_data, None
            else:
                data = member.unconsumed_tail

    def rest(self) -> bytes:
        return self._member.flush() if self._member else b""


def _until_damage(member: zlib._Decompress, data: bytes) -> bytes:
    """The bytes before the place at which unpacking `data` fails."""
    found = bytearray()
    for step in (4096, 64, 1):
        while True:
            before = member.copy()
            try:
                piece = member.decompress(data, step)
            except zlib.error:
                member = before
                break
            if not piece:
                return bytes(found)
            found += piece
            data = member.unconsumed_tail
    return bytes(found)


class _Zstd:
    """zstd data, of one or more frames. Raises ImportError without the package zstandard."""

    def __init__(self) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._unpacker = zstandard.ZstdDecompressor()
        self._frame: zstandard.ZstdDecompressionObj | None = None

    @property
    def whole(self) -> bool:
        return self._frame is None

    def unpack(self, data: bytes) -> Iterator[bytes]:
        start = 0
        while start < len(data):
            if self._frame is None:
                self._frame = self._unpacker.decompressobj()
            part = data[start : start + _ZSTD_STEP]
            start += len(part)
            try:
                piece = self._frame.decompress(part)
            except self._error as error:
                raise _DamagedError(str(error)) from None
            yield piece
            if self._frame.eof:
                start -= len(self._frame.unused_data)
                self._frame = None

    def rest(self) -> bytes:
        return b""


class Unpacking:
    """Unpacks the bytes of one file.

    `wrong`: why the log is not whole, as the predicate of a sentence about the file. `refused`: it unpacks to too much.
    """

    def __init__(self, codec: _Codec, kind: str) -> None:
        self.wrong: Message | None = None
        self.refused = False
        self._codec = codec
        self._kind = kind
        self._taken = 0
        self._given = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Unpacks the next bytes of the file; gives nothing once it is `wrong`."""
        if self.wrong is not None:
            return
        self._taken += len(data)
        try:
            for piece in self._codec.unpack(data):
                self._given += len(piece)
                if self._given > min(MOST, max(SMALL, RATIO * self._taken)):
                    self.refused = True
                    self.wrong = Message(
                        "unpacks to more than {ratio} times its size or {size} GiB: it was not read",
                        ratio=RATIO,
                        size=MOST >> 30,
                    )
                    return
                if piece:
                    yield piece
        except _DamagedError as error:
            self.wrong = Message(
                "has damaged {kind}: only the lines before the damage were read ({why})",
                kind=self._kind,
                why=str(error),
            )

    def finish(self) -> bytes:
        """The last bytes, at the end of the file."""
        if self.wrong is not None:
            return b""
        if not self._codec.whole:
            self.wrong = Message("is cut off: its {kind} has no end, and the last lines are missing", kind=self._kind)
        return self._codec.rest()


def unpacking(start: bytes, shown: str, path: str, command: str) -> Unpacking | None:
    """The way to unpack a file that begins with `start`, at least `MAGIC` bytes; None if it is not compressed.

    `shown`, `path`, `command`: the file's name and the atlctl command, for the hint. Raises UsageError if a package is
    missing.
    """
    if start.startswith(_GZIP):
        return Unpacking(_Gzip(), Message("gzip data"))
    # A frame that programs skip may come first.
    if start.startswith(_ZSTD) or (start[1:4] == b"\x2a\x4d\x18" and start[0] >> 4 == 5):
        try:
            return Unpacking(_Zstd(), Message("zstd data"))
        except ImportError:
            raise UsageError(
                Message("{path} is zstd data, and the package zstandard is not installed", path=shown),
                Message("pip install 'atlctl[zstd]', or: zstdcat {path} | atlctl {command} --from -").filled(
                    path=path, command=command
                ),
            ) from None
    return None


class PlainBytes:
    """The bytes of a log that may be compressed. `unpacking` is None if it is not."""

    def __init__(self, read: Callable[[int], bytes], shown: str, path: str, command: str) -> None:
        """Reads the first bytes, with `read`. Raises UsageError if a package is missing."""
        self._read = read
        self._held = bytearray()
        while len(self._held) < MAGIC and (data := read(MAGIC - len(self._held))):
            self._held += data
        start = bytes(self._held)
        self.unpacking = unpacking(start, shown, path, command)
        self._pieces: Iterator[bytes] | None = None
        if self.unpacking is not None:
            self._held.clear()
            self._pieces = self._unpacked(self.unpacking, start)

    def read(self, limit: int) -> bytes:
        """The next bytes, at most `limit`; b"" at the end."""
        if self._pieces is None:
            data = bytes(self._held) + self._read(limit - len(self._held))
            self._held.clear()
            return data
        while len(self._held) < limit and (piece := next(self._pieces, b"")):
            self._held += piece
        data = bytes(self._held[:limit])
        del self._held[:limit]
        return data

    def _unpacked(self, unpacking: Unpacking, start: bytes) -> Iterator[bytes]:
        data = start
        while data and unpacking.wrong is None:
            yield from unpacking.feed(data)
            data = self._read(_CHUNK)
        yield unpacking.finish()
