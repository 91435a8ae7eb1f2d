"""The context of every check: the agents, the user's options, and the report to which it adds."""

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
#: The default reason why a worker was not tested.
NO_RESULT = Message("it gave no result")


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options.

    `net_only`: only facts and network. `items`: these checks instead of the tier's. `gpu`: whether GPUs may be used;
    None: decide from the facts (never during a training). `gpus`: the GPUs to test, by worker name. `mounts`: folders
    to test in addition to detected shared ones. `timeout`: seconds for the whole run. `budget`: seconds after which no
    check starts, and none that usually takes longer than the remaining time. `patience`: the factor for all other time
    limits. `share`: the most that a transfer may take of a link's speed.
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
    patience: float = 1.0
    share: float | None = None
    #: Hardware figures added by the user.
    busbw: tuple[BusbwRow, ...] = ()


@dataclass(slots=True)
class Run:
    """A running smoke test. `facts`: facts by worker name, once `check_facts` has run. `progress` gets the name of the
    check that starts or continues, and a detail. `ranks`: torch checks will run. `quiet`: the reason why GPUs and CPUs
    are left alone (a training is running)."""

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
        """Run one check: adds its time and verdict to the report. The verdict is the worst of the findings made for
        `name`. It is not a pass if a worker that was alive at the start is not in `tested`, unless the check is
        `not_judged`."""
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
        """A finding for each untested worker, except those with a finding of this check, and lost agents (reported by
        the roll call)."""
        accused = {one.culprit.worker for one in self.report.findings if one.check == check and one.culprit is not None}
        gone = self.session.gone()
        return [
            Finding(check, Severity.INCOMPLETE, Culprit("worker", name), why, advice=advice.get(name))
            for name, why in untested.items()
            if name not in accused and name not in gone
        ]


@dataclass(slots=True)
class OpenCheck:
    """The state of a running check: `tested` workers; `untested` ones with the reason, and `advice` for some of
    them."""

    note: str = ""
    unjudged: bool = False
    tested: set[str] = field(default_factory=set)
    untested: dict[str, str] = field(default_factory=dict)
    advice: dict[str, Message] = field(default_factory=dict)

    def not_judged(self, why: str) -> None:
        """Mark the check as not applicable, or without anything to compare with: no worker was due."""
        self.note, self.unjudged = why, True
