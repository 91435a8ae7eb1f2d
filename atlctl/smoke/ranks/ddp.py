"""One step of DDP: gradients that each rank computes, that it gives to DDP, and that come back."""

from __future__ import annotations

from atlctl.smoke.context import Run
from atlctl.smoke.ranks import verdicts
from atlctl.smoke.ranks.collectives import group_check

SECONDS = 60.0
CHECK = "ddp"
_ADVICE = "take this GPU or machine out of the job: a training on it would learn from wrong gradients without a word"


async def check_ddp(run: Run) -> None:
    with run.check(CHECK) as stage:
        await group_check(run, stage, CHECK, verdicts.ddp, SECONDS, _ADVICE)
