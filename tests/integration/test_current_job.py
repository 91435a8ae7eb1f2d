"""Inside a worker, its job is the default."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import pytest

from tests.integration.local import Registry, registry
from tests.integration.terminal import Terminal

#: `atlctl` as started in a web terminal inside a worker.
ATLCTL = shlex.join([sys.executable, "-W", "error", "-m", "atlctl"])


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("outer", 2)
        own.start("other", 2)
        yield own


def inside(jobs: Registry, line: str, job: str = "outer", worker: str = "1"):
    return jobs.exec(job, "-w", worker, "--", "sh", "-c", line)


def test_lists_need_no_job(jobs: Registry) -> None:
    assert inside(jobs, f"{ATLCTL} ps -o name") == (b"worker-0\nworker-1\n", b"", 0)
    assert inside(jobs, f"{ATLCTL} jobs -o name").stdout == b"other\nouter\n"


def test_exec_needs_no_job(jobs: Registry) -> None:
    run = inside(jobs, f"{ATLCTL} exec --all printenv RANK ATLCTL_JOB")
    assert sorted(run.stdout.splitlines()) == [
        b"worker-0: 0",
        b"worker-0: outer",
        b"worker-1: 1",
        b"worker-1: outer",
    ]
    assert run.code == 0


def test_logs_and_errors_need_no_job(jobs: Registry) -> None:
    assert inside(jobs, f"{ATLCTL} logs").code == 0
    assert inside(jobs, f"{ATLCTL} errors").stdout.startswith(b"job outer: Running\nno failure in these logs\n")


def test_another_job_can_be_named(jobs: Registry) -> None:
    assert inside(jobs, f"{ATLCTL} exec -j other -w 0 printenv ATLCTL_JOB").stdout == b"other\n"


def test_stop_of_the_own_job_ends_it_and_the_command_that_asked(jobs: Registry) -> None:
    jobs.start("suicidal", 2)
    run = inside(jobs, f"{ATLCTL} stop --yes", job="suicidal", worker="0")
    assert b"stops job suicidal" in run.stderr
    assert b"warning: the stop ends this terminal, too: it runs in one of these workers\n" in run.stderr
    jobs.until("suicidal", "Stopped")
    assert not [p for p in jobs.running() if "suicidal" in p.command]


def test_stop_of_the_own_job_from_a_shell(jobs: Registry) -> None:
    jobs.start("shelled", 2, options=("--env", "SHELL=/bin/sh", "--env", "PS1=ready> "))
    with Terminal("shell", "-j", "shelled", "0", env=jobs.env) as terminal:
        terminal.wait_for(b"ready> ")
        terminal.type(f"{ATLCTL} stop --yes\r".encode())
        terminal.wait_for(b"ends this terminal, too")
        terminal.code()
        assert terminal.mode() == terminal.before
    jobs.until("shelled", "Stopped")


def test_a_job_started_inside_is_no_part_of_the_outer_one(jobs: Registry) -> None:
    assert inside(jobs, f"{ATLCTL} local run --name inner --workers 1 --detach -- sleep 988").stdout == b"inner\n"
    assert jobs.exec("inner", "printenv", "ATLCTL_JOB").stdout == b"inner\n"
    assert jobs.cli("stop", "inner", "--yes", "-q").code == 0
    assert set(jobs.states("outer")) == {"Running"}
