"""The data model: immutable jobs and workers that every backend produces and every command reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from atlctl.i18n import Message

if TYPE_CHECKING:
    from atlctl.remote.gpus import Gpu


class State(StrEnum):
    """States of jobs and workers, the same for every backend."""

    PENDING = "Pending"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    #: The worker runs, but its trainer has failed (a launch script that sleeps afterwards).
    HELD = "Held"
    #: The training was ended by a user who keeps the workers, to start it again in place.
    DEBUGGING = "Debugging"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    STOPPING = "Stopping"
    #: Stopped by a user.
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    #: The process that knew how it ended is gone. Never counts as success.
    LOST = "Lost"
    UNKNOWN = "Unknown"

    @property
    def active(self) -> bool:
        """Whether a part of it may still run."""
        return self not in _ENDED

    @property
    def label(self) -> Message:
        """The state as people read it, in their language."""
        return _LABELS[self]


_ENDED = frozenset({State.STOPPED, State.SUCCEEDED, State.FAILED, State.LOST})
_LABELS = {
    State.PENDING: Message("Pending"),
    State.QUEUED: Message("Queued"),
    State.STARTING: Message("Starting"),
    State.RUNNING: Message("Running"),
    State.HELD: Message("Held"),
    State.DEBUGGING: Message("Debugging"),
    State.RESTARTING: Message("Restarting"),
    State.SUSPENDED: Message("Suspended"),
    State.STOPPING: Message("Stopping"),
    State.STOPPED: Message("Stopped"),
    State.SUCCEEDED: Message("Succeeded"),
    State.FAILED: Message("Failed"),
    State.LOST: Message("Lost"),
    State.UNKNOWN: Message("Unknown"),
}

#: The kind of a job that is only a list of hosts.
HOSTS = "Hosts"
#: Reasons that all backends use: for a Held worker, and for one that exited with 0 but did not succeed.
HELD_REASON = Message("trainer failed; launch script still running")
DOUBTFUL_REASON = Message("exit 0, but its log shows that its trainer failed")
#: What `--failed` selects.
FAILED_STATES = frozenset({State.FAILED, State.HELD})


@dataclass(frozen=True, slots=True)
class Worker:
    """One pod, host or local process group (torchelastic calls this a node).

    `name` is unique in the job and stable over restarts; `index` is the position in the job, from 0; `node_rank` is
    torchrun's rank of the *worker*, if known. Times are seconds since the epoch.
    """

    name: str
    index: int
    state: State
    reason: str = ""
    node_rank: int | None = None
    role: str | None = None
    #: Its current host: the pod's name, or the host's (`local` jobs: this machine's name).
    pod: str | None = None
    host: str | None = None
    #: The machine below it, if that differs from `host`.
    node: str | None = None
    address: str | None = None
    restarts: int = 0
    gpus: int | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    pid: int | None = None
    #: The platform's text on `reason`: untrusted.
    message: str = ""
    #: The pod's UID, which distinguishes pods of the same name.
    uid: str | None = None
    namespace: str | None = None
    #: The container that trains, and its image; `container_guessed` if the pod has several and nothing names it.
    container: str | None = None
    container_guessed: bool = False
    image: str | None = None
    #: Number of this attempt, from 0, if the platform counts attempts.
    attempt: int | None = None
    #: Number and time of its last training step, if its wrapper has read one.
    step: tuple[int, float] | None = None
    #: Load and GPU usage of its machine, if measured.
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A training job and its known workers, ordered by index.

    `expected` is how many workers it should have; the missing workers are the indexes below `expected` that no worker
    has.
    """

    name: str
    kind: str
    backend: str
    state: State
    uid: str
    expected: int
    workers: tuple[Worker, ...] = field(default=())
    reason: str = ""
    namespace: str | None = None
    created: float | None = None
    ended: float | None = None
    #: The platform's text on `reason`: untrusted.
    message: str = ""
    #: The platform's name of its kind: `plural.group` (`pytorchjobs.kubeflow.org`), `pods` for pods without a job.
    resource: str | None = None
    #: Suspension was requested; its workers may still be ending.
    suspended: bool = False
    #: The queue that admits it (Kueue's LocalQueue), if any.
    queue: str | None = None
    #: The command line of its workers, or of the first one, if the platform has it.
    command: str = ""
    #: False if pods are gone and the numbers of the others are unknown. Workers then have the names of their pods, and
    #: their indexes count only the remaining ones.
    numbered: bool = True

    @property
    def reference(self) -> str:
        """An argument that finds exactly this job: jobs of other kinds may have the same name."""
        return f"{self.resource}/{self.name}" if self.resource else self.name

    @property
    def missing(self) -> tuple[int, ...]:
        """Indexes that should have a worker but have none. If the job is not `numbered`, only their count is right."""
        present = {worker.index for worker in self.workers}
        return tuple(index for index in range(self.expected) if index not in present)

    @property
    def ready(self) -> int:
        """How many workers run."""
        return sum(worker.state is State.RUNNING for worker in self.workers)

    @property
    def attempts(self) -> int | None:
        """How often it was started; None if only one start is known."""
        return max((1 + worker.attempt for worker in self.workers if worker.attempt), default=None)

    @property
    def gpus(self) -> int | None:
        """GPUs of all workers, None if unknown."""
        stated = [worker.gpus for worker in self.workers if worker.gpus is not None]
        return sum(stated) if stated else None


@dataclass(frozen=True, slots=True)
class RankMap:
    """Which worker has which global rank, and the source of that knowledge.

    `guess` is True if the map was computed instead of observed; commands that cannot be undone refuse a guess.
    """

    workers: dict[int, str]
    source: str
    guess: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Load and GPUs of a machine. `load`: mean number of runnable processes over a minute. `ranks`: this user's
    training processes that have a rank. None if unknown; `gpus` is None if there is no nvidia-smi."""

    load: float | None = None
    cpus: int | None = None
    ranks: int | None = None
    gpus: tuple[Gpu, ...] | None = None

    @property
    def utilization(self) -> float | None:
        """Mean GPU utilization in percent, of the GPUs that report it."""
        told = [gpu.utilization for gpu in self.gpus or () if gpu.utilization is not None]
        return sum(told) / len(told) if told else None

    @property
    def memory(self) -> tuple[float, float] | None:
        """MiB used and MiB in total, of the GPUs that report both."""
        told = [
            (gpu.memory_used, gpu.memory_total)
            for gpu in self.gpus or ()
            if gpu.memory_used is not None and gpu.memory_total is not None
        ]
        return (sum(used for used, _ in told), sum(total for _, total in told)) if told else None


@dataclass(frozen=True, slots=True)
class Processes:
    """A worker's processes: CPU time so far, in seconds; resident memory in bytes, shared memory counted for each."""

    cpu_seconds: float
    resident: int
