"""One question to one host: the program that answers there, sent as text, and what its answer means.

Answers of hosts are untrusted input.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from atlctl.backends.base import (
    Argv,
    Event,
    ExecRequest,
    Execution,
    Executor,
    Exited,
    FailedToStart,
    Lost,
    Output,
    end_words,
)
from atlctl.backends.questions import ask_each
from atlctl.i18n import Message, specific
from atlctl.jobs import fields
from atlctl.jobs.errors import NO_PYTHON, AtlctlError, NotAllowed, TimedOut, Unreachable, no_answer, without_python
from atlctl.jobs.model import State, Worker
from atlctl.remote import sending

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

# The program that answers

#: The exit code of a refusal (`supervisor/asked.py`).
REFUSED = 96
_SUPERVISOR = "atlctl.remote.supervisor"


@cache
def _program(entry: str) -> str:
    return sending.inline(sending.needed(entry))


def request(question: str, details: dict[str, Any]) -> ExecRequest:
    """The command that asks one question. A start takes its steps on standard input; the others have no input, so that
    one session carries both the question and the lifeline."""
    starts = {"start": "starting", "in_place": "inplace"}
    entry = f"{_SUPERVISOR}.{starts.get(question, 'asked')}"
    words = (sending.boot(), entry, _program(entry), "--", question, json.dumps(details))
    return ExecRequest(Argv(sending.command(f"atlctl-{question}", "-I -S -X utf8", words)), stdin=question in starts)


# Questions and answers


class Why(StrEnum):
    """The reason why a query has no answer. The first values are sent by the host, see `telling.py` in `remote`."""

    ABSENT = "absent"
    REPLACED = "replaced"
    RUNNING = "running"
    TAKEN = "taken"
    ELSEWHERE = "elsewhere"
    NOT_ALLOWED = "not_allowed"
    CANNOT_START = "cannot_start"
    FAILED = "failed"
    # These no host says.
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    NO_PYTHON = "no_python"
    BROKEN = "broken"


_NO_WORDS = (Why.UNREACHABLE, Why.SILENT, Why.NO_PYTHON, Why.BROKEN)


class NoAnswer(AtlctlError):
    """A question to a host has no answer, or was refused. The message lacks the host's name, unless it is `named`."""

    def __init__(
        self, why: Why, message: str, hint: str | None = None, *, code: int | None = None, named: bool = False
    ):
        super().__init__(message, hint)
        self.why, self.code, self.named = why, code, named

    @property
    def refused(self) -> bool:
        """The host has answered, and does not do it."""
        return self.why not in _NO_WORDS

    @property
    def nothing_there(self) -> bool:
        """Nothing of the job is on the host any more."""
        return self.why in (Why.ABSENT, Why.REPLACED)

    def at(self, host: str) -> AtlctlError:
        """The same as an error for the user, with the host's name."""
        message = self.message if self.named else Message("{host}: {why}", host=host, why=self.message)
        match self.why:
            case Why.NOT_ALLOWED:
                return NotAllowed(
                    message, Message("take ownership of it (chown), or set XDG_STATE_HOME for logins on that host")
                )
            case Why.CANNOT_START:
                return CannotStartError(message, None, self.code or 125)
            case Why.UNREACHABLE:
                return Unreachable(message)
            case Why.SILENT:
                return TimedOut(message)
        return AtlctlError(message, self.hint)


class CannotStartError(AtlctlError):
    """The command of a job could not be started; carries the exit code that a shell would give."""

    def __init__(self, message: str, hint: str | None, code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = code  # type: ignore[misc]  # the class's code is the default, this one was observed


def worker_of(name: str, index: int = 0) -> Worker:
    """A minimal Worker for an executor."""
    return Worker(name, index, State.UNKNOWN)


async def ask(
    executor: Executor, name: str, question: str, details: dict[str, Any], seconds: float = ANSWER_SECONDS
) -> dict[str, Any]:
    """The one line of the answer. Raises NoAnswer."""
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
                        raise NoAnswer(Why.UNREACHABLE, Message("its answer is too long"))
    except TimeoutError:
        raise silent(name, seconds) from None
    finally:
        await execution.aclose()
    told, rest = _answer(bytes(out))
    if isinstance(last, Exited) and last.exit_code == 0 and told is not None:
        return told, rest[:limit]
    raise failure(last, told, bytes(said))


def _answer(out: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """Split the output into the answer's line and the rest. The login shell may print other lines before it."""
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
    """The object in a line, None if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def failure(last: Event | None, told: dict[str, Any] | None, said: bytes) -> NoAnswer:
    """Why there is no answer: `last` is how the command on the host ended, `said` what was on its stderr."""
    if isinstance(last, FailedToStart):
        return NoAnswer(Why.UNREACHABLE if last.exit_code == 255 else Why.BROKEN, last.reason, named=last.named)
    if isinstance(last, Lost):
        return NoAnswer(Why.UNREACHABLE, last.reason)
    if told is not None and told.get("event") == "failed":
        code = told.get("code")
        code = code if isinstance(code, int) and 0 < code < 256 else None
        reason = fields.text(told.get("message"), MAX_MESSAGE) or Message("no reason given")
        return NoAnswer(_why(told.get("kind")), reason, code=code)
    words = last_line(said)
    if isinstance(last, Exited) and last.exit_code == NO_PYTHON:
        hint = Message("install python3 on that host: the supervisor of a job is a Python program")
        return NoAnswer(Why.NO_PYTHON, without_python(words), hint)
    if isinstance(last, Exited) and last.exit_code not in (0, REFUSED):
        how = end_words(last.exit_code, last.signal)
        return NoAnswer(Why.BROKEN, words or Message("the program on the host ended with {how}", how=how))
    return unclear()


def _why(kind: object) -> Why:
    """A host's word; one that is not known is of a supervisor's program that is newer or older."""
    return next((why for why in Why if why == kind and why not in _NO_WORDS), Why.FAILED)


def unclear() -> NoAnswer:
    """The error for an answer of another form."""
    return NoAnswer(Why.BROKEN, Message("its answer is malformed"))


def silent(name: str, seconds: float) -> NoAnswer:
    """The error for a host that says nothing."""
    said = Message("{name} did not answer within {seconds:g} s", name=name, seconds=seconds)
    return NoAnswer(Why.SILENT, specific(said, no_answer(seconds)), named=True)


def for_user(name: str, error: AtlctlError) -> AtlctlError:
    """An error of the host `name` as it is shown."""
    return error.at(name) if isinstance(error, NoAnswer) else error


def last_line(said: bytes) -> str:
    lines = said.decode("utf-8", "backslashreplace").strip().splitlines()
    return lines[-1][:MAX_MESSAGE] if lines else ""


def encoded(message: dict[str, Any]) -> bytes:
    """A line for a host."""
    return json.dumps(message).encode("ascii") + b"\n"


async def each(keys: Iterable[K], work: Callable[[K], Awaitable[T]]) -> dict[K, T | AtlctlError]:
    """`work` for each key, some at once; an AtlctlError is the result of its key."""

    async def one(key: K) -> T | AtlctlError:
        try:
            return await work(key)
        except AtlctlError as error:
            return error

    wanted = list(keys)
    return dict(zip(wanted, await ask_each(wanted, one, PARALLEL), strict=True))


class Lines:
    """The output of one execution as lines, for a dialogue. `said`: its standard error."""

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
