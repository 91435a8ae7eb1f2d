"""Repeats the demo, the property tests, commands in a thousand pods and the smoke test with faults, and adds dated
tables to docs/en/soak.md.

Exits 1 when a run was wrong.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.support import proc

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "en" / "soak.md"

TITLE = """# Soak runs

Written by `make soak`: the demo, the property tests and commands in a thousand pods over and over, on the machine of
whoever ran it. A run is right when it exits with 0 and leaves no process behind. Times are wall clock, in seconds.
"""


@dataclass
class Series:
    """Runs of one thing."""

    name: str
    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    left: int = 0

    def add(self, command: Sequence[str], timeout: float) -> None:
        """Run `command` once, and count what it leaves running."""
        mark = uuid.uuid4().hex
        start = time.monotonic()
        try:
            run = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, proc.MARK: mark},
                capture_output=True,
                timeout=timeout,
                check=False,
            )
            output, wrong = run.stdout + run.stderr, run.returncode != 0
        except subprocess.TimeoutExpired as late:
            output, wrong = (late.stdout or b"") + (late.stderr or b""), True
        self.seconds.append(time.monotonic() - start)
        left = proc.leftovers(mark)
        self.left += len(left)
        self.failed += wrong
        if wrong or left:
            sys.stderr.write(f"{' '.join(command)}: wrong; left {left}\n{output.decode(errors='replace')}\n")

    @property
    def row(self) -> str:
        median, longest = statistics.median(self.seconds), max(self.seconds)
        runs = len(self.seconds)
        return f"| {self.name} | {runs} | {runs - self.failed} | {self.left} | {median:.1f} | {longest:.1f} |"


def report(series: Sequence[Series], when: datetime) -> str:
    """The table of one soak run."""
    versions = ", ".join(
        [f"atlctl {importlib.metadata.version('atlctl')}", f"Python {platform.python_version()}"]
        + [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "hypothesis")]
    )
    head = f"\n## {when:%Y-%m-%d %H:%M} UTC\n\n{versions}; {os.cpu_count()} CPUs.\n\n"
    table = "| what | runs | right | processes left | median s | longest s |\n|---|---|---|---|---|---|\n"
    return head + table + "".join(one.row + "\n" for one in series if one.seconds)


#: The parts of the smoke test, and healthy runs of each beside the rounds of every fault.
SMOKE = {"network": 300, "storage": 60, "ranks": 60}


def smoke(rounds: int) -> tuple[str, bool]:
    """The tables of all parts, each fault so often, and whether a run was wrong."""
    found, wrong = "", False
    for part, healthy in SMOKE.items():
        words = [f"tests.soak.smoke.{part}", f"--rounds={rounds}", f"--healthy={healthy}"]
        run = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE, check=False)
        wrong |= run.returncode != 0
        _, head, table = run.stdout.decode(errors="replace").rpartition("| what |")
        found += f"\n`python -m {' '.join(words)}`:\n\n{head}{table}"
    return found, wrong


#: Runs in which every byte of every output is compared.
OUTPUTS = (
    "kubernetes --runs=500",
    "kubernetes --runs=50 --load=20",
    "kubernetes --runs=5 --stall=10",
    "kubernetes --runs=1 --workers=64 --mib=50",
    "ssh --runs=100",
    "ssh --runs=1 --workers=64 --mib=50",
    "local --runs=100",
    "local --runs=1 --workers=64 --mib=50",
)


def outputs() -> tuple[str, bool]:
    """Their table, and whether a run was wrong."""
    table, wrong = "\n| what | runs | files | not as sent | told wrongly | time |\n|---|---|---|---|---|---|\n", False
    for words in OUTPUTS:
        argv = [sys.executable, "-m", "tests.soak.output", *words.split()]
        run = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=False)
        wrong |= run.returncode != 0
        table += run.stdout.decode(errors="replace")
    return table, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--demos", type=int, default=50, help="runs of `atlctl demo`")
    parser.add_argument(
        "--rounds", type=int, default=20, help="runs of all property tests, each with a seed of its own"
    )
    parser.add_argument(
        "--pods", type=int, default=20, help="runs of `exec` in 1,000 pods with faults, each another seed"
    )
    parser.add_argument("--smoke", type=int, default=20, help="runs of the smoke test with each fault")
    parser.add_argument("--no-outputs", action="store_true", help="without the comparison of outputs byte by byte")
    options = parser.parse_args()
    demos, rounds, pods = Series("`atlctl demo`"), Series("property tests"), Series("`exec`, 1,000 pods with faults")
    for _ in range(options.demos):
        demos.add([sys.executable, "-m", "atlctl", "demo"], timeout=240)
        sys.stderr.write(demos.row + "\n")
    for seed in range(options.rounds):
        pytest = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "--ignore=tests/benchmarks"]
        rounds.add([*pytest, "--hypothesis-profile=search", f"--hypothesis-seed={time.time_ns() + seed}"], timeout=1800)
        sys.stderr.write(rounds.row + "\n")
    for seed in range(options.pods):
        pods.add([sys.executable, "-m", "tests.soak.kubernetes", f"--seed={seed}"], timeout=600)
        sys.stderr.write(pods.row + "\n")
    tables, wrong = smoke(options.smoke) if options.smoke else ("", False)
    if not options.no_outputs:
        compared, failed = outputs()
        tables, wrong = tables + compared, wrong or failed
    text = REPORT.read_text() if REPORT.exists() else TITLE
    REPORT.write_text(text + report([demos, rounds, pods], datetime.now(UTC)) + tables)
    return int(wrong or any(one.failed or one.left for one in (demos, rounds, pods)))


if __name__ == "__main__":
    sys.exit(main())
