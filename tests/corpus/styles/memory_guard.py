"""Kills the process of this worker that takes more than 900 MiB, as the kernel does at a container's limit."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

LIMIT = 900 * 2**20
#: The variables by which the maker knows the processes of this run and worker. Nobody else's may be killed.
MARKS = {f"{name}={os.environ[name]}" for name in ("CORPUS_RUN", "CORPUS_WORKER")}


def is_greedy(process: Path) -> bool:
    """Whether it is a process of this worker and takes too much."""
    try:
        pages = int((process / "statm").read_text().split()[1])
        variables = (process / "environ").read_text(errors="replace").split("\0")
    except OSError:  # gone, or somebody else's
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > LIMIT and set(variables) >= MARKS


while True:
    for process in Path("/proc").glob("[0-9]*"):
        if is_greedy(process):
            os.kill(int(process.name), signal.SIGKILL)
    time.sleep(0.1)
