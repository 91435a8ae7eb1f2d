"""The network part of the smoke test over and over: faults at random targets, and healthy runs, a third of them loaded.

    .venv/bin/python -m tests.soak.smoke.network --rounds 20 --healthy 300

Root only. Prints a table: how often exactly the culprits were named, how often others were accused, and when.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from atlctl.smoke.findings import Severity
from tests.faults.smoke import driving
from tests.faults.smoke.cases import FAINT, MBIT, MIXED, SINGLE, Case, mixed, single
from tests.faults.smoke.driving import Told
from tests.faults.smoke.netns import refused
from tests.support.plainhosts import PlainHosts, workers

_BUSY = "while True: pass"


@dataclass
class Row:
    """Runs of one thing. `seconds`: until the last culprit was named, in healthy runs until the end."""

    name: str
    runs: int = 0
    exact: int = 0
    others: int = 0
    nobody: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, case: Case, told: Told) -> bool:
        """Whether it was as it must be."""
        self.runs += 1
        exact, others = case.wanted <= told.accused, bool(told.accused - case.wanted)
        self.exact += exact
        self.others += others
        self.nobody += bool(told.nobody)
        if exact:
            self.seconds.append(max((told.after[who] for who in case.wanted), default=told.seconds))
        return exact and not others and not told.nobody

    @property
    def line(self) -> str:
        times = f"{statistics.median(self.seconds):.1f} | {max(self.seconds):.1f}" if self.seconds else "– | –"
        return f"| {self.name} | {self.runs} | {self.exact} | {self.others} | {self.nobody} | {times} |"


HEAD = """\
| what | runs | named exactly | others accused | unclear | median s | longest s |
|---|---|---|---|---|---|---|"""


def main(words: Sequence[str] | None = None) -> int:
    """Prints the table; the number of runs that were wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="runs of each fault on each number of hosts")
    parser.add_argument("--healthy", type=int, default=30, help="healthy runs")
    parser.add_argument("--many", type=int, default=0, help="runs with 64 workers, each way")
    parser.add_argument("--hosts", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of faults")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args(words)
    if why := refused():
        raise SystemExit(why)
    chance = random.Random(asked.seed)
    print(f"seed {asked.seed}", flush=True)
    rows: list[Row] = []
    wrong = 0
    for hosts in asked.hosts:
        for kind in (*SINGLE, *FAINT, *MIXED) if asked.rounds else ():
            if asked.only and not any(part in kind for part in asked.only):
                continue
            row = Row(f"{kind}, {hosts} hosts")
            rows.append(row)
            for _ in range(asked.rounds):
                case = mixed(2 + MIXED.index(kind), hosts, chance) if kind in MIXED else single(kind, hosts, chance)
                wrong += not _one(row, case)
            print(row.line, flush=True)
    wrong += _healthy(asked.healthy, asked.hosts, rows)
    wrong += _many(asked.many, rows)
    print(f"\n{HEAD}")
    for row in rows:
        print(row.line)
    return wrong


def _one(row: Row, case: Case) -> bool:
    told = case.run()
    right = row.add(case, told)
    if not right:
        print(f"  wrong: {case.faults or row.name}\n{told.lines()}", file=sys.stderr, flush=True)
        for check in told.report.checks:
            print(f"  {check.name} {check.verdict} {check.note} {check.seconds}", file=sys.stderr)
        print(f"  {told.report.data}", file=sys.stderr, flush=True)
    return right


def _healthy(runs: int, hosts: Sequence[int], rows: list[Row]) -> int:
    """With and without a limit of the links; a third of the runs on a machine that is busy with twice as many processes
    as it has CPUs."""
    wrong = 0
    kinds = [(count, mbit, loaded) for count in hosts for mbit in (MBIT, None) for loaded in (False, False, True)]
    table = {
        (mbit, loaded, count): Row(f"healthy{', loaded' * loaded}{', no limit' * (mbit is None)}, {count} hosts")
        for count, mbit, loaded in kinds
    }
    fails = warns = 0
    for number in range(runs):
        count, mbit, loaded = kinds[number % len(kinds)]
        with _load(2 * (os.cpu_count() or 1) if loaded else 0):
            case = Case(count, mbit=mbit)
            row = table[mbit, loaded, count]
            told = case.run()
            if not row.add(case, told):
                wrong += 1
                print(f"  wrong: {row.name}\n{told.lines()}\n  {told.report.data}", file=sys.stderr, flush=True)
            severities = {finding.severity for finding in told.report.findings}
            fails += Severity.FAIL in severities
            warns += Severity.WARN in severities
    if runs:
        rows += [row for row in table.values() if row.runs]
        print(f"{runs} healthy runs: {fails} with a FAIL, {warns} with a WARN", flush=True)
    return wrong


def _many(runs: int, rows: list[Row]) -> int:
    """64 workers, a process each, without torch."""
    if not runs:
        return 0
    row, wrong = Row("healthy, 64 workers"), 0
    rows.append(row)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    for _ in range(runs):
        told = driving.drive(PlainHosts(env=lambda _: {"PATH": path}), workers(64))
        wrong += not row.add(Case(64), told)
    return wrong


@contextmanager
def _load(processes: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
