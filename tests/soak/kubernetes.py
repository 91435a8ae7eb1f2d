"""`exec` in many pods, some of which go wrong in every way that the test API server knows.

`python -m tests.soak.kubernetes`. Every worker must have the outcome that is true for it. Exits with 1 where one has
not, with what is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.apiserver.handle import Server
from tests.integration.stopping import Cluster
from tests.support.cli import popen_cli

#: Share of the workers that each sort of fault hits.
SHARE = 0.05
#: Seconds that a command may take (`exec --timeout`), and to start (`--connect-timeout`).
TIMEOUT = 30
CONNECT = 10
PEAK_MB = 200
#: Prints where it runs, and ends with a code of its own.
SCRIPT = 'echo "$HOSTNAME"; echo "no $HOSTNAME" >&2; sleep 1; exit $((${HOSTNAME##*-} % 5))'
JOB = "soak"


@dataclass(frozen=True)
class Sort:
    """A fault, and what is true of a worker that it hits: `outcome` and whether its output is whole."""

    fault: Mapping[str, Any]
    outcome: str = "exited"
    whole: bool = True


SORTS = {
    # The server asks for patience once or twice, then serves.
    "throttle": Sort({"action": "throttle", "times": 2, "seconds": 1}),
    "unavailable": Sort({"action": "unavailable", "times": 1}),
    "dialing": Sort({"action": "dialing", "times": 2}),
    # It never does: the command has not run.
    "dialing for ever": Sort({"action": "dialing"}, "failed_to_start", whole=False),
    "status": Sort({"action": "status", "code": 500}, "failed_to_start", whole=False),
    "delay": Sort({"action": "delay", "seconds": 0.5}),
    # The connection goes before an answer or while it runs: what became of the command cannot be known.
    "drop": Sort({"action": "drop"}, "lost", whole=False),
    "drop-after": Sort({"action": "drop-after", "seconds": 0.05}, "lost", whole=False),
    # The wrapper has told the exit code, and the end of the output has not come; or it has, and no status.
    "drop-before-end": Sort({"action": "drop-before-end"}, "lost"),
    "drop-before-exit": Sort({"action": "drop-before-exit"}),
    "drop-inside-exit": Sort({"action": "drop-inside-exit"}),
    "drop-after-exit": Sort({"action": "drop-after-exit"}),
    "stall": Sort({"action": "stall"}, "timeout", whole=False),
    # The wrapper has told the exit code; the server never says that the output is at its end.
    "stall-before-exit": Sort({"action": "stall-before-exit"}),
    "slow": Sort({"action": "slow", "seconds": 0.1}),
    "split": Sort({"action": "split", "bytes": 1}),
}


def hit(workers: int, seed: int) -> dict[int, str]:
    """Which worker is hit by which sort: `SHARE` of them by each."""
    chosen = random.Random(seed).sample(range(workers), max(1, round(workers * SHARE)) * len(SORTS))
    return {worker: list(SORTS)[index % len(SORTS)] for index, worker in enumerate(chosen)}


def run(cluster: Cluster, workers: int, seed: int, folder: Path, connect: int = CONNECT) -> list[str]:
    """One `exec --all` with faults. Returns what was wrong."""
    server = cluster.server
    cluster.pytorchjob(JOB, workers)
    faults = hit(workers, seed)
    server.clear_faults()
    for index, sort in faults.items():
        server.fault(name=f"{JOB}-worker-{index}", **SORTS[sort].fault)
    words = ["exec", "-j", JOB, "--all", "-o", "json", "--connect-timeout", str(connect), "--timeout", str(TIMEOUT)]
    begun = time.monotonic()
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = popen_cli(
            *words,
            *("--", "sh", "-c", SCRIPT),
            env={"KUBECONFIG": str(server.kubeconfig)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, _megabytes(process.pid))
            time.sleep(0.05)
    seconds = time.monotonic() - begun
    lines = [json.loads(line) for line in (folder / "out").read_bytes().splitlines()]
    wrong = judge(lines, workers, faults, process.returncode)
    # Those that never answer hold a place among the 64 that are connected to at once.
    stalled = sum(sort == "stall" for sort in faults.values())
    if seconds > (allowed := TIMEOUT + connect * (stalled // 64 + 1) + workers / 25):
        wrong.append(f"took {seconds:.0f} s, more than {allowed:.0f}")
    if peak > PEAK_MB:
        wrong.append(f"took {peak:.0f} MB")
    if server.errors():
        wrong.append(server.errors()[-2000:])
    if wrong:
        wrong.append((folder / "err").read_text()[-2000:])
    sys.stderr.write(f"seed {seed}: {workers} workers, {seconds:.1f} s, {peak:.0f} MB, {len(wrong)} wrong\n")
    return wrong


def judge(lines: list[dict[str, Any]], workers: int, faults: Mapping[int, str], code: int | None) -> list[str]:
    """What is wrong with the lines of `exec -o json`."""
    outputs: dict[tuple[str, str], str] = {}
    outcomes: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["type"] == "output":
            key = line["worker"], line["stream"]
            outputs[key] = outputs.get(key, "") + line["data"]
        elif line["type"] == "outcome":
            outcomes.setdefault(line["worker"], []).append(line)
    wrong = [] if code == 255 else [f"exit code {code}"]
    if lines[-1]["type"] != "summary" or lines[-1]["status"] == "success":
        wrong.append(f"the last line is {lines[-1]}")
    for index in range(workers):
        name, pod = f"worker-{index}", f"{JOB}-worker-{index}"
        sort = faults.get(index, "none")
        true = SORTS.get(sort, Sort({}))
        told = outcomes.pop(name, [])
        if len(told) != 1:
            wrong.append(f"{name} ({sort}): {len(told)} outcomes")
            continue
        found = told[0]
        expected = {"exited": index % 5, "failed_to_start": 255}.get(true.outcome)
        if (found["outcome"], found["exit_code"]) != (true.outcome, expected):
            wrong.append(f"{name} ({sort}): {found}")
        printed = [outputs.get((name, stream)) for stream in ("stdout", "stderr")]
        if true.whole and printed != [f"{pod}\n", f"no {pod}\n"]:
            wrong.append(f"{name} ({sort}): printed {printed}")
    return wrong + [f"{name}: not a worker" for name in outcomes]


def left(cluster: Cluster, workers: int) -> list[str]:
    """Commands that still run in the pods. What was stopped takes a moment to go."""
    deadline = time.monotonic() + 20
    while True:
        found = [
            process["command"]
            for index in range(workers)
            for process in cluster.server.processes(f"{JOB}-worker-{index}")
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def _megabytes(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    _, found, rest = text.partition("VmHWM:")
    return int(rest.split()[0]) * 1024 / 1e6 if found else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kubernetes", description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="atl-") as folder, Server() as server:
        os.environ["HOME"] = folder
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        cluster = Cluster(server)
        wrong = run(cluster, options.workers, options.seed, Path(folder))
        wrong += [f"left: {command}" for command in left(cluster, options.workers)]
    sys.stderr.write("".join(line + "\n" for line in wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
