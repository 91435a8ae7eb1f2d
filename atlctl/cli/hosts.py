"""Lists of hosts: `--hostfile`, those of the configuration, the peers of a worker; and how hosts are connected to."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from atlctl.cli import say
from atlctl.cli.runtime import context
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.config import load_config
from atlctl.jobs.errors import NothingMatched, UsageError
from atlctl.jobs.statedir import state_dir

if TYPE_CHECKING:
    from atlctl.backends.hosts.connect import Connections
    from atlctl.backends.hosts.lists import HostList
    from atlctl.backends.hosts.peers import Found
    from atlctl.backends.hosts.records import Record
    from atlctl.backends.hosts.ssh import SshBackend
    from atlctl.jobs.config import Config, SshConfig


@cache
def configured() -> SshConfig:
    """The table `[ssh]` of the configuration, read once for a command. Raises UsageError for one that is wrong."""
    return settings().ssh


def settings() -> Config:
    """The configuration that holds here. A project file that is not read is named on stderr. Raises UsageError."""
    found = load_config(os.environ)
    if found.unread:
        _note_once(unread(found.unread))
    return found


def unread(why: str) -> Message:
    return Message("the project file is not read: {why}", why=why)


@cache
def _note_once(text: str) -> None:
    say.note(text)


def say_project(name: str) -> None:
    """Say that a job is one of the project file's, which may hide another of that name."""
    job = configured().jobs.get(name)
    if job is None or job.project is None:
        return
    what = Message("job {job} is a list of hosts in the project file {file}", job=name, file=job.project)
    hides = Message("it hides the one in your config.toml")
    say.note(joined((what, hides if job.hides else Message("for one of the cluster: --backend kubernetes"))))


def started(name: str | None) -> bool:
    """Whether `ssh run` has started a job of that name from here, or any job if no name is given; or `run` wraps a
    worker of it in this container."""
    if wrapped(name):
        return True
    folder = os.path.join(state_dir(), "ssh")
    if name is not None:
        return "/" not in name and os.path.lexists(os.path.join(folder, name, "job.json"))
    try:
        return any(not entry.startswith(".") for entry in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # its reader says why it cannot be read


def wrapped(name: str | None) -> bool:
    """Whether `atlctl run` wraps a worker in this container, of the job of that name or of any, and this job is not
    that of another backend."""
    if not os.path.isdir(os.path.join(state_dir(), "run")):
        return False
    from atlctl.backends.hosts import runs

    return any(record.owner is None if name is None else record.name == name != record.owner for record in runs.here())


def wrappers_of(name: str) -> Record | None:
    """What `atlctl run` knows of the job `name` of another backend, if it wraps a worker of it in this container."""
    if not os.path.isdir(os.path.join(state_dir(), "run")):
        return None
    from atlctl.backends.hosts import runs

    return runs.owned_by(name)


def placed_here(name: str) -> bool:
    """Whether `ssh run` has started a worker of that job on this very machine, wherever it was called."""
    return "/" not in name and os.path.isdir(os.path.join(state_dir(), "ssh-workers", name))


def known(name: str) -> bool:
    """Whether hosts of that name were started a job on, or are configured."""
    return started(name) or name in configured().jobs


@cache
def peers() -> Found | None:
    """The workers around this one, if the platform describes them. A refused source does not count."""
    from atlctl.backends.hosts.peers import find, surroundings

    try:
        return find(surroundings(os.environ))
    except UsageError as error:
        say.note(Message("no peers: {why}", why=error.message))
        return None


def backend(hostfile: str | None, *, around: bool) -> SshBackend:
    """Hosts: those of `hostfile`, else with `around` the workers around this one; and those that can be named."""
    from atlctl.backends.hosts.ssh import SshBackend

    meant = meant_list(hostfile, around=around)
    if meant is not None and hostfile is None:
        say.note(Message("{count} workers: {source}", count=len(meant.hosts), source=meant.source))
    for remark in meant.remarks if meant is not None else ():
        say.note(remark)
    return SshBackend(connections(), lists_named(), meant, say.note)


def meant_list(hostfile: str | None, *, around: bool) -> HostList | None:
    """The default hosts: those of `hostfile`, else with `around` the workers around this one."""
    from atlctl.backends.hosts import lists

    if hostfile is not None:
        return lists.of_file(hostfile)
    found = peers() if around else None
    return None if found is None else lists.of_peers(found)


def lists_named() -> list[HostList]:
    """All lists of the configuration. Raises UsageError for one that is wrong."""
    from atlctl.backends.hosts.lists import of_config

    return [of_config(name, job) for name, job in configured().jobs.items()]


def connections() -> Connections:
    """Connections as the user has configured them. The caller closes them."""
    from atlctl.backends.hosts.connect import Connections, user_config
    from atlctl.backends.hosts.hostkeys import KnownHosts
    from atlctl.backends.hosts.keys import Keys

    trust = KnownHosts(accept_new=configured().host_keys == "accept-new")
    return Connections(Keys(_passphrase), trust, user_config(), _password)


def list_named(name: str) -> HostList:
    """The list of the configuration. Raises NothingMatched."""
    from atlctl.backends.hosts.lists import of_config

    jobs = configured().jobs
    if name not in jobs:
        names = Message("configured are {names}", names=joined(jobs, LIST))
        there = names if jobs else Message("none is configured; name a file with --hostfile")
        raise NothingMatched(Message("no list of hosts named {name}", name=name), there)
    return of_config(name, jobs[name])


def _passphrase(path: str) -> str | None:
    from atlctl.cli.prompt import secret

    return secret(Message("passphrase of {path}: ", path=path))


def _password(user: str, host: str) -> str | None:
    """Only for a single selected worker, as a list of hosts would get a password that is meant for one."""
    from atlctl.cli.prompt import secret

    if context().chosen != 1 or context().output == "json":
        return None
    return secret(Message("password of {user}@{host}: ", user=user, host=host))


def available() -> bool:
    """Whether hosts are the default backend if no cluster is configured."""
    return started(None) or bool(configured().jobs) or peers() is not None
