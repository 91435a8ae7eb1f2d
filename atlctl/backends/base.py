"""Protocols between the commands and the backends (Kubernetes, hosts over SSH, this machine).

A job found by one backend may be reached by another, and a worker that can no longer be reached still has a log.
Therefore there are several small protocols instead of a large one.
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
    """An argument vector. The command receives its words unchanged."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A text for `sh -c`. `quoted` makes one from an `Argv`."""

    text: str


def quoted(argv: Argv) -> Script:
    """Shell text for an argument vector, each word quoted once. The only place that does this."""
    return Script(shlex.join(argv.words))


def as_argv(script: Script) -> Argv:
    """The argument vector that runs `script` in a POSIX shell."""
    return Argv(("/bin/sh", "-c", script.text))


@dataclass(frozen=True, slots=True)
class TerminalSize:
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command for one worker.

    `stdin`: the caller writes to the command; otherwise it reads /dev/null. `tty`: run it on a terminal of this size;
    all output then arrives on stdout.
    """

    argv: Argv
    stdin: bool = False
    tty: TerminalSize | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The command has started. `guarded`: it is killed when this client dies, for any reason."""

    guarded: bool


@dataclass(frozen=True, slots=True)
class Output:
    """Output bytes as received, split at arbitrary positions."""

    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """The command ended with a known status: exactly one of `exit_code` and `signal` is set.

    Its own output is complete. `truncated`: a child still held the output open, and its later output is cut.
    """

    exit_code: int | None = None
    signal: int | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class FailedToStart:
    """The command never ran. `exit_code`: 127 not found, 126 not executable, 125 other reasons, 255 no such live
    worker."""

    exit_code: int
    reason: str
    #: Whether the reason begins with the worker's name.
    named: bool = field(default=False, compare=False)
    #: Whether authentication or authorization failed.
    not_allowed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Lost:
    """The exit status is unknown, and output may be missing. Never counts as success."""

    reason: str


#: Reasons that all backends use.
NOT_CONNECTED = Message("not connected")
NO_STATUS = Message("connection lost before the exit status arrived")


def end_words(exit_code: int | None, signal: int | None) -> Message:
    """Exit code or signal of a process, as short text."""
    return Message("exit {code}", code=exit_code) if signal is None else Message("signal {number}", number=signal)


Event = Started | Output | Exited | FailedToStart | Lost


def awaiting_log(worker: str, error: AtlctlError) -> str:
    """The note for a log that cannot be read at the moment and will be retried."""
    return Message("waiting for the log of {worker}: {why}", worker=worker, why=error.message)


def as_it_is(job: Job) -> Message:
    """The reason for an empty plan: the job's state."""
    return Message("job {job} is {state}", job=job.name, state=job.state.label)


def some_of(job: Job, workers: Sequence[Worker]) -> Message:
    """Names of some workers of a job, with their number and the job's expected number."""
    names = fold_names(worker.name for worker in workers)
    return Message("{workers} ({count} of {expected})", workers=names, count=len(workers), expected=job.expected)


class Execution(Protocol):
    """A command running on a worker: an iterator of events, with methods to control the command.

    The iterator ends after the first `Exited`, `FailedToStart` or `Lost`. Bytes are read only when the next event is
    requested, so a slow consumer slows the command and does not fill the client's memory.
    """

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def write(self, data: bytes) -> bool:
        """Write all of `data` to the command's stdin. False if the command no longer reads it."""

    async def close_stdin(self) -> None:
        """Send end of input."""

    def resize(self, size: TerminalSize) -> None:
        """Set the size of the command's terminal."""

    async def end(self, grace: float) -> bool:
        """Kill the command and its descendants: SIGTERM, and SIGKILL after `grace` seconds.

        Discards output meanwhile. True if the end is confirmed, False if it may still run. Can be called repeatedly,
        and before `Started`.
        """

    async def aclose(self) -> None:
        """Release descriptors. The guard kills a command that still runs."""


class Executor(Protocol):
    """Runs commands on workers."""

    def run(self, worker: Worker, request: ExecRequest) -> Execution: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listing:
    """The jobs that could be read, with an error for each source that could not."""

    jobs: tuple[Job, ...]
    problems: tuple[AtlctlError, ...] = ()


@runtime_checkable
class Looking(Protocol):
    """An inventory that can add data by asking each worker of a job."""

    async def look(self, job: Job) -> Job:
        """`job` with the workers' answers: whether each is present, and the load of its machine."""


@runtime_checkable
class KeepsEvidence(Protocol):
    """A backend whose workers keep evidence in folders that this machine may be able to read."""

    def evidence(self, job: Job) -> Sequence[str]:
        """The folder of evidence of the job, and those of earlier starts of it, the newest first."""


@runtime_checkable
class Measuring(Protocol):
    """A backend whose workers share one machine, so that only their processes can be measured."""

    def measure(self, workers: Sequence[Worker]) -> Mapping[str, Processes]:
        """Resource use by worker name. Workers without a live process are omitted."""


class Inventory(Protocol):
    """Finds jobs and their workers."""

    async def list_jobs(self) -> Listing: ...

    async def get_job(self, name: str) -> Job:
        """Find a job by name. Raises NothingMatched, which lists the existing names."""

    async def current(self) -> Job | None:
        """The job that this process is part of, if the backend can find out without a name."""

    async def current_worker(self, job: Job) -> str | None:
        """The name of the worker of `job` that contains this process."""

    async def ranks(self, job: Job) -> RankMap | None:
        """Global ranks by worker; None if unknown."""


#: The attempt of a log before the last one.
PREVIOUS = -1


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The part of a log to read. `tail`: the last N lines. `since`: earliest time, in seconds since the epoch.
    `attempt`: the number of an earlier one, from 1, or PREVIOUS; None for the last one."""

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    attempt: int | None = None

    @property
    def previous(self) -> bool:
        return self.attempt == PREVIOUS


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a worker's log. `time`: nanoseconds since the epoch; None if the log has no timestamps.

    `data` excludes the newline. `complete` is False if the last line has no newline.
    """

    time: int | None
    stream: Stream
    data: bytes
    complete: bool = True


class LogSource(Protocol):
    """Reads logs of running and ended workers."""

    def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        """Batches of lines in order. While following, an empty batch means "nothing new yet"."""

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        """Up to `limit` bytes of a regular file in the worker's file system; None if it cannot be read."""


class Sink(Protocol):
    """Consumes a log's bytes, split at arbitrary positions."""

    def feed(self, data: bytes, /) -> object: ...


S_co = TypeVar("S_co", bound=Sink, covariant=True)
S = TypeVar("S", bound=Sink)


class End(Protocol[S_co]):
    """The last lines of a log, `TIMESTAMP TEXT` each, consumed by `sink`.

    `whole`: the log has no earlier lines. `first`: time of the first line in nanoseconds since the epoch; None if there
    are no lines.
    """

    @property
    def sink(self) -> S_co: ...
    @property
    def whole(self) -> bool: ...
    @property
    def first(self) -> int | None: ...


class EndReader(Protocol[S_co]):
    """Reads a log backwards from its end, in growing parts, each into a new sink."""

    async def read(self) -> End[S_co]:
        """The last lines of the log. Raises AtlctlError with the reason if the log cannot be read."""

    async def more(self) -> End[S_co]:
        """Several times as many lines as before."""


@runtime_checkable
class LogEnds(Protocol):
    """A source of large, remote logs, which are read from the end."""

    def end_reader(self, job: Job, worker: Worker, new_sink: Callable[[], S]) -> EndReader[S]: ...


@runtime_checkable
class ManyLogs(Protocol):
    """A source that limits how many logs are read at once."""

    def allow_logs(self, count: int) -> None:
        """Prepare to follow `count` logs at the same time. Call it before reading the first of them."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Options of a stop. By default it can be undone if the backend supports that.

    `delete`: delete the job. `keep`: end its processes and keep the workers. `grace`: seconds from SIGTERM to SIGKILL
    if atlctl ends the processes.
    """

    delete: bool = False
    keep: bool = False
    grace: float = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned effects of a stop or a resume; nothing has been changed yet.

    `workers`: those that will end. `how`: the mechanism in a few words, for programs. `facts`: labels and sentences for
    the user who has to confirm (untrusted text if they come from a cluster). `question`: the place, for the prompt.
    `undo`: the command line that reverts it. `loses_logs`: the workers' logs may be deleted. `ends_terminal`: terminals
    in `workers` end. `nothing`: the reason why there is nothing to do. `steps`: private to the backend.
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
    """Result of a stop for one worker: its processes ended, its pod is gone, or not stopped (with `reason`)."""

    worker: str
    how: Literal["terminated", "killed", "already-ended", "gone", "not-stopped"]
    processes: int = 0
    reason: str = ""


class Controller(Protocol):
    """Stops and resumes jobs in two steps: make a plan, then carry it out."""

    async def plan_stop(self, job: Job, workers: Sequence[Worker], request: StopRequest) -> Plan:
        """Plan to end `workers` of `job`. Raises UsageError if the job cannot be stopped this way."""

    async def plan_resume(self, job: Job) -> Plan:
        """Plan to undo a stop. Raises UsageError if the job cannot be resumed."""

    async def check(self, plan: Plan) -> None:
        """Ask the backend to validate the plan without changing anything, as far as it can. Raises as `carry_out`."""

    async def carry_out(self, plan: Plan, timeout: float, told: Callable[[str], None]) -> Sequence[StopResult]:
        """Carry out the plan on exactly its job (the UID must still match) and wait up to `timeout` seconds.

        `told` is called once the request is accepted. Raises AtlctlError if it is refused.
        """

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> Sequence[StopResult]:
        """Plan and carry out a default stop. If atlctl ends processes: SIGTERM, and SIGKILL after `grace` seconds."""


class EventLog(Protocol):
    """The record of events of a job."""

    async def raw_events(self, job: Job) -> Sequence[Mapping[str, Any]]:
        """Events in the backend's own format, oldest first; empty if it keeps none."""


class Backend(Inventory, LogSource, Controller, EventLog, Protocol):
    """Finds jobs, reads their logs, stops them and runs commands in their workers."""

    name: str

    def executor(self, job: Job) -> Executor: ...
