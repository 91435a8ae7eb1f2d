"""The cases: what is started, what makes it fail, and which truth follows from that. One entry each, data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["rank", "ranks", "node", "missing_node", "job", "external", "none"]
Deed = Literal["kill", "terminate", "interrupt", "freeze"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, armed in the processes that fit.

    `do` is a name of `train.read_batch`. `worker` is an index, None for all; so is `local_rank`. `step` -1 comes
    before the process group exists. `round` counts the starts of that process, 0 the first. `at` is
    seconds after a full second that all ranks agree on: for failures that must fall into one second.
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

    `kill`: SIGKILL to all of the worker at once, as when its node is lost. `terminate`, `interrupt`: SIGTERM, SIGINT to
    its torchrun. `freeze`: SIGSTOP to the process `local_rank`.
    """

    do: Deed
    workers: tuple[int, ...]
    local_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One job. `processes` has one number for each worker.

    `kind` is the truth's; for `rank` and `ranks` it is completed by the events of the faults named in `culprits`, for
    `node` and `missing_node` by `at_fault` (a worker's index). `shows` must stand in a log of the finished
    case, so that a case that failed for another reason than the planned one is never kept.
    `timeout` and `init_timeout` are seconds, of a collective and of the first meeting of the processes.
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
    processes: tuple[int, ...] = (2, 2)
    names: tuple[str, ...] = ()
    absent: tuple[int, ...] = ()
    record: bool = False
    restarts: int = 0
    static: bool = False
    torchrun: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    script_missing_on: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    steps: int = 6
    timeout: int = 40
    init_timeout: int = 40
    log_folder: bool = False
    agent_file: bool = False

    def workers(self) -> tuple[str, ...]:
        """The workers' names, in the order of their index."""
        return self.names or tuple(f"worker-{index}" for index in range(len(self.processes)))


#: Long enough for an action from outside, bounded all the same.
LONG = 300
#: Each attempt gets a store of its own: with torch 2.13 and gloo a restart does not recover otherwise.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

CASES: tuple[Case, ...] = (
    Case(
        "exception_recorded_last_rank",
        "an exception of user code on the last rank, @record on",
        "rank",
        "python_exception",
        "ShardError: shard 17",
        (Fault("sample", 1, 1),),
        record=True,
        agent_file=True,
    ),
    Case(
        "exception_plain_first_rank",
        "an exception of user code on rank 0, without @record",
        "rank",
        "python_exception",
        "gradient norm is nan at rank 0",
        (Fault("nan", 0, 0),),
    ),
    Case(
        "killed_plain",
        "one process is killed by SIGKILL, as the kernel does when memory is short; without @record",
        "rank",
        "killed",
        "exitcode: -9",
        (Fault("kill", 1, 0),),
    ),
    Case(
        "killed_beside_recorded",
        "one process is killed by SIGKILL; @record on, so that the peers leave error files and it does not",
        "rank",
        "killed",
        "exitcode: -9",
        (Fault("kill", 0, 1),),
        record=True,
    ),
    Case(
        "segfault_recorded",
        "a segmentation fault in native code, @record on (its fault handler prints the stack)",
        "rank",
        "native_crash",
        "Segmentation fault",
        (Fault("segfault", 1, 1),),
        record=True,
    ),
    Case(
        "exit_zero_early",
        "one process leaves in mid-run with exit code 0 and without a word",
        "rank",
        "early_exit_zero",
        "by peer",
        (Fault("exit0", 0, 1),),
    ),
    Case(
        "exit_three",
        "one process logs a line and leaves by os._exit(3)",
        "rank",
        "explicit_exit",
        "exitcode: 3",
        (Fault("exit3", 1, 1),),
    ),
    Case(
        "sys_exit_text",
        "sys.exit with a text: exit code 1, no traceback; only local rank 0 prints its steps",
        "rank",
        "explicit_exit",
        "no licence for the tokenizer left",
        (Fault("sys_exit", 1, 0),),
        script=("--style", "bare"),
    ),
    Case(
        "hang_in_user_code",
        "one process waits for ever in user code; the others run into gloo's timeout",
        "rank",
        "hang",
        "Timed out waiting",
        (Fault("hang", 1, 1),),
        timeout=8,
    ),
    Case(
        "frozen_process",
        "one process is stopped (SIGSTOP) and does nothing any more, not even on SIGTERM",
        "rank",
        "hang",
        "Timed out waiting",
        outside=Outside("freeze", (0,), 1),
        steps=LONG,
        timeout=5,
        record=True,
    ),
    Case(
        "collective_order",
        "one rank calls an all_gather that the others do not; 3 workers with one process each, named as a PyTorchJob's",
        "rank",
        "collective_mismatch",
        "all_gather",
        (Fault("extra_gather", 2, 0),),
        processes=(1, 1, 1),
        names=("master-0", "worker-0", "worker-1"),
        timeout=8,
    ),
    Case(
        "import_error_one_worker",
        "a package is missing on worker 1, for both its processes",
        "ranks",
        "import_error",
        "No module named 'fused_rotary_kernels'",
        (Fault("import", 1, None, step=-1),),
        init_timeout=12,
    ),
    Case(
        "script_missing_one_worker",
        "the script does not exist on worker 1",
        "node",
        "script_missing",
        "can't open file",
        at_fault=1,
        script_missing_on=1,
        init_timeout=12,
    ),
    Case(
        "bad_arguments",
        "an option that the script does not know: argparse ends every process with exit code 2",
        "job",
        "bad_arguments",
        "unrecognized arguments: --warmup",
        script=("--warmup", "200"),
    ),
    Case(
        "settings_missing_everywhere",
        "a file that every process needs is not there",
        "job",
        "python_exception",
        "settings/pretrain.json",
        (Fault("settings", None, None, step=-1),),
        record=True,
    ),
    Case(
        "worker_lost",
        "all of worker 1 is gone at once, as when its node dies",
        "node",
        "node_lost",
        "by peer",
        outside=Outside("kill", (1,)),
        at_fault=1,
        steps=LONG,
        record=True,
    ),
    Case(
        "rendezvous_host_lost",
        "all of worker 0, which hosts the rendezvous, is gone at once; 3 workers",
        "node",
        "node_lost",
        "by peer",
        outside=Outside("kill", (0,)),
        at_fault=0,
        processes=(1, 1, 1),
        steps=LONG,
    ),
    Case(
        "worker_never_joins",
        "3 workers are asked for, the last is never started",
        "missing_node",
        "rendezvous_timeout",
        "RendezvousTimeoutError",
        at_fault=2,
        processes=(2, 2, 2),
        absent=(2,),
        torchrun=("--rdzv-conf", "join_timeout=10,last_call_timeout=2"),
        agent_file=True,
    ),
    Case(
        "terminated_one",
        "SIGTERM to the torchrun of worker 1, as when a pod is evicted",
        "node",
        "preemption",
        "got signal: 15",
        outside=Outside("terminate", (1,)),
        at_fault=1,
        steps=LONG,
        record=True,
    ),
    Case(
        "terminated_all",
        "SIGTERM to every torchrun, as when a job is deleted",
        "external",
        "preemption",
        "got signal: 15",
        outside=Outside("terminate", (0, 1)),
        steps=LONG,
    ),
    Case(
        "interrupted_all",
        "Ctrl-C: SIGINT to every torchrun",
        "external",
        "interrupted",
        "got signal: 2",
        outside=Outside("interrupt", (0, 1)),
        steps=LONG,
        record=True,
    ),
    Case(
        "restart_recovers",
        "a full disk in the first round; the second goes on to the end",
        "none",
        "success_after_restart",
        "No space left on device",
        (Fault("disk", 1, 0),),
        restarts=1,
        environment=OWN_STORE,
        record=True,
    ),
    Case(
        "restarts_exhausted",
        "a full disk on worker 0 in the first round, a killed process on worker 1 in the second, which is the last",
        "rank",
        "killed",
        "exitcode: -9",
        (Fault("disk", 0, 0, id="earlier"), Fault("kill", 1, 1, round=1)),
        restarts=1,
        environment=OWN_STORE,
    ),
    Case(
        "restart_stale_store",
        "an exception in the first round; the restart reads the addresses of the first round and fails for that alone",
        "rank",
        "python_exception",
        "connectFullMesh failed",
        (Fault("nan", 1, 1),),
        restarts=1,
        init_timeout=10,
        record=True,
    ),
    Case(
        "two_culprits",
        "two independent failures on two workers at the same moment, no collective between them",
        "ranks",
        "python_exception",
        "gradient norm is nan",
        (Fault("nan", 0, 1, at=0.4), Fault("sample", 1, 0, at=0.4, id="other")),
        culprits=("root", "other"),
        script=("--no-sync", "--pace", "0.4"),
        steps=20,
        record=True,
    ),
    Case(
        "exception_chain",
        "an exception raised from another one, with a message of several lines; JSON log lines",
        "rank",
        "python_exception",
        "schedule cannot be applied",
        (Fault("chain", 0, 1),),
        script=("--style", "json"),
        record=True,
    ),
    Case(
        "unicode_message",
        "a message in Chinese, with an emoji",
        "rank",
        "python_exception",
        "第 12 个分片已损坏",
        (Fault("unicode", 1, 0),),
    ),
    Case(
        "progress_bars",
        "progress bars with carriage returns, coloured log lines, shapes that do not fit",
        "rank",
        "python_exception",
        "mat1 and mat2 shapes cannot be multiplied",
        (Fault("shape", 0, 1),),
        script=("--style", "bars"),
        record=True,
    ),
    Case(
        "success_with_warnings",
        "a good run whose log is full of handled errors and scary words",
        "none",
        "success",
        "done after 6 steps",
        script=("--chatty",),
    ),
    Case(
        "tie_higher_local_rank",
        "two processes of one worker fail in one second; the one with the higher local rank is first",
        "rank",
        "python_exception",
        "ShardError: shard 17",
        (Fault("sample", 0, 1, at=0.2), Fault("nan", 0, 0, at=0.28, id="later")),
        script=("--no-sync", "--pace", "0.4"),
        steps=20,
        record=True,
    ),
    Case(
        "thread_exception",
        "an exception in the reader's thread: the process goes on and waits for it for ever",
        "rank",
        "hang",
        "Exception in thread prefetch",
        (Fault("thread", 1, 0),),
        timeout=8,
        record=True,
    ),
    Case(
        "uneven_processes",
        "1 and 3 processes, static rendezvous, torchrun at INFO: the global rank is not worker * n + local rank",
        "rank",
        "killed",
        "exitcode: -9",
        (Fault("kill", 1, 1),),
        processes=(1, 3),
        static=True,
        environment={"LOGLEVEL": "INFO"},
    ),
    Case(
        "teed_memory",
        "--tee 3 with a role and a log folder: each line has the local rank in front",
        "rank",
        "python_exception",
        "CUDA out of memory",
        (Fault("memory", 1, 1),),
        torchrun=("--tee", "3", "--role", "trainer"),
        log_folder=True,
        record=True,
    ),
)


def find(name: str) -> Case:
    """The case of this name, KeyError if there is none."""
    for case in CASES:
        if case.name == name:
            return case
    raise KeyError(name)
