"""From bytes to text: decoding, terminal codes, times. Shared by the parsers of this layer."""

from __future__ import annotations

import re
from datetime import UTC, datetime

#: Bytes of one line that are looked at; a longer line is cut (10 MB lines exist).
LINE_LIMIT = 16_384

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_REPLACEMENT = "�"


def decode(data: bytes) -> str:
    """UTF-8, or GB 18030 where that fits the whole text and UTF-8 little of it.

    Mostly valid UTF-8 (a character cut in two) stays UTF-8, with U+FFFD for the rest. A few pairs of
    GBK bytes are valid UTF-8 by chance, hence the comparison. Never raises.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    broken = text.count(_REPLACEMENT)
    if sum(char > "\x7f" for char in text) - broken >= broken:
        return text
    try:
        return data.decode("gb18030")
    except UnicodeDecodeError:
        return text


def clean_line(line: bytes) -> str:
    """One line as text: cut, decoded, without terminal codes, without what a carriage return overwrote."""
    text = decode(line[:LINE_LIMIT].rstrip(b"\r\n"))
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        text = text.rpartition("\r")[2]
    return text


def without_surrogates(text: str) -> str:
    """`text` with lone surrogates (JSON can hold them) replaced, so that it can be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def naive_seconds(text: str) -> float | None:
    """Whole seconds of `YYYY-MM-DD HH:MM:SS` (any one separator), read as if it were UTC.

    The source has no zone, so the number is good for comparing times of equal zones only. None
    where it is no date.
    """
    try:
        moment = datetime.fromisoformat(text.strip()[:19].replace("_", " ")).replace(tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp()
