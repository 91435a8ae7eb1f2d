"""Jobs that are lists of hosts: a hostfile that was named, one of the configuration, the peers of a worker."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass

from atlctl.backends.hosts.hostfile import Host, Hosts, parse, pick
from atlctl.backends.hosts.peers import Found
from atlctl.i18n import Message
from atlctl.jobs.config import SshJob
from atlctl.jobs.errors import UsageError
from atlctl.jobs.model import HOSTS, Job, State, Worker
from atlctl.jobs.naming import MAX_JOB_NAME

#: Bytes of a hostfile.
_LIMIT = 4 << 20
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class HostList:
    """`source`: where the hosts are from; `remarks`: how ambiguous lines were read. `own`: the index of the worker that
    this process runs in, None if it is not in a worker or if that is unknown."""

    name: str
    hosts: tuple[Host, ...]
    source: str
    remarks: tuple[str, ...] = ()
    own: int | None = None

    @property
    def job(self) -> Job:
        """No host was queried yet: the state of each host is unknown."""
        workers = tuple(
            Worker(host.name, index, State.UNKNOWN, node_rank=index, host=host.name, gpus=host.slots)
            for index, host in enumerate(self.hosts)
        )
        told = "\n".join(f"{host.user}@{host.name}:{host.port}" for host in self.hosts)
        uid = f"hosts-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        return Job(
            self.name, HOSTS, "ssh", State.UNKNOWN, uid, len(workers), workers, reason=Message("a list of hosts")
        )


def of_file(path: str) -> HostList:
    """The hosts of a hostfile, named after it. Raises UsageError."""
    found = _read(path)
    piped = path.startswith("/dev/")
    stem = "" if piped else _NO_NAME.sub("-", os.path.basename(path)).strip("-._")[:MAX_JOB_NAME]
    stem = stem or "hosts"
    return HostList(stem, found.hosts, path, found.remarks)


def of_config(name: str, setting: SshJob) -> HostList:
    """A job of the configuration. Raises UsageError."""
    found = parse("\n".join(setting.hosts), setting.where) if setting.hostfile is None else _read(setting.hostfile)
    hosts = pick(found.hosts, setting.include, setting.exclude)
    return HostList(name, hosts, setting.hostfile or setting.where, found.remarks)


def of_peers(found: Found) -> HostList:
    """The workers around this one."""
    return HostList("peers", found.hosts, found.used, found.remarks, found.own)


def _read(path: str) -> Hosts:
    if path in ("-", "/dev/stdin") or path.startswith("/dev/fd/"):  # a pipe, as of `<(scontrol show hostnames)`
        return _parsed(_piped(path), path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UsageError(_unreadable(path, error), Message("check the path")) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError(
                Message("the hostfile {path} is not a regular file", path=path),
                Message("write the hosts into a file, one a line"),
            )
        with open(fd, "rb", closefd=False) as file:
            return _parsed(file.read(_LIMIT + 1), path)
    finally:
        os.close(fd)


def _piped(path: str) -> bytes:
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            return file.read(_LIMIT + 1)
    except OSError as error:
        raise UsageError(_unreadable(path, error), Message("check the path")) from error


def _unreadable(path: str, error: Exception) -> Message:
    why = error.strerror if isinstance(error, OSError) else error
    return Message("cannot read the hostfile {path}: {why}", path=path, why=why)


def _parsed(data: bytes, path: str) -> Hosts:
    if len(data) > _LIMIT:
        raise UsageError(
            Message("the hostfile {path} is larger than {limit} MiB", path=path, limit=_LIMIT >> 20),
            Message("name a smaller one"),
        )
    return parse(data.decode("utf-8", "replace"), path)
