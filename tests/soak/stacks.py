"""Faults in a real job of 16 ranks, one after another, each looked at by `atlctl stacks` and released again.

    .venv/bin/python -m tests.soak.stacks [ROUNDS]

Each round has every fault under every source of stacks: py-spy brought along, torch's own worker server, none at all.
"""

from __future__ import annotations

import random
import sys
import time

from tests.integration.hanging import VERDICTS, Hanging, wrong
from tests.integration.local import registry
from tests.support import proc

_WORKERS, _EACH = 4, 4


def main() -> int:
    """Prints a line for each fault; the number of wrong answers."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    chance = random.Random(7)
    bad, slowest, count = 0, 0.0, 0
    with registry() as own:
        for source in ("py-spy", "torch", "none"):
            env = ["TORCH_FR_BUFFER_SIZE=2000"] if source == "torch" else []
            sockets = [f"TORCH_WORKER_SERVER_SOCKET={own.home}/server-"] if source == "torch" else []
            job = Hanging(own, f"job-{source}", _WORKERS, _EACH, *env, *sockets)
            assert job.trains(180), own.cli("logs", job.name, "--tail", "20").stdout.decode()
            words = () if source == "py-spy" else ("--no-pyspy",)
            for _ in range(rounds):
                for kind in VERDICTS:
                    rank = chance.randrange(job.world)
                    pid = job.hang(kind, rank)
                    begun = time.monotonic()
                    said = wrong(job.look(*words), kind, rank, source != "none")
                    took = time.monotonic() - begun
                    stopped = [one for one in job.pids() if proc.read(one) and _state(one) in "Tt"]
                    job.release(kind, pid)
                    goes_on = job.trains(30)
                    bad += bool(said or stopped or not goes_on)
                    slowest, count = max(slowest, took), count + 1
                    told = [
                        said or "right",
                        *["it did not go on"] * (not goes_on),
                        *[f"{one} stopped" for one in stopped],
                    ]
                    print(f"{source:7} {kind:6} rank {rank:2} {took:5.1f} s {', '.join(told)}", flush=True)
            own.cli("stop", job.name, "--yes", "--grace", "1", timeout=60)
    print(f"{count} faults, {bad} wrong, slowest {slowest:.1f} s")
    return bad


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode()


if __name__ == "__main__":
    sys.exit(main())
