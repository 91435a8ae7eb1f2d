"""Run a smoke test: the roll call, the checks of the tier in order, a second try for missing workers, and the verdict.

Checks of one group run at the same time, the groups one after another. While the workers import torch, checks that do
not need it run: facts, network, storage. Speed is measured when nothing else runs. Facts come first: they show whether
a training is running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from atlctl.backends.base import Executor
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import SEE_PERMISSIONS, AtlctlError, NotAllowed, TimedOut, Unreachable
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import fold_names, names_by_reason
from atlctl.smoke.care import check_gpus, look_before
from atlctl.smoke.context import Options, Run, Tier
from atlctl.smoke.facts import check_facts, look_after
from atlctl.smoke.findings import Check, Culprit, Finding, Report, Severity, SmokeVerdict
from atlctl.smoke.network.mesh import check_mesh
from atlctl.smoke.network.throughput import check_throughput
from atlctl.smoke.ranks.allreduce import check_allreduce, check_pairs
from atlctl.smoke.ranks.collectives import check_collectives, check_ddp, check_fsdp
from atlctl.smoke.ranks.device import check_device
from atlctl.smoke.ranks.stragglers import check_stragglers
from atlctl.smoke.session import SLOW_LOGIN, Absence, Session
from atlctl.smoke.storage import check_storage

#: Timeouts in seconds: workers without an answer after another one has answered, and the whole roll call. It is long
#: because many workers or a busy machine answer slowly. An agent takes two logins, of which each may take 6 s.
PATIENCE, ROLL_CALL_MOST = 13.0, 25.0
#: Seconds for the second try of missing workers, made while the others are tested: maximum and minimum.
_AGAIN, _AGAIN_LEAST = 60.0, 1.0
#: Seconds after the run's timeout when agents end by themselves.
_MARGIN = 30.0
#: Seconds of a test beside a training, and its share of each link.
LIGHT_SECONDS, LIGHT_SHARE = 5.0, 0.1
NO_TIME, _INTERRUPTED = Message("no time left"), Message("interrupted")

_log = logging.getLogger(__name__)

Act = Callable[[Run], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Step:
    """One check: its name and title in the report, and its function. `seconds`: usual time of four healthy workers on
    CPUs (two cores in total); `each`: extra time for each additional worker; `on_gpus`: minimum on GPUs; none includes
    the import of torch. `ranks`: runs torch processes, on GPUs. `others`: needs two workers. `loads`: would slow down a
    training. `needs`: the check whose result it uses."""

    name: str
    title: Message
    act: Act
    seconds: float = 0.0
    each: float = 0.0
    on_gpus: float = 0.0
    ranks: bool = False
    others: bool = False
    loads: bool = False
    needs: str = ""

    def takes(self, workers: int, *, gpus: bool) -> float:
        """The usual time in seconds for so many workers."""
        return max(self.seconds + self.each * max(0, workers - _MEASURED), self.on_gpus if gpus else 0.0)


#: Number of workers that `Step.seconds` is for.
_MEASURED = 4
#: Seconds that the first torch check waits for the import, on CPUs and on GPUs (measured: 8.7 with an H100).
_IMPORT, _IMPORT_ON_GPUS = 2.0, 9.0
_FACTS = Step("facts", Message("differences between workers"), check_facts, 0.5, 0.02)
_MESH = Step("mesh", Message("every worker calls every other"), check_mesh, 0.5, 0.05, others=True)
_THROUGHPUT = Step(
    "throughput",
    Message("speed and loss of every link"),
    check_throughput,
    1.5,
    0.3,
    others=True,
    loads=True,
    needs="mesh",
)
_QUICK = (
    (_FACTS,),
    (Step("gpus", Message("the driver's report on the GPUs"), check_gpus, 0.1),),
    (_MESH, Step("storage", Message("mounts are written and read by all"), check_storage, 1, 0.02)),
    (Step("device", Message("memory and arithmetic"), check_device, 1, 0.1, on_gpus=4, ranks=True),),
    (Step("collectives", Message("collectives, bit by bit"), check_collectives, 0.5, 0.1, ranks=True),),
    (Step("ddp", Message("gradients of a DDP step"), check_ddp, 0.5, 0.1, ranks=True),),
)
_STANDARD = (
    (_THROUGHPUT,),
    (Step("fsdp", Message("a step of FSDP"), check_fsdp, 0.5, 0.1, ranks=True),),
    (Step("allreduce", Message("bandwidth of all-reduce"), check_allreduce, 1.5, 0.1, ranks=True),),
    (Step("stragglers", Message("who is slower than the others"), check_stragglers, 2.5, 0.1, ranks=True),),
)
_DEEP = ((Step("pairs", Message("each two workers by themselves"), check_pairs, 1.5, 0.1, ranks=True, others=True),),)
_TIERS: Mapping[Tier, Sequence[Sequence[Step]]] = {"quick": _QUICK, "standard": _STANDARD, "deep": _DEEP}
_STEPS = {step.name: step for groups in _TIERS.values() for group in groups for step in group}
#: Titles of the report's lines.
TITLES = {"roll-call": Message("who answers"), **{name: step.title for name, step in _STEPS.items()}}


def items() -> list[tuple[Step, Tier]]:
    """Every check except the roll call, in order, with its lowest tier."""
    return [(step, tier) for tier, groups in _TIERS.items() for group in groups for step in group]


def steps(options: Options) -> Sequence[Sequence[Step]]:
    """The groups of checks for these options."""
    if options.items:
        wanted = {*options.items, *(step.needs for name, step in _STEPS.items() if name in options.items)}
        chosen = ([step for step in group if step.name in wanted] for groups in _TIERS.values() for group in groups)
        return [group for group in chosen if group]
    if options.net_only:
        return ((_FACTS,), (_MESH,), (_THROUGHPUT,))
    more = {"quick": (), "standard": _STANDARD, "deep": (*_STANDARD, *_DEEP)}
    return (*_QUICK, *more[options.tier])


def names(options: Options) -> list[str]:
    """The names of all lines of the report."""
    return ["roll-call", *(step.name for group in steps(options) for step in group)]


def absent(job: Job, chosen: Sequence[Worker], *, whole: bool) -> dict[str, str]:
    """Workers that cannot be tested, with the reason: ended workers, and with `whole` the job's missing ones."""
    plain, explained = Message("it is not running ({state})"), Message("it is not running ({state}: {reason})")
    gone: dict[str, str] = {
        worker.name: (explained if worker.reason else plain).filled(state=worker.state.label, reason=worker.reason)
        for worker in chosen
        if not worker.state.active
    }
    if whole:
        # A missing worker has no name; it follows from the other names if they end in the index.
        named = [worker for worker in job.workers if worker.name.endswith(str(worker.index))]
        stem = named[0].name.removesuffix(str(named[0].index)) if named and len(named) == len(job.workers) else "#"
        gone |= {
            f"{stem}{index}": Message("the job has no worker of index {index}", index=index) for index in job.missing
        }
    return gone


class Smoke:
    """One smoke test. Call `run` once; `report` has the results so far, also after a cancellation.

    `workers`: live workers, in the job's order. `gone`: missing workers that are not asked, see `absent`.
    """

    def __init__(
        self,
        executor: Executor,
        workers: Sequence[Worker],
        options: Options,
        gone: Mapping[str, str] | None = None,
        progress: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self.report = Report(options.tier)
        self._executor = executor
        self._workers = tuple(workers)
        self._options = options
        self._gone = dict(gone or {})
        self._progress = progress
        self._imported = False
        self._sessions: list[Session] = []
        self._begun = time.monotonic()

    def may_still_run(self) -> list[str]:
        """After the run: workers on which an agent may still be running."""
        return list(dict.fromkeys(name for session in self._sessions for name in session.may_still_run()))

    async def run(self) -> None:
        """Run the test. Raises AtlctlError if no worker can be tested."""
        self._begun = time.monotonic()
        options = self._options
        due = {step.name for group in steps(options) for step in group if step.ranks}
        ranks = bool(due) and options.gpu is not False
        config = {
            "seconds": int(options.timeout + _MARGIN),
            "torch": ranks,
            "nice": 0,
            # Slow imports are done while nothing else runs.
            "stages": [name for name in ("ddp", "fsdp") if name in due],
            "token": secrets.token_hex(8),
        }
        session = Session(self._executor, self._workers, config, options.patience)
        self._sessions.append(session)
        async with session:
            run = Run(session, self._workers, options, self.report, self._progress, ranks=ranks)
            silent = await self._roll_call(run)
            again = asyncio.create_task(self._again(silent, {**config, "torch": False})) if silent else None
            asked = time.monotonic()
            try:
                await self._checks(run)
                await self._guarded(run, None, self._look_after)
                if again is not None:
                    await asyncio.wait([again], timeout=max(0.0, asked + _AGAIN_LEAST - time.monotonic()))
                await self._lost(run, silent, config)
            finally:
                self._close()
                if again is not None:
                    again.cancel()
                    await asyncio.wait([again])

    def _close(self) -> None:
        """Add a line for every check of the tier that has none yet, and sort the lines."""
        order = names(self._options)
        for name in order:
            self._not_made(name, SmokeVerdict.INCOMPLETE, _INTERRUPTED)
        self.report.checks.sort(key=lambda check: order.index(check.name))
        self.report.timings["total"] = round(time.monotonic() - self._begun, 3)

    @property
    def _deadline(self) -> float:
        return self._begun + self._options.timeout

    # The roll call

    @property
    def _patience(self) -> float:
        return PATIENCE * self._options.patience

    async def _roll_call(self, run: Run) -> dict[str, str]:
        """Add a finding for each missing worker; returns the ones without an answer, with the reason."""
        session, report = run.session, self.report
        for worker in self._workers:
            report.workers[worker.name] = {"index": worker.index, "state": str(worker.state), "answered": False}
        for name, why in self._gone.items():
            report.workers[name] = {**report.workers.get(name, {}), "answered": False, "reason": why}
        with run.check("roll-call") as stage:
            run.find(*(_missing(name, why, confirmed=True) for name, why in self._gone.items()))
            silent = await session.roll_call(
                min(self._patience, self._options.timeout),
                min(ROLL_CALL_MOST * self._options.patience, self._options.timeout),
            )
            for name, why in silent.items():
                report.workers[name]["reason"] = why
            living = session.living()
            for name in living:
                hello = session.hello(name)
                told = {key: hello.get(key) for key in ("host", "python", "executable", "after")}
                report.workers[name] |= {"answered": True, **told}
            run.find(*(self._silent(session, name, why) for name, why in silent.items()))
            total = len(self._workers) + len(self._gone)
            stage.note = Message("{some} of {all} workers answer", some=len(living), all=total)
            after, last = max(((session.hello(name).get("after", 0.0), name) for name in living), default=(0.0, ""))
            if after >= SLOW_LOGIN:
                slow = Message("{note}, {worker} after {seconds:.0f} s")
                stage.note = slow.filled(note=stage.note, worker=last, seconds=after)
        if not living:
            raise nobody(session)
        return silent

    def _silent(self, session: Session, name: str, why: str) -> Finding:
        """The finding for a worker without an answer. A refusal is a failure; silence is not judged as one if the time
        was too short or the machine is too busy."""
        silent = session.absence(name) is Absence.SILENT
        doubted = silent and (self._options.timeout < self._patience or session.overloaded(name))
        if not doubted:
            return _missing(name, why, confirmed=False)
        if session.overloaded(name):
            why = Message("{said}; its machine is too busy for a verdict", said=why)
        return replace(_missing(name, why, confirmed=False), severity=Severity.INCOMPLETE)

    async def _again(self, silent: Mapping[str, str], config: Mapping[str, object]) -> None:
        """Try missing workers again while the others are tested; confirms or changes the findings."""
        workers = [worker for worker in self._workers if worker.name in silent]
        session = Session(self._executor, workers, config, self._options.patience)
        self._sessions.append(session)
        begun, whole = time.monotonic(), False
        async with session:
            with contextlib.suppress(asyncio.CancelledError):
                await session.roll_call(_AGAIN * self._options.patience)
                whole = True
            self._confirm(session.living(), silent, sure=whole or time.monotonic() - begun >= self._patience)
        self._judge("roll-call")

    def _confirm(self, answered: Sequence[str], silent: Mapping[str, str], *, sure: bool) -> None:
        """Judge the missing workers by the second try. `sure`: those without an answer had enough time."""
        for at, finding in enumerate(self.report.findings):
            who = finding.culprit.worker if finding.culprit is not None else None
            if finding.check != "roll-call" or who not in silent or finding.severity is not Severity.FAIL:
                continue
            if who in answered:
                text = Message("{said}; asked once more it answered, and was not tested", said=finding.evidence)
                self.report.findings[at] = replace(finding, severity=Severity.INCOMPLETE, evidence=text, confirmed=True)
            elif sure:
                self.report.findings[at] = replace(finding, confirmed=True)

    async def _lost(self, run: Run, silent: Mapping[str, str], config: Mapping[str, object]) -> None:
        """Findings for agents lost during the test. A second agent shows whether the worker itself is gone."""
        lost = {name: why for name, why in run.session.gone().items() if name not in silent}
        if not lost:
            return
        workers = [worker for worker in self._workers if worker.name in lost]
        session = Session(self._executor, workers, {**config, "torch": False}, self._options.patience)
        self._sessions.append(session)
        async with session:
            await session.roll_call(self._patience, ROLL_CALL_MOST * self._options.patience)
            living = session.living()
        for name, why in lost.items():
            text, severity = Message("its agent was lost while it was tested: {why}", why=why), Severity.FAIL
            if name in living:
                severity, text = Severity.INCOMPLETE, Message("{said}; another one answers", said=text)
            finding = Finding("roll-call", severity, Culprit("worker", name), text, True, _ADVICE_LOST)
            self.report.findings.append(finding)
            self.report.workers[name]["lost"] = why
        self._judge("roll-call")

    async def _look_after(self, run: Run) -> None:
        await look_after(run)
        self._judge(_FACTS.name, _MESH.name, _THROUGHPUT.name)

    def _judge(self, *names: str) -> None:
        """Update the verdicts of checks after later findings."""
        for at, check in enumerate(self.report.checks):
            if check.name in names:
                # Its only warnings may be explained by now.
                alone = SmokeVerdict.NOT_JUDGED if check.verdict is SmokeVerdict.WARN else check.verdict
                self.report.checks[at] = replace(check, verdict=self.report.verdict_of(check.name, alone))

    # The checks

    async def _checks(self, run: Run) -> None:
        """Run all checks of the tier; checks that are left out get a line in the report too."""
        looked = False
        for group in steps(self._options):
            if group[0].name != _FACTS.name and not looked:
                looked = True
                await self._guarded(run, None, look_before)
            todo = []
            for step in group:
                verdict, why = self._left_out(run, step)
                if why:
                    self._not_made(step.name, verdict, why)
                else:
                    todo.append(self._guarded(run, step.name, step.act))
                    self._imported |= step.ranks
            await asyncio.gather(*todo)

    def _left_out(self, run: Run, step: Step) -> tuple[SmokeVerdict, str]:
        """The verdict and reason if a check is left out; the reason is empty if it will run."""
        if step.ranks and self._options.gpu is False:
            return SmokeVerdict.SKIPPED, Message("--no-gpu")
        if (step.ranks or step.loads) and run.quiet and not self._options.allow_busy:
            return SmokeVerdict.SKIPPED, run.quiet
        if step.others and len(self._workers) + len(self._gone) < 2:
            return SmokeVerdict.NOT_JUDGED, Message("at least two workers are needed")
        if time.monotonic() >= self._deadline:
            return SmokeVerdict.INCOMPLETE, NO_TIME
        living = run.session.living()
        if not living:
            return SmokeVerdict.INCOMPLETE, Message("no worker answers any more")
        if step.others and len(living) < 2:
            return SmokeVerdict.INCOMPLETE, Message("only one worker is left, and at least two are needed")
        if self._options.budget is not None:
            left = self._begun + self._options.budget - time.monotonic()
            gpus = any(facts.get("gpus") for facts in run.facts.values())
            usual = step.takes(len(living), gpus=gpus)
            if step.ranks and not self._imported:
                usual += _IMPORT_ON_GPUS if gpus else _IMPORT
            if usual > left:
                why = Message("it usually takes {usual:.1f} s, and {left:.1f} s of the budget are left")
                return SmokeVerdict.SKIPPED, why.filled(usual=usual, left=max(0.0, left))
        return SmokeVerdict.PASS, ""

    async def _guarded(self, run: Run, name: str | None, act: Act) -> None:
        """Run `act` within the remaining time. A failure in a check does not affect the other checks."""
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())) as limit:
                await act(run)
        except TimeoutError:
            if not limit.expired():
                raise
            self._not_made(name, SmokeVerdict.INCOMPLETE, NO_TIME)
        except AtlctlError as error:
            self._not_made(name, SmokeVerdict.INCOMPLETE, error.message)
        except Exception as error:  # noqa: BLE001 - reported, and logged with its traceback
            _log.warning("the check %s failed itself", name or "before all others", exc_info=error)
            why = Message("the check failed itself: {kind}: {error}", kind=type(error).__name__, error=error)
            self._not_made(name, SmokeVerdict.INCOMPLETE, why)

    def _not_made(self, name: str | None, verdict: SmokeVerdict, why: str) -> None:
        """Add the line of a check that did not run or finish. Its findings so far count."""
        if name is not None and all(check.name != name for check in self.report.checks):
            self.report.checks.append(Check(name, self.report.verdict_of(name, verdict), why))


async def check_links(executor: Executor, workers: Sequence[Worker], timeout: float) -> Report:
    """Test all links beside a training, for `LIGHT_SECONDS` and with `LIGHT_SHARE` of each link at most. `timeout`:
    seconds for the roll call. Raises AtlctlError if no worker answers."""
    config = {"seconds": int(timeout + _MARGIN), "torch": False, "nice": 0, "token": secrets.token_hex(8)}
    async with Session(executor, workers, config) as session:
        await session.roll_call(min(PATIENCE, timeout), min(ROLL_CALL_MOST, timeout))
        if not session.living():
            raise nobody(session)
        run = Run(session, tuple(workers), Options(net_only=True, share=LIGHT_SHARE), Report("quick"))
        await check_mesh(run)  # it sends some 100 kB
        try:
            async with asyncio.timeout(LIGHT_SECONDS) as limit:
                await check_throughput(run)
        except TimeoutError:
            if not limit.expired():
                raise
            run.report.checks.append(Check(_THROUGHPUT.name, SmokeVerdict.INCOMPLETE, NO_TIME))
        return run.report


_ADVICE_LOST = Message("see why the worker went away: atlctl ps, atlctl events, atlctl errors")
_ADVICE_MISSING = Message(
    "look at the worker: atlctl ps, atlctl events; then whether a command runs there: atlctl exec"
)


def _missing(name: str, why: str, *, confirmed: bool) -> Finding:
    return Finding("roll-call", Severity.FAIL, Culprit("worker", name), why, confirmed, _ADVICE_MISSING)


def nobody(session: Session) -> AtlctlError:
    """The error if no worker can be tested; its exit code follows from the reasons."""
    gone = session.gone()
    reasons, kinds = names_by_reason(gone.items()), {session.absence(name) for name in gone}
    told: list[str] = [
        Message("{names}: {why}", names=fold_names(names), why=why) for why, names in list(reasons.items())[:3]
    ]
    text = Message("no worker can be tested: {reasons}", reasons=joined([*told, *["..."] * (len(reasons) > 3)]))
    if kinds == {Absence.NOT_ALLOWED}:
        return NotAllowed(text, SEE_PERMISSIONS)
    hint = Message("try one of them: atlctl exec -w 0 -- true")
    return TimedOut(text, hint) if kinds == {Absence.SILENT} else Unreachable(text, hint)
