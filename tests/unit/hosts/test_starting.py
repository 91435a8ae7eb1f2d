"""Starting a job: name, port, environment, and no partial state."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atlctl.backends.hosts import registry, starting
from atlctl.jobs.errors import AtlctlError, UsageError
from atlctl.jobs.model import State
from atlctl.remote.supervisor import boot
from tests.contract.world import REPOSITORY
from tests.support.pace import within
from tests.support.proc import marked, wait_until
from tests.unit.hosts.local import Local


def printed(local: Local, script: str, **options: object) -> list[str]:
    """The lines printed by a worker's script."""
    local.sh(script, **options)
    local.ended()
    return [line.split(" ", 3)[3] for line in local.file("log/0.log").read_text().splitlines()]


# Names


def test_a_living_jobs_name_is_refused(local: Local) -> None:
    first = local.run()
    with pytest.raises(AtlctlError) as caught:
        local.run()
    assert "still running" in caught.value.message
    assert "atlctl stop job" in (caught.value.hint or "")
    assert local.load("job") == first


@pytest.mark.parametrize("how", ["succeeded", "stopped", "lost"])
def test_a_dead_jobs_entry_gives_way(local: Local, how: str) -> None:
    old = local.run(("true",) if how == "succeeded" else ("sleep", "4500"))
    if how == "stopped":
        asyncio.run(local.backend.stop(old, old.workers, 1.0))
    if how == "lost":
        local.lose(old)
    assert local.gone()
    local.file("work/old").touch()
    new = local.run()
    assert new.uid != old.uid
    assert new.state is State.RUNNING
    assert not local.file("work/old").exists()
    kept = local.load("job.1")
    assert kept.uid == old.uid
    assert not kept.workers[0].state.active
    assert local.file("work/old", name="job.1").exists()


def test_ended_jobs_are_numbered_in_their_order(local: Local) -> None:
    uids = []
    for _ in range(3):
        uids.append(local.run(("true",)).uid)
        assert local.gone()
    assert sorted(registry.LOCAL.names()) == ["job", "job.1", "job.2"]
    assert [local.load(name).uid for name in ("job.1", "job.2", "job")] == uids
    registry.remove(str(local.folder("job.1")))
    local.run()
    assert local.load("job.3").uid == uids[-1]


def test_a_long_name_makes_room_for_its_number(local: Local) -> None:
    name = "x" * 61 + "-y"
    old = local.run(("true",), name=name)
    assert local.gone(name)
    local.run(name=name)
    assert local.load("x" * 61 + ".1").uid == old.uid


def test_a_dead_jobs_entry_stays_when_the_new_start_fails(local: Local) -> None:
    old = local.run(("true",))
    assert local.gone()
    local.file("work/results").touch()
    with pytest.raises(AtlctlError, match="command not found"):
        local.run(("no-such-command",))
    assert local.load("job").uid == old.uid
    assert local.file("work/results").exists()
    assert sorted(os.listdir(local.folder().parent)) == [".lock", "job"]


def test_an_entry_set_aside_by_a_killed_start_comes_back(local: Local) -> None:
    old = local.run(("true",))
    assert local.gone()
    root = str(local.folder().parent)
    aside = registry.set_aside(root, "job")
    assert aside is not None
    local.folder().mkdir()
    registry.sweep(root)
    assert local.load("job").uid == old.uid
    # Killed after a complete start: the old one is kept, too.
    os.mkdir(aside)
    registry.sweep(root)
    registry.sweep(root)  # its content here is not a job
    assert sorted(os.listdir(root)) == [".lock", "job"]


def test_an_entry_of_another_machine_does_not_give_way(local: Local) -> None:
    local.run(("true",))
    assert local.gone()
    path = local.folder() / "job.json"
    here = registry.glance("job").supervisor
    text = path.read_text().replace(here["boot_id"], "another").replace(f'"{here["host"]}"', '"node-7"')
    path.write_text(text)
    with pytest.raises(AtlctlError, match="node-7"):
        local.run()


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "-x", "a b", "x" * 64, "名", "a\n"])
def test_odd_names_are_refused_and_nothing_is_made(local: Local, isolated: Path, name: str) -> None:
    with pytest.raises(UsageError):
        local.run(name=name)
    assert list(isolated.rglob("atlctl")) == []


def test_names_are_found_where_none_is_given(local: Local) -> None:
    assert local.run(name=None).name == "local-1"
    assert local.run(name=None).name == "local-2"


@pytest.mark.parametrize("workers", [0, -1, 4097])
def test_numbers_of_workers(local: Local, workers: int) -> None:
    with pytest.raises(UsageError, match="--workers"):
        local.run(workers=workers)


@pytest.mark.parametrize("argv", [(), ("",)])
def test_no_command(local: Local, argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        local.run(argv)


LAUNCH = """
import sys
from atlctl.backends.base import Argv
from atlctl.backends.hosts.starting import StartSpec, start_here
{before}
try:
    print(start_here(StartSpec(Argv(tuple(sys.argv[3:])), sys.argv[1]), int(sys.argv[2])).name)
except Exception as error:
    print(type(error).__name__, error)
"""


def launcher(*argv: str, workers: int = 1, before: str = "") -> subprocess.Popen[bytes]:
    """A separate process that starts a job."""
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH.format(before=before), "job", str(workers), *argv],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def test_of_two_at_once_exactly_one_wins(local: Local) -> None:
    both = [launcher("sleep", "4501", workers=3) for _ in range(2)]
    said = sorted(process.communicate(timeout=100)[0] for process in both)
    assert said[1] == b"job\n"
    assert said[0].startswith(b"AtlctlError job job is still running")
    assert len(marked()) == 2 + 3, "a guard, a supervisor and three workers"


def test_the_lock_is_not_waited_for_without_end(local: Local) -> None:
    with registry.locked():
        begun = time.monotonic()
        with pytest.raises(AtlctlError, match="another atlctl"):
            with registry.locked(wait=0.2):
                raise AssertionError("two hold it")
        assert within(time.monotonic() - begun, 10)


# Environment


def test_the_contract(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "ATLCTL_JOB",
        "ATLCTL_WORKER",
        "ATLCTL_STATE_DIR",
        "MINE",
    )
    job = local.sh("; ".join(f'echo "${name}"' for name in names), workers=2, env={"MINE": "a b"})
    port = registry.load(job.name).master_port
    local.ended()
    lines = [line.split(" ", 3)[3] for line in local.file("log/0.log", 1).read_text().splitlines()]
    assert lines == ["127.0.0.1", str(port), "2", "1", "job", "worker-1", str(local.folder().parent.parent), "a b"]


INHERITED = {
    "PET_NNODES": "4",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_ERROR_FILE": "/x",
    "RANK": "7",
    "LOCAL_RANK": "7",
    "GROUP_RANK": "7",
    "LOCAL_WORLD_SIZE": "7",
    "ROLE_NAME": "x",
    "WORLD_SIZE": "77",
    "MASTER_ADDR": "elsewhere",
    "MASTER_PORT": "1",
    "ATLCTL_EXEC": "x",
    "ATLCTL_JOB": "outer",
    "ATLCTL_WORKER": "worker-9",
}


def test_what_a_torchrun_around_it_has_set_does_not_come_through(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in INHERITED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEPT_AS_IT_IS", "yes")
    lines = dict(line.split("=", 1) for line in printed(local, "env") if "=" in line)
    assert lines["KEPT_AS_IT_IS"] == "yes"
    assert (lines["RANK"], lines["WORLD_SIZE"], lines["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")
    assert (lines["ATLCTL_JOB"], lines["ATLCTL_WORKER"]) == ("job", "worker-0")
    assert not {"PET_NNODES", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "LOCAL_RANK", "GROUP_RANK"} & set(lines)
    assert not {"LOCAL_WORLD_SIZE", "ROLE_NAME", "ATLCTL_EXEC"} & set(lines)


def test_what_the_user_sets_counts(local: Local) -> None:
    env = {"MASTER_ADDR": "localhost", "LOCAL_RANK": "5", "PET_NNODES": "1", "EMPTY": "", "ODD NAME": "\n"}
    local.run(("env",), env=env)
    local.ended()
    lines = [line.split(" ", 3)[3] for line in local.file("log/0.log").read_text().splitlines()]
    assert {"MASTER_ADDR=localhost", "LOCAL_RANK=5", "PET_NNODES=1", "EMPTY=", "ODD NAME="} <= set(lines)


@pytest.mark.parametrize(
    "name", ["RANK", "WORLD_SIZE", "MASTER_PORT", "ATLCTL_JOB", "ATLCTL_WORKER", "ATLCTL_STATE_DIR", "ATLCTL_EXEC"]
)
def test_the_contracts_variables_are_not_the_users(local: Local, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        local.run(env={name: "1"})
    assert name in caught.value.message
    assert ("--master-port" in (caught.value.hint or "")) == (name == "MASTER_PORT")


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")])
def test_what_is_no_variable_is_refused(local: Local, name: str, value: str) -> None:
    with pytest.raises(UsageError):
        local.run(env={name: value})


def test_values_that_are_no_utf8_come_through(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = "显存".encode("gbk") + b"\xff"
    monkeypatch.setenv("GBK", os.fsdecode(raw))
    local.run(("printenv", "GBK"))
    local.ended()
    assert local.file("log/0.log").read_bytes().split(b" ", 3)[3] == raw + b"\n"


def test_a_locale_of_another_encoding(local: Local) -> None:
    """Arguments and values are bytes, whatever the locales of the launcher and the exec client."""
    before = "import os; os.environb[b'GBK'] = b'\\xcf\\xd4'"
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    argv: list[str | bytes] = ["sh", "-c", 'printf "%s %s" "$GBK" "$1"', "sh", b"\xe6\x98\xbe\xff"]
    run = subprocess.run(
        [sys.executable, "-c", LAUNCH.format(before=before), "job", "1", *argv],
        env=env,
        capture_output=True,
        check=True,
    )
    assert run.stdout == b"job\n"
    local.ended()
    assert local.file("log/0.log").read_bytes().split(b" ", 3)[3] == b"\xcf\xd4 \xe6\x98\xbe\xff\n"


# Port


@pytest.fixture
def busy() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def test_29500_if_it_is_free(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    monkeypatch.setattr(starting, "DEFAULT_PORT", free)
    local.run(name="first")
    local.run(name="second")
    ports = [registry.load(name).master_port for name in ("first", "second")]
    assert ports[0] == free
    assert ports[1] not in (None, free), "it belongs to a living job, used by it yet or not"


def test_another_if_29500_is_taken(local: Local, busy: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    with busy:
        monkeypatch.setattr(starting, "DEFAULT_PORT", busy.getsockname()[1])
        local.run()
        assert registry.load("job").master_port not in (None, busy.getsockname()[1])


def test_the_platforms_port() -> None:
    assert starting.DEFAULT_PORT == 29500


def test_a_port_that_was_asked_for_and_is_taken(local: Local, busy: socket.socket) -> None:
    with busy:
        port = busy.getsockname()[1]
        with pytest.raises(AtlctlError, match=str(port)):
            local.run(master_port=port)
    assert registry.LOCAL.names() == []
    assert local.run(master_port=port).state is State.RUNNING
    assert registry.load("job").master_port == port


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port(local: Local, port: int) -> None:
    with pytest.raises(UsageError):
        local.run(master_port=port)


# Files


def test_files_are_private_under_any_umask(local: Local) -> None:
    old = os.umask(0)
    try:
        job = local.sh("echo x; echo y >&2; sleep 4502", markers=["x"])
        assert wait_until(local.file("trainer.json").exists)
        asyncio.run(local.backend.stop(job, job.workers, 1.0))
    finally:
        os.umask(old)
    top = local.folder().parent
    modes = {path: path.lstat().st_mode & 0o777 for path in [top, top.parent, *top.rglob("*")]}
    assert {str(path) for path, mode in modes.items() if mode not in (0o600, 0o700)} == set()
    assert {"env.json", "exit.json", "0.log", "proc.json", ".lock", "stopping"} <= {path.name for path in modes}


# Starts that fail


@pytest.mark.parametrize(("argv", "code"), [(("no-such-command",), 127), (("/etc/passwd",), 126), (("/",), 126)])
def test_a_command_that_cannot_be_started_leaves_nothing(local: Local, argv: tuple[str, ...], code: int) -> None:
    with pytest.raises(AtlctlError) as caught:
        local.run(argv, workers=3)
    assert caught.value.exit_code == code
    assert argv[0] in caught.value.message
    assert not local.folder().exists()
    assert marked() == []


def test_a_file_here_is_not_a_file_there(local: Local) -> None:
    Path("train.sh").write_text("#!/bin/sh\n")
    with pytest.raises(AtlctlError) as caught:
        local.run(("./train.sh",))
    assert caught.value.exit_code == 127
    assert os.path.abspath("train.sh") in (caught.value.hint or "")


def test_ctrl_c_during_the_start_leaves_nothing(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even at the worst moment: all workers run, but the launcher has not confirmed it."""
    real = boot.await_start

    def interrupted(link: socket.socket, folder: str) -> object:
        real(link, folder)
        assert (Path(folder) / "job.json").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(boot, "await_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local.sh("trap '' TERM; while :; do sleep 0.1; done", workers=3)
    assert marked() == []
    assert not local.folder().exists()


def test_a_supervisor_that_does_not_answer(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has started its workers, and its word of that is late."""
    monkeypatch.setattr(boot, "START_SECONDS", 0.0)
    real = boot.await_start

    def unheard(link: socket.socket, folder: str) -> object:
        nothing, silent = socket.socketpair()
        with nothing, silent:
            assert wait_until(lambda: (Path(folder) / "job.json").exists())
            return real(nothing, folder)

    monkeypatch.setattr(boot, "await_start", unheard)
    with pytest.raises(AtlctlError, match="did not start"):
        local.run(workers=3)
    assert marked() == []
    assert not local.folder().exists()


def test_a_supervisor_that_ends_at_once(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", lambda value: "{")
    with pytest.raises(AtlctlError, match="JSONDecodeError"):
        local.run()
    assert marked() == []
    assert not local.folder().exists()


KILL = "from atlctl.remote.supervisor import boot as l; import os\n"


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(KILL + "l.begin = lambda *_: os.kill(os.getpid(), 9)", id="before-the-supervisor"),
        pytest.param(KILL + "l.await_start = lambda *_: os.kill(os.getpid(), 9)", id="while-it-starts"),
        pytest.param(
            KILL + "real = l.await_start\nl.await_start = lambda *a: (real(*a), os.kill(os.getpid(), 9))",
            id="before-the-word",
        ),
    ],
)
def test_a_launcher_that_is_killed_leaves_no_job(local: Local, before: str) -> None:
    with launcher("sleep", "4503", workers=3, before=before) as process:
        process.wait(30)
        assert process.returncode == -signal.SIGKILL
    assert wait_until(lambda: not marked())
    assert registry.LOCAL.names() == []
    # It does not block a new start.
    assert local.run().state is State.RUNNING


@pytest.mark.parametrize("delay", [0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
def test_a_launcher_killed_at_any_time_leaves_a_whole_job_or_none(local: Local, delay: float) -> None:
    with launcher("sleep", "4504", workers=20) as process:
        time.sleep(delay)
        process.kill()

    def settled() -> bool:
        # In one snapshot, because a start that is not kept may be visible for a moment.
        found, _ = registry.load_all()
        if not found:
            return not marked()
        return len(marked()) == 22 and len(found[0].job.workers) == 20

    assert wait_until(settled)
