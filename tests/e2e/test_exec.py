"""`exec` on real containers: exit codes, input, failures to start, and leftovers after a client dies."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, until
from tests.e2e.kinds import Job
from tests.e2e.settings import token

#: Counts the processes whose command line contains a word. The word is passed in two arguments and joined there, so
#: that this command and the shells around it do not count.
COUNT = """
import os, sys
wanted, found = (sys.argv[1] + sys.argv[2]).encode(), 0
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read()
            with open(f"/proc/{name}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        found += wanted in words and state != b"Z"
print(found)
"""


def python(cluster: Cluster, job: Job, code: str, *words: str) -> list[str]:
    """The output of Python code in each worker."""
    run = cluster.cli("exec", *job.words, "--all", "--no-prefix", "-q", "--", "python3", "-c", code, *words)
    assert run.code == 0, run
    return run.stdout.decode().split()


def test_all_workers_answer_with_their_own_name(cluster: Cluster, idle: Job) -> None:
    run = cluster.cli("exec", *idle.words, "--all", "-o", "json", "--", "sh", "-c", "cat /etc/hostname; echo err >&2")
    assert run.code == 0, run
    events = [json.loads(line) for line in run.stdout.splitlines()]
    names = idle.names
    said = {event["worker"]: event["data"] for event in events if event.get("stream") == "stdout"}
    assert sorted(said) == sorted(names)
    assert {event["data"] for event in events if event.get("stream") == "stderr"} == {"err\n"}
    outcomes = [event for event in events if event["type"] == "outcome"]
    assert {(event["outcome"], event["exit_code"], event["guarded"]) for event in outcomes} == {("exited", 0, True)}
    assert (events[-1]["type"], events[-1]["counts"]["ok"]) == ("summary", len(names))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -9 $$"), 137),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-program",), 127),
        (("/etc",), 126),
    ],
)
def test_exit_codes(cluster: Cluster, job: Job, words: tuple[str, ...], code: int) -> None:
    one = cluster.cli("exec", *job.words, "-w", "0", "--", *words)
    assert one.code == code, one
    every = cluster.cli("exec", *job.words, "--all", "--", *words)
    assert every.code == code, every
    assert b"worker-[0-1] (2)" in every.stderr


def test_different_codes_are_told_apart(cluster: Cluster, job: Job) -> None:
    run = cluster.cli("exec", *job.words, "--all", "--", "sh", "-c", 'exit "$JOB_COMPLETION_INDEX"')
    assert run.code == 1
    assert run.stderr.splitlines()[-2:] == [b"ok: worker-0 (1)", b"exit 1: worker-1 (1)"]


def test_words_arrive_as_they_are(cluster: Cluster, job: Job) -> None:
    words = ["a b", "", "*", "$HOME", "`id`", "'\"", "\\n", "-x", "zeilen\nende", "日本"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    run = cluster.cli("exec", *job.words, "-w", "0", "--", "python3", "-c", code, *words)
    assert json.loads(run.stdout) == words


def test_input_goes_to_all_and_its_end_arrives(cluster: Cluster, job: Job) -> None:
    text = b"".join(b"line %d \xff\x00\n" % number for number in range(20_000))
    code = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    run = cluster.cli("exec", *job.words, "--all", "-i", "--no-prefix", "-q", "--", "python3", "-c", code, stdin=text)
    assert run.code == 0, run
    assert run.stdout.decode().split() == [hashlib.sha256(text).hexdigest()] * 2


def test_without_i_the_input_is_empty(cluster: Cluster, job: Job) -> None:
    run = cluster.cli("exec", *job.words, "-w", "0", "--", "cat", stdin=b"not for the worker")
    assert (run.stdout, run.code) == (b"", 0)


def test_two_megabytes_of_output_come_whole(cluster: Cluster, job: Job) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 8192)"
    run = cluster.cli("exec", *job.words, "-w", "1", "--", "python3", "-c", code)
    assert run.code == 0
    assert run.stdout == bytes(range(256)) * 8192


def test_a_timeout_is_124_and_ends_the_command(cluster: Cluster, job: Job) -> None:
    seconds = unlikely()
    run = cluster.cli("exec", *job.words, "--all", "--timeout", "3", "--", "sleep", seconds)
    assert run.code == 124
    assert b"timed out: worker-[0-1] (2)" in run.stderr
    until("no process is left", lambda: left(cluster, job, seconds) == 0, 30)


@pytest.mark.parametrize("more", [(), ("-i",)], ids=["null", "stdin"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_nothing_is_left_where_the_client_dies(
    cluster: Cluster, job: Job, more: tuple[str, ...], number: signal.Signals
) -> None:
    """Neither the command nor its background processes."""
    seconds = unlikely()
    words = ("exec", *job.words, "--all", *more, "--", "sh", "-c", f"sleep {seconds} & sleep {seconds}")
    with cluster.running(*words) as client:
        until("both run", lambda: left(cluster, job, seconds) >= 2 * len(job.kind.workers), 60)
        client.send_signal(number)
        client.wait(60)
    assert client.returncode == (130 if number == signal.SIGINT else -number), Path("err").read_bytes()
    until("no process is left", lambda: left(cluster, job, seconds) == 0, 30)


def test_ctrl_c_on_a_terminal_ends_the_commands(cluster: Cluster, job: Job) -> None:
    seconds = unlikely()
    with cluster.terminal("exec", *job.words, "--all", "--", "sh", "-c", f"echo ready; sleep {seconds}") as own:
        own.wait_for(b"ready", 60)
        own.type(b"\x03")
        assert own.code(60) == 130
    until("no process is left", lambda: left(cluster, job, seconds) == 0, 30)


def unlikely() -> str:
    """A number of seconds that no other process sleeps."""
    return f"9{int(token(), 16) % 10**6:06d}"


def left(cluster: Cluster, job: Job, mark: str) -> int:
    """Number of processes with the mark in all workers, by another exec that reads /proc there."""
    half = len(mark) // 2
    return sum(int(text) for text in python(cluster, job, COUNT, mark[:half], mark[half:]))
