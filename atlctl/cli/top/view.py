"""What is known of one worker at the moment, and what is wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from atlctl.backends.base import Stream
from atlctl.cli.top.marks import Mark, Normal, Seen, marks, normals, seen
from atlctl.cli.top.reading import Compute, ComputeReader, GpuReader
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.gpus import Gpu, Readout
from atlctl.jobs.model import State, Worker
from atlctl.jobs.usage import Processes

#: Looks at a GPU whose median counts.
_LOOKS = 3

Phase = Literal["asking", "live", "lost", "ended"]


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
    _history: dict[int, deque[Gpu]] = field(default_factory=dict)
    _taken: tuple[float, Processes] | None = None
    _own: Compute | None = None

    def begin(self, now: float) -> None:
        """Its sampler has ended, and another one may be started: nothing of what it said counts any more."""
        self.compute, self.gpus = ComputeReader(), GpuReader()
        self.heard = self.looked = now
        self._history, self._taken, self._own = {}, None, None

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

    def take(self, processes: Processes | None, now: float) -> None:
        """What its processes have taken by now, where that is known; from two of them their use."""
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
        """CPU and memory of its processes where that is known, else what it tells itself."""
        return self._own or self.compute.latest

    @property
    def readout(self) -> Readout:
        return Readout() if self.gpus.latest is None else self.gpus.latest.readout

    @property
    def answered(self) -> bool:
        """It has said all that it says in one look, or will say nothing now."""
        told = self.gpus.absent or self.gpus.count > 0
        return (self.compute.count > 0 and told) or self.phase in ("lost", "ended")

    def looks(self) -> list[Seen]:
        """Its GPUs, by index."""
        return [seen(tuple(looks)) for looks in self._history.values()]

    def troubles(self, now: float, stale: float) -> list[str]:
        """What is wrong with the worker itself, for one line. `stale`: seconds of silence that are odd."""
        if self.phase == "asking":
            return ["asking"]
        if self.phase == "lost":
            return [f"lost {now - self.since:.0f}s: {self.reason}"]
        if self.phase == "ended":
            return [self.reason]
        found = []
        if now - self.heard > stale:
            found.append(f"silent {now - self.heard:.0f}s")
        if self.gpus.asked and now - self.looked > stale:
            found.append(f"nvidia-smi silent {now - self.looked:.0f}s")
        elif self.gpus.devices:
            found.append("GPU devices, but no nvidia-smi")
        elif self.gpus.latest is not None and self.gpus.latest.trouble:
            found.append(self.gpus.latest.trouble)
        elif self.readout.odd:
            found.append(f"nvidia-smi also said: {self.readout.odd[0]}")
        return found

    @property
    def wanting(self) -> bool:
        """It has ended otherwise than well."""
        return self.phase == "ended" and self.worker.state in (State.FAILED, State.LOST)


def judge(views: Sequence[View]) -> dict[str, list[tuple[Seen, tuple[Mark, ...]]]]:
    """The GPUs of each worker with their marks, compared with those of all."""
    looks = {view.worker.name: view.looks() for view in views}
    medians = normals(one for own in looks.values() for one in own)
    nothing = Normal(None, None)
    return {name: [(one, marks(one, medians.get(one.gpu.name, nothing))) for one in own] for name, own in looks.items()}


def to_data(view: View, judged: Sequence[tuple[Seen, tuple[Mark, ...]]]) -> dict[str, Any]:
    """A worker as `-o json` shows it. `gpus` is null where nobody told of any."""
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
