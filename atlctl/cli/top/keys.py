"""The keyboard while a view lives: `q` leaves it, nothing that is typed shows on the screen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator


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
