"""However the client ends, its commands in pods end, too: checked by counting processes in the "pods"."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.integration.stopping import Cluster
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.cli import popen_cli
from tests.support.pace import within

WORKERS = 64
SLEEP = ("sleep", "1000.25")
#: Maximum seconds until all have ended. The 64 "pods" share one machine's /proc and CPUs, and each one searches it.
SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """many: 64 workers. few: two. bare: two, with an image without `sh`."""
    empty = tmp_path_factory.mktemp("empty")
    program = empty / "sleep"
    program.symlink_to("/bin/sleep")
    with Server() as server:
        own = Cluster(server)
        own.pytorchjob("many", WORKERS)
        own.pytorchjob("few", 2)
        own.pytorchjob("bare", 2, container={"env": [{"name": "PATH", "value": str(empty)}]})
        yield own


def inside(cluster: Cluster, job: str, count: int) -> list[dict[str, Any]]:
    """Live processes in a job's pods."""
    return [found for index in range(count) for found in cluster.server.processes(f"{job}-worker-{index}")]


def running(cluster: Cluster, job: str, count: int) -> int:
    """The number of processes that are the command itself."""
    return sum(found["command"] == " ".join(SLEEP) for found in inside(cluster, job, count))


def gone(cluster: Cluster, job: str, count: int) -> bool:
    return proc.wait_until(lambda: not inside(cluster, job, count), SECONDS, 0.2)


def start(cluster: Cluster, job: str, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
    env = {"KUBECONFIG": str(cluster.server.kubeconfig)}
    return popen_cli("exec", "-j", job, *words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **streams)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("options", [(), ("-i",)], ids=" ".join)
def test_of_64_commands_none_is_left(cluster: Cluster, number: signal.Signals, options: tuple[str, ...]) -> None:
    end_by(cluster, "many", WORKERS, number, options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("options", [(), ("-i",), ("-o", "json"), ("--gather",)], ids=" ".join)
def test_of_a_few_commands_none_is_left_and_that_is_proven(
    cluster: Cluster, number: signal.Signals, options: tuple[str, ...]
) -> None:
    seconds, stderr = end_by(cluster, "few", 2, number, options)
    assert within(seconds, 15)
    assert b"may still run" not in stderr
    assert b"not guarded" not in stderr


def end_by(
    cluster: Cluster, job: str, count: int, number: signal.Signals, options: tuple[str, ...]
) -> tuple[float, bytes]:
    """The seconds from the signal to the prompt, and stderr. Processes left in the pods fail the test."""
    reading, writing = os.pipe()
    with start(cluster, job, "--all", *options, "--", *SLEEP, stdin=reading) as run:
        assert proc.wait_until(lambda: running(cluster, job, count) == count, interval=0.2)
        begun = time.monotonic()
        run.send_signal(number)
        _, stderr = run.communicate(timeout=40)
        seconds = time.monotonic() - begun
        assert gone(cluster, job, count), inside(cluster, job, count)
    os.close(reading)
    os.close(writing)
    assert run.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        workers = f"worker-[0-{count - 1}]".encode()
        assert b"ending the command on %b" % workers in stderr
        assert b"cancelled: %b (%d): interrupted\n" % (workers, count) in stderr
    return seconds, stderr


@pytest.mark.parametrize("options", [(), ("-i",)], ids=" ".join)
def test_the_second_ctrl_c_leaves_at_once_and_the_pods_end_them_all_the_same(
    cluster: Cluster, options: tuple[str, ...]
) -> None:
    script = "trap '' TERM INT HUP; echo up; while :; do sleep 1000.25; done"
    env = {"KUBECONFIG": str(cluster.server.kubeconfig)}
    with Terminal("exec", "-j", "few", "--all", *options, "--", "sh", "-c", script, env=env) as terminal:
        terminal.wait_for(b"up")
        terminal.wait_for(b"up")
        assert proc.wait_until(lambda: running(cluster, "few", 2) == 2)
        terminal.type(b"\x03")
        terminal.wait_for(b"ending the command on worker-[0-1]")
        begun = time.monotonic()
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert within(time.monotonic() - begun, 4)
        assert terminal.mode() == terminal.before
    assert b"may still run: worker-[0-1]\r\n" in terminal.screen
    assert gone(cluster, "few", 2), inside(cluster, "few", 2)


def test_input_whose_client_is_killed_before_the_watcher_reads_starts_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Both execs of a worker get late answers: the client dies between the two."""
    cluster.server.fault("delay", name="few-worker-*", seconds=2)
    words = ("--all", "-i", "--", "sh", "-c", f"touch {tmp_path}/begun; exec sleep 1000.25")
    with start(cluster, "few", *words, stdin=subprocess.PIPE) as run:
        assert proc.wait_until(lambda: inside(cluster, "few", 2))
        run.kill()
        run.communicate(timeout=100)
    cluster.server.clear_faults()
    assert gone(cluster, "few", 2), inside(cluster, "few", 2)
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize("options", [(), ("-i",)], ids=" ".join)
def test_a_wrapper_that_is_killed_is_a_loss_within_seconds(cluster: Cluster, options: tuple[str, ...]) -> None:
    """The command keeps the streams open, so only a query reveals it. Then the command is ended."""
    with start(cluster, "few", "-w", "0", *options, "--", *SLEEP, stdin=subprocess.PIPE) as run:
        assert proc.wait_until(lambda: running(cluster, "few", 1) == 1)
        wrapper = min(found["pid"] for found in inside(cluster, "few", 1) if "m=$1" in found["command"])
        os.kill(wrapper, signal.SIGKILL)
        begun = time.monotonic()
        assert run.wait(30) == 255
        assert within(time.monotonic() - begun, 15), "5 s at rest"
        _, stderr = run.communicate()
    assert b"lost: worker-0 (1): the shell that ran the command was killed: output may be incomplete\n" in stderr
    assert gone(cluster, "few", 1), inside(cluster, "few", 1)


def test_a_network_that_is_cut_leaves_nothing(cluster: Cluster) -> None:
    """The server drops the connections: the client reports lost, the pods end the rest."""
    cluster.server.fault("drop-after", name="few-worker-*", seconds=1.5, times=2)
    with start(cluster, "few", "--all", "--", *SLEEP, stdin=subprocess.DEVNULL) as run:
        _, stderr = run.communicate(timeout=100)
    cluster.server.clear_faults()
    assert run.returncode == 255
    assert b"lost: worker-[0-1] (2): " in stderr
    assert gone(cluster, "few", 2), inside(cluster, "few", 2)


def test_what_has_left_its_session_is_ended_too(cluster: Cluster) -> None:
    script = "setsid sh -c 'setsid sleep 1000.25 & setsid sleep 1000.25' & wait"
    with start(cluster, "few", "-w", "0", "--", "sh", "-c", script, stdin=subprocess.DEVNULL) as run:
        assert proc.wait_until(lambda: running(cluster, "few", 1) == 2)
        run.kill()
        run.communicate(timeout=100)
    assert gone(cluster, "few", 1), inside(cluster, "few", 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_without_a_shell_the_summary_claims_nothing(cluster: Cluster, number: signal.Signals) -> None:
    with start(cluster, "bare", "--all", "--", *SLEEP, stdin=subprocess.DEVNULL) as run:
        assert proc.wait_until(lambda: running(cluster, "bare", 2) == 2)
        time.sleep(1)  # a command without a wrapper counts as started after a moment of silence
        run.send_signal(number)
        _, stderr = run.communicate(timeout=100)
    if number == signal.SIGINT:
        assert run.returncode == 130
        assert b"not guarded: worker-[0-1] (2)\n" in stderr
        assert b"may still run: worker-[0-1] (2)\n" in stderr
    # It is still running, as the summary reports: this image has no program to end it.
    assert running(cluster, "bare", 2) == 2
    for process in inside(cluster, "bare", 2):
        os.kill(process["pid"], signal.SIGKILL)
    assert gone(cluster, "bare", 2)


def test_without_a_shell_a_command_that_ends_is_told_as_not_guarded(cluster: Cluster) -> None:
    with start(cluster, "bare", "--all", "--", "sleep", "0.6", stdin=subprocess.DEVNULL) as run:
        _, stderr = run.communicate(timeout=100)
    assert run.returncode == 0
    assert stderr.decode().splitlines()[-2:] == ["ok: worker-[0-1] (2)", "not guarded: worker-[0-1] (2)"]
