"""What `doctor` asks of hosts: who lets this client in, with which keys, and what is there. No host key is noted."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import asyncssh

from atlctl.backends.base import Argv
from atlctl.backends.guarded.asking import told_by
from atlctl.backends.hosts.connect import Connections, Target, at
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.hostkeys import HostKeyRefused, KnownHosts
from atlctl.backends.hosts.stream import SshExecutor
from atlctl.backends.questions import ask_all
from atlctl.i18n import Message, specific
from atlctl.jobs.errors import AtlctlError, TimedOut, UsageError, no_answer, not_regular, unreadable
from atlctl.jobs.model import State, Worker
from atlctl.remote.sending import shell

#: Hosts that are asked at once.
PARALLEL = 64
Status = Literal[
    "ok", "key-unknown", "key-changed", "key-revoked", "login", "name", "refused", "late", "config", "shell", "other"
]

# The time comes first, because the rest may take a while.
_QUESTION = (
    *("sh", "-c", f'echo "T `date +%s`"\n({shell("find_python")}) 2>/dev/null\nexit 0', "sh", "-I -S"),
    'import sys; print("P %d.%d.%d" % sys.version_info[:3]); sys.exit(97 * (sys.version_info < (3, 8)))',
)
_LIMIT = 4096
_TIME = re.compile(rb"^T ([0-9]{1,12})$", re.MULTILINE)
_PYTHON = re.compile(rb"^P ([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The result of checking one host. `error`: the reason, if `status` is not ok.

    `python`: the newest version found, None if there is none; `fits`: it is 3.8 or newer. `clock`: bounds of the offset
    of its clock from the local one, in seconds.
    """

    name: str
    status: Status
    target: Target | None = None
    error: AtlctlError | None = None
    python: str | None = None
    fits: bool = False
    clock: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A known_hosts file: its number of entries, None if it does not exist; and its problem, if any."""

    path: str
    entries: int | None
    problem: str | None = None


async def examine(
    connections: Connections, hosts: Mapping[str, Host], seconds: float, most: float, parallel: int = PARALLEL
) -> list[HostCheck]:
    """Every host is logged in to and asked one question, `parallel` at once, in their order.

    `seconds`: for each login and for each question; `most`: for all of them. Raises nothing of a host's.
    """
    executor = SshExecutor(connections, hosts)
    workers = {name: Worker(name, index, State.RUNNING) for index, name in enumerate(hosts)}

    async def one(name: str) -> HostCheck:
        return await _one(connections, executor, workers[name], hosts[name], seconds)

    found = await ask_all(hosts, one, most, parallel)
    late = TimedOut(
        Message("not asked: the time limit of {most:g} s was reached", most=most), Message("ask fewer hosts at once")
    )
    return [found.get(name) or HostCheck(name, "late", error=late) for name in hosts]


async def _one(
    connections: Connections, executor: SshExecutor, worker: Worker, host: Host, seconds: float
) -> HostCheck:
    checked = HostCheck(worker.name, "ok")
    try:
        checked = replace(checked, target=connections.target(host))
        async with asyncio.timeout(seconds):
            await connections.get(host)
    except TimeoutError:
        where = f"{checked.target.host}:{checked.target.port}" if checked.target is not None else worker.name
        hint = Message(
            "see where it hangs: ssh -v {worker} true; or allow more time: --connect-timeout {seconds:g}",
            worker=worker.name,
            seconds=seconds * 3,
        )
        late = TimedOut(
            at(where, no_answer(seconds, connections.stage(host))),
            specific(hint, hint.filled(worker="HOST", seconds=seconds * 3)),
        )
        return replace(checked, status="late", error=late)
    except AtlctlError as error:
        return replace(checked, status=status_of(error), error=error)
    try:
        begun = time.time()
        async with asyncio.timeout(seconds):
            said = await told_by(executor, worker, Argv(_QUESTION), _LIMIT)
        return _read(checked, said, begun, time.time())
    except TimeoutError:
        hung = TimedOut(Message("the login works, but a command did not end within {seconds:g} s", seconds=seconds))
        return replace(checked, status="shell", error=hung)
    except AtlctlError as error:
        told = AtlctlError(Message("the login works, but no command can run: {why}", why=error.message), error.hint)
        return replace(checked, status="shell", error=told)
    finally:
        connections.rest(host)


def status_of(error: AtlctlError) -> Status:
    """Classify a failure to connect."""
    cause = error.__cause__
    if isinstance(error, HostKeyRefused):
        kinds: dict[str, Status] = {"unknown": "key-unknown", "changed": "key-changed", "revoked": "key-revoked"}
        return kinds[error.why]
    if isinstance(cause, asyncssh.PermissionDenied):
        return "login"
    if isinstance(error, TimedOut):
        return "late"
    if isinstance(cause, socket.gaierror):
        return "name"
    if isinstance(cause, ConnectionRefusedError):
        return "refused"
    return "config" if isinstance(error, UsageError) else "other"


def _read(checked: HostCheck, said: bytes, begun: float, ended: float) -> HostCheck:
    """Parse the script's output; the login shell may have printed other lines."""
    told, pythons = _TIME.search(said), _PYTHON.findall(said)
    clock = None
    if told is not None:
        wall = int(told[1])
        # Whole seconds: it may be nearly one later there.
        clock = (wall - ended, wall + 1 - begun)
    version = max((tuple(map(int, one)) for one in pythons), default=None)
    python = None if version is None else ".".join(map(str, version))
    return replace(checked, python=python, fits=version is not None and version >= (3, 8), clock=clock)


def known_files(paths: Sequence[str]) -> list[KnownFile]:
    """Check each of these known_hosts files."""
    found = []
    for path in map(os.path.expanduser, paths):
        if not os.path.isfile(path):
            problem = not_regular(path) if os.path.lexists(path) and path != os.devnull else None
            found.append(KnownFile(path, None, problem))
            continue
        try:
            KnownHosts().of([path])
            with open(path, "rb") as file:
                lines = [line.strip() for line in file]
        except UsageError as error:
            found.append(KnownFile(path, None, error.message))
        except OSError as error:
            found.append(KnownFile(path, None, unreadable(path, error.strerror)))
        else:
            found.append(KnownFile(path, sum(bool(line) and not line.startswith(b"#") for line in lines)))
    return found
