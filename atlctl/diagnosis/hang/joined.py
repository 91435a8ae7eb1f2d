"""What flight recorders add: the collective that a rank waits in, and who has not entered it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atlctl.diagnosis.recorder.dump import FlightDump
from atlctl.diagnosis.recorder.gaps import Missing, missing_ranks


@dataclass(frozen=True, slots=True)
class Pending:
    """A collective that has not ended on a rank. `seq` counts those of the group from 1."""

    seq: int
    operation: str
    group: str


@dataclass(frozen=True, slots=True)
class Joined:
    """`pending` by rank; `missing` is the collective at which the ranks parted, `absent` those that are not in it."""

    pending: Mapping[int, Pending]
    missing: Missing | None = None

    @property
    def absent(self) -> frozenset[int]:
        return frozenset(self.missing.absent) if self.missing else frozenset()


def join(dumps: Sequence[tuple[FlightDump, float | None]], window: float) -> Joined:
    """From dumps, each with its worker's clock in seconds. What is younger than `window` seconds may still go on."""
    pending: dict[int, Pending] = {}
    for dump, now in dumps:
        waiting = [
            (entry.created_ns or 0, entry.seq, entry.operation, state.description or state.name)
            for state in dump.groups
            for entry in state.pending
            if not entry.p2p and _old(entry.created_ns, now, window)
        ]
        if dump.rank is not None and waiting:
            _, seq, operation, group = min(waiting)
            pending[dump.rank] = Pending(seq, operation, group)
    clocks = [now for _, now in dumps if now is not None]
    now = min(clocks) if clocks else None
    found = [item for item in missing_ranks([dump for dump, _ in dumps]) if _old(item.created_ns, now, window)]
    return Joined(pending, next((item for item in found if item.absent), None))


def _old(created_ns: int | None, now: float | None, window: float) -> bool:
    return created_ns is not None and (now is None or now - created_ns / 1e9 >= window)
