"""Reads the lines of a saved log of any size with bounded memory.

It also strips kubectl's time stamps and the kubelet's CRI tags, which log collectors add to every line.
"""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Callable

from atlctl.diagnosis.logline import LINE_LIMIT
from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError

#: The path that means standard input.
STDIN = "-"
#: Bytes per read; the scanner is fastest with this size.
CHUNK = 256 * 1024
#: An unfinished line is held up to this size; of a longer one, only the visible part is kept.
_HELD = 4 * LINE_LIMIT

#: RFC 3339 with any fraction, as `kubectl logs --timestamps` and the kubelet prepend it.
RFC3339 = rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_STAMP = re.compile(RFC3339 + b" ")
#: After the stamp, in the kubelet's files: the stream, and F for a full line or P for a partial one.
_CRI = re.compile(rb"(?:stdout|stderr) ([FP]) ?")

#: Hints for a file that is not a log.
NAME_A_LOG = Message("name a log, a folder of logs, or - for standard input")
_UNPACK = Message("unpack it, then: atlctl {command} --from FOLDER")
_UTF16 = Message("UTF-16 text"), "iconv -f UTF-16 -t UTF-8"
#: First bytes of files that are not text -> the file type, and the program that converts it to text, or another hint.
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
#: The start of `gcloud logging read --format json`, and of exports of others.
_ARRAY = re.compile(rb'\s*\[\s*\{\s*"')
#: The header of a table that a log service exports as CSV, and a program that makes JSON lines of it.
_CSV_NAME = rb'"?[\w@.:() -]{1,80}"?'
_CSV = re.compile(
    rb'(?=[^\n]*,)(?:%b,){0,99}"?(?:message|log|line|content|msg|textPayload|@message|_raw)"?(?:,%b){0,99}\r?\n'
    % (_CSV_NAME, _CSV_NAME)
)
_OF_CSV = "python3 -c 'import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(sys.stdin)]'"
#: Control bytes that logs do not contain: C0 without NUL (holes), backspace, tab, newlines, form feed, escape.
_JUNK = bytes(code for code in range(1, 32) if code not in (8, 9, 10, 12, 13, 27))
#: The largest share of such bytes in text; in random data it is about a tenth.
_JUNK_SHARE = 0.03
_SAMPLE = 65_536


def as_utf8(read: Callable[[int], bytes], start: bytes) -> tuple[Callable[[int], bytes], bytes]:
    """`read`, and the `start` that it gave, as UTF-8 if a byte order mark says UTF-16; without UTF-8's own mark."""
    if not start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return read, start.removeprefix(codecs.BOM_UTF8)
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")

    def converted(limit: int) -> bytes:
        while data := read(limit):
            if text := decoder.decode(data):  # half a character gives none
                return text.encode()
        return decoder.decode(b"", final=True).encode()

    return converted, decoder.decode(start).encode()


def not_text(start: bytes) -> tuple[str, str] | None:
    """The file type, and the conversion program or a hint (see `no_log`), if `start` is not text; None for text.

    NUL bytes alone prove nothing: a log that several processes overwrote has holes.
    """
    for magic, name, hint in _MAGIC:
        if start.startswith(magic):
            return name, hint
    if start[_TAR[0] :].startswith(_TAR[1]):
        return Message("a tar archive"), _UNPACK
    array = _ARRAY.match(start)
    if array and (b"\n" in array[0] or b"\n" not in start.rstrip()):
        return Message("a JSON array"), "jq -c '.[]'"
    if _CSV.match(start):
        return Message("CSV"), _OF_CSV
    sample = start[:_SAMPLE].replace(b"\0", b"")
    junk = len(sample) - len(sample.translate(None, _JUNK))
    if junk > _JUNK_SHARE * len(sample):
        return Message("binary data"), NAME_A_LOG
    return None


def no_log(what: tuple[str, str], shown: str, path: str, command: str) -> UsageError:
    """The error for `path`, a file of the type `what` (see `not_text`), given to the atlctl command `command`."""
    name, way = what
    if isinstance(way, Message):
        hint: str = way.filled(command=command)
    else:
        hint = " | ".join((way if path == STDIN else f"{way} < {shlex.quote(path)}", f"atlctl {command} --from -"))
    return UsageError(Message("{path} is not a log but {what}", path=shown, what=name), hint)


class LineReader:
    """Splits chunks into lines without their newline. Of a line that is too long, only the visible part is kept.

    `holes` counts lines that begin with NUL bytes: if several processes write to one file without appending, each
    leaves such gaps for the others' bytes.
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
        """The last line, if it has no newline."""
        tail, self._tail = self._tail, b""
        return [self._tidy(tail)] if tail else []

    def _tidy(self, line: bytes) -> bytes:
        if line.startswith(b"\0"):
            self.holes += 1
            line = line.lstrip(b"\0")
        return _visible(line) if len(line) > LINE_LIMIT else line


def _visible(line: bytes) -> bytes:
    """The part that a parser needs: the text after the last inner carriage return, cut to `LINE_LIMIT`."""
    cut = line.rfind(b"\r", 0, len(line.rstrip(b"\r")))
    return line[cut + 1 :].lstrip(b"\0")[:LINE_LIMIT]


def unstamped(line: bytes) -> bytes:
    """The line without its leading time stamp."""
    stamp = _STAMP.match(line) if line[:2] == b"20" else None
    return line[stamp.end() :] if stamp else line


class Uncri:
    """Strips the kubelet's CRI tags from the lines of one log, and joins partial lines. Keeps the time stamp."""

    def __init__(self) -> None:
        self._pieces = b""

    @property
    def partial(self) -> bool:
        """Whether pieces of a line are held."""
        return bool(self._pieces)

    @staticmethod
    def made(line: bytes) -> bool:
        """Whether a line has the CRI format."""
        stamp = _STAMP.match(line)
        return stamp is not None and _CRI.match(line, stamp.end()) is not None

    def __call__(self, line: bytes) -> bytes | None:
        """The stamp and the line as the worker printed it; None for a partial line, which is held for its rest."""
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
        """The held pieces of an unfinished line."""
        rest, self._pieces = self._pieces, b""
        return rest or None
