"""The one reader of `nvidia-smi`: which fields are asked for, the CSV that it prints, what slows clocks down.

The text comes from inside a worker: it may be cut, binary, or of a script that is only called so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: The fields that `parse` expects, in this order. All are known to drivers of the last ten years.
FIELDS = (
    "index",
    "uuid",
    "name",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "power.draw",
    "temperature.gpu",
    "ecc.errors.uncorrected.volatile.total",
)
FORMAT = "--format=csv,noheader,nounits"
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", FORMAT)
#: One more field: what slows the clocks down, as bits. It was renamed, and drivers refuse a query with a field that is
#: unknown to them.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")

#: NVML's bits that say that heat, the power supply or the hardware itself slows the clocks down. The other bits are
#: ordinary: idle, a power limit that is reached, clocks that were set.
_SLOWED = {0x40: "heat", 0x20: "heat", 0x80: "power brake", 0x08: "hardware"}

#: Fields that are no numbers.
_TEXT = frozenset({
    "uuid", "gpu_uuid", "name", "pci.bus_id", "remapped_rows.pending", "remapped_rows.failure", "retired_pages.pending",
    "mig.mode.current",
})  # fmt: skip
#: Bytes of a line that is looked at, characters of one that is told, GPUs of one worker, odd lines that are kept.
_LINE = 1024
_TOLD = 240
_GPUS = 1024
_ODD = 8

_NUMBER = re.compile(r"(-?[0-9]{1,12})(?:[.,]([0-9]{1,6}))?", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,4}", re.ASCII)
_BITS = re.compile(r"0x[0-9A-Fa-f]{1,16}", re.ASCII)
#: What stands where a GPU cannot tell: `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` (MIG), `ERR!`.
_UNKNOWN = re.compile(r"\[[^\[\]]{0,80}\]|N/A|ERR!|Unknown Error", re.ASCII)
_NONE = "no devices were found"


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment; None where it does not tell. `name` and `uuid` are hostile text.

    Utilisation in percent, memory in MiB, power in W, temperature in degrees Celsius. `ecc_uncorrected` counts memory
    errors that ECC could not correct since the driver was loaded. `clock_reasons`: NVML's bits of what slows its clocks
    down, if they were asked for.
    """

    index: int
    uuid: str | None
    name: str | None
    utilization: float | None
    memory_used: float | None
    memory_total: float | None
    power: float | None
    temperature: float | None
    ecc_uncorrected: int | None
    clock_reasons: int | None = None


@dataclass(frozen=True)
class Readout:
    """The GPUs of one worker. `odd`: the first lines that were no GPU (hostile text), as a GPU that is lost gives.
    `none`: nvidia-smi reported that there is no GPU."""

    gpus: tuple[Gpu, ...] = ()
    odd: tuple[str, ...] = ()
    none: bool = False


def parse(data: bytes, reasons: bool = False) -> Readout:
    """What `QUERY` printed. Never raises.

    `reasons`: one of `REASONS` was asked for as well, as the last field.
    """
    found, odd, none = rows((*FIELDS, REASONS[0]) if reasons else FIELDS, data, FIELDS if reasons else ())
    gpus = []
    for row in found:
        ecc = row.pop(FIELDS[-1])
        row["ecc"] = None if ecc is None else int(ecc)
        gpus.append(Gpu(*(row[name] for name in (*FIELDS[:-1], "ecc", REASONS[0]) if name in row)))
    return Readout(tuple(gpus), tuple(odd), none)


def rows(
    fields: Sequence[str], data: bytes, otherwise: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], list[str], bool]:
    """The GPUs of a query for `fields`, of which the first is `index`: each once and in order, by field; the first
    lines that are no GPU (hostile); whether nvidia-smi reported that there is none. Never raises.

    `otherwise`: the fields of a line that does not have those of `fields`.
    """
    gpus: dict[int, dict[str, Any]] = {}
    odd: list[str] = []
    none = False
    for raw in data.splitlines():
        line = raw[:_LINE].decode("utf-8", "backslashreplace").strip()
        gpu = (_row(fields, line) or (_row(otherwise, line) if otherwise else None)) if len(raw) <= _LINE else None
        if gpu is not None:
            if len(gpus) < _GPUS:
                gpus.setdefault(gpu["index"], gpu)
        elif line.lower().startswith(_NONE):
            none = True
        elif line and len(odd) < _ODD:
            odd.append(line[:_TOLD])
    return [gpus[index] for index in sorted(gpus)], odd, none and not gpus


def slowed(reasons: int | None) -> tuple[str, ...]:
    """What slows a GPU's clocks down against its will, of the bits of one of `REASONS`."""
    found = dict.fromkeys(why for bit, why in _SLOWED.items() if (reasons or 0) & bit)
    if len(found) > 1:
        found.pop("hardware", None)  # NVML sets that bit beside the one that says why
    return tuple(found)


def complaint(*outputs: bytes) -> str:
    """The first line in which a command said what is wrong, empty where it said nothing. Hostile text."""
    for data in outputs:
        for raw in data[:_LINE].splitlines():
            if line := raw.decode("utf-8", "backslashreplace").strip():
                return line[:_TOLD]
    return ""


def _row(fields: Sequence[str], line: str) -> dict[str, Any] | None:
    """Split at comma and space, so that a decimal comma splits nothing; at a bare comma if there are no spaces. Only a
    name may hold a comma."""
    for separator in (", ", ","):
        words = [word.strip() for word in line.split(separator)]
        more = len(words) - len(fields)
        if more < 0 or (more and "name" not in fields) or not _INDEX.fullmatch(words[0]):
            continue
        if more:
            at = fields.index("name")
            words[at : at + more + 1] = [", ".join(words[at : at + more + 1])]
        pairs = list(zip(fields[1:], words[1:]))  # noqa: B905 - younger than Python 3.8
        if all(_fits(field, word) for field, word in pairs):
            return {"index": int(words[0]), **{field: _value(field, word) for field, word in pairs}}
    return None


def _fits(field: str, word: str) -> bool:
    known = field in _TEXT or (_BITS if field in REASONS else _NUMBER).fullmatch(word)
    return bool(known or _UNKNOWN.fullmatch(word))


def _value(field: str, word: str) -> Any:
    if not word or _UNKNOWN.fullmatch(word):
        return None
    if field in REASONS:
        return int(word, 16)
    return word if field in _TEXT else float(word.replace(",", "."))
