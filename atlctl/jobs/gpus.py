"""What `nvidia-smi` says of a machine's GPUs, read from its CSV.

The text comes from inside a worker: it may be cut, binary, or of a script that is only called so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

#: The fields, in the order in which `parse` expects them. All are known to drivers of the last ten years.
_FIELDS = (
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
QUERY = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", FORMAT)
#: One more field: what slows the clocks down, as bits. It was renamed, and drivers refuse a query with a field that is
#: unknown to them.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")

#: NVML's bits that say that heat, the power supply or the hardware itself slows the clocks down. The other bits are
#: ordinary: idle, a power limit that is reached, clocks that were set.
_SLOWED = {0x40: "heat", 0x20: "heat", 0x80: "power brake", 0x08: "hardware"}

#: Fields behind the name, which alone may hold a comma.
_TAIL = 6
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


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment; None where it does not tell. `name` and `uuid` are hostile text.

    Utilisation in percent, memory in MiB, power in W, temperature in degrees Celsius. `ecc_uncorrected` counts memory
    errors that ECC could not correct since the driver was loaded. `clock_reasons`: NVML's bits of what slows its clocks
    down, where they were asked for.
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


@dataclass(frozen=True, slots=True)
class Readout:
    """The GPUs of one worker. `odd`: the first lines that were no GPU (hostile text), as a GPU that is lost gives."""

    gpus: tuple[Gpu, ...] = ()
    odd: tuple[str, ...] = ()
    #: nvidia-smi said that there is no GPU.
    none: bool = False


def parse(data: bytes, reasons: bool = False) -> Readout:
    """What `QUERY` printed. Never raises; what is no line of a GPU is kept as `odd`.

    `reasons`: one of `REASONS` was asked for as well, as the last field.
    """
    gpus: dict[int, Gpu] = {}
    odd: list[str] = []
    none = False
    for raw in data.splitlines():
        line = raw[:_LINE].decode("utf-8", "backslashreplace").strip()
        gpu = _gpu(line, reasons) if len(raw) <= _LINE else None
        if gpu is not None:
            if len(gpus) < _GPUS:
                gpus.setdefault(gpu.index, gpu)
        elif line.lower().startswith(_NONE):
            none = True
        elif line and len(odd) < _ODD:
            odd.append(line[:_TOLD])
    found = tuple(gpus[index] for index in sorted(gpus))
    return Readout(found, tuple(odd), none and not found)


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


def _gpu(line: str, reasons: bool) -> Gpu | None:
    """Split at comma and space, so that a decimal comma splits nothing; a bare comma where there are no spaces."""
    if reasons:
        rest, _, last = line.rpartition(",")
        bits = last.strip()
        if _BITS.fullmatch(bits) or _UNKNOWN.fullmatch(bits):
            gpu = _gpu(rest, False)
            if gpu is not None:
                return replace(gpu, clock_reasons=int(bits, 16) if _BITS.fullmatch(bits) else None)
    for separator in (", ", ","):
        fields = [field.strip() for field in line.split(separator)]
        if len(fields) > _TAIL + 2 and (gpu := _read(fields)) is not None:
            return gpu
    return None


def _read(fields: list[str]) -> Gpu | None:
    index, uuid, tail = fields[0], fields[1], fields[-_TAIL:]
    if not _INDEX.fullmatch(index) or not all(_NUMBER.fullmatch(text) or _UNKNOWN.fullmatch(text) for text in tail):
        return None
    utilization, used, total, power, temperature, ecc = map(_number, tail)
    return Gpu(
        int(index),
        _told(uuid),
        _told(", ".join(fields[2:-_TAIL])),
        utilization,
        used,
        total,
        power,
        temperature,
        None if ecc is None else int(ecc),
    )


def _number(text: str) -> float | None:
    match = _NUMBER.fullmatch(text)
    return float(f"{match[1]}.{match[2] or 0}") if match else None


def _told(text: str) -> str | None:
    return None if not text or _UNKNOWN.fullmatch(text) else text
