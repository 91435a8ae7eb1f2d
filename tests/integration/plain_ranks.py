"""Ranks without torch: processes that carry what torchrun gives its own, each doing one thing."""

from __future__ import annotations

import shlex
import sys

#: As torch does where a process group is made: a thread of that name.
_GROUP = (
    "import threading; lock = threading.Lock(); lock.acquire(); "
    "group = threading.Thread(target=lock.acquire, daemon=True); group.start(); "
    "open(f'/proc/self/task/{group.native_id}/comm', 'w').write('pt_nccl_watchdg'); "
)
WAIT = f"{_GROUP}threading.Event().wait()"
SLEEP = f"{_GROUP}import time; time.sleep(4000)"
#: A start whose files are on a mount that is dead: `import torch` reads a module that never comes.
STARTING = "import torch"
#: One that has nothing to do with ranks but carries the platform's RANK, which counts workers.
OTHER = "import sys, time; sys.argv.append('no rank'); time.sleep(4000)"


def script(odd: dict[int, str], workers: int, each: int = 2, usual: str = WAIT, python: str = sys.executable) -> str:
    """Text for `sh` in each worker, whose RANK is its number. `odd`: what single ranks do."""
    cases = "".join(f"{number}) code={shlex.quote(code)};; " for number, code in odd.items())
    locals_ = " ".join(str(number) for number in range(each))
    return (
        f"{python} -c {shlex.quote(OTHER)} & "
        f"for l in {locals_}; do r=$((RANK * {each} + l)); case $r in {cases}*) code={shlex.quote(usual)};; esac; "
        f"TORCHELASTIC_RUN_ID=x WORLD_SIZE={workers * each} LOCAL_WORLD_SIZE={each} LOCAL_RANK=$l RANK=$r "
        f'{python} -c "$code" & done; wait'
    )
