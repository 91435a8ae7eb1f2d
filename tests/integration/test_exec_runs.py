"""Limits, input and retries of `exec`."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.integration.local import Registry, objects, problem, registry
from tests.support import proc
from tests.support.pace import within


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("four", 4)
        yield own


# --batch, --parallel

#: Each command counts the commands running at the same time: each has a file while it runs. They wait until there are
#: as many as there may be.
COUNT = """cd "$0"; touch run.$RANK; i=0
until [ -e all ] || [ $i = 200 ]; do [ $(ls | grep -c run) -ge $1 ] && touch all; i=$((i+1)); sleep 0.1; done
sleep 0.2; ls | grep -c run; rm run.$RANK"""


@pytest.mark.parametrize(("options", "most"), [(("--batch", "1"), 1), (("--batch", "2"), 2), (("--parallel", "1"), 4)])
def test_batch_bounds_running_commands_and_parallel_does_not(
    jobs: Registry, options: tuple[str, ...], most: int
) -> None:
    folder = jobs.home / f"count{most}"
    folder.mkdir()
    run = jobs.exec("four", "--all", "--no-prefix", *options, "--", "sh", "-c", COUNT, str(folder), str(most))
    assert run.code == 0
    assert (folder / "all").exists()
    assert max(map(int, run.stdout.split())) == most


def test_all_run_at_once_whatever_parallel_says(jobs: Registry) -> None:
    begun = time.monotonic()
    assert jobs.exec("four", "--all", "--parallel", "1", "sleep", "3").code == 0
    assert within(time.monotonic() - begun, 11)


# -i


def test_standard_input_reaches_every_worker_whole(jobs: Registry) -> None:
    data = os.urandom(3 << 20)
    run = jobs.exec("four", "--all", "-i", "--", "sha256sum", stdin=data)
    assert run.code == 0
    digest = hashlib.sha256(data).hexdigest().encode()
    assert sorted(run.stdout.splitlines()) == [b"worker-%d: %s  -" % (n, digest) for n in range(4)]


def test_standard_input_comes_back_unchanged_from_one_worker(jobs: Registry) -> None:
    data = os.urandom(1 << 20)
    assert jobs.exec("four", "-w", "0", "-i", "cat", stdin=data) == (data, b"", 0)


def test_a_command_that_stops_reading_early_holds_nobody_up(jobs: Registry) -> None:
    script = '[ "$RANK" = 0 ] && exec head -c 3; wc -c'
    data = b"x" * (1 << 20)
    run = jobs.exec("four", "--all", "-i", "--", "sh", "-c", script, stdin=data)
    assert run.code == 0
    assert sorted(run.stdout.splitlines()) == [b"worker-0: xxx", *(b"worker-%d: 1048576" % n for n in (1, 2, 3))]


def test_the_end_of_input_reaches_commands_and_they_go_on(jobs: Registry) -> None:
    script = "cat > /dev/null; sleep 0.2; echo after"
    run = jobs.exec("four", "--all", "-i", "--", "sh", "-c", script, stdin=b"")
    assert run.stdout.count(b"after\n") == 4
    assert b"not guarded" not in run.stderr


def test_without_i_standard_input_is_empty_and_left_to_the_caller(jobs: Registry) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"mine\n")
    with jobs.popen("exec", "-j", "four", "-w", "0", "wc", "-c", stdin=reading, stdout=-1) as run:
        stdout, _ = run.communicate(timeout=100)
    assert stdout == b"0\n"
    assert os.read(reading, 10) == b"mine\n"
    os.close(reading)
    os.close(writing)


def test_input_for_all_at_once_and_a_batch_contradict(jobs: Registry) -> None:
    run = jobs.exec("four", "--all", "-i", "--batch", "2", "cat", stdin=b"x")
    assert run.code == 2
    assert problem(run.stderr)[1] == "leave out --batch"


# --retry-failed


def test_retry_runs_the_stored_command_where_it_did_not_succeed(jobs: Registry) -> None:
    marker = jobs.home / "retried"
    script = f'[ -e {marker} ] || [ "$RANK" -lt 2 ] || exit 9; echo "a b" $RANK'
    assert jobs.exec("four", "--all", "--", "sh", "-c", script).code == 9
    marker.touch()
    run = jobs.exec("four", "--retry-failed")
    assert sorted(run.stdout.splitlines()) == [b"worker-2: a b 2", b"worker-3: a b 3"]
    assert run.stderr.startswith(b"note: again on worker-[2-3]: sh -c ")
    assert run.code == 0
    again = jobs.exec("four", "--retry-failed")
    assert (again.stdout, again.code) == (b"", 0)
    assert again.stderr.startswith(b"note: the last command had no failure: sh -c ")


def test_retry_after_a_single_worker_was_left_still_has_no_prefix(jobs: Registry) -> None:
    jobs.exec("four", "--all", "--", "sh", "-c", 'echo "$RANK"; [ "$RANK" != 3 ]')
    assert jobs.exec("four", "--retry-failed", "-q") == (b"3\n", b"", 1)


def test_retry_without_a_run_before_is_3(jobs: Registry) -> None:
    jobs.start("fresh", 1)
    run = jobs.exec("fresh", "--retry-failed")
    assert run.code == 3
    assert problem(run.stderr) == ("nothing was run with exec on job fresh yet", "atlctl exec --all CMD")


def test_after_a_sigkill_of_the_client_no_outcome_is_known_and_all_are_repeated(jobs: Registry) -> None:
    with jobs.popen(
        "exec", "-j", "four", "-w", "1,3", "--", "sh", "-c", "sleep 990; true", stdout=-1, stderr=-1
    ) as run:
        assert proc.wait_until(lambda: len(jobs.commands("sleep 990")) == 2)
        run.kill()
    assert proc.wait_until(lambda: not jobs.commands("sleep 990"))
    retry = jobs.exec("four", "--retry-failed", "--timeout", "0.2", "-o", "json")
    outcomes = [item for item in objects(retry.stdout) if item["type"] == "outcome"]
    assert sorted(item["worker"] for item in outcomes) == ["worker-1", "worker-3"]


def test_after_ctrl_c_only_what_was_cut_off_is_repeated(jobs: Registry) -> None:
    script = '[ "$RANK" = 0 ] && exit 0; exec sleep 989'
    with jobs.popen("exec", "-j", "four", "--all", "-o", "json", "--", "sh", "-c", script, stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        assert b'"worker-0"' in run.stdout.readline()
        assert proc.wait_until(lambda: len(jobs.commands("sleep 989")) == 3)
        run.send_signal(signal.SIGINT)
        rest, _ = run.communicate(timeout=100)
    found = objects(rest)
    assert [item["outcome"] for item in found[:-1]] == ["cancelled"] * 3
    assert (found[-1]["status"], found[-1]["exit_code"], run.returncode) == ("partial", 130, 130)
    retry = jobs.exec("four", "--retry-failed", "--timeout", "0.2")
    assert retry.stderr.startswith(b"note: again on worker-[1-3]: ")
    assert retry.code == 124


def test_the_retry_keeps_bytes_that_are_no_utf8(jobs: Registry) -> None:
    word = b"\xff\xd6\xd0".decode(errors="surrogateescape")
    jobs.exec("four", "-w", "0", "--", "sh", "-c", 'printf %s "$1"; exit 1', "_", word)
    assert jobs.exec("four", "--retry-failed", "-q") == (b"\xff\xd6\xd0", b"", 1)


# Environment


def test_a_command_has_the_environment_and_folder_of_its_worker(jobs: Registry) -> None:
    jobs.start("env", 2, "sh", "-c", "touch here; exec sleep 1000", options=("--env", "MY=a b=c", "--env", "EMPTY="))
    script = 'echo "$RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT [$MY] [${EMPTY-unset}] $ATLCTL_JOB $ATLCTL_WORKER"; ls'
    run = jobs.exec("env", "-w", "1", "--", "sh", "-c", script)
    port = run.stdout.decode().partition("127.0.0.1:")[2].partition(" ")[0]
    assert run.stdout.decode() == f"1/2 127.0.0.1:{port} [a b=c] [] env worker-1\nhere\n"
    assert 1024 < int(port) < 65536


def test_ctrl_c_in_a_terminal_does_not_reach_the_command_itself(jobs: Registry) -> None:
    """It has a separate process group: SIGTERM ends it, once and in order."""
    script = "trap 'echo got TERM; exit 0' TERM; trap 'echo got INT' INT; echo ready; while :; do sleep 0.05; done"
    with jobs.popen("exec", "-j", "four", "-w", "0", "-o", "json", "--", "sh", "-c", script, stdout=-1) as run:
        assert run.stdout is not None
        assert b"ready" in run.stdout.readline()
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=100)
    assert run.returncode == 130
    assert not jobs.running("got TERM")
