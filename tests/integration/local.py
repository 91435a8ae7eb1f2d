"""Local jobs for command tests, in a separate registry that `atlctl` uses."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atlctl.remote.supervisor.boot import free_port
from tests.support import isolation, proc
from tests.support.cli import Result, popen_cli, run_cli

#: The worker command of a job that only has to run.
IDLE = ("sleep", "1000")


class Registry:
    """A home folder with jobs. All processes of jobs and of `cli` carry one mark."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.mark = uuid.uuid4().hex
        # Module-wide fixtures are created before a test's environment.
        self.env: dict[str, str | None] = dict.fromkeys(isolation.foreign(list(os.environ)))
        self.env |= isolation.environment(home)
        self.env |= {proc.MARK: self.mark, "TMPDIR": str(home / "tmp")}

    @property
    def state(self) -> Path:
        return self.home / ".local/state/atlctl"

    def folder(self, job: str) -> Path:
        return self.state / "local" / job

    def cli(self, *args: str, env: Mapping[str, str | None] | None = None, **options: Any) -> Result:
        return run_cli(*args, env={**self.env, **(env or {})}, **options)

    def popen(self, *args: str, env: Mapping[str, str | None] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        return popen_cli(*args, env={**self.env, **(env or {})}, **options)

    def start(self, name: str, workers: int = 2, *command: str, options: tuple[str, ...] = ()) -> str:
        """Start a detached job; default command: `IDLE`."""
        if any("$MASTER_PORT" in word for word in command):
            # By default each takes port 29500, if no other job has begun to listen yet: those of other tests may soon.
            options = (*options, "--master-port", str(free_port()))
        # -q: no note if the name is that of an ended job.
        words = ("local", "run", "-q", "--name", name, "--workers", str(workers), *options, "--detach", "--")
        run = self.cli(*words, *(command or IDLE))
        assert run == (f"{name}\n".encode(), b"", 0), run
        return name

    def exec(self, job: str, *words: str, **options: Any) -> Result:
        """Run `atlctl exec -j JOB WORDS`."""
        return self.cli("exec", "-j", job, *words, **options)

    def data(self, *words: str, **options: Any) -> Any:
        """The `data` of a command's JSON document."""
        run = self.cli(*words, "-o", "json", **options)
        assert run.code == 0, run
        return json.loads(run.stdout)["data"]

    def states(self, job: str) -> list[str]:
        return [worker["state"] for worker in self.data("ps", job)["workers"]]

    def until(self, job: str, state: str, timeout: float = 100) -> None:
        """Wait until every worker of the job is in `state`."""
        assert proc.wait_until(lambda: set(self.states(job)) == {state}, timeout, 0.1), self.states(job)

    def running(self, text: str = "") -> list[proc.Process]:
        """Live processes of this registry with `text` in their command line."""
        return [process for process in proc.marked(self.mark) if text in process.command]

    def supervisor(self, job: str) -> int:
        """The PID of the job's supervisor."""
        pid: int = json.loads(self.folder(job).joinpath("job.json").read_text())["supervisor"]["pid"]
        return pid

    def commands(self, command: str) -> list[proc.Process]:
        """Live processes of this registry with exactly this command line."""
        return [process for process in self.running(command) if process.command == command]

    def end(self) -> None:
        """SIGKILL everything; the workers of a supervisor end with it."""
        proc.leftovers(self.mark, patience=0)


@contextlib.contextmanager
def registry() -> Iterator[Registry]:
    """A new registry; at the end no process of it is left."""
    with tempfile.TemporaryDirectory(prefix="atl-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        home.joinpath("run").mkdir(mode=0o700)
        home.joinpath("tmp").mkdir()
        own = Registry(home)
        try:
            yield own
        finally:
            own.end()


def objects(stdout: bytes) -> list[dict[str, Any]]:
    """Parse JSON Lines; every line must be an object."""
    assert stdout.endswith(b"\n"), stdout[-200:]
    found = [json.loads(line) for line in stdout.decode().splitlines()]
    assert all(isinstance(item, dict) for item in found)
    return found


def problem(stderr: bytes) -> tuple[str, str]:
    """The `error:` and `hint:` lines, which must be the only ones; the hint may be missing, and a wait for a busy
    server may have been reported."""
    lines = [line for line in stderr.decode().splitlines() if not line.startswith("note: waiting for the API server ")]
    assert 1 <= len(lines) <= 2, lines
    assert lines[0].startswith("error: "), lines
    assert all(line.startswith("hint: ") for line in lines[1:]), lines
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ") if len(lines) == 2 else ""
