"""`atlctl run` for each of several processes of a host, as `srun` and `mpirun` start it: they are one worker."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from atlctl.remote.supervisor.boot import free_port
from atlctl.run import siblings
from atlctl.run.place import place
from tests.faults.smoke import netns
from tests.integration.wrapped import PATIENCE, Wrapped, running
from tests.support import proc
from tests.support.cli import ATLCTL
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


def test_rerun_is_refused_when_a_wrapper_has_gone(host: Tasks) -> None:
    host.start("--settle", "0", "--hold", "10m", "--", "sh", "-c", "exit 5")
    host.until_states(0, "Held")
    host.runs[2].kill()
    host.runs[2].wait()
    refused = host.atlctl(0, "rerun", "--yes")
    assert refused.code == 1
    assert b"worker-0: one of its processes has ended, and its wrapper with it" in refused.stderr
    assert host.atlctl(0, "release").code == 0
    assert host.codes() == [5, 5, -signal.SIGKILL]


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


def test_torchrun_starts_a_wrapper_for_each_process(tmp_path: Path) -> None:
    """It ends the others when the first wrapper ends, which is after the verdict."""
    job = Wrapped(tmp_path, 1, {"RANK": None, "WORLD_SIZE": None}, {})
    script = "if [ $RANK = 1 ]; then exit 3; fi; exec sleep 600"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", f"--master-port={free_port()}"]
    done = subprocess.run(
        [*torchrun, "--no-python", *ATLCTL, "run", "--settle", "0", "--", "sh", "-c", script],
        env={name: value for name, value in {**os.environ, **job.env(0)}.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "root cause: rank 1 on worker-0" in done.stderr, done.stderr
    assert "local_rank: 1 " in done.stderr


@contextmanager
def _as_another_user() -> Iterator[socket.socket]:
    """A socket whose peers see another user, if it listens or connects in here."""
    os.seteuid(65534)
    try:
        yield socket.socket(socket.AF_UNIX)
    finally:
        os.seteuid(0)


def _address(job: Tasks) -> str:
    return siblings._address(place({name: value for name, value in job.env(0).items() if value is not None}))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_orders_of_another_user_are_not_taken(host: Tasks) -> None:
    address = _address(host)
    with _as_another_user() as forged:
        forged.bind(address)
        forged.listen(100)
    with forged:
        host.start("--wait", "2", "--", "sh", "-c", "echo own", indexes=[1])
        order = {"do": "run", "attempt": 1, "argv": ["touch", "forged"], "folder": str(host.folder)}
        came, _ = forged.accept()
        with came:
            came.settimeout(PATIENCE)
            hello = came.recv(4096)
            with suppress(OSError):
                came.sendall(json.dumps(order).encode() + b"\n")
            assert hello == b""
        assert host.codes() == [0]
    assert host.said(1).endswith("own\n")
    assert not (host.folder / "forged").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_is_not_a_sibling(host: Tasks) -> None:
    host.start("--wait", "5", "--", "true", indexes=[0, 1])
    address = _address(host)

    def connected() -> bool:
        with _as_another_user() as made:
            try:
                made.connect(address)
            except ConnectionRefusedError:
                made.close()
                return False
        with made, suppress(OSError):
            made.sendall(b'{"local": 2, "rank": 2}\n')
            made.settimeout(PATIENCE)
            assert made.recv(1) == b""
        return True

    proc.wait_until(connected, PATIENCE)
    assert host.codes() == [0, 0]
    assert "processes 2 of worker-0 did not come within 5 s" in host.said(0)
