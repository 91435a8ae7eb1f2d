"""`atlctl run`, `rerun`, `release` and `stop --keep`: the life of wrapped jobs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.smoke import netns
from tests.integration.wrapped import Wrapped, wrapped
from tests.support import proc
from tests.support.cli import ATLCTL, run_cli
from tests.support.pace import within

#: Fails on worker 1 until it is mended; the others end with 0 when it is.
SCRIPT = """\
import os, sys, time
print("attempt of", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1" and not os.path.exists("mended"):
    raise ValueError("a bad batch")
while not os.path.exists("mended"):
    time.sleep(0.05)
print("trained", flush=True)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Wrapped]:
    (tmp_path / "train.py").write_text(SCRIPT)
    with wrapped(tmp_path, 3) as made:
        yield made


def _train() -> list[str]:
    return ["--", sys.executable, "train.py"]


def test_a_failure_is_named_held_mended_and_run_again(job: Wrapped) -> None:
    job.start("--settle", "0", "--hold", "10m", *_train())
    job.until_said(0, "worker-1, line")
    assert "ValueError: a bad batch" in job.said(0)
    job.until_states(2, "Running", "Held", "Running")
    (held,) = [worker for worker in job.data(2, "ps")["workers"] if worker["name"] == "worker-1"]
    assert held["reason"].startswith("exit 1; ")
    refused = job.atlctl(2, "rerun", "--yes")
    assert refused.code == 1
    assert b"nothing was started: worker-[0,2]: its command is running" in refused.stderr

    assert job.atlctl(2, "stop", "--keep", "--yes").code == 0
    assert job.states(1) == ["Debugging", "Debugging", "Debugging"]
    done = job.atlctl(2, "exec", "--all", "--", "sh", "-c", "echo rank $RANK in $PWD")
    lines = sorted(done.stdout.decode().splitlines())
    assert lines == [f"worker-{index}: rank {index} in {job.folder}" for index in range(3)]
    kept = json.loads((job.start_folder() / "verdict.json").read_text())["data"]
    saved = json.loads(run_cli("errors", "--from", str(job.start_folder()), "-o", "json").stdout)["data"]
    for found in (kept, saved, job.data(2, "errors")):
        assert "ValueError: a bad batch" in json.dumps(found), found

    (job.folder / "mended").touch()
    assert b"attempt 2" in job.atlctl(2, "rerun", "--dry-run").stderr
    assert job.atlctl(2, "rerun", "--yes").code == 0
    assert job.codes() == [0, 0, 0]
    assert job.said(1).count("attempt of") == 2  # the number may come behind a line of stderr
    assert job.said(1).endswith("trained\n")
    for index in range(3):
        assert not list((job.folder / f"state-{index}" / "run").glob("*/*")), "a record is left"


def test_steps_of_a_start_are_kept_and_compared_with_the_start_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, time\n"
        "for step in range(1, int(sys.argv[1])):\n"
        "    time.sleep(float(sys.argv[2]))\n"
        "    print(f'step {step} loss 2.5', flush=True)\n"
    )
    with wrapped(tmp_path, 2) as job:
        job.start("--", sys.executable, "train.py", "60", "0.02")
        assert job.codes() == [0, 0]
        first = job.start_folder()
        for index in (0, 1):
            kept = first / f"worker-{index}" / "workers" / f"worker-{index}" / "steps.jsonl"
            assert len(kept.read_text().splitlines()) > 1
        steps = json.loads(run_cli("slow", "--from", str(first), "-o", "json").stdout)["data"]["steps"]
        assert [track["worker"] for track in steps] == ["worker-0", "worker-1"]
        assert all(track["step"] > 50 for track in steps)  # the last ones were too short to be measured alone

        job.start("--", sys.executable, "train.py", "100000", "0.1")
        job.until_said(1, "step 60 ")
        workers = job.data(1, "ps")["workers"]
        assert all(worker["step"] > 20 and within(worker["step_age"], 5) for worker in workers), workers
        found = job.data(1, "slow", "--no-pyspy", "--against")["against"]
        assert found["source"] == str(first)
        assert found["step_seconds"]["factor"] > 2
        assert [item["what"] for item in found["differences"]] == ["command"]
        assert "workers" in found["same"]


def test_logs_of_both_attempts(job: Wrapped) -> None:
    job.start("--settle", "0", "--hold", "10m", *_train())
    job.until_said(1, "is kept")
    job.until_said(0, "worker-1, line")
    assert job.atlctl(0, "stop", "--keep", "--yes").code == 0
    assert job.atlctl(0, "rerun", "--yes", "--", "sh", "-c", "echo second of $RANK; exit 4").code == 0
    job.until_states(0, "Held", "Held", "Held")
    second = job.atlctl(2, "logs", "--no-prefix", "-w", "1")
    assert second.stdout == b"second of 1\n", second
    assert b"a bad batch" in job.atlctl(2, "logs", "--previous", "-w", "1").stdout
    for number, words in ((1, b"a bad batch"), (2, b"second of 1")):
        assert words in job.atlctl(2, "logs", "--attempt", str(number), "-w", "1").stdout
    first, last = (job.data(2, "errors", "--attempt", number) for number in "12")
    assert (first["attempt"], last["attempt"]) == (1, 2)
    assert "ValueError: a bad batch" in json.dumps(first)
    assert "a bad batch" not in json.dumps(last)
    assert last == job.data(2, "errors")
    assert job.atlctl(1, "release").code == 0
    assert job.codes() == [4, 4, 4]


def test_without_a_hold_each_wrapper_exits_as_its_command(job: Wrapped) -> None:
    job.start("--settle", "0", "--", "sh", "-c", "exit $((RANK * 3))")
    assert job.codes() == [0, 3, 6]
    assert any("explicit_exit" in job.said(index) for index in (0, 1))
    assert not any("Held" in job.said(index) for index in range(3))


def test_stop_ends_commands_and_wrappers(job: Wrapped) -> None:
    job.start("--hold", "10m", "--", "sleep", "600")
    job.until_states(0, "Running", "Running", "Running")
    assert job.atlctl(1, "stop", "--yes", job.data(1, "ps")["job"]["name"]).code == 0
    assert job.codes() == [143, 143, 143]


def test_signals_go_to_the_command_and_end_the_wrapper_without_verdict_or_hold(tmp_path: Path) -> None:
    with wrapped(tmp_path, 1) as job:
        script = "trap 'echo usr1' USR1; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
        job.start("--hold", "10m", "--", "sh", "-c", script)
        job.until_said(0, "ready")
        job.runs[0].send_signal(signal.SIGUSR1)
        job.until_said(0, "usr1")
        job.runs[0].send_signal(signal.SIGTERM)
        assert job.codes() == [143]
        assert "term" in job.said(0)
        assert "root cause" not in job.said(0)


def test_a_missing_worker_is_named_and_the_command_starts(job: Wrapped) -> None:
    job.start("--wait", "5", "--", "true", indexes=[0, 2])
    assert job.codes() == [0, 0]
    assert "worker-1 did not come within 5 s" in job.said(0)


def test_a_missing_worker_blocks_if_it_is_asked_for(job: Wrapped) -> None:
    job.start("--wait", "5", "--block", "missing", "--", "touch", "started", indexes=[0, 2])
    assert job.codes() == [125, 125]
    assert "the command is not started: worker-1 did not come within 5 s" in job.said(0)
    assert not (job.folder / "started").exists()


def test_a_late_worker_joins(job: Wrapped) -> None:
    wait = ["--", "sh", "-c", "until [ -e mended ]; do sleep 0.1; done"]
    job.start("--wait", "3", *wait, indexes=[0, 1])
    job.until_said(0, "did not come")
    job.start(*wait, indexes=[2])
    job.until_said(0, "worker-2 has come late")
    job.until_states(1, "Running", "Running", "Running")
    (job.folder / "mended").touch()
    assert job.codes() == [0, 0, 0]


def test_a_worker_without_worker_0_starts_alone(job: Wrapped) -> None:
    job.start("--wait", "1", "--", "sh", "-c", "echo begun; exit 3", indexes=[2])
    assert job.codes() == [3]
    assert "worker-0 did not answer within 1 s" in job.said(2)
    assert "begun" in job.said(2)


def test_a_killed_worker_fails_the_job(job: Wrapped, monkeypatch: pytest.MonkeyPatch) -> None:
    job.start("--settle", "0", "--", "sh", "-c", "echo $$ > pid-$RANK; exec sleep 600")
    job.until_states(0, "Running", "Running", "Running")
    job.runs[2].kill()
    os.kill(int((job.folder / "pid-2").read_text()), signal.SIGKILL)
    job.until_said(0, "worker-2 does not answer any more")
    job.until_said(0, "job ")
    for index in (0, 1):
        job.runs[index].send_signal(signal.SIGTERM)
    assert job.codes()[:2] == [143, 143]


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    with wrapped(tmp_path, 1) as job:
        job.start("--", "no-such-command-here")
        assert job.codes() == [127]
        assert "command not found" in job.said(0)


def test_every_byte_of_output_arrives_on_the_screen_and_in_the_log(tmp_path: Path) -> None:
    with wrapped(tmp_path, 1) as job:
        program = "import os; [os.write(1, (str(n) * 50 + '\\n').encode()) for n in range(100000, 300000)]"
        run = subprocess.run(
            [*ATLCTL, "run", "--", sys.executable, "-c", program],
            env={name: value for name, value in {**os.environ, **job.env(0)}.items() if value is not None},
            capture_output=True,
            timeout=90,
            check=False,
        )
        wanted = b"".join(b"%d" % n * 50 + b"\n" for n in range(100000, 300000))
        assert hashlib.sha256(run.stdout).digest() == hashlib.sha256(wanted).digest()
        own = job.start_folder() / "worker-0" / "workers" / "worker-0"
        lost = json.loads((own / "exit.json").read_text())["log_bytes_lost"]
        written = sum(path.read_bytes().count(b"\n") for path in (own / "log").iterdir())
        assert lost or written == 200000
        assert not lost or f"{lost} bytes of the output are not in the log".encode() in run.stderr


#: Mounts a disk of 256 KB at the first word, and runs the others. Then copies the disk to the first word with `-after`.
ON_A_SMALL_DISK = (
    'disk=$1; shift; mount -t tmpfs -o size=256k none $disk; "$@"; code=$?; cp -r $disk $disk-after; exit $code'
)
#: A command that writes 6 MB, more than a wrapper keeps for a log, and fails.
LOUD = "i=0; while [ $i -lt 100 ]; do head -c 60000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; exit 5"
LOUD_BYTES = 100 * 60_001


@pytest.mark.skipif(netns.refused() != "", reason=netns.refused())
def test_a_full_disk_loses_the_log_and_nothing_else(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    before = ["unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh", str(disk)]
    with wrapped(tmp_path, 1, {"ATLCTL_RUN_DIR": str(disk)}, {0: before}) as job:
        job.start("--", "sh", "-c", LOUD)
        assert job.codes() == [5]
        said = job.said(0)
    assert said.count("x" * 60_000 + "\n") == 100
    (lost,) = re.findall(r"(\d+) bytes of the output are not in the log", said)
    logs = [path for path in (tmp_path / "disk-after").rglob("log/*") if path.is_file()]
    assert logs
    kept = sum(line.count(b"x") for path in logs for line in path.read_bytes().splitlines())
    assert 0 < kept < 256 * 1024
    assert LOUD_BYTES - int(lost) <= kept + 100


def test_a_hanging_disk_loses_the_log_and_nothing_else(tmp_path: Path) -> None:
    """A pipe that has no reader hangs when it is opened, as a file of a storage that does not answer."""
    with wrapped(tmp_path, 1) as job:
        job.start("--settle", "0", "--hold", "10m", "--", "false")
        job.until_states(0, "Held")
        own = job.start_folder() / "worker-0" / "workers" / "worker-0"
        (own / "log" / "0.log").unlink()
        (own / "log.1").mkdir()
        (own / "log.1" / "x").touch()  # so that the wrapper keeps the folder of the log
        os.mkfifo(own / "log" / "0.log")
        began = time.monotonic()
        assert job.atlctl(0, "rerun", "--yes", "--", "sh", "-c", LOUD).code == 0
        job.until_said(0, f"{LOUD_BYTES} bytes of the output are not in the log")
        assert within(time.monotonic() - began, 30)
        assert job.said(0).count("x" * 60_000 + "\n") == 100
        job.until_states(0, "Held")
        assert job.atlctl(0, "release").code == 0
        assert job.codes() == [5]


@pytest.mark.skipif(netns.refused() != "", reason=netns.refused())
def test_four_workers_with_addresses_of_their_own_a_key_and_no_folder(tmp_path: Path) -> None:
    """Names come from the pattern of the first worker; here they are addresses, in MPI's hostfile."""
    key = tmp_path / "key"
    key.write_text("k" * 40)
    (tmp_path / "train.py").write_text(SCRIPT)
    with netns.Network(3) as network:
        hosts = tmp_path / "hosts"
        hosts.write_text("".join(f"{network.address(index)}\n" for index in range(3)))
        before = {index: ["ip", "netns", "exec", network.space(index)] for index in range(3)}
        environ = {
            "MASTER_ADDR": network.address(0),
            "ATLCTL_RUN_DIR": None,
            "ATLCTL_JOB_KEY_FILE": str(key),
            "OMPI_MCA_orte_default_hostfile": str(hosts),
            "ATLCTL_CHECK_ITEMS": "facts,mesh",
        }
        with wrapped(tmp_path, 3, environ, before) as job:
            job.start("--settle", "0", "--hold", "10m", *_train())
            job.until_said(0, "worker-1, line")
            assert "check: " in job.said(0)
            done = job.atlctl(2, "exec", "--all", "--", "sh", "-c", "echo ${ATLCTL_JOB_KEY_FILE:-none}")
            assert sorted(done.stdout.splitlines()) == [f"worker-{index}: none".encode() for index in range(3)]
            assert b"a bad batch" in job.atlctl(2, "logs").stdout
            (tmp_path / "mended").touch()
            proc.wait_until(lambda: job.states(1) == ["Held", "Held", "Held"], 60)
            assert job.atlctl(2, "rerun", "--yes").code == 0
            assert job.codes() == [0, 0, 0]


#: Workers with kernel logs in the folder: 1 is killed by the kernel, 0 runs on without a link.
KERNEL = """\
if [ $RANK = 1 ]; then
    echo "3,8,9000000,-;Memory cgroup out of memory: Killed process 1234 (python)" >> kmsg-1; kill -9 $$
fi
echo "3,8,9000000,-;mlx5_core 0000:1a:00.0 eth2: Link down" >> kmsg-0
until [ -e mended ]; do sleep 0.1; done
"""


@pytest.mark.skipif(netns.refused() != "", reason=netns.refused())
def test_messages_of_the_kernel_are_evidence(tmp_path: Path) -> None:
    """A message from before the command is not."""
    before = {}
    for index in range(2):
        log = tmp_path / f"kmsg-{index}"
        log.write_text("3,7,8000000,-;Out of memory: Killed process 99 (python)\n")
        mounted = 'mount --bind "$0" /dev/kmsg && exec "$@"'
        before[index] = ["unshare", "--mount", "sh", "-c", mounted, str(log)]
    with wrapped(tmp_path, 2, before=before) as job:
        job.start("--settle", "1", "--hold", "10m", "--", "sh", "-c", KERNEL)
        job.until_said(0, "[memory_limit_kill]")
        assert "root cause: worker-1" in job.said(0)
        job.until_said(1, "is kept")
        logs = [job.atlctl(1, "logs", "--no-prefix", "-w", str(index)).stdout for index in range(2)]
        assert logs[0] == b"kernel: mlx5_core 0000:1a:00.0 eth2: Link down\n"
        assert logs[1] == b"kernel: Memory cgroup out of memory: Killed process 1234 (python)\n"
        (tmp_path / "mended").touch()
        assert job.atlctl(1, "release").code == 0


#: `atlctl` with WORDS; writes its modules to FILE when the command starts, and at the end.
NOTED = """\
import json, sys
from atlctl.remote.supervisor import workers
spawn, path = workers.spawn, sys.argv.pop(1)


def noted(*words, **options):
    note("start")
    return spawn(*words, **options)

def note(when):
    with open(path + when, "w") as file:
        json.dump([name for name, module in sys.modules.items() if module is not None], file)

workers.spawn = noted
from atlctl.__main__ import main
try:
    main()
finally:
    note("end")
"""
#: Packages of which each takes some 4 MB or more, and modules of which all together take 17 MB.

LARGE, MOST_MODULES = {"asyncssh", "cryptography", "ssl", "hashlib", "pydantic_core", "rich", "torch"}, 300


def _modules(path: Path) -> set[str]:
    return {*json.loads(path.read_text())}


def test_commands_start_before_a_wrapper_has_imported_anything_large(tmp_path: Path) -> None:
    with wrapped(tmp_path, 2) as job:
        for index in range(2):
            environ = {name: value for name, value in {**os.environ, **job.env(index)}.items() if value is not None}
            words = [str(tmp_path / f"{index}-"), "run", "--", "true"]
            job.runs[index] = subprocess.Popen([sys.executable, "-c", NOTED, *words], env=environ)
        assert job.codes() == [0, 0]
    for index in range(2):
        assert not LARGE & _modules(tmp_path / f"{index}-start")
    assert "asyncssh" in _modules(tmp_path / "1-end"), "it has reported its end to worker 0"


def test_without_a_server_a_wrapper_imports_nothing_large(tmp_path: Path) -> None:
    """25 MB of memory, of which Python itself takes 9."""
    with wrapped(tmp_path, 1) as job:
        environ = {name: value for name, value in {**os.environ, **job.env(0)}.items() if value is not None}
        steps = "print('step 1 loss 0.5\\n' * 100)"
        words = [str(tmp_path / "0-"), "run", "--no-serve", "--", sys.executable, "-c", steps]
        job.runs[0] = subprocess.Popen([sys.executable, "-c", NOTED, *words], env=environ)
        assert job.codes() == [0]
    found = _modules(tmp_path / "0-end")
    assert "atlctl.diagnosis.stepwatch" in found
    assert not LARGE & found
    assert len(found) < MOST_MODULES
