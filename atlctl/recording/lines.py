"""Lines of a saved log, of any size, with little memory.

Also undone here is what collectors add to every line: kubectl's time stamps and the kubelet's CRI format.
"""

from __future__ import annotations

import re

from atlctl.diagnosis.logline import LINE_LIMIT
from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError

#: Bytes that are read at once: the fastest size for the scanner.
CHUNK = 256 * 1024
#: A line that goes on is held up to this size, then only its visible part.
_HELD = 4 * LINE_LIMIT

#: RFC 3339 with any fraction, as `kubectl logs --timestamps` and the kubelet put it in front.
_STAMP = re.compile(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ")
#: After the stamp, in the kubelet's own files: the stream, and F for a full line, P for a piece of one.
_CRI = re.compile(rb"(?:stdout|stderr) ([FP]) ?")

#: Hints if a file is not a log.
NAME_A_LOG = Message("name a log, a folder of logs, or - for standard input")
_UNPACK = Message("unpack it, then: atlctl {command} --from FOLDER")
_UTF16 = Message("UTF-16 text"), "iconv -f UTF-16 -t UTF-8"
#: First bytes of files that are not text -> their kind, and the program that converts them to text, or another hint.
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", Message("gzip data"), "zcat"),
    (b"\x28\xb5\x2f\xfd", Message("zstd data"), "zstdcat"),
    (b"\xfd7zXZ\x00", Message("xz data"), "xzcat"),
    (b"BZh", Message("bzip2 data"), "bzcat"),
    (b"PK\x03\x04", Message("a zip archive"), _UNPACK),
    (b"\xff\xfe", *_UTF16),
    (b"\xfe\xff", *_UTF16),
)
_TAR = (257, b"ustar")
#: Control bytes that logs do not hold: C0 without NUL (holes), backspace, tab, newlines, form feed, escape.
_JUNK = bytes(code for code in range(1, 32) if code not in (8, 9, 10, 12, 13, 27))
#: Random bytes are junk to a tenth; of a text's sample so much may be.
_JUNK_SHARE = 0.03
_SAMPLE = 65_536


def not_text(start: bytes) -> tuple[str, str] | None:
    """The kind of a file that begins with `start` and is not a log, and the hint or the program that converts it to
    text (see `no_log`); None for text.

    NUL bytes alone prove nothing: a log that several processes overwrote has holes.
    """
    for magic, name, hint in _MAGIC:
        if start.startswith(magic):
            return name, hint
    if start[_TAR[0] :].startswith(_TAR[1]):
        return Message("a tar archive"), _UNPACK
    sample = start[:_SAMPLE].replace(b"\0", b"")
    junk = len(sample) - len(sample.translate(None, _JUNK))
    if junk > _JUNK_SHARE * len(sample):
        return Message("binary data"), NAME_A_LOG
    return None


def no_log(what: tuple[str, str], shown: str, path: str, command: str) -> UsageError:
    """The error for the file `path` that is `what` (see `not_text`); `command` of atlctl was to read it."""
    name, way = what
    hint = way.filled(command=command) if isinstance(way, Message) else f"{way} {path} | atlctl {command} --from -"
    return UsageError(Message("{path} is not a log but {what}", path=shown, what=name), hint)


class LineReader:
    """Cuts chunks into lines without their newline. Of a line that is too long only what a terminal shows is kept.

    `holes` counts lines with NUL bytes in front of them: where several processes write to one file without appending,
    each leaves such gaps for the others' bytes.
    """

    def __init__(self) -> None:
        self._tail = b""
        self.holes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        first, *more = data.split(b"\n")
        if self._tail:
            first = self._tail + first
        if not more:
            self._tail = _visible(first) if len(first) > _HELD else first
            return []
        self._tail = more.pop()
        lines = [first, *more]
        if b"\0" not in data and b"\0" not in first and max(map(len, lines)) <= LINE_LIMIT:
            return lines
        return [self._tidy(line) for line in lines]

    def finish(self) -> list[bytes]:
        """The last line, if it had no newline."""
        tail, self._tail = self._tail, b""
        return [self._tidy(tail)] if tail else []

    def _tidy(self, line: bytes) -> bytes:
        if line.startswith(b"\0"):
            self.holes += 1
            line = line.lstrip(b"\0")
        return _visible(line) if len(line) > LINE_LIMIT else line


def _visible(line: bytes) -> bytes:
    """The part after the last carriage return that does not end the line, truncated as for the parser."""
    cut = line.rfind(b"\r", 0, len(line.rstrip(b"\r")))
    return line[cut + 1 :].lstrip(b"\0")[:LINE_LIMIT]


def unstamped(line: bytes) -> bytes:
    """The line without the stamp in front of it."""
    stamp = _STAMP.match(line) if line[:2] == b"20" else None
    return line[stamp.end() :] if stamp else line


class Uncri:
    """Takes the kubelet's CRI tags off the lines of one log, and joins the pieces of a line. The stamp stays."""

    def __init__(self) -> None:
        self._pieces = b""

    @staticmethod
    def made(line: bytes) -> bool:
        """Whether a line is in the kubelet's format."""
        stamp = _STAMP.match(line)
        return stamp is not None and _CRI.match(line, stamp.end()) is not None

    def __call__(self, line: bytes) -> bytes | None:
        """The line as the worker printed it, behind its stamp; None for a piece, which comes with its line's rest."""
        if line[:2] != b"20" or (stamp := _STAMP.match(line)) is None:
            return line
        end = stamp.end()
        if line[end : end + 3] != b"std" or (cri := _CRI.match(line, end)) is None:
            return line
        text = line[cri.end() :]
        if self._pieces:
            text = self._pieces + text[: max(0, _HELD - len(self._pieces))]
            self._pieces = b""
        else:
            text = line[:end] + text
        if cri[1] == b"P":
            self._pieces = text
            return None
        return text

    def finish(self) -> bytes | None:
        """Pieces whose line never ended."""
        rest, self._pieces = self._pieces, b""
        return rest or None
