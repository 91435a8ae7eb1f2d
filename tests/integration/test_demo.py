"""`atlctl demo` finds the injected fault, runs a mended script again, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.cli.commands.demo import START_SECONDS
from tests.integration.local import Registry, problem, registry
from tests.support import proc
from tests.support.pace import within

#: Importing torch in eight processes is slow on a small machine.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def no_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a fresh installation: PyTorch does not install numpy. It is missing for atlctl and all its processes."""
    tmp_path.joinpath("numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert subprocess.run([sys.executable, "-P", "-c", "import numpy"], capture_output=True).returncode == 1


@pytest.fixture(autouse=True)
def busy_port() -> Iterator[None]:
    """Jobs of different registries do not know each other: if the usual port is in use, each looks for another one."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("", 29500)))
        yield


def assert_nothing_is_left(own: Registry) -> None:
    assert proc.wait_until(lambda: not own.running()), own.running()
    assert own.data("jobs") == {"jobs": []}
    assert list(own.state.joinpath("local").iterdir()) == [own.state / "local/.lock"]
    assert list(own.home.joinpath("tmp").iterdir()) == []


def test_it_finds_what_it_injected_and_leaves_nothing_or_a_job_to_play_with() -> None:
    """Two at the same time, one of them with --keep; `make soak` runs dozens."""
    with registry() as plain, registry() as kept:
        first = plain.popen("demo", stdout=-1, stderr=-1, stdin=subprocess.DEVNULL)
        second = kept.popen("demo", "--keep", stdout=-1, stderr=-1, stdin=subprocess.DEVNULL)
        first_scene = ("local", "ps", "exec", "logs", "ps", "errors", "stop")
        shown = right(first, *first_scene, "local", "ps", "errors", "rerun", "logs")
        assert "Held (exit 1; 10 min left)" in shown
        assert "'Tensor' object has no attribute 'backwards'" in shown
        assert shown.count("done: rank=") == 2
        assert_nothing_is_left(plain)
        shown = right(second, "local", "ps", "exec", "logs", "ps", "errors")
        assert_it_can_be_played_with(kept, shown)
        assert_nothing_is_left(kept)


def right(run: subprocess.Popen[bytes], *commands: str) -> str:
    """The output of a demo that has shown these commands and found the fault."""
    with run:
        stdout, stderr = run.communicate(timeout=800)
    shown = stdout.decode()
    assert run.returncode == 0, shown + stderr.decode()
    told = re.search(r"one rank is damaged \(rank (\d), on (worker-\d)\)", shown)
    found = re.search(r"Right: rank (\d) on (worker-\d) was damaged, and rank \1 on \2 was found\.", shown)
    assert told is not None
    assert found is not None
    assert told.groups() == found.groups()
    assert tuple(line.split()[2] for line in shown.splitlines() if line.startswith("$ atlctl ")) == commands
    assert shown.count("Held") >= 3
    assert re.search(rf"root cause: rank {told[1]} \(local rank \d\) on {told[2]}, certain", shown)
    return shown


def assert_it_can_be_played_with(own: Registry, shown: str) -> None:
    (name,) = own.cli("jobs", "-o", "name").stdout.decode().split()
    assert own.states(name) == ["Held", "Held"]
    assert own.exec(name, "--failed", "--no-prefix", "echo", "hi").stdout == b"hi\nhi\n"
    assert own.cli("errors", name, "--exit-code").code == 1
    found = own.data("errors", name)
    (cause,) = found["root_causes"]
    assert (found["verdict"], cause["exit_code"], cause["exception"], cause["confidence"]) == (
        "rank", 1, "ValueError", "certain",
    )  # fmt: skip
    assert cause["rank"] == 2 * int(cause["worker"][-1]) + cause["local_rank"]
    assert cause["message"].startswith("ValueError: ")
    assert sum(group["count"] for group in found["cascade"]) == 3
    assert f"atlctl stop {name} && atlctl local rm {name}" in shown
    assert own.cli("stop", name, "--yes").code == 0
    assert own.cli("local", "rm", name, "--yes").code == 0


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("Starting takes", signal.SIGINT),
        ("Starting takes", signal.SIGTERM),
        ("All ranks train", signal.SIGINT),
        ("Mend the script", signal.SIGTERM),
    ],
)
def test_interrupted_it_leaves_nothing(moment: str, number: signal.Signals) -> None:
    with registry() as own, own.popen("demo", stdout=-1, stderr=-1) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if moment.encode() in line:
                break
        run.send_signal(number)
        _, stderr = run.communicate(timeout=100)
        assert run.returncode == 128 + number
        assert b"Traceback" not in stderr
        assert_nothing_is_left(own)


def test_a_job_that_cannot_start_is_explained_and_kept_at_once() -> None:
    """Every rank fails before training, because gloo gets an interface that does not exist."""
    with registry() as own:
        begun = time.monotonic()
        run = own.cli("demo", env={"GLOO_SOCKET_IFNAME": "none0"}, timeout=800)
        assert within(time.monotonic() - begun, START_SECONDS / 2)
        (name,) = own.cli("jobs", "-o", "name").stdout.decode().split()
        own.until(name, "Held")
        message, hint = problem(run.stderr)
        assert re.fullmatch(r"the training did not start: worker-\d is Held \(.+\)", message)
        shown = run.stdout.decode()
        assert (run.code, hint) == (1, f"atlctl logs {name}")
        assert f"$ atlctl errors {name}\njob {name}: Held" in shown
        assert "Wrong network interface" in shown
        # The suggested commands work: the one in the error, and the two for cleaning up.
        assert b"none0" in own.cli(*hint.split()[1:]).stdout
        tidy = re.search(r"The job stays as it is\. .*: atlctl (.+) && atlctl (.+)", shown)
        assert tidy is not None
        for words in tidy.groups():
            assert own.cli(*words.split(), "--yes").code == 0
        assert_nothing_is_left(own)


def test_a_job_that_was_not_made_is_not_tidied_up() -> None:
    with registry() as own:
        run = own.cli("demo", env={"PATH": "/nonexistent"})
        assert run.stderr.decode().splitlines() == [
            "error: the workers could not be started: bash: command not found",
            "hint: each worker runs in its own folder: use a program in PATH or an absolute path",
            "error: 'atlctl local' exited with 127",
        ]
        assert_nothing_is_left(own)


def test_without_torch_one_clear_line() -> None:
    shim = (
        "import importlib.util as util, sys; real = util.find_spec; "
        "util.find_spec = lambda name, *rest: None if name == 'torch' else real(name, *rest); "
        "from atlctl.cli.app import run; sys.exit(run(['demo']))"
    )
    run = subprocess.run([sys.executable, "-c", shim], capture_output=True, timeout=30)
    assert (run.stdout, run.returncode) == (b"", 1)
    message, hint = problem(run.stderr)
    assert message == "the demo trains with PyTorch, which is not installed beside atlctl"
    assert hint.endswith("-m pip install torch")
