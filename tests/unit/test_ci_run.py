"""`.ci/run` fails when the tests do, and when a package would have cured a skip."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci" / "run"


@pytest.mark.parametrize(
    ("last_line", "code", "ends_with"),
    [
        ("skips by cause: none", 0, 0),
        ("skips by cause: no GPU 2", 0, 0),
        ("skips by cause: needs zsh 1", 0, 1),
        ("skips by cause: no GPU 2, needs fish 3", 0, 1),
        ("1 passed", 0, 1),
        ("skips by cause: none", 2, 2),
    ],
)
def test_ci_run(last_line: str, code: int, ends_with: int) -> None:
    make = Path("bin/make")
    make.parent.mkdir()
    make.write_text(
        f'#!/bin/sh\n[ "$1" = test-deps ] && exit 0\necho "3 passed in 1 s"\necho "{last_line}"\nexit {code}\n'
    )
    make.chmod(0o755)
    path = f"{make.parent.absolute()}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", str(CI)], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert run.returncode == ends_with
    assert "3 passed in 1 s\n" in run.stdout
    assert ("error: " in run.stderr) == (ends_with == 1)
