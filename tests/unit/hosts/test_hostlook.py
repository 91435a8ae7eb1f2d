"""A host's report about itself: the script in a real shell, and invalid answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.hosts import ssh
from atlctl.jobs.model import Usage
from atlctl.remote.gpus import QUERY
from atlctl.remote.sending import shell

SMI = "0, GPU-1, NVIDIA H100, 93, 71000, 81559, 655.1, 61, 0\n1, GPU-2, NVIDIA H100, 7, 1000, 81559, 90.5, 35, 0\n"


def run(path: str) -> Usage:
    said = subprocess.run(
        ["sh", "-c", shell("host"), "sh", *QUERY], capture_output=True, check=True, timeout=30, env={"PATH": path}
    )
    return ssh.usage_of(said.stdout)


def test_the_script_tells_of_this_machine(tmp_path: Path) -> None:
    found = run(os.environ["PATH"])
    assert found.cpus == os.cpu_count()
    assert found.load is not None
    assert found.ranks is not None
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<'E'\n{SMI}E\n")
    smi.chmod(0o755)
    found = run(f"{tmp_path}:{os.environ['PATH']}")
    assert [gpu.utilization for gpu in found.gpus or ()] == [93, 7]
    assert (found.utilization, found.memory) == (50, (72000, 163118))


def test_a_driver_that_fails_costs_the_gpus_alone(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    smi.chmod(0o755)
    found = run(f"{tmp_path}:{os.environ['PATH']}")
    assert (found.gpus, found.cpus) == (None, os.cpu_count())


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"", Usage()),
        (b"L 1.5\nC 8\nR 0\n", Usage(1.5, 8, 0)),
        (b"L nan\nC -3\nR 99999999999\n", Usage()),
        (b"L 1e99\nC 8 9\nR\n", Usage()),
        (b"Welcome!\nL 0.5\nC 4\nR 2\nG\nNo devices were found\n", Usage(0.5, 4, 2, ())),
    ],
)
def test_what_cannot_be_understood_is_not_told(said: bytes, found: Usage) -> None:
    assert ssh.usage_of(said) == found


@given(st.binary(max_size=300))
def test_no_answer_crashes_the_client(said: bytes) -> None:
    ssh.usage_of(said)
    ssh.usage_of(b"L 1\nG\n" + said)
