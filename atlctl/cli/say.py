"""Output of commands: notes on stderr, and data in the format of `-o`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from atlctl.cli.runtime import context
from atlctl.i18n import Message, plural, translated
from atlctl.jobs.naming import fold_names, names_by_reason
from atlctl.render.palette import Tone, Toned, cleaned
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams, note_text, warning_text
from atlctl.render.width import wrapped

if TYPE_CHECKING:
    from atlctl.fanout.engine import FanOut
    from atlctl.jobs.model import State

T = TypeVar("T")

#: The most reasons that are shown one by one.
MOST_REASONS = 20


def note(text: str) -> None:
    """A `note:` line on stderr; nothing with -q."""
    if not context().quiet:
        _stderr(note_text(text, context().streams.stderr_color))


def warning(text: str) -> None:
    """A `warning:` line on stderr, also with -q."""
    streams = context().streams
    _stderr(warning_text(text, streams.stderr_color, streams.stderr_width))


def line(text: str | Toned, hang: int | None = None) -> None:
    """A line on stderr; nothing with -q. With `hang` it wraps at words on a terminal, further lines behind so many
    blanks; commands to copy are in lines that do not wrap."""
    if context().quiet:
        return
    streams = context().streams
    shown = cleaned(text)
    width = streams.stderr_width
    lines = [shown.text] if hang is None or width is None else wrapped(shown.text, width, hang)
    _stderr("\n".join((shown.painted(lines[0], streams.stderr_color), *lines[1:])))


def by_reason(found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names and reasons, each reason once with its names folded; the last one, without names, counts those left out."""
    alike = names_by_reason(found)
    for why, names in list(alike.items())[:MOST_REASONS]:
        yield fold_names(name for name in names if name), why
    if len(alike) > MOST_REASONS:
        yield "", Message("and {count} more reasons", count=len(alike) - MOST_REASONS)


def about(found: Iterable[tuple[str, tuple[bool, str]]]) -> None:
    """Names, and of each whether something is wrong and what: a warning or a note for each text, its names folded."""
    for (bad, text), names in names_by_reason(found).items():
        (warning if bad else note)(Message("{names}: {text}", names=fold_names(names), text=text))


@contextlib.contextmanager
def doing(
    what: str | Callable[[], str],
    *,
    done: Callable[[], float] | None = None,
    total: float | None = None,
    size: bool = False,
    limit: float | None = None,
) -> Iterator[None]:
    """Show a text in the status line while the block runs, see `atlctl.render.status.Wait`. Free without one."""
    status = context().status
    if status is None:
        yield
        return
    from atlctl.render.status import Wait

    with status.doing(Wait(what, done, total, size, limit)):
        yield


def running(fan_out: FanOut) -> contextlib.AbstractContextManager[None]:
    """`doing`, of a command on many workers: how many are done, and who is waited for."""
    total = len(fan_out.unfinished())

    def told() -> Message:
        away, left = fan_out.unreached(), fan_out.unfinished()
        names = fold_names(worker.name for worker in away or left)
        if total == 1:
            alone = Message("connecting to {worker}") if away else Message("waiting for {worker}")
            return alone.filled(worker=names)
        if away:
            several, count = Message("{done}/{total} connected, waiting for {workers}"), total - len(away)
        else:
            several, count = Message("{done}/{total} done, waiting for {workers}"), total - len(left)
        return several.filled(done=count, total=total, workers=names)

    return doing(told)


class Counted:
    """How many of some awaitables have ended: each goes through a call of this."""

    def __init__(self) -> None:
        self.ended = 0

    async def __call__(self, work: Awaitable[T]) -> T:
        try:
            return await work
        finally:
            self.ended += 1


@contextlib.contextmanager
def counting(what: str | Callable[[], str], total: int, *, limit: float | None = None) -> Iterator[Counted]:
    """`doing` with a bar of what goes through the object that it gives."""
    counted = Counted()
    with doing(what, done=lambda: counted.ended, total=total, limit=limit):
        yield counted


def waiting(problem: str) -> Message:
    return Message("{problem}; waiting for it (Ctrl-C ends this)", problem=problem)


def now(text: str) -> None:
    """A line on stderr past the writer, for the moment before the process ends at once."""
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, f"{clean(translated(text))}\n".encode(errors="backslashreplace"))


def _stderr(text: str) -> None:
    context().writer.put("stderr", f"{text}\n".encode(errors="backslashreplace"))


def reads_stdin() -> None:
    """On a terminal: a note on the wait for input."""
    if os.isatty(0):
        note(Message("reading standard input; Ctrl-D ends it"))


def out(text: str) -> None:
    """Text that ends in its newline, on stdout. Already safe to show."""
    context().writer.put("stdout", text.encode(errors="backslashreplace"))


def as_document(data: Any, errors: Sequence[object] = ()) -> str:
    """`data` in its envelope, as JSON or YAML by `-o`. With errors the command is a partial success."""
    from atlctl.render.jsonout import dumps, envelope, yaml_dump

    whole = envelope(context().command, "partial" if errors else "success", data, errors)
    return yaml_dump(whole) if context().output == "yaml" else dumps(whole) + "\n"


def document(data: Any, errors: Sequence[object] = ()) -> None:
    """`as_document` on stdout."""
    out(as_document(data, errors))


def workers(count: int) -> Message:
    return plural("{n} worker", "{n} workers", count)


#: The tones of states of jobs and workers.
STATE_TONES: Mapping[str, Tone] = {
    "Pending": Tone.WAITING,
    "Queued": Tone.WAITING,
    "Starting": Tone.WAITING,
    "Running": Tone.ACTIVE,
    "Held": Tone.HELD,
    "Debugging": Tone.HELD,
    "Restarting": Tone.WARN,
    "Suspended": Tone.DIM,
    "Stopping": Tone.WARN,
    "Stopped": Tone.DIM,
    "Succeeded": Tone.OK,
    "Failed": Tone.FAIL,
    "Lost": Tone.LOST,
    "Unknown": Tone.UNKNOWN,
}


def state(of: State, reason: str = "") -> Message:
    """The state of a job or worker, with its reason if there is one."""
    return Message("{state} ({reason})", state=of.label, reason=reason) if reason else of.label


def moment(epoch: float | None, streams: Streams, now: float) -> str:
    """A time as age on a terminal, as RFC 3339 on a pipe, `-` if unknown."""
    from atlctl.render.table import human_age, rfc3339

    if epoch is None:
        return "-"
    return human_age(now - epoch) if streams.stdout_tty else rfc3339(epoch)
