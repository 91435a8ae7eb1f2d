"""What ranks say about the collectives they wait in: NCCL's watchdog and counters, barriers, fingerprints.

Formats of ProcessGroupNCCL from torch 1.8 to 2.13, and of `monitored_barrier` and `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from atlctl.diagnosis.moments import Moment


class Says(StrEnum):
    """What one line says."""

    #: This rank waited in a collective until the timeout.
    TIMEOUT = "timeout"
    #: Counters only: what this rank enqueued and completed last.
    COUNTERS = "counters"
    #: This rank's watchdog ended it for an error that the text names.
    DIED = "died"
    #: A report that names others: `ranks` did not come.
    NAMES = "names"
    #: A fingerprint of the collective that this rank runs.
    RUNS = "runs"
    #: A fingerprint that this rank was told of by another one; torch may print it garbled.
    HEARD = "heard"


@dataclass(frozen=True, slots=True)
class Collective:
    """One statement. `rank` is global for the default group, else the rank in that group; `seq` counts from 1.

    `group` is the process group's GUID, empty for the default group and where the line has none.
    """

    says: Says
    line_no: int
    text: str
    time: Moment | None
    rank: int | None = None
    group: str = ""
    seq: int | None = None
    operation: str = ""
    sizes: str = ""
    enqueued: int | None = None
    completed: int | None = None
    ranks: tuple[int, ...] = ()


_TEXT_LIMIT = 1_000
#: Ranks of one list that are kept.
_MAX_NAMED = 100_000

_WHO = re.compile(r"\[(?:PG (?P<pg>[^\]]{0,120}?) ?)?Rank (?P<rank>\d{1,7})\]")
#: `ID 3 PG GUID 7(tp)`: the GUID is the same on all members. Before torch 2.5 `7 (tp)` or `7`.
_GROUP = re.compile(r"(?:ID \d{1,9} PG GUID )?(?P<guid>\w{1,64})")
_WORK = re.compile(r"WorkNCCL\((?P<fields>[^)]{0,200}(?:\(ms\)=\d{1,12}[^)]{0,60})?)\)")
_FIELD = re.compile(r"(\w{1,20})=(\w{1,30})")
_COUNTERS = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})",
    re.IGNORECASE,
)
_DIED = re.compile(r"watchdog thread terminated with exception: (?P<why>.{0,600})")
_ASYNC = re.compile(r"raised the following async exception: (?P<why>.{0,600})")
_BARRIER = re.compile(
    r"(?:\[Rank (?P<rank>\d{1,7})\]: )?Ranks? (?P<ranks>[\d, ]{1,12000}) failed to pass monitoredBarrier"
)
_LAGS = re.compile(
    r"\[(?P<ranks>\d{1,7}(?:, ?\d{1,7}){0,2000})\] (?:finished|joined) .{0,60}?but didn't join collective"
)
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq>\d{1,12}),? ?)?OpType=(?P<op>\w{1,40})(?P<sizes>[^)]{0,300}?)(?:TensorDeviceTypes|\))"
)

#: Byte strings of which one stands in every line that is read here.
LITERALS = (
    b"Watchdog caught collective",
    b"ast enqueued",
    b"watchdog thread terminated",
    b"following async exception",
    b"failed to pass monitoredBarrier",
    b"didn't join collective",
    b"Detected mismatch between collectives",
)


def read_collectives(text: str, rank: int | None, line_no: int, time: Moment | None) -> list[Collective]:
    """The statements of one line; `rank` is its prefix's. An empty list for nearly all lines."""
    if "Detected mismatch between collectives" in text:
        return _fingerprints(text, line_no, time)
    shown = text[:_TEXT_LIMIT]
    if "monitoredBarrier" in text:
        return _named(_BARRIER, text, line_no, time)
    if "didn't join collective" in text:
        return _named(_LAGS, text, line_no, time)
    who = _WHO.search(text)
    said = int(who["rank"]) if who else rank
    group = _group(who["pg"]) if who and who["pg"] else ""
    # The prefix is the global rank; what stands in the brackets is the rank in the group.
    said = rank if rank is not None else said
    counted = _COUNTERS.search(text)
    enqueued = int(counted["enqueued"]) if counted else None
    completed = int(counted["completed"]) if counted else None
    if "Watchdog caught collective" in text:
        fields = dict(_FIELD.findall(work["fields"])) if (work := _WORK.search(text)) else {}
        seq = fields.get("SeqNum", "")
        return [
            Collective(
                Says.TIMEOUT,
                line_no,
                shown,
                time,
                said,
                group,
                int(seq) if seq.isdecimal() else None,
                fields.get("OpType", ""),
                fields.get("NumelIn", ""),
                enqueued,
                completed,
            )
        ]
    if counted:
        return [Collective(Says.COUNTERS, line_no, shown, time, said, group, enqueued=enqueued, completed=completed)]
    if _DIED.search(text) or _ASYNC.search(text):
        return [Collective(Says.DIED, line_no, shown, time, said, group)]
    return []


def _group(words: str) -> str:
    match = _GROUP.match(words)
    return "" if match is None or match["guid"] == "0" else match["guid"]


def _named(pattern: re.Pattern[str], text: str, line_no: int, time: Moment | None) -> list[Collective]:
    match = pattern.search(text)
    if match is None:
        return []
    ranks = tuple(int(word) for word in re.findall(r"\d+", match["ranks"])[:_MAX_NAMED])
    return [Collective(Says.NAMES, line_no, text[:_TEXT_LIMIT], time, ranks=ranks)]


def _fingerprints(text: str, line_no: int, time: Moment | None) -> list[Collective]:
    """Both sides of a mismatch: what this rank runs, and what it heard that another runs."""
    return [
        Collective(
            Says.HEARD if number else Says.RUNS,
            line_no,
            text[:_TEXT_LIMIT],
            time,
            int(match["rank"]),
            seq=int(match["seq"]) if match["seq"] else None,
            operation=match["op"],
            sizes=match["sizes"].strip(" ,"),
        )
        for number, match in enumerate(_FINGERPRINT.finditer(text[:8_000]))
    ]
