"""Run the network checks on hosts of `netns` and record which culprits were named."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from atlctl.backends.base import Executor
from atlctl.jobs.model import Worker
from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Culprit, Finding, Report, Severity
from atlctl.smoke.network.mesh import check_mesh
from atlctl.smoke.network.throughput import check_throughput
from atlctl.smoke.session import Session

#: The culprit of a finding: a worker, or the two ends of a link.
Accused = frozenset[str]


@dataclass
class Told:
    """One run: its report, and the seconds until each culprit was named."""

    report: Report
    seconds: float = 0.0
    after: dict[Accused, float] = field(default_factory=dict)

    @property
    def accused(self) -> set[Accused]:
        return {_who(finding.culprit) for finding in self.report.findings if finding.culprit is not None}

    @property
    def nobody(self) -> list[Finding]:
        """Findings without a culprit."""
        return [finding for finding in self.report.findings if finding.culprit is None]

    def lines(self) -> str:
        found = [f"{f.severity} {_name(f.culprit)}: {f.evidence}" for f in self.report.findings]
        return "\n".join((*found, *(f"{c.verdict} {c.name}: {c.note}" for c in self.report.checks)))


def _who(culprit: Culprit) -> Accused:
    return frozenset(name for name in (culprit.worker, culprit.peer) if name is not None)


def _name(culprit: Culprit | None) -> str:
    return "-".join(sorted(_who(culprit))) if culprit is not None else "nobody"


class _Timed(list[Finding]):
    """Records when each culprit was named."""

    def __init__(self, begun: float, after: dict[Accused, float]) -> None:
        super().__init__()
        self._begun, self._after = begun, after

    def extend(self, findings: object) -> None:
        assert isinstance(findings, Sequence)
        for finding in findings:
            if finding.culprit is not None:
                self._after.setdefault(_who(finding.culprit), time.monotonic() - self._begun)
        super().extend(findings)


def drive(
    executor: Executor,
    workers: Sequence[Worker],
    throughput: bool = True,
    after_roll_call: Callable[[dict[str, int]], None] = lambda _: None,
) -> Told:
    """Run roll call, mesh, throughput. `after_roll_call` gets the agents' PIDs by worker name."""
    return asyncio.run(_drive(executor, workers, throughput, after_roll_call))


async def _drive(
    executor: Executor,
    workers: Sequence[Worker],
    throughput: bool,
    after_roll_call: Callable[[dict[str, int]], None],
) -> Told:
    begun = time.monotonic()
    report = Report("standard")
    told = Told(report)
    report.findings = _Timed(begun, told.after)
    config = {"seconds": 120, "torch": False, "nice": 0, "token": os.urandom(8).hex()}
    async with Session(executor, workers, config) as session:
        run = Run(session, tuple(workers), Options("standard", timeout=60), report)
        for name, why in (await session.roll_call(4.0 + 0.1 * len(workers))).items():
            run.find(Finding("roll-call", Severity.FAIL, Culprit("worker", name), why, True))
        after_roll_call({name: int(session.hello(name)["pid"]) for name in session.living()})
        await check_mesh(run)
        if throughput:
            await check_throughput(run)
        told.seconds = time.monotonic() - begun
    return told


def stop(name: str) -> Callable[[dict[str, int]], None]:
    """For `after_roll_call`: the agent of this worker is stopped, so it never answers again."""
    return lambda pids: os.kill(pids[name], signal.SIGSTOP)
