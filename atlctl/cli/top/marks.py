"""What is odd about a GPU: facts that it tells itself, and hints from comparing it with the others. Pure.

The rules are in docs/en/top.md, with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import median
from typing import NamedTuple

from atlctl.jobs.gpus import Gpu, slowed

#: MiB from which a GPU counts as holding memory: what a driver takes for itself is less.
HELD_MIB = 1024.0
#: GPUs of one model that must tell a figure before any of them is compared.
ENOUGH = 4
#: Medians of utilisation, in percent: below, nothing works; from there on, all work, or wait in a collective.
WORKING, SPINNING = 20.0, 90.0
#: Shares of the median below and above which a power draw is another one's work; percent points that a utilisation
#: must be below the median.
LOW_POWER, HIGH_POWER, LOW_UTILIZATION = 0.7, 1.4, 30.0


class Kind(IntEnum):
    """Marks, the gravest first. Their numbers are the order of rows."""

    ECC = 1
    SLOWED = 2
    LOW_POWER = 3
    LOW_UTILIZATION = 4
    HIGH_POWER = 5
    IDLE = 6
    EMPTY = 7


class Mark(NamedTuple):
    """`text` is what is shown; a hint ends in a question mark."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU now, and its medians over the last looks: one look that is unlike the others is no sign.

    `busy`: its utilisation was above 0 in one of them.
    """

    gpu: Gpu
    utilization: float | None
    power: float | None
    busy: bool


def seen(looks: Sequence[Gpu]) -> Seen:
    """From the last looks at one GPU, the newest at the end."""
    told = [gpu.utilization for gpu in looks if gpu.utilization is not None]
    watts = [gpu.power for gpu in looks if gpu.power is not None]
    return Seen(looks[-1], median(told) if told else None, median(watts) if watts else None, any(told))


@dataclass(frozen=True, slots=True)
class Normal:
    """Medians of the GPUs of one model; None where too few tell."""

    utilization: float | None
    power: float | None


def normals(gpus: Iterable[Seen]) -> dict[str | None, Normal]:
    """By model. A GPU that several workers see counts once."""
    models: dict[str | None, dict[object, Seen]] = {}
    for number, one in enumerate(gpus):
        models.setdefault(one.gpu.name, {}).setdefault(one.gpu.uuid or number, one)
    return {
        name: Normal(
            _median([one.utilization for one in own.values() if one.utilization is not None]),
            _median([one.power for one in own.values() if one.power is not None]),
        )
        for name, own in models.items()
    }


def _median(values: Sequence[float]) -> float | None:
    return median(values) if len(values) >= ENOUGH else None


def marks(one: Seen, normal: Normal) -> tuple[Mark, ...]:
    """What is odd about it, the gravest first."""
    gpu = one.gpu
    found = []
    if gpu.ecc_uncorrected:
        found.append(Mark(Kind.ECC, f"{gpu.ecc_uncorrected} uncorrected ECC"))
    if reasons := slowed(gpu.clock_reasons):
        found.append(Mark(Kind.SLOWED, f"slowed: {', '.join(reasons)}"))
    if one.utilization is not None and not one.busy:
        if gpu.memory_used is None:
            return tuple(found)
        held = gpu.memory_used >= HELD_MIB
        return (*found, Mark(Kind.IDLE, "idle, holds memory") if held else Mark(Kind.EMPTY, "empty"))
    return (*found, *_hints(one, normal))


def _hints(one: Seen, normal: Normal) -> list[Mark]:
    """A rank that waits in a collective shows full utilisation and little power; the one it waits for, more of it."""
    if normal.utilization is None or normal.utilization < WORKING:
        return []
    found = []
    if one.power is not None and normal.power:
        share = one.power / normal.power
        if share < LOW_POWER:
            found.append(Mark(Kind.LOW_POWER, f"low power? {share:.0%} of median"))
        elif share > HIGH_POWER and normal.utilization >= SPINNING:
            found.append(Mark(Kind.HIGH_POWER, f"others wait? {share:.0%} of median power"))
    used = one.utilization
    if used is not None and normal.utilization - used >= LOW_UTILIZATION:
        found.append(Mark(Kind.LOW_UTILIZATION, f"low use? median {normal.utilization:.0f} %"))
    return found
