"""The three standard streams: terminals or not, colour, width; and `error:`, `hint:`, `warning:` and `note:` lines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from atlctl.i18n import Message, translated
from atlctl.render.palette import Tone, painted_head
from atlctl.render.sanitize import clean
from atlctl.render.width import wrapped

ColorFlag = Literal["always", "never", "auto"]

_ERROR, _HINT = Message("error: {text}"), Message("hint: {text}")
_WARNING, _NOTE = Message("warning: {text}"), Message("note: {text}")
#: Blanks before further lines.
_HANG = 2
#: Used if the width of the terminal is unknown.
DEFAULT_WIDTH = 80


def decide_color(flag: ColorFlag, env: Mapping[str, str], is_tty: bool) -> bool:
    """`--color`, else NO_COLOR, else FORCE_COLOR or CLICOLOR_FORCE, else whether it is a terminal that has colours.

    An empty variable counts as unset (https://no-color.org), and so does a forcing one that is "0".
    """
    return color_source(flag, env, is_tty)[0]


def color_source(flag: ColorFlag, env: Mapping[str, str], is_tty: bool) -> tuple[bool, str]:
    """The same, and the source of the decision: `--color`, the name of a variable, or empty for the stream itself."""
    if flag != "auto":
        return flag == "always", "--color"
    if env.get("NO_COLOR"):
        return False, "NO_COLOR"
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        if env.get(name, "") not in ("", "0"):
            return True, name
    return (False, "TERM") if is_tty and env.get("TERM") == "dumb" else (is_tty, "")


def _is_tty(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _width(env: Mapping[str, str]) -> int:
    stated = env.get("COLUMNS", "")
    if stated.isascii() and stated.isdigit() and int(stated) > 0:
        return int(stated)
    for fd in (1, 2, 0):
        try:
            columns = os.get_terminal_size(fd).columns
        except OSError:
            continue
        if columns > 0:
            return columns
    return DEFAULT_WIDTH


@dataclass(frozen=True, slots=True)
class Streams:
    """Terminals among stdin, stdout and stderr, colour for each of the two outputs, width in character cells."""

    stdin_tty: bool = False
    stdout_tty: bool = False
    stderr_tty: bool = False
    stdout_color: bool = False
    stderr_color: bool = False
    width: int = DEFAULT_WIDTH

    @classmethod
    def detect(cls, color: ColorFlag, env: Mapping[str, str]) -> Streams:
        """The streams of this process. A closed stream is not a terminal."""
        stdout_tty, stderr_tty = _is_tty(1), _is_tty(2)
        return cls(
            stdin_tty=_is_tty(0),
            stdout_tty=stdout_tty,
            stderr_tty=stderr_tty,
            stdout_color=decide_color(color, env, stdout_tty),
            stderr_color=decide_color(color, env, stderr_tty),
            width=_width(env),
        )

    @property
    def stderr_width(self) -> int | None:
        """Cells for a line on stderr; None if it is not a terminal, where lines may have any length."""
        return self.width if self.stderr_tty else None

    @property
    def can_prompt(self) -> bool:
        """A question can be shown (stderr) and answered (stdin)."""
        return self.stdin_tty and self.stderr_tty

    @property
    def interactive(self) -> bool:
        """A person types and reads: stdin and stdout are terminals."""
        return self.stdin_tty and self.stdout_tty


def error_text(message: str, hint: str | None, color: bool, width: int | None = None) -> str:
    """`error: what happened`, then `hint: the next command` if there is one. With `width` the first line wraps at
    words; the command is unchanged, so that it can be copied."""
    text = _labelled(_ERROR, Tone.FAIL, message, color, width)
    return text if hint is None else f"{text}\n{_labelled(_HINT, Tone.NOTE, hint, color)}"


def warning_text(message: str, color: bool, width: int | None = None) -> str:
    return _labelled(_WARNING, Tone.WARN, message, color, width)


def note_text(message: str, color: bool, width: int | None = None) -> str:
    return _labelled(_NOTE, Tone.NOTE, message, color, width)


def _labelled(labelled: Message, tone: Tone, text: str, color: bool, width: int | None = None) -> str:
    whole = translated(labelled.filled(text=clean(translated(text))))
    first, *rest = [whole] if width is None else wrapped(whole, width, _HANG)
    label = translated(labelled.filled(text="")).rstrip(" ")
    return "\n".join((painted_head(first, label, tone, color), *rest))
