"""`top` on a terminal: the table again and again, until the user leaves or every worker has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

from atlctl.cli import say
from atlctl.cli.runtime import context
from atlctl.cli.top.table import Browsing, Picture
from atlctl.cli.top.watching import Watch
from atlctl.i18n import Message, joined
from atlctl.render.screen import ENTER, LEAVE, Screen, ascii_only, size

#: Seconds of silence that are odd: at least, and in intervals.
_STALE, _STALE_INTERVALS = 10.0, 3.0
#: Seconds in which the first answers of all are waited for.
_FIRST = 3.0
#: Seconds to the second table: samplers take their second sample, which gives the use of CPUs, after one.
_SECOND = 1.2
#: Seconds in which the rest of an escape sequence comes; in which the terminal takes what is left to write.
_ESCAPE, _FLUSH = 0.05, 0.5


async def show(watch: Watch, interval: float, order: str) -> None:
    """Until `q`, or the end of the last worker."""
    following = asyncio.create_task(watch.follow(interval))
    view = _Live(watch, interval, order)
    try:
        with view.keyboard():
            until = view.now() + _FIRST
            view.draw(anew=True)
            while not (view.left or following.done() or all(view.answered for view in watch.views)):
                if not await _wait(following, watch.changed, until - view.now()):
                    break
            pause = min(_SECOND, interval)
            while not view.left:
                watch.measure()
                view.draw(anew=True)
                if watch.over or following.done():
                    break
                until, pause = view.now() + pause, interval
                while await _wait(following, view.again, until - view.now()) and not (view.left or following.done()):
                    view.draw()
    finally:
        following.cancel()
        await asyncio.wait([following])
        if watch.over and not view.screen.plain:
            say.out(view.last())
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


def _tell_left(watch: Watch) -> None:
    if watch.left:
        from atlctl.jobs.naming import fold_names

        say.warning(Message("{workers}: nvidia-smi may still run there", workers=fold_names(watch.left)))


class _Live:
    """The screen, the keyboard, and what the user has chosen with it."""

    def __init__(self, watch: Watch, interval: float, order: str) -> None:
        self.left = False
        #: Set whenever a key, or another size, calls for another picture.
        self.again = asyncio.Event()
        self.now = asyncio.get_running_loop().time
        self._watch = watch
        self._stale = max(_STALE, _STALE_INTERVALS * interval)
        self._choice = Browsing(order)
        self._typed = ""
        self._mode: list[Any] | None = None
        self._taken = False
        streams, plain = context().streams, os.environ.get("TERM", "dumb") in ("dumb", "")
        self.screen = Screen(plain, streams.stdout_color, ascii_only(os.environ))
        self._picture = self._look()

    # The picture

    def _look(self) -> Picture:
        now = self.now()
        troubles = {view.worker.name: joined(view.troubles(now, self._stale)) for view in self._watch.views}
        return Picture(self._watch.job.name, self._watch.views, troubles)

    def draw(self, anew: bool = False) -> None:
        """`anew`: with the latest figures. Nothing is drawn while the terminal takes nothing, as after
        Ctrl-S."""
        if context().writer.pending_bytes:
            return
        if anew:
            self._picture = self._look()
        found = size()
        lines, chosen = self._picture.page(self._choice, found, not self.screen.plain)
        say.out(self.screen.draw(lines, *found, chosen=chosen) + ("\n" if self.screen.plain else ""))

    def last(self) -> str:
        """The last table, for the screen that was there before."""
        lines, _ = self._picture.page(Browsing(self._choice.order), size(), keys=False)
        return Screen(True, context().streams.stdout_color, ascii_only(os.environ)).draw(lines, *size())

    # The keyboard

    @contextlib.contextmanager
    def keyboard(self) -> Iterator[None]:
        """Takes keys and the whole screen, also again after a stop (Ctrl-Z); both are put back."""
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGWINCH: self._changed, signal.SIGCONT: self._take, signal.SIGTSTP: self._stop}
        handlers = {number: act for number, act in handlers.items() if signal.getsignal(number) != signal.SIG_IGN}
        for number, act in handlers.items():
            loop.add_signal_handler(number, act)
        self._take()
        context().on_second = self._drop
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
            self._give()

    def _changed(self) -> None:
        self.screen.forget()
        self.again.set()

    def _take(self) -> None:
        import termios

        with contextlib.suppress(OSError, termios.error):
            if os.isatty(0):
                self._mode = self._mode or termios.tcgetattr(0)
                mode = [*self._mode[:6], list(self._mode[6])]
                mode[3] &= ~(termios.ICANON | termios.ECHO)
                mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
                # In the background this stops the process, as it does any program that takes the whole terminal.
                termios.tcsetattr(0, termios.TCSANOW, mode)
                asyncio.get_running_loop().add_reader(0, self._read)
        if not self._taken and not self.screen.plain:
            say.out(ENTER)
        self._taken = True
        self._changed()

    def _give(self) -> None:
        import termios

        if self._mode is not None:
            asyncio.get_running_loop().remove_reader(0)
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(0, termios.TCSANOW, self._mode)
        if not self.screen.plain:
            say.out(LEAVE)
        self._taken = False

    def _drop(self) -> None:
        """Leave the screen past the writer, before the process ends at once."""
        if not self.screen.plain:
            with contextlib.suppress(OSError):
                os.write(1, LEAVE.encode())

    def _stop(self) -> None:
        """Ctrl-Z: as it would be without a handler, but with the terminal as it was."""
        loop = asyncio.get_running_loop()
        self._give()
        context().writer.flush(_FLUSH)
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        # It went on; or never stopped, as in a process group without a shell.
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._take()

    def _read(self) -> None:
        try:
            typed = os.read(0, 1024)
        except OSError:
            typed = b""
        if not typed:
            asyncio.get_running_loop().remove_reader(0)
            self._leave()
        self._typed += typed.decode(errors="ignore")
        # A sequence may come in pieces: an escape counts as a key only if nothing follows at once.
        if self._typed.endswith(("\x1b", "\x1b[", "\x1bO")):
            asyncio.get_running_loop().call_later(_ESCAPE, self._keys)
        else:
            self._keys()

    def _keys(self) -> None:
        keys, self._typed = _KEY.findall(self._typed), ""
        for key in keys:
            (self._type if self._choice.typing else self._press)(key)
        self.again.set()

    def _leave(self) -> None:
        self.left = True
        self.again.set()
        self._watch.changed.set()

    def _type(self, key: str) -> None:
        """A key while the filter is typed."""
        choice = self._choice
        if key in "\r\n":
            choice.typing = False
        elif key == "\x1b":
            choice.needle, choice.typing = "", False
        elif key in "\x7f\b":
            choice.needle = choice.needle[:-1]
        elif key == "\x15":
            choice.needle = ""
        elif key.isprintable():
            choice.needle += key

    def _press(self, key: str) -> None:
        choice = self._choice
        if key in "qQ":
            self._leave()
        elif key in _MOVES:
            choice.move(_MOVES[key])
        elif key in _PAGES:
            choice.move(_PAGES[key] * choice.room)
        elif key == "?":
            choice.show("help")
        elif choice.pane != "table":
            if key in "\x1b\r\n\x7f\b":
                choice.show("table")
        elif key in "\r\n" and choice.rows:
            choice.move(0)
            choice.show("worker")
        elif key == "s":
            choice.sort()
        elif key == "w":
            choice.only = not choice.only
        elif key == "/":
            choice.typing = True
        elif key == "\x1b":
            choice.needle = ""


_KEY = re.compile("\x1b\\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
#: Rows that keys move by; or pages. More than there are: to an end.
_END = 1 << 20
_MOVES = {
    **dict.fromkeys(("k", "\x1b[A", "\x1bOA"), -1),
    **dict.fromkeys(("j", "\x1b[B", "\x1bOB"), 1),
    **dict.fromkeys(("g", "\x1b[H", "\x1bOH", "\x1b[1~"), -_END),
    **dict.fromkeys(("G", "\x1b[F", "\x1bOF", "\x1b[4~"), _END),
}
_PAGES = {"\x1b[5~": -1, "\x1b[6~": 1, " ": 1}
