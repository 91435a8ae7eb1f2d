"""How each launcher is started, and which words of it report a death."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.corpus import network
from tests.corpus.running import Unfinished
from tests.support.sshd import Sshd, make_key

SIZE = 4
_STAMPED = "%(asctime)s %(levelname)s [rank {rank}] %(message)s"
_PLAIN = "%(asctime)s | %(levelname)s | %(message)s"


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the maker. `python` is reached by a link in `folder`: no other job has this path."""

    folder: Path
    fault: str
    mark: str
    environment: Mapping[str, str]

    @property
    def python(self) -> str:
        return str(self.folder / "venv" / "bin" / "python")

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def program(self, name: str) -> str:
        """A program of the launchers' environment."""
        return str(self.folder / "venv" / "bin" / name)


def _nothing(_job: Job) -> AbstractContextManager[Mapping[str, str]]:
    """No server is needed."""
    return contextlib.nullcontext({})


@dataclass(frozen=True, slots=True)
class Site:
    """One launcher.

    `command` makes its words from the job and the script's options. `servers` starts what the launcher needs, ends it
    after, and returns variables. `deaths` are words of the launcher that report any death, `names` those that name the
    dead rank (with `{rank}`, `{local_rank}`, `{pid}`), `signals` those that report a signal to the launcher itself.
    `tags`: each line of output names its rank. `hosts` are named in front of the lines if there are several.
    `limit` is the seconds that a job may take, on a busy machine. `skips` are faults that cannot be made, with the
    reason. `interrupts` is how often Ctrl-C must be pressed.
    """

    name: str
    script: str
    command: Callable[[Job, list[str]], list[str]]
    format: str = _STAMPED
    deaths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    tags: bool = False
    limit: float = 240.0
    interrupts: int = 1
    hosts: tuple[str, ...] = ()
    skips: Mapping[str, str] = field(default_factory=dict)
    servers: Callable[[Job], AbstractContextManager[Mapping[str, str]]] = _nothing

    def node(self, rank: int) -> str:
        """The host of this rank; the log's name if there is one host only."""
        return self.hosts[rank * len(self.hosts) // SIZE] if self.hosts else "worker-0"


def _port() -> str:
    return str(network.loopback(1)[0].port)


def _spawn(job: Job, words: list[str]) -> list[str]:
    return [job.python, "train_spawn.py", *words]


def _deepspeed(job: Job, words: list[str]) -> list[str]:
    options = [f"--num_accelerators={SIZE}", f"--master_port={_port()}"]
    return [job.python, job.program("deepspeed"), *options, "train.py", *words]


def _accelerate(job: Job, words: list[str]) -> list[str]:
    options = ["--multi_gpu", f"--num_processes={SIZE}", "--num_machines=1", f"--main_process_port={_port()}"]
    options += ["--mixed_precision=no", "--dynamo_backend=no"]
    return [job.python, job.program("accelerate"), "launch", *options, "train_accelerate.py", *words]


def _lightning(job: Job, words: list[str]) -> list[str]:
    return [job.python, "train_lightning.py", *words]


def _mpirun(job: Job, words: list[str]) -> list[str]:
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--tag-output", "-n", str(SIZE)]
    return [job.program("mpirun"), *options, job.python, "train.py", *words]


@contextlib.contextmanager
def _store_port(_job: Job) -> Iterator[Mapping[str, str]]:
    """The address of the ranks' store, which these launchers do not choose."""
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port()}


#: The hosts of the jobs that run on two.
HOSTS = ("node-0", "node-1")


@contextlib.contextmanager
def _sshd(job: Job) -> Iterator[Mapping[str, str]]:
    """An SSH server that answers for both hosts, with its own keys, and pdsh's variables for it."""
    folder = job.folder / "ssh"
    folder.mkdir()
    key = make_key(folder / "key")
    variables = " ".join(f"{name}={value}" for name, value in job.environment.items())
    server = Sshd(folder / "server", [key], more=[f"SetEnv {variables}"])
    try:
        (folder / "known_hosts").write_text(server.known)
        lines = [
            f"Host {' '.join(HOSTS)}",
            "HostName 127.0.0.1",
            f"Port {server.port}",
            "User root",
            f"IdentityFile {key}",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {folder / 'known_hosts'}",
            "LogLevel ERROR",
        ]
        (folder / "config").write_text("\n".join(lines) + "\n")
        (job.workspace / "hostfile").write_text("".join(f"{host} slots={SIZE // len(HOSTS)}\n" for host in HOSTS))
        yield {"PDSH_SSH_ARGS_APPEND": f"-F {folder / 'config'}"}
    finally:
        server.close()


def _pdsh(job: Job, words: list[str]) -> list[str]:
    options = ["--hostfile=hostfile", "--no_ssh_check", "--master_addr=127.0.0.1", f"--master_port={_port()}"]
    return [job.python, job.program("deepspeed"), *options, "train.py", *words]


_SLURM = """\
ClusterName=corpus
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
KillWait=5
NodeName=node-0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=node-1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def _slurm(job: Job) -> Iterator[Mapping[str, str]]:
    """A Slurm of two nodes on loopback, with its own key and sockets."""
    folder = job.folder / "slurm"
    (folder / "state").mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    text = _SLURM.format(host=socket.gethostname(), folder=folder, ports=[_port() for _ in range(3)])
    (folder / "slurm.conf").write_text(text)
    variables = {**job.environment, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    servers = []
    try:
        for words in (munge, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", host] for host in HOSTS)):
            program = shutil.which(words[0], path=variables["PATH"])
            if program is None:
                raise Unfinished(f"{words[0]} is not installed")
            log = (folder / f"{words[0]}.out").open("ab")
            with log:
                server = subprocess.Popen(
                    [program, *words[1:]], env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            servers.append(server)
            if words is munge:
                _wait_for(lambda: (folder / "munge.socket").exists(), folder)
        _wait_for(lambda: _idle(variables) == len(HOSTS), folder)
        yield {"SLURM_CONF": str(folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port()}
    finally:
        for server in reversed(servers):
            server.terminate()
        for server in reversed(servers):
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _idle(variables: Mapping[str, str]) -> int:
    """The number of nodes that wait for work."""
    words = ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"]
    return len(subprocess.run(words, env=variables, capture_output=True, text=True, check=False).stdout.split())


def _wait_for(ready: Callable[[], bool], folder: Path, patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not ready():
        if time.monotonic() > deadline:
            logs = "".join(path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*.log")))
            raise Unfinished(f"Slurm does not start\n{logs}")
        time.sleep(0.1)


#: Without `-K` srun waits for a rank that never ends.
_ENDLESS = ("hang", "thread_dies")
#: Faults for which srun gets `-K`: it then ends the others, as many sites have it by default.
_KILLED = (*_ENDLESS, "chained", "exit_silent", "segfault", "handled_sigkill", "missing_file", "import_error_all")


def _srun(job: Job, words: list[str]) -> list[str]:
    options = ["-l", f"-N{len(HOSTS)}", f"-n{SIZE}", f"--ntasks-per-node={SIZE // len(HOSTS)}"]
    options += ["-K"] if job.fault in _KILLED else []
    return ["srun", *options, job.python, "train.py", *words]


def _horovod(job: Job, words: list[str]) -> list[str]:
    options = ["--gloo", "-np", str(SIZE), "-H", f"localhost:{SIZE}", "--network-interfaces", "lo"]
    return [job.python, "horovodrun.py", *options, job.python, "train.py", *words]


#: Process numbers of its own: an instance of Ray looks for others on the machine.
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def _ray(job: Job, words: list[str]) -> list[str]:
    # The first process of a namespace ignores signals that it does not expect.
    alone = () if job.fault.startswith("launcher_") else ALONE
    return [*alone, job.python, "train_ray.py", *words]


SITES = (
    Site(
        "mpspawn",
        "train_spawn.py",
        _spawn,
        deaths=("terminated with exit code", "terminated with signal", "terminated with the following error"),
        names=("process {rank} terminated with", "Process {rank} terminated with"),
        servers=_store_port,
    ),
    Site(
        "deepspeed",
        "train.py",
        _deepspeed,
        deaths=("exits with return code",),
        signals=("Main process received",),
    ),
    Site(
        "accelerate",
        "train_accelerate.py",
        _accelerate,
        deaths=("failed (exitcode",),
        names=(") local_rank: {local_rank} (pid: {pid})", "rank      : {rank} (local_rank: {local_rank})"),
        signals=("SignalException", "Received 15 death signal", "Received 2 death signal"),
    ),
    Site(
        "lightning",
        "train_lightning.py",
        _lightning,
        deaths=("terminated with code", "Connection reset by peer", "Connection closed by peer"),
        names=("[rank: {rank}] Child process with PID {pid} terminated",),
        signals=("Received SIGTERM",),
        servers=_store_port,
    ),
    Site(
        "mpirun",
        "train.py",
        _mpirun,
        format=_PLAIN,
        deaths=("exited on signal", "exited with non-zero status"),
        names=("process rank {rank} with PID", "@1,{rank}] "),
        tags=True,
        signals=("abort is in progress", "has been signaled"),
        servers=_store_port,
    ),
    Site(
        "pdsh",
        "train.py",
        _pdsh,
        deaths=("exits with return code", "ssh exited with exit code"),
        hosts=HOSTS,
        signals=("Main process received", "interrupt (one more within", "interrupt, aborting"),
        servers=_sshd,
    ),
    Site(
        "srun",
        "train.py",
        _srun,
        format=_PLAIN,
        deaths=("srun: error:",),
        names=(": task {rank}: ",),
        tags=True,
        hosts=HOSTS,
        signals=("srun: forcing job termination", "srun: interrupt", "CANCELLED AT", "srun: sending Ctrl-C"),
        interrupts=2,
        servers=_slurm,
    ),
    Site(
        "horovod",
        "train.py",
        _horovod,
        format=_PLAIN,
        deaths=("exit with status code", "exited with non-zero status"),
        names=("Process name: {rank} ",),
        tags=True,
        servers=_store_port,
    ),
    Site(
        "ray",
        "train_ray.py",
        _ray,
        format=_PLAIN,
        deaths=("died", "Worker ranks", "WorkerGroupError", "TrainingFailedError"),
        names=("[Rank {rank} Error",),
        signals=("SIGTERM received at",),
        tags=True,
    ),
)


def base_environment(folder: Path, mark: str) -> dict[str, str]:
    """The variables of every job: nothing of this machine's user."""
    return {
        "PATH": f"{folder}/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        # Processes of Ray that a short job on a busy machine does not need.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",
        "DS_ACCELERATOR": "cpu",
        "LOGNAME": os.environ.get("LOGNAME", "root"),
        "CORPUS_RUN": mark,
    }
