"""Which ranks live in a worker and at which addresses, from what its processes say about themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Byte strings of which one stands in every line that is read here.
LITERALS = (
    b"local_rank",
    b"LOCAL_RANK",
    b"ocal rank",
    b"ocal Rank",
    b"global_ranks=",
    b"global_world_sizes=",
    b" nranks ",
    b"Bootstrap : Using",
    b"Bootstrap: Using",
    b", local=[",
    b"orld size",
    b"orld Size",
)

_RANK = re.compile(r"(?<![\w.])(?<!local )(?:global[_ ]?)?rank[=: ]{1,3}(\d{1,7})(?![\d.])", re.IGNORECASE)
_LOCAL = re.compile(r"(?<![\w.])local[_ -]?rank[=: ]{1,3}(\d{1,4})(?![\d.])", re.IGNORECASE)
_WORLD = re.compile(r"(?<![\w.])(?:world(?:[_ ]?size)?[=: ]{1,3}|rank \d{1,7} of )(\d{1,7})(?![\d.])", re.IGNORECASE)
_PID = re.compile(r"\bpid[=: ]{1,3}(\d{1,9})\b")
_GLOBALS = re.compile(r"\bglobal_ranks=\[(\d{1,7}(?:, \d{1,7}){0,200})\]")
_WORLDS = re.compile(r"\bglobal_world_sizes=\[(\d{1,7})")
_NCCL = re.compile(r"NCCL INFO .{0,80}?\brank (\d{1,7}) nranks (\d{1,7}) cudaDev (\d{1,4})\b")
#: Addresses of this side: NCCL's bootstrap, gloo's report of a failed connection.
_OWN = re.compile(r"Bootstrap ?: Using [^\s:]{1,30}:([\d.]{7,15}|[0-9a-fA-F:]{3,45})<|, local=\[([^\]\s]{3,60})\]")


@dataclass(frozen=True, slots=True)
class Identity:
    """One process: global rank, local rank where it was said, its pid in the worker. `world`: processes in all."""

    line_no: int
    rank: int | None
    local_rank: int | None
    world: int | None
    pid: int | None = None


def read_identity(text: str, line_no: int) -> list[Identity]:
    """What one line says about who is who; an empty list for nearly all lines."""
    if match := _GLOBALS.search(text):
        ranks = [int(word) for word in match[1].split(", ")]
        return [Identity(line_no, rank, local, None) for local, rank in enumerate(ranks)]
    if match := _WORLDS.search(text):
        return [Identity(line_no, None, None, int(match[1]))]
    if match := _NCCL.search(text):
        return [Identity(line_no, int(match[1]), int(match[3]), None)]
    local = _LOCAL.search(text)
    rank = _RANK.search(text) if local else None
    world = _WORLD.search(text)
    if rank and local:
        pid = _PID.search(text)
        return [
            Identity(
                line_no, int(rank[1]), int(local[1]), int(world[1]) if world else None, int(pid[1]) if pid else None
            )
        ]
    return []


def read_address(text: str) -> str | None:
    """The address of the worker that printed this line, where it names one as its own."""
    match = _OWN.search(text)
    return (match[1] or match[2]) if match else None
