"""Jobs on hosts for tests: two addresses of this machine with a real sshd are two hosts with one home directory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from atlctl.backends.base import Argv, LogLine, LogRequest
from atlctl.backends.hosts import looking, records, starting, states, stopping
from atlctl.backends.hosts.connect import Connections
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.hostkeys import KnownHosts
from atlctl.backends.hosts.keys import Keys
from atlctl.backends.hosts.records import Record
from atlctl.backends.hosts.starting import StartSpec
from atlctl.backends.hosts.stream import SshExecutor
from atlctl.jobs.model import Job, State
from tests.support import proc
from tests.support.sshd import Sshd, make_key

HOSTS = {"gpu1": Host("127.0.0.2"), "gpu2": Host("127.0.0.3")}
REPOSITORY = Path(__file__).parents[2]

T = TypeVar("T")


@dataclass
class Site:
    """Two hosts, and the client's ssh configuration for them. Processes on the hosts carry `mark`."""

    server: Sshd
    folder: Path
    mark: str
    config: str

    @property
    def state(self) -> Path:
        """The folder of the workers on both hosts."""
        return self.folder / "host-state" / "atlctl" / "ssh-workers"

    def environment(self, **variables: str) -> None:
        """Set environment variables of logins. This HOME has no startup files of shells."""
        given = {
            "HOME": str(self.folder / "nobody"),
            "XDG_STATE_HOME": str(self.folder / "host-state"),
            proc.MARK: self.mark,
            **variables,
        }
        lines = [line for line in self.server.config.read_text().splitlines() if not line.startswith("SetEnv")]
        line = " ".join(f"{key}={value}" for key, value in given.items())
        self.server.config.write_text("\n".join([*lines, f"SetEnv {line}"]) + "\n")
        self.server.stop()
        self.server.start()

    def run(self, work: Callable[[starting.Executors], Awaitable[T]]) -> T:
        """Run `work` with a function that creates executors, on new connections."""

        async def main() -> T:
            connections = Connections(Keys(lambda _: None), KnownHosts(accept_new=False), self.config)
            try:
                return await work(lambda hosts: SshExecutor(connections, hosts))
            finally:
                await connections.aclose()

        return asyncio.run(asyncio.wait_for(main(), 100))

    def start(self, *words: str, hosts: Mapping[str, Host] = HOSTS, **options: Any) -> Record:
        spec = StartSpec(Argv(words), **{"name": "job", **options})
        return self.run(lambda executors: starting.start(executors, spec, hosts))

    def look(self, record: Record) -> Job:
        return looking.job(record, self.seen(record))

    def seen(self, record: Record) -> dict[str, states.Seen]:
        return self.run(lambda executors: looking.look(executors(record.hosts), record))

    def until(self, record: Record, state: State) -> Job:
        found: list[Job] = []

        def reached() -> bool:
            found.append(self.look(record))
            return found[-1].state is state

        assert proc.wait_until(reached, interval=0.1), found[-1]
        return found[-1]

    def log(self, record: Record, name: str, **options: Any) -> list[LogLine]:
        async def read(executors: starting.Executors) -> list[LogLine]:
            batches = looking.lines(executors(record.hosts), record, name, LogRequest(**options))
            return [line async for batch in batches for line in batch]

        return self.run(read)

    def text(self, record: Record, name: str, **options: Any) -> list[str]:
        return [line.data.decode() for line in self.log(record, name, **options)]

    def stop(self, record: Record, *names: str, grace: float = 5) -> dict[str, str]:
        results = self.run(
            lambda executors: stopping.stop(executors(record.hosts), record, names or tuple(record.hosts), grace)
        )
        return {result.worker: result.how for result in results}

    def running(self, text: str = "") -> list[proc.Process]:
        return [process for process in proc.marked(self.mark) if text in process.command]

    def supervisor(self, record: Record, name: str) -> int:
        placed = record.placed(name)
        return int(json.loads(Path(placed.folder, "job.json").read_text())["supervisor"]["pid"])


@dataclass
class Server:
    """An sshd for all hosts that accepts one key. Processes started through it carry `mark`."""

    sshd: Sshd
    key: Path
    mark: str


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """The server of the hosts; at the end none of its processes may be left."""
    key, mark = make_key(folder / "key"), uuid.uuid4().hex
    server = Sshd(folder / "server", [key], [host.name for host in HOSTS.values()])
    try:
        yield Server(server, key, mark)
    finally:
        server.close()
        assert proc.leftovers(mark, 5) == []


@contextmanager
def hosts(server: Server, folder: Path) -> Iterator[Site]:
    """Hosts with an empty state, and a client that knows them; stops their jobs at the end."""
    (folder / "known").write_text(server.sshd.known)
    lines = ["Host *", f"Port {server.sshd.port}", f"IdentityFile {server.key}", "GlobalKnownHostsFile /nonexistent"]
    (folder / "config").write_text("\n".join([*lines, f"UserKnownHostsFile {folder / 'known'}"]) + "\n")
    (folder / "host-state").mkdir(mode=0o700)
    made = Site(server.sshd, folder, server.mark, str(folder / "config"))
    made.environment()
    try:
        yield made
    finally:
        for record in records.load_all()[0]:
            made.stop(record, grace=0)
        assert proc.wait_until(lambda: not made.running()), made.running()


CLIENT = """
import asyncio, os, signal, sys, time
from tests.integration.sshjobs import *
async def main():
    connections = Connections(Keys(lambda _: None), KnownHosts(accept_new=False), sys.argv[1])
    executors = lambda hosts: SshExecutor(connections, hosts)
    {before}
    record = await starting.start(executors, StartSpec(Argv(tuple(sys.argv[2:])), "job"), HOSTS)
    print("started", flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""


def client(site: Site, *words: str, before: str = "") -> subprocess.Popen[bytes]:
    """A client that starts a job and waits."""
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT.format(before=before), site.config, *words],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    )


def tools(folder: Path, **programs: str) -> str:
    """A PATH with common programs and these scripts, but without Python and the tools to find one of a process."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for found in Path(place).iterdir():
            if not (found.name.startswith(("python", "readlink")) or (folder / found.name).is_symlink()):
                (folder / found.name).symlink_to(found)
    for name, text in programs.items():
        path = folder / name.replace("_", ".")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return str(folder)
