"""One wrapper's command: its start, signals, output and end, attempt by attempt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from atlctl.i18n import Message
from atlctl.remote import proc
from atlctl.remote.supervisor import processes
from atlctl.remote.supervisor.workers import StartError, spawn
from atlctl.run.output import Log, Pump, drained
from atlctl.run.own import Attempt, apart, kernel_lines
from atlctl.run.place import Post, command_environ

T = TypeVar("T")

#: Variables with the secret: no command gets them.
KEY_VARIABLES = ("ATLCTL_JOB_KEY", "ATLCTL_JOB_KEY_FILE")
#: Seconds for a look at the processes, for the output that a process left behind may still write, and for the log.
ASK_SECONDS, DRAIN_SECONDS, LOG_SECONDS = 5.0, 2.0, 5.0
#: Seconds from SIGKILL until a process is given up, and between looks at the processes.
KILL_SECONDS, LOOK_SECONDS, REAP_SECONDS = 5.0, 0.1, 5.0
#: Signals that a platform or a user sends to the job, and those that only the command understands.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH)


class Commanding:
    """A wrapper as far as it runs its command. `say` shows a line to the user, `shout` one that matters."""

    def __init__(
        self, place: Post, argv: Sequence[str], say: Callable[[str], None], shout: Callable[[str], None]
    ) -> None:
        self._place = place
        self._say, self._shout = say, shout
        self._attempt = Attempt(0, tuple(argv))
        self._cwd = os.getcwd()
        self._environ = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
        #: The signal of the platform or the user that ends the wrapper.
        self._signalled: int | None = None
        self._changed = asyncio.Event()
        self._bare: set[tuple[int, int]] = set()
        #: The log of the present attempt, and the time of the last message of the kernel before it or in it.
        self._log: Log | None = None
        self._kernel_seen = float("inf")

    @contextlib.asynccontextmanager
    async def _ready(self) -> AsyncIterator[None]:
        """Take signals, and the processes that others leave behind."""
        loop = asyncio.get_running_loop()
        for number in (*_ENDING, *_PASSED):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)
        with contextlib.suppress(OSError):
            processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        reaper = asyncio.create_task(self._reap())
        try:
            yield
        finally:
            reaper.cancel()
            await asyncio.gather(reaper, return_exceptions=True)

    async def _until_signalled(self, work: Awaitable[T]) -> T | None:
        """The result of `work`; None if a signal ends the wrapper first."""
        task = asyncio.ensure_future(work)
        waiting = asyncio.create_task(self._until(lambda: self._signalled is not None))
        try:
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for one in (task, waiting):
                one.cancel()
            await asyncio.gather(task, waiting, return_exceptions=True)

    def _on_signal(self, number: int) -> None:
        if (child := self._attempt.child) is not None and self._attempt.own is None:
            processes.send_group(child.pid, number)
        if number in _ENDING:
            self._signalled = number
            self._notify()

    def _notify(self) -> None:
        """Something has changed that `_until` may wait for."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, true: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until something is true, for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true():
                    await self._changed.wait()

    async def _reap(self) -> None:
        """End the zombies of processes that were left to this one. Its own children are waited for elsewhere: only one
        that stays a zombie is taken."""
        before: set[int] = set()
        while True:
            await asyncio.sleep(REAP_SECONDS)
            own = os.getpid()
            now = {pid for pid, one in proc.everything().items() if one.parent == own and one.state == "Z"}
            for pid in now & before:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - a zombie does not block
            before = now

    async def _ended(self, attempt: Attempt) -> None:
        """Wait for the first process of the command, then end those that it left behind."""
        assert attempt.child is not None
        code = await apart(attempt.child.wait, None)
        attempt.end_own(code)
        with contextlib.suppress(TimeoutError):
            if left := await apart(self._family, ASK_SECONDS):
                processes.send(left, signal.SIGTERM)
                await asyncio.sleep(LOOK_SECONDS)
                processes.send(await apart(self._family, ASK_SECONDS), signal.SIGKILL)

    async def _end_command(self, grace: float) -> tuple[str, int]:
        """SIGTERM to the processes of the command, SIGKILL after `grace` seconds to those that remain."""
        child = self._attempt.child
        if child is None or self._attempt.own is not None:
            return "already-ended", 0
        count, began, asked_ = 0, time.monotonic(), set[int]()
        while True:
            left = await apart(self._family, ASK_SECONDS)
            count = max(count, len(left))
            late = time.monotonic() - began
            if not left:
                return ("killed" if late > grace else "terminated"), count
            if late > grace + KILL_SECONDS:
                return "not-stopped", len(left)
            if late > grace:
                processes.send(left, signal.SIGKILL)
            elif not asked_:
                processes.send_group(child.pid, signal.SIGTERM)
                processes.send_group(child.pid, signal.SIGCONT)
                asked_ = left
            await asyncio.sleep(LOOK_SECONDS)

    def _family(self) -> set[int]:
        child = self._attempt.child
        if child is None:
            return set()
        job, worker = self._place.marks
        return processes.Snapshot(os.getpid(), job, self._bare).of_worker(worker, child.pid, self._attempt.start)

    async def _execute(self, attempt: Attempt, log: Log, files: str) -> None:
        """Run the command of an attempt to its end. `files`: the folder for what torch writes."""
        environ = command_environ(self._environ, self._place.marks, files)
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if os.isatty(0) else os.dup(0)
        attempt.started = time.time()
        try:
            attempt.child = spawn(
                attempt.argv,
                folder=self._cwd,
                env=environ,
                stdio=(stdin, ends[0][1], ends[1][1]),
                session=False,
                soft_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )
        except StartError as error:
            self._shout(Message("the command cannot be started: {why}", why=error.reason))
            attempt.end_own(error.exit_code)
        finally:
            os.close(stdin)
            for _, writer in ends:
                os.close(writer)
        pumps = [
            Pump(reader, screen, stream, log, self._place.label)
            for (reader, _), screen, stream in zip(ends, (1, 2), ("stdout", "stderr"), strict=True)
        ]
        if attempt.child is not None:
            found = processes.stat(attempt.child.pid)
            attempt.start = found.start if found is not None else 0
            await self._started(attempt)
            await self._ended(attempt)
        if self._signalled is None:
            await self._until_signalled(apart(lambda: drained(pumps, DRAIN_SECONDS), None))
        with contextlib.suppress(TimeoutError):
            await apart(lambda: drained(pumps, DRAIN_SECONDS), DRAIN_SECONDS + 1)

    def _not_started(self, why: str) -> None:
        self._shout(Message("the command is not started: {why}", why=why))

    async def _started(self, attempt: Attempt) -> None:
        """The command of an attempt has been started."""

    async def _note_kernel(self, since: float | None) -> None:
        """Add the kernel's messages after `since` to the log; without it the next ones count from now on."""
        with contextlib.suppress(TimeoutError, OSError):
            lines, self._kernel_seen = await apart(lambda: kernel_lines(since), ASK_SECONDS)
            if self._log is not None and lines:
                self._log.put("stderr", b"".join(lines))

    async def _close_log(self, log: Log, where: str) -> int:
        """Write the rest of a log; returns the bytes that it lacks, which it reports. `where`: its name."""
        with contextlib.suppress(TimeoutError):
            await apart(lambda: log.close(LOG_SECONDS), LOG_SECONDS + 1)
        if lost := log.lost:
            self._shout(Message("{count} bytes of the output are not in the log: {folder}", count=lost, folder=where))
        return lost
