"""What every check is given: the agents, what was asked for, and the report that it adds to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from atlctl.i18n import Message
from atlctl.jobs.model import Worker
from atlctl.smoke.findings import Check, Culprit, Finding, Report, Severity, SmokeVerdict
from atlctl.smoke.ranks.expected import BusbwRow
from atlctl.smoke.session import Session

Tier = Literal["quick", "standard", "deep"]
#: Why a worker was not tested, if the check knows no better.
NO_RESULT = Message("it gave no result")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for.

    `net_only`: facts and network, nothing else. `items`: these checks, instead of those of the tier. `gpu`: whether
    GPUs may be touched, None to decide by looking (never while a training uses them). `gpus`: for each worker named
    the GPUs that are tested. `mounts`: folders to test beside those found shared. `timeout`: seconds for the whole
    run. `budget`: seconds after which no check begins, nor one that would usually take longer than is left.
    """

    tier: Tier = "quick"
    net_only: bool = False
    items: tuple[str, ...] = ()
    gpu: bool | None = None
    allow_busy: bool = False
    gpus: Mapping[str, Sequence[int]] | None = None
    mounts: tuple[str, ...] = ()
    timeout: float = 300.0
    budget: float | None = None
    #: Figures of hardware that the user has added.
    busbw: tuple[BusbwRow, ...] = ()


@dataclass(slots=True)
class Run:
    """One smoke test under way. `facts`: what each agent told of its worker, by name, once `check_facts` has run.
    `progress` gets the check that begins, or goes on, and a detail. `ranks`: checks with torch are due. `quiet`:
    GPUs and CPUs are left alone because a training runs; says why."""

    session: Session
    workers: tuple[Worker, ...]
    options: Options
    report: Report
    progress: Callable[[str, str], None] = lambda *_: None
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    ranks: bool = True
    quiet: str = ""

    def find(self, *findings: Finding) -> None:
        self.report.findings.extend(findings)

    @contextmanager
    def check(self, name: str) -> Iterator[OpenCheck]:
        """One check: its time and its verdict go into the report. The verdict is the worst of the findings made
        for `name` meanwhile. It is never a pass where a worker that was there at the beginning is not among those that
        the check says it `tested`, unless it is `not_judged` at all."""
        self.progress(name, "")
        begun, stage, due = time.monotonic(), OpenCheck(), self.session.living()
        yield stage
        seconds = round(time.monotonic() - begun, 3)
        untested = dict(stage.untested)
        if not stage.unjudged:
            untested |= {one: NO_RESULT for one in due if one not in stage.tested and one not in untested}
        self.find(*self._not_tested(name, untested, stage.advice))
        otherwise = SmokeVerdict.NOT_JUDGED if stage.unjudged else SmokeVerdict.PASS
        if untested:
            otherwise = SmokeVerdict.INCOMPLETE
        self.report.checks.append(Check(name, self.report.verdict_of(name, otherwise), stage.note, seconds))
        self.report.timings[name] = round(self.report.timings.get(name, 0.0) + seconds, 3)

    def _not_tested(self, check: str, untested: Mapping[str, str], advice: Mapping[str, Message]) -> list[Finding]:
        """A finding for each, but for those that the check accuses of more. An agent that is gone is a finding of the
        roll call."""
        accused = {one.culprit.worker for one in self.report.findings if one.check == check and one.culprit is not None}
        gone = self.session.gone()
        return [
            Finding(check, Severity.INCOMPLETE, Culprit("worker", name), why, advice=advice.get(name))
            for name, why in untested.items()
            if name not in accused and name not in gone
        ]


@dataclass(slots=True)
class OpenCheck:
    """What a check reports about itself while it runs: who was `tested`, and why others that were due were not
    (`untested`), with `advice` for some of these."""

    note: str = ""
    unjudged: bool = False
    tested: set[str] = field(default_factory=set)
    untested: dict[str, str] = field(default_factory=dict)
    advice: dict[str, Message] = field(default_factory=dict)

    def not_judged(self, why: str) -> None:
        """The check does not apply, or there is nothing to compare with: no worker was due."""
        self.note, self.unjudged = why, True
