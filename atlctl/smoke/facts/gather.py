"""What every agent tells of its worker, asked for once in a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from atlctl.jobs.gpus import REASONS, slowed
from atlctl.smoke.context import Run
from atlctl.smoke.session import Answer, Heard

#: Seconds for all facts of a worker, and of them for one question to nvidia-smi.
SECONDS, GPU_SECONDS = 12.0, 5.0
#: Seconds since 1970 that may be a clock's. What is farther off, or no number, is an agent's nonsense.
_TIME = 1e12

#: By worker: between which two figures its clock's distance from ours lies, in seconds.
Bounds = dict[str, tuple[float, float]]


async def gather(run: Run) -> None:
    """Fill `run.facts`, unless they are there. Of each worker: what `agent/facts.py` tells, `gpus` (one for each, with
    `index` and `name`), `smi` (what else `agent/gpus.py` tells), `clock` (bounds of its clock's distance from ours in
    seconds), and `problem` where it told nothing."""
    if run.facts:
        return
    living = run.session.living()
    gpus = {name: _ask_gpus(GPU_SECONDS, more=not run.options.net_only) for name in living}
    told, smi = await asyncio.gather(
        _facts(run, living, processes=not run.options.net_only), run.session.ask(gpus, SECONDS)
    )
    for name in living:
        run.facts[name] = told[name] | _gpus(smi[name])


async def again(run: Run, names: Sequence[str]) -> None:
    """Those of `names` once more, as far as they answer."""
    living = [name for name in names if name in run.session.living()]
    told = await _facts(run, living, processes=not run.options.net_only)
    for name, facts in told.items():
        if "problem" not in facts:
            run.facts[name] = {**run.facts[name], **facts, "clock": run.facts[name].get("clock", facts.get("clock"))}


async def gpus_again(run: Run, names: Sequence[str], seconds: float) -> None:
    """What the GPUs of `names` are now, with more time."""
    asks = {name: _ask_gpus(seconds, more=True) for name in names if name in run.session.living()}
    for name, answer in (await run.session.ask(asks, 2 * seconds + 2)).items():
        run.facts[name] = {**run.facts.get(name, {}), **_gpus(answer)}


async def _facts(run: Run, living: list[str], *, processes: bool) -> dict[str, dict[str, Any]]:
    bounds: Bounds = {}
    asks = {name: {"cmd": "facts", "processes": processes} for name in living}
    answers = await run.session.ask(asks, SECONDS, _clock(bounds))
    facts: dict[str, dict[str, Any]] = {}
    for name, answer in answers.items():
        if answer.fields is None:
            facts[name] = {"problem": answer.problem}
        else:
            facts[name] = {key: value for key, value in answer.fields.items() if key not in ("ev", "re", "end", "t")}
        if name in bounds:
            facts[name]["clock"] = bounds[name]
    return facts


async def clocks(run: Run, names: list[str]) -> Bounds:
    """The clocks of these workers again, one after the other, so that no crowd blurs the bounds."""
    found: Bounds = {}
    for name in names:
        await run.session.ask({name: {"cmd": "facts", "clock": True}}, 3.0, _clock(found))
    return found


def _clock(into: Bounds) -> Heard:
    """Notes the clock of each worker that tells its time, asked for now. The first word counts."""
    asked = time.time()

    def heard(name: str, event: dict[str, Any]) -> None:
        wall = event.get("wall")
        if event.get("ev") == "clock" and isinstance(wall, int | float) and abs(wall) < _TIME:
            into.setdefault(name, (wall - time.time(), wall - asked))

    return heard


def _ask_gpus(seconds: float, *, more: bool) -> dict[str, Any]:
    return {"cmd": "gpus", "seconds_each": seconds, "more": more, "reasons": REASONS}


def _gpus(answer: Answer) -> dict[str, Any]:
    """GPUs by nvidia-smi; where it hangs, the devices that there are. Nothing but dicts with an index.

    `throttled`: what slows each one's clocks down.
    """
    fields = answer.fields or {"problem": answer.problem, "late": answer.late}
    listed = fields.get("gpus")
    gpus = [
        {"name": None, **gpu, "throttled": list(slowed(_bits(gpu)))}
        for gpu in (listed if isinstance(listed, list) else [])
        if isinstance(gpu, dict) and isinstance(gpu.get("index"), int)
    ]
    devices = fields.get("devices")
    if not gpus and fields.get("hung") and isinstance(devices, int):
        gpus = [{"index": number, "name": None} for number in range(min(devices, 1024))]
    smi = {key: value for key, value in fields.items() if key not in ("ev", "re", "end", "t", "gpus")}
    return {"gpus": gpus, "smi": smi}


def _bits(gpu: dict[str, Any]) -> int | None:
    bits = gpu.get("clock_reasons")
    return bits if type(bits) is int else None
