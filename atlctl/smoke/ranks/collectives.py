"""Collectives on exact integers, compared bit by bit, so that a wrong value names its sender."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlctl.jobs.naming import counted
from atlctl.smoke.context import Run, Stage
from atlctl.smoke.ranks import judging, transports, verdicts
from atlctl.smoke.ranks.members import chosen, grouped
from atlctl.smoke.ranks.settle import Settled, settle

SECONDS = 60.0
CHECK = "collectives"
_ADVICE = "take this GPU or machine out of the job, and test its memory and its network card by themselves"


async def check_collectives(run: Run) -> None:
    with run.check(CHECK) as stage:
        settled = await group_check(run, stage, CHECK, verdicts.collectives, SECONDS, _ADVICE)
        if settled is not None and settled.outcome is not None and settled.members[0].gpu is not None:
            await _ways(run, stage, settled)


async def _ways(run: Run, stage: Stage, settled: Settled) -> None:
    """Which way NCCL took. Workers that are worse off than the others are looked at twice."""
    told = transports.ways(settled.outcome) if settled.outcome is not None else {}
    rdma = [worker for worker, facts in run.facts.items() if _has_rdma(facts)]
    if first := transports.judge(CHECK, told, rdma):
        again = await settle(run, CHECK, settled.members, SECONDS)
        second = transports.judge(CHECK, transports.ways(again.outcome), rdma) if again.outcome is not None else []
        run.find(*(finding for finding in first if finding.culprit in [one.culprit for one in second]))
    if told:
        run.report.data["nccl"] = {worker: dict(kinds) for worker, kinds in told.items()}
        stage.note = f"{stage.note}; {transports.note(told)}"


def _has_rdma(facts: Mapping[str, Any]) -> bool:
    """It has an RDMA device with a port that is active."""
    told = facts.get("rdma")
    return isinstance(told, list) and any("ACTIVE" in str(device) for device in told)


async def group_check(
    run: Run, stage: Stage, check: str, judge: verdicts.Judge, seconds: float, advice: str
) -> Settled | None:
    """One stage of a group: those who keep it from its end are named, then wrong values, looked at twice."""
    selected = await chosen(run)
    members = grouped(run, selected.members)
    if len(members) < 2:
        stage.not_judged(f"{counted(len(members), 'rank')}: there is nobody to compare with")
        return None
    settled = await settle(run, check, members, seconds)
    if settled.outcome is None or not settled.whole:
        stage.note = f"did not come to its end for {len(settled.members)} of {len(members)} ranks"
        return settled
    wrongs = judge(judging.results(settled.outcome))
    if wrongs:
        second = await settle(run, check, settled.members, seconds)
        again = judge(judging.results(second.outcome)) if second.outcome is not None and second.whole else []
        run.find(*judging.findings(check, settled.outcome, wrongs, again, advice))
    stage.note = note(settled, len(members))
    return settled


def note(settled: Settled, asked: int) -> str:
    """How many ranks took part, over which backend, and what was skipped."""
    tracks = settled.outcome.tracks if settled.outcome is not None else []
    skipped = sorted({step for track in tracks for step in track.skipped})
    backend = "nccl" if any(member.gpu is not None for member in settled.members) else "gloo"
    some = f"{len(settled.members)}" + (f" of {asked}" if asked > len(settled.members) else "")
    return f"{some} ranks, {backend}" + (f"; skipped: {', '.join(skipped)}" if skipped else "")
