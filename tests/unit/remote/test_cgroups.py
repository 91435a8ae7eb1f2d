"""Control groups of version 1, version 2 and both (hybrid), on made-up trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.remote import cgroups


def tree(root: Path, **texts: str) -> str:
    for path, text in texts.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)


TOP = "sys/fs/cgroup/"
V2, V1 = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
#: Paths in each layout: groups of the process, folders of memory, CPU and freezer.
LAYOUTS = {
    "unified": ("0::/pod/box\n", TOP + "pod/box/", TOP + "pod/box/", TOP + "pod/box/"),
    "unified, the mount is the group": ("0::/host/pod\n", TOP, TOP, TOP),
    "hybrid, all controllers in version 2": ("1:name=systemd:/pod\n0::/pod\n", *(TOP + "unified/pod/",) * 3),
    "version 1": (
        "4:cpu,cpuacct:/pod\n3:memory:/pod\n2:freezer:/pod\n",
        TOP + "memory/pod/",
        TOP + "cpu/pod/",
        TOP + "freezer/pod/",
    ),
    "hybrid, controllers in version 1": (
        "4:cpu,cpuacct:/pod\n3:memory:/pod\n2:freezer:/pod\n0::/pod\n",
        TOP + "memory/pod/",
        TOP + "cpu/pod/",
        TOP + "freezer/pod/",
    ),
    "version 1, the mount is the group": (
        "4:cpu,memory:/docker/abc\n3:freezer:/docker/abc\n",
        TOP + "memory/",
        TOP + "cpu/",
        TOP + "freezer/",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read(tmp_path: Path, layout: str) -> None:
    groups, memory, cpu, freezer = LAYOUTS[layout]
    new = "version 1" not in layout
    limit, used = V2 if new else V1
    files = {
        "proc/self/cgroup": groups, "proc/7/cgroup": groups, "proc/meminfo": "MemAvailable: 900 kB\n",
        memory + limit: "5000\n", memory + used: "4000\n",
        memory + "memory.stat": "inactive_file 100\ntotal_inactive_file 100\n",
    }  # fmt: skip
    if new:
        files |= {cpu + "cpu.max": "150000 100000\n", freezer + "cgroup.events": "populated 1\nfrozen 1\n"}
        files |= {cpu + "cpu.stat": "usage_usec 9\nthrottled_usec 70\n"}
    else:
        files |= {cpu + "cpu.cfs_quota_us": "150000\n", cpu + "cpu.cfs_period_us": "100000\n"}
        files |= {freezer + "freezer.state": "FROZEN\n", cpu + "cpu.stat": "nr_periods 3\nthrottled_time 70500\n"}
    root = tree(tmp_path, **files)
    assert cgroups.memory(root) == {"room": 1100, "of": "cgroup", "group_kill": False}
    assert cgroups.cpu_quota(root) == 1.5
    assert cgroups.throttled(root) == 70
    assert cgroups.frozen(7, root)


def test_memory_is_the_least_of_all_groups_above(tmp_path: Path) -> None:
    stat = "inactive_file 100\nactive_file 50\nfile_dirty 30\nfile_writeback 0\n"
    root = tree(tmp_path, **{
        "proc/meminfo": "MemTotal: 100 kB\nMemAvailable:   90 kB\n", "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n", "sys/fs/cgroup/pod/box/memory.current": "7\n",
        "sys/fs/cgroup/pod/memory.max": "5000\n", "sys/fs/cgroup/pod/memory.current": "4000\n",
        "sys/fs/cgroup/pod/memory.stat": stat, "sys/fs/cgroup/pod/memory.oom.group": "1\n",
    })  # fmt: skip
    assert cgroups.memory(root) == {"room": 1000 + 120, "of": "cgroup", "group_kill": True}


def test_memory_of_a_group_above_its_limit_is_none_left(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/"
    root = tree(tmp_path, **{
        "proc/meminfo": "MemAvailable: 900 kB\n", "proc/self/cgroup": "4:cpu,memory:/docker/abc\n0::/\n",
        folder + "memory.limit_in_bytes": "1000\n", folder + "memory.usage_in_bytes": "1500\n",
    })  # fmt: skip
    assert cgroups.memory(root)["room"] == 0
    assert cgroups.memory(str(tmp_path / "nothing"))["room"] is None


def test_cpu_quota_is_the_least_of_all_groups_above(tmp_path: Path) -> None:
    root = tree(tmp_path, **{
        "proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
    })  # fmt: skip
    assert cgroups.cpu_quota(root) == 3
    assert cgroups.cpu_quota(str(tmp_path / "nothing")) is None


def test_memory_of_this_machine_is_known() -> None:
    assert cgroups.memory()["room"] > 0
