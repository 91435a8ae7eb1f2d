"""Running jobs on hosts: environment, logs, states and ends, on a real sshd."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time

import pytest

from atlctl.backends.base import LogLine, LogRequest
from atlctl.backends.hosts import looking, records, starting, stopping
from atlctl.backends.hosts.asking import CannotStartError
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import State
from tests.integration.sshjobs import HOSTS, Site, client, tools
from tests.support import proc
from tests.support.needs import needs

pytestmark = needs("sshd")


def test_the_environment_of_workers(site: Site) -> None:
    """The platform's variables and the login's, but none of a surrounding job."""
    site.environment(RANK="7", PET_NNODES="9", MINE="1")
    record = site.start("env", env={"OWN": "a b\n中", "MASTER_ADDR": "gpu1.fabric"}, master_port=None)
    site.until(record, State.SUCCEEDED)
    for rank, name in enumerate(HOSTS):
        text = "\n".join(site.text(record, name))
        lines = text.splitlines()
        for line in (
            "MASTER_ADDR=gpu1.fabric",
            f"MASTER_PORT={record.master_port}",
            "WORLD_SIZE=2",
            f"RANK={rank}",
            "ATLCTL_JOB=job",
            f"ATLCTL_WORKER={name}",
            f"ATLCTL_STATE_DIR={site.folder / 'host-state' / 'atlctl'}",
            "MINE=1",
        ):
            assert line in lines, text
        assert "OWN=a b\n中" in text
        assert "PET_NNODES" not in text
        assert "ATLCTL_EXEC" not in text


def test_the_working_folder(site: Site) -> None:
    home = os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir)
    record = site.start("pwd", "-P")
    assert site.text(record, "gpu2", follow=True) == [home]
    record = site.start("sh", "-c", "pwd -P; echo text >made", chdir=str(site.folder))
    assert site.text(record, "gpu2", follow=True) == [os.path.realpath(site.folder)]

    async def read(executors: starting.Executors) -> list[bytes | None]:
        executor = executors(record.hosts)
        paths = ("made", str(site.folder / "made"), "link", "/", "/nonexistent", "/proc/self/environ")
        return [await looking.read_file(executor, record, "gpu1", path, 3) for path in paths]

    (site.folder / "link").symlink_to("made")
    *found, environ = site.run(read)
    assert found == [b"tex", b"tex", None, None, None]
    assert environ is not None
    with pytest.raises(CannotStartError, match=r"gpu\[1-2\]: .*nowhere: no such folder") as caught:
        site.start("true", name="other", chdir="nowhere")
    assert caught.value.exit_code == 125


def test_a_job_outlives_a_client_that_is_killed(site: Site) -> None:
    mark = f"7{time.time_ns() % 10**8}"
    process = client(site, "sh", "-c", f"echo begun; sleep {mark}; exit 3")
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # The command's watcher ends it within 1 s.
    time.sleep(1.5)
    assert len(site.running(f"sleep {mark}")) >= 2
    record = records.load("job")
    assert site.look(record).state is State.RUNNING
    for one in site.running(f"sleep {mark}"):
        if one.command == f"sleep {mark}":
            os.kill(one.pid, signal.SIGKILL)
    job = site.until(record, State.FAILED)
    assert [worker.exit_code for worker in job.workers] == [3, 3]
    assert [worker.reason for worker in job.workers] == ["exit 3", "exit 3"]


def test_logs_are_followed_to_the_end(site: Site) -> None:
    go = site.folder / "go"
    script = f"echo one; echo two >&2; while ! [ -e {go} ]; do sleep 0.05; done; seq 3 20000; printf unended; exit 4"
    record = site.start("sh", "-c", script)

    async def follow(executors: starting.Executors) -> list[LogLine]:
        found: list[LogLine] = []
        quiet = 0
        async for batch in looking.lines(executors(record.hosts), record, "gpu2", LogRequest(follow=True)):
            found += batch
            quiet += bool(found and not batch)
            if quiet == 3 and not go.exists():
                assert [line.data for line in found] == [b"one", b"two"]
                go.touch()
        return found

    found = site.run(follow)
    assert {line.data: line.stream for line in found[:2]} == {b"one": "stdout", b"two": "stderr"}
    numbers = [line.data for line in found if line.data.isdigit()]
    assert numbers == [b"%d" % number for number in range(3, 20001)]
    assert (found[-1].data, found[-1].complete) == (b"unended", False)
    job = site.until(record, State.FAILED)
    assert job.reason == "gpu[1-2] failed"
    # The same file, read completely and in part.
    whole = site.log(record, "gpu2")
    assert whole == found
    assert site.log(record, "gpu2", tail=3) == whole[-3:]
    assert site.log(record, "gpu2", tail=3, follow=True) == [*whole[-4:-1], whole[-1]]
    since = whole[10000].time or 0
    assert site.log(record, "gpu2", since=since / 1e9) == [
        line for line in whole if (line.time or 0) >= int(since / 1e9 * 1e9)
    ]
    assert site.log(record, "gpu2", tail=0) == []


def test_a_reader_that_is_ended_leaves_nothing(site: Site) -> None:
    record = site.start("sh", "-c", "while :; do echo line; sleep 0.01; done")

    async def some(executors: starting.Executors) -> int:
        batches = looking.lines(executors(record.hosts), record, "gpu1", LogRequest(follow=True))
        count = 0
        async for batch in batches:
            count += len(batch)
            if count > 5:
                break
        await batches.aclose()
        return count

    assert site.run(some) > 5
    assert proc.wait_until(lambda: not site.running("atlctl-log")), site.running("atlctl-log")


def test_held_and_going_on(site: Site) -> None:
    again = site.folder / "again"
    trainer = f"{sys.executable} -c 'import time; time.sleep(1000)'"
    script = f"echo FAILED-HERE; while ! [ -e {again} ]; do sleep 0.05; done; {trainer}; exit"
    record = site.start("sh", "-c", script, failure_markers=("FAILED-HERE",))
    job = site.until(record, State.HELD)
    assert job.workers[0].reason == "trainer failed; launch script still running"
    again.touch()
    job = site.until(record, State.RUNNING)
    assert job.workers[1].reason == "one of its trainers has failed before"


def test_stop(site: Site) -> None:
    script = 'trap "" TERM; (setsid sleep 1000 &); if [ $RANK = 1 ]; then sleep 1000; sleep 1000; fi; exec sleep 1000'
    record = site.start("sh", "-c", script)
    assert proc.wait_until(lambda: len([one for one in site.running() if one.command == "sleep 1000"]) == 4)
    assert site.stop(record, "gpu2", grace=0.5) == {"gpu2": "killed"}
    states = [worker.state for worker in site.look(record).workers]
    assert states == [State.RUNNING, State.STOPPED]
    assert len([one for one in site.running() if one.command == "sleep 1000"]) == 2
    assert site.stop(record, grace=0.5) == {"gpu1": "killed", "gpu2": "already-ended"}
    assert proc.wait_until(lambda: not site.running()), site.running()
    assert site.look(record).state is State.STOPPED


def test_a_killed_supervisor_is_a_loss(site: Site) -> None:
    record = site.start("sleep", "1000")
    os.kill(site.supervisor(record, "gpu1"), signal.SIGKILL)
    job = site.until(record, State.LOST)
    assert [worker.state for worker in job.workers] == [State.LOST, State.RUNNING]
    assert job.workers[0].reason == "its supervisor was killed or the machine restarted"
    assert site.stop(record) == {"gpu1": "already-ended", "gpu2": "terminated"}
    assert not [one for one in site.running() if one.command == "sleep 1000"]


def test_a_supervisor_that_hangs_does_not_hang_its_client(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "MARGIN_SECONDS", 2.0)
    record = site.start("sleep", "1000", hosts={"gpu1": HOSTS["gpu1"]})
    pid = site.supervisor(record, "gpu1")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert site.look(record).state is State.RUNNING
        assert site.stop(record, grace=0.1) == {"gpu1": "not-stopped"}
    finally:
        os.kill(pid, signal.SIGCONT)


def test_hosts_that_cannot_be_asked_are_unknown(site: Site) -> None:
    record = site.start("sleep", "1000")
    site.server.stop()
    try:
        seen = site.seen(record)
        assert {one.worker.state for one in seen.values()} == {State.UNKNOWN}
        assert all("connection refused" in one.worker.reason for one in seen.values())
        assert all(one.problem is not None and one.problem.exit_code == 255 for one in seen.values())
        assert looking.job(record, seen).state is State.UNKNOWN
        assert site.stop(record) == {"gpu1": "not-stopped", "gpu2": "not-stopped"}
        with pytest.raises(AtlctlError, match="may still be running"):
            site.start("true")
    finally:
        site.server.start()
    assert site.look(record).state is State.RUNNING


def test_the_oldest_python(site: Site) -> None:
    """Supervisor and requests on Python 3.8."""
    found = shutil.which("python3.8")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip("no Python 3.8 here")
    site.environment(PATH=tools(site.folder / "bin", python3=f'exec {found} "$@"'))
    script = 'echo out; echo wrong >&2; if [ "$RANK" = 1 ]; then exit 3; fi; (setsid sleep 1000 &); exec sleep 1000'
    record = site.start("sh", "-c", script, env={"OWN": "中"})
    assert "python3.8" in os.readlink(f"/proc/{site.supervisor(record, 'gpu1')}/exe")
    job = site.until(record, State.FAILED)
    assert [worker.state for worker in job.workers] == [State.RUNNING, State.FAILED]
    assert sorted(site.text(record, "gpu2", follow=True, tail=5)) == ["out", "wrong"]
    assert site.stop(record) == {"gpu1": "terminated", "gpu2": "already-ended"}
    assert not [one for one in site.running() if one.command == "sleep 1000"]
    assert site.run(lambda executors: stopping.remove(executors(record.hosts), record)) == {}


def test_a_log_goes_on_over_lost_connections(site: Site) -> None:
    """Every line once and in order, whatever was in flight."""
    record = site.start("sh", "-c", "for n in $(seq 3000); do echo $n; [ $((n % 10)) = 0 ] && sleep 0.01; done")

    async def follow(executors: starting.Executors) -> list[int]:
        found: list[int] = []
        cut = 0
        async for batch in looking.lines(executors(record.hosts), record, "gpu1", LogRequest(follow=True, tail=3000)):
            found += [int(line.data) for line in batch]
            if cut < 3 and len(found) > 400 * (cut + 1):
                cut += 1
                site.server.kill_all()
                site.server.start()
        assert cut == 3
        return found

    assert site.run(follow) == list(range(1, 3001))


def test_what_a_shell_prints_at_its_start_is_no_answer(site: Site) -> None:
    home = site.folder / "home"
    home.mkdir()
    (home / ".bashrc").write_text('echo welcome; echo "{"; echo wrong >&2\n')
    site.environment(HOME=str(home))
    record = site.start("echo", "line")
    job = site.until(record, State.SUCCEEDED)
    assert site.text(record, "gpu1", follow=True) == ["line"]
    assert site.stop(record) == {"gpu1": "already-ended", "gpu2": "already-ended"}
    assert job.reason == ""


def test_ranks_are_those_of_torchruns_children(site: Site) -> None:
    """A worker's RANK counts workers, and processes of another worker on the same machine do not belong to it."""
    child = "TORCHELASTIC_RUN_ID=x LOCAL_RANK=$n RANK=$((RANK * 2 + n)) sleep 1000 &"
    record = site.start("sh", "-c", f"for n in 0 1; do {child} done; wait")
    found: list[object] = []

    def all_seen() -> bool:
        ranks = looking.ranks(site.seen(record))
        found.append(ranks)
        return ranks is not None and ranks.workers == {0: "gpu1", 1: "gpu1", 2: "gpu2", 3: "gpu2"}

    assert proc.wait_until(all_seen, interval=0.1), found[-1]
