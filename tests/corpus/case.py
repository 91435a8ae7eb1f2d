"""What a case is: a job, the faults in it, what is done to it from outside, and the truth that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["rank", "ranks", "node", "missing_node", "job", "external", "none", "undecided"]
Deed = Literal[
    "kill",
    "kill_agent",
    "kill_process",
    "terminate",
    "terminate_process",
    "interrupt",
    "interrupt_process",
    "hangup",
    "quit",
    "freeze",
    "disconnect",
]

#: Deeds on single processes, those with a local rank; the others are done to whole workers.
ON_PROCESSES: tuple[Deed, ...] = ("kill_process", "terminate_process", "interrupt_process", "freeze")
#: Long enough for an action from outside, bounded all the same.
LONG = 300
#: Each attempt gets a store of its own: with torch 2.13 and gloo a restart does not recover otherwise.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, armed in the processes that fit.

    `do` is a name of `reading.read_batch` or `train.FAULTS_OF_STEPS`, in the scripts of `styles` `PLACE:NAME`, as their
    calls of `runtime.fault_at` say. `worker` is an index, None for all; so is `local_rank`. `step` -1 comes before the
    process group exists, the number of steps after it is gone. `round` counts the starts of that process, 0 the first.
    `at` is seconds after a full second that all ranks agree on: for failures that must fall into one second.
    """

    do: str
    worker: int | None
    local_rank: int | None
    step: int = 3
    round: int = 0
    at: float | None = None
    id: str = "root"


@dataclass(frozen=True, slots=True)
class Outside:
    """Something done to workers from outside once all processes have reached step 3.

    `kill`: SIGKILL to all of the worker at once, as when its node is lost. `kill_agent`: SIGKILL to its torchrun alone.
    `terminate`, `interrupt`, `hangup`, `quit`: SIGTERM, SIGINT, SIGHUP, SIGQUIT to its torchrun. `kill_process`,
    `terminate_process`, `interrupt_process`, `freeze`: SIGKILL, SIGTERM, SIGINT, SIGSTOP to the process `local_rank`,
    or to all of the worker where it is None. `disconnect`: its network is gone, nobody is told; it is killed when the
    others have ended (only with namespaces).

    `restarting`: done as soon as a process was started a second time.
    """

    do: Deed
    workers: tuple[int, ...]
    local_rank: int | None = None
    restarting: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One job. `processes` has one number for each worker.

    `kind` is the truth's; for `rank` and `ranks` it is completed by the events of the faults named in `culprits`, for
    `node` and `missing_node` by `at_fault` (a worker's index). `undecided`: what was done is known, but the logs
    alone do not tell who did it. `also_right` has other answers that are as good: verdict and worker's index. `shows`
    must stand in a log of the finished case, so that a case that failed for another reason than the planned one is
    never kept. `program` is the training script, `train.py` or one of `styles`.
    `timeout` is seconds of a collective, `init_timeout` of the first meeting of the processes (`train.py` alone).

    By worker's index: `options` are torchrun's on that worker alone, `environments` its variables, `wrappers` a shell
    script around torchrun (`{command}`, `{python}`, `{port}`), `prepare` a shell script that is run in its folder
    before anything is started (`{python}`), `late` seconds before it is started, `skew` seconds that its clock is ahead
    (needs a C compiler). `leavers` may end with any exit code in a job that succeeds. `own_network`: the workers must
    not share their ports, so the case is made only with namespaces.
    """

    name: str
    what: str
    kind: Kind
    category: str
    shows: str
    faults: tuple[Fault, ...] = ()
    outside: Outside | None = None
    culprits: tuple[str, ...] = ("root",)
    at_fault: int | None = None
    also_right: tuple[tuple[str, int], ...] = ()
    processes: tuple[int, ...] = (2, 2)
    nodes: str = ""
    names: tuple[str, ...] = ()
    absent: tuple[int, ...] = ()
    leavers: tuple[int, ...] = ()
    record: bool = False
    restarts: int = 0
    static: bool = False
    torchrun: tuple[str, ...] = ()
    program: str = "train.py"
    script: tuple[str, ...] = ()
    script_missing_on: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    environments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    wrappers: Mapping[int, str] = field(default_factory=dict)
    prepare: Mapping[int, str] = field(default_factory=dict)
    late: Mapping[int, float] = field(default_factory=dict)
    skew: Mapping[int, int] = field(default_factory=dict)
    steps: int = 6
    timeout: int = 40
    init_timeout: int = 40
    log_folder: bool = False
    agent_file: bool = False
    own_network: bool = False

    def workers(self) -> tuple[str, ...]:
        """The workers' names, in the order of their index."""
        return self.names or tuple(f"worker-{index}" for index in range(len(self.processes)))
