"""Run one command in one place: turn the messages of its stream, and those of its wrapper, into events.

How the command ended is decided by these, in this order:

- The wrapper reports that the command was not started: FailedToStart.
- The transport's exit status, which comes after all output, together with the wrapper's report, the only proof of a
  signal.
- The wrapper's marks at the end of both streams: the command's own output is complete. No exit status arrives while a
  child of the command holds the streams open. The child's output is passed on for a moment; then a check shows whether
  processes are left whose later output is not shown: `truncated`.
- Everything else is Lost: the connection ended before any of these, or the wrapper was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol

from atlctl.backends.base import (
    NO_STATUS,
    NOT_CONNECTED,
    Event,
    ExecRequest,
    Exited,
    FailedToStart,
    Lost,
    Output,
    Started,
    Stream,
    TerminalSize,
)
from atlctl.backends.guarded import guard
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Worker

# The transport: opens streams to commands in one place, and describes its errors.


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended, in the transport's words alone."""

    outcome: Exited | FailedToStart | Lost


class Channel(Protocol):
    """One command's stream."""

    async def receive(self) -> Output | Ended | None:
        """The next message; None when the stream is over, or the connection is gone."""

    async def send(self, data: bytes) -> bool:
        """Send input to the command. Waits while the stream is full; False if the command no longer reads it."""

    async def close_stdin(self) -> None:
        """The end of input, where the transport has one."""

    async def resize(self, size: TerminalSize) -> None: ...

    async def close(self) -> None:
        """Ends the stream, within a second, whatever state it is in."""


class Place(Protocol):
    """Where commands run. `name` stands in messages."""

    name: str

    def command(
        self, words: Sequence[bytes], text: str | None, before: Sequence[str] = (), *, stdin: bool, tty: bool = False
    ) -> str:
        """What `open` takes for `words`; run by the shell text `text`, whose arguments `before` and they are then."""

    def impossible(self, words: tuple[str, ...], command: str) -> FailedToStart | None:
        """Why the transport cannot run these arguments; None if it can."""

    async def reach(self) -> None:
        """Connect. If this is cancelled, nothing was sent. Raises AtlctlError."""

    def unreached(self) -> FailedToStart:
        """The event for a `reach` that was cancelled, with its stage."""

    async def open(self, command: str, *, half_close: bool = False, size: TerminalSize | None = None) -> Channel:
        """Raises AtlctlError. `half_close`: the end of input must be tellable. `size`: of a terminal."""

    def refused(self, error: AtlctlError, *, half_close: bool = False) -> FailedToStart | Lost:
        """The event for an error of `open`: the command never ran, or may have run if no answer came."""


# Second streams to where a command runs: the watcher of one whose own stream cannot be the lifeline, and a look.

#: Seconds for a watcher to say that it reads.
READY_SECONDS = 30.0


class Watcher:
    """Ends a command, see guard.py."""

    def __init__(self, channel: Channel, mark: str) -> None:
        self._channel = channel
        self._words = guard.WordFilter(mark)
        self._heard: list[str] = []
        self._over = False
        self._news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def begin(cls, place: Place, mark: str, start: tuple[str, str], *, terminal: bool) -> Watcher | None:
        """Start a watcher and wait until it reads; None if it cannot be started."""
        command = place.command((), guard.WATCH, (mark, *start, "HUP" if terminal else ""), stdin=True)
        try:
            watcher = cls(await place.open(command), mark)
        except AtlctlError:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                if await watcher._hear("R"):
                    return watcher
        await watcher.close()
        return None

    async def end(self, tenths: int) -> bool:
        """End the command, and go. True when nothing is left of it."""
        try:
            return await self._channel.send(f"{tenths}\n".encode()) and await self._hear("G")
        finally:
            await self.close()

    async def ask(self) -> None:
        """Ask the watcher whether the command's shell is alive; `death` returns if it is not."""
        await self._channel.send(b"?\n")

    async def death(self) -> bool:
        """Wait until it reports that the command's shell was killed; False when it ends without that."""
        return await self._hear("D")

    async def leave(self) -> None:
        """Go, and let live what the command left behind."""
        await self._channel.send(b"q\n")
        await self.close()

    async def left(self) -> bool | None:
        """The answer of a look, None without one."""
        return "L 1" in self._heard if await self._hear("L 0", "L 1") else None

    async def close(self) -> None:
        """Without `leave`, this ends the command."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._channel.close()

    async def _hear(self, *words: str) -> bool:
        while not any(word in self._heard for word in words):
            if self._over:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    async def _read(self) -> None:
        try:
            while (said := await self._channel.receive()) is not None and not isinstance(said, Ended):
                if said.stream == "stderr":
                    self._heard += self._words.feed(said.data)[1]
                    self._news.set()
        finally:
            self._over = True
            self._news.set()


async def anything_left(place: Place, mark: str, start: tuple[str, str]) -> bool | None:
    """Whether a process of the command is left, None if that cannot be found out."""
    try:
        look = Watcher(await place.open(place.command((), guard.LOOK, (mark, *start), stdin=False)), mark)
    except AtlctlError:
        return None
    try:
        return await look.left()
    finally:
        await look.close()


#: When the command's own output is whole, seconds without a status until a look: at least, or twice the time that the
#: start took, since a loaded server is slow at both, but never more than the second figure. And seconds for the look,
#: and then for a status that must come if it finds nothing.
LINGER_SECONDS, LOOK_SECONDS = (0.3, 2.0), 5.0
#: Bytes that are passed on of what a child prints to a stream after the command's own output.
AFTERMATH = 1 << 20
#: Seconds without output until the guard is asked, and asked again, whether the command's shell is still alive.
ASK_SECONDS = 2.5
#: Seconds of silence on its own connection after which a shell that has gone was killed.
LAST_WORDS_SECONDS = 3.0
#: Seconds that an end may take beyond its grace: the watcher gives SIGKILL 5 s. And for the wrapper's first word.
END_MARGIN_SECONDS, WORD_SECONDS = 6.0, 3.0
#: Seconds of silence after which a command without a wrapper counts as started, and one with a wrapper as lost.
SILENT_START_SECONDS, FIRST_WORD_SECONDS = 0.3, 30.0
#: Bytes of output that may overtake the wrapper's first word; bytes of input that the transport is handed at once.
EARLY_LIMIT, PIECE = 1 << 20, 256 * 1024
SIGKILL = 9


class GuardedExecution:
    """See `atlctl.backends.base.Execution`."""

    def __init__(
        self,
        place: Place | FailedToStart,
        request: ExecRequest,
        shellless: set[str],
        closed: Callable[[GuardedExecution], object],
    ) -> None:
        """`place`: or why there is none. `shellless`: places without `sh`, of all executions of a run."""
        self._place = place if not isinstance(place, FailedToStart) else None
        self._nowhere = place if isinstance(place, FailedToStart) else None
        self._request = request
        self._shellless = shellless
        self._closed = closed
        self._mark = guard.new_mark()
        streams: tuple[Stream, Stream] = ("stdout", "stderr")
        self._words = {stream: guard.WordFilter(self._mark) for stream in streams}
        self._wrapped = True
        self._channel: Channel | None = None
        self._watcher: Watcher | None = None
        self._opening = False
        self._reaching: asyncio.Future[None] | None = None  # while nothing was sent yet
        self._opened = asyncio.Event()
        self._reading = asyncio.Lock()
        self._received = 0
        self._pending: asyncio.Task[Output | Ended | None] | None = None
        self._events: deque[Event] = deque()
        self._early: list[Output] = []
        self._early_size = 0
        self._begun_at = self._opened_at = 0.0
        #: PID and start time of the exec's first process.
        self._start: tuple[str, str] | None = None
        self._started = False
        self._ready = asyncio.Event()
        self._exit: guard.Ending | None = None
        #: Streams of which all has come that the command itself wrote, and bytes of each that came after that.
        self._whole: set[Stream] = set()
        self._after = dict.fromkeys(streams, 0)
        self._quiet = 0.0
        self._linger_until = 0.0
        self._looked = False
        self._cut = False
        self._killed = False
        #: Since when a message is waited for, None while none is.
        self._listening: float | None = None
        self._asking: asyncio.TimerHandle | None = None
        self._death: asyncio.Future[None] | None = None
        self._gone = False
        self._hung_up = False
        self._last: Event | None = None
        self._ending: asyncio.Future[bool] | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        #: Input of a terminal since its last newline: there an end of input only ends the line.
        self._line_begun = False
        self._size = request.tty

    async def __aiter__(self) -> AsyncIterator[Event]:
        await self._begin()
        if self._last is not None:
            self._ready.set()  # so that no caller waits for a command that never starts
        while True:
            while self._events:
                event = self._events.popleft()
                if not (isinstance(event, Output) and self._ending is not None):
                    yield event
            if self._last is not None:
                yield self._last
                return
            await self._step()

    # The start

    async def _begin(self) -> None:
        if self._ending is not None:
            self._last = FailedToStart(125, NOT_CONNECTED)
            return
        if self._place is None or self._nowhere is not None:
            self._last = self._nowhere
            return
        # A word that begins with a dash would be an option of the shell's `exec`.
        dashed = self._request.argv.words[0].startswith("-")
        self._wrapped = self._place.name not in self._shellless and not dashed
        self._opening = True
        try:
            await self._open(self._place)
        finally:
            self._opening = False
            self._opened.set()

    async def _open(self, place: Place) -> None:
        request = self._request
        tty = request.tty is not None
        given = tuple(os.fsencode(word) for word in request.argv.words)
        half_close = request.stdin and not tty
        if not self._wrapped:
            command = place.command(given, None, stdin=request.stdin or tty, tty=tty)
        elif self._size is not None:
            before = self._mark, os.environ.get("TERM") or "xterm", str(self._size.rows), str(self._size.columns)
            command = place.command(given, guard.TERMINAL, before, stdin=True, tty=True)
        else:
            text = guard.INPUT if request.stdin else guard.GUARD
            command = place.command(given, text, (self._mark,), stdin=True)
        self._last = place.impossible(request.argv.words, command)
        if self._last is not None:
            return
        self._begun_at = asyncio.get_running_loop().time()
        self._reaching = asyncio.ensure_future(place.reach())
        try:
            await asyncio.shield(self._reaching)
            self._channel = await place.open(command, half_close=half_close, size=self._size)
            self._opened_at = asyncio.get_running_loop().time()
            if self._guarded_here:
                # A startup file of a login shell may wait for a line of input: a question to the watcher is one.
                self._asking = asyncio.get_running_loop().call_later(ASK_SECONDS, self._ask)
        except AtlctlError as error:
            self._last = place.refused(error, half_close=half_close)
        except asyncio.CancelledError:
            if not self._reaching.cancelled():
                raise
            self._last = place.unreached()

    async def _watch(self) -> None:
        """The command's own exec has no watcher: open one beside it. Then the command has started."""
        assert self._start is not None
        assert self._place is not None
        if self._guarded_here:
            self._run(guarded=True)
            return
        self._watcher = watcher = await self._new_watcher(self._place, self._start)
        if self._request.tty is None:
            await self._send(b"\n")  # the command was held back until now
            if watcher is not None:
                self._death = asyncio.ensure_future(self._await_death(watcher))
        self._run(guarded=watcher is not None)

    async def _new_watcher(self, place: Place, start: tuple[str, str]) -> Watcher | None:
        return await Watcher.begin(place, self._mark, start, terminal=self._request.tty is not None)

    async def _await_death(self, watcher: Watcher) -> None:
        if not await watcher.death() or self._channel is None:
            return
        # Or it has ended as it should, and its last words are on their way here.
        self._killed = True
        loop = asyncio.get_running_loop()
        told = loop.time()
        while self._exit is None:
            await asyncio.sleep(0.05)
            if loop.time() - max(told, self._listening or loop.time()) > LAST_WORDS_SECONDS:
                await self._channel.close()
                return

    def _ask(self) -> None:
        """Ask the guard whether the command's shell is alive: a stream that other processes hold open does not show it.

        Only after everything received was read: if the server has already closed the connection, sending causes a
        reset, which discards output in flight.
        """
        now = asyncio.get_running_loop().time()
        if self._listening is None or now - self._listening < 0.9 * ASK_SECONDS:
            pass
        elif self._guarded_here:
            self._later(self._send(b"?\n"))
        elif self._watcher is not None:
            self._later(self._watcher.ask())
        self._asking = asyncio.get_running_loop().call_later(ASK_SECONDS, self._ask)

    @property
    def _guarded_here(self) -> bool:
        return self._wrapped and not self._request.stdin and self._request.tty is None

    def _run(self, *, guarded: bool) -> None:
        """The command has started."""
        if not self._started:
            self._started = True
            self._events.append(Started(guarded))
            if self._asking is None and guarded and self._request.tty is None:
                self._asking = asyncio.get_running_loop().call_later(ASK_SECONDS, self._ask)
            self._ready.set()
        for output in self._early:
            self._output(output)
        self._early.clear()

    # Messages

    async def _step(self) -> None:
        """Receive one message, and act on it."""
        async with self._reading:
            if self._last is not None or self._events:
                return
            await self._receive_one()

    async def _receive_one(self) -> None:
        if self._channel is None or self._hung_up:
            self._hung_up = True
            self._finish(Lost(Message("the connection is closed")))
            return
        self._listening = asyncio.get_running_loop().time()
        try:
            message = await self._message(self._channel)
        except TimeoutError:
            if self._is_whole:
                await self._look()
            elif self._wrapped:
                text = Message(
                    "the command was sent, but not started within {seconds:g} s; "
                    "a startup file of the shell, such as .bashrc, may be waiting for input",
                    seconds=FIRST_WORD_SECONDS,
                )
                self._finish(Lost(text))
            else:
                self._run(guarded=False)
            return
        finally:
            self._listening = None
            self._received += 1
        if message is None:
            self._hung_up = True
            self._finish(self._without_status())
            return
        if isinstance(message, Output):
            await self._hear(message)
        else:
            await self._status(message.outcome)

    async def _message(self, channel: Channel) -> Output | Ended | None:
        """The next message. Raises TimeoutError when patience is over; then the next call goes on waiting for it."""
        seconds = self._patience()
        if seconds is None and self._pending is None:
            return await channel.receive()
        self._pending = self._pending or asyncio.ensure_future(channel.receive())
        done, _ = await asyncio.wait([self._pending], timeout=seconds)
        if not done:
            raise TimeoutError
        message, self._pending = self._pending.result(), None
        return message

    def _patience(self) -> float | None:
        """Seconds to wait for a message, None for ever."""
        if self._last is None and self._is_whole:
            return max(0.0, self._linger_until - asyncio.get_running_loop().time())
        if self._last is not None or self._started:
            return None
        if self._wrapped:
            return max(0.0, self._opened_at + FIRST_WORD_SECONDS - asyncio.get_running_loop().time())
        return SILENT_START_SECONDS

    async def _hear(self, output: Output) -> None:
        """Output, with the wrapper's words in it."""
        words: list[str] = []
        if self._wrapped and (self._request.tty is None or self._start is None):
            taken = self._words[output.stream]
            own, words = taken.feed(output.data)
            if words and self._request.tty is not None:
                own += taken.rest()  # from here on it is the command's output
            if own != output.data:
                output = Output(output.stream, own)
        if output.data and not self._started and self._wrapped:
            self._early.append(output)
            self._early_size += len(output.data)
        elif output.data:
            self._run(guarded=False)
            self._output(output)
        for word in words:
            await self._word(output.stream, word.split(" ", 1))
        if self._early_size > EARLY_LIMIT:
            # Whatever `sh` is there, it does not say what ours says.
            self._run(guarded=False)

    def _output(self, output: Output) -> None:
        if output.stream in self._whole:
            self._after[output.stream] += len(output.data)
            if self._after[output.stream] > AFTERMATH:
                self._cut = True
                if self._is_whole:
                    self._finish(self._exited())
                return
        if self._ending is None and self._last is None:
            self._events.append(output)

    async def _word(self, stream: Stream, word: list[str]) -> None:
        rest = word[1] if len(word) == 2 else ""
        if word[0] == "S" and len(rest.split()) == 2 and self._start is None:
            pid, time = rest.split()
            self._start = pid, time
            least, most = LINGER_SECONDS
            self._quiet = max(least, min(most, 2 * (asyncio.get_running_loop().time() - self._begun_at)))
            await self._watch()
        elif word[0] == "F" and rest.isascii() and rest.isdigit() and len(rest) < 4:
            self._exit = guard.Ending(int(rest), None, never_ran=True)
        elif word[0] == "X":
            self._exit = guard.ending(rest)
            self._end_of(stream)
            if self._ending is not None:
                self._finish(self._exited())
        elif word[0] == "E":
            self._end_of(stream)
        elif word[0] == "D":
            self._killed = True
            self._finish(self._without_status())
        elif word[0] == "G":
            self._gone = True

    @property
    def _exit_heard(self) -> bool:
        """The wrapper has reported the exit, which is its last word on stderr."""
        return "stderr" in self._whole

    @property
    def _is_whole(self) -> bool:
        """All has come that the command itself wrote."""
        return len(self._whole) == 2

    def _end_of(self, stream: Stream) -> None:
        self._whole.add(stream)
        self._linger_until = asyncio.get_running_loop().time() + self._quiet

    async def _look(self) -> None:
        """The output is whole, and no status has come: is something left that holds the streams open?"""
        if not self._looked and self._place is not None and self._start is not None:
            self._looked = True
            left: bool | None = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    left = await anything_left(self._place, self._mark, self._start)
            if left is False:
                self._linger_until = asyncio.get_running_loop().time() + LOOK_SECONDS
                return
        self._cut = True
        self._finish(self._exited())

    def _without_status(self) -> Event:
        """The connection is over, or the shell is gone that would have reported the end."""
        if self._killed and self._exit is None:
            return Lost(Message("the shell that ran the command was killed: output may be incomplete"))
        if self._is_whole:
            return self._exited()
        if self._exit_heard and isinstance(exited := self._exited(), Exited):
            how = Message("exit code {code}", code=exited.exit_code)
            if exited.signal is not None:
                how = Message("signal {number}", number=exited.signal)
            return Lost(Message("connection lost before all output had arrived; the command ended with {how}", how=how))
        return Lost(NO_STATUS)

    def _exited(self) -> Event:
        """The end as the wrapper reported it."""
        if self._exit is None:
            return Lost(Message("the shell that waited for the command was ended"))
        if self._exit.never_ran:
            why = {127: Message("command not found"), 126: Message("cannot be executed")}.get(
                self._exit.code, Message("could not be started")
            )
            word = self._request.argv.words[0]
            return FailedToStart(self._exit.code, Message("{command}: {why}", command=word, why=why))
        if self._exit.signal is not None:
            return Exited(signal=self._exit.signal, truncated=self._cut)
        return Exited(exit_code=self._exit.code, truncated=self._cut)

    async def _status(self, outcome: Exited | FailedToStart | Lost) -> None:
        """The server's last word."""
        if self._last is not None:
            return
        if not self._wrapped or isinstance(outcome, Lost):
            if isinstance(outcome, Exited):
                self._run(guarded=False)
            self._finish(outcome)
        elif isinstance(outcome, FailedToStart):
            await self._without_shell(outcome)
        elif self._exit_heard or (self._exit is not None and self._exit.never_ran):
            self._finish(self._exited())
        elif self._start is not None:
            self._finish(self._unexplained(outcome))
        else:
            said = b"".join(early.data for early in self._early).decode(errors="replace").strip()
            code = outcome.exit_code or 0
            self._early.clear()
            if code == 0:
                self._finish(Lost(Message("the worker's shell ended and reported nothing")))
            elif code == 128 + SIGKILL:
                self._finish(FailedToStart(255, Message("not running: the container ended")))
            else:
                why = said[:300] or Message("code {code}", code=code)
                self._finish(FailedToStart(125, Message("the worker's shell failed: {why}", why=why)))

    def _unexplained(self, outcome: Exited) -> Event:
        """The Status of a command whose wrapper said nothing of its end."""
        if self._request.tty is not None:
            return outcome  # there it never does: the command has taken its place
        if self._killed:
            return self._without_status()
        if outcome.exit_code == 128 + SIGKILL:
            return Lost(
                Message("the shell that ran the command was killed, maybe with its container: output may be incomplete")
            )
        return Lost(
            Message(
                "the shell that ran the command exited with code {code} and did not report how the command ended",
                code=outcome.exit_code,
            )
        )

    async def _without_shell(self, outcome: FailedToStart) -> None:
        """The container has no `sh`: run the command as it is."""
        if self._started or outcome.exit_code not in (126, 127) or self._place is None:
            self._finish(outcome)
            return
        self._shellless.add(self._place.name)
        self._wrapped = False
        if self._channel is not None:
            await self._channel.close()
        for words in self._words.values():
            words.rest()
        await self._open(self._place)

    def _finish(self, event: Event) -> None:
        """End with `event`, after the output that was held back."""
        if self._last is not None:
            return
        if self._wrapped and isinstance(event, Exited) and not self._started:
            self._run(guarded=False)
        for stream, words in self._words.items():
            if (rest := words.rest()) and self._started and self._ending is None:
                self._events.append(Output(stream, rest))
        if self._asking is not None:
            self._asking.cancel()
        self._last = event
        self._ready.set()
        if self._watcher is not None and self._ending is None and isinstance(event, Exited):
            watcher, self._watcher = self._watcher, None
            self._later(watcher.leave())

    def _later(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Input

    async def write(self, data: bytes) -> bool:
        await self._ready.wait()
        view = memoryview(data)
        for start in range(0, len(data), PIECE):
            if self._over or not await self._send(bytes(view[start : start + PIECE])):
                return False
        if data:
            self._line_begun = not data.endswith(b"\n")
        return not self._over

    @property
    def _over(self) -> bool:
        """The command no longer reads its input, although the server may still accept it."""
        return self._last is not None or self._ending is not None

    async def _send(self, data: bytes) -> bool:
        return self._channel is not None and not self._hung_up and await self._channel.send(data)

    async def close_stdin(self) -> None:
        if self._request.tty is not None:
            # A terminal has no end that could be closed. The first of two only ends a line that was begun.
            await self.write(b"\x04\x04" if self._line_begun else b"\x04")
        elif self._request.stdin and self._channel is not None:
            await self._ready.wait()
            if not self._hung_up:
                await self._channel.close_stdin()

    def resize(self, size: TerminalSize) -> None:
        if self._request.tty is not None:
            self._size = size
            if self._channel is not None:
                self._later(self._channel.resize(size))

    # The end

    async def end(self, grace: float) -> bool:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(grace))
        return await asyncio.shield(self._ending)

    async def _end(self, grace: float) -> bool:
        try:
            async with asyncio.timeout(grace + END_MARGIN_SECONDS):
                if self._reaching is not None:
                    self._reaching.cancel()
                if self._opening:
                    await self._opened.wait()
                if self._channel is None:
                    return True
                return await self._prove(max(0, round(grace * 10)))
        except TimeoutError:
            return False

    async def _prove(self, tenths: int) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORD_SECONDS):  # also if started: output may have overtaken the first word
                while self._last is None and (not self._started or (self._wrapped and self._start is None)):
                    await self._read_on()
        if isinstance(self._last, FailedToStart):
            return True
        if self._start is None or self._place is None:
            return isinstance(self._last, Exited)  # without a wrapper nothing more can be done
        if self._guarded_here and not self._exit_heard and await self._send(f"{tenths}\n".encode()):
            while not self._gone and not self._hung_up and not (self._last is not None and not self._exit_heard):
                await self._read_on()
            if self._gone:
                await self._let_go()
                return True
        watcher, self._watcher = self._watcher, None
        watcher = watcher or await self._new_watcher(self._place, self._start)
        return watcher is not None and await watcher.end(tenths)

    async def _let_go(self) -> None:
        """Nothing is left but the wrapper: wait until it has gone, too."""
        if await self._send(b"q\n"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    while not self._hung_up:
                        await self._read_on()

    async def _read_on(self) -> None:
        """Receive one message, or return once another task received one, maybe the one that the caller waits for."""
        before = self._received
        async with self._reading:
            if self._received == before and not self._hung_up:
                await self._receive_one()

    async def aclose(self) -> None:
        self._closed(self)
        if self._ending is not None:
            self._ending.cancel()
        if self._pending is not None:
            self._pending.cancel()
        for waiting in (self._reaching, self._death, self._asking):
            if waiting is not None:
                waiting.cancel()
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._hung_up = True
        self._last = self._last or Lost(Message("closed"))
        self._ready.set()
        watcher, self._watcher = self._watcher, None
        await asyncio.gather(*[one.close() for one in (self._channel, watcher) if one is not None])


class GuardedExecutor:
    """See `atlctl.backends.base.Executor`."""

    def __init__(self, place: Callable[[Worker], Place | FailedToStart]) -> None:
        """`place`: where a worker is reached, or why there is no such place."""
        self._place = place
        self._open: set[GuardedExecution] = set()
        #: Places without `sh`: tried once.
        self._shellless: set[str] = set()

    def run(self, worker: Worker, request: ExecRequest) -> GuardedExecution:
        place = _impossible(request.argv.words) or self._place(worker)
        execution = GuardedExecution(place, request, self._shellless, self._open.discard)
        self._open.add(execution)
        return execution

    async def aclose(self) -> None:
        await asyncio.gather(*[execution.aclose() for execution in list(self._open)])


def _impossible(words: tuple[str, ...]) -> FailedToStart | None:
    """Why these arguments cannot be run on any transport; None if they can."""
    if not words:
        return FailedToStart(125, Message("no command"))
    if any("\0" in word for word in words):
        return FailedToStart(125, Message("{word!r}: an argument contains a NUL byte", word=words[0]))
    return None
