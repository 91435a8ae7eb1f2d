"""Event loop: descriptors, ended children, timers. Single thread, standard library only."""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Callback = Callable[[], None]


class Loop:
    """Runs until `stop()`. Callbacks must not block."""

    def __init__(self, on_child: Callable[[int, int], None], on_batch: Callback) -> None:
        """Calls `on_child(pid, wait status)` for each reaped child, `on_batch()` after those that ended together."""
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._count = 0
        self._running = True
        self._handlers: dict[int, Callback] = {}
        self._on_child = on_child
        self._on_batch = on_batch
        self._read_wake, self._write_wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._read_wake, selectors.EVENT_READ, self._drain_wake)

    def install(self, handlers: dict[int, Callback]) -> None:
        """Watch for ended children, and call a handler for each of these signals."""
        self._handlers = handlers
        signal.set_wakeup_fd(self._write_wake, warn_on_full_buffer=False)
        # A handler and not SIG_IGN: workers would inherit ignored signals.
        for number in (signal.SIGCHLD, *handlers):
            signal.signal(number, self._nothing)

    @staticmethod
    def _nothing(number: int, frame: FrameType | None) -> None:
        """Does nothing: the wake-up descriptor carries the signal."""

    def read(self, descriptor: int, callback: Callback) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def write_also(self, descriptor: int, callback: Callback, wanted: bool) -> None:
        """Set whether `callback` is also called when `descriptor` is writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        self._selector.modify(descriptor, events, callback)

    def forget(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def later(self, seconds: float, callback: Callback) -> None:
        self._count += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, callback))

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        while self._running:
            timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            registered = self._selector.get_map()
            for key, _ in self._selector.select(timeout):
                # An earlier callback of this round may have closed it; if it was only changed, it is reported again.
                if registered.get(key.fd) is key:
                    key.data()
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()

    def _drain_wake(self) -> None:
        try:
            numbers = set(os.read(self._read_wake, 4096))
        except BlockingIOError:
            return
        if signal.SIGCHLD in numbers:
            self.reap()
        for number in numbers & set(self._handlers):
            self._handlers[number]()

    def reap(self) -> None:
        """Reap all ended children."""
        any_ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            any_ended = True
            self._on_child(pid, status)
        if any_ended:
            self._on_batch()
