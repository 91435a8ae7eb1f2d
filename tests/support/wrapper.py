"""Servers of `atlctl run` in a process beside the tests: one for each address, all with the same port and start.

As a program: `python -m tests.support.wrapper`, with the settings as JSON on standard input. It prints the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atlctl.backends.hosts.jobkeys import JobAccess
from tests.support import proc

REPOSITORY = Path(__file__).parents[2]
#: Of commands, as a container has it; others are given.
ENVIRON = {"PATH": os.environ["PATH"], "SHELL": "/bin/sh", "LANG": "C.UTF-8"}


class Wrappers:
    """The servers. Commands on the N-th address get the N-th of `environs`, and run in `folder`."""

    def __init__(
        self,
        folder: Path,
        addresses: Sequence[str],
        environs: Sequence[Mapping[str, str]],
        access: JobAccess | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.addresses = folder, list(addresses)
        self.access = access or JobAccess(os.urandom(32), "start-1")
        self._environs = [{**ENVIRON, **environ} for environ in environs]
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def known(self) -> str:
        """The lines of a known_hosts file, for clients that do not derive the keys."""
        lines = []
        for index, address in enumerate(self.addresses):
            key = self.access.host_key(index).export_public_key().decode().strip()
            lines.append(f"[{address}]:{self.port} {key}\n")
        return "".join(lines)

    def key(self, path: Path) -> Path:
        """The client's key as a file, for such clients."""
        path.write_bytes(self.access.client_key().export_private_key())
        path.chmod(0o600)
        return path

    def start(self) -> None:
        settings = {
            "secret": self.access.secret.hex(),
            "start": self.access.start,
            "addresses": self.addresses,
            "environs": self._environs,
            "folder": str(self.folder),
            "port": self.port,
        }
        # It outlasts the test in which it is started again.
        env = {name: value for name, value in os.environ.items() if name != proc.MARK}
        env["PYTHONPATH"] = str(REPOSITORY)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.wrapper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(settings).encode() + b"\n")
        self.process.stdin.close()
        line = self.process.stdout.readline()
        assert line.strip().isdigit(), (self.folder / "log").read_text()
        self.port = int(line)

    def stop(self) -> None:
        """End them as a wrapper does."""
        self._end(signal.SIGTERM)

    def kill_all(self) -> None:
        self._end(signal.SIGKILL)

    close = stop

    def _end(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
            self.process.wait(30)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


async def _serve(told: Mapping[str, Any]) -> None:
    from atlctl.run.own import Refused
    from atlctl.run.place import bound
    from atlctl.run.serving import Server

    async def answer(question: str, details: dict[str, Any]) -> dict[str, Any]:
        if question == "refuse":
            raise Refused("not now")
        if question == "sleep":
            await asyncio.sleep(3600)
        if question == "long":
            return {"text": "x" * (2 << 20)}
        return {"question": question, "details": details, "pid": os.getpid()}

    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    access = JobAccess(bytes.fromhex(told["secret"]), told["start"])
    places = list(zip(told["addresses"], told["environs"], strict=True))
    while True:
        servers = []
        port = told["port"]
        try:
            for index, (address, environ) in enumerate(places):
                servers.append(Server(access, index, environ, told["folder"], answer))
                listener = bound(address, port)
                await servers[-1].start(listener)
                port = listener.getsockname()[1]
            break
        except OSError:  # the free port of the first address is not free at another
            for server in servers:
                await server.aclose()
            if told["port"]:
                raise
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await over.wait()
    await asyncio.gather(*(server.aclose() for server in servers))


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.stdin.readline())))
