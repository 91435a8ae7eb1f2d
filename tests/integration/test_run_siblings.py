"""`atlctl run` for each of several processes of a host, as `srun` and `mpirun` start it: they are one worker."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.smoke import netns
from tests.integration.wrapped import PATIENCE, Wrapped, running
from tests.support import proc
from tests.support.pace import within

#: Processes of each host.
EACH = 3
#: Rank 4, the second process of the second host, fails until the script is mended.
SCRIPT = """\
import os, sys, time
rank = os.environ["SLURM_PROCID"]
print("rank", rank, "with", sys.argv[1:], flush=True)
if rank == "4" and not os.path.exists("mended"):
    raise ValueError("a bad batch")
while not os.path.exists("mended"):
    time.sleep(0.05)
print("trained", rank, flush=True)
"""


@dataclass
class Tasks(Wrapped):
    """Wrappers by global rank."""

    def state(self, index: int) -> str:
        return str(self.folder / f"state-{index // EACH}")

    def env(self, index: int) -> dict[str, str | None]:
        hosts = self.count // EACH
        return {
            **super().env(index),
            "RANK": None,
            "WORLD_SIZE": None,
            "SLURM_JOB_ID": "815",
            "SLURM_STEP_ID": str(os.getpid()),
            "SLURM_NODEID": str(index // EACH),
            "SLURM_NNODES": str(hosts),
            "SLURM_PROCID": str(index),
            "SLURM_LOCALID": str(index % EACH),
            "SLURM_STEP_TASKS_PER_NODE": f"{EACH}(x{hosts})",
        }

    def marked(self) -> list[int]:
        """The processes of its commands."""
        mark = f"ATLCTL_RUN_DIR={self.folder / 'shared'}".encode()
        return [pid for pid in _pids() if mark in _environ(pid) and b"ATLCTL_WORKER=" in _environ(pid)]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Tasks]:
    """One host with three processes."""
    with running(Tasks(tmp_path, EACH, {}, {})) as made:
        yield made


@pytest.mark.skipif(netns.refused() != "", reason=netns.refused())
def test_one_of_six_processes_of_two_hosts_fails_is_named_and_all_run_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with netns.Network(2) as network:
        before = {rank: ["ip", "netns", "exec", network.space(rank // EACH)] for rank in range(2 * EACH)}
        environ = {"MASTER_ADDR": network.address(0)}
        with running(Tasks(tmp_path, 2 * EACH, environ, before)) as job:
            job.start("--settle", "1", "--hold", "10m", "--", sys.executable, "train.py", "first")
            job.until_said(0, "root cause: rank 4 on worker-1")
            assert "ValueError: a bad batch" in job.said(0)
            one, two = job.data(5, "ps")["workers"]
            assert [worker["state"] for worker in (one, two)] == ["Running", "Running"]
            assert two["reason"] == "one of its trainers has failed before"
            assert job.atlctl(0, "exec", "--rank", "5", "--", "hostname").code == 0
            refused = job.atlctl(5, "rerun", "--yes")
            assert b"nothing was started: worker-[0-1]: its command is running" in refused.stderr
            logs = job.atlctl(0, "logs", "--no-prefix", "-w", "1").stdout.decode().splitlines()
            assert {f"[rank{rank}]: rank {rank} with ['first']" for rank in (3, 4, 5)} <= {*logs}
            assert "atlctl run: rank 4 ended with exit code 1" in logs

            assert job.atlctl(4, "stop", "--keep", "--yes").code == 0
            assert job.states(1) == ["Debugging", "Debugging"]
            assert job.marked() == []
            assert [run.poll() for run in job.runs.values()] == [None] * 6
            (tmp_path / "mended").touch()
            words = ("--", sys.executable, "train.py", "second")
            assert job.atlctl(2, "rerun", "--yes", *words).code == 0
            assert job.codes() == [0] * 6
            for rank in range(6):
                assert f"rank {rank} with ['second']\ntrained {rank}\n" in job.said(rank)


def test_a_silent_exit_is_named_and_those_that_run_go_on(host: Tasks) -> None:
    """Without a hold a wrapper ends after the verdict on its command: the launcher decides on the others."""
    script = "if [ $SLURM_LOCALID = 2 ]; then exit 3; fi; until [ -e mended ]; do sleep 0.1; done"
    host.start("--settle", "0", "--", "sh", "-c", script)
    assert host.runs[2].wait(PATIENCE) == 3
    assert "root cause: rank 2 on worker-0" in host.said(0)
    assert [host.runs[index].poll() for index in (0, 1)] == [None, None]
    (host.folder / "mended").touch()
    assert host.codes() == [0, 0, 3]
    kept = (host.start_folder() / "worker-0" / "workers" / "worker-0" / "exit.json").read_text()
    assert '"exit_code": 3' in kept


def test_a_failure_of_local_id_0_with_a_hanging_sibling(host: Tasks) -> None:
    script = "[ $SLURM_LOCALID != 0 ] || exit 100; until [ -e mended ]; do sleep 0.1; done"
    host.start("--settle", "0", "--", "sh", "-c", script)
    assert host.runs[0].wait(PATIENCE) == 100
    assert "root cause: rank 0 on worker-0" in host.said(0)
    assert host.runs[1].poll() is None
    (host.folder / "mended").touch()
    assert host.codes() == [100, 0, 0]


def test_error_files_of_all_processes_are_kept(host: Tasks) -> None:
    script = 'echo "{\\"message\\": \\"of $SLURM_LOCALID\\"}" > $TORCHELASTIC_ERROR_FILE; exit 1'
    host.start("--settle", "0", "--", "sh", "-c", script)
    assert host.codes() == [1, 1, 1]
    found = sorted((host.start_folder() / "worker-0").rglob("error.json"))
    assert sorted(path.read_text().split()[-1] for path in found) == ['0"}', '1"}', '2"}']


def test_a_signal_of_the_platform_ends_all_without_verdict_or_hold(host: Tasks) -> None:
    host.start(
        "--hold", "10m", "--", "sh", "-c", "trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    )
    for index in range(EACH):
        host.until_said(index, "ready")
    for run in host.runs.values():
        run.send_signal(signal.SIGTERM)
    assert host.codes() == [143] * EACH
    assert "root cause" not in host.said(0)
    assert all("term" in host.said(index) for index in range(EACH))
    own = host.start_folder() / "worker-0" / "workers" / "worker-0" / "log" / "0.log"
    assert {line.split(" ", 3)[3] for line in own.read_text().splitlines()} >= {f"[rank{n}]: term" for n in range(EACH)}


def test_stop_ends_all_commands_and_wrappers(host: Tasks) -> None:
    host.start("--hold", "10m", "--", "sleep", "600")
    host.until_states(0, "Running")
    proc.wait_until(lambda: len(host.marked()) == EACH, PATIENCE)
    assert host.atlctl(0, "stop", "--yes", host.data(0, "ps")["job"]["name"]).code == 0
    assert host.codes() == [143] * EACH


def test_commands_outlive_a_killed_local_id_0(host: Tasks) -> None:
    host.start("--", "sh", "-c", "until [ -e mended ]; do sleep 0.1; done; echo done; exit $SLURM_LOCALID")
    proc.wait_until(lambda: len({*host.marked()}) >= EACH, PATIENCE)
    host.runs[0].kill()
    (host.folder / "mended").touch()
    assert host.codes() == [-signal.SIGKILL, 1, 2]
    assert "done" in host.said(1)


def test_without_local_id_0_the_command_starts(host: Tasks) -> None:
    began = time.monotonic()
    host.start("--wait", "1", "--", "sh", "-c", "echo begun; exit 3", indexes=[1])
    assert host.codes() == [3]
    assert within(time.monotonic() - began, 10)
    assert "the wrapper with local id 0 did not answer within 1 s" in host.said(1)
    assert "begun" in host.said(1)


def test_a_missing_process_is_named(host: Tasks) -> None:
    host.start("--wait", "2", "--", "true", indexes=[0, 2])
    assert host.codes() == [0, 0]
    assert "processes 1 of worker-0 did not come within 2 s" in host.said(0)


def test_a_blocked_command_starts_in_no_process(host: Tasks) -> None:
    host.start("--wait", "2", "--block", "missing", "--", "touch", "started", SLURM_NNODES="2")
    assert host.codes() == [125] * EACH
    assert "the command is not started: worker-1 did not come within 2 s" in host.said(2)
    assert not (host.folder / "started").exists()
