import asyncio
import os
import stat
from pathlib import Path

import pytest

from atlctl.cli.sinks import FolderSink
from atlctl.jobs.errors import AtlctlError, UsageError
from tests.unit.output.helpers import exited, worker


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def feed(sink: FolderSink, name: str = "worker-0") -> None:
    one = worker(0, name)
    await sink.started(one)
    await sink.output(one, "stdout", b"a\0")
    await sink.output(one, "stderr", b"\x1b\xff")
    await sink.output(one, "stdout", b"b")
    await sink.finished(exited(0))


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_files_are_for_the_owner_alone(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "out"
    before = os.umask(umask)
    try:
        sink = FolderSink(f"{folder}/", [worker(0), worker(1)])
        asyncio.run(feed(sink))
        asyncio.run(sink.started(worker(1)))
    finally:
        os.umask(before)
    sink.close()
    sink.close()
    assert mode(folder) == 0o700
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        "worker-0.out": b"a\0b",
        "worker-0.err": b"\x1b\xff",
        "worker-1.out": b"",
    }
    assert {mode(file) for file in folder.iterdir()} == {0o600}


def test_an_earlier_run_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "worker-0.out").symlink_to(target)
    (folder / "worker-1.err").write_bytes(b"stale")
    (folder / "other").write_bytes(b"kept")
    sink = FolderSink(str(folder), [worker(0), worker(1)])
    asyncio.run(feed(sink))
    sink.close()
    assert target.read_bytes() == b"mine"
    assert sorted(os.listdir(folder)) == ["other", "worker-0.err", "worker-0.out"]


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_linked_folder_is_refused(tmp_path: Path, slash: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UsageError, match="is a link"):
        FolderSink(f"{tmp_path}/link{slash}", [worker(0)])
    assert not os.listdir(tmp_path / "real")


@pytest.mark.parametrize("bad", ["file", "missing/out"])
def test_a_useless_folder_is_refused(tmp_path: Path, bad: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot use"):
        FolderSink(str(tmp_path / bad), [])


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", ".", "", "a\0b", "-rf", "\ud800", "x" * 300, "训练"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a" / "b" / "out"
    folder.parent.mkdir(parents=True)
    sink = FolderSink(str(folder), [worker(0, name)])
    asyncio.run(feed(sink, name))
    sink.close()
    assert len(os.listdir(folder)) == 2
    assert os.listdir(folder.parent) == ["out"]
    assert not any(entry.startswith((".", "-")) for entry in os.listdir(folder))


def test_a_file_that_was_replaced_is_not_followed(tmp_path: Path) -> None:
    sink = FolderSink(str(tmp_path / "out"), [worker(0)])
    asyncio.run(feed(sink))
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "theirs").rename(tmp_path / "out" / "worker-0.out")
    with pytest.raises(AtlctlError, match="replaced"):
        asyncio.run(sink.output(worker(0), "stdout", b"more"))
    sink.close()
    assert (tmp_path / "out" / "worker-0.out").read_bytes() == b"theirs"


def test_a_full_disk_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FolderSink(str(tmp_path / "out"), [worker(0), worker(1), worker(2)])

    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    async def scenario() -> None:
        await sink.output(worker(0), "stdout", b"kept")
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(AtlctlError, match=r"cannot write .*worker-1\.out: No space left on device"):
            await sink.output(worker(1), "stdout", b"x")
        await sink.output(worker(0), "stdout", b"x")
        await sink.started(worker(2))
        monkeypatch.undo()

    asyncio.run(scenario())
    sink.close()
    assert sink.truncated == {"worker-0", "worker-1"}
    assert (tmp_path / "out" / "worker-0.out").read_bytes() == b"kept"


def test_a_thousand_workers_need_no_descriptors(tmp_path: Path) -> None:
    workers = [worker(index) for index in range(1000)]

    async def scenario() -> None:
        for each in workers:
            await sink.started(each)
            await sink.output(each, "stderr", b"x")

    before = len(os.listdir("/proc/self/fd"))
    sink = FolderSink(str(tmp_path / "out"), workers)
    asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert len(os.listdir(tmp_path / "out")) == 2000
    sink.close()
