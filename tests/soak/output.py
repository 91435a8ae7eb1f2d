"""`exec --all --output-dir` of random files on a test cluster, on hosts and on this machine, every byte compared.

`python -m tests.soak.output kubernetes|ssh|local`; exits 1 when a file was not what was sent, or a run was told as what
it was not.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.apiserver.handle import Server
from tests.benchmarks.sshsite import Site
from tests.integration.local import registry
from tests.integration.stopping import Cluster

#: What starts `atlctl`, the words that name the job and its workers, and the environment.
Way = tuple[list[str], list[str], dict[str, str]]


@contextmanager
def on_kubernetes(workers: int, folder: Path, stall: float) -> Iterator[Way]:
    """`stall`: seconds of silence within each stream."""
    with Server() as server:
        Cluster(server).pytorchjob("job", workers)
        if stall:
            server.fault("pause", seconds=stall, bytes=1 << 20)
        names = [f"worker-{index}" for index in range(workers)]
        yield ["exec", "-j", "job"], names, {"KUBECONFIG": str(server.kubeconfig), "HOME": str(folder)}
        assert not server.errors(), server.errors()


@contextmanager
def on_hosts(workers: int, folder: Path, stall: float) -> Iterator[Way]:
    assert not stall, "only the test cluster pauses"
    site = Site(folder, workers)
    try:
        hosts = site.names(workers)
        yield ["exec", "--hostfile", str(hosts)], hosts.read_text().split(), site.env
    finally:
        site.close()


@contextmanager
def on_this_machine(workers: int, folder: Path, stall: float) -> Iterator[Way]:
    assert not stall, "only the test cluster pauses"
    with registry() as own:
        own.start("job", workers)
        env = {name: value for name, value in own.env.items() if value is not None}
        yield ["exec", "-j", "job"], [f"worker-{index}" for index in range(workers)], env


WAYS = {"kubernetes": on_kubernetes, "ssh": on_hosts, "local": on_this_machine}


def compare(way: Way, size: int, folder: Path, dice: random.Random) -> tuple[int, int, bool, float]:
    """One run: files that are short or wrong, the most bytes that one lacks, whether it was told rightly, seconds."""
    words, names, env = way
    sent, out = folder / "sent", folder / "out"
    sent.write_bytes(dice.randbytes(size))
    begun = time.monotonic()
    argv = [sys.executable, "-m", "atlctl", *words, "--all", "--output-dir", str(out), "--", "cat", str(sent)]
    run = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    wrong = missing = 0
    for name in names:
        file = out / f"{name}.out"
        if subprocess.run(["cmp", "-s", sent, file], check=False).returncode:
            wrong += 1
            missing = max(missing, size - (file.stat().st_size if file.exists() else 0))
        file.unlink(missing_ok=True)
    # A server that is slow because the machine is may be waited for, which is said.
    told = [line for line in run.stderr.splitlines() if not line.startswith("note: waiting for ")]
    right = (run.returncode == 255) if wrong else run.returncode == 0 and told == [f"ok: {_folded(names)}"]
    if wrong or not right:
        sys.stderr.write(f"{wrong} wrong, at most {missing} bytes short; exit code {run.returncode}\n{run.stderr}")
    return wrong, missing, right, seconds


def _folded(names: list[str]) -> str:
    from atlctl.jobs.naming import fold_names

    return f"{fold_names(names)} ({len(names)})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.output", description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--mib", type=int, default=0, help="MiB of each file (1 to 5)")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--stall", type=float, default=0.0, help="seconds of silence within each stream")
    options = parser.parse_args()
    dice = random.Random(4711)
    files, missing, untold, seconds = 0, 0, 0, []
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    try:
        with tempfile.TemporaryDirectory(prefix="atl-") as name:
            folder = Path(name)
            with WAYS[options.way](options.workers, folder, options.stall) as way:
                for _ in range(options.runs):
                    size = options.mib << 20 or dice.randint(1 << 20, 5 << 20)
                    wrong, lacking, right, took = compare(way, size, folder, dice)
                    files, missing, untold = files + wrong, max(missing, lacking), untold + (not right)
                    seconds.append(took)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    sys.stdout.write(
        f"| `exec`, {options.way}, {options.workers} workers, {options.mib or '1 to 5'} MiB, load {options.load}, "
        f"stalls of {options.stall:.0f} s | {options.runs} runs | {options.runs * options.workers} files | "
        f"{files} wrong, at most {missing} bytes short | {untold} told wrongly | "
        f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s |\n"
    )
    return int(bool(files or untold))


if __name__ == "__main__":
    sys.exit(main())
