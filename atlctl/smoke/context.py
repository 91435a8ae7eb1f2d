"""What every check is given: the agents, what was asked for, and the report that it adds to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from atlctl.jobs.model import Worker
from atlctl.smoke.findings import Check, Finding, Report, SmokeVerdict
from atlctl.smoke.ranks.expected import BusbwRow
from atlctl.smoke.session import Session

Tier = Literal["quick", "standard", "deep"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for.

    `net_only`: facts and network, nothing else. `gpu`: whether GPUs may be touched, None to decide by looking (never
    while a training uses them). `gpus`: for each worker named the GPUs that are tested. `mounts`: folders to
    test beside those found shared. `timeout`: seconds for the whole run.
    """

    tier: Tier = "quick"
    net_only: bool = False
    gpu: bool | None = None
    allow_busy: bool = False
    gpus: Mapping[str, Sequence[int]] | None = None
    mounts: tuple[str, ...] = ()
    timeout: float = 300.0
    #: Figures of hardware that the user has added.
    busbw: tuple[BusbwRow, ...] = ()


@dataclass(slots=True)
class Run:
    """One smoke test under way. `facts`: what each agent told of its worker, by name, once `check_facts` has run.
    `progress` is told what is done now. `quiet`: GPUs and CPUs are left alone because a training runs; says why."""

    session: Session
    workers: tuple[Worker, ...]
    options: Options
    report: Report
    progress: Callable[[str], None] = lambda _: None
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    quiet: str = ""

    def find(self, *findings: Finding) -> None:
        self.report.findings.extend(findings)

    @contextmanager
    def check(self, name: str) -> Iterator[OpenCheck]:
        """One check: its time and its verdict go into the report. The verdict is the worst of the findings made
        for `name` meanwhile, unless `not_judged` said that there was nothing to judge."""
        self.progress(name)
        begun, stage = time.monotonic(), OpenCheck()
        yield stage
        seconds = round(time.monotonic() - begun, 3)
        otherwise = SmokeVerdict.NOT_JUDGED if stage.unjudged else SmokeVerdict.PASS
        self.report.checks.append(Check(name, self.report.verdict_of(name, otherwise), stage.note, seconds))
        self.report.timings[name] = round(self.report.timings.get(name, 0.0) + seconds, 3)


@dataclass(slots=True)
class OpenCheck:
    """What a check says of itself while it runs."""

    note: str = ""
    unjudged: bool = False

    def not_judged(self, why: str) -> None:
        self.note, self.unjudged = why, True
