"""Which process a line speaks for, by the prefixes in front of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Prefixes that nest; more than these in one line are not looked at.
_DEPTH = 6

#: `[rank3]: ` of torch's excepthook, `[rank3]:[E1120 ...` of its C++ log: the GLOBAL rank.
_RANK = re.compile(r"\[rank(\d{1,7})\]: ?")
#: `[default0]:` of `--tee`: role and LOCAL rank. `[gpu187:0]:` of accelerate: host and local rank.
_TEE = re.compile(r"\[(?!rank\d)[A-Za-z_][\w.-]{0,60}?(?::)?(\d{1,4})\]:")
#: A template of the user's own that names both (`[default rank=1 local=1] `).
_TEMPLATE = re.compile(
    r"\[[^\]\[]{0,60}\brank[=: ](\d{1,7})[^\]\[]{1,40}?local(?:_rank)?[=: ](\d{1,4})[^\]\[]{0,30}\]:? ?"
)
#: What other tools put in front: it says nothing about a rank.
_NOISE = re.compile(
    r"(?:std(?:err|out): |> |\d{1,9}(?:\.\d{1,9})?s\t\d{1,9}\t|\([A-Za-z_]\w{0,60} pid=\d{1,9}[^)]{0,80}\) ?"
    r"|20\d\d-[^ |]{1,40} \w{1,64} \|\| )"
)
#: `[Rank 3]` and `[PG ID 0 PG GUID 0(default_pg) Rank 3]` of the C++ log, behind the file's name. In another group than
#: the default one (number 0) it is the rank in that group, which says nothing here.
_CPP_RANK = re.compile(r"\[(?:PG (?:ID )?0 [^\]]{0,120}?)?Rank (\d{1,7})\]")
_CPP_LINE = re.compile(r"(?:\[[EWIF](?:\d{3,4} [\d:.]{8,20})? ?[\w.]{1,60}:\d{1,6}\]|  what\(\): ) ?")


@dataclass(frozen=True, slots=True)
class Origin:
    """The process that printed a line: global rank, local rank, each None where no prefix tells."""

    rank: int | None = None
    local_rank: int | None = None

    @property
    def known(self) -> bool:
        return self.rank is not None or self.local_rank is not None


NOBODY = Origin()


def split_origin(text: str) -> tuple[Origin, str]:
    """The origin of a line, and its text without the prefixes. A progress bar in front is passed over."""
    rank: int | None = None
    local: int | None = None
    at = 0
    for _ in range(_DEPTH):
        if match := _RANK.match(text, at):
            rank = int(match[1])
        elif match := _TEMPLATE.match(text, at):
            rank, local = int(match[1]), int(match[2])
        elif match := _TEE.match(text, at):
            local = int(match[1])
        elif not (match := _NOISE.match(text, at)):
            break
        at = match.end()
    if at == 0 and "[rank" in text[:600] and (match := _RANK.search(text, 0, 600)) and text[match.end() :].strip():
        rank, at = int(match[1]), match.end()
    rest = text[at:] if at else text
    if rank is None and (line := _CPP_LINE.match(rest)) and (match := _CPP_RANK.match(rest, line.end())):
        rank = int(match[1])
    return (Origin(rank, local) if rank is not None or local is not None else NOBODY), rest
