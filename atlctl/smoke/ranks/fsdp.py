"""A small step of FSDP: sharded parameters gathered, reduced and updated."""

from __future__ import annotations

from atlctl.smoke.context import Run
from atlctl.smoke.ranks import verdicts
from atlctl.smoke.ranks.collectives import group_check

SECONDS = 90.0
CHECK = "fsdp"
_ADVICE = "all_gather and reduce_scatter of this GPU or machine are to be looked at: see the check collectives"


async def check_fsdp(run: Run) -> None:
    with run.check(CHECK) as stage:
        settled = await group_check(run, stage, CHECK, verdicts.fsdp, SECONDS, _ADVICE)
        tracks = settled.outcome.tracks if settled is not None and settled.outcome is not None else []
        skipped = [why for track in tracks for why in track.skipped.values()]
        if skipped and not any(track.results for track in tracks):
            stage.not_judged(f"skipped: {skipped[0]}")
