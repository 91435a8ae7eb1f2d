"""The Python for a sent program on a worker without one in PATH. As root, with processes of other users."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.remote.sending import command
from tests.support.needs import needs
from tests.unit.kubernetes.test_endtraining import UNSHARE, can_unshare

OTHER = 4243
BASE = os.path.realpath(sys.executable)
SHELLS = ["dash", "bash", pytest.param("busybox sh", marks=needs("busybox"))]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None or not can_unshare(),
    reason="only root has other users' processes beside it",
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a program called python3, and tools; accessible to all users."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        own = Path(made)
        own.chmod(0o755)
        (own / "bin").mkdir()
        # Exits with 1 if it is called like a Python.
        shutil.copy(str(shutil.which("sleep")), own / "bin/python3")
        (own / "tools").mkdir()
        for name in ("readlink", "ls"):
            (own / "tools" / name).symlink_to(str(shutil.which(name)))
        yield own


def answer(place: Path, running: str, shell: str = "dash") -> subprocess.CompletedProcess[bytes]:
    """The output of a sent program in a PID namespace with only the shell script `running`."""
    argv = command("atlctl-test", "-I -S", ["import sys; print(sys.executable)"])
    assert argv[0] == "/bin/sh"
    start = f'{running} & sleep 0.3; PATH={place}/tools exec "$@"'
    own = [str(shutil.which(shell.split()[0])), *shell.split()[1:]]
    return subprocess.run(
        [*UNSHARE, "/bin/sh", "-c", start, "sh", *own, *argv[1:]], capture_output=True, timeout=30, check=False
    )


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "user",
    [f"--reuid {OTHER}", f"--ruid {OTHER} --euid 0", f"--ruid 0 --euid {OTHER}"],
    ids=["another", "on its way to root", "on its way from root"],
)
def test_a_program_of_another_users_process_is_not_run(place: Path, user: str, shell: str) -> None:
    run = answer(place, f"setpriv {user} --clear-groups {place}/bin/python3 60", shell)
    assert (run.returncode, run.stdout, run.stderr) == (3, b"", b"no Python 3.8 or newer found\n")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("what", ["file", "folder", "group", "owner below an open folder"])
def test_a_program_that_other_users_can_change_is_not_run(place: Path, what: str, shell: str) -> None:
    if what == "file":
        (place / "bin/python3").chmod(0o757)
    elif what == "folder":
        place.chmod(0o777)
    elif what == "group":
        os.chown(place / "bin", 0, OTHER)
        (place / "bin").chmod(0o775)
    else:
        os.chown(place / "bin", OTHER, OTHER)
    run = answer(place, f"{place}/bin/python3 60", shell)
    said = f"no Python 3.8 or newer found; not used, because other users can change it: {place}/bin/python3\n"
    assert (run.returncode, run.stdout, run.stderr) == (3, b"", said.encode())


@pytest.mark.parametrize("shell", SHELLS)
def test_the_python_of_an_own_process_is_run(place: Path, shell: str) -> None:
    """Even if there is a foreign process."""
    run = answer(
        place, f"setpriv --reuid {OTHER} {place}/bin/python3 60 & {BASE} -c 'import time; time.sleep(60)'", shell
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, f"{BASE}\n".encode(), b"")
