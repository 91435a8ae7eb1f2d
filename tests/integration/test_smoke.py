"""`atlctl smoke` on real jobs: output, exit codes, and no leftovers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.integration.local import Registry, problem, registry
from tests.integration.stopping import Cluster
from tests.support import proc
from tests.support.pace import slowness, within

#: The folder of an interpreter with torch, for the workers' PATH.
BIN = Path(sys.executable).parent
NETWORK = ["roll-call", "facts", "mesh", "throughput"]
QUICK = ["roll-call", "facts", "gpus", "mesh", "storage", "device", "collectives", "ddp"]


@pytest.fixture(scope="module")
def own() -> Iterator[Registry]:
    with registry() as made:
        yield made


@pytest.fixture(scope="module")
def jobs(own: Registry) -> Registry:
    """four: idle workers. one: a single worker. half: one of two has ended. bare: one of two has no Python."""
    path = ("--env", f"PATH={BIN}:{os.environ['PATH']}")
    own.start("four", 4, options=path)
    own.start("one", 1, options=path)
    own.start("half", 2, "sh", "-c", 'test "$RANK" = 0 && exec sleep 1000; exit 3')
    own.start("over", 2, "true")
    tools = own.home / "tools"
    tools.mkdir()
    for name in ("sh", "sleep", "readlink", "tr", "head"):
        (tools / name).symlink_to(str(shutil.which(name)))
    assert proc.wait_until(lambda: own.states("half") == ["Running", "Failed"])
    own.until("over", "Succeeded")
    return own


def document(jobs: Registry, *words: str, code: int = 0, **options: Any) -> Any:
    run = jobs.cli("smoke", *words, "-o", "json", **options)
    assert run.code == code, run
    return json.loads(run.stdout)["data"]


def verdicts(data: Any) -> dict[str, str]:
    return {check["check"]: check["verdict"] for check in data["checks"]}


def idle(server: Server, pod: str) -> bool:
    return len(server.processes(pod)) <= 2


def nothing_left(jobs: Registry, patience: float = 5.0) -> bool:
    """Whether no boot script and no agent process is left."""

    def gone() -> bool:
        return not jobs.running("atlctl-smoke") and not jobs.running("atlctl.remote.smoke.main")

    return proc.wait_until(gone, patience) or proc.wait_until(gone, patience * slowness())


def test_the_network_of_four_workers(jobs: Registry) -> None:
    data = document(jobs, "four", "--net-only")
    assert list(verdicts(data)) == NETWORK
    assert (data["verdict"], data["findings"], data["may_still_run"]) == ("pass", [], [])
    assert verdicts(data)["mesh"] == "pass"
    assert [one["worker"] for one in data["workers"]] == [f"worker-{index}" for index in range(4)]
    assert all(one["answered"] for one in data["workers"])
    assert within(data["timings"]["total"], 20)
    assert len(data["figures"]["mesh"]["matrix_rtt_ms"]) == 4
    assert nothing_left(jobs)


def test_for_people(jobs: Registry) -> None:
    run = jobs.cli("smoke", "four", "--net-only")
    lines = run.stdout.decode().splitlines()
    assert lines[0].startswith("PASS: no fault was found")
    assert lines[2].split() == ["VERDICT", "CHECK", "SECONDS", "NOTE"]
    assert [line.split()[-1] for line in lines[3:4]] == ["answer"]
    assert run.stderr == b""
    screen = jobs.cli("smoke", "four", "--net-only", tty=True, columns=40, env={"LC_ALL": "zh_CN.UTF-8"})
    assert "通过：没有发现问题".encode() in screen.stdout


@pytest.mark.torch
def test_the_quick_tier_of_three_workers(jobs: Registry) -> None:
    data = document(jobs, "four", "-w", "0-2", timeout=150)
    assert list(verdicts(data)) == QUICK
    assert [one for one in data["findings"] if one["severity"] != "not_judged"] == []
    told = verdicts(data)
    assert {told[name] for name in ("roll-call", "mesh", "device", "collectives", "ddp")} == {"pass"}
    assert told["gpus"] == "not_judged"
    assert nothing_left(jobs)


@pytest.mark.torch
def test_one_worker_says_what_cannot_be_judged(jobs: Registry) -> None:
    data = document(jobs, "one", timeout=100)
    told = verdicts(data)
    assert (told["roll-call"], told["mesh"], told["device"]) == ("pass", "not_judged", "pass")
    assert data["verdict"] == "pass"
    assert jobs.cli("smoke", "one", "--net-only", "--strict").code == 1


def test_a_worker_that_has_ended_is_a_fault_and_the_rest_is_tested(jobs: Registry) -> None:
    data = document(jobs, "half", "--net-only", code=1)
    (finding,) = [one for one in data["findings"] if one["severity"] == "fail"]
    assert finding["check"] == "roll-call"
    assert (finding["culprit"]["kind"], finding["culprit"]["worker"]) == ("worker", "worker-1")
    assert finding["evidence"] == "it is not running (Failed: exit 3)"
    assert verdicts(data)["mesh"] == "incomplete"
    # It was not selected, so it is not a fault.
    assert document(jobs, "half", "--net-only", "-w", "0")["findings"] == []


def test_no_living_worker_is_one_clear_error(jobs: Registry) -> None:
    run = jobs.cli("smoke", "over")
    assert run.code == 255
    assert problem(run.stderr)[0] == "no running worker to test: worker-[0-1] (Succeeded)"
    assert run.stdout == b""
    run = jobs.cli("smoke", "over", "-o", "json")
    assert json.loads(run.stdout)["errors"][0]["exit_code"] == 255


def test_a_worker_without_python_and_one_that_is_silent(own: Registry, jobs: Registry) -> None:
    """Their PATH causes it: one has no Python, the other one a Python that prints nothing."""
    silent = own.home / "silent"
    shutil.copytree(own.home / "tools", silent, symlinks=True)
    (silent / "python3").write_text("#!/bin/sh\nexec sleep 4003\n")
    (silent / "python3").chmod(0o755)
    own.start("mute", 1, options=("--env", f"PATH={silent}"))
    run = own.cli("smoke", "mute", "--net-only")
    assert run.code == 124
    message, hint = problem(run.stderr)
    assert "worker-0: no answer within " in message
    assert message.endswith("a shell answers there, and no Python that it starts does")
    assert hint
    assert proc.wait_until(lambda: not own.running("sleep 4003"))


def test_print_torchrun(jobs: Registry) -> None:
    run = jobs.cli("smoke", "four", "--print-torchrun")
    lines = run.stdout.decode().splitlines()
    assert len(lines) == 4
    assert lines[3].startswith("worker-3: torchrun --nnodes=4 --node-rank=3 --nproc-per-node=")
    assert b"note: worker-[0-3]: " in run.stderr
    assert run.code == 0
    one = jobs.cli("smoke", "four", "-w", "1", "--print-torchrun", "-q")
    assert one.stdout.startswith(b"torchrun --nnodes=4 --node-rank=1 ")
    assert one.stderr == b""
    data = document(jobs, "four", "--print-torchrun")
    assert [worker["worker"] for worker in data["workers"]] == [f"worker-{index}" for index in range(4)]


NASTY = "a\x1b[2J\x1b]0;t\x07\x9b31m\rover\x7f\u202egnp\u2028\u200b中"
_BAD = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200b\u202e\u2028]|\x1b(?!\\[[0-9;]*[mK])")


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_what_a_worker_says_is_harmless(own: Registry, jobs: Registry, tty: bool) -> None:
    """A Python that prints a lot, and an invalid environment."""
    name = f"evil-{int(tty)}"
    tools = own.home / name
    shutil.copytree(own.home / "tools", tools, symlinks=True)
    (tools / "python3").write_text(f"#!/bin/sh\nprintf '%s' '{NASTY}'\nprintf '%s\\n' '{NASTY}' >&2\nexit 1\n")
    (tools / "python3").chmod(0o755)
    own.start(name, 1, options=("--env", f"PATH={tools}"))
    own.start(f"{name}-env", 1, options=("--env", f"PET_NNODES={NASTY}"))
    for run in (own.cli("smoke", name, tty=tty), own.cli("smoke", f"{name}-env", "--print-torchrun", tty=tty)):
        text = (run.stdout + run.stderr).decode().replace("\r\n", "\n").replace("\r\x1b[K", "")
        assert _BAD.search(text) is None, text
        assert "a^[[2J" in text


BAD_USE = {
    "--gpus worker-1": 2,
    "--gpus :0": 2,
    "--gpus worker-9:0": 3,
    "--gpus 0:x": 2,
    "--mount data": 2,
    "--net-only --mount /data": 2,
    "--net-only --gpus 0:0": 2,
    "--net-only --items mesh": 2,
    "--items meshes": 2,
    "--items ,": 2,
    "--budget 0": 2,
    "--no-gpu --allow-busy": 2,
    "--tier fast": 2,
    "--timeout 0": 2,
    "--patience 0": 2,
    "--patience nan": 2,
    "-w 9": 3,
}


@pytest.mark.parametrize(("words", "code"), BAD_USE.items(), ids=BAD_USE)
def test_bad_use_is_told_before_anything_is_started(jobs: Registry, words: str, code: int) -> None:
    run = jobs.cli("smoke", "four", *words.split())
    assert (run.code, run.stdout) == (code, b"")
    assert problem(run.stderr)[0]


def test_items_alone_lists_the_checks_and_asks_no_worker(jobs: Registry) -> None:
    for words in (["--items"], ["four", "--items"], ["--items", "-j", "four"]):
        run = jobs.cli("smoke", *words)
        assert run.code == 0, run.stderr
        head, *rows = run.stdout.decode().splitlines()
        assert head.split()[:3] == ["CHECK", "TIER", "SECONDS"]
        assert {row.split()[0]: row.split()[1] for row in rows}.items() >= {"gpus": "quick", "pairs": "deep"}.items()
    listed = json.loads(jobs.cli("smoke", "-o", "json", "--items").stdout)["data"]["checks"]
    assert len(listed) == len(rows)
    assert set(listed[0]) == {"check", "tier", "seconds", "purpose"}


def test_only_the_items_within_the_budget_are_tested(jobs: Registry) -> None:
    run = jobs.cli("smoke", "four", "--items", "mesh,pairs", "--budget", "1.4", "--timeout", "60", "-o", "json")
    assert run.code == 0, run.stderr
    data = json.loads(run.stdout)["data"]
    assert verdicts(data)["pairs"] == "skipped", data["checks"]
    assert list(verdicts(data)) == ["roll-call", "mesh", "pairs"]
    assert "of the budget" in data["checks"][-1]["note"]
    assert nothing_left(jobs)


def test_a_time_that_does_not_suffice_is_incomplete_and_no_fault(jobs: Registry) -> None:
    run = jobs.cli("smoke", "four", "--tier", "deep", "--timeout", "1.6", "-o", "json")
    # On a busy machine, not even the agents have started by then.
    if run.code != 124:
        data = json.loads(run.stdout)["data"]
        assert verdicts(data)["stragglers"] == verdicts(data)["pairs"] == data["verdict"] == "incomplete"
        assert "no time left" in {check["note"] for check in data["checks"]}
        assert [one for one in data["findings"] if one["severity"] == "fail"] == []
        assert run.code == 5
    assert nothing_left(jobs)


#: A long test of two workers, and its number of processes at certain stages: all checks without ranks are done before
#: the first rank.
DEEP = ("smoke", "four", "-w", "0-1", "--tier", "deep", "--timeout", "100")
UNDER_WAY = {4: "agents", 7: "ranks"}


def runs(jobs: Registry, processes: int) -> bool:
    """Whether the test reaches this stage. Importing torch from a cold disk has taken a minute."""
    reached = proc.wait_until(lambda: len(jobs.running("atlctl.remote.smoke.main")) >= processes)
    time.sleep(0.3)
    return reached


@pytest.mark.torch
@pytest.mark.parametrize("processes", [0, *UNDER_WAY], ids=["at the start", *UNDER_WAY.values()])
def test_ctrl_c_tells_what_was_found_and_leaves_nothing(jobs: Registry, processes: int) -> None:
    pipe = subprocess.PIPE
    with jobs.popen(*DEEP, stdout=pipe, stderr=pipe) as client:
        assert runs(jobs, processes)
        client.send_signal(signal.SIGINT)
        begun = time.monotonic()
        stdout, stderr = client.communicate(timeout=100)
        assert within(time.monotonic() - begun, 20)
    # Before the command has started, the signal itself ends it; before Python has, it is a failed start.
    if processes or b"Fatal Python error: init_" not in stderr:
        assert client.returncode in ((130,) if processes else (130, -signal.SIGINT))
    if processes:
        assert b"interrupted; ending the agents on worker-[0-1]" in stderr
    if UNDER_WAY.get(processes) == "ranks":
        assert b"roll-call" in stdout
    assert nothing_left(jobs)
    assert not list(jobs.home.rglob("*smoke*"))


@pytest.mark.torch
@pytest.mark.parametrize("processes", UNDER_WAY, ids=UNDER_WAY.values())
def test_a_killed_client_leaves_nothing(jobs: Registry, processes: int) -> None:
    client = jobs.popen(*DEEP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert runs(jobs, processes)
    client.kill()
    client.wait()
    assert nothing_left(jobs, 8)
    assert set(jobs.states("four")) == {"Running"}
    assert not list(jobs.home.rglob("*smoke*"))


def test_held_workers_are_tested(own: Registry) -> None:
    failed = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    own.start("held", 2, "sh", "-c", f"echo '{failed}'; sleep 1000")
    assert proc.wait_until(lambda: set(own.states("held")) == {"Held"})
    data = document(own, "held", "--net-only")
    assert verdicts(data)["roll-call"] == "pass"
    assert {one["state"] for one in data["workers"]} == {"Held"}


def test_start_up_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['atlctl', 'smoke', '--help']\n"
        "from atlctl.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'asyncio', 'torch', 'kubernetes', 'aiohttp', 'rich', 'atlctl.smoke.run'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    assert run.returncode == 0, run.stderr


@pytest.mark.torch
def test_on_a_cluster() -> None:
    # The pods see all processes of this machine. These variables separate them from ranks of other tests, which have no
    # HOSTNAME and would be included.
    marks = {"ATLCTL_STATE_DIR": "/none", "ATLCTL_JOB": "train", "ATLCTL_WORKER": "all"}
    env = {"PATH": f"{BIN}:{os.environ['PATH']}", **marks}
    with Server() as server:
        cluster = Cluster(server)
        container = {
            "command": ["sh", "-c", "sleep 4000"],
            "env": [{"name": name, "value": value} for name, value in env.items()],
        }
        cluster.pytorchjob("train", workers=2, run=True, container=container)
        for index in range(2):
            server.wait_phase(f"train-worker-{index}", "Running")
        run = cluster.cli("smoke", "train", "-o", "json", timeout=150)
        assert run.code == 0, run
        data = json.loads(run.stdout)["data"]
        assert list(verdicts(data)) == QUICK
        assert verdicts(data)["ddp"] == "pass"
        for index in range(2):
            # The shell and its sleep.
            assert proc.wait_until(partial(idle, server, f"train-worker-{index}")), index
        server.kill("train-worker-1")
        run = cluster.cli("smoke", "train", "--net-only", "-o", "json")
        assert run.code == 1
        found = [one for one in json.loads(run.stdout)["data"]["findings"] if one["severity"] == "fail"]
        assert [(one["check"], one["culprit"]["worker"]) for one in found] == [("roll-call", "worker-1")]
