"""`.ci/run` fails if the tests fail, if a package would have prevented a skip, or if the installed package fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci" / "run"


@pytest.mark.parametrize(
    ("last_line", "code", "installed", "ends_with"),
    [
        ("skips by cause: none", 0, 0, 0),
        ("skips by cause: no GPU 2", 0, 0, 0),
        ("skips by cause: needs zsh 1", 0, 0, 1),
        ("skips by cause: no GPU 2, needs fish 3", 0, 0, 1),
        ("1 passed", 0, 0, 1),
        ("skips by cause: none", 2, 0, 2),
        ("skips by cause: none", 0, 3, 3),
    ],
)
def test_ci_run(last_line: str, code: int, installed: int, ends_with: int) -> None:
    make = Path("bin/make")
    make.parent.mkdir()
    make.write_text(
        f"""#!/bin/sh
case $1 in
  test-deps) exit 0 ;;
  test-install) exit {installed} ;;
esac
echo "3 passed in 1 s"
echo "{last_line}"
exit {code}
"""
    )
    make.chmod(0o755)
    path = f"{make.parent.absolute()}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", str(CI)], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert run.returncode == ends_with
    assert "3 passed in 1 s\n" in run.stdout
    assert ("error: " in run.stderr) == (ends_with == 1)
