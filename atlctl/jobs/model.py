"""What a job is: plain, immutable data that every backend produces and every command reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from atlctl.i18n import Message

if TYPE_CHECKING:
    from atlctl.remote.gpus import Gpu


class State(StrEnum):
    """One vocabulary for jobs and workers of every backend."""

    PENDING = "Pending"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    #: The worker lives, but its trainer has ended in failure (a launch script that sleeps on).
    HELD = "Held"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    STOPPING = "Stopping"
    #: Ended because somebody stopped it.
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    #: Whoever could tell how it ended is gone. Never a success.
    LOST = "Lost"
    UNKNOWN = "Unknown"

    @property
    def active(self) -> bool:
        """True while something of it may still run."""
        return self not in _ENDED


_ENDED = frozenset({State.STOPPED, State.SUCCEEDED, State.FAILED, State.LOST})

#: The kind of a job that is nothing but a list of hosts.
HOSTS = "Hosts"
#: Reasons that all backends give: of a Held worker, and of one that exited with 0 and did not succeed.
HELD_REASON = Message("trainer failed; launch script still running")
DOUBTFUL_REASON = Message("exit 0, but its log shows that its trainer failed")
#: What `--failed` selects.
FAILED_STATES = frozenset({State.FAILED, State.HELD})


@dataclass(frozen=True, slots=True)
class Worker:
    """One pod, host or local process group (torchelastic calls this a node).

    `name` is unique in the job and stable over restarts; `index` is the place in the job's order,
    from 0; `node_rank` is torchrun's rank of the *worker*, where it is known. Times are seconds
    since the epoch.
    """

    name: str
    index: int
    state: State
    reason: str = ""
    node_rank: int | None = None
    role: str | None = None
    #: Where it lives now: the pod's name, or the host's (`local` jobs: this machine's name).
    pod: str | None = None
    host: str | None = None
    #: The machine below it, where that is another thing than `host`.
    node: str | None = None
    address: str | None = None
    restarts: int = 0
    gpus: int | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    pid: int | None = None
    #: What the platform says behind `reason`, as it says it: hostile text.
    message: str = ""
    #: The pod's UID: two pods of one name are told apart by it.
    uid: str | None = None
    namespace: str | None = None
    #: The container that trains; `container_guessed` where nothing names it and the pod has several.
    container: str | None = None
    container_guessed: bool = False
    #: Which try of this worker it is, from 0, where the platform counts them.
    attempt: int | None = None
    #: What its machine does, where somebody has looked.
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A training job and the workers that are known of it, ordered by index.

    `expected` is how many workers it should have; the ones that are missing are the indexes
    below `expected` that no worker has.
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
    #: What the platform says behind `reason`, as it says it: hostile text.
    message: str = ""
    #: How the platform addresses its kind: `plural.group` (`pytorchjobs.kubeflow.org`), `pods` for pods without a job.
    resource: str | None = None
    #: It was asked to be suspended; its workers may still be ending.
    suspended: bool = False
    #: The queue that admits it (Kueue's LocalQueue), where one does.
    queue: str | None = None
    #: The command line of its workers, or of the first of them, as far as the platform has it.
    command: str = ""
    #: False if pods are gone and nothing shows which numbers the others had. Workers then have the names of their pods,
    #: and their indexes count only those that are left.
    numbered: bool = True

    @property
    def reference(self) -> str:
        """What finds exactly this job again: other kinds may have one of its name."""
        return f"{self.resource}/{self.name}" if self.resource else self.name

    @property
    def missing(self) -> tuple[int, ...]:
        """Indexes that should have a worker and have none. If the job is not `numbered`, only their count is right."""
        present = {worker.index for worker in self.workers}
        return tuple(index for index in range(self.expected) if index not in present)

    @property
    def ready(self) -> int:
        """How many workers run."""
        return sum(worker.state is State.RUNNING for worker in self.workers)

    @property
    def gpus(self) -> int | None:
        """GPUs of all workers, None where no worker states any."""
        stated = [worker.gpus for worker in self.workers if worker.gpus is not None]
        return sum(stated) if stated else None


@dataclass(frozen=True, slots=True)
class RankMap:
    """Which worker holds which global rank, and where that knowledge comes from.

    `guess` is True where the map was computed instead of observed; commands that cannot be undone refuse a guess.
    """

    workers: dict[int, str]
    source: str
    guess: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """`load`: processes that run or wait to, the mean of a minute. `ranks`: processes of a training with a rank of
    their own, of this user's. None where it is not told; `gpus` is None where there is no nvidia-smi."""

    load: float | None = None
    cpus: int | None = None
    ranks: int | None = None
    gpus: tuple[Gpu, ...] | None = None

    @property
    def utilization(self) -> float | None:
        """Of all GPUs that tell, in percent."""
        told = [gpu.utilization for gpu in self.gpus or () if gpu.utilization is not None]
        return sum(told) / len(told) if told else None

    @property
    def memory(self) -> tuple[float, float] | None:
        """MiB in use and MiB in all, of all GPUs that tell both."""
        told = [
            (gpu.memory_used, gpu.memory_total)
            for gpu in self.gpus or ()
            if gpu.memory_used is not None and gpu.memory_total is not None
        ]
        return (sum(used for used, _ in told), sum(total for _, total in told)) if told else None


@dataclass(frozen=True, slots=True)
class Processes:
    """What the processes of a worker have taken so far: CPU time in seconds, resident memory in bytes (what they share
    counts in each)."""

    cpu_seconds: float
    resident: int
