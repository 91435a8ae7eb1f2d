"""Ranks without torch: processes with torchrun's environment variables, each with one action."""

from __future__ import annotations

import shlex
import sys

#: Like torch with a process group: start a thread of that name.
_GROUP = (
    "import threading; lock = threading.Lock(); lock.acquire(); "
    "group = threading.Thread(target=lock.acquire, daemon=True); group.start(); "
    "open(f'/proc/self/task/{group.native_id}/comm', 'w').write('pt_nccl_watchdg'); "
)
WAIT = f"{_GROUP}threading.Event().wait()"
SLEEP = f"{_GROUP}import time; time.sleep(4000)"
#: A start from a dead mount: `import torch` blocks in reading a module.
STARTING = "import torch"
#: A process that is not a rank but has the platform's RANK, which counts workers.
OTHER = "import sys, time; sys.argv.append('no rank'); time.sleep(4000)"


def script(odd: dict[int, str], workers: int, each: int = 2, usual: str = WAIT, python: str = sys.executable) -> str:
    """A shell script for all workers; RANK is the worker's index. `odd`: code of single ranks."""
    cases = "".join(f"{number}) code={shlex.quote(code)};; " for number, code in odd.items())
    locals_ = " ".join(str(number) for number in range(each))
    return (
        f"{python} -c {shlex.quote(OTHER)} & "
        f"for l in {locals_}; do r=$((RANK * {each} + l)); case $r in {cases}*) code={shlex.quote(usual)};; esac; "
        f"TORCHELASTIC_RUN_ID=x WORLD_SIZE={workers * each} LOCAL_WORLD_SIZE={each} LOCAL_RANK=$l RANK=$r "
        f'{python} -c "$code" & done; wait'
    )
