"""The folder in which the wrappers of a job meet: made by one, refused if others could have made or read it."""

from __future__ import annotations

import contextlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.run import meeting
from atlctl.run.meeting import RunFolder, entry_of


def _made(root: Path) -> RunFolder:
    return RunFolder(str(root), "train-7")


def test_a_start_is_found_by_the_others_when_it_is_announced(tmp_path: Path) -> None:
    first, other = _made(tmp_path), _made(tmp_path)
    assert other.current() is None
    start = first.create()
    assert other.current() is None
    start.announce("10.0.0.1", 4022)
    found = other.current()
    assert found == start
    assert found.first == ("10.0.0.1", 4022)
    assert len(start.secret) == 32
    assert stat.S_IMODE(os.stat(start.folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{start.folder}/secret").st_mode) == 0o600


def test_a_second_start_takes_the_place_of_the_first(tmp_path: Path) -> None:
    folder = _made(tmp_path)
    old = folder.create()
    old.announce("10.0.0.1", 1)
    new = folder.create()
    new.announce("10.0.0.2", 2)
    assert folder.current() == new
    assert new.secret != old.secret


def test_many_workers_make_the_folder_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        paths = {folder.path for folder in pool.map(_made, [tmp_path / "new"] * 16)}
    assert len(paths) == 1


def test_a_relative_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="absolute"):
        RunFolder("runs", "train-7")


@pytest.mark.parametrize("plant", ["link", "file", "open"])
def test_a_folder_planted_before_is_refused(tmp_path: Path, plant: str) -> None:
    top = tmp_path / f"atlctl-run-{os.geteuid()}"
    if plant == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        top.symlink_to(tmp_path / "elsewhere")
    elif plant == "file":
        top.write_text("")
    else:
        top.mkdir()
        top.chmod(0o755)
    with pytest.raises(AtlctlError):
        _made(tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _made(tmp_path)
    folder.create().announce("10.0.0.1", 1)
    monkeypatch.setattr(folder, "_owner", os.geteuid() + 1)
    with pytest.raises(NotAllowed, match="belongs to user"):
        folder.current()


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    folder = _made(tmp_path)
    start = folder.create()
    start.announce("10.0.0.1", 1)
    os.chmod(f"{start.folder}/secret", 0o644)
    with pytest.raises(NotAllowed, match="can be read by others"):
        folder.current()


@pytest.mark.parametrize("text", ["../../etc", "", "x" * 300, "\0", "a/b"])
def test_a_forged_name_of_a_start_leads_nowhere(tmp_path: Path, text: str) -> None:
    folder = _made(tmp_path)
    folder.create()
    Path(folder.path, "current").write_text(text)
    with contextlib.suppress(AtlctlError):
        assert folder.current() is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"address": 5, "port": 22}', '{"address": "x", "port": 0}', "[" * 100_000]
)
def test_an_address_that_is_damaged_is_none(tmp_path: Path, content: str) -> None:
    start = _made(tmp_path).create()
    Path(start.folder, "first.json").write_text(content)
    assert start.first is None


ENTRY = {"index": 1, "address": "10.0.0.2", "port": 4022, "folder": "/x/worker-1"}


def test_entry_of_a_worker() -> None:
    assert entry_of(ENTRY, 2) == ENTRY


@pytest.mark.parametrize(
    "change",
    [
        {"index": 2},
        {"index": -1},
        {"index": True},
        {"port": 0},
        {"port": 65536},
        {"address": "-oProxyCommand=x"},
        {"address": "a b"},
        {"address": ""},
        {"folder": "relative"},
    ],
)
def test_entry_of_hostile_fields(change: dict[str, object]) -> None:
    assert entry_of({**ENTRY, **change}, 2) is None
    assert entry_of([change], 2) is None


def test_write_json_survives_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    meeting.write_json(str(tmp_path / "file" / "x" / "exit.json"), {})


def test_workers_come_and_worker_0_decides(tmp_path: Path) -> None:
    start = _made(tmp_path).create()
    assert start.decision() is None
    assert start.came((), 2) == {}
    first = start.come(ENTRY)
    again = start.come({**ENTRY, "port": 4023})  # it has been started anew: the last one counts
    assert list(start.came((), 2).items()) == [(first, ENTRY), (again, {**ENTRY, "port": 4023})]
    assert start.came({first}, 2) == {again: {**ENTRY, "port": 4023}}
    assert start.came((), 1) == {}, "not a worker of a job of one"
    start.decide({"gate": "", "came": [again]})
    assert start.decision() == {"gate": "", "came": [again]}


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_worker_or_a_decision_that_is_damaged(tmp_path: Path, content: str) -> None:
    start = _made(tmp_path).create()
    for name in ("came-1-0-x.json", "table.json"):
        Path(start.folder, name).write_text(content)
    assert start.came((), 2) == {}
    assert start.decision() == {}


def test_worker_0_leaves(tmp_path: Path) -> None:
    folder = _made(tmp_path)
    assert folder.found() == (None, None)
    start = folder.create()
    start.announce("10.0.0.1", 4022)
    assert folder.found() == (start, ("10.0.0.1", 4022))
    start.leave()
    start.leave()
    assert folder.found() == (start, None)
