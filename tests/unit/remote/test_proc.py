"""Reading /proc: files that block."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from atlctl.remote import proc
from atlctl.remote.proc import read_all
from tests.support.pace import within


def test_a_file_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    """A FIFO without a writer simulates the memory lock of a hung process."""
    paths = []
    for number in range(4):
        paths.append(str(tmp_path / str(number)))
        (tmp_path / str(number)).write_text(f"text {number}")
    (tmp_path / "2").unlink()
    os.mkfifo(tmp_path / "2")
    begun = time.monotonic()
    found, failed = read_all([*paths, str(tmp_path / "none")], 6)
    assert found == {paths[0]: b"text 0", paths[1]: b"text 1", paths[3]: b"text 3"}
    assert failed == {paths[2]: "no answer in 0.5 s", str(tmp_path / "none"): "No such file or directory"}
    assert within(time.monotonic() - begun, 10)


def test_many_that_hang_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "_FILE_SECONDS", 0.1)
    paths = [str(tmp_path / str(number)) for number in range(8)]
    for path in paths:
        os.mkfifo(path)
    _, failed = read_all(paths, 6)
    assert list(failed.values()) == ["no answer in 0.1 s"] * 6 + ["not tried: too many others hang"] * 2
