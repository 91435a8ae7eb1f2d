from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from atlctl.jobs.errors import UsageError
from atlctl.transfer.tarwrite import PIECE, SourceError, archive, survey


def read(path: Path) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive(survey(str(path)))))) as found:
        files = {info.name: found.extractfile(info) for info in found}
        return {name: None if file is None else file.read() for name, file in files.items()}


def test_a_tree_is_read_back_by_the_standard_library(tmp_path: Path) -> None:
    long = "n" * 200
    tmp_path.joinpath("sub").mkdir()
    tmp_path.joinpath("sub", long).write_bytes(b"x" * 1000)
    tmp_path.joinpath(os.fsdecode(b"\xff")).write_bytes(b"")
    names = {"data": None, f"data/sub/{long}": b"x" * 1000, "data/sub": None, "data/\udcff": b"", "end": b""}
    assert read(tmp_path) == names


def test_modes_are_permissions_only_and_owners_nobody(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    file.chmod(0o6755)
    os.utime(file, (-5, -5))
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive(survey(str(file)))))) as found:
        info = found.getmember("data")
    assert (info.mode, info.uid, info.gid, info.uname, info.mtime) == (0o755, 0, 0, "", 0)


def test_pieces_are_neither_small_nor_large(tmp_path: Path) -> None:
    for number in range(3000):
        tmp_path.joinpath(str(number)).write_bytes(b"x")
    with tmp_path.joinpath("big").open("wb") as file:
        file.truncate(5 * PIECE)
    sizes = [len(piece) for piece in archive(survey(str(tmp_path)))]
    assert max(sizes) <= 2 * PIECE
    assert min(sizes[:-1]) >= PIECE
    assert sum(sizes) % 10240 == 0


def test_what_is_there_is_counted_and_links_are_named(tmp_path: Path) -> None:
    tmp_path.joinpath("a").write_bytes(b"12")
    tmp_path.joinpath("l").symlink_to("a")
    found = survey(str(tmp_path))
    assert (found.kind, found.files, found.bytes, found.skipped.first) == ("folder", 1, 2, ["l (symlink)"])
    found = survey(str(tmp_path / "l"))
    assert (found.kind, found.name, found.files, found.bytes) == ("file", "l", 1, 2)


@pytest.mark.parametrize("name", ["nope", "file/below", "fifo"])
def test_what_is_no_source_is_refused(tmp_path: Path, name: str) -> None:
    tmp_path.joinpath("file").touch()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError):
        survey(str(tmp_path / name))


def test_a_folder_that_became_a_link_meanwhile_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, source = tmp_path / "outside", tmp_path / "source"
    outside.mkdir()
    outside.joinpath("secret").write_bytes(b"secret")
    source.mkdir()
    source.joinpath("link").symlink_to(outside)
    found = survey(str(source))
    monkeypatch.setattr(stat, "S_ISDIR", lambda mode: True)
    with pytest.raises(SourceError):
        b"".join(archive(found))
