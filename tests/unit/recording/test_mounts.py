"""Which file systems outlive a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.recording.mounts import Mount, mount_of, mounts, parse, shared_folder

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
    (mount,) = [found for found in parse(MOUNTINFO) if found.point == point]
    assert (mount.shared, mount.passing, mount.writable) == (shared, passing, writable)


def test_lines_that_are_none_are_left_out() -> None:
    assert len(parse(MOUNTINFO)) == 9
    assert parse("a b c - d\n - \n\n1 2 3 4 5 6 -") == []
    assert mounts("/no/such/file") == []


def test_a_path_lies_on_the_deepest_mount_and_of_two_on_the_later() -> None:
    known = parse(MOUNTINFO)
    found = [mount_of(path, known) for path in ("/volume/a/b", "/volumes", "/scratch", "/x/../data/my team/run")]
    assert [mount.point for mount in found if mount is not None] == ["/volume", "/", "/scratch", "/data/my team"]
    over = Mount("/volume", "/", "tmpfs", True)
    assert mount_of("/volume/a", [*known, over]) == over
    assert mount_of("/volume", []) is None


def test_the_folder_that_is_taken_is_writable_and_the_working_folder_comes_first(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    root = Mount("/", "/", "overlay", True)
    first, second = Mount(str(other), "/", "nfs", True), Mount(str(tmp_path / "here"), "/", "ceph", True)
    assert shared_folder([root, first, second], str(here)) == str(here)
    assert shared_folder([root, first], str(here)) == str(other)
    gone = Mount(str(tmp_path / "gone"), "/", "nfs", True)
    locked = Mount(str(other), "/", "nfs", False)
    system = Mount("/etc", "/", "nfs", True)
    assert shared_folder([root, gone, locked, system], str(here)) is None
    hidden = Mount(str(other), "/", "tmpfs", True)
    assert shared_folder([root, first, hidden], str(here)) is None
