"""Where a wrapper is: its job, its number among the job's workers, its address; from the platform's variables."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from atlctl.backends.hosts.peers import Found, find, surroundings
from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError
from atlctl.jobs.naming import MAX_JOB_NAME
from atlctl.remote.ranks import OTHER_LAUNCHERS, masters

#: Variables that name a job, in falling order; the same in all of its workers.
_NAMES = ("PET_RDZV_ID", "VC_JOB_NAME", "JOB_NAME", "SLURM_JOB_ID")
#: Number of this worker and number of workers. On these platforms they count nodes; the platform's own `RANK` and
#: `WORLD_SIZE` and Kubeflow's `PET_*` do so, too.
_COUNTS = (
    ("PET_NODE_RANK", "PET_NNODES"),
    ("GROUP_RANK", "GROUP_WORLD_SIZE"),
    ("SLURM_NODEID", "SLURM_NNODES"),
    ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
#: A launcher's number for one of its processes on this host, how many of them are here, and its number in the job; that
#: of torchrun first, which may be inside the others.
_LOCAL = (("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK"), *(names[:3] for names in OTHER_LAUNCHERS))
#: Variables that differ between two starts of one job, or two steps.
_STEPS = ("SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "TORCHELASTIC_RUN_ID", "MASTER_PORT")
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")
#: Ends of names of first workers: `train-master-0`, `tj-node-0-0`, `sts-0`.
_FIRST = re.compile(r"(?P<job>.+?)(?:-(?:master|worker|chief|launcher|node-0))?-0")
#: Connections that may wait until they are accepted.
BACKLOG = 512
#: Nodes of one entry of a list of Slurm.
_MOST_NODES = 100_000
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Post:
    """`job`: the name that all its workers give it. `index` of this worker, `count` of workers. `first`: the name or
    address of the first worker, empty if unknown. `peers`: the workers by name, if the platform describes them. `odd`:
    a contradiction in the platform's variables, for which the worker counts as alone.

    A launcher may start a wrapper for each of several processes of a host: `local` is the number of this one, of
    `beside`; `rank` the global rank, None if unknown; `step` what only they have in common.

    `owner`: the job and its worker that this process was started in by `local run`, `ssh run` or another `run`."""

    job: str
    index: int
    count: int
    first: str
    peers: Found | None
    odd: str = ""
    local: int = 0
    beside: int = 1
    rank: int | None = None
    step: str = ""
    owner: tuple[str, str] | None = None

    @property
    def marks(self) -> tuple[str, str]:
        """The job and the worker in the environment of the command: those of the owner, which looks for them."""
        return self.owner or (self.job, self.name)

    @property
    def name(self) -> str:
        return worker_name(self.index)

    @property
    def label(self) -> bytes:
        """The beginning of each line of this process in the log of its worker: torch's own; empty if it is alone."""
        if self.beside == 1:
            return b""
        return b"[local%d]:" % self.local if self.rank is None else b"[rank%d]: " % self.rank


def worker_name(index: int) -> str:
    return f"worker-{index}"


def place(environ: Mapping[str, str], name: str | None = None) -> Post:
    """The place of this process. `name`: that of the job."""
    around = surroundings(environ)
    try:
        peers = find(around)
    except UsageError:
        peers = None
    local, beside, process = _local(environ)
    rank = environ.get(process, "")
    # The first process of a container has the platform's own variables, which count workers.
    index, count, odd = _numbers(around, peers, process if around is environ else "", beside)
    first = next((host for _, host in masters(around) if host), "") or (peers.hosts[0].name if peers else "")
    step = " ".join(environ[variable] for variable in _STEPS if variable in environ)
    owner = environ.get("ATLCTL_JOB", ""), environ.get("ATLCTL_WORKER", "")
    job = name or _job(around, first)
    return Post(
        # Of two jobs with one name only one can be named.
        f"{job[: MAX_JOB_NAME - 4]}-run" if all(owner) and job == owner[0] else job,
        index,
        count,
        first,
        peers,
        odd,
        local,
        beside,
        int(rank) if rank.isdecimal() else None,
        step,
        owner if all(owner) else None,
    )


def _local(environ: Mapping[str, str]) -> tuple[int, int, str]:
    """The number of this process on its host, how many are there (1 if unknown), and the variable that numbers it in
    the job."""
    alone = 0, 1, ""
    for variable, count, process in _LOCAL:
        number, beside = environ.get(variable, ""), environ.get(count, "")
        if number.isdecimal() and not beside.isdecimal():  # Slurm: of each node, as in 4(x2),3
            nodes = [(int(tasks), int(times or 1)) for tasks, times in _TASKS.findall(beside)]
            each = [tasks for tasks, times in nodes for _ in range(min(times, _MOST_NODES))]
            node = environ.get("SLURM_NODEID", "")
            beside = str(each[int(node)]) if node.isdecimal() and int(node) < len(each) else ""
        if number.isdecimal() and beside.isdecimal():
            return int(number), max(int(beside), int(number) + 1), process
        if number.isdecimal() and alone == (0, 1, ""):
            alone = int(number), 1, process
    return alone


def _numbers(environ: Mapping[str, str], peers: Found | None, process: str, beside: int) -> tuple[int, int, str]:
    """Index, count, and the contradiction for which the worker counts as alone. `process`: the variable that counts
    processes, of which `beside` are on this host."""
    for own, all_ in _COUNTS:
        index, count = environ.get(own, ""), environ.get(all_, "").rpartition(":")[2]  # an elastic job: MIN:MAX
        if index.isdecimal() and count.isdecimal() and int(count) > 0:
            if own == process and beside > 1:
                if peers is not None and peers.own is not None:
                    return peers.own, len(peers.hosts), ""
                # Launchers fill one host after the other, unless they are asked not to.
                index, count = str(int(index) // beside), str(-(-int(count) // beside))
            if int(index) < int(count):
                return int(index), int(count), ""
            odd = Message("{own} is {index}, but {all} is {count}", own=own, index=index, all=all_, count=count)
            return 0, 1, odd
    if peers is not None:
        completion = environ.get("JOB_COMPLETION_INDEX", "")
        number = int(completion) if completion.isdecimal() else peers.own
        if number is not None and number < len(peers.hosts):
            return number, len(peers.hosts), ""
    return 0, 1, ""


def _job(environ: Mapping[str, str], first: str) -> str:
    named = next((environ[variable] for variable in _NAMES if environ.get(variable)), "")
    if not named:
        host = first.partition(".")[0] if re.search("[A-Za-z]", first) else first
        host = socket.gethostname() if host in ("", "localhost", "127.0.0.1") else host
        match, port = _FIRST.fullmatch(host), environ.get("MASTER_PORT", "")
        # A host, or an address, is shared by jobs that differ by the port.
        named = match["job"] if match else f"{host}-{port}" if port.isdecimal() else host
    return _UNSAFE.sub("-", named).strip("-_")[:MAX_JOB_NAME] or "job"


def command_environ(given: Mapping[str, str], marks: tuple[str, str], files: str) -> dict[str, str]:
    """The environment of the command: the given one, the marks of its processes, and folders for evidence of torch."""
    environ = {**given, "ATLCTL_JOB": marks[0], "ATLCTL_WORKER": marks[1]}
    with contextlib.suppress(OSError):
        os.makedirs(files, mode=0o700, exist_ok=True)
        environ.setdefault("TORCHELASTIC_ERROR_FILE", f"{files}/error.json")
        if not {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"} & environ.keys():
            environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{files}/nccl_trace_rank_"
    return environ


def own_address(place: Post, environ: Mapping[str, str] = os.environ) -> str:
    """The address under which the other workers reach this one; 127.0.0.1 if there are none."""
    if place.count == 1:
        return "127.0.0.1"
    if environ.get("POD_IP"):
        return environ["POD_IP"]
    for host in (place.first, socket.gethostname()):
        if (found := _source(host)) is not None:
            return found
    return "127.0.0.1"


def bound(address: str, port: int) -> socket.socket:
    """A socket to which others can connect from now on. `port`: 0 for any free one. Raises OSError."""
    # A name may have several addresses, of which one is the worker's own.
    family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(target)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _source(host: str) -> str | None:
    """The address of this machine from which packets to `host` leave; None if it does not resolve or is this machine
    under a loopback address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            own = str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None
    return None if own.startswith("127.") or own == "::1" else own
