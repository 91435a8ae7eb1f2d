"""Reads `nvidia-smi`: query fields, CSV output, reasons for reduced clocks.

The text comes from a worker: it may be truncated, binary, or from a different script of that name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TYPE_CHECKING = False  # importing `typing` is slow
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: The fields that `parse` expects, in this order. Drivers of the last ten years know all of them.
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
#: An additional field: the reasons for reduced clocks, as bits. It was renamed, and a driver rejects a query with an
#: unknown field.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")

#: NVML's bits for clocks reduced by heat, power supply or hardware. The other bits are normal: idle, power limit,
#: clocks set by an administrator.
_SLOWED = {0x40: "heat", 0x20: "heat", 0x80: "power brake", 0x08: "hardware"}

#: Text fields.
_TEXT = frozenset({
    "uuid", "gpu_uuid", "name", "pci.bus_id", "remapped_rows.pending", "remapped_rows.failure", "retired_pages.pending",
    "mig.mode.current", "ecc.mode.current", "driver_version",
})  # fmt: skip
#: Maximum bytes of a line to parse, characters of a line to show, GPUs of a worker, unparsable lines to keep.
_LINE = 1024
_TOLD = 240
_GPUS = 1024
_ODD = 8

_NUMBER = re.compile(r"(-?[0-9]{1,12})(?:[.,]([0-9]{1,6}))?", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,4}", re.ASCII)
_BITS = re.compile(r"0x[0-9A-Fa-f]{1,16}", re.ASCII)
#: Placeholders for unknown values: `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` (MIG), `ERR!`.
_UNKNOWN = re.compile(r"\[[^\[\]]{0,80}\]|N/A|ERR!|Unknown Error", re.ASCII)
_NONE = "no devices were found"


@dataclass(frozen=True)
class Gpu:
    """State of a GPU at one moment; None for unknown values. `name` and `uuid` are untrusted text.

    Utilisation in percent, memory in MiB, power in W, temperature in degrees Celsius. `ecc_uncorrected`: uncorrectable
    ECC errors since the driver was loaded. `clock_reasons`: NVML's bits for reduced clocks, if queried.
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
    """The GPUs of a worker. `odd`: the first unparsable lines (untrusted text), for example of a lost GPU. `none`:
    nvidia-smi reported that there is no GPU."""

    gpus: tuple[Gpu, ...] = ()
    odd: tuple[str, ...] = ()
    none: bool = False


def parse(data: bytes, reasons: bool = False) -> Readout:
    """Parse the output of `QUERY`. Never raises.

    `reasons`: one of `REASONS` was queried, too, as the last field.
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
    """The GPUs in the output of a query for `fields`, the first of which is `index`: each once, by index; the first
    unparsable lines (untrusted text); whether nvidia-smi reported that there is no GPU. Never raises.

    `otherwise`: the fields of a line that does not match `fields`.
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
    """Reasons why a GPU's clocks are reduced abnormally, from the bits of one of `REASONS`."""
    found = dict.fromkeys(why for bit, why in _SLOWED.items() if (reasons or 0) & bit)
    if len(found) > 1:
        found.pop("hardware", None)  # NVML sets that bit in addition to the cause
    return tuple(found)


def complaint(*outputs: bytes) -> str:
    """The first line of a command's error message; empty if there is none. Untrusted text."""
    for data in outputs:
        for raw in data[:_LINE].splitlines():
            if line := raw.decode("utf-8", "backslashreplace").strip():
                return line[:_TOLD]
    return ""


def _row(fields: Sequence[str], line: str) -> dict[str, Any] | None:
    """Split at comma and space, so that decimal commas do not split; at a bare comma if there are no spaces. Only a
    name may contain a comma."""
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
