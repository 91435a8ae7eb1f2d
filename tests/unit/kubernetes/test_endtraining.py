"""The script that ends the training in a pod: with real processes, each time in a new PID namespace."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from atlctl.backends.base import Event, ExecRequest, Exited, FailedToStart, Lost, Output, Started, StopResult
from atlctl.backends.kubernetes import stopping
from atlctl.jobs.model import State, Worker
from atlctl.remote.sending import shell
from tests.support.needs import needs

UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
UNSHARE += ["--pid", "--fork", "--kill-child", "--mount-proc"]


def can_unshare() -> bool:
    """Whether PID namespaces are available here."""
    return shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_unshare(), reason="no PID namespace of its own can be had here")

#: Handles SIGTERM in different ways: `well` ends, `never` ignores it, `child` leaves a process that ignores it.
TRAINER = """
import os, signal, sys, time
how = sys.argv[1] if len(sys.argv) > 1 else "well"
if how == "child" and os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif how == "never":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"saved\\n"), os._exit(0)))
open(f"up-{os.getpid()}", "w").close()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "torchrun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "script").write_text(shell("stop"))
    return tmp_path


def run(folder: Path, setup: str, wait_for: int, *, sh: str = "dash", grace: int = 20) -> list[str]:
    """The output of the script in a namespace after `setup`, and then the command line of each remaining process.
    `wait_for`: number of trainers to wait for. PID 1 is a shell."""
    # A shell that has not started its `sleep` yet looks like one that works.
    asleep = "until cat /proc/[0-9]*/comm 2>/dev/null | grep -qx sleep; do sleep 0.02; done"
    rest = f"""cd {folder}
P={sys.executable}
{setup}
{asleep if re.search("sleep ([0-9]{2,}|infinity|1d)", setup) else ""}
i=0; while [ $(ls up-* 2>/dev/null | wc -l) -lt {wait_for} ] && [ $i -lt 200 ]; do sleep 0.05; i=$((i+1)); done
{sh} -c "$(cat script)" sh {grace}
for d in /proc/[0-9]*; do [ $d = /proc/$$ ] || tr '\\0' ' ' < $d/cmdline | grep . ; done 2>/dev/null
exit 0
"""
    argv = [*UNSHARE, "/bin/sh", "-c", rest]
    done = subprocess.run(argv, capture_output=True, timeout=30, check=False)
    assert done.stderr == b"", done.stderr
    return done.stdout.decode().splitlines()


SHELLS = ["dash", "bash", pytest.param("busybox sh", marks=needs("busybox"))]


@pytest.mark.parametrize("sh", SHELLS)
def test_the_training_ends_and_nothing_else(folder: Path, sh: str) -> None:
    setup = "export TORCHELASTIC_RUN_ID=1; $P train.py & $P train.py & unset TORCHELASTIC_RUN_ID;"
    setup += "$P -c 'import time; time.sleep(99)' & sleep 99 &"
    said, *left = run(folder, setup, 2, sh=sh)
    assert said == "saved"
    assert left[:2] == ["saved", "atlctl: ended 2 "]
    assert sorted(words.split()[1] for words in left[2:]) == ["-c", "99"]


def test_a_launcher_is_told_and_passes_it_on_and_its_tree_counts(folder: Path) -> None:
    launcher = folder / "torchrun"
    launcher.write_text(
        "import signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, 'train.py'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: (child.terminate(), sys.exit(1)))\n"
        "child.wait()\n"
    )
    said = run(folder, f"$P {launcher} train.py & sleep 99 &", 1)
    assert said == ["saved", "atlctl: ended 2 ", "sleep 99 "]


def test_who_ignores_sigterm_is_killed_after_the_grace_period(folder: Path) -> None:
    said = run(folder, "TORCHELASTIC_RUN_ID=1 $P train.py never &", 1, grace=5)
    assert said == ["atlctl: ended 1 killed"]


def test_a_child_that_is_left_over_gets_its_own_sigterm_and_then_sigkill(folder: Path) -> None:
    said = run(folder, "TORCHELASTIC_RUN_ID=1 $P train.py child &", 2, grace=5)
    assert said == ["saved", "atlctl: ended 2 killed"]


def test_any_python_is_the_training_where_no_launcher_is_but_not_what_serves_people(folder: Path) -> None:
    setup = "$P train.py & $P train.py jupyter & $P train.py /x/atlctl stop & ATLCTL_EXEC=1 $P train.py &"
    said = run(folder, setup, 4)
    assert said[:2] == ["saved", "atlctl: ended 1 "]
    assert sorted(words.split()[2] if len(words.split()) > 2 else "" for words in said[2:]) == [
        "",
        "/x/atlctl",
        "jupyter",
    ]


def test_a_shell_that_names_torchrun_is_no_launcher(folder: Path) -> None:
    said = run(folder, "sh -c 'true torchrun; sleep 9999; true' &", 0)
    assert said[0] == "atlctl: idle"
    assert len(said) == 3


@pytest.mark.parametrize("sh", SHELLS)
@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("sleep 9999 &", "idle"),
        ("sleep infinity &", "idle"),
        ("sleep 1d &", "idle"),
        ("tail -f /dev/null &", "idle"),
        ("$P train.py jupyter & sleep 9999 &", "idle"),
        ("while :; do sleep 3; done & sleep 0.2", "none sh sleep"),
        ("sleep 30 &", "none sh sleep"),
        ("true", "none sh"),
        ("cp $(command -v sleep) ./trainer; ./trainer 99 & sleep 9999 &", "none sh trainer"),
        ("ATLCTL_EXEC=1 dash -c 'sleep 9999; true' & sleep 9999 &", "idle"),
    ],
)
def test_where_no_training_is_found_what_the_first_process_does_decides(
    folder: Path, sh: str, setup: str, said: str
) -> None:
    """PID 1 is a shell, like a launch script: it may be the training unless it only keeps the container alive."""
    assert run(folder, setup, 0, sh=sh)[0] == f"atlctl: {said}"


@pytest.mark.parametrize("pause", ["", "sleep 0.3;"], ids=["at once", "after a pause"])
def test_training_that_a_loop_starts_again_is_not_told_as_ended(folder: Path, pause: str) -> None:
    said = run(folder, f"(while :; do TORCHELASTIC_RUN_ID=1 $P train.py; {pause} done) 2>/dev/null &", 1, grace=5)
    assert "atlctl: again" in said
    assert not any(line.startswith("atlctl: ended") for line in said)


@pytest.mark.parametrize("init", [False, True], ids=["trainer", "init"])
def test_training_that_is_the_first_process_is_left_alone(folder: Path, init: bool) -> None:
    """The namespace's first process is the trainer, or an init that waits for it; the script runs below it."""
    script = folder / "script"
    (folder / "first.py").write_text(
        "import subprocess\n"
        f"words = ['dash', '-c', open('{script}').read(), 'sh', '20']\n"
        "print(subprocess.run(words, capture_output=True, text=True).stdout, end='')\n"
    )
    shutil.copy("/bin/sh", folder / "tini")
    trainer = [sys.executable, str(folder / "first.py")]
    argv = [str(folder / "tini"), "-c", f"{' '.join(trainer)}; true"] if init else trainer
    done = subprocess.run([*UNSHARE, *argv], capture_output=True, timeout=30, check=False)
    assert done.stdout == b"atlctl: first\n"


@pytest.mark.parametrize(
    ("said", "result"),
    [
        (b"atlctl: ended 3 \n", StopResult("w", "terminated", 3)),
        (b"noise\natlctl: ended 3 killed\n", StopResult("w", "killed", 3)),
        (b"atlctl: idle\n", StopResult("w", "already-ended")),
        (b"atlctl: ended 99999999999 \n", StopResult("w", "terminated")),
        (b"atlctl: ended \xff\n", StopResult("w", "terminated")),
        (b"atlctl: failed no tr\n", StopResult("w", "not-stopped", reason="no tr")),
        (b"atlctl: end", None),
        (b"", None),
    ],
)
def test_the_last_word_counts(said: bytes, result: StopResult | None) -> None:
    assert stopping.read_end("w", said) == result


def test_what_may_be_the_training_is_named_and_not_told_as_ended() -> None:
    result = stopping.read_end("w", b"atlctl: none sh sleep a.out sleep\n")
    assert result is not None
    assert result.how == "not-stopped"
    assert "the first process (sh)" in result.reason
    assert result.reason.endswith("; running below it: sleep, a.out")
    again = stopping.read_end("w", b"atlctl: again\n")
    assert again is not None
    assert (again.how, "starts the training again" in again.reason) == ("not-stopped", True)


def test_what_is_left_is_named() -> None:
    result = stopping.read_end("w", b"atlctl: left 7 8\n")
    assert result is not None
    assert (result.how, result.processes) == ("not-stopped", 2)
    assert result.reason.endswith(": 7 8")


class Execution:
    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            yield event

    async def aclose(self) -> None:
        return None


class Executor:
    def __init__(self, events: dict[str, Sequence[Event]]) -> None:
        self.events = events

    def run(self, worker: Worker, request: ExecRequest) -> Execution:
        assert request.argv.words[-2] == "15"
        return Execution(self.events[worker.name])

    async def aclose(self) -> None:
        return None


def test_every_worker_has_a_result_whatever_became_of_its_exec() -> None:
    begun = Started(guarded=True)
    events: dict[str, Sequence[Event]] = {
        "ended": (begun, Output("stdout", b"atlctl: en"), Output("stdout", b"ded 2 \n"), Exited(exit_code=0)),
        "lost": (begun, Lost("the connection broke")),
        "no-sh": (FailedToStart(127, "no sh in the image"),),
        "code": (begun, Exited(exit_code=3)),
        "signal": (begun, Exited(signal=9)),
    }
    workers = [Worker(name, index, State.RUNNING) for index, name in enumerate(events)]
    results = asyncio.run(stopping.end_training(Executor(events), workers, 1.5))  # type: ignore[arg-type]
    assert [(result.how, result.reason) for result in results] == [
        ("terminated", ""),
        ("not-stopped", "the connection broke"),
        ("not-stopped", "no sh in the image"),
        ("not-stopped", "the script ended with exit code 3"),
        ("not-stopped", "the script was ended by signal 9"),
    ]
