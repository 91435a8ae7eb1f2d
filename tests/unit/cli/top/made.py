"""Test data for `top`: workers and GPUs."""

from __future__ import annotations

from typing import Any

from atlctl.cli.top.view import View
from atlctl.jobs.model import State, Worker
from atlctl.remote.gpus import Gpu


def gpu(index: int = 0, **values: Any) -> Gpu:
    """A busy GPU."""
    known: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "H100",
        "utilization": 99.0,
        "memory_used": 70000.0,
        "memory_total": 81559.0,
        "power": 690.0,
        "temperature": 64.0,
        "ecc_uncorrected": 0,
        "clock_reasons": 4,
    }
    return Gpu(**{**known, **values})


def line(one: Gpu) -> str:
    """The line that nvidia-smi prints for it."""

    def told(value: object) -> object:
        return "[N/A]" if value is None else value

    fields = (one.utilization, one.memory_used, one.memory_total, one.power, one.temperature, one.ecc_uncorrected)
    bits = "[N/A]" if one.clock_reasons is None else f"0x{one.clock_reasons:016x}"
    return ", ".join(map(str, (one.index, told(one.uuid), told(one.name), *map(told, fields), bits)))


def view(index: int, *gpus: Gpu, cores: float | None = 1.5, state: State = State.RUNNING) -> View:
    """A worker with these samples at the seconds 1 and 2."""
    made = View(Worker(f"worker-{index}", index, state), "live", heard=1.0, looked=1.0)
    for second in (1, 2):
        spent = 0 if cores is None else int(1e6 * cores * second)
        sample = (
            f"A 0-31 32\nT {second} 0\nS 0 0 0 {second} 0\nM 1000\nF 500\nV 2\nU 500\nL 1024000\nI 0\nP {spent}\n.\n"
        )
        made.hear("stdout", sample.encode(), float(second))
    if gpus:
        made.hear("stderr", "".join(("G 0\n", *(f"{line(one)}\n" for one in gpus), "\nE 0\n")).encode(), 2.0)
    else:
        made.hear("stderr", b"N 0\n", 2.0)
    return made
