"""Jobs on this machine, with access to their internals."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atlctl.backends.base import Argv
from atlctl.backends.hosts import registry
from atlctl.backends.hosts.starting import StartSpec, start_here
from atlctl.jobs.model import Job
from tests.contract.world import IDLE, LocalWorld, eventually
from tests.support.proc import read, wait_until


@contextlib.contextmanager
def listening_as(user: int, folder: Path) -> Iterator[socket.socket]:
    """A control socket in `folder` with a process of `user` at the other end. Requires root."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "control.sock"))
        server.settimeout(100)
        os.seteuid(user)
        try:
            server.listen()  # now the kernel records its owner
        finally:
            os.seteuid(0)
        yield server


class Local(LocalWorld):
    """A `World` with access to folders and supervisors."""

    def run(
        self,
        argv: Sequence[str] = IDLE,
        workers: int = 1,
        name: str | None = "job",
        env: Mapping[str, str] | None = None,
        master_port: int | None = None,
        markers: Sequence[str] = (),
    ) -> Job:
        return self.load(start_here(StartSpec(Argv(tuple(argv)), name, env or {}, master_port, markers), workers).name)

    def sh(self, script: str, **options: Any) -> Job:
        return self.run(("sh", "-c", script), **options)

    def folder(self, name: str = "job") -> Path:
        return Path(registry.LOCAL.root, name)

    def file(self, path: str, index: int = 0, name: str = "job") -> Path:
        """A file of a worker's entry: `work/x`, `exit.json`."""
        return self.folder(name) / "workers" / f"worker-{index}" / path

    def supervisor(self, name: str = "job") -> int:
        pid: int = registry.glance(name).supervisor["pid"]
        return pid

    def guard(self, name: str = "job") -> int:
        process = read(self.supervisor(name))
        assert process is not None
        return process.parent

    def gone(self, name: str = "job", timeout: float = 100.0) -> bool:
        """Wait until the job has no supervisor any more."""
        return wait_until(lambda: registry.glance(name).presence == "gone", timeout)

    def ended(self, name: str = "job", timeout: float = 100.0) -> Job:
        """Wait until no worker of the job is running; returns the job."""
        return eventually(self, name, lambda job: not any(worker.state.active for worker in job.workers), timeout)

    def connect(self, name: str = "job") -> socket.socket:
        """A raw connection to the supervisor."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(100)
        folder = os.open(self.folder(name), os.O_PATH)
        try:
            sock.connect(f"/proc/self/fd/{folder}/control.sock")
        finally:
            os.close(folder)
        return sock
