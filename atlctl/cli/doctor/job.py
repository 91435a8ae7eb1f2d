"""What `doctor` finds of the current job: which one it is, how to begin without one, and the Python and torch of its
workers. Each worker gets one short question, as in the smoke test. Nothing is imported there, and no GPU is touched."""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.cli.doctor.hosts import judge_clocks
from atlctl.cli.doctor.report import DoctorReport
from atlctl.cli.runtime import context
from atlctl.cli.target import current_job, looking, stated
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs import fields
from atlctl.jobs.errors import AtlctlError, NothingMatched, UsageError
from atlctl.jobs.naming import fold_names

if TYPE_CHECKING:
    from atlctl.backends.base import Backend, Executor
    from atlctl.jobs.model import Job, Worker

#: Seconds for finding the current job.
FINDING = 30.0
#: Ways to begin, each with what it does.
_FIRST_STEPS = (
    ("atlctl demo", Message("a real failing job on this machine, and the main commands on it")),
    ("atlctl local run --workers 2 -- CMD", Message("a job of your own on this machine")),
    (
        "atlctl exec --hostfile FILE --all -- hostname",
        Message("machines that you reach over SSH, one name a line in FILE"),
    ),
    ("export KUBECONFIG=PATH", Message("a Kubernetes cluster; or name it each time: --kubeconfig PATH")),
)
#: Seconds: limit of the roll call, limit of the query, and lifetime of an agent that is not ended.
ROLL_CALL, ASKING, LIFE = 20.0, 8.0, 60
#: Lines for workers that differ from most.
_MOST_LINES = 8
_TEXT = 200
#: Seconds since 1970 that may be a clock's.
_TIME = 1e12


async def check_current(
    report: DoctorReport, source: Backend, option: str | None, *, nothing_else: bool = False
) -> Job | None:
    """The current job; None if there is none, several, or it is unknown. `nothing_else`: nothing else is set up."""
    named = stated(None, option) is not None
    try:
        async with asyncio.timeout(FINDING):
            with say.doing(looking(None), limit=FINDING):
                found = await current_job(source, None, option, reads_only=True)
    except TimeoutError:
        report.warn(
            "job", Message("the list of jobs did not arrive within {seconds} s", seconds=f"{FINDING:g}"), "atlctl jobs"
        )
        return None
    except (NothingMatched, UsageError) as error:
        # If no job was named, having none or several is not an error.
        (report.fail if named else report.skip)("job", error.message, error.hint)
        if nothing_else and not named and isinstance(error, NothingMatched):
            report.first_steps = [(command, what) for command, what in _FIRST_STEPS]
        return None
    except AtlctlError as error:
        report.warn("job", error.message, error.hint)
        return None
    job = found.job
    text = Message("{name} ({kind}, {state}, {count} of {expected} workers): {how}")
    shown = {"name": job.name, "kind": job.kind, "state": say.state(job.state, job.reason)}
    how = _how_found(found.how, source.name)
    report.ok("job", text.filled(**shown, count=len(job.workers), expected=job.expected, how=how))
    report.data["job"] = {
        "name": job.name,
        "kind": job.kind,
        "namespace": job.namespace,
        "state": str(job.state),
        "uid": job.uid,
        "workers": len(job.workers),
        "expected": job.expected,
        "how": found.how,
    }
    return job


def _how_found(how: str, backend: str) -> str:
    if how != "place":
        return {
            "named": Message("named with -j"),
            "variable": Message("named by ATLCTL_JOB"),
            "used": Message("named by atlctl use"),
            "only": Message("the only active one"),
        }[how]
    if context().selector is not None:
        return Message("what -l selects")
    if context().hostfile is not None:
        return Message("the hosts of --hostfile")
    return Message("the workers around this one") if backend == "ssh" else Message("this worker belongs to it")


@dataclass(frozen=True, slots=True)
class Told:
    """The answer of one worker, untrusted. `own`: it is the worker's own Python, not that of a process found there.
    `gpus`: devices of NVIDIA's driver. `problem`: the reason why there is no answer."""

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
        """The values that should be the same on all workers of a job. Paths may differ."""
        return self.torch, self.cuda, self.python, self.gpus, self.own


async def check_workers(
    report: DoctorReport, executor: Executor, workers: Sequence[Worker], seconds: float, named: str, *, clocks: bool
) -> None:
    """`seconds`: for reaching a worker. `named`: options that name the job. `clocks`: the workers' are judged, too."""
    living = [worker for worker in workers if worker.state.active]
    if not living:
        report.skip("torch", Message("not asked: no worker is running"))
        return
    asked = Message("asking {workers} what is installed", workers=fold_names(worker.name for worker in living))
    try:
        with say.doing(asked):
            told, bounds = await ask(executor, living, seconds)
    except AtlctlError as error:
        report.warn("torch", error.message, error.hint)
        return
    report.data["torch"] = [asdict(one) for one in told]
    _report_torch(report, told, named)
    if clocks:
        judge_clocks(report, "worker.clock", bounds)


async def ask(
    executor: Executor, workers: Sequence[Worker], seconds: float
) -> tuple[list[Told], dict[str, tuple[float, float]]]:
    """The answers of `workers`, in their order; and the bounds of their clock offsets.

    Raises AtlctlError if this process may not open that many connections.
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
            problem = gone.get(worker.name, Message("no answer")) if answer is None else answer.problem
            told.append(Told(worker.name, problem=problem))
        else:
            told.append(_read(worker.name, hellos[worker.name], answer.fields))
    return told, bounds


def _read(name: str, hello: Mapping[str, Any], facts: Mapping[str, Any]) -> Told:
    gpus = facts.get("devices")
    return Told(
        name,
        python=fields.text(facts.get("python"), _TEXT) or None,
        executable=fields.text(hello.get("executable"), _TEXT) or None,
        own=hello.get("sought") != ["any"],
        torch=fields.text(facts.get("torch"), _TEXT) or None,
        cuda=fields.text(facts.get("cuda"), _TEXT) or None,
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


def _report_torch(report: DoctorReport, told: Sequence[Told], named: str) -> None:
    """The majority first, then differences, then workers without torch, then workers without an answer."""
    having = [one for one in told if one.torch is not None]
    groups: dict[tuple[object, ...], list[Told]] = {}
    for one in having:
        groups.setdefault(one.alike, []).append(one)
    ordered = sorted(groups.values(), key=len, reverse=True)
    for place, group in enumerate(ordered[:_MOST_LINES]):
        text = Message("{workers} ({count}): {what}", workers=_fold(group), count=len(group), what=_what(group[0]))
        if place == 0:
            report.ok("torch", text)
        else:
            names = {"torch": "torch", "cuda": "CUDA", "python": "Python"}
            names |= {"gpus": Message("number of GPUs"), "own": Message("whose Python")}
            usual = ordered[0][0]
            differs = joined((names[key] for key in names if getattr(group[0], key) != getattr(usual, key)), LIST)
            report.warn(
                "torch",
                Message("{text}; unlike most: {what}", text=text, what=differs),
                Message("give all workers the same image or environment"),
            )
    if more := [one for group in ordered[_MOST_LINES:] for one in group]:
        text = Message("{workers} ({count}): differ as well", workers=_fold(more), count=len(more))
        report.warn("torch", text, "atlctl doctor -o json")
    if lacking := [one for one in told if one.torch is None and one.problem is None]:
        pythons = Counter(f"Python {one.python or '?'} ({one.executable or '?'})" for one in lacking)
        shown = ", ".join(name for name, _ in pythons.most_common(3))
        text = Message(
            "{workers} ({count}): no torch in {python}", workers=_fold(lacking), count=len(lacking), python=shown
        )
        report.warn(
            "torch", text, Message("put the Python that trains first in the workers' PATH, or: pip install torch there")
        )
    silent: dict[str, list[Told]] = {}
    for one in told:
        if one.problem is not None:
            silent.setdefault(one.problem, []).append(one)
    for problem, group in list(silent.items())[:_MOST_LINES]:
        text = Message("{workers} ({count}): no answer: {why}", workers=_fold(group), count=len(group), why=problem)
        report.warn("torch", text, f"atlctl exec {named} -w {shlex.quote(_fold(group))} -- python3 -V")


def _what(one: Told) -> str:
    cuda = f"CUDA {one.cuda}" if one.cuda else Message("no CUDA")
    python = (
        Message("Python {version} ({path})")
        if one.own
        else Message("Python {version} ({path}, of a process there: its own python3 has no torch)")
    ).filled(version=one.python or "?", path=one.executable or "?")
    gpus = "" if one.gpus is None else Message(", GPUs: {count}", count=one.gpus)
    return Message("torch {version} ({cuda}), {python}{gpus}", version=one.torch, cuda=cuda, python=python, gpus=gpus)


def _fold(told: Sequence[Told]) -> str:
    return fold_names(one.worker for one in told)
