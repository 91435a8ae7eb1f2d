"""A full disk, simulated by a limit on file sizes: the same calls fail in the same way."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys

import pytest

from atlctl.backends.base import LogRequest
from atlctl.backends.hosts import registry
from atlctl.jobs.model import State
from atlctl.remote.supervisor import folders
from tests.contract.drive import execute
from tests.contract.world import REPOSITORY
from tests.support.proc import marked, wait_until
from tests.unit.hosts.local import Local


def limit(local: Local, size: int) -> None:
    """Limit the supervisor's files to `size` bytes; its workers are not limited."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.prlimit(local.supervisor(), resource.RLIMIT_FSIZE, (size, hard))


def unlimited(local: Local) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.prlimit(local.supervisor(), resource.RLIMIT_FSIZE, (hard, hard))


def log_of(local: Local) -> list[bytes]:
    job = local.load("job")

    async def main() -> list[bytes]:
        return [
            line.data
            async for batch in local.backend.lines(job, job.workers[0], LogRequest())
            for line in batch
            if line.time is not None
        ]

    return asyncio.run(main())


def step(local: Local, number: int) -> None:
    """Let the worker print its next line and wait for it."""
    local.file(f"work/go{number}").touch()
    assert wait_until(local.file(f"work/done{number}").exists)


PRINTS = (
    "i=1; while [ $i -le 4 ]; do while [ ! -e go$i ]; do sleep 0.01; done; echo line $i; touch done$i; i=$((i+1)); done"
)


def test_a_full_disk_costs_lines_and_says_so(local: Local) -> None:
    job = local.sh(PRINTS)
    step(local, 1)
    assert wait_until(lambda: log_of(local) == [b"line 1"])
    limit(local, local.file("log/0.log").stat().st_size + 10)
    step(local, 2)
    step(local, 3)
    # The worker is still running, and commands can be executed in it.
    assert local.load("job").state is State.RUNNING
    assert execute(local, job, ["echo", "fine"]).stdout == b"fine\n"
    unlimited(local)
    step(local, 4)
    found = local.ended()
    lines = log_of(local)
    assert (lines[0], lines[-1]) == (b"line 1", b"line 4")
    assert len(lines) <= 3
    assert found.state is State.SUCCEEDED
    assert "bytes of its log were lost" in found.workers[0].reason


def test_an_exit_code_waits_for_room(local: Local) -> None:
    local.sh("while [ ! -e go ]; do sleep 0.01; done; exit 5")
    limit(local, 0)
    local.file("work/go").touch()
    assert wait_until(lambda: not local.inside(local.load("job")))
    # The exit code is not recorded yet, so none is reported; the supervisor, which knows it, is alive.
    assert not local.file("exit.json").exists()
    assert registry.load("job").presence == "alive"
    unlimited(local)
    found = local.ended()
    assert (found.state, found.workers[0].exit_code) == (State.FAILED, 5)
    assert [path.name for path in local.file("").glob("*.new")] == []


def test_a_stop_on_a_full_disk_answers(local: Local) -> None:
    job = local.run()
    limit(local, 0)
    results = asyncio.run(asyncio.wait_for(local.backend.stop(job, job.workers, 5.0), 100))
    assert [result.how for result in results] == ["terminated"]
    assert local.inside(job) == []
    unlimited(local)
    assert local.ended().state is State.STOPPED


LAUNCH = """
import resource, sys
from atlctl.backends.base import Argv
from atlctl.backends.hosts.starting import StartSpec, start_here
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    print(start_here(StartSpec(Argv(("sleep", "4900", "x" * 20000)), "job"), 3).name)
except Exception as error:
    print(type(error).__name__, error)
"""


def launch(size: int) -> bytes:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, "-c", LAUNCH, str(size)], env=env, capture_output=True, check=True).stdout


@pytest.mark.parametrize("where", ["spec", "job"])
def test_a_start_on_a_full_disk_leaves_what_was_there(local: Local, where: str) -> None:
    """The disk fills up while the client writes, or while the supervisor does with all workers running."""
    job = local.run(("sleep", "4900", "x" * 20000), workers=3)
    sizes = [(local.folder() / name).stat().st_size for name in ("spec.json", "job.json")]
    assert (local.folder() / "env.json").stat().st_size < sizes[0] < sizes[1] - 50
    asyncio.run(local.backend.stop(job, job.workers, 1.0))
    assert local.gone()
    said = launch(100 if where == "spec" else (sizes[0] + sizes[1]) // 2)
    assert b"Error" in said
    assert b"File too large" in said
    assert b"Traceback" not in said
    assert said.count(b"\n") == 1
    assert marked() == []
    assert registry.LOCAL.names() == ["job"]
    assert local.load("job").uid == job.uid
    assert sorted(os.listdir(local.folder().parent)) == [".lock", "job"]


def test_a_file_that_is_written_in_parts_is_whole(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearly full disk accepts only a part of a write."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:7])))
    path = f"{tmp_path}/x.json"
    folders.write_json(path, {"exit_code": 0, "signal": None, "text": "x" * 100})
    with open(path, encoding="utf-8") as file:
        assert file.read().endswith('"}')
    assert os.listdir(str(tmp_path)) == ["x.json"]
