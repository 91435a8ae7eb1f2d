"""Which ranks a worker's processes hold, on which GPUs, and where their launcher keeps their files.

A small script looks at the environments of torchrun's processes and asks nvidia-smi. What it prints comes from
inside the worker: it is read as hostile text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atlctl.backends.base import Argv, Executor
from atlctl.jobs.model import Worker
from atlctl.recording.recorder.ask import ask

SECONDS = 20.0
_LIMIT = 256 * 1024
_MOST = 1024
_TEXT = 4096
#: One line for each process: its worker where that is a local job's, rank, local rank, its visible devices, its error
#: file, the prefix of its dumps. Then the GPUs. One `grep` finds the processes: a shell needs long for each. Not with
#: -F, which in some builds of busybox sees nothing behind the first NUL.
_SCRIPT = r"""
if command -v grep >/dev/null 2>&1; then set -- $(grep -l TORCHELASTIC_RUN_ID= /proc/[0-9]*/environ 2>/dev/null)
else set -- /proc/[0-9]*/environ; fi
for f in "$@"; do
  tr '\0' '\n' <"$f" 2>/dev/null | { r= l= t= d=- e= b= j= w= s=
    while IFS= read -r x; do
      case $x in
        RANK=*) r=${x#*=};; LOCAL_RANK=*) l=${x#*=};; TORCHELASTIC_RUN_ID=*) t=1;;
        CUDA_VISIBLE_DEVICES=*) d=${x#*=};; TORCHELASTIC_ERROR_FILE=*) e=${x#*=};;
        TORCH_NCCL_DEBUG_INFO_TEMP_FILE=*|TORCH_FR_DUMP_TEMP_FILE=*) b=${x#*=};;
        ATLCTL_JOB=*) j=${x#*=};; ATLCTL_WORKER=*) w=${x#*=};; ATLCTL_STATE_DIR=*) s=${x#*=};;
      esac
    done
    [ -n "$t" ] && [ -n "$l" ] && [ "$j/$s" = "$ATLCTL_JOB/$ATLCTL_STATE_DIR" ] &&
      printf 'P\t%s\t%s\t%s\t%s\t%s\t%s\n' "$w" "$r" "$l" "$d" "$e" "$b"; }
done | sort -u
command -v nvidia-smi >/dev/null 2>&1 || exit 0
nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv,noheader 2>/dev/null | while IFS= read -r x; do
  printf 'G\t%s\n' "$x"
done
exit 0
"""


@dataclass(slots=True)
class Seat:
    """One process: its global and local rank, and the GPU that it sees as its own, where that can be told."""

    rank: int
    local_rank: int
    gpu: str | None = None


@dataclass(slots=True)
class Seats:
    """What was found in one worker. `gpus`: index, UUID, PCI address. `roots`: folders and prefixes of files."""

    seats: list[Seat] = field(default_factory=list)
    gpus: list[tuple[int, str, str]] = field(default_factory=list)
    roots: set[str] = field(default_factory=set)
    dumps: set[str] = field(default_factory=set)

    def data(self) -> dict[str, Any]:
        """`ranks` and `gpus` of a worker in `atlctl.json`."""
        local = {seat.gpu: seat.local_rank for seat in self.seats if seat.gpu is not None}
        ranks = [{"rank": seat.rank, "local_rank": seat.local_rank, "gpu_uuid": seat.gpu} for seat in self.seats]
        gpus = [
            {"local_rank": local.get(uuid), "index": index, "uuid": uuid, "pci": pci} for index, uuid, pci in self.gpus
        ]
        return {"ranks": ranks, "gpus": gpus}


async def look(executor: Executor, worker: Worker) -> dict[str, Seats] | None:
    """The ranks and GPUs of a worker that lives, by name; None where it did not tell.

    Local jobs share a machine: any of their workers tells of all.
    """
    held = bytearray()

    def take(data: bytes) -> None:
        held.extend(data[: _LIMIT - len(held)])

    problem = await ask(executor, worker, Argv(("sh", "-c", _SCRIPT)), SECONDS, take)
    return None if problem else read(bytes(held), worker.name)


def read(data: bytes, asked: str) -> dict[str, Seats]:
    """What the script printed in the worker `asked`. Never raises."""
    gpus: list[tuple[int, str, str]] = []
    processes: dict[str, list[list[str]]] = {asked: []}
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        kind, _, rest = line[:_TEXT].partition("\t")
        if kind == "P" and len(parts := rest.split("\t")) == 6:
            processes.setdefault(parts[0] or asked, []).append(parts[1:])
        elif kind == "G" and len(gpus) < _MOST:
            index, *more = [part.strip() for part in rest.split(",")]
            if index.isascii() and index.isdigit() and len(index) < 5 and len(more) == 2:
                gpus.append((int(index), more[0], more[1]))
    return {name: _seats(parts, gpus) for name, parts in processes.items()}


def _seats(processes: list[list[str]], gpus: list[tuple[int, str, str]]) -> Seats:
    found = Seats(gpus=gpus)
    for rank, local, visible, error_file, prefix in processes[:_MOST]:
        if not all(text.isascii() and text.isdigit() and len(text) < 8 for text in (rank, local)):
            continue
        if all(seat.rank != int(rank) for seat in found.seats):
            found.seats.append(Seat(int(rank), int(local), _gpu(int(local), visible, gpus)))
        # RUN/attempt_N/LOCAL_RANK/error.json: all attempts lie below RUN.
        root = error_file.rsplit("/", 3)
        if error_file.startswith("/") and len(root) == 4 and root[0]:
            found.roots.add(root[0])
        if prefix.startswith("/"):
            found.dumps.add(prefix)
    found.seats.sort(key=lambda seat: seat.rank)
    return found


def _gpu(local_rank: int, visible: str, gpus: list[tuple[int, str, str]]) -> str | None:
    """The UUID of the device that `cuda:LOCAL_RANK` is, or of the only one that the process sees."""
    if visible == "-":
        order = [uuid for _, uuid, _ in gpus]
    else:
        named = [word.strip() for word in visible.split(",") if word.strip()]
        by_index = {str(index): uuid for index, uuid, _ in gpus}
        order = [by_index.get(word) or next((u for _, u, _ in gpus if u.startswith(word)), "") for word in named]
    place = 0 if len(order) == 1 else local_rank
    return (order[place] or None) if place < len(order) else None
