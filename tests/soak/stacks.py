"""Faults in a real gloo job, one after another, each looked at by `atlctl stacks` and released again.

    .venv/bin/python -m tests.soak.stacks [RANKS [ROUNDS [SOURCE...]]]

Each round has every fault under every source of stacks: py-spy brought along, torch's own worker server, none at all.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.integration.hanging import FINAL, SILENT, VERDICTS, Hanging, wrong
from tests.integration.local import Registry, registry
from tests.support import proc

SOURCES = ("py-spy", "torch", "none")
_WORKERS = 4
#: Ranks of which none is odd.
_FEW = 2


def main() -> int:
    """Prints a line for each fault and a table; the number of wrong answers."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    found = Counter[tuple[str, str, str]]()
    seconds = defaultdict[tuple[str, str], list[float]](list)
    with registry() as own:
        for source in sys.argv[3:] or SOURCES:
            for kind, result, took in _faults(own, source, ranks, rounds):
                found[source, kind, result] += 1
                seconds[source, kind].append(took)
    for (source, kind), each in seconds.items():
        counts = (f"{result} {found[source, kind, result]}" for result in ("right", "undecided", "wrong"))
        times = f"median {statistics.median(each):.1f} s, longest {max(each):.1f} s"
        print(f"{ranks} ranks {source:7} {kind:9}", *counts, times)
    every = [one for each in seconds.values() for one in each]
    print(f"{len(every)} faults, median {statistics.median(every):.1f} s, longest {max(every):.1f} s")
    return sum(count for (_, _, result), count in found.items() if result == "wrong")


def _faults(own: Registry, source: str, ranks: int, rounds: int) -> Iterator[tuple[str, str, float]]:
    """Kind, result and seconds of each look."""
    chance = random.Random(7)
    words = () if source == "py-spy" else ("--no-pyspy",)
    job = _job(own, "job", source, ranks)
    for kind in [*VERDICTS] * rounds:
        rank = chance.randrange(ranks)
        pid = job.hang(kind, rank)
        begun = time.monotonic()
        data = job.look(*words)
        took = time.monotonic() - begun
        stopped = [one for one in job.pids() if proc.read(one) and _state(one) in "Tt"]
        job.release(kind, pid)
        harmed = [f"{one} stopped" for one in stopped if (one, kind) != (pid, "stop")]
        harmed += ["it did not go on"] * (not job.trains(30))
        yield kind, _result(data, kind, rank, source, took, harmed), took
    own.cli("stop", job.name, "--yes", "--grace", "1", timeout=60)
    for number, kind in enumerate([*FINAL] * rounds if ranks > _FEW else ()):
        rank, job = chance.randrange(ranks), _job(own, f"final-{number}", source, ranks)
        job.hang(kind, rank)
        begun = time.monotonic()
        data = job.look(*words)
        took = time.monotonic() - begun
        own.cli("stop", job.name, "--yes", "--grace", "1", timeout=60)
        yield kind, _result(data, kind, rank, source, took, []), took


def _job(own: Registry, name: str, source: str, ranks: int) -> Hanging:
    """A job that trains."""
    env = ["TORCH_FR_BUFFER_SIZE=2000"] if source == "torch" else []
    sockets = [f"TORCH_WORKER_SERVER_SOCKET={own.home}/{name}-"] if source == "torch" else []
    workers = min(_WORKERS, ranks)
    job = Hanging(own, f"{name}-{source}", workers, ranks // workers, *env, *sockets)
    assert job.trains(180), own.cli("logs", job.name, "--tail", "20").stdout.decode()
    return job


def _result(data: Any, kind: str, rank: int, source: str, took: float, harmed: list[str]) -> str:
    said = wrong(data, kind, rank, source == "py-spy" or (source == "torch" and kind not in SILENT))
    undecided = said and data["verdict"] == "undecided"
    result = "wrong" if harmed or (said and not undecided) else "undecided" if undecided else "right"
    told = ", ".join([said or f"right, {data['confidence']}", *harmed])
    print(f"{source:7} {kind:9} rank {rank:2} {took:5.1f} s {told}", flush=True)
    return result


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode()


if __name__ == "__main__":
    sys.exit(main())
