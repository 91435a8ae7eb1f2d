"""Expected all_reduce bandwidth of known hardware, with the source of each figure; users can add rows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

_WORDS = ("one", "many")


@dataclass(frozen=True, slots=True)
class BusbwRow:
    """One expected figure. The fields are described at the top of expected_busbw.toml."""

    gpu: str
    workers: str
    busbw: float
    source: str
    from_bytes: int = 1 << 30
    per_worker: int | None = None
    nic: int | None = None

    def fits(self, gpu: str, workers: int, per_worker: int, nic: int | None) -> bool:
        return (
            self.gpu.lower() in gpu.lower()
            and self.workers == ("one" if workers == 1 else "many")
            and self.per_worker in (None, per_worker)
            and self.nic in (None, nic)
        )


#: The fields of a row; True if required.
_FIELDS = {each.name: each.default is MISSING for each in fields(BusbwRow)}


@cache
def known() -> tuple[BusbwRow, ...]:
    """The rows of the package."""
    text = (Path(__file__).parent / "expected_busbw.toml").read_text(encoding="utf-8")
    return rows(tomllib.loads(text)["row"])


def rows(tables: Iterable[Mapping[str, Any]]) -> tuple[BusbwRow, ...]:
    """Parse configuration tables into rows. Raises ValueError with the row number and the error."""
    found = []
    for number, table in enumerate(tables, 1):
        if unknown := [name for name in table if name not in _FIELDS]:
            raise ValueError(f"row {number}: unknown field {unknown[0]}")
        if missing := [name for name, needed in _FIELDS.items() if needed and name not in table]:
            raise ValueError(f"row {number}: {', '.join(missing)} missing")
        row = BusbwRow(**table)
        numbers = (row.busbw, row.from_bytes, row.per_worker or 1, row.nic or 1)
        if not all(isinstance(value, int | float) and value > 0 for value in numbers):
            raise ValueError(f"row {number}: busbw, from_bytes, per_worker and nic are numbers above 0")
        if row.workers not in _WORDS or not isinstance(row.gpu, str) or not isinstance(row.source, str):
            raise ValueError(f"row {number}: gpu and source are texts, workers is one of {', '.join(_WORDS)}")
        found.append(row)
    return tuple(found)


def expected(
    gpu: str, workers: int, per_worker: int, nic: int | None = None, extra: Sequence[BusbwRow] = ()
) -> BusbwRow | None:
    """The figure for this hardware, None if unknown; the user's rows (`extra`) have priority."""
    return next((row for row in (*extra, *known()) if gpu and row.fits(gpu, workers, per_worker, nic)), None)
