"""Makes text from workers and clusters harmless for a terminal: control characters become visible.

Shown in caret form (`^[`, `^M`) or as an escape (`\\x9b`, `\\u202e`, invalid UTF-8 as `\\xNN`); letters of every
script and emoji stay. All functions are idempotent.
"""

from __future__ import annotations

import codecs
import functools
import re
from dataclasses import dataclass
from itertools import islice

#: Beyond C0: DEL, C1, bidi controls, line separators, invisible characters, surrogates. The body of a regex class.
HARMFUL = (
    "\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff"
    "\uffa0\ufff0-\ufffb\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_ANY = re.compile(f"[\x00-\x1f{HARMFUL}]")
_BUT_LAYOUT = re.compile(f"[\x00-\x08\x0b-\x1f{HARMFUL}]")
_HARMLESS_BYTES = bytes((0x09, 0x0A, *range(0x20, 0x7F)))

#: Longest parameter text of a colour sequence; a longer one is shown, not passed: this bounds the carry-over.
_SGR_LIMIT = 64
_TOKEN = re.compile(f"(\x1b\\[([0-9;:]{{0,{_SGR_LIMIT}}})m)|(\r?\n)|[\x00-\x08\x0b-\x1f{HARMFUL}]")
_CUT_TOKEN = re.compile(f"(?:\r|\x1b(?:\\[[0-9;:]{{0,{_SGR_LIMIT}}})?)\\Z")
_RESET = re.compile("[0;]*")

_Colour = tuple[int, int, int]
#: The first 16 colours, as xterm has them.
_NAMED: tuple[_Colour, ...] = (
    (0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229),
    (127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255), (255,) * 3,
)  # fmt: skip
_LEVELS = (0, 95, 135, 175, 215, 255)
#: Text cannot be read where it differs from its background by no more than this in red, green and blue.
_ALIKE = 16


@dataclass(frozen=True, slots=True)
class _Colours:
    """The colours of text and background. None is the terminal's own."""

    text: _Colour | None = None
    behind: _Colour | None = None

    @property
    def readable(self) -> bool:
        if self.text is None or self.behind is None:
            return True
        return any(abs(one - other) > _ALIKE for one, other in zip(self.text, self.behind, strict=True))


@functools.lru_cache(500)
def _after(before: _Colours, parameters: str) -> _Colours | None:
    """The colours after a colour sequence. None if it would hide text, or is cut short."""
    text, behind, concealed = before.text, before.behind, False
    given = iter(parameters.split(";"))
    for part in given:
        numbers = [int(word or 0) for word in part.split(":")]
        code = numbers[0]
        if code == 0:
            text, behind, concealed = None, None, False
        elif code in (8, 28):
            concealed = code == 8
        elif code in (38, 48):
            if len(numbers) == 1:
                kind = next(given, "")
                numbers += [
                    int(word or 0) for word in (kind, *islice(given, 3 if kind == "2" else 1)) if word.isdigit()
                ]
            colour = _colour(numbers[1:])
            if colour is None:
                return None
            text, behind = (colour, behind) if code == 38 else (text, colour)
        elif code in (39, 49):
            text, behind = (None, behind) if code == 39 else (text, None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            text = _NAMED[code - 30 if code < 40 else code - 82]
        elif 40 <= code <= 47 or 100 <= code <= 107:
            behind = _NAMED[code - 40 if code < 50 else code - 92]
    made = _Colours(text, behind)
    return made if made.readable and not concealed else None


def _colour(numbers: list[int]) -> _Colour | None:
    """Of `5;N` or `2;R;G;B`, which with colons has the number of a colour space in front of red."""
    match numbers:
        case [5, number] if number < 16:
            return _NAMED[number]
        case [5, number] if number < 232:
            number -= 16
            return _LEVELS[number // 36], _LEVELS[number // 6 % 6], _LEVELS[number % 6]
        case [5, number] if number < 256:
            return (8 + 10 * (number - 232),) * 3
        case [2, red, green, blue] | [2, _, red, green, blue, *_]:
            return red, green, blue
    return None


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
    end, so that one line never colours the next. One that would hide text, concealed or in the colour of its
    background, becomes visible itself. With `color` False colour sequences are dropped. The result does
    not depend on where chunks are cut, and at most 67 characters are carried over.
    """

    __slots__ = ("_active", "_carry", "_color", "_colours", "_decoder")

    def __init__(self, color: bool = True) -> None:
        self._color = color
        self._active = False
        self._colours = _Colours()
        self._carry = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def feed(self, data: bytes) -> bytes:
        """The bytes that can be shown so far. An incomplete sequence or character at the end of `data` is held back."""
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
        """The bytes held back, and a reset if a colour is still on. Ready for a new stream afterwards."""
        text = self._carry + self._decoder.decode(b"", True)
        self._carry = ""
        self._decoder.reset()
        shown = self._translate(text)
        if self._active:
            self._active, self._colours = False, _Colours()
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
            after = _after(self._colours, match[2])
            if after is None:
                return "^" + match[1].replace("\x1b", "[", 1)
            self._colours = after
            self._active = _RESET.fullmatch(match[2]) is None
            return match[1]
        if match[3] is None:
            return _visible(match)
        if self._active:
            self._active, self._colours = False, _Colours()
            return "\x1b[0m\n"
        return "\n"
