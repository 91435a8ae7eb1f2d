"""Which Python and torch workers have: one short question to each, asked as the smoke test asks. Nothing is imported
there, and no GPU is touched."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from atlctl.cli.doctor.checks import Report, Words
from atlctl.cli.doctor.clocks import judge
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.naming import fold_names

if TYPE_CHECKING:
    from atlctl.backends.base import Executor
    from atlctl.jobs.model import Worker

#: Seconds for the roll call, at most, for the question, and that an agent lives when nobody ends it.
ROLL_CALL, ASKING, LIFE = 20.0, 8.0, 60
#: Lines for workers that differ from most.
_MOST_LINES = 8
_TEXT = 200
#: Seconds since 1970 that may be a clock's.
_TIME = 1e12


@dataclass(frozen=True, slots=True)
class Told:
    """What one worker told: hostile text. `own`: it is the worker's own Python, and not that of a process that was
    found there. `gpus`: devices of NVIDIA's driver. `problem`: why nothing was told."""

    worker: str
    python: str | None = None
    executable: str | None = None
    own: bool = True
    torch: str | None = None
    cuda: str | None = None
    gpus: int | None = None
    problem: str | None = None

    @property
    def alike(self) -> tuple[object, ...]:
        """What should be the same on all workers of a job. A path may differ."""
        return self.torch, self.cuda, self.python, self.gpus, self.own


async def check(
    report: Report,
    words: Words,
    executor: Executor,
    workers: Sequence[Worker],
    seconds: float,
    named: str,
    *,
    clocks: bool,
) -> None:
    """`seconds`: for reaching a worker. `named`: options that name the job. `clocks`: the workers' are judged, too."""
    living = [worker for worker in workers if worker.state.active]
    if not living:
        report.skip("torch", words("torch_nobody"))
        return
    try:
        told, bounds = await ask(executor, living, seconds)
    except AtlctlError as error:
        report.warn("torch", error.message, error.hint)
        return
    report.data["torch"] = [asdict(one) for one in told]
    _tell(report, words, told, named)
    if clocks:
        judge(report, words, "worker.clock", bounds)


async def ask(
    executor: Executor, workers: Sequence[Worker], seconds: float
) -> tuple[list[Told], dict[str, tuple[float, float]]]:
    """What each of `workers` tells, in their order; and between which figures the distances of their clocks lie.

    Raises AtlctlError where this process may not open as many connections.
    """
    from atlctl.smoke.session import Session

    bounds: dict[str, tuple[float, float]] = {}
    async with Session(executor, workers, {"seconds": LIFE, "finds_torch": True}) as session:
        gone = await session.roll_call(seconds, max(seconds, ROLL_CALL))
        commands = {name: {"cmd": "facts"} for name in session.living()}
        answers = await session.ask(commands, ASKING, _clock(bounds))
        hellos = {name: session.hello(name) for name in commands}
    told = []
    for worker in workers:
        answer = answers.get(worker.name)
        if answer is None or answer.fields is None:
            problem = gone.get(worker.name, "no answer") if answer is None else answer.problem
            told.append(Told(worker.name, problem=problem))
        else:
            told.append(_read(worker.name, hellos[worker.name], answer.fields))
    return told, bounds


def _read(name: str, hello: Mapping[str, Any], facts: Mapping[str, Any]) -> Told:
    gpus = facts.get("devices")
    return Told(
        name,
        python=_text(facts.get("python")),
        executable=_text(hello.get("executable")),
        own=hello.get("sought") != ["any"],
        torch=_text(facts.get("torch")),
        cuda=_text(facts.get("cuda")),
        gpus=gpus if type(gpus) is int and 0 <= gpus < 10_000 else None,
    )


def _clock(bounds: dict[str, tuple[float, float]]) -> Callable[[str, Mapping[str, Any]], None]:
    """Notes the first word of each worker on its time."""
    asked = time.time()

    def heard(name: str, event: Mapping[str, Any]) -> None:
        wall = event.get("wall")
        if event.get("ev") == "clock" and isinstance(wall, int | float) and math.isfinite(wall) and abs(wall) < _TIME:
            bounds.setdefault(name, (wall - time.time(), wall - asked))

    return heard


def _tell(report: Report, words: Words, told: Sequence[Told], named: str) -> None:
    """What most have first, then what differs, then who has none, then who did not tell."""
    having = [one for one in told if one.torch is not None]
    groups: dict[tuple[object, ...], list[Told]] = {}
    for one in having:
        groups.setdefault(one.alike, []).append(one)
    ordered = sorted(groups.values(), key=len, reverse=True)
    for place, group in enumerate(ordered[:_MOST_LINES]):
        text = words("torch_ok", workers=_fold(group), count=len(group), what=_what(words, group[0]))
        if place == 0:
            report.ok("torch", text)
        else:
            names = {"torch": "torch", "cuda": "CUDA", "python": "Python"}
            names |= {"gpus": words("differs_gpus"), "own": words("differs_own")}
            differs = ", ".join(name for field, name in names.items() if _differ(field, group[0], ordered[0][0]))
            report.warn("torch", words("torch_odd", text=text, what=differs), words("torch_odd_fix"))
    if more := [one for group in ordered[_MOST_LINES:] for one in group]:
        text = words("torch_more", workers=_fold(more), count=len(more))
        report.warn("torch", text, "atlctl doctor -o json")
    if lacking := [one for one in told if one.torch is None and one.problem is None]:
        pythons = Counter(f"Python {one.python or '?'} ({one.executable or '?'})" for one in lacking)
        shown = ", ".join(name for name, _ in pythons.most_common(3))
        text = words("torch_none", workers=_fold(lacking), count=len(lacking), python=shown)
        report.warn("torch", text, words("torch_none_fix"))
    silent: dict[str, list[Told]] = {}
    for one in told:
        if one.problem is not None:
            silent.setdefault(one.problem, []).append(one)
    for problem, group in list(silent.items())[:_MOST_LINES]:
        text = words("torch_silent", workers=_fold(group), count=len(group), why=problem)
        report.warn("torch", text, f"atlctl exec {named} -w {shlex.quote(_fold(group))} -- python3 -V")


def _what(words: Words, one: Told) -> str:
    cuda = f"CUDA {one.cuda}" if one.cuda else words("torch_no_cuda")
    python = words(
        "torch_python" if one.own else "torch_foreign", version=one.python or "?", path=one.executable or "?"
    )
    gpus = "" if one.gpus is None else words("torch_gpus", count=one.gpus)
    return f"torch {one.torch} ({cuda}), {python}{gpus}"


def _differ(field: str, one: Told, usual: Told) -> bool:
    return bool(getattr(one, field) != getattr(usual, field))


def _fold(told: Sequence[Told]) -> str:
    return fold_names(one.worker for one in told)


def _text(value: object) -> str | None:
    return value[:_TEXT] if type(value) is str and value else None
