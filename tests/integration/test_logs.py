"""`logs`: merged by time, prefixed, followed, truncated, and as JSON."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator

import pytest

from tests.integration.local import Registry, objects, problem, registry
from tests.support import proc

BYTES = b"\x1b[31mred\x1b]0;t\x07\rx\nbad\xff \x00\n\xe4\xb8\xad\tlast"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """turns: two ended workers with alternating output. raw: one ended worker, unusual bytes, no last newline."""
    with registry() as own:
        own.home.joinpath("bytes").write_bytes(BYTES)
        script = "sleep 0.$((RANK * 2)); for i in 1 2 3; do echo $RANK.$i; sleep 0.4; done; echo end >&2"
        own.start("turns", 2, "sh", "-c", script)
        own.start("raw", 1, "cat", f"{own.home}/bytes")
        own.until("turns", "Succeeded")
        own.until("raw", "Succeeded")
        yield own


def test_lines_are_merged_by_time_with_prefix_and_all_on_stdout(jobs: Registry) -> None:
    run = jobs.cli("logs", "turns")
    lines = run.stdout.decode().splitlines()
    assert lines[:6] == [f"worker-{n}: {n}.{i}" for i in (1, 2, 3) for n in (0, 1)]
    assert sorted(lines[6:]) == ["worker-0: end", "worker-1: end"]
    assert (run.stderr, run.code) == (b"", 0)


def test_one_worker_has_no_prefix(jobs: Registry) -> None:
    assert jobs.cli("logs", "turns", "-w", "1") == (b"1.1\n1.2\n1.3\nend\n", b"", 0)
    assert jobs.cli("logs", "turns", "--no-prefix").stdout.startswith(b"0.1\n1.1\n")


def test_bytes_are_untouched_on_a_pipe(jobs: Registry) -> None:
    assert jobs.cli("logs", "raw") == (BYTES, b"", 0)


def test_on_a_terminal_bytes_are_made_visible_and_raw_passes_them(jobs: Registry) -> None:
    shown = "\x1b[31mred^[]0;t^G^Mx\x1b[0m\r\nbad\\xff ^@\r\n中\tlast"
    assert jobs.cli("logs", "raw", tty=True).stdout.decode() == shown
    assert jobs.cli("logs", "raw", "--raw", tty=True).stdout == BYTES.replace(b"\n", b"\r\n")


def test_tail_counts_for_each_worker(jobs: Registry) -> None:
    lines = jobs.cli("logs", "turns", "--tail", "2").stdout.decode().splitlines()
    assert lines[:2] == ["worker-0: 0.3", "worker-1: 1.3"]
    assert len(lines) == 4
    assert jobs.cli("logs", "turns", "--tail", "0") == (b"", b"", 0)


def test_grep_and_since_choose_lines(jobs: Registry) -> None:
    assert jobs.cli("logs", "turns", "--grep", r"[01]\.2$").stdout == b"worker-0: 0.2\nworker-1: 1.2\n"
    assert jobs.cli("logs", "turns", "--since", "1h").stdout.count(b"\n") == 8
    assert jobs.cli("logs", "turns", "--since", "0.001s").stdout == b""
    run = jobs.cli("logs", "turns", "--grep", "(")
    assert run.code == 2
    assert problem(run.stderr)[0].startswith("--grep '(' is not a regular expression")


def test_json_is_lines_with_times_outcomes_and_the_summary_last(jobs: Registry) -> None:
    run = jobs.cli("logs", "turns", "-o", "json")
    found = objects(run.stdout)
    assert found[-1] == {
        "type": "summary",
        "status": "success",
        "exit_code": 0,
        "counts": {"exited": 2, "lost": 0},
    }
    assert sorted(item["worker"] for item in found if item["type"] == "outcome") == ["worker-0", "worker-1"]
    lines = [item for item in found if item["type"] == "output"]
    assert [item["data"] for item in lines][:6] == [f"{n}.{i}\n" for i in (1, 2, 3) for n in (0, 1)]
    assert [item["stream"] for item in lines].count("stderr") == 2
    assert [item["time"] for item in lines] == sorted(item["time"] for item in lines)


def test_json_has_the_exit_of_each_worker(jobs: Registry) -> None:
    jobs.start("ends", 4, "sh", "-c", "case $RANK in 0) exit 3;; 1) kill -9 $$;; 2) exit 0;; 3) exec sleep 1000;; esac")
    ended = ["Failed", "Failed", "Succeeded", "Running"]
    assert proc.wait_until(lambda: jobs.states("ends") == ended)
    expected = {"worker-0": (3, None), "worker-1": (None, 9), "worker-2": (0, None), "worker-3": (None, None)}
    found = [item for item in objects(jobs.cli("logs", "ends", "-o", "json").stdout) if item["type"] == "outcome"]
    assert {item["worker"]: (item["exit_code"], item["signal"]) for item in found} == expected


def test_json_of_a_followed_log_has_the_exit_at_the_end(jobs: Registry) -> None:
    jobs.start("falls", 2, "sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.02; done; kill -9 $$")
    with jobs.popen("logs", "falls", "-f", "-o", "json", stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        first = [run.stdout.readline() for _ in range(2)]
        for worker in ("worker-0", "worker-1"):
            jobs.folder("falls").joinpath(f"workers/{worker}/work/go").touch()
        rest, _ = run.communicate(timeout=100)
    found = objects(b"".join(first) + rest)
    assert [item["signal"] for item in found if item["type"] == "outcome"] == [9, 9]
    assert found[-1]["type"] == "summary"


def test_json_is_lossless(jobs: Registry) -> None:
    found = [item for item in objects(jobs.cli("logs", "raw", "-o", "json").stdout) if item["type"] == "output"]
    data = [item["data"].encode() if "data" in item else base64.b64decode(item["data_b64"]) for item in found]
    assert b"".join(data) == BYTES


def test_follow_shows_what_comes_and_ends_with_the_job(jobs: Registry) -> None:
    script = "echo first; while [ ! -e go ]; do sleep 0.02; done; echo second"
    jobs.start("followed", 2, "sh", "-c", script)
    with jobs.popen("logs", "followed", "-f", stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        assert {run.stdout.readline() for _ in range(2)} == {b"worker-0: first\n", b"worker-1: first\n"}
        for worker in ("worker-0", "worker-1"):
            jobs.folder("followed").joinpath(f"workers/{worker}/work/go").touch()
        rest, stderr = run.communicate(timeout=100)
    assert sorted(rest.splitlines()) == [b"worker-0: second", b"worker-1: second"]
    assert (run.returncode, stderr) == (0, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_follow_is_left_by_a_signal_in_silence_and_the_job_goes_on(jobs: Registry, number: int, code: int) -> None:
    name = jobs.start(f"left-{code}", 1, "sh", "-c", "echo here; exec sleep 1000")
    with jobs.popen("logs", name, "-f", stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"here\n"
        run.send_signal(number)
        rest, stderr = run.communicate(timeout=100)
    assert (rest, stderr, run.returncode) == (b"", b"", code)
    assert jobs.states(name) == ["Running"]


def test_a_reader_that_has_gone_ends_it_with_141(jobs: Registry) -> None:
    jobs.start("chatty", 2, "sh", "-c", "yes | head -c 3000000; exec sleep 1000")
    with jobs.popen("logs", "chatty", "-f", stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        run.stdout.read(10)
        run.stdout.close()
        assert run.stderr is not None
        stderr = run.stderr.read()
        run.wait(30)
    assert (run.returncode, stderr) == (141, b"")


def test_a_log_that_cannot_be_read_is_told_and_the_others_are_shown(jobs: Registry) -> None:
    jobs.start("damaged", 2, "echo", "hi")
    jobs.until("damaged", "Succeeded")
    log = jobs.folder("damaged") / "workers/worker-0/log/0.log"
    log.unlink()
    log.mkdir()
    run = jobs.cli("logs", "damaged", "-o", "json")
    found = objects(run.stdout)
    assert run.code == 1
    assert {item["worker"]: item["outcome"] for item in found if item["type"] == "outcome"} == {
        "worker-0": "lost",
        "worker-1": "exited",
    }
    assert found[-1]["status"] == "partial"
    assert run.stderr.startswith(b"warning: worker-0: ")


def test_previous_is_refused_in_one_line(jobs: Registry) -> None:
    run = jobs.cli("logs", "turns", "--previous")
    assert run.code == 1
    assert b"worker-0: this is its first attempt" in run.stderr


def test_logs_of_a_stopped_job_stay(jobs: Registry) -> None:
    jobs.start("kept", 1, "sh", "-c", "echo words; exec sleep 1000")
    assert proc.wait_until(lambda: jobs.cli("logs", "kept").stdout == b"words\n")
    assert jobs.cli("stop", "kept", "--yes", "-q").code == 0
    assert jobs.cli("logs", "kept").stdout == b"words\n"
    assert json.loads(jobs.cli("ps", "kept", "-o", "json").stdout)["data"]["job"]["state"] == "Stopped"
