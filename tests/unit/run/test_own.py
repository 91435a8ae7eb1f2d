"""Commands that a wrapper starts on its own job, and work that may never end."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

import pytest

from atlctl.remote import kmsg
from atlctl.run import own
from atlctl.run.own import CheckFault, OwnCommands, apart


async def _smoke(monkeypatch: pytest.MonkeyPatch, printed: str) -> list[CheckFault] | None:
    program = (sys.executable, "-c", f"print({printed!r})")
    monkeypatch.setattr(own, "_PROGRAM", program)
    return await OwnCommands("train-7", {}).smoke("mesh", None, 60.0)


def _finding(severity: str, check: str, kind: str | None = None, worker: str | None = None) -> dict[str, object]:
    culprit = None if kind is None else {"kind": kind, "worker": worker}
    return {"severity": severity, "check": check, "culprit": culprit, "evidence": "odd"}


def test_smoke_findings_have_the_names_of_block(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [
        _finding("fail", "gpus", "worker", "worker-1"),
        _finding("fail", "gpus", "gpu", "worker-2"),
        _finding("warn", "throughput", "link"),
        _finding("incomplete", "roll-call", "worker", "worker-3"),
        _finding("not_judged", "device"),
    ]
    printed = json.dumps({"data": {"findings": findings}})
    assert asyncio.run(_smoke(monkeypatch, printed)) == [
        CheckFault(True, "gpu", "worker-1: odd"),
        CheckFault(True, "gpus", "worker-2: odd"),
        CheckFault(False, "network", "odd"),
        CheckFault(False, "missing", "worker-3: odd"),
    ]


@pytest.mark.parametrize("printed", ["", "no JSON", "[]", '{"data": null}', '{"data": {}}', "[" * 100_000])
def test_smoke_without_a_result(monkeypatch: pytest.MonkeyPatch, printed: str) -> None:
    assert asyncio.run(_smoke(monkeypatch, printed)) is None


def test_smoke_of_a_clean_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(_smoke(monkeypatch, '{"data": {"findings": []}}')) == []


def test_output_of_a_command_that_hangs_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(own, "_PROGRAM", program)
    assert asyncio.run(OwnCommands("train-7", {}).output(["errors"], 0.2)) is None


def test_output_gets_no_job_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (sys.executable, "-c", "import os; print(sorted(k for k in os.environ if k.startswith('ATLCTL')))")
    monkeypatch.setattr(own, "_PROGRAM", program)
    environ = {"ATLCTL_JOB": "other", "ATLCTL_WORKER": "w", "ATLCTL_STATE_DIR": "/x"}
    assert asyncio.run(OwnCommands("train-7", environ).output(["errors"], 60.0)) == "['ATLCTL_STATE_DIR']\n"


def test_apart_gives_results_and_errors() -> None:
    async def both() -> int:
        with pytest.raises(OSError, match="full"):
            await apart(lambda: (_ for _ in ()).throw(OSError("full")), 60.0)
        return await apart(lambda: 5, 60.0)

    assert asyncio.run(both()) == 5


def test_apart_does_not_wait_for_what_hangs() -> None:
    ever = threading.Event()

    async def hang() -> None:
        with pytest.raises(TimeoutError):
            await apart(ever.wait, 0.1)

    asyncio.run(hang())
    ever.set()


def test_kernel_lines_are_those_that_explain_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = [
        (1.0, "Out of memory: Killed process 7 (python)"),
        (3.0, "NVRM: Xid (PCI:0000:3B:00): 79, pid=7, GPU has fallen off the bus."),
        (4.0, "NVRM: Xid (PCI:0000:5b:00): 79, pid=7, GPU has fallen off the bus."),
        (5.0, "br0: port 4(p3) entered disabled state"),
        (6.0, "Memory cgroup out of memory: Killed process 1234 (python) total-vm:1kB"),
        (7.0, "mlx5_core 0000:1a:00.0 eth2: Link down"),
        (8.0, "eth0: renamed"),
    ]
    monkeypatch.setattr(kmsg, "messages", lambda: log)
    (tmp_path / "0000:3b:00.0").mkdir()
    monkeypatch.setattr(own, "_OWN_GPUS", str(tmp_path))
    assert own.kernel_lines(None) == ([], 8.0)
    kept = [log[place][1] for place in (1, 4, 5)]
    assert own.kernel_lines(2.0) == ([f"kernel: {text}\n".encode() for text in kept], 8.0)
    assert own.kernel_lines(8.0) == ([], 8.0)
    monkeypatch.setattr(own, "_OWN_GPUS", str(tmp_path / "none"))
    assert len(own.kernel_lines(2.0)[0]) == 4
