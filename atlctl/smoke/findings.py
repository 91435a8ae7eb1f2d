"""What the smoke test found: findings that name a culprit, checks with their verdicts, and the verdict of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from atlctl.i18n import Message


class Severity(StrEnum):
    """How bad a finding is. `INCOMPLETE`: a worker was due to be tested and gave no result. `NOT_JUDGED`: the check
    does not apply to it, or there was nothing to compare it with."""

    FAIL = "fail"
    INCOMPLETE = "incomplete"
    WARN = "warn"
    NOT_JUDGED = "not_judged"


class SmokeVerdict(StrEnum):
    """The answer of one check, and of the whole run. `SKIPPED`: an option or a running training excluded the check."""

    FAIL = "fail"
    INCOMPLETE = "incomplete"
    WARN = "warn"
    NOT_JUDGED = "not_judged"
    SKIPPED = "skipped"
    PASS = "pass"  # noqa: S105 - a verdict


Kind = Literal["worker", "gpu", "rank", "link", "mount", "facts"]


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who is at fault, as precisely as it was found. `worker` and `peer` are names; `gpu` is the number on its
    worker; `rank` the rank in the smoke test's own group; a link has two ends, in the order of the workers."""

    kind: Kind
    worker: str | None = None
    peer: str | None = None
    gpu: int | None = None
    rank: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or that could not be judged. `confirmed`: a second look, alone, found it again.

    `evidence` is hostile text where it carries words of a worker. `culprit` is None where nobody can be named.
    """

    check: str
    severity: Severity
    culprit: Culprit | None
    evidence: str
    confirmed: bool = False
    advice: Message | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One check that was made, or was to be: `note` tells briefly what was measured, or why it was not judged."""

    name: str
    verdict: SmokeVerdict
    note: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Report:
    """All of a run. `workers`: what is known of each, by name. `timings`: seconds of each stage. `data`: figures for
    programs and for the heat map, by the name of the check."""

    tier: str
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def verdict_of(self, check: str, otherwise: SmokeVerdict) -> SmokeVerdict:
        """The worst of the findings made for `check`, `otherwise` if there is none. Without findings, too, a check may
        be incomplete."""
        found = [SmokeVerdict(finding.severity) for finding in self.findings if finding.check == check]
        if otherwise is SmokeVerdict.INCOMPLETE:
            found.append(otherwise)
        return worst(found) if found else otherwise

    @property
    def verdict(self) -> SmokeVerdict:
        return worst([*(check.verdict for check in self.checks), *(SmokeVerdict(f.severity) for f in self.findings)])


def worst(verdicts: Sequence[SmokeVerdict]) -> SmokeVerdict:
    """A fault weighs most, then what was not tested, then a warning. A run in which nothing at all was judged is not
    judged."""
    for verdict in (SmokeVerdict.FAIL, SmokeVerdict.INCOMPLETE, SmokeVerdict.WARN, SmokeVerdict.PASS):
        if verdict in verdicts:
            return verdict
    return SmokeVerdict.NOT_JUDGED
