"""Jobs whose workers are wrapped by `atlctl run`: on this machine, each with a state folder of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlctl.remote.supervisor.boot import free_port
from tests.support import proc
from tests.support.cli import Result, popen_cli, run_cli

#: Seconds that everything here may take on a slow machine.
PATIENCE = 90.0


@dataclass
class Wrapped:
    """A job of `count` wrappers. `before`: words before each command line, by index; `environ`: of all workers."""

    folder: Path
    count: int
    environ: Mapping[str, str | None]
    before: Mapping[int, Sequence[str]]

    def __post_init__(self) -> None:
        self.runs: dict[int, subprocess.Popen[bytes]] = {}
        (self.folder / "shared").mkdir(exist_ok=True)

    def env(self, index: int) -> dict[str, str | None]:
        """The environment of a worker: the platform's, with the folder on shared storage."""
        return {
            "RANK": str(index),
            "WORLD_SIZE": str(self.count),
            "ATLCTL_STATE_DIR": str(self.folder / f"state-{index}"),
            "ATLCTL_RUN_DIR": str(self.folder / "shared"),
            "ATLCTL_CHECK_ITEMS": "none",
            **self.environ,
        }

    def start(self, *words: str, indexes: Sequence[int] | None = None, **env: str | None) -> None:
        """Start `atlctl run WORDS` in each of the workers."""
        for index in range(self.count) if indexes is None else indexes:
            with open(self.folder / f"out-{index}", "ab") as out:
                self.runs[index] = popen_cli(
                    "run",
                    *words,
                    before=self.before.get(index, ()),
                    env={**self.env(index), **env},
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )

    def said(self, index: int) -> str:
        """What a wrapper has printed."""
        return (self.folder / f"out-{index}").read_text(errors="replace")

    def until_said(self, index: int, words: str) -> None:
        proc.wait_until(lambda: words in self.said(index) or self._ended(index), PATIENCE)
        assert words in self.said(index), self.said(index)

    def _ended(self, index: int) -> bool:
        run = self.runs.get(index)
        return run is not None and run.poll() is not None

    def codes(self) -> list[int]:
        """The exit codes of all wrappers, when they have ended."""
        return [run.wait(PATIENCE) for _, run in sorted(self.runs.items())]

    def atlctl(self, index: int, *words: str) -> Result:
        """`atlctl WORDS` in a worker, without the variables of the platform: as in a web terminal."""
        state = str(self.folder / f"state-{index}")
        before = self.before.get(index, ())
        return run_cli(*words, before=before, env={"ATLCTL_STATE_DIR": state}, timeout=PATIENCE)

    def data(self, index: int, *words: str) -> Any:
        """The data of a command with -o json."""
        result = self.atlctl(index, *words, "-o", "json")
        assert result.code == 0, result
        return json.loads(result.stdout)["data"]

    def states(self, index: int) -> list[str]:
        """The states of the workers, as worker `index` sees them."""
        return [worker["state"] for worker in self.data(index, "ps")["workers"]]

    def until_states(self, index: int, *states: str) -> None:
        def come() -> bool:
            result = self.atlctl(index, "ps", "-o", "json")
            if result.code != 0:  # not even the wrapper has come
                return False
            return [worker["state"] for worker in json.loads(result.stdout)["data"]["workers"]] == list(states)

        proc.wait_until(come, PATIENCE, 0.2)

    def start_folder(self) -> Path:
        """The folder of the one start of the job."""
        (found,) = [path for path in (self.folder / "shared").glob("atlctl-run-*/*/2*") if path.is_dir()]
        return found


@contextmanager
def wrapped(
    folder: Path,
    count: int,
    environ: Mapping[str, str | None] | None = None,
    before: Mapping[int, Sequence[str]] | None = None,
) -> Iterator[Wrapped]:
    """A job; what still runs at the end is killed."""
    port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job = Wrapped(folder, count, {**port, **(environ or {})}, before or {})
    try:
        yield job
    finally:
        for run in job.runs.values():
            if run.poll() is None:
                run.send_signal(signal.SIGTERM)
        for run in job.runs.values():
            try:
                run.wait(20)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
