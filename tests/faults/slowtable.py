"""`atlctl slow` on a real job of each kind of slowness: right, wrong, undecided.

    .venv/bin/python -m tests.faults.slowtable RUNS [KIND...]

Prints a line for each run, a table at the end, with the first slow step less the one of the change, and the step rate
of the healthy job with and without `slow` beside it.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

from tests.faults.slowjob import KINDS, WORLD, SlowJob, network, wrong
from tests.integration.local import registry


def main() -> int:
    """The number of wrong answers."""
    # Killed, it ends its job and removes the namespaces.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    kinds = sys.argv[2:] or list(KINDS)
    chance, found = random.Random(7), Counter[tuple[str, str]]()
    seconds: list[float] = []
    whens: dict[str, list[str]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        spaces = network()
        if spaces is not None:
            stack.enter_context(spaces)
        own = stack.enter_context(registry())
        job = stack.enter_context(SlowJob(own, "slow", spaces))
        assert job.trains(180), own.cli("logs", job.name, "--tail", "20").stdout.decode()
        for _ in range(runs):
            for kind in kinds:
                rank = chance.randrange(WORLD)
                if KINDS[kind].link and spaces is None:
                    continue
                try:
                    job.slow(kind, rank)
                except OSError as error:
                    print(f"{kind:10} not possible here: {error}", flush=True)
                    continue
                begun = time.monotonic()
                data = job.look()
                seconds.append(time.monotonic() - begun)
                said = wrong(data, kind, rank)
                result = "right" if not said else "undecided" if said.startswith("undecided") else "wrong"
                found[kind, result] += 1
                when = "-" if data["since"] is None else f"{data['since']['first_step'] - job.since:+d}"
                whens[kind].append(when)
                words = (f"{kind:10} rank {rank} {seconds[-1]:5.1f} s", result, when, data["confidence"], said)
                print(*words, flush=True)
                if said:
                    print(_details(data), flush=True)
        if len(sys.argv) < 3:
            job.heal()
            _beside(job)
    for kind in kinds:
        counts = (f"{result} {found[kind, result]}" for result in ("right", "wrong", "undecided"))
        print(f"{kind:10}", *counts, "steps from the change:", *whens[kind])
    print(f"{sum(found.values())} runs, {min(seconds):.1f} to {max(seconds):.1f} s")
    return sum(count for (_, result), count in found.items() if result == "wrong")


def _details(data: Any) -> str:
    """What an answer that is not right is based on."""
    lines = [one["text"] for one in data["witnesses"]] + data["contradictions"]
    for one in data["ranks"]:
        shares = {**one["doing"], **one["stacks"], "no CPU": one["no_cpu"], "throttled": one["throttled"]}
        shown = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
        lines.append(f"rank {one['rank']}: {shown} {one['frame']} {one['problems']}")
    return "\n".join(f"    {line}" for line in lines)


def _beside(job: SlowJob) -> None:
    """Step rates without `slow` and with it."""
    for _ in range(3):
        alone = job.rate(10)
        looking = threading.Thread(target=job.look)
        looking.start()
        beside = job.rate(8)
        looking.join()
        print(f"steps a second: {alone:.1f} alone, {beside:.1f} beside slow", flush=True)


if __name__ == "__main__":
    sys.exit(main())
