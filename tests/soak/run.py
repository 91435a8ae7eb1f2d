"""A job's life, over and over: four workers in network namespaces, one breaks, is found, mended in place and run again.

    .venv/bin/python -m tests.soak.run [CYCLES [folder|key [PROGRAM]]]

PROGRAM: the executable file, in place of this package.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.smoke import netns
from tests.integration.wrapped import Wrapped, wrapped
from tests.support import cli, proc

COUNT, SETTLE, KEY = 4, 1, "k" * 40
#: Rank 1 breaks when it has trained a little; the others train on until the script is mended.
BROKEN = """\
import os, sys, time, torch
rank = os.environ["RANK"]
for step in range(100_000):
    print("step", step, "of rank", rank, flush=True)
    if rank == "1" and step == 20:
        print("breaks at", time.time(), flush=True)
        raise ValueError("a bad batch")
    time.sleep(0.05)
"""
MENDED = 'import os\nprint("trained rank", os.environ["RANK"], flush=True)\n'


def main() -> int:
    """Prints a line for each cycle and a table; the number of wrong cycles."""
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    shared = sys.argv[2:3] != ["key"]
    cli.ATLCTL = tuple(sys.argv[3:4]) or cli.ATLCTL
    wrong, verdicts, whole = 0, [], []
    for number in range(cycles):
        os.environ[proc.MARK] = mark = uuid.uuid4().hex
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                with _job(Path(folder), shared=shared) as job:
                    verdicts.append(_cycle(job))
                    ports = [port for index in range(COUNT) if (port := _listening(job.before[index]))]
                states = [str(path) for path in Path(folder).glob("state-*/run/*/*")]
                problem = f"left: {ports} {states}" if ports or states else ""
            except AssertionError as error:
                problem = str(error)
        left = [found.command for found in proc.leftovers(mark)]
        whole.append(time.monotonic() - begun)
        problem += f" left running: {left}" * bool(left)
        wrong += bool(problem)
        print(f"cycle {number + 1}: {whole[-1]:.1f} s, verdicts {verdicts[number:]}  {problem}", flush=True)
    verdicts = verdicts or [float("nan")]
    times = f"verdict after the settle time: median {statistics.median(verdicts):.1f} s, longest {max(verdicts):.1f} s"
    print(f"{cycles} cycles, {wrong} wrong, median {statistics.median(whole):.1f} s; {times}")
    return wrong


@contextmanager
def _job(folder: Path, *, shared: bool) -> Iterator[Wrapped]:
    """The job: with a folder on shared storage, or with a key and no folder."""
    with netns.Network(COUNT) as network:
        environ: dict[str, str | None] = {"MASTER_ADDR": network.address(0), "ATLCTL_CHECK_ITEMS": "facts,mesh"}
        if not shared:
            (folder / "key").write_text(KEY)
            (folder / "hosts").write_text("".join(f"{network.address(index)}\n" for index in range(COUNT)))
            environ |= {"ATLCTL_RUN_DIR": None, "ATLCTL_JOB_KEY_FILE": str(folder / "key")}
            environ |= {"OMPI_MCA_orte_default_hostfile": str(folder / "hosts")}
        before = {index: ["ip", "netns", "exec", network.space(index)] for index in range(COUNT)}
        with wrapped(folder, COUNT, environ, before) as job:
            yield job


def _cycle(job: Wrapped) -> float:
    """Seconds from the end of the settle time to the verdict. Raises AssertionError."""
    script = job.folder / "train.py"
    script.write_text(BROKEN)
    job.start("--settle", str(SETTLE), "--hold", "10m", "--", sys.executable, "train.py")
    job.until_said(1, "breaks at ")
    job.until_said(0, "worker-1, line")
    late = time.time() - float(job.said(1).split("breaks at ")[1].split()[0]) - SETTLE
    assert "root cause: worker-1" in job.said(0), job.said(0)
    assert "ValueError: a bad batch" in job.said(0), job.said(0)
    assert job.states(2) == ["Running", "Held", "Running", "Running"], job.states(2)
    done = job.atlctl(2, "exec", "--all", "--no-prefix", "--", "sh", "-c", "echo $RANK; hostname")
    assert (done.code, done.stdout.count(b"\n")) == (0, 2 * COUNT), done
    assert "a bad batch" in str(job.data(2, "errors")["root_causes"])
    stacks = job.data(2, "stacks")
    assert str(stacks).count("train.py") >= COUNT - 1, stacks
    assert job.atlctl(2, "stop", "--keep", "--yes").code == 0
    assert job.states(2) == ["Debugging"] * COUNT, job.states(2)
    script.write_text(MENDED)
    assert job.atlctl(2, "rerun", "--yes").code == 0
    assert job.codes() == [0] * COUNT, [job.said(index)[-500:] for index in range(COUNT)]
    assert all(f"trained rank {index}" in job.said(index) for index in range(COUNT))
    return late


def _listening(before: Sequence[str]) -> str:
    """Ports that are listened on in a namespace."""
    return subprocess.run([*before, "ss", "-Hltn"], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
