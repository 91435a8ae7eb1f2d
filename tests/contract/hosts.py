"""Workers on hosts: addresses of this machine, served by one real sshd, with supervisors sent by `ssh run`."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from atlctl.backends.base import Argv, Backend
from atlctl.backends.hosts import records, starting
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.ssh import SshBackend
from atlctl.backends.hosts.stream import SshExecutor
from atlctl.cli import hosts
from atlctl.jobs.model import Job
from tests.contract.fresh import Fresh
from tests.contract.world import IDLE, client_of, environment, eventually
from tests.support import proc
from tests.support.sshd import Sshd, make_key
from tests.support.wrapper import Wrappers

#: Maximum number of workers of a job in this suite.
MOST = 8


class Hosts:
    """The hosts of a session. A variable in each login's environment identifies the host.

    `wrapped`: they are served by `atlctl run`'s own server, not by sshd.
    """

    def __init__(self, folder: Path, *, wrapped: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.state = folder / "host-state"
        self._mark = uuid.uuid4().hex
        self.addresses = [f"127.0.{8 if wrapped else 7}.{index + 1}" for index in range(MOST)]
        environs = [
            {"HOME": str(folder / "nobody"), "XDG_STATE_HOME": str(self.state), proc.MARK: f"{self._mark}-{index}"}
            for index in range(MOST)
        ]
        self.server: Sshd | Wrappers
        if wrapped:
            self.server = Wrappers(folder / "server", self.addresses, environs)
            self.key = self.server.key(folder / "key")
            return
        self.key = make_key(folder / "key")
        self.server = Sshd(folder / "server", [self.key], self.addresses)
        lines = []
        for address, variables in zip(self.addresses, environs, strict=True):
            told = " ".join(f"{name}={value}" for name, value in variables.items())
            lines += [f"Match LocalAddress {address}", f"  SetEnv {told}"]
        with self.server.config.open("a") as file:
            file.write("\n".join(lines) + "\n")
        self.restart()

    def restart(self) -> None:
        self.server.stop()
        self.server.start()

    def on(self, index: int) -> list[proc.Process]:
        """All processes on a host."""
        return proc.marked(f"{self._mark}-{index}")

    def clear(self) -> bool:
        """Kill all processes on all hosts; True when none is left."""
        found = proc.marked(self._mark)  # a part of each host's mark
        for process in found:
            proc.kill(process)
        return not found


class HostsWorld:
    """SSH jobs: `worker-N` on the N-th host."""

    def __init__(self, site: Hosts, home: Path) -> None:
        self._site = site
        self._home = home
        self._lost = False
        folder = home / ".ssh"
        folder.mkdir(mode=0o700)
        shutil.copy(site.key, folder / "id_ed25519")
        (folder / "known_hosts").write_text(site.server.known)
        (folder / "config").write_text(f"Host *\n  Port {site.server.port}\n")
        self.backend = cast("Backend", Fresh("ssh", lambda: SshBackend(hosts.connections(), ())))

    def start(self, argv: Sequence[str] = IDLE, workers: int = 1, name: str = "job") -> Job:
        placed = {f"worker-{index}": Host(self._site.addresses[index]) for index in range(workers)}
        spec = starting.StartSpec(Argv(tuple(argv)), name)

        async def main() -> None:
            connections = hosts.connections()
            try:
                await starting.start(lambda where: SshExecutor(connections, where), spec, placed)
            finally:
                await connections.aclose()

        asyncio.run(asyncio.wait_for(main(), 100))
        return asyncio.run(self.backend.get_job(name))

    def inside(self, job: Job, index: int = 0) -> list[proc.Process]:
        job_mark = f"ATLCTL_JOB={job.name}".encode()
        found = []
        for process in self._site.on(index):
            told = environment(process.pid)
            if job_mark in told or any(item.startswith(b"ATLCTL_EXEC=") for item in told):
                found.append(process)
        # A command's guard has the command's words in its command line.
        return [process for process in found if "@atlctl-" not in process.command]

    def end_worker(self, job: Job, index: int = 0) -> None:
        pid = job.workers[index].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def lose(self, job: Job) -> None:
        self._lost = True
        self._site.server.kill_all()
        assert proc.wait_until(self._site.clear)

    def replace(self, job: Job) -> Job:
        asyncio.run(self.backend.stop(job, job.workers, 0.0))
        eventually(self, job.name, lambda found: not any(w.state.active for w in found.workers))
        return self.start(name=job.name)

    def client(self, job: Job, argv: Sequence[str], *, stdin: bool) -> subprocess.Popen[bytes]:
        return client_of(job, argv, stdin=stdin)

    def close(self) -> None:
        assert proc.wait_until(self._site.clear)
        if self._lost:
            self._site.restart()
        shutil.rmtree(self._site.state, ignore_errors=True)
        for record in records.load_all()[0]:
            records.forget(record)
