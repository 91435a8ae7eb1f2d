"""The sampler script in real shells, with made-up /proc and /sys."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from atlctl.cli.top.reading import Compute, ComputeReader, GpuReader, sampler
from tests.support.needs import needs

SHELLS = [
    pytest.param(("sh",)),
    pytest.param(("busybox", "sh"), marks=needs("busybox")),
    pytest.param(("bash",)),
]
_V2 = {
    "memory.current": "8000000000\n",
    "memory.max": "16000000000\n",
    "memory.stat": "anon 5\nfile 7\ninactive_file 2000000000\nactive_file 1\n",
    "cpu.stat": "usage_usec 123456789\nuser_usec 1\n",
    "cpu.max": "400000 100000\n",
}
_V1 = {
    "memory/memory.usage_in_bytes": "8000000000\n",
    "memory/memory.limit_in_bytes": "16000000000\n",
    "memory/memory.stat": "cache 7\ntotal_inactive_file 2000000000\n",
    "cpuacct/cpuacct.usage": "123456789000\n",
    "cpu/cpu.cfs_quota_us": "400000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
}


def machine(root: Path, cgroup: dict[str, str], smi: str = "") -> dict[str, str]:
    """A machine with 8 CPUs, 6 of them usable; returns the sampler's environment."""
    (root / "proc/self").mkdir(parents=True)
    cpus = "".join(f"cpu{n} 1 2 3 4 5 6 7 8 0 0\n" for n in range(8))
    (root / "proc/stat").write_text(f"cpu  80 0 20 800 100 0 0 0 0 0\n{cpus}intr 1 2 3\n")
    (root / "proc/self/status").write_text("Name:\tsh\nCpus_allowed:\t3f\nCpus_allowed_list:\t0-3,6-7\n")
    (root / "proc/uptime").write_text("5000.25 9000.5\n")
    (root / "proc/meminfo").write_text("MemTotal: 64000000 kB\nMemFree: 1 kB\nMemAvailable:   24000000 kB\n")
    for name, text in cgroup.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tools = root / "tools"
    tools.mkdir()
    (tools / "sleep").symlink_to("/bin/true")  # no extra second of waiting here
    if smi:
        (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
        (tools / "nvidia-smi").chmod(0o755)
    return {"PATH": str(tools)}


def run(shell: tuple[str, ...], root: Path, env: dict[str, str], looks: int = 1) -> tuple[ComputeReader, GpuReader]:
    words = sampler(0.2, looks, str(root)).words[1:]
    place = subprocess.run(("which", shell[0]), capture_output=True, check=True, text=True).stdout.strip()
    done = subprocess.run([place, *shell[1:], *words], capture_output=True, timeout=30, env=env, check=True)
    compute, gpus = ComputeReader(), GpuReader()
    compute.feed(done.stdout)
    gpus.feed(done.stderr)
    return compute, gpus


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        ({}, Compute("machine", None, 8.0, 40e6 * 1024, 64e6 * 1024)),
        (_V2, Compute("container", None, 4.0, 6e9, 16e9)),
        (_V2 | {"memory.max": "max\n", "cpu.max": "max 100000\n"}, Compute("container", None, 6.0, 6e9, 64e6 * 1024)),
        (_V1, Compute("container", None, 4.0, 6e9, 16e9)),
        ({f"unified/{name}": text for name, text in _V2.items()}, Compute("container", None, 4.0, 6e9, 16e9)),
        # Without a limit, it looks like the root of a machine.
        (
            _V1 | {"memory/memory.limit_in_bytes": "9223372036854771712\n", "cpu/cpu.cfs_quota_us": "-1\n"},
            Compute("machine", None, 8.0, 40e6 * 1024, 64e6 * 1024),
        ),
    ],
    ids=["none", "v2", "v2 without limits", "v1", "hybrid", "v1 without limits"],
)
def test_what_it_says_of_cpu_and_memory(
    shell: tuple[str, ...], cgroup: dict[str, str], expected: Compute, tmp_path: Path
) -> None:
    compute, gpus = run(shell, tmp_path, machine(tmp_path, cgroup))
    assert (compute.count, compute.latest) == (2, expected)
    assert (gpus.absent, gpus.devices, gpus.early) == (True, False, "")


_ROW = "0, GPU-a, H100, 97, 70123, 81559, 690.1, 64, 0"


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("smi", "reasons"),
    [
        (f"echo '{_ROW}, 0x0000000000000004'", 4),
        (f"case $1 in *event*) exit 2;; *throttle*) echo '{_ROW}, 0x0000000000000048';; esac", 0x48),
        (f"case $1 in *reasons*) echo unknown; exit 2;; esac; printf %s '{_ROW}'", None),
        (f"echo '{_ROW}, [N/A]'; exit 15", None),
    ],
    ids=["new name", "old name", "neither", "not told"],
)
def test_drivers_old_and_new(shell: tuple[str, ...], smi: str, reasons: int | None, tmp_path: Path) -> None:
    _, gpus = run(shell, tmp_path, machine(tmp_path, {}, smi), looks=2)
    assert gpus.latest is not None
    assert (gpus.count, gpus.latest.trouble) == (2, "")
    (gpu,) = gpus.latest.readout.gpus
    assert (gpu.power, gpu.clock_reasons) == (690.1, reasons)


def test_devices_without_nvidia_smi(tmp_path: Path) -> None:
    env = machine(tmp_path, {})
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    _, gpus = run(("sh",), tmp_path, env)
    assert (gpus.absent, gpus.devices) == (True, True)


def test_without_sleep_it_ends(tmp_path: Path) -> None:
    """Otherwise it would use a whole core."""
    env = machine(tmp_path, {})
    (tmp_path / "tools/sleep").unlink()
    words = sampler(1, 0, str(tmp_path)).words
    assert subprocess.run(words, capture_output=True, timeout=10, env=env, check=False).returncode == 9
