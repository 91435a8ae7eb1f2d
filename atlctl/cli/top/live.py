"""`top` on a terminal: the table again and again, until the user leaves or every worker has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from atlctl.cli import say
from atlctl.cli.runtime import context
from atlctl.cli.top.table import page
from atlctl.cli.top.watching import Watch
from atlctl.i18n import Message
from atlctl.render.screen import Screen, size

#: Seconds of silence that are odd: at least, and in intervals.
_STALE, _STALE_INTERVALS = 10.0, 3.0
#: Seconds in which the first answers of all are waited for.
_FIRST = 3.0
#: Seconds to the second table: samplers take their second sample, which tells the use of CPUs, after one.
_SECOND = 1.2


async def show(watch: Watch, interval: float, order: str) -> None:
    """Until `q`, or the end of the last worker."""
    following = asyncio.create_task(watch.follow(interval))
    again, left = asyncio.Event(), asyncio.Event()
    streams = context().streams
    screen = Screen(os.environ.get("TERM", "dumb") in ("dumb", ""), streams.stdout_color)

    def changed() -> None:
        screen.forget()
        again.set()

    def leave() -> None:
        left.set()
        again.set()
        watch.changed.set()

    try:
        with listening(leave, changed):
            until = asyncio.get_running_loop().time() + _FIRST
            _draw(screen, watch, interval, order)
            while not (left.is_set() or following.done() or all(view.answered for view in watch.views)):
                if not await _wait(following, watch.changed, until - asyncio.get_running_loop().time()):
                    break
            pause = min(_SECOND, interval)
            while not left.is_set():
                watch.measure()
                _draw(screen, watch, interval, order)
                if watch.over or following.done():
                    break
                await _wait(following, again, pause)
                pause = interval
    finally:
        following.cancel()
        await asyncio.wait([following])
        _tell_left(watch)
    if not following.cancelled():
        following.result()


async def _wait(following: asyncio.Task[None], event: asyncio.Event, seconds: float) -> bool:
    """Until the event, which is taken back, or the end of the following, or the time is up: False then."""
    event.clear()
    told = asyncio.ensure_future(event.wait())
    try:
        done, _ = await asyncio.wait([following, told], timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
    return bool(done)


def _draw(screen: Screen, watch: Watch, interval: float, order: str) -> None:
    """Nothing where the terminal has not taken the last one yet, as after Ctrl-S."""
    if context().writer.pending_bytes:
        return
    stale = max(_STALE, _STALE_INTERVALS * interval)
    found = size()
    lines, heading = page(watch.job.name, watch.views, asyncio.get_running_loop().time(), stale, order, found)
    say.out(screen.draw(lines, *found, bold=heading))


def _tell_left(watch: Watch) -> None:
    if watch.left:
        from atlctl.jobs.naming import fold_names

        say.warning(Message("{workers}: nvidia-smi may still run there", workers=fold_names(watch.left)))


# The keyboard


@contextlib.contextmanager
def listening(leave: Callable[[], object], changed: Callable[[], object]) -> Iterator[None]:
    """`leave` at `q` and at the end of input; `changed` when the terminal has another size, or this process went on
    after a stop. The terminal's mode is put back."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGWINCH, signal.SIGCONT):
        loop.add_signal_handler(number, changed)
    try:
        with _keys(loop, leave):
            yield
    finally:
        for number in (signal.SIGWINCH, signal.SIGCONT):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _keys(loop: asyncio.AbstractEventLoop, leave: Callable[[], object]) -> Iterator[None]:
    import termios

    try:
        # In the background the keyboard is somebody else's, and taking it would stop this process.
        mine = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
        before = termios.tcgetattr(0) if mine else None
    except (OSError, termios.error):
        before = None
    if before is None:
        yield
        return

    def read() -> None:
        try:
            typed = os.read(0, 1024)
        except OSError:
            typed = b""
        if not typed:
            loop.remove_reader(0)
        if not typed or typed[:1] in b"qQ":
            leave()

    mode = [*before[:6], list(before[6])]
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    termios.tcsetattr(0, termios.TCSANOW, mode)
    loop.add_reader(0, read)
    try:
        yield
    finally:
        loop.remove_reader(0)
        termios.tcsetattr(0, termios.TCSANOW, before)
