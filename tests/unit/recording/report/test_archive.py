from __future__ import annotations

import os
import stat
import tarfile

import pytest

from atlctl.jobs.errors import NotAllowed, UsageError
from atlctl.recording.report.archive import is_archive, move, pack, staged


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "made"
    (made / "b" / "deep").mkdir(parents=True)
    (made / "b" / "deep" / "x").write_bytes(b"\x00\xff")
    (made / "a 训").write_text("text")
    (made / "c").write_text("")
    return made


def test_members(folder, tmp_path):
    path = str(tmp_path / "report.tar.gz")
    size = pack(str(folder), path, 1_700_000_000.9)
    assert (os.stat(path).st_size, stat.S_IMODE(os.stat(path).st_mode)) == (size, 0o600)
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        told = [
            (member.name, member.mode, member.isdir(), member.uid, member.gname, member.mtime) for member in members
        ]
        deep = tar.extractfile("report/b/deep/x")
        assert deep is not None
        assert deep.read() == b"\x00\xff"
    names = ["report", "report/a 训", "report/c", "report/b", "report/b/deep", "report/b/deep/x"]
    folders = ("report", "report/b", "report/b/deep")
    assert told == [
        (name, 0o700 if name in folders else 0o600, name in folders, 0, "", 1_700_000_000) for name in names
    ]


def test_the_same_files_give_the_same_bytes(folder, tmp_path):
    for name in ("1.tar.gz", "2.tar.gz"):
        (tmp_path / name[0]).mkdir()
        pack(str(folder), str(tmp_path / name[0] / "r.tar.gz"), 5)
    assert (tmp_path / "1" / "r.tar.gz").read_bytes() == (tmp_path / "2" / "r.tar.gz").read_bytes()


def test_what_is_there_stays(folder, tmp_path):
    there = tmp_path / "r.tar.gz"
    there.write_text("mine")
    with pytest.raises(UsageError, match="there already"):
        pack(str(folder), str(there), 0)
    with pytest.raises(UsageError, match="there already"), staged(str(there)):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("full", "link", "full/x"):
        with pytest.raises(UsageError, match="there already"), staged(str(tmp_path / name)):
            pass
        with pytest.raises(UsageError, match="cannot make"):
            move(str(folder), str(tmp_path / name))
    assert there.read_text() == (tmp_path / "full" / "x").read_text() == "mine"


def test_nothing_is_left_of_what_fails(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tarfile.TarFile, "addfile", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(OSError, match="no space"):
        pack(str(folder), str(tmp_path / "r.tar.gz"), 0)
    with pytest.raises(UsageError, match="cannot make"), staged(str(tmp_path / "new")) as place:
        move(str(folder), f"{place}/nowhere/deep")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]


def test_a_staged_folder_is_private_and_gets_its_name(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty/"):
        with staged(str(tmp_path / name)) as place:
            assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
            (tmp_path / os.path.basename(place) / "x").write_text("")
            move(place, str(tmp_path / name))
        assert os.listdir(tmp_path / name) == ["x"]


def test_no_place_for_it(tmp_path):
    with pytest.raises(UsageError, match="cannot write"), staged(str(tmp_path / "nowhere" / "new")):
        pass
    with pytest.raises((UsageError, NotAllowed), match="cannot write"), staged("/proc/new"):
        pass
    with pytest.raises(UsageError, match="there already"), staged("/"):
        pass


def test_names_of_archives():
    assert [is_archive(name) for name in ("a.tar.gz", "a.tgz", "a.tar", "a")] == [True, True, False, False]
