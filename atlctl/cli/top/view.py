"""One worker at the moment: its figures, trouble with itself, marks of its GPUs.

Marks are facts that a GPU reports itself, and hints from comparing it with the others. The rules are in docs/en/top.md,
with their reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median
from typing import Any, Literal, NamedTuple

from atlctl.backends.base import Stream
from atlctl.cli.top.reading import Compute, ComputeReader, GpuReader
from atlctl.i18n import COMMA, Message, joined, plural
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Processes, State, Worker
from atlctl.jobs.naming import fold_numbers
from atlctl.remote.gpus import Gpu, Readout, slowed
from atlctl.render.table import human_age

ALSO_SAID = Message("nvidia-smi also said: {line}")
#: Looks at a GPU whose median counts.
_LOOKS = 3
#: In a trend: not reported.
UNKNOWN = 255

Phase = Literal["asking", "live", "lost", "ended"]
#: MiB from which a GPU counts as holding memory: a driver takes less for itself.
HELD_MIB = 1024.0
#: GPUs of one model that must report a figure before any of them is compared.
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
class SeenGpu:
    """A GPU now, and its medians over the last looks: a single look that differs from the others proves nothing.

    `busy`: its utilisation was above 0 in one of them. `trend`: its utilisation in the last minute, in percent, a byte
    for each look; `UNKNOWN` if it was not reported.
    """

    gpu: Gpu
    utilization: float | None
    power: float | None
    busy: bool
    trend: bytes = b""


def seen(looks: Sequence[Gpu], trend: bytes = b"") -> SeenGpu:
    """From the last looks at one GPU, the newest at the end."""
    told = [gpu.utilization for gpu in looks if gpu.utilization is not None]
    watts = [gpu.power for gpu in looks if gpu.power is not None]
    return SeenGpu(looks[-1], median(told) if told else None, median(watts) if watts else None, any(told), trend)


@dataclass(frozen=True, slots=True)
class Normal:
    """Medians of the GPUs of one model; None if too few report it."""

    utilization: float | None
    power: float | None


def normals(gpus: Iterable[SeenGpu]) -> dict[str | None, Normal]:
    """By model. A GPU that several workers see counts once."""
    models: dict[str | None, dict[object, SeenGpu]] = {}
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


def marks(one: SeenGpu, normal: Normal) -> tuple[Mark, ...]:
    """Its marks, the gravest first."""
    gpu = one.gpu
    found = []
    if gpu.ecc_uncorrected:
        found.append(Mark(Kind.ECC, Message("{count} uncorrected ECC", count=gpu.ecc_uncorrected)))
    if reasons := slowed(gpu.clock_reasons):
        from atlctl.smoke.care import SLOWED

        why = joined((SLOWED[reason] for reason in reasons), COMMA)
        found.append(Mark(Kind.SLOWED, Message("slowed: {why}", why=why)))
    if one.utilization is not None and not one.busy:
        if gpu.memory_used is None:
            return tuple(found)
        held = gpu.memory_used >= HELD_MIB
        return (*found, Mark(Kind.IDLE, Message("idle, holds memory")) if held else Mark(Kind.EMPTY, Message("empty")))
    return (*found, *_hints(one, normal))


def _hints(one: SeenGpu, normal: Normal) -> list[Mark]:
    """A rank that waits in a collective shows full utilisation and little power; the one it waits for, more of it."""
    if normal.utilization is None or normal.utilization < WORKING:
        return []
    found = []
    if one.power is not None and normal.power:
        share = one.power / normal.power
        if share < LOW_POWER:
            found.append(Mark(Kind.LOW_POWER, Message("low power? {share:.0%} of median", share=share)))
        elif share > HIGH_POWER and normal.utilization >= SPINNING:
            found.append(Mark(Kind.HIGH_POWER, Message("others wait? {share:.0%} of median power", share=share)))
    used = one.utilization
    if used is not None and normal.utilization - used >= LOW_UTILIZATION:
        found.append(Mark(Kind.LOW_UTILIZATION, Message("low use? median {median:.0f} %", median=normal.utilization)))
    return found


# A worker


@dataclass(slots=True)
class View:
    """One worker. Times are those of the event loop's clock, in seconds."""

    worker: Worker
    phase: Phase = "asking"
    #: Since when it is in this phase, and why (hostile text).
    since: float = 0.0
    reason: str = ""
    error: AtlctlError | None = None
    compute: ComputeReader = field(default_factory=ComputeReader)
    gpus: GpuReader = field(default_factory=GpuReader)
    #: When the last sample and the last look at the GPUs came; the start counts as one.
    heard: float = 0.0
    looked: float = 0.0
    #: Looks in a minute.
    minute: int = 20
    _history: dict[int, deque[Gpu]] = field(default_factory=dict)
    _trends: dict[int, bytes] = field(default_factory=dict)
    #: When each GPU was reported last, also those that are reported no longer.
    _reported: dict[int, float] = field(default_factory=dict)
    _taken: tuple[float, Processes] | None = None
    _own: Compute | None = None

    def begin(self, now: float) -> None:
        """Its sampler has ended, and another one may be started: nothing of what it said counts any more."""
        self.compute, self.gpus = ComputeReader(), GpuReader()
        self.heard = self.looked = now
        self._history, self._trends, self._reported, self._taken, self._own = {}, {}, {}, None, None

    def turn(self, phase: Phase, now: float, reason: str = "") -> None:
        if (phase, reason) != (self.phase, self.reason):
            self.phase, self.since, self.reason = phase, now, reason

    def hear(self, stream: Stream, data: bytes, now: float) -> None:
        """Output of its sampler."""
        reader = self.compute if stream == "stdout" else self.gpus
        before = reader.count
        reader.feed(data)
        if reader.count == before:
            return
        if stream == "stdout":
            self.heard = now
            return
        self.looked = now
        found = {gpu.index: gpu for gpu in self.readout.gpus}
        self._history = {index: self._history.get(index, deque(maxlen=_LOOKS)) for index in found}
        for index, gpu in found.items():
            self._history[index].append(gpu)
            self._reported[index] = now
            use = UNKNOWN if gpu.utilization is None else min(100, max(0, round(gpu.utilization)))
            self._trends[index] = (self._trends.get(index, b"") + bytes((use,)))[-self.minute :]

    def take(self, processes: Processes | None, now: float) -> None:
        """Take the CPU time and memory of its processes, None if unknown; two of them give the use."""
        before, self._taken = self._taken, None if processes is None else (now, processes)
        machine = self.compute.latest
        if processes is None or machine is None:
            self._own = None
            return
        cores = None
        if before is not None and now > before[0]:
            cores = max(0.0, processes.cpu_seconds - before[1].cpu_seconds) / (now - before[0])
        self._own = Compute("processes", cores, machine.cpu_limit, float(processes.resident), machine.memory_limit)

    @property
    def use(self) -> Compute | None:
        """CPU and memory of its processes if known, else those that its sampler reports."""
        return self._own or self.compute.latest

    @property
    def readout(self) -> Readout:
        return Readout() if self.gpus.latest is None else self.gpus.latest.readout

    @property
    def answered(self) -> bool:
        """It has said all that it says in one look, or will say nothing now."""
        told = self.gpus.absent or self.gpus.count > 0
        return (self.compute.count > 0 and told) or self.phase in ("lost", "ended")

    def looks(self) -> list[SeenGpu]:
        """Its GPUs, by index."""
        return [seen(tuple(looks), self._trends[index]) for index, looks in self._history.items()]

    def troubles(self, now: float, stale: float) -> list[str]:
        """Trouble of the worker itself, for one line. `stale`: seconds of silence that are odd."""
        if self.phase == "asking":
            return [Message("asking")]
        if self.phase == "lost":
            return [Message("lost {seconds:.0f}s: {why}", seconds=now - self.since, why=self.reason)]
        if self.phase == "ended":
            return [self.reason]
        found: list[str] = []
        if now - self.heard > stale:
            found.append(Message("silent {seconds:.0f}s", seconds=now - self.heard))
        if self.gpus.asked and now - self.looked > stale:
            found.append(Message("nvidia-smi silent {seconds:.0f}s", seconds=now - self.looked))
        elif self.gpus.devices:
            found.append(Message("GPU devices, but no nvidia-smi"))
        elif self.gpus.latest is not None and self.gpus.latest.trouble:
            found.append(self.gpus.latest.trouble)
        elif self.readout.odd or len(self._reported) > len(self._history):
            if gone := self._reported.keys() - self._history:
                age = human_age(now - max(self._reported[index] for index in gone))
                which = fold_numbers(gone)
                found.append(
                    plural(
                        "GPU {gpus} vanished {age} ago",
                        "GPUs {gpus} vanished {age} ago",
                        len(gone),
                        gpus=which,
                        age=age,
                    )
                )
            found += [ALSO_SAID.filled(line=line) for line in self.readout.odd[:1]]
        return found

    @property
    def bare(self) -> str:
        """Why it has no GPUs although nothing is wrong with it; empty if it has some, or has not answered."""
        if self.gpus.absent and not self.gpus.devices:
            return Message("no GPU data: nvidia-smi not found")
        return Message("no GPU") if self.readout.none else ""

    @property
    def wanting(self) -> bool:
        """It has ended otherwise than well."""
        return self.phase == "ended" and self.worker.state in (State.FAILED, State.LOST)


def judge(views: Sequence[View]) -> dict[str, list[tuple[SeenGpu, tuple[Mark, ...]]]]:
    """The GPUs of each worker with their marks, compared with those of all."""
    looks = {view.worker.name: view.looks() for view in views}
    medians = normals(one for own in looks.values() for one in own)
    nothing = Normal(None, None)
    return {name: [(one, marks(one, medians.get(one.gpu.name, nothing))) for one in own] for name, own in looks.items()}


def to_data(view: View, judged: Sequence[tuple[SeenGpu, tuple[Mark, ...]]]) -> dict[str, Any]:
    """A worker as `-o json` shows it. `gpus` is null without a look at them."""
    told = view.gpus.latest is not None and not view.gpus.latest.trouble
    use = view.use
    return {
        "worker": view.worker.name,
        "gpus": [_gpu_data(one.gpu, found) for one, found in judged] if told else None,
        "unread": list(view.readout.odd),
        "scope": None if use is None else use.scope,
        "cpu_cores": None if use is None else use.cpu,
        "cpu_cores_limit": None if use is None else use.cpu_limit,
        "memory_bytes": None if use is None else use.memory,
        "memory_bytes_limit": None if use is None else use.memory_limit,
    }


def _gpu_data(gpu: Gpu, found: Sequence[Mark]) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "utilization_percent": gpu.utilization,
        "memory_used_mib": gpu.memory_used,
        "memory_total_mib": gpu.memory_total,
        "power_watts": gpu.power,
        "temperature_celsius": gpu.temperature,
        "ecc_uncorrected": gpu.ecc_uncorrected,
        "clock_reasons": gpu.clock_reasons,
        "marks": [mark.kind.name.lower() for mark in found],
    }
