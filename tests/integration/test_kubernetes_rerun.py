"""`rerun` in pods that are kept without `atlctl run`: with real processes, each pod in its own PID namespace."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.handle import Server
from tests.integration.stopping import Cluster
from tests.integration.test_kubernetes_stop_inside import namespaces, start
from tests.support import proc
from tests.support.cli import Result

pytestmark = namespaces

#: A training that needs its variables and folder. Its argument: how it ends.
TRAIN = """
import os, signal, sys, time
print("step", os.environ["LR"], os.path.basename(os.getcwd()), *sys.argv[1:], flush=True)
if sys.argv[1:] == ["killed"]:
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1:]:
    raise ValueError(sys.argv[1])
time.sleep(4000)
"""


class Pods:
    """A job of two pods. Each keeps itself after a training below its first process."""

    def __init__(self, cluster: Cluster, folder: Path, ending: str = "") -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "train.py").write_text(TRAIN)
        (folder / "data").mkdir()
        train = f"LR=1 TORCHELASTIC_RUN_ID=1 {sys.executable} {folder}/train.py {ending}"
        keep = f"export XDG_STATE_HOME={folder}/state; (cd {folder}/data; {train}; true) & sleep 4000"
        self.names = start(cluster, folder, keep)
        self.wait(f"step 1 data{' ' + ending if ending else ''}\n")

    def train(self, *words: str) -> tuple[str, ...]:
        return ("--", "env", "LR=1", sys.executable, str(self.folder / "train.py"), *words)

    def log(self, index: int, *more: str) -> str:
        return self.cluster.cli("logs", "dev", "-w", str(index), *more).stdout.decode()

    def wait(self, text: str, count: int = 1) -> None:
        assert proc.wait_until(lambda: all(self.log(index).count(text) == count for index in (0, 1))), self.log(0)

    def stop(self) -> None:
        assert self.cluster.cli("stop", "dev", "--keep", "--yes", "--no-save", "--grace", "2").code == 0

    def rerun(self, *words: str) -> Result:
        return self.cluster.cli("rerun", "dev", "--yes", *words)

    def running(self) -> list[str]:
        """The trainings, and programs of atlctl."""
        lines = [one["command"] for name in self.names for one in self.cluster.server.processes(name)]
        return [line for line in lines if "train.py" in line.split("-c")[0] or "atlctl.remote" in line]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Server() as own:
        own.controller(on=True)
        yield Cluster(own)


def test_what_stop_keep_has_ended_starts_again_in_its_folder_and_with_its_variables(
    cluster: Cluster, tmp_path: Path
) -> None:
    pods = Pods(cluster, tmp_path)
    busy = pods.rerun()
    assert (busy.stderr, busy.code) == (
        b"error: worker-[0-1]: a training runs in it\nhint: atlctl stop --keep dev\n",
        1,
    )
    pods.stop()
    done = pods.rerun()
    assert (done.code, done.stderr.splitlines()[-1]) == (0, b"started: worker-[0-1]"), done
    plan = done.stderr.decode()
    assert f"  how: attempt 2: {sys.executable} {tmp_path}/train.py\n  where: {tmp_path}/data\n" in plan
    assert "  note: variables are those of the first start" in plan
    pods.wait("step 1 data\n", 2)
    assert (pods.rerun().code, len(pods.running())) == (1, 2 * 3)  # each training with its supervisor and guard
    pods.stop()
    pods.wait("atlctl: attempt 2 ended: signal 15\n")
    assert proc.wait_until(lambda: pods.running() == [])
    assert all(cluster.pods("dev", 2))


def test_attempts_are_told_apart_in_the_log_of_a_pod(cluster: Cluster, tmp_path: Path) -> None:
    pods = Pods(cluster, tmp_path, "first")
    unknown = pods.rerun()
    assert (unknown.code, b"hint: name the command: atlctl rerun dev -- CMD" in unknown.stderr) == (2, True), unknown
    second = pods.rerun(*pods.train("second"))
    assert second.code == 0
    assert (
        b"note: variables are those of the container's first process, without those of a launch script" in second.stderr
    )
    pods.wait("attempt 2 ended: exit code 1\n")
    told = cluster.cli("errors", "dev").stdout.decode()
    assert told.startswith("job dev: Running, attempt 2 has ended\nroot cause: the whole job, likely\n"), told
    assert ("ValueError: second" in told, "ValueError: first" in told) == (True, False)
    before = cluster.cli("errors", "dev", "--attempt", "1").stdout.decode()
    assert ("ValueError: second" in before, "ValueError: first" in before) == (False, True), before
    assert pods.log(1, "--attempt", "1", "--tail", "1") == "ValueError: first\n"
    assert pods.log(1, "--attempt", "2").splitlines()[1].endswith(" second")
    for command in ("errors", "logs"):
        none = cluster.cli(command, "dev", "--attempt", "3")
        assert (none.code, b"job dev has no attempt 3; its attempts: 1-2\n" in none.stderr) == (3, True), none


def test_a_silent_death_of_an_attempt_is_found(cluster: Cluster, tmp_path: Path) -> None:
    pods = Pods(cluster, tmp_path, "first")
    done = cluster.cli("rerun", "dev", "--yes", "-o", "json", *pods.train("killed"))
    assert json.loads(done.stdout)["data"]["attempt"] == 2
    pods.wait("attempt 2 ended: signal 9\n")
    told = cluster.data("errors", "dev")
    assert (told["attempt"], told["verdict"], told["candidates"][0]["category"]) == (2, "undecided", "killed")
    assert pods.rerun(*pods.train("killed")).code == 0  # no attempt before is in the way
    pods.wait("attempt 3 ended: signal 9\n")
    assert [line for line in pods.running() if line] == []


def test_nothing_starts_unless_it_can_in_each_pod(cluster: Cluster, tmp_path: Path) -> None:
    train = f"TORCHELASTIC_RUN_ID=1 {sys.executable} -c 'import time; time.sleep(4000)'"
    start(cluster, tmp_path, f"[ $HOSTNAME != dev-worker-1 ] || {train} & echo up; sleep 4000")
    busy = cluster.cli("rerun", "dev", "--yes", "--", "sleep", "4001")
    assert (busy.stderr, busy.code) == (b"error: worker-1: a training runs in it\nhint: atlctl stop --keep dev\n", 1)
    missing = cluster.cli("rerun", "dev", "-w", "0", "--yes", "--", "no-such-program")
    assert missing.code == 2  # workers cannot be selected
    none = [one["command"] for one in cluster.server.processes("dev-worker-0") if "4001" in one["command"]]
    assert none == []


def test_without_the_output_of_the_first_process_the_log_is_in_the_worker(cluster: Cluster, tmp_path: Path) -> None:
    start(cluster, tmp_path, f"export XDG_STATE_HOME={tmp_path}/state; exec sleep 4000 >&- 2>&-")
    done = cluster.cli("rerun", "dev", "--yes", "--", "/bin/echo", "here")
    assert done.code == 0, done
    note = done.stderr.decode().partition("  note: the output is not in the log of worker-[0-1], but there in ")[2]
    log = Path(note.partition("\n")[0])
    assert proc.wait_until(log.exists), done
    assert proc.wait_until(lambda: log.read_text().endswith(" stdout F here\n")), (log, log.read_text())
    assert (log.stat().st_mode & 0o777, log.parents[2].stat().st_mode & 0o777) == (0o600, 0o700)
