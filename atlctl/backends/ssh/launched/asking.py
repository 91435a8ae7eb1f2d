"""One question to one host, and what its answer means. What hosts say is hostile: it is taken apart with care."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from atlctl.backends.base import Event, Execution, Executor, Exited, FailedToStart, Lost, Output
from atlctl.backends.ssh.launched.sending import NO_PYTHON, REFUSED, request
from atlctl.backends.supervised.contract import CannotStartError
from atlctl.jobs.errors import AtlctlError, NotAllowed, TimedOut, Unreachable
from atlctl.jobs.model import State, Worker

#: Hosts that are asked at once.
PARALLEL = 64
#: Seconds for an answer, the connection included.
ANSWER_SECONDS = 30.0
#: Bytes of an answer, and of what a host says besides.
MAX_ANSWER = 1 << 20
MAX_SAID = 8192
#: Lines that a login's shell may print before the answer.
MAX_NOISE = 200
#: Characters of a message of a host.
MAX_MESSAGE = 500

T = TypeVar("T")
K = TypeVar("K")


class Refused(AtlctlError):
    """The host has answered, and does not do it. `why` is its word for it, see `supervisor/telling.py`."""

    def __init__(self, why: str, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.why, self.code = why, code

    def at(self, host: str) -> AtlctlError:
        """The same as an error for the user, with the host's name."""
        message = f"{host}: {self.message}"
        if self.why == "not_allowed":
            return NotAllowed(message, "make it yours, or set XDG_STATE_HOME for logins on that host")
        if self.why == "cannot_start":
            return CannotStartError(message, None, self.code or 125)
        return AtlctlError(message)


def worker_of(name: str, index: int = 0) -> Worker:
    """What an executor needs of a worker."""
    return Worker(name, index, State.UNKNOWN)


async def ask(
    executor: Executor, name: str, question: str, details: dict[str, Any], seconds: float = ANSWER_SECONDS
) -> dict[str, Any]:
    """The one line of the answer. Raises AtlctlError, Refused where the host answers and declines."""
    told, _ = await ask_for_bytes(executor, name, question, details, MAX_ANSWER, seconds)
    return told


async def ask_for_bytes(
    executor: Executor, name: str, question: str, details: dict[str, Any], limit: int, seconds: float = ANSWER_SECONDS
) -> tuple[dict[str, Any], bytes]:
    """The first line of the answer, and what follows it, `limit` bytes at most."""
    out, said = bytearray(), bytearray()
    execution = executor.run(worker_of(name), request(question, details))
    last: Event | None = None
    try:
        async with asyncio.timeout(seconds):
            async for event in execution:
                last = event
                if isinstance(event, Output):
                    (out if event.stream == "stdout" else said).extend(event.data)
                    del said[MAX_SAID:]
                    if len(out) > limit + MAX_ANSWER:
                        raise Unreachable(f"{name}: its answer is too long")
    except TimeoutError:
        raise silent(name, seconds) from None
    finally:
        await execution.aclose()
    told, rest = _answer(bytes(out))
    if isinstance(last, Exited) and last.exit_code == 0 and told is not None:
        return told, rest[:limit]
    raise failure(name, last, told, bytes(said))


def _answer(out: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """The line of the answer and what follows it. Before it stands what the login's shell may print."""
    rest = out
    for _ in range(MAX_NOISE):
        line, newline, rest = rest.partition(b"\n")
        told = parsed(line) if newline else None
        if told is not None and "event" in told:
            return told, rest
        if not newline:
            break
    return None, b""


def parsed(line: bytes) -> dict[str, Any] | None:
    """The object in a line, None where there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def failure(name: str, last: Event | None, told: dict[str, Any] | None, said: bytes) -> AtlctlError:
    """Why there is no answer."""
    if isinstance(last, FailedToStart):
        # A connection that failed names its host.
        message = last.reason if last.reason.startswith(f"{name} ") else f"{name}: {last.reason}"
        return (Unreachable if last.exit_code == 255 else AtlctlError)(message)
    if isinstance(last, Lost):
        return Unreachable(f"{name}: {last.reason}")
    if told is not None and told.get("event") == "failed":
        code = told.get("code")
        code = code if isinstance(code, int) and 0 < code < 256 else None
        return Refused(text(told.get("kind")), text(told.get("message")) or "no reason given", code)
    words = last_line(said)
    if isinstance(last, Exited) and last.exit_code == NO_PYTHON:
        return AtlctlError(f"{name}: {words}", "the supervisor of a job is a Python program: install python3 there")
    if isinstance(last, Exited) and last.exit_code not in (0, REFUSED):
        how = f"signal {last.signal}" if last.signal is not None else f"exit {last.exit_code}"
        return AtlctlError(f"{name}: {words or f'the program there ended with {how}'}")
    return AtlctlError(f"{name}: its answer cannot be understood")


def silent(name: str, seconds: float) -> TimedOut:
    """The error for a host that says nothing."""
    return TimedOut(f"{name} does not answer within {seconds:g} s")


def for_user(name: str, error: AtlctlError) -> AtlctlError:
    """An error as the user is told."""
    return error.at(name) if isinstance(error, Refused) else error


def last_line(said: bytes) -> str:
    lines = said.decode("utf-8", "backslashreplace").strip().splitlines()
    return lines[-1][:MAX_MESSAGE] if lines else ""


def encoded(message: dict[str, Any]) -> bytes:
    """A line for a host."""
    return json.dumps(message).encode("ascii") + b"\n"


def text(value: object) -> str:
    """A text of a host, bounded; empty where it is none."""
    return value[:MAX_MESSAGE] if isinstance(value, str) else ""


def number(value: object) -> float | None:
    """A finite number, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e18 else None  # what is no number is not less


def whole(value: object) -> int | None:
    """A whole number of a sane size, None where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


async def each(keys: Iterable[K], work: Callable[[K], Awaitable[T]]) -> dict[K, T | AtlctlError]:
    """`work` for each key, some at once; an AtlctlError is the result of its key."""
    room = asyncio.Semaphore(PARALLEL)

    async def one(key: K) -> T | AtlctlError:
        async with room:
            try:
                return await work(key)
            except AtlctlError as error:
                return error

    wanted = list(keys)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(key)) for key in wanted]
    return {key: task.result() for key, task in zip(wanted, tasks, strict=True)}


class Lines:
    """The output of one execution as lines, for a dialogue. `said`: what came on standard error."""

    def __init__(self, execution: Execution) -> None:
        self._events: AsyncIterator[Event] = aiter(execution)
        self._buffer = b""
        self.said = bytearray()
        self.last: Event | None = None

    async def next(self) -> bytes | None:
        """The next line, None at the end; `last` is then how it ended."""
        while b"\n" not in self._buffer:
            event = await anext(self._events, None)
            if event is None or len(self._buffer) > MAX_ANSWER:
                return None
            self.last = event
            if isinstance(event, Output) and event.stream == "stdout":
                self._buffer += event.data
            elif isinstance(event, Output):
                self.said = (self.said + event.data)[:MAX_SAID]
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
