"""Two looks at the same ranks: what moved between them, and what did not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atlctl.diagnosis.hang.judge import Judged
from atlctl.diagnosis.hang.scene import Scene

#: still: it ran in neither look and is where it was. same: it ran, and is at the same place of the code. moved: it is
#: at another place. ran: it ran, and where it is cannot be seen. new: another process, or none before. gone: no longer.
Moved = Literal["still", "same", "moved", "ran", "new", "gone"]


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one rank from the first look to the second."""

    rank: int | None
    worker: str | None
    how: Moved


def changes(first: Scene, second: Scene) -> tuple[Change, ...]:
    """One for each rank of either look, in order."""
    before = {_key(rank): rank for rank in first.ranks}
    after = {_key(rank): rank for rank in second.ranks}
    found = [Change(rank.rank, rank.worker, _how(before.get(key), rank)) for key, rank in after.items()]
    found += [Change(rank.rank, rank.worker, "gone") for key, rank in before.items() if key not in after]
    return tuple(sorted(found, key=lambda change: (change.rank is None, change.rank or 0, change.worker or "")))


def _key(rank: Judged) -> tuple[object, ...]:
    # A rank that is gone has no home where nothing tells one.
    return (rank.rank,) if rank.rank is not None else (rank.worker, rank.report.pid if rank.report else None)


def _how(old: Judged | None, new: Judged) -> Moved:
    if new.report is None:
        return "gone"
    if old is None or old.report is None:
        return "new"
    if (old.worker, old.report.pid, old.report.start) != (new.worker, new.report.pid, new.report.start):
        return "new"
    if bool(old.frames) != bool(new.frames) or old.frames != new.frames or old.pending != new.pending:
        return "moved" if old.frames and new.frames else "ran"
    if old.still and new.still and old.report.looks[-1:] == new.report.looks[:1]:
        return "still"
    return "same" if new.frames else "ran"
