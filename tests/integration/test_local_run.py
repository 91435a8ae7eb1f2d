"""`local run`: start, foreground and end of the job."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local import IDLE, Registry, problem, registry
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.pace import within


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        yield own


def run(jobs: Registry, name: str, *words: str, workers: int = 2, **options):
    return jobs.cli("local", "run", "--name", name, "--workers", str(workers), *words, **options)


def test_foreground_shows_prefixed_logs_and_ends_as_the_job_does(jobs: Registry) -> None:
    found = run(jobs, "good", "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2")
    assert sorted(found.stdout.splitlines()) == [b"worker-0: out 0", b"worker-1: out 1"]
    note, *errors = found.stderr.splitlines()
    assert note == b"note: job good runs with 2 workers; Ctrl-C stops it"
    assert sorted(errors) == [b"worker-0: err 0", b"worker-1: err 1"]
    assert found.code == 0


@pytest.mark.parametrize(("script", "code"), [("exit $((RANK + 3))", 4), ("kill -9 $$", 137), ("exit $RANK", 1)])
def test_the_exit_code_is_the_jobs(jobs: Registry, script: str, code: int) -> None:
    found = run(jobs, f"code-{code}", "--", "sh", "-c", script)
    assert found.code == code
    assert f"job code-{code}: Failed (".encode() in found.stderr


def test_an_ended_job_of_the_name_is_kept_under_a_number(jobs: Registry) -> None:
    assert run(jobs, "often", "-q", "--", "sh", "-c", "echo first; exit 3", workers=1).code == 3
    second = run(jobs, "often", "--", "sh", "-c", "echo second", workers=1)
    assert second.stdout == b"second\n"
    assert second.stderr.splitlines()[0] == (
        b"note: the ended job often is now often.1; to remove it: atlctl local rm often.1"
    )
    assert jobs.cli("logs", "often.1").stdout == b"first\n"
    assert jobs.states("often.1") == ["Failed"]
    assert jobs.data("ps", "often.1")["job"]["name"] == "often.1"
    assert jobs.cli("exec", "-j", "often.1", "true").code == 255
    assert jobs.cli("local", "rm", "often.1", "--yes").code == 0
    assert jobs.cli("logs", "often").stdout == b"second\n"


def test_all_workers_run_in_one_folder_if_it_is_named(jobs: Registry, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.sh").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "here" / "train.sh").chmod(0o755)
    os.chdir(tmp_path)
    found = run(jobs, "placed", "--chdir", "here", "--", "./train.sh")
    place = f"{tmp_path}/here".encode()
    assert sorted(found.stdout.splitlines()) == [b"worker-0: " + place, b"worker-1: " + place]
    assert found.stderr == b"note: job placed runs with 2 workers; Ctrl-C stops it\n"
    jobs.start("there", 1, options=("--chdir", str(tmp_path / "here")))
    assert jobs.exec("there", "pwd").stdout == place + b"\n"
    assert jobs.cli("cp", "-j", "there", "worker-0:train.sh", str(tmp_path)).code == 0
    for folder, code in (("nowhere", 125), ("", 2)):
        found = run(jobs, "nowhere", "--chdir", folder, "--detach", "--", "true")
        assert (found.stdout, found.code) == (b"", code)
        assert not jobs.folder("nowhere").exists()


def test_one_worker_needs_no_prefix(jobs: Registry) -> None:
    assert run(jobs, "solo", "-q", "printf", "%s", "no newline", workers=1) == (b"no newline", b"", 0)


def test_a_lost_supervisor_is_255(jobs: Registry) -> None:
    with jobs.popen("local", "run", "--name", "orphaned", "-w", "1", *IDLE, stdout=-1, stderr=-1) as client:
        assert proc.wait_until(lambda: jobs.folder("orphaned").joinpath("job.json").exists())
        os.kill(jobs.supervisor("orphaned"), signal.SIGKILL)
        _, stderr = client.communicate(timeout=100)
    assert client.returncode == 255
    assert b"job orphaned: Lost" in stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_stop_the_job(jobs: Registry, number: int, code: int) -> None:
    name = f"stopped-{code}"
    with jobs.popen("local", "run", "--name", name, "-w", "2", "sleep", "986", stdout=-1, stderr=-1) as client:
        assert proc.wait_until(lambda: len(jobs.commands("sleep 986")) == 2)
        client.send_signal(number)
        _, stderr = client.communicate(timeout=100)
    assert client.returncode == code
    assert not jobs.commands("sleep 986")
    assert jobs.states(name) == ["Stopped", "Stopped"]
    assert f"note: stopping job {name}; once more leaves at once\n".encode() in stderr


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_terminal_or_client_that_goes_away_leaves_the_job_running(jobs: Registry, number: int) -> None:
    name = f"left-{int(number)}"
    with jobs.popen("local", "run", "--name", name, "-w", "2", *IDLE, stdout=-1, stderr=-1) as client:
        assert client.stderr is not None
        assert b"runs with 2 workers" in client.stderr.readline()
        client.send_signal(number)
        client.communicate(timeout=100)
    assert client.returncode == (129 if number == signal.SIGHUP else -9)
    time.sleep(0.2)
    assert jobs.states(name) == ["Running", "Running"]
    assert jobs.exec(name, "-w", "0", "echo", "reachable").stdout == b"reachable\n"


def test_a_second_ctrl_c_leaves_at_once_and_names_the_job(jobs: Registry) -> None:
    script = "trap '' TERM; touch up; while :; do sleep 0.1; done"
    with Terminal("local", "run", "--name", "deaf", "-w", "1", "--", "sh", "-c", script, env=jobs.env) as terminal:
        assert proc.wait_until(lambda: (jobs.folder("deaf") / "workers/worker-0/work/up").exists())
        terminal.type(b"\x03")
        terminal.wait_for(b"once more leaves at once")
        begun = time.monotonic()
        terminal.type(b"\x03")
        assert terminal.code() == 130
        assert within(time.monotonic() - begun, 8)
        assert terminal.mode() == terminal.before
    assert b"job deaf may still be running: atlctl stop deaf" in terminal.screen
    assert set(jobs.states("deaf")) <= {"Running", "Stopping"}
    assert jobs.cli("stop", "deaf", "--yes", "--grace", "0").code == 0


def test_ctrl_c_typed_on_a_terminal_reaches_no_worker_itself(jobs: Registry) -> None:
    script = "trap 'echo got INT' INT; trap 'echo got TERM; exit' TERM; echo up; while :; do sleep 0.02; done"
    with Terminal("local", "run", "--name", "typed", "-w", "1", "--", "sh", "-c", script, env=jobs.env) as terminal:
        terminal.wait_for(b"up")
        terminal.type(b"\x03")
        assert terminal.code() == 130
    shown = jobs.cli("logs", "typed").stdout
    assert b"got TERM\n" in shown
    assert b"got INT" not in shown


def test_a_reader_that_has_gone_stops_nothing_by_accident(jobs: Registry) -> None:
    job = "local run --name piped -w 1 -- sh -c 'yes | head -c 9000000; sleep 1000'"
    line = f"{sys.executable} -m atlctl {job} | head -1; echo ${{PIPESTATUS[0]}}"
    env = {name: value for name, value in {**os.environ, **jobs.env}.items() if value is not None}
    found = subprocess.run(["bash", "-c", line], env=env, capture_output=True, timeout=20)
    assert found.stdout == b"y\n141\n"
    jobs.until("piped", "Stopped")


def test_detached_it_prints_the_name_and_nothing_else(jobs: Registry) -> None:
    jobs.start("detached", 2)
    assert jobs.states("detached") == ["Running", "Running"]


def test_without_a_name_one_is_made_up_each_time_another(jobs: Registry) -> None:
    names = [jobs.cli("local", "run", "-w", "1", "--detach", "true").stdout for _ in range(2)]
    assert names == [b"local-1\n", b"local-2\n"]


def test_a_living_jobs_name_is_refused_and_a_dead_ones_is_given_way(jobs: Registry) -> None:
    jobs.start("name", 1)
    uid = jobs.data("ps", "name")["job"]["uid"]
    found = run(jobs, "name", "--detach", "true")
    assert (found.stdout, found.code) == (b"", 1)
    assert problem(found.stderr) == (
        "job name is still running",
        "atlctl stop name, or choose another name with --name",
    )
    assert jobs.data("ps", "name")["job"]["uid"] == uid
    jobs.cli("stop", "name", "--yes")
    jobs.start("name", 3)
    assert len(jobs.states("name")) == 3


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", ".x", "x" * 64, "名", "a\nb", "a/b", "\x1b]0;x\x07"])
def test_an_odd_name_is_refused_with_the_rule_and_nothing_is_made(jobs: Registry, name: str) -> None:
    before = sorted(jobs.state.rglob("*"))
    found = run(jobs, name, "--detach", "true")
    assert (found.stdout, found.code) == (b"", 2)
    message, hint = problem(found.stderr)
    assert message
    assert "letters, digits" in hint
    assert b"\x1b" not in found.stderr
    assert sorted(jobs.state.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "code"), [(("no-such-program-here",), 127), (("/etc/passwd",), 126), (("./here",), 127), (("",), 2)]
)
def test_a_command_that_cannot_start_leaves_no_half_made_state(
    jobs: Registry, words: tuple[str, ...], code: int
) -> None:
    Path("here").write_text("#!/bin/sh\n")
    found = run(jobs, "never", "--detach", "--", *words)
    assert (found.stdout, found.code) == (b"", code)
    assert found.stderr.startswith((b"error: ", b"note: each worker runs in its own folder"))
    assert not jobs.folder("never").exists()
    assert not [p for p in jobs.running("supervisor") if "/never" in p.command]


@pytest.mark.parametrize(
    "options",
    [
        ("--workers", "0"),
        ("--workers", "many"),
        ("--workers", "5000"),
        ("--workers", "1", "--env", "NOVALUE"),
        ("--workers", "1", "--env", "=x"),
        ("--workers", "1", "--env", "RANK=7"),
        ("--workers", "1", "--master-port", "70000"),
    ],
)
def test_values_that_make_no_sense_are_2(jobs: Registry, options: tuple[str, ...]) -> None:
    found = jobs.cli("local", "run", "--name", "never", *options, "--detach", "true")
    assert (found.stdout, found.code) == (b"", 2)
    problem(found.stderr)
    assert not jobs.folder("never").exists()


def test_the_platforms_contract_and_nothing_of_a_torchrun_around_it(jobs: Registry) -> None:
    around = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "1", "PET_NNODES": "3", "TORCHELASTIC_RUN_ID": "x"}
    found = run(jobs, "contract", "-q", "--", "sh", "-c", "env | sort", workers=1, env=around)
    env = dict(line.split("=", 1) for line in found.stdout.decode().splitlines() if "=" in line)
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")
    assert (env["ATLCTL_JOB"], env["ATLCTL_WORKER"], env["ATLCTL_STATE_DIR"]) == (
        "contract",
        "worker-0",
        str(jobs.state),
    )
    assert not {"LOCAL_RANK", "PET_NNODES", "TORCHELASTIC_RUN_ID"} & set(env)


def test_a_port_that_is_taken_is_refused_when_asked_for_and_avoided_when_not(jobs: Registry) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        found = run(jobs, "port", "--master-port", str(port), "--detach", "true")
    assert found.code == 1
    assert problem(found.stderr) == (f"port {port} is in use", "omit --master-port, and a free port is chosen")
    assert not jobs.folder("port").exists()


def test_the_registry_is_private_whatever_the_umask(jobs: Registry) -> None:
    before = os.umask(0)
    try:
        jobs.start("private", 1)
        jobs.exec("private", "true")
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in jobs.state.rglob("*")}
    for path, mode in modes.items():
        if "/work/" not in str(path):
            assert mode & 0o077 == 0, (path, oct(mode))
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}


def test_a_relative_file_gets_a_note(jobs: Registry) -> None:
    Path("train.py").write_text("")
    found = run(jobs, "relative", "--", "cat", "train.py", workers=1)
    assert b"""without 'train.py'; write "$PWD/train.py", or add --chdir .\n""" in found.stderr
    assert found.code == 1


def again(jobs: Registry, name: str) -> list[str]:
    """A job whose single worker has failed; its log."""
    script = 'echo "$OWN $PWD $MASTER_PORT"; echo x >>tries; [ -e mended ] || exit 3'
    jobs.start(name, 1, "sh", "-c", script, options=("--env", f"OWN={name}"))
    jobs.until(name, "Failed")
    port = jobs.folder(name).joinpath("env.json").read_text().partition('"MASTER_PORT": "')[2].partition('"')[0]
    return [f"{name} {jobs.folder(name)}/workers/worker-0/work {port}"]


def text(jobs: Registry, name: str, *options: str) -> list[str]:
    return jobs.cli("logs", name, *options).stdout.decode().splitlines()


def test_rerun_has_the_environment_and_the_folder_of_the_first_attempt(jobs: Registry) -> None:
    told = again(jobs, "mend")
    assert text(jobs, "mend") == told
    dry = jobs.cli("rerun", "mend", "--dry-run", env={"OWN": "another"})
    assert dry.stderr.splitlines()[1] == b"  workers: worker-0"
    assert b"  how: attempt 2: sh -c " in dry.stderr
    assert jobs.states("mend") == ["Failed"]
    work = jobs.folder("mend") / "workers/worker-0/work"
    (work / "mended").touch()
    assert jobs.cli("rerun", "mend", "--yes", env={"OWN": "another"}).code == 0
    jobs.until("mend", "Succeeded")
    assert text(jobs, "mend") == text(jobs, "mend", "--previous") == told
    assert (work / "tries").read_text() == "x\nx\n"

    with socket.create_server(("", int(told[0].split()[-1]))):
        assert jobs.cli("rerun", "mend", "--yes", "--", "sh", "-c", "echo $MASTER_PORT; exit 4").code == 0
    jobs.until("mend", "Failed")
    assert text(jobs, "mend")[0] != told[0].split()[-1]
    assert text(jobs, "mend", "--attempt", "1") == text(jobs, "mend", "--attempt", "2") == told
    assert text(jobs, "mend", "--attempt", "3") == text(jobs, "mend")
    ends = [jobs.data("errors", "mend", "--attempt", str(number)) for number in (1, 2, 3)]
    assert [data["state"] for data in ends] == ["Failed", "Succeeded", "Failed"]
    assert [f"exit code {code}" in json.dumps(data) for code, data in zip((3, 3, 4), ends, strict=True)] == [
        True,
        False,
        True,
    ]
    for command in ("logs", "errors"):
        run = jobs.cli(command, "mend", "--attempt", "4")
        assert run == (b"", b"error: job mend has no attempt 4; its attempts: 1-3\n", 3), run
    assert jobs.cli("logs", "mend", "--attempt", "1", "--previous").code == 2
    assert jobs.cli("errors", "--from", str(jobs.folder("mend")), "--attempt", "1").code == 2
    assert jobs.data("ps", "mend")["job"]["uid"] == jobs.data("rerun", "mend", "--dry-run")["uid"]
    assert jobs.cli("local", "rm", "mend", "--yes").code == 0


def test_a_rerun_that_cannot_start_leaves_the_job_as_it_was(jobs: Registry, tmp_path: Path) -> None:
    told = again(jobs, "stays")
    files = sorted(path for path in jobs.folder("stays").rglob("*") if path.name != "supervisor.log")
    (tmp_path / "broken").write_bytes(b"\0\1")
    (tmp_path / "broken").chmod(0o755)
    for word, code in (("nowhere", 127), (str(tmp_path), 126), (str(tmp_path / "broken"), 126)):
        run = jobs.cli("rerun", "stays", "--yes", "--", word)
        assert run.code == code, run
        assert text(jobs, "stays") == told
        assert sorted(path for path in jobs.folder("stays").rglob("*") if path.name != "supervisor.log") == files
    assert jobs.states("stays") == ["Failed"]
    assert b"worker-0: this is its first attempt" in jobs.cli("logs", "stays", "--previous").stderr


def test_a_rerun_whose_client_is_killed_is_stopped_and_forgets_nothing(jobs: Registry) -> None:
    told = again(jobs, "cut")
    shim = (
        "import os, sys; from atlctl.remote.supervisor import starting; "
        "starting.NextAttempt.keep = lambda _: os.kill(os.getpid(), 9); "
        "from atlctl.cli.app import run; run(sys.argv[1:])"
    )
    environ = {name: value for name, value in {**os.environ, **jobs.env}.items() if value is not None}
    words = ("rerun", "cut", "--yes", "--", "sleep", "1000")
    run = subprocess.run([sys.executable, "-c", shim, *words], env=environ, capture_output=True, timeout=100)
    assert run.returncode == -signal.SIGKILL, run
    jobs.until("cut", "Stopped")
    assert text(jobs, "cut", "--previous") == told
    assert jobs.cli("rerun", "cut", "--yes", "--", "true").code == 0
    jobs.until("cut", "Succeeded")
    assert sorted(path.name for path in jobs.folder("cut").glob("workers/*/log*")) == ["log", "log.1", "log.2"]
