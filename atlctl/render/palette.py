"""The palette of all commands: each colour by its meaning.

Colour is never the only sign: a word or a mark repeats it, for pipes, `NO_COLOR` and colour-blind readers.

    painted(clean(text), Tone.FAIL, streams.stdout_color)         part of a line; `clean` first, it would show escapes
    painted_head(line, label, Tone.OK, streams.stderr_color)      a label that begins the line
    Toned(text, Tone.HELD)                                        a cell of a table; cleaned there
    rich.text.Text().append(clean(text), Tone.DIM.rich)           for what draws with rich
    say.STATE_TONES[worker.state]                                  the tone of a state of a job or worker

Colours are from the 256-colour palette, because themes redefine the first 16; each has a contrast (WCAG) of at least
3.6 on black and on white. No backgrounds, and no SGR 2: some terminals make it illegible.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from atlctl.i18n import translated
from atlctl.render.sanitize import clean


class Tone(Enum):
    """A meaning. The value is the SGR code; the grave ones are bold, too."""

    #: Good: PASS, ok, Succeeded.
    OK = "38;5;29"
    #: In progress: Running, bars, the spinner.
    ACTIVE = "38;5;32"
    #: Not started yet: Pending, Queued, Starting.
    WAITING = "38;5;100"
    #: Odd: WARN, `warning:`, Restarting, consequences of a failure.
    WARN = "38;5;166"
    #: Failed: FAIL, `error:`, Failed, the culprit.
    FAIL = "1;38;5;196"
    #: Held: failed, and kept for inspection.
    HELD = "1;38;5;134"
    #: Lost or unreachable; INCOMPLETE.
    LOST = "1;38;5;162"
    #: Unknown.
    UNKNOWN = "3;38;5;244"
    #: Additional: `hint:`, `note:`, NOT JUDGED, names of commands and keys.
    NOTE = "38;5;31"
    #: Headings; the text to read first, as the user's own frames.
    STRONG = "1"
    #: Less important: labels, library frames, skipped checks, Stopped.
    DIM = "38;5;244"
    PLAIN = ""

    @property
    def rich(self) -> str:
        """The same as a style of rich."""
        look, _, color = self.value.rpartition("38;5;")
        if not look and color == self.value:  # no colour
            look, color = color, ""
        words = [*({"1": "bold", "3": "italic"}[code] for code in look.split(";") if code)]
        return " ".join([*words, f"color({color})"] if color else words)


class Toned(NamedTuple):
    """A text and its tone. Both texts may be messages, and hostile. `head`: its beginning, if only that is painted."""

    text: str
    tone: Tone
    head: str = ""

    def painted(self, line: str, color: bool, *, first: bool = True) -> str:
        """A line of it, after `cleaned`. A head is in the first one."""
        head = self.head if first else ""
        return painted_head(line, head if self.head else line, self.tone, color)


def cleaned(text: str | Toned) -> Toned:
    """Translated, and harmless."""
    toned = text if isinstance(text, Toned) else Toned(text, Tone.PLAIN)
    return toned._replace(text=clean(translated(toned.text)), head=clean(translated(toned.head)))


#: Colours of workers by index. Neighbours differ, also for colour-blind readers. No red: red means failed.
WORKERS = (32, 166, 134, 100, 30, 99, 130, 132, 63, 94, 163, 28)


def painted(text: str, tone: Tone, color: bool) -> str:
    """`text` in a tone if `color` is set. It must be clean, and one line."""
    return f"\x1b[{tone.value}m{text}\x1b[0m" if color and tone.value and text else text


def painted_head(text: str, head: str, tone: Tone, color: bool) -> str:
    """`text` with `head`, with which it begins, in a tone if `color` is set. Both must be clean and translated."""
    return painted(head, tone, color) + text[len(head) :] if text.startswith(head) else text
