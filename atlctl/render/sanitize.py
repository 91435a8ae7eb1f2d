"""Makes text from workers and clusters harmless for a terminal: control characters become visible.

Shown in caret form (`^[`, `^M`) or as an escape (`\\x9b`, `\\u202e`, invalid UTF-8 as `\\xNN`); letters of every
script and emoji stay. All functions are idempotent.
"""

from __future__ import annotations

import codecs
import re

#: Beyond C0: DEL, C1, bidi controls, line separators, invisible characters, surrogates. The body of a regex class.
HARMFUL = (
    "\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0001\U000e0020-\U000e007f"
)
_ANY = re.compile(f"[\x00-\x1f{HARMFUL}]")
_BUT_LAYOUT = re.compile(f"[\x00-\x08\x0b-\x1f{HARMFUL}]")
_HARMLESS_BYTES = bytes((0x09, 0x0A, *range(0x20, 0x7F)))

#: Longest parameter text of a colour sequence; a longer one is shown, not passed: this bounds the carry-over.
_SGR_LIMIT = 64
_TOKEN = re.compile(f"(\x1b\\[([0-9;:]{{0,{_SGR_LIMIT}}})m)|(\r?\n)|[\x00-\x08\x0b-\x1f{HARMFUL}]")
_CUT_TOKEN = re.compile(f"(?:\r|\x1b(?:\\[[0-9;:]{{0,{_SGR_LIMIT}}})?)\\Z")
_RESET = re.compile("[0;]*")


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20 or code == 0x7F:
        return "^" + chr(code ^ 0x40)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(text: str) -> str:
    """One field (a name, a label, a reason, an exception's text) as one harmless line: newlines show as `^J`."""
    if text.isascii() and text.isprintable():
        return text
    return _ANY.sub(_visible, text)


def clean_lines(text: str) -> str:
    """Like `clean`, but newlines and tabs stay."""
    return _BUT_LAYOUT.sub(_visible, text)


class OutputSanitizer:
    """The same for a stream of output, in chunks of any size, with colours allowed.

    Kept: newline, tab, CRLF (as newline) and colour sequences (SGR), which are reset before each newline and at the
    end, so that one line never colours the next. With `color` False colour sequences are dropped. The result does
    not depend on where chunks are cut, and at most 67 characters are carried over.
    """

    __slots__ = ("_active", "_carry", "_color", "_decoder")

    def __init__(self, color: bool = True) -> None:
        self._color = color
        self._active = False
        self._carry = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def feed(self, data: bytes) -> bytes:
        """What can be shown so far. The start of a sequence or character that `data` ends in is kept back."""
        # Deleting is ten times faster than a search by regex.
        if not (self._carry or self._active or self._decoder.getstate()[0] or data.translate(None, _HARMLESS_BYTES)):
            return data
        text = self._carry + self._decoder.decode(data)
        self._carry = ""
        cut = _CUT_TOKEN.search(text, max(0, len(text) - _SGR_LIMIT - 2))
        if cut:
            self._carry = cut[0]
            text = text[: cut.start()]
        return self._translate(text)

    def finish(self) -> bytes:
        """What was kept back, and a reset when a colour is still on. Ready for a new stream afterwards."""
        text = self._carry + self._decoder.decode(b"", True)
        self._carry = ""
        self._decoder.reset()
        shown = self._translate(text)
        if self._active:
            self._active = False
            shown += b"\x1b[0m"
        return shown

    def _translate(self, text: str) -> bytes:
        if self._active or _BUT_LAYOUT.search(text):
            text = _TOKEN.sub(self._token, text)
        return text.encode()

    def _token(self, match: re.Match[str]) -> str:
        if match[1] is not None:
            if not self._color:
                return ""
            self._active = _RESET.fullmatch(match[2]) is None
            return match[1]
        if match[3] is None:
            return _visible(match)
        if self._active:
            self._active = False
            return "\x1b[0m\n"
        return "\n"
