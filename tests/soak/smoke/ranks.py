"""The ranks of the smoke test over and over: each fault at random workers, and healthy runs, a third of them loaded.

    .venv/bin/python -m tests.soak.smoke.ranks --rounds 20 --healthy 60

Prints a table: how often exactly the right worker was named, how often others were accused, and after how long.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from atlctl.smoke.findings import Severity
from tests.faults.smoke.rankfaults import CHECKS, TEXTS, Told, drive, driven

#: Faults in one run whose checks follow one another.
_MIXED = (("hangs", "exits"), ("segfaults", "sends wrong"), ("computes wrong", "stops", "diverges"))
_HEALTHY = ("device", "collectives", "ddp")
_ORDER = ("device", "collectives", "ddp", "stragglers")
_BUSY = "while True: pass"


@dataclass
class Row:
    """Runs of one thing."""

    name: str
    runs: int = 0
    exact: int = 0
    others: int = 0
    seconds: list[float] = field(default_factory=list)
    stage: list[float] = field(default_factory=list)

    def add(self, wanted: set[str], told: Told) -> None:
        self.runs += 1
        accused = told.accused if "starved" in self.name else loud(told)
        exact, others = wanted <= accused, bool(accused - wanted)
        self.exact += exact
        self.others += others
        self.seconds.append(told.seconds)
        self.stage.append(max(told.report.timings.values()))
        if not exact or others:
            print(f"--- {self.name}: wanted {sorted(wanted)}\n{told.lines()}", flush=True)

    @property
    def line(self) -> str:
        whole = f"{statistics.median(self.seconds):.1f} | {max(self.seconds):.1f}"
        return f"| {self.name} | {self.runs} | {self.exact} | {self.others} | {whole} |"


HEAD = """\
| what | runs | named exactly | others accused | median s | longest s |
|---|---|---|---|---|---|"""


def loud(told: Told) -> set[str]:
    """Who is named by a fault or a warning; also nobody, where a fault names nobody."""
    found = [f for f in told.report.findings if f.severity in (Severity.FAIL, Severity.WARN)]
    return {f.culprit.worker or "nobody" if f.culprit is not None else "nobody" for f in found}


@contextmanager
def load(count: int) -> Iterator[None]:
    """So many processes that want a CPU each."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> int:
    """How many runs were not as they must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=60)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--only", action="append", default=[], help="a fault, repeatable")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    kinds: list[tuple[str, ...]] = [(name,) for name in TEXTS if name != "no torch"]
    kinds = [one for one in (*kinds, *_MIXED) if not options.only or set(one) <= set(options.only)]
    rows = []
    for kind in kinds if options.rounds else ():
        row = Row(" + ".join(kind))
        rows.append(row)
        checks = sorted({c for one in kind for c in CHECKS.get(one, ("collectives",))}, key=_ORDER.index)
        for _ in range(options.rounds):
            targets = chance.sample(range(options.hosts), len(kind))
            told = driven(options.hosts, {t: [one] for t, one in zip(targets, kind, strict=True)}, checks)
            row.add({f"worker-{target}" for target in targets}, told)
        print(row.line, flush=True)
    healthy = [Row("healthy"), Row("healthy, loaded")]
    for turn in range(options.healthy):
        loaded = turn % 3 == 2
        with load(4 if loaded else 0):
            healthy[loaded].add(set(), asyncio.run(drive(options.hosts, {}, _HEALTHY)))
    rows += [row for row in healthy if row.runs]
    print("\n".join([HEAD, *(row.line for row in rows)]))
    return sum(row.runs - row.exact + row.others for row in rows)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
