"""The evidence folder of a job: contents, missing parts, and `errors --from` on it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from atlctl.backends.base import LogLine, LogRequest
from atlctl.diagnosis.cause.decide import diagnose
from atlctl.jobs.errors import AtlctlError, UsageError
from atlctl.jobs.model import Job, State, Worker
from atlctl.recording import save as saving
from atlctl.recording.manifest import read_manifest
from atlctl.recording.read import read_saved
from atlctl.recording.save import (
    Folder,
    MountPoint,
    SavedEvidence,
    mount_of,
    mounts,
    parse_mounts,
    save,
    shared_folder,
    stamped,
    stem,
)
from tests.unit.diagnosis.samples import matcher

SECOND = 1_795_200_000_000_000_000  # 2026-11-20T18:40:00Z


class Source:
    """Logs by worker: lines, an error, or None for no answer. `previous`: logs of the previous run."""

    def __init__(
        self,
        logs: Mapping[str, Sequence[bytes] | AtlctlError | None],
        previous: Mapping[str, Sequence[bytes]] | None = None,
        events: Sequence[Mapping[str, Any]] | AtlctlError = (),
    ) -> None:
        self.logs, self.previous, self.events = logs, previous or {}, events
        self.asked: list[tuple[str, LogRequest]] = []

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        self.asked.append((worker.name, request))
        found = (self.previous if request.previous else self.logs)[worker.name]
        if isinstance(found, AtlctlError):
            raise found
        if found is None:
            yield [LogLine(SECOND, "stdout", b"the begin")]
            await asyncio.sleep(1000)
            return
        batch = [LogLine(SECOND + at, "stdout", line) for at, line in enumerate(found)]
        yield batch if request.tail is None else batch[-request.tail :]

    async def raw_events(self, job: Job) -> Sequence[Mapping[str, Any]]:
        if isinstance(self.events, AtlctlError):
            raise self.events
        return self.events


def job_of(*workers: Worker) -> Job:
    return Job("train", "PyTorchJob", "kubernetes", State.FAILED, "uid-1", len(workers), workers, namespace="team")


def worker(name: str, index: int = 0, **more: Any) -> Worker:
    return Worker(name, index, State.RUNNING, **more)


def kept(folder: Path, source: Source, job: Job, **more: Any) -> SavedEvidence:
    made = Folder(str(folder))
    try:
        return asyncio.run(save(source, job, made, **more))
    finally:
        made.close()


TRACEBACK = [
    b"epoch 1",
    b"[rank1]: Traceback (most recent call last):",
    b'[rank1]:   File "/jobs/train.py", line 7, in <module>',
    b"[rank1]:     main()",
    b"[rank1]: ValueError: shard 17 is damaged",
]


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    event = {"involvedObject": {"kind": "Pod", "name": "p-1"}, "reason": "Evicted", "message": "disk\n\x1b[31m"}
    source = Source({"worker-0": [b"epoch 1"], "worker-1": TRACEBACK}, {"worker-1": [b"the run before"]}, [event])
    job = job_of(
        worker("worker-0", node_rank=0, pod="p-0"),
        worker("worker-1", 1, restarts=1, pod="p-1", exit_code=1, reason="Error", started=1.5, node="gpu-7"),
    )
    folder = tmp_path / "kept"
    saved = kept(folder, source, job)
    assert (saved.logs, saved.missing) == (3, [])
    assert saved.bytes == sum(path.stat().st_size for path in folder.glob("*.log"))
    names = ["atlctl.json", "events.jsonl", "worker-0.ts.log", "worker-1.previous.ts.log", "worker-1.ts.log"]
    assert sorted(os.listdir(folder)) == names
    again = read_saved([str(folder)], matcher())
    assert [log.path.rsplit("/", 1)[1] for log in again.logs] == ["worker-0.ts.log", *names[3:]]
    assert again.problems == ()
    workers = {found.worker: found for found in again.job.workers}
    assert sorted(workers) == ["worker-0", "worker-1"]
    assert workers["worker-1"].platform is not None
    assert (workers["worker-1"].platform.exit_code, workers["worker-1"].platform.node) == (1, "gpu-7")
    assert "shard 17 is damaged" in str(diagnose(again.job, matcher()))
    described = read_manifest((folder / "atlctl.json").read_bytes())
    assert (described.job.name, described.job.namespace, described.job.expected_workers) == ("train", "team", 2)


def test_lines_have_the_stamps_of_kubectl() -> None:
    assert stamped(LogLine(SECOND + 7, "stdout", b"a\xff")) == b"2026-11-20T18:40:00.000000007Z a\xff\n"
    assert stamped(LogLine(SECOND + 10**9, "stdout", b"")) == b"2026-11-20T18:40:01.000000000Z \n"
    assert stamped(LogLine(None, "stdout", b"bare")) == b"bare\n"


@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_the_folder_is_its_owners_alone(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        kept(tmp_path / "kept", Source({"w": [b"x"]}), job_of(worker("w")))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "kept").iterdir()}
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("name", ["../../x", "/etc/x", ".hidden", "a/b", "w.previous", "w.ts", "é", "x" * 300, "-rf"])
def test_a_name_is_never_a_path_nor_a_tag(tmp_path: Path, name: str) -> None:
    saved = kept(tmp_path / "kept", Source({name: [b"x"]}), job_of(worker(name)))
    assert saved.missing == []
    assert os.listdir(tmp_path) == ["kept"]
    again = read_saved([str(tmp_path / "kept")], matcher())
    assert [found.worker for found in again.job.workers] == [stem(name)]
    assert [log.lines for log in again.logs] == [1]


def test_one_log_that_fails_is_named_and_the_others_are_there(tmp_path: Path) -> None:
    source = Source({"a": AtlctlError("pods/log is forbidden"), "b": [b"x"]}, events=AtlctlError("no events for you"))
    saved = kept(tmp_path / "kept", source, job_of(worker("a"), worker("b", 1)))
    assert saved.missing == [("a", "pods/log is forbidden"), ("events", "no events for you")]
    assert saved.logs == 1
    assert (tmp_path / "kept/b.ts.log").exists()


def test_the_deadline_holds_and_what_was_read_until_then_is_kept(tmp_path: Path) -> None:
    source = Source({"slow": None, "b": [b"x"]})
    saved = kept(tmp_path / "kept", source, job_of(worker("slow"), worker("b", 1)), deadline=1.5)
    assert [what for what, _ in saved.missing] == ["slow"]
    assert saved.missing[0][1].startswith("reading stopped early")
    assert b"the begin" in (tmp_path / "kept/slow.ts.log").read_bytes()
    assert (tmp_path / "kept/b.ts.log").exists()


def test_the_end_comes_first_and_then_as_much_as_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "TAIL", 10)
    source = Source({"big": [b"line %03d" % at for at in range(100)], "small": [b"x"] * 9})
    job = job_of(worker("big"), worker("small", 1))
    saved = kept(tmp_path / "kept", source, job, limit=2 * 2000)
    lines = (tmp_path / "kept/big.ts.log").read_bytes().splitlines()
    assert lines[-1].endswith(b"line 099")
    assert 30 < len(lines) <= 2000 // len(lines[0])
    assert saved.missing == [("big", f"only its last {len(lines)} lines: it is larger than its share of 0.00191 MiB")]
    assert [request.tail for name, request in source.asked if name == "small"] == [10], "it was whole already"
    whole = kept(tmp_path / "whole", source, job)
    assert whole.missing == []
    assert len((tmp_path / "whole/big.ts.log").read_bytes().splitlines()) == 100
    assert whole.bytes == sum(path.stat().st_size for path in (tmp_path / "whole").glob("*.log"))
    assert not list((tmp_path / "kept").glob(".*"))


def test_a_log_whose_older_lines_are_longer_stays_within_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "TAIL", 10)
    source = Source({"w": [b"x" * 500] * 20 + [b"end"] * 10})
    saved = kept(tmp_path / "kept", source, job_of(worker("w")), limit=2000)
    assert len((tmp_path / "kept/w.ts.log").read_bytes().splitlines()) == 10
    assert saved.missing[0][1].startswith("only its last 10 lines")
    assert not list((tmp_path / "kept").glob(".*"))


def test_the_end_of_a_log_of_long_lines_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "TAIL_BYTES", 1000)
    source = Source({"w": [b"%03d" % at + b"x" * 200 for at in range(50)]})
    saved = kept(tmp_path / "kept", source, job_of(worker("w")), limit=2000)
    data = (tmp_path / "kept/w.ts.log").read_bytes()
    assert 1000 < len(data) <= 2000
    assert b" 049x" in data
    assert [what for what, _ in saved.missing] == ["w"]


def test_a_disk_that_fails_is_named_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_all", full)
    saved = kept(tmp_path / "kept", Source({"w": [b"x"]}), job_of(worker("w")))
    assert (saved.logs, {why for _, why in saved.missing}) == (0, {"No space left on device"})


def test_a_folder_that_is_a_link_or_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    (tmp_path / "file").touch()
    for name in ("link", "link/", "full", "file", "no/parent"):
        with pytest.raises(UsageError):
            Folder(str(tmp_path / name))
    Folder(str(tmp_path / "real")).close()


def test_numbers_that_json_has_and_lone_surrogates_survive(tmp_path: Path) -> None:
    source = Source({"w": [b"x"]}, events=[{"message": "\ud800", "count": 3}])
    kept(tmp_path / "kept", source, job_of(worker("w", message="\ud800")))
    assert json.loads((tmp_path / "kept/events.jsonl").read_bytes())["count"] == 3
    assert read_manifest((tmp_path / "kept/atlctl.json").read_bytes()).workers[0].name == "w"


MOUNTINFO = r"""
700 500 0:99 / / rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b
701 700 0:1 / /proc rw,nosuid - proc proc rw
702 700 0:2 / /dev/shm rw - tmpfs shm rw,size=65536k
703 700 8:1 /var/lib/kubelet/pods/5c5d/volumes/kubernetes.io~empty-dir/tmp /scratch rw shared:1 - ext4 /dev/sda1 rw
704 700 0:50 /team /data/my\040team rw,relatime shared:2 master:3 - nfs4 server:/export rw,vers=4.2
705 700 0:51 / /models ro,relatime - lustre mgs:/fs rw
706 700 0:52 / /proc/cpuinfo rw - fuse.lxcfs lxcfs rw
707 700 252:0 / /volume rw - ext4 /dev/rbd0 rw
708 700 0:53 / /jfs rw - fuse.juicefs JuiceFS:x rw
broken line
"""


@pytest.mark.parametrize(
    ("point", "shared", "passing", "writable"),
    [
        ("/", False, True, True),
        ("/dev/shm", False, True, True),
        ("/scratch", False, True, True),
        ("/data/my team", True, False, True),
        ("/models", True, False, False),
        ("/proc/cpuinfo", False, False, True),
        ("/volume", False, False, True),
        ("/jfs", True, False, True),
    ],
)
def test_what_a_mount_is(point: str, shared: bool, passing: bool, writable: bool) -> None:
    (mount,) = [found for found in parse_mounts(MOUNTINFO) if found.point == point]
    assert (mount.shared, mount.passing, mount.writable) == (shared, passing, writable)


def test_lines_that_are_none_are_left_out() -> None:
    assert len(parse_mounts(MOUNTINFO)) == 9
    assert parse_mounts("a b c - d\n - \n\n1 2 3 4 5 6 -") == []
    assert mounts("/no/such/file") == []


def test_a_path_lies_on_the_deepest_mount_and_of_two_on_the_later() -> None:
    known = parse_mounts(MOUNTINFO)
    found = [mount_of(path, known) for path in ("/volume/a/b", "/volumes", "/scratch", "/x/../data/my team/run")]
    assert [mount.point for mount in found if mount is not None] == ["/volume", "/", "/scratch", "/data/my team"]
    over = MountPoint("/volume", "/", "tmpfs", True)
    assert mount_of("/volume/a", [*known, over]) == over
    assert mount_of("/volume", []) is None


def test_the_folder_that_is_taken_is_writable_and_the_working_folder_comes_first(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    root = MountPoint("/", "/", "overlay", True)
    first, second = MountPoint(str(other), "/", "nfs", True), MountPoint(str(tmp_path / "here"), "/", "ceph", True)
    assert shared_folder([root, first, second], str(here)) == str(here)
    assert shared_folder([root, first], str(here)) == str(other)
    gone = MountPoint(str(tmp_path / "gone"), "/", "nfs", True)
    locked = MountPoint(str(other), "/", "nfs", False)
    system = MountPoint("/etc", "/", "nfs", True)
    assert shared_folder([root, gone, locked, system], str(here)) is None
    hidden = MountPoint(str(other), "/", "tmpfs", True)
    assert shared_folder([root, first, hidden], str(here)) is None
