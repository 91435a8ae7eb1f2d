"""What a machine does at one moment, as far as it tells."""

from __future__ import annotations

from dataclasses import dataclass

from atlctl.jobs.gpus import Gpu


@dataclass(frozen=True, slots=True)
class Usage:
    """`load`: processes that run or wait to, the mean of a minute. `ranks`: processes of a training with a rank of
    their own, of this user's. None where it is not told; `gpus` is None where there is no nvidia-smi."""

    load: float | None = None
    cpus: int | None = None
    ranks: int | None = None
    gpus: tuple[Gpu, ...] | None = None

    @property
    def utilization(self) -> float | None:
        """Of all GPUs that tell, in percent."""
        told = [gpu.utilization for gpu in self.gpus or () if gpu.utilization is not None]
        return sum(told) / len(told) if told else None

    @property
    def memory(self) -> tuple[float, float] | None:
        """MiB in use and MiB in all, of all GPUs that tell both."""
        told = [
            (gpu.memory_used, gpu.memory_total)
            for gpu in self.gpus or ()
            if gpu.memory_used is not None and gpu.memory_total is not None
        ]
        return (sum(used for used, _ in told), sum(total for _, total in told)) if told else None


@dataclass(frozen=True, slots=True)
class Processes:
    """What the processes of a worker have taken so far: CPU time in seconds, resident memory in bytes (what they share
    counts in each)."""

    cpu_seconds: float
    resident: int
