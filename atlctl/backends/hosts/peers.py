"""Find the other workers of the current job from files and variables of the platform. No API, no DNS.

In falling order of trust: the hostfile of MPI, the lists that Volcano mounts and those in its variables, and names that
follow from the address of the first worker and the number of workers. All of these are set by the job's author: names
are checked as in hostfiles, and anything that does not match a pattern is ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from atlctl.backends.hosts.hostfile import MAX_HOSTS, Host, checked, parse, too_many
from atlctl.i18n import Message, joined, plural
from atlctl.jobs.errors import UsageError, not_regular, too_large
from atlctl.jobs.statedir import read_head
from atlctl.remote.ranks import MASTERS, masters

_MPI_FILE = "/etc/mpi/hostfile"
_MPI_VARIABLE = "OMPI_MCA_orte_default_hostfile"
_VOLCANO_FOLDER = "/etc/volcano"
_VOLCANO_FILE = re.compile(r"([a-z0-9][a-z0-9-]{0,62})\.host")
_VOLCANO_VARIABLE = re.compile(r"VC_([A-Z0-9][A-Z0-9_]{0,62})_HOSTS")
#: A launcher set these for one of its processes: RANK and WORLD_SIZE count processes there.
_TRAINER = (
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"),
    *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"),
)
#: Ends of the names of tasks: those that lead a job, those that follow.
_LEADING = ("master", "chief", "leader", "head", "launcher")
_FOLLOWING = ("worker", "node")
#: Names of a first worker, see `_named_after`.
_TRAINJOB = re.compile(r"(?P<job>[^.]+)-node-0-0\.(?P=job)(?:\..+)?")
_MASTER = re.compile(r"(?P<job>[^.]+)-master-0(?P<domain>\..+)?")
_FIRST = re.compile(r"(?P<stem>[^.]+)-0(?P<domain>\..+)?")
_LEADER = re.compile(r"(?P<leader>[^.]+-[0-9]+)(?P<domain>\..+)?")
#: Tasks of one job that are read, and bytes of one file.
_MAX_TASKS = 64
_LIMIT = 1 << 20
_INSTEAD = Message("name a file with --hostfile")


@dataclass(frozen=True, slots=True)
class Found:
    """The workers of a job in the order of their node ranks. `own`: the index of this worker, None if unknown. `used`:
    where the hosts are from; `remarks`: contradictions and skipped sources."""

    hosts: tuple[Host, ...]
    own: int | None
    used: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Seen:
    """The environment and files of a worker."""

    environ: Mapping[str, str]
    root: str

    def read(self, path: str) -> str | None:
        """The text of a file; None if it does not exist. Raises UsageError for one that must not be read."""
        try:
            data = read_head(os.path.join(self.root, path.lstrip("/")), _LIMIT + 1, links=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        if data is None or len(data) > _LIMIT:
            problem = not_regular(_shown(path)) if data is None else too_large(_shown(path), _LIMIT)
            raise UsageError(problem, _INSTEAD)
        return data.decode("utf-8", "replace")

    def listed(self, folder: str) -> list[str]:
        """The names in a folder; empty if it does not exist. Raises UsageError."""
        try:
            return sorted(os.listdir(os.path.join(self.root, folder.lstrip("/"))))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreadable(folder, error) from error

    @cached_property
    def hostname(self) -> str:
        """The name of this host; empty if unknown."""
        for path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
            with suppress(UsageError):
                if name := (self.read(path) or "").strip():
                    return name
        return self.environ.get("HOSTNAME", "")

    @cached_property
    def addresses(self) -> frozenset[str]:
        """This host's own addresses: the kubelet writes them into /etc/hosts."""
        found = {self.environ.get("POD_IP", "")}
        with suppress(UsageError):
            for line in (self.read("/etc/hosts") or "").splitlines():
                address, *names = line.partition("#")[0].split() or [""]
                if self.hostname in names:
                    found.add(address.lower())
        return frozenset(address for address in found if address and not address.startswith(("127.", "::1")))

    @cached_property
    def is_trainer(self) -> bool:
        return any(name in self.environ for name in _TRAINER)

    @cached_property
    def count(self) -> tuple[int, str] | None:
        """The number of workers of the job, and the variable that gives it.

        `WORLD_SIZE` counts workers on most platforms, processes where a launcher set it, and on Kubeflow's v1 workers
        times processes if that number is set.
        """
        if "LWS_LEADER_ADDRESS" in self.environ:
            number = _number(self.environ.get("LWS_GROUP_SIZE", ""))
            return None if number is None else (number, "LWS_GROUP_SIZE")
        least, _, most = self.environ.get("PET_NNODES", "").partition(":")
        if (number := _number(least)) is not None and most in ("", least):
            return number, "PET_NNODES"
        number = _number(self.environ.get("WORLD_SIZE", ""))
        several = (_number(self.environ.get("PET_NPROC_PER_NODE", "")) or 1) > 1
        return None if number is None or several or self.is_trainer else (number, "WORLD_SIZE")

    @cached_property
    def rank(self) -> tuple[int, str] | None:
        """This worker's node rank, and the variable that says so."""
        names = ("LWS_WORKER_INDEX",) if "LWS_LEADER_ADDRESS" in self.environ else ("PET_NODE_RANK", "RANK")
        for name in names:
            value = self.environ.get(name, "")
            if re.fullmatch("[0-9]{1,5}", value) and not (name == "RANK" and self.is_trainer):
                return int(value), name
        return None


def surroundings(environ: Mapping[str, str], root: str = "/") -> Mapping[str, str]:
    """The environment to ask for peers: `environ`, or that of the first process of the container.

    A shell of a web terminal or of sshd may lack what the container got, and in a trainer's process some of it has
    another meaning.
    """
    if _speaks(environ) and not _Seen(environ, root).is_trainer:
        return environ
    try:
        text = _Seen({}, root).read("/proc/1/environ") or ""
    except UsageError:  # another user's process
        return environ
    pairs = (item.partition("=") for item in text.split("\0"))
    first = {name: value for name, equals, value in pairs if name and equals}
    return first if _speaks(first) else environ


def _speaks(environ: Mapping[str, str]) -> bool:
    known = (*MASTERS, _MPI_VARIABLE, "LWS_LEADER_ADDRESS")
    return any(name in environ for name in known) or any(map(_VOLCANO_VARIABLE.fullmatch, environ))


def find(environ: Mapping[str, str], root: str = "/") -> Found | None:
    """The workers of the current job; None if there is no sign of a job. `root`: the root of all paths.

    A source that exists but cannot be used is skipped with a remark. Raises UsageError if no other is left.
    """
    seen = _Seen(environ, root)
    refused: list[UsageError] = []
    for source in (_mpi, _volcano_files, _volcano_variables, _group, _pattern):
        try:
            found = source(seen)
        except UsageError as error:
            refused.append(error)
            continue
        if found is not None:
            own, more = _own(found.hosts, seen)
            passed = (Message("{why}: skipped", why=error.message) for error in refused)
            return Found(found.hosts, own, found.used, (*found.remarks, *more, *passed))
    if refused:
        raise refused[0]
    return None


def _mpi(seen: _Seen) -> Found | None:
    """The file that mpirun reads: its order is that of the ranks."""
    for path in dict.fromkeys((_MPI_FILE, seen.environ.get(_MPI_VARIABLE, _MPI_FILE))):
        text = seen.read(path) if os.path.isabs(path) else None
        # The file of a launcher that still waits for its workers has no line.
        if text is not None and any(line.partition("#")[0].strip() for line in text.splitlines()):
            listed = parse(text, _shown(path))
            used = Message("{hosts} in {path}, in its order", hosts=_hosts(listed.hosts), path=_shown(path))
            return Found(listed.hosts, None, used, (*listed.remarks, *_miscounted(listed.hosts, path, seen)))
    return None


def _volcano_files(seen: _Seen) -> Found | None:
    named = [match for name in seen.listed(_VOLCANO_FOLDER) if (match := _VOLCANO_FILE.fullmatch(name))]
    if len(named) > _MAX_TASKS:
        raise UsageError(
            Message("{path} has more than {most} lists of hosts", path=_VOLCANO_FOLDER, most=_MAX_TASKS), _INSTEAD
        )
    tasks = {match[1]: (seen.read(f"{_VOLCANO_FOLDER}/{match[0]}") or "").split() for match in named}
    return _of_tasks(tasks, f"{_VOLCANO_FOLDER}/*.host", seen)


def _volcano_variables(seen: _Seen) -> Found | None:
    tasks = {}
    for name, value in seen.environ.items():
        if match := _VOLCANO_VARIABLE.fullmatch(name):
            tasks[match[1].lower().replace("_", "-")] = [item.strip() for item in value.split(",") if item.strip()]
    return _of_tasks(tasks, "VC_*_HOSTS", seen)


def _of_tasks(tasks: Mapping[str, list[str]], place: str, seen: _Seen) -> Found | None:
    """The hosts of Volcano's tasks: those that lead, then workers, then all others, each task in its own order."""
    named = sorted((_turn(task), task) for task, names in tasks.items() if names)
    if not named:
        return None
    hosts = _checked((name for _, task in named for name in tasks[task]), place)
    order = joined((task for _, task in named), Message(", then "))
    remarks = []
    if len({turn for turn, _ in named}) < len(named) or named[-1][0] == 2:
        text = Message("{place}: the order of node ranks over the tasks is not given; assumed: {order}")
        remarks.append(text.filled(place=place, order=order))
    for _, task in named:
        variable, count = f"VC_{task.upper().replace('-', '_')}_NUM", len(tasks[task])
        number = _number(seen.environ.get(variable, ""))
        if number is not None and number != count:
            text = Message("{place} has {count} hosts of the task {task}, but {variable} is {number}")
            remarks.append(text.filled(place=place, count=count, task=task, variable=variable, number=number))
    used = Message("{hosts} in {place}: {order}; node ranks are assumed to follow this order")
    used = used.filled(hosts=_hosts(hosts), place=place, order=order)
    return Found(hosts, None, used, (*remarks, *_miscounted(hosts, place, seen)))


def _turn(task: str) -> int:
    return 0 if task.endswith(_LEADING) else 1 if task.endswith(_FOLLOWING) else 2


def _group(seen: _Seen) -> Found | None:
    leader = seen.environ.get("LWS_LEADER_ADDRESS", "")
    names = _grouped(leader, seen.count[0]) if seen.count is not None and _is_name(leader) else None
    if names is None:
        return None
    used = Message(
        "{hosts} of one group: LWS_LEADER_ADDRESS is {leader} and LWS_GROUP_SIZE {count}",
        hosts=_hosts(names),
        leader=leader,
        count=len(names),
    )
    return Found(_checked(names, "LWS_LEADER_ADDRESS"), None, used)


def _pattern(seen: _Seen) -> Found | None:
    # The leader of a group is called like the first pod of a StatefulSet, whose others are other groups' leaders.
    if seen.count is None or "LWS_LEADER_ADDRESS" in seen.environ:
        return None
    count, said = seen.count
    for variable, first in masters(seen.environ):
        if first in ("localhost", "127.0.0.1") and seen.hostname.endswith("-master-0"):
            first = seen.hostname  # an old training-operator names the master this way
        names = _named_after(first, count, seen.hostname) if _is_name(first) else None
        if names is not None and not (said == "WORLD_SIZE" and _counts_processes(names, seen)):
            used = Message(
                "{hosts} by the pattern of their names: {variable} is {first} and {said} {count}",
                hosts=_hosts(names),
                variable=variable,
                first=first,
                said=said,
                count=count,
            )
            return Found(_checked(names, variable), None, used)
    return None


def _counts_processes(names: tuple[str, ...], seen: _Seen) -> bool:
    """Whether `RANK` is not this worker's number by its name: then it counts something else, and `WORLD_SIZE` too."""
    labels = [_short(name) for name in names]
    own = _short(seen.hostname)
    return own in labels and seen.rank is not None and seen.rank[0] != labels.index(own)


def _own(hosts: tuple[Host, ...], seen: _Seen) -> tuple[int | None, tuple[str, ...]]:
    """Which of the hosts this is, by name or address; by its rank alone where the numbers of hosts agree."""
    name, rank = seen.hostname.lower(), seen.rank
    found = [at for at, host in enumerate(hosts) if name == host.name.lower() or host.name.lower() in seen.addresses]
    if not found and name:
        found = [
            at for at, host in enumerate(hosts) if not _is_address(host.name) and _short(host.name) == _short(name)
        ]
    if len(found) == 1:
        if rank is None or rank[0] == found[0]:
            return found[0], ()
        text = Message("this worker is number {number} by its name or address, but {variable} is {rank}")
        return found[0], (text.filled(number=found[0], variable=rank[1], rank=rank[0]),)
    if rank is not None and rank[0] < len(hosts):
        if rank[0] in found:
            return rank[0], ()
        if not found and seen.count is not None and seen.count[0] == len(hosts):
            text = Message("this worker is assumed to be {host}, since {variable} is {rank}")
            return rank[0], (text.filled(host=hosts[rank[0]].name, variable=rank[1], rank=rank[0]),)
    return None, ()


def _miscounted(hosts: tuple[Host, ...], place: str, seen: _Seen) -> tuple[str, ...]:
    if seen.count is None or seen.count[0] == len(hosts):
        return ()
    number, variable = seen.count
    rest = Message(": some workers are missing") if len(hosts) < number else ""
    text = Message("{place} has {hosts}, but {variable} is {number}{rest}")
    return (text.filled(place=_shown(place), hosts=_hosts(hosts), variable=variable, number=number, rest=rest),)


def _checked(names: Iterable[str], place: str) -> tuple[Host, ...]:
    """Hosts of names that were listed or made, each once. Raises UsageError, with the place."""
    found: dict[str, Host] = {}
    for name in names:
        try:
            found[name] = Host(checked(name))
        except UsageError as error:
            raise UsageError(Message("{path}: {why}", path=place, why=error.message), error.hint) from None
        if len(found) > MAX_HOSTS:
            raise UsageError(Message("{path}: {why}", path=place, why=too_many().message), _INSTEAD)
    return tuple(found.values())


def _is_name(text: str) -> bool:
    try:
        checked(text)
    except UsageError:
        return False
    return not _is_address(text)


def _is_address(name: str) -> bool:
    return ":" in name or re.fullmatch("[0-9.]+", name) is not None


def _number(text: str) -> int | None:
    """A number of hosts that could be one."""
    return int(text) if re.fullmatch("[0-9]{1,5}", text) and 0 < int(text) <= MAX_HOSTS else None


def _hosts(hosts: tuple[object, ...]) -> str:
    return plural("{n} host", "{n} hosts", len(hosts))


def _shown(path: str) -> str:
    return path if re.fullmatch(r"[\w./*-]+", path, re.ASCII) else ascii(path)


def _unreadable(path: str, error: Exception) -> UsageError:
    reason = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else Message("not a path")
    return UsageError(Message("cannot read {path}: {why}", path=_shown(path), why=reason), _INSTEAD)


# Names that follow a pattern


def _named_after(first: str, count: int, hostname: str) -> tuple[str, ...] | None:
    """All `count` workers of a job in the order of their node ranks, from the name of the first; None if nothing fits.

    tj-node-0-0.tj           TrainJob: tj-node-0-0.tj, tj-node-0-1.tj, ...
    job-master-0             PyTorchJob: the master, then job-worker-0, job-worker-1, ...
    job-worker-0             PyTorchJob without a master: job-worker-0, job-worker-1, ...
    js-rj-0-0.js, sts-0.svc  JobSet, indexed Job, StatefulSet: the last number counts

    `hostname`, of this worker, has a say: one that is among the names vouches for them, one of the same family that
    is not among them disproves them. Where it is called otherwise (a host network) the pattern must be one that
    only a controller makes.
    """
    master = _MASTER.fullmatch(first)
    if master is not None:
        job, domain = master["job"], master["domain"] or ""
        names = (first, *_numbered(f"{job}-worker", domain, count - 1))
        if _is_of(f"{job}-worker", hostname):
            return names if _among(names, hostname) else None
        if _short(hostname) == _short(first) or not _is_of(f"{job}-master", hostname):
            # A StatefulSet may be called *-master, too, but its pods have the domain of a service.
            return names if domain == "" or f"{domain}.".startswith(f".{job}.") else None
    numbered = _FIRST.fullmatch(first)
    if numbered is None:
        return None
    stem = numbered["stem"]
    names = _numbered(stem, numbered["domain"] or "", count)
    if _is_of(stem, hostname):
        return names if _among(names, hostname) else None
    return names if stem.endswith("-worker") or _TRAINJOB.fullmatch(first) else None


def _grouped(leader: str, count: int) -> tuple[str, ...] | None:
    """The workers of one group of a LeaderWorkerSet by its leader's address: lws-2.svc, lws-2-1.svc, lws-2-2.svc."""
    match = _LEADER.fullmatch(leader)
    if match is None:
        return None
    return (leader, *(f"{match['leader']}-{number}{match['domain'] or ''}" for number in range(1, count)))


def _short(name: str) -> str:
    """The first label of a name, in the form in which names are compared."""
    return name.partition(".")[0].lower()


def _numbered(stem: str, domain: str, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}-{number}{domain}" for number in range(count))


def _is_of(stem: str, hostname: str) -> bool:
    """Whether a host is called like those of a family."""
    start, _, number = _short(hostname).rpartition("-")
    return start == stem.lower() and number.isdecimal()


def _among(names: Iterable[str], hostname: str) -> bool:
    return _short(hostname) in map(_short, names)
