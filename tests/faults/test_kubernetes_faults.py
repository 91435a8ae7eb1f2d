"""Broken connections, refusing servers, disappearing pods: `exec`, `ps` and `logs` report the truth."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.integration.local import problem
from tests.integration.stopping import Cluster
from tests.soak import kubernetes as many
from tests.soak import output
from tests.support import proc
from tests.support.cli import Result, popen_cli
from tests.support.pace import slowness, within


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as own:
        yield own


@pytest.fixture(scope="module")
def jobs(server: Server) -> Cluster:
    """job: two workers with real processes in their pods."""
    own = Cluster(server)
    own.pytorchjob("job", 2, run=True)
    server.wait_phase("job-worker-1", "Running")
    return own


@pytest.fixture
def cluster(jobs: Cluster) -> Iterator[Cluster]:
    yield jobs
    jobs.server.clear_faults()


def execute(cluster: Cluster, *words: str, job: str = "job") -> Result:
    return cluster.cli("exec", "-j", job, *words, timeout=50)


def started(cluster: Cluster, *words: str, kubeconfig: str = "") -> subprocess.Popen[bytes]:
    """Unbuffered, so `communicate` can continue reading after a line was read."""
    env = {"KUBECONFIG": kubeconfig or str(cluster.server.kubeconfig)}
    return popen_cli(*words, env=env, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, bufsize=0)


def test_a_hundred_workers_with_every_sort_of_fault(server: Server) -> None:
    """`make soak` runs the same with 1,000 workers and 20 seeds."""
    cluster = Cluster(server)
    # A busy machine needs longer to start a hundred commands; those that stall are waited for as long. After 30 s of
    # silence a command counts as lost.
    wrong = many.run(cluster, 100, 4711, Path.cwd(), connect=min(28, math.ceil(8 * slowness())))
    assert not wrong, "\n".join(wrong)
    assert not many.left(cluster, 100)
    server.clear_faults()


def test_the_judge_of_that_sees_a_success_that_was_none() -> None:
    outcome = {"type": "outcome", "worker": "worker-0", "outcome": "exited", "exit_code": 0}
    lines: list[dict[str, Any]] = [outcome, {"type": "summary", "status": "partial"}]
    wrong = many.judge(lines, 2, {0: "drop-before-end"}, 255)
    assert [line.split(":")[0] for line in wrong] == [
        "worker-0 (drop-before-end)",
        "worker-0 (drop-before-end)",
        "worker-1 (none)",
    ]


def test_every_byte_of_outputs_of_megabytes_arrives_and_is_told_so(tmp_path: Path) -> None:
    """`python -m tests.soak.output kubernetes` makes 500 such runs."""
    with output.on_kubernetes(4, tmp_path, 0) as way:
        for seed in range(6):
            assert output.compare(way, 1_000_000 + 700_000 * seed, tmp_path, random.Random(seed))[:3] == (0, 0, True)


def test_an_output_that_stands_still_for_longer_than_any_patience_is_whole(cluster: Cluster) -> None:
    """The exit status has arrived long before: 200 KB of stdout are in flight."""
    cluster.server.fault("pause", seconds=6, bytes=100_000)
    run = execute(cluster, "-w", "0", "--", "head", "-c", "300000", "/dev/zero")
    assert (run.stdout, run.stderr, run.code) == (bytes(300_000), b"", 0)


# Truncated output is never a success


@pytest.mark.parametrize("options", [(), ("-i",), ("--gather",)], ids=" ".join)
def test_a_connection_that_ends_before_the_output_is_whole_is_lost(cluster: Cluster, options: tuple[str, ...]) -> None:
    cluster.server.fault("drop-before-end", name="job-worker-0")
    run = execute(cluster, "-w", "0", *options, "--", "echo", "out")
    assert run.code == 255
    assert b"out\n" in run.stdout
    reason = b"connection lost before all output had arrived; the command ended with exit code 0"
    assert b"lost: worker-0 (1): " + reason + b"\n" in run.stderr


@pytest.mark.parametrize("action", ["drop-before-exit", "drop-inside-exit", "drop-after-exit"])
@pytest.mark.parametrize("options", [(), ("-i",), ("--gather",)], ids=" ".join)
def test_a_connection_that_ends_after_the_output_changes_nothing(
    cluster: Cluster, action: str, options: tuple[str, ...]
) -> None:
    cluster.server.fault(action, name="job-worker-0")
    run = execute(cluster, "-w", "0", *options, "--", "sh", "-c", "echo out; exit 3")
    assert run.code == 3
    assert b"out\n" in run.stdout


def test_a_stream_that_is_cut_mid_output_is_lost_and_keeps_what_came(cluster: Cluster) -> None:
    cluster.server.fault("drop-after", name="job-worker-1", seconds=0.7)
    run = execute(cluster, "--all", "--", "sh", "-c", "echo begun; sleep 1.5; echo over")
    assert run.code == 255
    assert sorted(run.stdout.splitlines()) == [b"worker-0: begun", b"worker-0: over", b"worker-1: begun"]
    assert b"ok: worker-0 (1)\nlost: worker-1 (1): " in run.stderr
    assert b"may still run: worker-1 (1)\n" in run.stderr


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_characters_that_are_split_over_frames_are_whole(cluster: Cluster, size: int) -> None:
    cluster.server.fault("split", bytes=size)
    text = "损失 é 🚀 @atlctl- @"
    run = execute(cluster, "--all", "-o", "json", "--", "sh", "-c", 'echo "$1"; echo "$1" >&2', "sh", text)
    assert run.code == 0
    data = [line["data"] for line in map(json.loads, run.stdout.splitlines()) if line["type"] == "output"]
    assert data == [f"{text}\n"] * 4


def test_a_server_that_is_silent_after_the_start_times_out(cluster: Cluster) -> None:
    cluster.server.fault("stall", name="job-worker-0")
    run = execute(cluster, "--all", "--connect-timeout", "5", "--", "echo", "out")
    assert run.code == 124
    assert run.stdout == b"worker-1: out\n"
    assert (
        b"timed out: worker-0 (1): not started within 5 s: the command may have been sent, but no answer came\n"
        in run.stderr
    )
    assert b"may still run: worker-0 (1)\n" in run.stderr


def test_a_server_that_never_tells_the_exit_is_not_waited_for(cluster: Cluster) -> None:
    """The command's output is complete; output of a process that it left behind is unknown."""
    cluster.server.fault("stall-before-exit", name="job-worker-0")
    begun = time.monotonic()
    run = execute(cluster, "-w", "0", "--", "sh", "-c", "echo out; exit 5")
    assert (run.stdout, run.code) == (b"out\n", 5)
    assert b"later output not shown: worker-0 (1)\n" in run.stderr
    assert within(time.monotonic() - begun, 20)


def test_a_command_whose_request_got_no_answer_may_have_run(cluster: Cluster) -> None:
    cluster.server.fault("drop", name="job-worker-1")
    run = execute(cluster, "--all", "true")
    assert run.code == 255
    assert b"ok: worker-0 (1)\nlost: worker-1 (1): the API server " in run.stderr
    assert b"may still run: worker-1 (1)\n" in run.stderr


# Refusals


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, 4, "authentication failed (401 Unauthorized)"),
        (403, 4, "not allowed"),
        (429, 124, "overloaded"),
        (500, 1, "the API server answered 500"),
    ],
)
def test_a_refused_read_has_a_clear_line_and_its_code(cluster: Cluster, status: int, code: int, words: str) -> None:
    """429 requests a delay of one hour, which is not observed."""
    if status == 429:
        cluster.server.fault("throttle", kind="any", seconds=3600)
    else:
        cluster.server.fault("status", kind="any", code=status, message="\x1b[2Jno")
    begun = time.monotonic()
    run = cluster.cli("ps", "job", timeout=55)
    error, _ = problem(run.stderr)
    assert (run.stdout, run.code) == (b"", code), error
    assert words in error
    assert "\x1b" not in error
    assert within(time.monotonic() - begun, 45)


def test_patience_that_is_asked_for_is_given(cluster: Cluster) -> None:
    cluster.server.fault("throttle", kind="any", times=3, seconds=1)
    begun = time.monotonic()
    assert execute(cluster, "--all", "true").code == 0
    assert time.monotonic() - begun >= 1


def test_a_dead_tunnel_is_tried_again(cluster: Cluster) -> None:
    cluster.server.fault("dialing", times=2)
    assert execute(cluster, "--all", "true").code == 0
    cluster.server.fault("dialing", name="job-worker-1")
    run = execute(cluster, "--all", "true")
    assert run.code == 255
    assert b"failed to start: worker-1 (1): error dialing backend: " in run.stderr


def test_who_may_look_and_not_run_is_told_the_verb_that_is_missing(cluster: Cluster) -> None:
    rules = [{"verbs": ["get", "list"], "apiGroups": ["*"], "resources": ["*", "pods/exec"], "role": "r"}]
    cluster.server.user("reader", rules)
    path = str(cluster.server.write_kubeconfig("reader", user="reader"))
    run = cluster.cli("exec", "-j", "job", "--all", "true", env={"KUBECONFIG": path})
    assert run.code == 125
    told = "not allowed: pods/exec is forbidden: the role lacks the verb create on pods/exec"
    assert run.stderr == f"failed to start: worker-[0-1] (2): {told}\n".encode()


def test_a_token_that_expires_mid_run_ends_nothing_that_runs(cluster: Cluster) -> None:
    cluster.server.token("admin", "brief")
    path = str(cluster.server.write_kubeconfig("brief", token="brief"))
    words = ("exec", "-j", "job", "--all", "--", "sh", "-c", "echo up; sleep 1.5; echo over")
    with started(cluster, *words, kubeconfig=path) as run:
        assert run.stdout is not None
        assert {run.stdout.readline() for _ in range(2)} == {b"worker-0: up\n", b"worker-1: up\n"}
        cluster.server.expire("brief")
        stdout, stderr = run.communicate(timeout=100)
    assert (sorted(stdout.splitlines()), run.returncode) == ([b"worker-0: over", b"worker-1: over"], 0)
    assert b"ok: worker-[0-1] (2)\n" in stderr
    after = cluster.cli("ps", "job", env={"KUBECONFIG": path})
    assert after.code == 4
    assert "401" in problem(after.stderr)[0]


def test_a_server_that_is_not_there_is_255(cluster: Cluster) -> None:
    path = str(cluster.server.write_kubeconfig("gone", server="https://127.0.0.1:1"))
    begun = time.monotonic()
    run = cluster.cli("ps", "job", env={"KUBECONFIG": path}, timeout=50)
    assert run.code == 255
    assert "127.0.0.1:1 cannot be reached" in problem(run.stderr)[0]
    assert within(time.monotonic() - begun, 20)


# Answers that never end

#: `atlctl` with a deadline of 4 s for each answer, instead of 30 s.
HASTY = (
    "import sys, runpy\n"
    "from atlctl.backends.kubernetes import client\n"
    "client.DEADLINE = 4.0\n"
    "runpy.run_module('atlctl', run_name='__main__', alter_sys=True)\n"
)
READING = (
    ("jobs",),
    ("ps", "job"),
    ("events", "job"),
    ("logs", "job", "--tail", "1"),
    ("errors", "job"),
    ("exec", "-j", "job", "--all", "true"),
    ("stop", "job", "--yes", "--no-save"),
)


def all_at_once(cluster: Cluster, *commands: tuple[str, ...]) -> list[Result]:
    """The results of all commands, run in parallel, within 40 s."""
    env = {**os.environ, "KUBECONFIG": str(cluster.server.kubeconfig)}
    options: dict[str, Any] = {"env": env, "stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1}
    runs = [subprocess.Popen([sys.executable, "-W", "error", "-c", HASTY, *words], **options) for words in commands]
    until = time.monotonic() + 40
    found = []
    try:
        for run in runs:
            stdout, stderr = run.communicate(timeout=max(0.1, until - time.monotonic()))
            found.append(Result(stdout, stderr, run.returncode))
    finally:
        for run in runs:
            run.kill()
            run.wait()
    return found


@pytest.mark.parametrize("action", ["drip", "silence"])
def test_a_server_that_drips_or_is_silent_is_given_up_and_the_wait_is_told(cluster: Cluster, action: str) -> None:
    cluster.server.fault(action, kind="every")
    for words, run in zip(READING, all_at_once(cluster, *READING), strict=True):
        assert (run.stdout, run.code) == (b"", 255), (words, run)
        first, *rest = run.stderr.decode().splitlines()
        assert first.startswith("note: waiting for the API server 127.0.0.1:"), (words, run)
        assert "did not answer within 4 s" in problem("\n".join(rest).encode())[0], (words, run)


def test_a_wait_is_not_told_where_nobody_wants_to_hear_and_not_in_json(cluster: Cluster) -> None:
    cluster.server.fault("drip", kind="every", bytes=300)
    quiet, document = all_at_once(cluster, ("-q", "ps", "job"), ("ps", "job", "-o", "json"))
    assert b"waiting" not in quiet.stderr
    assert json.loads(document.stdout)["errors"][0]["kind"] == "unreachable"
    assert document.stderr.count(b"waiting for the API server") == 1


def test_the_users_own_deadline_bounds_a_server_that_drips(cluster: Cluster) -> None:
    """Even if the deadline of a single answer is longer."""
    cluster.server.fault("drip", kind="list", bytes=100, seconds=0.05)
    begun = time.monotonic()
    runs = [
        started(cluster, *words)
        for words in (
            ("exec", "-j", "job", "--all", "--timeout", "5", "true"),
            ("cp", "--connect-timeout", "5", "job-worker-0:/etc/hostname", "./x"),
            ("stop", "job", "--yes", "--no-save", "--timeout", "5"),
        )
    ]
    for run in runs:
        with run:
            _, stderr = run.communicate(timeout=100)
        assert run.returncode == 124, stderr
        assert "could not be asked for within 5 s" in problem(stderr.partition(b"...\n")[2])[0]
    assert within(time.monotonic() - begun, 25)


@pytest.mark.parametrize(
    ("action", "kind", "says"),
    [
        ("endless", "list", "returned an answer that is too large"),
        ("bomb", "list", "returned an answer that is too large"),
        ("bomb", "discovery", "returned an answer that is too large"),
        ("endless-pages", "list", "does not end its list"),
    ],
)
def test_an_answer_without_an_end_fills_no_memory(cluster: Cluster, action: str, kind: str, says: str) -> None:
    cluster.server.fault(action, kind=kind)
    with started(cluster, "ps", "job") as run:
        peak = 0
        while run.poll() is None:
            with contextlib.suppress(OSError):
                peak = max(peak, int(Path(f"/proc/{run.pid}/statm").read_text().split()[1]) >> 8)
            time.sleep(0.02)
        _, stderr = run.communicate()
    assert says in problem(stderr.rpartition(b"...\n")[2])[0]
    assert run.returncode == 1
    assert peak < 260, f"{peak} MiB"


def test_a_watch_goes_on_when_the_server_is_back(cluster: Cluster) -> None:
    """It reports the wait once, and its end."""
    cluster.pytorchjob("watched", 1)
    with started(cluster, "ps", "watched", "--watch", "-o", "name") as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == b"worker-0\n"
        cluster.server.fault("drop", kind="every")
        waits = next(line for line in iter(run.stderr.readline, b"") if b"note: waiting for" not in line)
        cluster.server.clear_faults()
        assert run.stderr.readline() == b"note: connected again\n"
        assert run.poll() is None
        cluster.server.remove("PyTorchJob", "watched", api_version="kubeflow.org/v1")
        cluster.server.remove("Pod", "watched-worker-0")
        stdout, stderr = run.communicate(timeout=100)
    assert waits.endswith(b"; waiting for it (Ctrl-C ends this)\n")
    assert (stdout, run.returncode) == (b"", 3), stderr


def test_a_kubelet_that_was_stopped_is_given_up_and_the_wait_is_told(cluster: Cluster) -> None:
    """The API server needs a long time to notice it, for each request."""
    cluster.pytorchjob("still", 1)
    cluster.server.fault("dialing", kind="log", name="still-*", seconds=6)
    begun = time.monotonic()
    run = cluster.cli("logs", "still", "--tail", "1", timeout=55)
    assert run.code == 255, run
    assert run.stderr.count(b"waiting for the API server") == 1
    assert run.stderr.count(b"waiting for the log of worker-0: the API server answered 500: error dialing") == 1
    assert b"the node of pod still-worker-0 does not answer" in run.stderr
    assert within(time.monotonic() - begun, 45)


# Disappearing pods


def test_a_pod_that_is_deleted_mid_exec_is_no_success(cluster: Cluster) -> None:
    cluster.pytorchjob("deleted", 2, run=True)
    words = ("exec", "-j", "deleted", "--all", "--", "sh", "-c", "echo up; sleep 2; echo over")
    with started(cluster, *words) as run:
        assert run.stdout is not None
        assert {run.stdout.readline() for _ in range(2)} == {b"worker-0: up\n", b"worker-1: up\n"}
        cluster.server.remove("Pod", "deleted-worker-1")
        stdout, stderr = run.communicate(timeout=100)
    assert stdout == b"worker-0: over\n"
    assert run.returncode == 255
    assert b"ok: worker-0 (1)\nlost: worker-1 (1): " in stderr


def test_a_container_that_restarts_mid_exec_is_no_success(cluster: Cluster) -> None:
    cluster.server.settings(backoff=0.2)
    cluster.pytorchjob("restarted", 1, run=True, restartPolicy="Always")
    words = ("exec", "-j", "restarted", "--all", "--", "sh", "-c", "echo up; sleep 2; echo over")
    with started(cluster, *words) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        cluster.server.kill("restarted-worker-0")
        stdout, stderr = run.communicate(timeout=100)
    assert stdout == b""
    assert run.returncode == 255, stderr
    assert execute(cluster, "-w", "0", "echo", "again", job="restarted").stdout == b"again\n"
    (worker,) = cluster.data("ps", "restarted")["workers"]
    assert worker["restarts"] == 1


def test_a_node_that_dies_mid_exec_is_lost(cluster: Cluster) -> None:
    cluster.pytorchjob("dying", 1, run=True, nodeName="node-dying")
    words = ("exec", "-j", "dying", "-w", "0", "--", "sh", "-c", "echo up; sleep 1030")
    with started(cluster, *words) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        cluster.server.node("node-dying", up=False)
        _, stderr = run.communicate(timeout=100)
    assert run.returncode == 255
    assert b"lost: worker-0 (1): " in stderr
    assert execute(cluster, "-w", "0", "true", job="dying").code == 255
    cluster.server.node("node-dying", up=True)


# Slow readers


def test_a_slow_reader_gets_every_line_and_the_pod_waits(cluster: Cluster) -> None:
    """64 MiB of lines through a sleeping reader: the client buffers only a few MB."""
    lines = 700_000
    words = ("exec", "-j", "job", "-w", "0", "--", "seq", "-f", "%090g", str(lines))
    with started(cluster, *words) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        time.sleep(2)
        status = Path(f"/proc/{run.pid}/status").read_text()
        rest, _ = run.communicate(timeout=40)
    assert int(status.partition("VmHWM:")[2].split()[0]) < 110_000
    assert (run.returncode, int(first)) == (0, 1)
    assert rest.count(b"\n") == lines - 1
    assert int(rest[-91:]) == lines


def test_one_slow_worker_does_not_hold_up_the_other(cluster: Cluster) -> None:
    cluster.server.fault("slow", name="job-worker-0", seconds=0.3)
    script = 'for i in 1 2 3 4 5; do echo "$i"; sleep 0.05; done'
    with started(cluster, "exec", "-j", "job", "--all", "--", "sh", "-c", script) as run:
        stdout, _ = run.communicate(timeout=100)
    lines = stdout.splitlines()
    assert len(lines) == 10
    assert run.returncode == 0
    assert lines.index(b"worker-1: 5") < lines.index(b"worker-0: 5")


def test_stderr_after_the_end_of_stdout_comes_too(cluster: Cluster) -> None:
    run = execute(cluster, "-w", "0", "--", "sh", "-c", "exec >&-; sleep 0.3; echo late >&2; exit 6")
    assert run == (b"", b"late\n", 6)


def test_a_child_that_keeps_the_pipe_open_holds_nobody_up(cluster: Cluster) -> None:
    begun = time.monotonic()
    run = execute(cluster, "-w", "0", "--", "sh", "-c", "sleep 1031.5 & echo out; exit 4")
    assert (run.stdout, run.code) == (b"out\n", 4)
    assert within(time.monotonic() - begun, 10)
    for process in cluster.server.processes("job-worker-0"):
        if process["command"] == "sleep 1031.5":
            subprocess.run(["kill", str(process["pid"])], check=True)
    assert proc.wait_until(lambda: not proc.named("sleep 1031.5"))
