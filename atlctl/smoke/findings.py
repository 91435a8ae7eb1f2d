"""Results of the smoke test: findings with a culprit, checks with verdicts, and the overall verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from atlctl.i18n import Message


class Severity(StrEnum):
    """Severity of a finding. `INCOMPLETE`: a worker that should be tested gave no result. `NOT_JUDGED`: the check does
    not apply to it, or there was nothing to compare it with."""

    FAIL = "fail"
    INCOMPLETE = "incomplete"
    WARN = "warn"
    NOT_JUDGED = "not_judged"


class SmokeVerdict(StrEnum):
    """The verdict of one check or of the whole run. `SKIPPED`: an option or a running training excluded the check."""

    FAIL = "fail"
    INCOMPLETE = "incomplete"
    WARN = "warn"
    NOT_JUDGED = "not_judged"
    SKIPPED = "skipped"
    PASS = "pass"  # noqa: S105 - a verdict


Kind = Literal["worker", "gpu", "rank", "link", "mount", "facts"]


@dataclass(frozen=True, slots=True)
class Culprit:
    """The faulty part, as precisely as known. `worker` and `peer` are names; `gpu` is the number on its worker; `rank`
    is the rank in the smoke test's own group; a link has two ends, in the order of the workers."""

    kind: Kind
    worker: str | None = None
    peer: str | None = None
    gpu: int | None = None
    rank: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault, or a reason why something was not judged. `confirmed`: a second test, alone, found it again.

    `evidence` is untrusted text if it contains a worker's output. `culprit` is None if the faulty part is unknown.
    """

    check: str
    severity: Severity
    culprit: Culprit | None
    evidence: str
    confirmed: bool = False
    advice: Message | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the run: `note` is a short result, or the reason why it was not judged."""

    name: str
    verdict: SmokeVerdict
    note: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Report:
    """The report of one run. `workers`: known data by worker name. `timings`: seconds of each stage. `data`: figures
    for programs and for the heat map, by the name of the check."""

    tier: str
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def verdict_of(self, check: str, otherwise: SmokeVerdict) -> SmokeVerdict:
        """The worst severity of the findings of `check`, or `otherwise` if there are none. If `otherwise` is
        INCOMPLETE, it counts like a finding."""
        found = [SmokeVerdict(finding.severity) for finding in self.findings if finding.check == check]
        if otherwise is SmokeVerdict.INCOMPLETE:
            found.append(otherwise)
        return worst(found) if found else otherwise

    @property
    def verdict(self) -> SmokeVerdict:
        return worst([*(check.verdict for check in self.checks), *(SmokeVerdict(f.severity) for f in self.findings)])


def worst(verdicts: Sequence[SmokeVerdict]) -> SmokeVerdict:
    """The worst verdict, in the order fail, incomplete, warn, pass. NOT_JUDGED if there is none of these."""
    for verdict in (SmokeVerdict.FAIL, SmokeVerdict.INCOMPLETE, SmokeVerdict.WARN, SmokeVerdict.PASS):
        if verdict in verdicts:
            return verdict
    return SmokeVerdict.NOT_JUDGED
