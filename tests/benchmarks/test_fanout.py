"""The cost of `exec` on many local workers, as ratios to a peer or a floor in the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.benchmarks.measure import best, cost, report
from tests.support.cli import run_cli

ATLCTL = (sys.executable, "-m", "atlctl")
GIB = 1 << 30
PEAK_MB = 150


@contextmanager
def job(workers: int) -> Iterator[None]:
    started = run_cli("local", "run", "--name", "bench", "--workers", str(workers), "--detach", "--", "sleep", "1000")
    assert started.code == 0, started.stderr
    try:
        yield
    finally:
        run_cli("stop", "bench", "--yes", "--grace", "1", timeout=60)


def supervisor_cpu() -> float:
    """CPU seconds of the job's supervisor and of all commands it has reaped."""
    record = json.loads(Path(os.environ["XDG_STATE_HOME"], "atlctl/local/bench/job.json").read_text())
    fields = Path(f"/proc/{record['supervisor']['pid']}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def test_exec_true_on_256_workers() -> None:
    Path("many").write_text("true\n" * 256)
    all_workers = [*ATLCTL, "exec", "-j", "bench", "--all", "true"]
    with job(256):
        xargs = best(5, ["sh", "-c", "xargs -P 64 -n 1 true < many"])
        ours = best(5, all_workers, stderr=subprocess.DEVNULL)
        before = supervisor_cpu()
        for _ in range(5):
            cost(all_workers, stderr=subprocess.DEVNULL)
        helping = (supervisor_cpu() - before) / 5
        one = best(5, [*ATLCTL, "exec", "-j", "bench", "-w", "0", "true"], stderr=subprocess.DEVNULL)
    report(
        "256 x `true`",
        [
            ("xargs -P 64 (with the commands)", xargs),
            ("atlctl exec --all true", ours),
            ("  and the supervisor, the commands", ours._replace(cpu=ours.cpu + helping)),
            ("atlctl exec -w 0 true", one),
        ],
        f"one more worker: {(ours.cpu - one.cpu) / 255 * 1000:.2f} CPU-ms of atlctl, {helping / 256 * 1000:.2f} beyond",
    )
    assert ours.peak < PEAK_MB


@pytest.mark.parametrize("line", [100, 1000])
def test_prefix_a_gigabyte_from_64_workers(line: int) -> None:
    text = (b"x" * (line - 1) + b"\n") * (GIB // 64 // line)
    source = Path("lines").resolve()
    source.write_bytes(text)
    total = len(text) * 64
    with job(64):
        sink = "> >(cat > /dev/null)"
        floor = cost(["bash", "-c", f"for i in $(seq 64); do cat {source}; done {sink}"])
        command = f"exec {sys.executable} -m atlctl exec -j bench --all cat {source} {sink} 2>/dev/null"
        ours = cost(["bash", "-c", command])
    speed = total / 1e6 / ours.cpu
    report(
        f"{total / GIB:.2f} GiB in lines of {line} bytes from 64 workers into a pipe",
        [("cat, one file after another", floor), ("atlctl exec --all cat", ours)],
        f"atlctl: {speed:.0f} MB a CPU-second",
    )
    assert speed >= 200
    assert ours.peak < PEAK_MB
