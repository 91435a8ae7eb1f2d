"""The seams between commands and the places where jobs live.

A job found through one of them may be reached through another, and a worker that can no longer be
reached still has a log: hence four small protocols instead of one large one.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Job, Processes, RankMap, Worker
from atlctl.jobs.naming import fold_names

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Argv:
    """An argument vector. Words reach the command exactly as they are."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A text for `sh -c`. Built from an `Argv` only by `quoted`."""

    text: str


def quoted(argv: Argv) -> Script:
    """The one place where an argument vector becomes a shell text: every word quoted exactly once."""
    return Script(shlex.join(argv.words))


def as_argv(script: Script) -> Argv:
    """The argument vector that hands `script` to a POSIX shell."""
    return Argv(("/bin/sh", "-c", script.text))


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Size of a terminal in character cells."""

    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command for one worker.

    `stdin`: the caller will write to the command (else it reads /dev/null). `tty`: give it a
    terminal of this size; its output then arrives on stdout alone.
    """

    argv: Argv
    stdin: bool = False
    tty: TerminalSize | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs. `guarded`: it is ended when this client dies, whatever way it dies."""

    guarded: bool


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes as they came, at no particular boundary."""

    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """The command ended and said how: exactly one of `exit_code` and `signal` is set.

    Its own output is whole. `truncated`: a child of it still held its output open; what that one prints later is cut.
    """

    exit_code: int | None = None
    signal: int | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class FailedToStart:
    """The command never ran: 127 not found, 126 not executable, 125 any other reason, 255 no such worker alive."""

    exit_code: int
    reason: str
    #: The reason begins with the worker's name.
    named: bool = field(default=False, compare=False)
    #: Not authenticated, or not permitted.
    not_allowed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Lost:
    """It is not known how the command ended, or whether its output is whole. Never a success."""

    reason: str


#: Reasons of every backend.
ENDED_EARLY = Message("ended before its start")
NO_STATUS = Message("connection lost before the exit status arrived")


def end_words(exit_code: int | None, signal: int | None) -> Message:
    """How a process ended, in two words."""
    return Message("exit {code}", code=exit_code) if signal is None else Message("signal {number}", number=signal)


def by_signal(number: int) -> Message:
    """How a process ended."""
    return Message("ended by signal {number}", number=number)


Event = Started | Output | Exited | FailedToStart | Lost


def awaiting_log(worker: str, error: AtlctlError) -> str:
    """What is said when a log could not be read for now, and is asked for again."""
    return Message("waiting for the log of {worker}: {why}", worker=worker, why=error.message)


def as_it_is(job: Job) -> Message:
    """Why there is nothing to stop or to resume."""
    return Message("job {job} is {state}", job=job.name, state=job.state)


def some_of(job: Job, workers: Sequence[Worker]) -> Message:
    """Workers of a job, and how many of it these are."""
    names = fold_names(worker.name for worker in workers)
    return Message("{workers} ({count} of {expected})", workers=names, count=len(workers), expected=job.expected)


class Execution(Protocol):
    """One command on one worker: an iterator of events, and what can be done to it meanwhile.

    The iterator ends after the first `Exited`, `FailedToStart` or `Lost`. Bytes are read only when the
    iterator is asked for the next event: a slow consumer slows the command, not the client's memory.
    """

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def write(self, data: bytes) -> bool:
        """Write all of `data` to the command's stdin; False when it no longer reads."""

    async def close_stdin(self) -> None:
        """End of input."""

    def resize(self, size: TerminalSize) -> None:
        """Tell the command's terminal its new size."""

    async def end(self, grace: float) -> bool:
        """End the command and what it started: SIGTERM, after `grace` seconds SIGKILL.

        Discards output meanwhile. True when its end is proven, False when it may still run. Safe to call twice,
        and before `Started`.
        """

    async def aclose(self) -> None:
        """Give back descriptors. What still runs is left to the guard."""


class Executor(Protocol):
    """Runs commands on workers."""

    def run(self, worker: Worker, request: ExecRequest) -> Execution: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listing:
    """The jobs that could be read, and an error for each place that could not."""

    jobs: tuple[Job, ...]
    problems: tuple[AtlctlError, ...] = ()


@runtime_checkable
class Looking(Protocol):
    """An inventory that knows more of a job's workers once it has asked each of them."""

    async def look(self, job: Job) -> Job:
        """`job` with what its workers tell: whether they are there, and what their machines do."""


@runtime_checkable
class Measuring(Protocol):
    """A place where workers share one machine, so that what their processes take is all there is of their own."""

    def measure(self, workers: Sequence[Worker]) -> Mapping[str, Processes]:
        """By worker's name. Workers without a living process are left out."""


class Inventory(Protocol):
    """Finds jobs and their workers."""

    async def list_jobs(self) -> Listing: ...

    async def get_job(self, name: str) -> Job:
        """The job of that name. Raises NothingMatched with the names that exist."""

    async def current(self) -> Job | None:
        """The job in one of whose workers this process runs, where the place tells by itself."""

    async def current_worker(self, job: Job) -> str | None:
        """The name of the worker of `job` that this process runs in."""

    async def ranks(self, job: Job) -> RankMap | None:
        """Which worker holds which global rank, None where nothing tells."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """What to read of a log. `tail`: the last N lines. `since`: nothing older (seconds since the epoch)."""

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    previous: bool = False


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a worker's log. `time` is nanoseconds since the epoch, None where the log has no stamps.

    `data` is without the newline; `complete` is False for a last line that ended without one.
    """

    time: int | None
    stream: Stream
    data: bytes
    complete: bool = True


class LogSource(Protocol):
    """Yields logs of workers, living or ended."""

    def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        """Batches of lines in order, never an empty batch except to say "nothing new yet" while following."""

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        """Up to `limit` bytes of a regular file as the worker sees it, None where it cannot be read."""


class Sink(Protocol):
    """Takes the bytes of a log, cut anywhere."""

    def feed(self, data: bytes, /) -> object: ...


S_co = TypeVar("S_co", bound=Sink, covariant=True)
S = TypeVar("S", bound=Sink)


class End(Protocol[S_co]):
    """The last lines of a log, `STAMP TEXT` each, as `sink` has taken them.

    `whole`: there are no others. `first` is the time of the first one, nanoseconds since the epoch, None without one.
    """

    @property
    def sink(self) -> S_co: ...
    @property
    def whole(self) -> bool: ...
    @property
    def first(self) -> int | None: ...


class EndReader(Protocol[S_co]):
    """Reads one log from its end, more and more of it, each time into a new sink."""

    async def read(self) -> End[S_co]:
        """The last lines of the log. Raises AtlctlError that says why there is none."""

    async def more(self) -> End[S_co]:
        """Several times as many."""


@runtime_checkable
class LogEnds(Protocol):
    """A source whose logs are large and far away, so that they are read from their ends."""

    def end_reader(self, job: Job, worker: Worker, new_sink: Callable[[], S]) -> EndReader[S]: ...


@runtime_checkable
class ManyLogs(Protocol):
    """A source that bounds how many logs are read at once."""

    def allow_logs(self, count: int) -> None:
        """So many logs will be followed at once, for long. To be said before the first of them is read."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """How far a stop goes; by default it is one that can be taken back, where the place has such a thing.

    `delete`: the job itself goes. `keep`: only its processes are ended, the workers stay. `grace`: seconds from SIGTERM
    to SIGKILL, where processes are ended by atlctl.
    """

    delete: bool = False
    keep: bool = False
    grace: float = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a stop or a resume will do. Nothing of it is done yet.

    `workers`: those that end. `how`: the mechanism in a few words, for programs. `facts`: label and sentence, for the
    one who has to agree (hostile text where they come from a cluster). `question`: where it happens, for the prompt.
    `undo`: the command line that takes it back. `loses_logs`: the workers' logs may go with it. `ends_terminal`: who
    sits in one of `workers` ends with it. `nothing`: there is nothing to do, and this is why. `steps` is the backend's.
    """

    job: Job
    workers: tuple[Worker, ...]
    how: str
    facts: tuple[tuple[str, str], ...] = ()
    question: str = ""
    undo: str = ""
    loses_logs: bool = False
    ends_terminal: bool = False
    nothing: str = ""
    steps: object = None


@dataclass(frozen=True, slots=True)
class StopResult:
    """How a worker's stop went: its processes ended, its pod is gone, or not stopped (with `reason`)."""

    worker: str
    how: Literal["terminated", "killed", "already-ended", "gone", "not-stopped"]
    processes: int = 0
    reason: str = ""


class Controller(Protocol):
    """Stops and resumes jobs: first the plan, then what was agreed to."""

    async def plan_stop(self, job: Job, workers: Sequence[Worker], request: StopRequest) -> Plan:
        """What ending `workers` of `job` means. Raises UsageError where it is not to be had so."""

    async def plan_resume(self, job: Job) -> Plan:
        """What taking a stop back means. Raises UsageError where nothing does."""

    async def check(self, plan: Plan) -> None:
        """Whether the place would do it, as far as it can be asked without a change. Raises as `carry_out`."""

    async def carry_out(self, plan: Plan, timeout: float, told: Callable[[str], None]) -> Sequence[StopResult]:
        """Do it to exactly the job of the plan (its uid must still match) and wait for it, `timeout` seconds at most.

        `told` gets a line when the request was taken and the waiting begins. Raises AtlctlError where it was refused.
        """

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> Sequence[StopResult]:
        """Plan and carry out an ordinary stop; where atlctl ends processes: SIGTERM, `grace` seconds, SIGKILL."""


class EventLog(Protocol):
    """What a place wrote down of what happened to a job."""

    async def raw_events(self, job: Job) -> Sequence[Mapping[str, Any]]:
        """Events in the place's own form, oldest first; none where it keeps no record."""


class Backend(Inventory, LogSource, Controller, EventLog, Protocol):
    """A place where jobs live, with a way to reach their workers."""

    name: str

    def executor(self, job: Job) -> Executor: ...
