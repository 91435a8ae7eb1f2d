"""The facts read by the agent, from made-up /proc and /sys, and on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from atlctl.remote import proc, ranks, sending
from atlctl.remote.smoke import children, facts
from tests.support.pace import within
from tests.unit.remote.test_cgroups import tree

IB = "sys/class/infiniband/mlx5_0/ports/1/"


def test_rdma_ports(tmp_path: Path) -> None:
    root = tree(tmp_path, **{
        IB + "state": "4: ACTIVE\n", IB + "rate": "200 Gb/sec (4X HDR)\n",
        IB + "link_layer": "Ethernet\n", IB + "gids/0": "fe80:0000:0000:0000:0e42:a1ff:fe00:0001\n",
        IB + "gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
        IB + "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000\n",
        IB + "gids/3": "fe80:0000:0000:0000:0000:0000:0000:0000\n",
    })  # fmt: skip
    (port,) = facts.ports(root)
    assert port == {
        "device": "mlx5_0", "port": "1", "state": "ACTIVE", "rate": "200 Gb/sec (4X HDR)",
        "layer": "Ethernet", "gids": 2,
    }  # fmt: skip
    assert facts.ports(str(tmp_path / "nothing")) == []


@pytest.mark.parametrize(
    ("place", "name", "port"),
    [
        ({}, "", None),
        ({"MASTER_ADDR": "a"}, "a", None),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "29500", "PET_MASTER_PORT": "1"}, "a", 29500),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "123456789"}, "a", None),
        ({"MASTER_ADDR": "a", "PET_RDZV_ENDPOINT": "b:29501", "MASTER_PORT": "29500"}, "b", 29501),
        ({"PET_RDZV_ENDPOINT": "[fd77::1]:29500"}, "fd77::1", 29500),
        ({"PET_RDZV_ENDPOINT": "b"}, "b", None),
        ({"PET_MASTER_ADDR": "c", "PET_RDZV_ENDPOINT": "b:1", "MASTER_ADDR": "a", "PET_MASTER_PORT": "2"}, "c", 2),
    ],
)
def test_the_name_at_which_workers_meet(place: dict[str, str], name: str, port: int | None) -> None:
    assert next((host for _, host in ranks.masters(place)), "") == name
    assert ranks.master_port(place) == port


MOUNTS = """\
21 1 254:0 / / rw,relatime - overlay overlay rw
22 21 0:20 / /mnt/data rw,relatime shared:1 - nfs4 server:/export/my\\040data rw,vers=4.2
23 21 0:21 / /mnt/read ro,relatime - lustre 10.0.0.1@tcp:/fs rw
24 21 0:22 / /dev/shm rw - tmpfs shm rw,size=65536k
25 21 0:23 / /mnt/s3 rw - fuse.s3fs s3fs rw
26 21 0:24 / /var/lib/lxcfs rw - fuse.lxcfs lxcfs rw
27 21 0:25 /etc/hosts /etc/hosts rw - nfs4 server:/pods rw
28 21 0:26 / /mnt/data/local rw - ext4 /dev/sda1 rw
29 21 0:27 / /mnt/over rw - nfs a:/1 rw
30 29 0:28 / /mnt/over rw - tmpfs tmpfs rw
nonsense
"""


def test_mounts_worth_testing(tmp_path: Path) -> None:
    table = proc.mounts(tree(tmp_path, **{"proc/self/mountinfo": MOUNTS}))
    found = {mount["path"]: (mount["fs"], mount["source"], mount["read_only"]) for mount in facts.worth_testing(table)}
    assert found == {
        "/mnt/data": ("nfs4", "server:/export/my data", False),
        "/mnt/read": ("lustre", "10.0.0.1@tcp:/fs", True),
        "/mnt/s3": ("fuse.s3fs", "s3fs", False),
    }
    paths = ("/mnt/data/a", "/mnt/data/local/b", "/mnt/database")
    assert [(proc.mount_of(path, table) or {})["fs"] for path in paths] == ["nfs4", "ext4", "overlay"]


def test_versions_without_importing(tmp_path: Path) -> None:
    root = tree(tmp_path, **{
        "torch/version.py": "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.5.1+cu124'\n"
                            "debug = False\ncuda: Optional[str] = '12.4'\n",
        "torch-2.5.1.dist-info/METADATA": "", "nvidia_nccl_cu12-2.21.5.dist-info/METADATA": "",
        "nvidia_cudnn_cu12-9.1.0.70.dist-info/METADATA": "", "torchvision-0.20.1.dist-info/METADATA": "",
    })  # fmt: skip
    assert facts.installed(["", "/nowhere", root]) == {
        "torch": "2.5.1+cu124", "cuda": "12.4", "nccl": "2.21.5", "cudnn": "9.1.0.70",
    }  # fmt: skip
    assert facts.installed([]) == {"torch": None, "cuda": None, "nccl": None, "cudnn": None}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n", "560.35.03"),
        ("", None),
    ],
)
def test_driver(tmp_path: Path, text: str, version: str | None) -> None:
    assert facts.driver(tree(tmp_path, **{"proc/driver/nvidia/version": text})) == version


def test_cpu_quota_of_both_kinds_of_groups(tmp_path: Path) -> None:
    assert facts.cpus(tree(tmp_path / "2", **{"sys/fs/cgroup/cpu.max": "150000 100000\n"}))["quota"] == 1.5
    assert facts.cpus(tree(tmp_path / "n", **{"sys/fs/cgroup/cpu.max": "max 100000\n"}))["quota"] is None
    old = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    assert facts.cpus(tree(tmp_path / "1", **old))["quota"] == 4


def test_ranks_are_told_from_workers(tmp_path: Path) -> None:
    def process(pid: str, environ: str, state: str = "S", group: str = "0::/box") -> dict[str, str]:
        return {
            f"proc/{pid}/stat": f"{pid} (python3 (x)) {state} 1 1 1" + " 0" * 30,
            f"proc/{pid}/environ": environ.replace(" ", "\0"),
            f"proc/{pid}/cgroup": group,
        }

    rank = "WORLD_SIZE=8 RANK=3 LOCAL_RANK=3 HOSTNAME=a"
    root = tree(
        tmp_path,
        **process("self", "HOSTNAME=a RANK=1"),
        **process("10", rank),
        **process("11", "WORLD_SIZE=2 RANK=1 HOSTNAME=a"),
        **process("12", rank, state="Z"),
        **process("13", rank.replace("=a", "=b")),
        **process("14", rank, group="0::/other"),
        **process("15", "SOME_RANK=1 RANK=x LOCAL_RANK=0"),
        **process("16", "RANK=4 LOCAL_RANK=0 WORLD_SIZE=8"),
    )
    assert facts.ranks(root) == [{"pid": 10, "rank": 3, "comm": "python3 (x)", "state": "S"}]


def test_a_living_rank_of_this_machine_is_seen_by_a_child() -> None:
    marks = {"ATLCTL_STATE_DIR": "/nowhere", "ATLCTL_JOB": "facts-test", "ATLCTL_WORKER": "worker-0"}
    environ = {**os.environ, **marks, "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    rank = subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE)
    try:
        os.environ.update(marks)
        for _ in range(100):
            found, problem = children.call(facts, "tell_ranks", {"root": ""}, 10)
            if (found or {}).get("ranks"):
                break
        assert problem == ""
        assert [(r["pid"], r["rank"]) for r in (found or {})["ranks"]] == [(rank.pid, 5)]
    finally:
        for name in marks:
            del os.environ[name]
        rank.communicate(b"\n")


def test_the_environment_keeps_secrets_out(tmp_path: Path) -> None:
    environ = {"NCCL_DEBUG": "INFO", "PET_NNODES": "2", "RANK": "1", "DLROVER_API_TOKEN": "x", "HOME": "/home/u"}
    found = facts.collect(str(tmp_path), environ)
    assert found["settings"] == {"NCCL_DEBUG": "INFO"}
    assert found["place"] == {"PET_NNODES": "2", "RANK": "1"}
    assert found["mounts"] == []
    assert "secret" not in str(facts.collect(str(tmp_path), {"TORCH_SECRET_KEY": "secret"}))


def test_a_longer_look_at_the_cpus_takes_half_a_second() -> None:
    """From ten ticks alone, one is a tenth: a second look at a machine must say more."""
    begun = time.monotonic()
    assert facts.collect(longer=True)["cpus"]["stolen"] is not None
    assert time.monotonic() - begun > 0.5


def test_settings_of_nccl_for_the_machine_are_facts_and_variables_go_before_them(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text(
        "# NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==ens1f0\nNCCL_IB_HCA = mlx5\nHOME=/x\n"
    )
    found = facts.collect(str(tmp_path), {"NCCL_IB_HCA": "mlx5_0"})
    assert found["settings"] == {"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "=ens1f0"}


def test_the_time_goes_first_and_the_last_word_is_marked() -> None:
    said: list[dict[str, Any]] = []
    facts.facts(lambda **fields: said.append(fields), {"processes": True})
    assert [event["ev"] for event in said] == ["clock", "facts"]
    assert abs(said[0]["wall"] - time.time()) < 30
    assert said[1]["end"]
    assert said[1]["python"] == sys.version.split()[0]
    assert said[1]["ranks_problem"] == ""


@pytest.mark.parametrize(
    ("function", "argument", "keys"),
    [
        ("tell_ports", {"root": ""}, {"ports"}),
        ("tell_versions", {"path": []}, {"torch", "cuda", "nccl", "cudnn"}),
        ("tell_ranks", {"root": ""}, {"ranks"}),
    ],
)
def test_a_child_has_all_that_it_imports(function: str, argument: dict[str, Any], keys: set[str]) -> None:
    found, problem = children.call(facts, function, argument, 10)
    assert problem == ""
    assert found is not None
    assert set(found) == keys


def other(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The child gets this text instead of `facts`."""
    real = sending.needed
    monkeypatch.setattr(sending, "needed", lambda *names: real(*names) | {facts.__name__: text})


@pytest.mark.parametrize(("pace", "problem"), [(1.0, "no answer in 0.05 s"), (100.0, "")])
def test_its_own_limits_follow_the_pace(monkeypatch: pytest.MonkeyPatch, pace: float, problem: str) -> None:
    monkeypatch.setattr(facts, "_NAME_SECONDS", 0.05)
    late = threading.Event()
    monkeypatch.setattr(facts, "_addresses", lambda _: (["10.0.0.1"] * (not late.wait(0.5)), ""))
    said: list[dict[str, Any]] = []
    facts.facts(lambda **event: said.append(event), {"pace": pace})
    assert said[-1]["name_problem"] == problem


def test_a_child_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    other(monkeypatch, "import time\ndef tell_ports(argument):\n    time.sleep(1000)\n")
    begun = time.monotonic()
    found, problem = children.call(facts, "tell_ports", {}, 0.5)
    assert found is None
    assert problem.startswith("no answer in 0.5 s (process state S")
    assert within(time.monotonic() - begun, 5)


def test_a_child_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    other(monkeypatch, "def tell_ports(argument):\n    raise RuntimeError('no card')\n")
    assert children.call(facts, "tell_ports", {}, 10) == (None, "RuntimeError: no card")
