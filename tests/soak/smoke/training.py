"""The smoke test beside a training: the time of its steps before, during and after the test.

    .venv/bin/python -m tests.soak.smoke.training --runs 10

A torchrun job of two workers trains: `waiting` computes little and waits like one whose GPU computes, `computing` needs
the CPU all the time. The smoke test runs once by default and once with `--allow-busy`. Prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.hanging import LAUNCHERS, packages
from tests.integration.local import Registry, registry

_WORKERS = 2
#: Seconds of training that are measured before and after a test.
_BESIDE = 5.0
KINDS = {"waiting": "0.05 0", "computing": "0 600"}
WAYS: dict[str, tuple[str, ...]] = {"default": (), "--allow-busy": ("--allow-busy",)}
HEAD = """\
| training | smoke | runs | exit codes | s | step before, ms | during | after | longest step before | during | after |
|---|---|---|---|---|---|---|---|---|---|---|"""

_SCRIPT = """
import sys, time, torch, torch.distributed as dist
folder, rest, size = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
out = open(f"{folder}/steps", "w", buffering=1) if dist.get_rank() == 0 else None
weights, grads = torch.rand(size, size), torch.rand(1 << 18)
while True:
    begun = time.time()
    time.sleep(rest)
    if size:
        for _ in range(4):
            weights = torch.tanh(weights @ weights)
    dist.all_reduce(grads)
    grads /= dist.get_world_size()
    if out:
        out.write(f"{begun} {time.time() - begun}\\n")
"""


@dataclass
class Row:
    """Runs of one way beside one kind of training. Times of steps in milliseconds, by phase."""

    name: str
    codes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)
    longest: list[list[float]] = field(default_factory=list)

    @property
    def line(self) -> str:
        means = " | ".join(f"{statistics.median(each):.0f}" for each in zip(*self.steps, strict=True))
        most = " | ".join(f"{max(each):.0f}" for each in zip(*self.longest, strict=True))
        codes = " ".join(map(str, sorted(set(self.codes))))
        seconds = f"{statistics.median(self.seconds):.1f}"
        return f"| {self.name} | {len(self.codes)} | {codes} | {seconds} | {means} | {most} |"


def main() -> int:
    """How many runs had no report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--tier", default="quick")
    options = parser.parse_args()
    rows: list[Row] = []
    with registry() as own:
        for kind, words in KINDS.items():
            steps = _train(own, kind, words)
            for way, more in WAYS.items():
                row = Row(f"{kind} | {way}")
                rows.append(row)
                for _ in range(options.runs):
                    _one(own, kind, steps, row, ("--tier", options.tier, *more))
                print(row.line, flush=True)
            own.cli("stop", kind, "--yes", "--grace", "1", timeout=60)
    print("\n".join([HEAD, *(row.line for row in rows)]))
    return sum(code not in (0, 1, 5) for row in rows for code in row.codes)


def _train(own: Registry, kind: str, words: str) -> Path:
    """Start the training; returns the file of its steps."""
    folder = own.home / kind
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(_SCRIPT)
    start = LAUNCHERS["torchrun"].format(
        python=os.path.realpath(sys.executable), workers=_WORKERS, each=1, script=script, folder=f"{folder} {words}"
    )
    env = ("--env", f"PYTHONPATH={packages()}", "--env", "OMP_NUM_THREADS=1")
    own.start(kind, _WORKERS, "sh", "-c", start, options=env)
    steps, deadline = folder / "steps", time.monotonic() + 120
    while not steps.exists() or steps.stat().st_size < 1000:
        assert time.monotonic() < deadline, own.cli("logs", kind, "--tail", "20").stdout.decode()
        time.sleep(0.2)
    return steps


def _one(own: Registry, kind: str, steps: Path, row: Row, words: tuple[str, ...]) -> None:
    time.sleep(_BESIDE)
    begun = time.time()
    run = own.cli("smoke", "-j", kind, *words, "-o", "json", timeout=300)
    ended = time.time()
    time.sleep(_BESIDE)
    every = [tuple(map(float, line.split())) for line in steps.read_text().splitlines()[:-1]]
    phases = [(begun - _BESIDE, begun), (begun, ended), (ended, ended + _BESIDE)]
    times = [[1e3 * took for at, took in every if low <= at + took < high] for low, high in phases]
    row.codes.append(run.code)
    row.seconds.append(ended - begun)
    row.steps.append([statistics.mean(each) for each in times])
    row.longest.append([max(each) for each in times])
    checks = json.loads(run.stdout)["data"]["checks"] if run.stdout else [{"name": run.stderr.decode()}]
    told = ", ".join(f"{check.get('check')} {check.get('verdict')}" for check in checks)
    means = " ".join(f"{mean:.1f}/{most:.0f}" for mean, most in zip(row.steps[-1], row.longest[-1], strict=True))
    print(f"{row.name}: {run.code} {ended - begun:.1f} s, {means} ms; {told}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
