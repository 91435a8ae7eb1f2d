"""What starting costs in CPU time, beside `kubectl version --client` and `clush --version` in the same run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.benchmarks.measure import cost
from tests.support.needs import find_program, needs

ATLCTL = str(Path(sys.executable).parent / "atlctl")
PYTHON = [sys.executable, "-c", "pass"]
STARTS = {
    "--version": [ATLCTL, "--version"],
    "completion": [ATLCTL, "--complete", "bash", "3", "atlctl", "ps", "-j", ""],
    "--help": [ATLCTL, "--help"],
    "jobs": [ATLCTL, "jobs", "-o", "name", "--backend", "local"],
}


def cpu(argv: list[str]) -> float:
    """Seconds of CPU: the best of fifteen, since whatever else the machine does only adds."""
    with open(os.devnull, "wb") as nowhere:
        return min(cost(argv, stdout=nowhere, stderr=nowhere).cpu for _ in range(15))


@needs("clush")
def test_a_start_beside_kubectl_and_clush(capsys: pytest.CaptureFixture[str]) -> None:
    clush = cpu(["clush", "--version"])
    bare = cpu(PYTHON)
    found = {name: cpu(argv) for name, argv in STARTS.items()}
    peers = {"python -c pass": bare, "clush --version": clush}
    if find_program("kubectl") is not None:
        peers["kubectl version --client"] = cpu(["kubectl", "version", "--client"])
    with capsys.disabled():
        print()
        for name, seconds in [*peers.items(), *((f"atlctl {name}", seconds) for name, seconds in found.items())]:
            print(f"  {name:<26} {1000 * seconds:6.0f} ms  {seconds / clush:5.2f} x clush")
    assert found["--version"] <= 0.5 * clush
    assert found["completion"] <= 0.6 * clush
    assert found["--help"] <= 1.2 * clush
