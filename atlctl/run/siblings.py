"""Several wrappers of one worker: a launcher such as `srun` or `mpirun` starts one for each process of a host.

The wrapper with local id 0 checks and serves the worker. Each other one, a sibling, runs its own command and reports to
it over a Unix socket. The socket has an abstract name, which the kernel keeps apart by network namespace, and no file;
the name holds the user, the job and the PID namespace, and both ends ask the kernel for the user of the other one.

Orders to a sibling and reports of it are lines of JSON on one connection. The output of each attempt has a connection
for itself: pieces, each behind a line with its stream and its length.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from atlctl.i18n import Message
from atlctl.jobs.fields import items, mapping, text, whole
from atlctl.jobs.naming import fold_names
from atlctl.jobs.statedir import state_dir
from atlctl.remote.supervisor import processes
from atlctl.run.command import Commanding
from atlctl.run.meeting import keep_files
from atlctl.run.output import Log
from atlctl.run.own import Attempt, apart
from atlctl.run.place import BACKLOG, Post

#: Seconds between attempts to reach local id 0, and for the copies of evidence.
_POLL_SECONDS, _FILES_SECONDS = 0.2, 10.0
#: Bytes of one line, and of one piece of output.
_LINE, _PIECE = 1 << 20, 8 << 20
#: Ways in which commands end, from the gentlest to the worst.
_HOW = ("already-ended", "terminated", "killed", "not-stopped")


def _address(place: Post) -> str:
    apart_by = zlib.crc32(f"{os.readlink('/proc/self/ns/pid')} {place.index} {place.step}".encode())
    return f"\0atlctl-run-{os.geteuid()}-{place.job}-{apart_by:08x}"


def _encoded(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _decoded(line: bytes) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(line))
    except (ValueError, RecursionError):
        return {}


def worst(hows: Iterable[str]) -> str:
    """The least gentle of several ends."""
    return max(hows, key=_HOW.index)


@dataclass(slots=True)
class _Sibling:
    """Another process of this worker. `status` as of Popen, None while its command runs. `reported`: the status that
    counts when its output has come whole, as that of attempt `whole` has."""

    writer: asyncio.StreamWriter
    rank: int | None
    pid: int = 0
    attempt: int = 0
    status: int | None = None
    reported: int | None = None
    whole: int = 0
    stopped: asyncio.Future[tuple[str, int]] | None = None


@dataclass(slots=True)
class Siblings:
    """The other wrappers of the worker of `place`, known to local id 0. `changed` is called when something has changed
    that it may wait for, `ended` with a rank and its status when a command has ended."""

    place: Post
    changed: Callable[[], None]
    ended: Callable[[int | None, int], None]
    _log: Log | None = None
    _known: dict[int, _Sibling] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _order: dict[str, Any] | None = None
    #: Those that had come, and have ended.
    gone: set[int] = field(default_factory=set)

    async def listen(self) -> str:
        """Let the siblings come; returns why they cannot."""
        if self.place.beside == 1:
            return ""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(_address(self.place))
            made.listen(BACKLOG)
            self._server = await asyncio.start_unix_server(self._serve, sock=made, limit=_LINE)
        except OSError as error:
            made.close()
            return os.strerror(error.errno) if error.errno else str(error)
        return ""

    @property
    def complete(self) -> bool:
        """Whether all have come, or none can."""
        return self._server is None or len(self._known) >= self.place.beside - 1

    @property
    def missing(self) -> str:
        """The numbers of those that have not come."""
        return fold_names(str(number) for number in range(1, self.place.beside) if number not in self._known)

    @property
    def running(self) -> bool:
        """Whether a command of theirs runs, or its output is still under way."""
        return any(one.attempt and one.status is None for one in self._known.values())

    @property
    def pids(self) -> list[int]:
        """The first processes of commands that run."""
        return [one.pid for one in self._known.values() if one.pid and one.status is None]

    @property
    def ranks(self) -> set[int]:
        """The global ranks of commands that run."""
        return {one.rank for one in self._known.values() if one.rank is not None and one.attempt and one.status is None}

    def start(self, attempt: int, argv: Sequence[str] | None, folder: str, log: Log) -> None:
        """Have all start their command, or `argv`. `folder`: for what torch writes."""
        self._log = log
        self._send({"do": "run", "attempt": attempt, "argv": None if argv is None else list(argv), "folder": folder})

    def leave(self, code: int, why: str) -> None:
        """Let all go, those that have not started their command with an exit code and a reason."""
        self._send({"do": "leave", "code": code, "why": why})

    def leave_ended(self) -> None:
        """Let those go whose command has ended."""
        for one in self._known.values():
            if one.status is not None:
                self._tell(one, {"do": "leave", "code": 0, "why": ""})

    async def stop(self, grace: float, seconds: float) -> tuple[str, int]:
        """End their commands; returns how, in the words of `worst`, and the number of processes."""
        waiting = []
        for one in self._known.values():
            if one.attempt and one.status is None:
                one.stopped = asyncio.get_running_loop().create_future()
                waiting.append(one.stopped)
                self._tell(one, {"do": "stop", "grace": grace})
        if not waiting:
            return _HOW[0], 0
        done, late = await asyncio.wait(waiting, timeout=seconds)
        hows = [future.result() for future in done] + [(_HOW[-1], 0)] * len(late)
        return worst(how for how, _ in hows), sum(count for _, count in hows)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
            for one in self._known.values():
                one.writer.close()
            for one in list(self._known.values()):
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(1.0):
                        await one.writer.wait_closed()

    def _send(self, order: dict[str, Any]) -> None:
        self._order = order
        for one in self._known.values():
            self._tell(one, order)

    def _tell(self, one: _Sibling, order: dict[str, Any]) -> None:
        if order["do"] == "run":
            one.attempt, one.status, one.reported, one.pid = order["attempt"], None, None, 0
        one.writer.write(_encoded(order))

    # Connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not processes.peer_is_me(writer.get_extra_info("socket")):
                return
            first = _decoded(await reader.readline())
            number = whole(first.get("local"))
            if number is None or not 0 < number < self.place.beside:
                return
            if first.get("event") == "output":
                await self._take_output(reader, number, whole(first.get("attempt")) or 0)
            elif number not in self._known:
                one = self._known[number] = _Sibling(writer, whole(first.get("rank")))
                if self._order is not None:
                    self._tell(one, self._order)
                self.changed()
                try:
                    while line := await reader.readline():
                        self._reported(one, _decoded(line))
                finally:
                    self._lost(number, one)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return  # the connection has gone, or a line is too long
        finally:
            writer.close()

    async def _take_output(self, reader: asyncio.StreamReader, number: int, attempt: int) -> None:
        try:
            while head := await reader.readline():
                stream, _, size = head.decode("ascii", "replace").strip().partition(" ")
                if stream not in ("stdout", "stderr") or not size.isdecimal() or int(size) > _PIECE:
                    return
                data = await reader.readexactly(int(size))
                one = self._known.get(number)
                if one is not None and one.attempt == attempt and self._log is not None:
                    self._log.put(stream, data)
        finally:
            if (one := self._known.get(number)) is not None:
                one.whole = attempt
                self._settle(one)

    def _reported(self, one: _Sibling, told: Mapping[str, Any]) -> None:
        event = told.get("event")
        if event == "started":
            one.pid = whole(told.get("pid")) or 0
        elif event == "ended" and told.get("attempt") == one.attempt:
            one.reported = whole(told.get("status")) or 0
            self._settle(one)
        elif event == "stopped" and one.stopped is not None and not one.stopped.done():
            how = text(told.get("how"), 20)
            one.stopped.set_result((how if how in _HOW else _HOW[-1], whole(told.get("processes")) or 0))
        self.changed()

    def _settle(self, one: _Sibling) -> None:
        """Take the end of a command when its output has come."""
        if one.reported is not None and one.status is None and one.whole == one.attempt:
            one.status = one.reported
            self.ended(one.rank, one.status)
            self.changed()

    def _lost(self, number: int, one: _Sibling) -> None:
        """A wrapper has ended. If it had not reported the end of its command, that has failed with it."""
        del self._known[number]
        self.gone.add(number)
        if one.stopped is not None and not one.stopped.done():
            one.stopped.set_result((_HOW[1], 0))
        if one.attempt and one.status is None:
            one.status = -signal.SIGKILL if one.reported is None else one.reported
            self.ended(one.rank, one.status)
        self.changed()


class _ToFirst:
    """Writes the output of a command to local id 0, in the thread of its log."""

    def __init__(self, place: Post, attempt: int) -> None:
        """Raises OSError."""
        self.lost = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(_address(place))
        self._socket.sendall(_encoded({"event": "output", "local": place.local, "attempt": attempt}))

    def feed(self, stream: str, data: bytes, stamp: bytes) -> None:  # noqa: ARG002  the other end has the same clock
        try:
            self._socket.sendall(b"%s %d\n%s" % (stream.encode("ascii"), len(data), data))
        except OSError:
            self.lost += len(data)

    def close(self) -> None:
        self._socket.close()


class SiblingWrapper(Commanding):
    """The wrapper of a sibling: it runs its command when local id 0 says so, and leaves with it."""

    def __init__(
        self, place: Post, argv: Sequence[str], wait: float, say: Callable[[str], None], shout: Callable[[str], None]
    ) -> None:
        """`wait`: seconds for local id 0 to come."""
        super().__init__(place, argv, say, shout)
        self._wait = wait if place.beside > 1 else 0.0  # else local id 0 knows of no other
        self._writer: asyncio.StreamWriter | None = None
        #: The next order to run the command; the order to leave.
        self._next: Mapping[str, Any] | None = None
        self._left: Mapping[str, Any] | None = None

    async def run(self) -> int:
        """The exit code of the last attempt, or the one that local id 0 gives."""
        async with self._ready():
            reading = await self._until_signalled(self._join())
            try:
                while self._signalled is None:
                    await self._until_signalled(self._until(lambda: self._next is not None or self._left is not None))
                    if self._signalled is not None or self._next is None:
                        break
                    order, self._next = self._next, None
                    await self._run_command(order)
            finally:
                if reading is not None:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                if self._writer is not None:
                    self._writer.close()
        if self._signalled is not None:
            return 128 + self._signalled
        if self._attempt.own is not None:
            return self._attempt.own_code
        left = self._left or {}
        self._not_started(text(left.get("why"), 2000))
        return whole(left.get("code")) or 0

    async def _join(self) -> asyncio.Task[None] | None:
        """Come to local id 0; without it the command runs all the same."""
        deadline = time.monotonic() + self._wait
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(_address(self._place), limit=_LINE)
                if processes.peer_is_me(self._writer.get_extra_info("socket")):
                    break
                self._writer.close()
            except OSError:
                pass
            self._writer = None
            if time.monotonic() > deadline:
                self._shout(
                    Message(
                        "the wrapper with local id 0 did not answer within {seconds:g} s: the command starts without "
                        "log and verdict",
                        seconds=self._wait,
                    )
                )
                self._next, self._left = {"attempt": 1}, {}
                return None
            await asyncio.sleep(_POLL_SECONDS)
        self._report(local=self._place.local, rank=self._place.rank)
        return asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Take orders."""
        stopping: asyncio.Task[None] | None = None
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                order = _decoded(line)
                if order.get("do") == "run":
                    self._next = order
                elif order.get("do") == "leave":
                    self._left = order
                elif order.get("do") == "stop":
                    grace = order.get("grace")
                    stopping = asyncio.create_task(self._stop(float(grace) if isinstance(grace, int | float) else 10.0))
                self._notify()
        if self._left is None:
            # Local id 0 was killed: the command runs all the same, and nothing is waited for after it.
            if self._attempt.number == 0 and self._next is None:
                self._next = {"attempt": 1}
            self._left = {}
        self._notify()
        if stopping is not None:
            await stopping

    async def _stop(self, grace: float) -> None:
        self._attempt.stopped = True
        how, count = await self._end_command(grace)
        self._report(event="stopped", how=how, processes=count)

    def _report(self, **told: Any) -> None:
        if self._writer is not None:
            self._writer.write(_encoded(told))

    async def _run_command(self, order: Mapping[str, Any]) -> None:
        number = whole(order.get("attempt")) or 1
        argv = tuple(word for word in items(order.get("argv")) if isinstance(word, str)) or self._attempt.argv
        attempt = self._attempt = Attempt(number, argv)
        log = Log(partial(_ToFirst, self._place, number))
        files = os.path.join(state_dir(), "run-files", f"{os.getpid()}-{number}")
        await self._execute(attempt, log, files)
        if self._writer is not None:
            await self._close_log(log, self._place.name)
        folder = text(order.get("folder"), 4096)
        with contextlib.suppress(TimeoutError, OSError):
            target = os.path.join(folder, f"local-{self._place.local}")
            if folder.startswith("/"):
                await apart(lambda: keep_files(files, target), _FILES_SECONDS)
        attempt.ended = time.time()
        self._report(event="ended", attempt=number, status=attempt.own)

    async def _started(self, attempt: Attempt) -> None:
        assert attempt.child is not None
        self._report(event="started", pid=attempt.child.pid)
