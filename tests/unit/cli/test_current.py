"""The file with a terminal's current job: its owner, permissions, and removal."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.cli import current
from atlctl.cli.current import Used
from atlctl.jobs.errors import AtlctlError, NotAllowed
from atlctl.jobs.statedir import state_dir

TRAIN = Used("pytorchjobs.kubeflow.org/train", "uid-1", {"backend": "kubernetes", "context": "gpu", "namespace": "ml"})


class Terminals:
    """Session leaders: processes like a terminal's shell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.open: list[subprocess.Popen[bytes]] = []

    def enter(self) -> subprocess.Popen[bytes]:
        leader = subprocess.Popen(["sleep", "1000"])
        self.open.append(leader)
        self.back(leader)
        return leader

    def back(self, leader: subprocess.Popen[bytes]) -> None:
        self._patch.setattr(os, "getsid", lambda _: leader.pid)

    @staticmethod
    def close(leader: subprocess.Popen[bytes]) -> None:
        leader.kill()
        leader.wait()


@pytest.fixture
def terminals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminals]:
    made = Terminals(monkeypatch)
    made.enter()
    yield made
    for leader in made.open:
        made.close(leader)


def files() -> list[Path]:
    return sorted(Path(state_dir()).joinpath("use").glob("*"))


def test_each_terminal_has_its_own(terminals: Terminals) -> None:
    first = terminals.open[0]
    assert current.load() is None
    assert not Path(state_dir()).exists()
    current.save(TRAIN)
    assert current.load() == TRAIN
    (path,) = files()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    terminals.enter()
    assert current.load() is None
    current.save(TRAIN._replace(name="other"))
    terminals.back(first)
    assert current.load() == TRAIN
    assert current.forget()
    assert not current.forget()
    assert current.load() is None
    assert len(files()) == 1


def test_without_any_the_folder_goes(terminals: Terminals) -> None:
    current.save(TRAIN)
    current.forget()
    assert not Path(state_dir(), "use").exists()


def test_closed_terminals_are_forgotten(terminals: Terminals) -> None:
    current.save(TRAIN)
    terminals.enter()
    current.save(TRAIN)
    assert len(files()) == 2
    terminals.close(terminals.open[0])
    current.save(TRAIN)
    assert len(files()) == 1


@pytest.mark.parametrize(
    ("session", "kept"),
    [
        ({"boot_id": "another", "host": "another machine"}, True),
        ({"boot_id": "another"}, False),  # this machine before its restart
        ({"pid_namespace": "pid:[1]"}, True),
    ],
)
def test_a_terminal_out_of_sight_is_forgotten_when_it_is_old(
    terminals: Terminals, session: dict[str, str], kept: bool
) -> None:
    current.save(TRAIN)
    (path,) = files()
    whole = json.loads(path.read_text())
    other = path.with_name("other.json")
    other.write_text(json.dumps({**whole, "session": {**whole["session"], **session}}))
    current.save(TRAIN)
    assert other.exists() is kept
    other.touch()
    month = time.time() - 31 * 24 * 3600
    os.utime(other, (month, month))
    current.save(TRAIN)
    assert files() == [path]


def test_what_another_user_may_have_written_is_refused(terminals: Terminals) -> None:
    current.save(TRAIN)
    (path,) = files()
    path.chmod(0o622)
    with pytest.raises(NotAllowed):
        current.load()
    path.chmod(0o600)
    path.parent.chmod(0o770)
    with pytest.raises(NotAllowed):
        current.load()
    path.parent.chmod(0o700)
    moved = path.rename(path.parent / "moved")
    path.symlink_to(moved)
    with pytest.raises(NotAllowed):
        current.load()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "a", "uid": 7, "asked": {}}', '{"name": "a"}', "[" * 9000])
def test_a_damaged_file_says_how_to_go_on(terminals: Terminals, text: str) -> None:
    current.save(TRAIN)
    (path,) = files()
    path.write_text(text)
    with pytest.raises(AtlctlError) as caught:
        current.load()
    assert "atlctl use -" in str(caught.value.hint)
    assert current.forget()
    assert current.load() is None


def test_a_process_that_is_a_session_by_itself_remembers_nothing(
    terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    for leader in (os.getpid(), 0):
        monkeypatch.setattr(os, "getsid", lambda _, leader=leader: leader)
        with pytest.raises(AtlctlError) as caught:
            current.save(TRAIN)
        assert "ATLCTL_JOB=train" in str(caught.value.hint)
    assert current.load() is None


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({}, True),
        ({"backend": "kubernetes", "namespace": "ml"}, True),
        ({"namespace": "other"}, False),
        ({"context": "cpu"}, False),
        ({"backend": "local"}, False),
        ({"hostfile": "hosts"}, False),
        ({"kubeconfig": "config"}, False),
        ({"selector": "app=x"}, False),
    ],
)
def test_options_that_name_another_place(asked: dict[str, str | None], fits: bool) -> None:
    assert TRAIN.fits(asked) is fits


def test_the_backend_of_the_environment_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATLCTL_BACKEND", "local")
    assert not TRAIN.fits({})
    assert TRAIN.fits({"backend": "kubernetes"})


def test_a_file_is_the_same_from_every_folder(isolated: Path) -> None:
    used = TRAIN._replace(asked={"backend": "ssh", "hostfile": str(isolated / "hosts")})
    os.chdir(isolated)
    assert used.fits({"hostfile": "hosts"})
    assert not used.fits({"hostfile": "others"})
