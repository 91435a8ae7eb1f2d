"""Trusted programs of processes: the process's owner, and users who can change the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from atlctl.remote.stacks import dumping
from atlctl.remote.trust import others, runs, safe

OTHER = 4243
BASE = os.path.realpath(sys.executable)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@contextmanager
def running(
    words: Sequence[str], program: str = BASE, user: tuple[int, int, int] | None = None, cwd: str = "/"
) -> Iterator[str]:
    """The /proc folder of a process that runs `program`, called by the first of `words`."""

    def become() -> None:
        if user is not None:
            os.setresuid(*user)

    made = subprocess.Popen(words, executable=program, cwd=cwd, preexec_fn=become)
    try:
        yield f"/proc/{made.pid}"
        assert made.poll() is None
    finally:
        made.kill()
        made.wait()


def python(name: str) -> list[str]:
    return [name, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in a world-writable one, /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def test_runs_its_own_program_alone(place: Path) -> None:
    shutil.copy(BASE, place / "python3")
    with running(python("python")) as at:
        assert runs(at, BASE)
        assert not runs(at, str(place / "python3"))


@needs_root
@pytest.mark.parametrize("ids", [(OTHER, OTHER, OTHER), (OTHER, 0, 0)])
def test_runs_no_program_of_a_process_with_another_users_id(ids: tuple[int, int, int]) -> None:
    with running(["sleep", "60"], str(shutil.which("sleep")), ids) as at:
        assert not runs(at, str(shutil.which("sleep")))


def test_safe_asks_for_every_folder_and_every_link(place: Path) -> None:
    program = place / "bin/python3"
    program.parent.mkdir()
    program.touch()
    (place / "links").mkdir()
    (place / "links/env").symlink_to("../bin")
    (place / "python").symlink_to(place / "links/env/python3")
    asked = [str(program), str(place / "python"), f"{place}/links/../bin/python3"]
    assert [safe(path) for path in asked] == [True, True, True]
    (place / "links").chmod(0o777)
    assert [safe(path) for path in asked] == [True, False, False]
    (place / "links").chmod(0o755)
    place.chmod(0o702)
    assert [safe(path) for path in asked] == [False, False, False]
    place.chmod(0o700)
    program.chmod(0o666)
    assert [safe(path) for path in asked] == [False, False, False]
    (place / "loop").symlink_to("loop")
    assert not safe(f"{place}/loop/python")


@needs_root
def test_safe_trusts_foreign_owners_only_where_no_name_is_open_to_all(place: Path) -> None:
    program = place / "python3"
    program.touch()
    with tempfile.TemporaryDirectory(dir="/var/lib") as closed:
        Path(closed, "python3").touch()
        for path in (program, Path(closed, "python3")):
            os.chown(path, OTHER, OTHER)
            path.chmod(0o775)
        assert safe(f"{closed}/python3")
        assert not safe(f"{closed}/python3", strict=True)
        assert not safe(str(program))
        os.chown(f"{closed}/python3", OTHER, OTHER + 1)
        assert not safe(f"{closed}/python3")
    os.chown(program, 0, 0)
    assert safe(str(program), strict=True)


@needs_root
def test_a_folder_that_the_process_left_for_another_users_names_no_python() -> None:
    """`env/bin/python` next to another user's `pyvenv.cfg`, which defines where that Python finds its modules."""
    with tempfile.TemporaryDirectory(dir="/var/lib") as made:
        trap = Path(made, "env/bin/python")
        trap.parent.mkdir(parents=True)
        trap.symlink_to(BASE)
        for path in (trap.parent, trap.parent.parent, Path(made)):
            os.chown(path, OTHER, OTHER)
        with running(python("env/bin/python"), cwd=made):
            assert str(trap) not in others()
        with running(python(str(trap))):
            assert str(trap) in others()  # it was started with this name


@needs_root
def test_py_spy_beside_another_users_python_is_not_run(place: Path) -> None:
    spy = place / "py-spy"
    spy.write_text("#!/bin/sh\n")
    spy.chmod(0o755)
    shutil.copy(str(shutil.which("sleep")), place / "python3")
    refused = f"{spy} is not run: other users can change it"
    place.chmod(0o755)
    program = str(place / "python3")
    with running([program, "60"], program, (OTHER, OTHER, OTHER)) as at:
        assert dumping._beside(int(at[6:]), program) == (None, refused)
    with running([program, "60"], program) as at:
        assert dumping._beside(int(at[6:]), program) == (str(spy), "")
        spy.chmod(0o777)
        assert dumping._beside(int(at[6:]), program) == (None, refused)
        spy.unlink()
        assert dumping._beside(int(at[6:]), program) == (None, "there is no py-spy in the worker")
