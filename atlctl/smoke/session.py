"""Agents on all workers over exec streams: start them in parallel, send commands, receive events, end them cleanly.

The agents do not use the tested network: a worker that is cut off from the others can still report.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import Any, Self

from atlctl.backends.base import Argv, ExecRequest, Execution, Executor, Stream
from atlctl.fanout import engine
from atlctl.fanout.limits import make_room
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.fanout.sessions import ExecutorAround, FedExecution, last_words, unanswered
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, no_answer
from atlctl.jobs.fields import message, parse_json, without_surrogates
from atlctl.jobs.model import Worker
from atlctl.remote import sending

#: Maximum number of workers connected to at the same time. All agents are alive together, as a roll call needs.
PARALLEL = 64
#: Seconds for an agent to leave by itself before it is killed.
_LEAVING = 2.0
#: Seconds for a connection in the making to end.
_UNREACHED = 0.2
#: Seconds from SIGTERM to SIGKILL when an agent is killed.
_GRACE = 1.0
#: Maximum bytes kept of one line, and of a worker's standard error.
_LINE, _STDERR = 4 << 20, 16 << 10
#: Maximum characters kept of a text from a worker.
_TOLD = 400
_MARK = b"\x1e"
#: Maximum factor by which timeouts are extended for a busy worker.
_SLOWEST = 5.0
#: Seconds of the slowest login up to which time limits are not extended.
SLOW_LOGIN = 3.0
#: Runnable processes for each CPU above which a late worker may only be slow.
_OVERLOADED = 2.0
_SILENT = (
    engine.UNANSWERED,
    Message("its agent was started and says nothing"),
    Message("a shell answers there, and no Python that it starts does"),
)

ODD_ANSWER = Message("its answer is not understood")

_AGENT, _SEEK = "atlctl.remote.smoke", "atlctl.remote.smoke.seek"

_log = logging.getLogger(__name__)

Fields = dict[str, Any]
Heard = Callable[[str, Fields], None]


class Absence(Enum):
    """Why a worker's agent is missing: no answer in time, not allowed to start it, or any other reason."""

    SILENT = auto()
    NOT_ALLOWED = auto()
    ENDED = auto()


def words_of(value: object, most: int = _TOLD) -> str:
    """A text from a worker, shortened and on one line; messages are returned unchanged."""
    if isinstance(value, Message):
        return value
    return "" if value is None else without_surrogates(" ".join(str(value)[:most].splitlines()))


def _with_messages(value: Any) -> Any:
    """Convert the message templates in a worker's event into messages."""
    if isinstance(value, list):
        return [_with_messages(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "template" in value:
        return message(value, 1000)
    return {key: _with_messages(item) for key, item in value.items()}


@dataclass(frozen=True, slots=True)
class Answer:
    """One agent's final answer to a command.

    `fields` is None if there is no answer; `problem` is the reason (untrusted text if it comes from a worker); `late`
    is True if nothing came in time.
    """

    fields: Fields | None = None
    problem: str = ""
    late: bool = False


@dataclass(slots=True)
class _Call:
    """A running command: the workers whose answers are missing, and the answers so far."""

    waiting: set[str]
    heard: Heard | None
    answers: dict[str, Answer] = field(default_factory=dict)
    moved: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Peer:
    """One worker's agent. `slow`: factor for its timeouts, 0 until its shell has reported the load. `gone`: the reason
    why it is missing; `absence`: the kind of reason. `begun`: the start of its login."""

    worker: Worker
    execution: _Agent | None = None
    slow: float = 0.0
    hello: Fields | None = None
    gone: str = ""
    absence: Absence | None = None
    outcome: Outcome | None = None
    held: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    begun: float = 0.0
    started: float | None = None


@cache
def program() -> bytes:
    """All modules of an agent, for its standard input, before the first command."""
    folder = Path(sending.__file__).parent / "smoke"
    return sending.packed(sending.needed(*(f"{_AGENT}.{file.stem}" for file in sorted(folder.glob("*.py")))))


@cache
def _search() -> bytes:
    """The program that looks for a Python with torch, for an agent's standard input, before `program`."""
    return sending.packed(sending.needed(_SEEK))


def request_for(torch: bool, patience: float) -> ExecRequest:
    """The command that starts an agent; with `torch`, a Python that has torch is preferred. `patience`: the factor for
    the time limit of that search."""
    first = (_SEEK, str(len(_search()))) if torch else ()
    last = f"{patience:g}", "torch" if torch else "any"
    words = (sending.boot(), *first, f"{_AGENT}.main", str(len(program())), "--", *last)
    return ExecRequest(Argv(sending.command("atlctl-smoke", "-u", words, sending.shell("alive"))), stdin=True)


class Session:
    """Agents on `workers`. Use: `async with`, `await roll_call()`, `await ask(...)`.

    `config` is sent to every agent: `seconds` to live, `torch`, `nice`, and settings of the agent's modules. With
    `torch`, a Python that has torch is searched and imports it; with `finds_torch` it is only searched. `patience`: the
    factor for all time limits.
    """

    def __init__(
        self, executor: Executor, workers: Sequence[Worker], config: Mapping[str, Any], patience: float = 1.0
    ) -> None:
        self._executor = executor
        self._patience = patience
        self._config = config
        self._searches = bool(config.get("torch") or config.get("finds_torch"))
        self._peers = {worker.name: _Peer(worker) for worker in workers}
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._joined = asyncio.Event()
        self._running: asyncio.Task[list[Outcome]] | None = None
        self._ending: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        workers = [peer.worker for peer in self._peers.values()]
        make_room(len(workers), PARALLEL, None)
        starting = ExecutorAround(self._executor, self._agent)
        request = request_for(self._searches, self._patience)
        limits = engine.Limits(PARALLEL, None, None, None, grace=_GRACE)
        self._running = asyncio.create_task(engine.run(starting, workers, request, limits, self))
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.leave()
        finally:
            for task in self._ending:
                task.cancel()
            if self._running is not None and not self._running.done():
                self._running.cancel()
            if self._running is not None:
                await asyncio.wait([self._running])
                if not self._running.cancelled() and (error := self._running.exception()) is not None:
                    _log.warning("the agents' streams ended early: %r", error)

    async def leave(self) -> None:
        """Let every agent clean up and exit; after two seconds, `__aexit__` kills the rest."""
        for name in self.living():
            self._send(name, {"cmd": "bye"})
        if self._running is not None:
            await asyncio.wait([self._running], timeout=_LEAVING)

    # State of the agents

    def living(self) -> list[str]:
        """Names of the workers whose agents have answered and are still running, in the order of the workers."""
        return [name for name, peer in self._peers.items() if peer.hello is not None and not peer.gone]

    def gone(self) -> dict[str, str]:
        """The reasons why the other agents are missing, as far as known. Untrusted text."""
        return {
            name: peer.gone or Message("no answer yet")
            for name, peer in self._peers.items()
            if peer.gone or peer.hello is None
        }

    def absence(self, name: str) -> Absence | None:
        """The kind of reason in `gone`; None if the agent is running or may still answer."""
        return self._peers[name].absence

    def hello(self, name: str) -> Fields:
        """The agent's first event: `pid`, `host`, `python`, `executable`, and `after`, the seconds of its login. Empty
        before it has arrived."""
        return self._peers[name].hello or {}

    def overloaded(self, name: str) -> bool:
        """Whether its shell reported twice as much load as CPUs: then a late answer proves nothing."""
        return self._peers[name].slow >= _OVERLOADED

    def may_still_run(self) -> list[str]:
        """After the session: workers on which the agent may still be running."""
        return [name for name, peer in self._peers.items() if peer.outcome is not None and peer.outcome.may_still_run]

    @property
    def pace(self) -> float:
        """The factor for time limits: the user's, and more if a login is slow."""
        slowest = max((peer.hello["after"] for peer in self._peers.values() if peer.hello), default=0.0)
        return self._patience * min(_SLOWEST, max(1.0, slowest / SLOW_LOGIN))

    # Commands

    async def roll_call(self, timeout: float, most: float | None = None) -> dict[str, str]:
        """Wait up to `timeout` seconds until every agent has answered or failed; gives up the others and returns them
        with the reason.

        With `most`, the timeout starts with the first answer and restarts with each further one; it is longer if a
        worker or this machine is busy, up to `most` seconds in total. So many workers or busy ones do not count as
        silent.
        """
        begun = heard = time.monotonic()
        here = os.getloadavg()[0]
        own = _slow({"load": here, "running": here, "cpus": os.cpu_count()})
        while left := [peer for peer in self._peers.values() if peer.hello is None and not peer.gone]:
            until = begun + (timeout if most is None else most)
            if most is not None and any(peer.hello or peer.slow for peer in self._peers.values()):
                until = min(heard + timeout * max(own, *(peer.slow for peer in left)), until)
            self._joined.clear()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await self._joined.wait()
            except TimeoutError:
                break
            heard = time.monotonic()
        waited = round(time.monotonic() - begun, 1)
        silent = [peer for peer in self._peers.values() if peer.hello is None and not peer.gone]
        for peer in silent:
            peer.absence = Absence.SILENT
            peer.gone = no_answer(waited, _SILENT[(peer.started is not None) + (peer.slow > 0)])
            if peer.execution is not None:
                self._ending.append(asyncio.create_task(_end(peer.execution)))
        if any(peer.started is None for peer in silent):
            # Its end brings the stage of a connection in the making.
            await asyncio.sleep(_UNREACHED)
            for peer in silent:
                if peer.outcome is not None and peer.outcome.kind is EndKind.FAILED_TO_START:
                    peer.gone = no_answer(waited, peer.outcome.reason)
        return {name: peer.gone for name, peer in self._peers.items() if peer.hello is None}

    async def ask(
        self,
        commands: Mapping[str, Mapping[str, Any]],
        timeout: float,
        heard: Heard | None = None,
        *,
        patience: float | None = None,
    ) -> dict[str, Answer]:
        """Send each worker its command (`{"cmd": ..., ...}`) and wait up to `timeout` seconds for all final answers,
        and as much longer as `pace` says.

        `heard` gets every event of these commands immediately, including the last. Returns an answer for every worker.
        With `patience`, after half have answered, the rest is given up if none answers for that many seconds, or for
        the time since the start if that is longer (on a starved machine all are slow).
        """
        self._number += 1
        number, call = self._number, _Call(set(commands), heard)
        self._calls[number] = call
        begun = time.monotonic()
        try:
            for name, command in commands.items():
                if self._peers[name].gone:
                    self._answer(number, name, Answer(None, self._peers[name].gone))
                else:
                    self._send(name, {**command, "id": number})
            await self._await(call, begun, timeout * self.pace, patience and patience * self.pace)
        finally:
            del self._calls[number]
        waited = round(time.monotonic() - begun, 1)
        late = Answer(None, no_answer(waited), late=True)
        return {name: call.answers.get(name, late) for name in commands}

    async def _await(self, call: _Call, begun: float, timeout: float, patience: float | None) -> None:
        while call.waiting:
            until = begun + timeout
            if patience is not None and len(call.answers) >= len(call.waiting):
                now = time.monotonic()
                until = min(until, now + max(patience, now - begun))
            call.moved.clear()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await call.moved.wait()
            except TimeoutError:
                return

    def tell(self, commands: Mapping[str, Mapping[str, Any]]) -> None:
        """Send commands without waiting for answers."""
        self._number += 1
        for name, command in commands.items():
            self._send(name, {**command, "id": self._number})

    def _send(self, name: str, command: Mapping[str, Any]) -> None:
        peer = self._peers[name]
        if peer.execution is not None:
            peer.execution.post(json.dumps(command, separators=(",", ":")).encode() + b"\n")

    def _answer(self, number: int, name: str, answer: Answer) -> None:
        call = self._calls[number]
        if name in call.waiting:
            call.waiting.discard(name)
            call.answers[name] = answer
            call.moved.set()

    # Output of the agents: the engine's sink

    async def started(self, worker: Worker) -> None:
        peer = self._peers[worker.name]
        peer.started = time.monotonic()
        self._joined.set()
        if peer.execution is not None:
            config = {**self._config, "index": worker.index, "worker": worker.name}
            search = _search() if self._searches else b""
            peer.execution.post(search + program() + json.dumps(config).encode() + b"\n")

    async def output(self, worker: Worker, stream: Stream, data: bytes) -> None:
        peer = self._peers[worker.name]
        if stream == "stderr":
            peer.stderr += data
            del peer.stderr[:-_STDERR]
            return
        peer.held += data
        if b"\n" not in data:
            if len(peer.held) > _LINE:
                peer.held.clear()
            return
        *lines, rest = peer.held.split(b"\n")
        peer.held = rest
        for line in lines:
            self._line(peer, bytes(line))

    async def finished(self, outcome: Outcome) -> None:
        peer = self._peers[outcome.worker.name]
        peer.outcome = outcome
        if not peer.gone:
            said = last_words(outcome, peer.stderr)
            peer.gone = unanswered(outcome, Message("the agent"), "shell", said).message
            peer.absence = Absence.NOT_ALLOWED if outcome.not_allowed else Absence.ENDED
        for number, call in list(self._calls.items()):
            if peer.worker.name in call.waiting:
                self._answer(number, peer.worker.name, Answer(None, peer.gone))
        self._joined.set()

    def _line(self, peer: _Peer, line: bytes) -> None:
        if not line.startswith(_MARK):
            return
        try:
            event = _with_messages(parse_json(line[1:]))
        except (ValueError, RecursionError):
            _log.debug("%s: an event cannot be read", peer.worker.name)
            return
        if not isinstance(event, dict):
            return
        name, number = peer.worker.name, event.get("re")
        if event.get("ev") == "hello":
            if peer.hello is None:
                peer.hello = event | {"after": round(time.monotonic() - peer.begun, 3)}
                self._joined.set()
        elif event.get("ev") == "alive":
            if not peer.slow:
                peer.slow = _slow(event)
                self._joined.set()
        elif isinstance(number, int) and number in self._calls:
            self._heard(number, name, event)

    def _heard(self, number: int, name: str, event: Fields) -> None:
        heard = self._calls[number].heard
        if heard is not None:
            try:
                heard(name, event)
            except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
                # A malformed event fails this worker's command, not all streams.
                _log.debug("%s: an event is not understood: %r", name, error)
                self._answer(number, name, Answer(None, ODD_ANSWER))
                return
        if not event.get("end"):
            return
        if event.get("ev") == "problem":
            self._answer(number, name, Answer(None, words_of(event.get("error")) or Message("its agent failed")))
        else:
            self._answer(number, name, Answer(event))

    def _agent(self, worker: Worker, execution: Execution) -> Execution:
        peer = self._peers[worker.name]
        peer.begun = time.monotonic()
        agent = peer.execution = _Agent(execution)
        return agent


class _Agent(FedExecution):
    """One agent's stream: a task writes the posted data in order."""

    def __init__(self, inner: Execution) -> None:
        super().__init__(inner)
        self._posts: asyncio.Queue[bytes] = asyncio.Queue()

    def post(self, data: bytes) -> None:
        self._posts.put_nowait(data)

    async def feed(self) -> None:
        while True:
            data = await self._posts.get()
            while not self._posts.empty():
                data += self._posts.get_nowait()
            if not await self._inner.write(data):
                return


def _slow(event: Fields) -> float:
    """The timeout factor from the load reported by a worker's shell: processes for each CPU, within bounds."""
    try:
        return min(_SLOWEST, max(1.0, max(float(event["load"]), float(event["running"])) / float(event["cpus"])))
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError):
        return 1.0


async def _end(execution: Execution) -> None:
    try:
        await execution.end(_GRACE)
    except (AtlctlError, OSError) as error:
        _log.debug("an agent could not be ended: %r", error)  # the end of the run reports agents that may still run
