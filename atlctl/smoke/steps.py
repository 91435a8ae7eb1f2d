"""Which checks a tier makes, and in which order: those of one group run at once, the groups one after another.

While the workers import torch, facts, network and storage are looked at, which need none of it. What measures speed
comes when nothing else runs. The facts come first: they tell whether a training runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from atlctl.smoke.care import check_gpus, look_before
from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts.check import check_facts
from atlctl.smoke.network.mesh import check_mesh
from atlctl.smoke.network.throughput import check_throughput
from atlctl.smoke.ranks.allreduce import check_allreduce
from atlctl.smoke.ranks.collectives import check_collectives
from atlctl.smoke.ranks.ddp import check_ddp
from atlctl.smoke.ranks.device import check_device
from atlctl.smoke.ranks.fsdp import check_fsdp
from atlctl.smoke.ranks.pairs import check_pairs
from atlctl.smoke.ranks.stragglers import check_stragglers
from atlctl.smoke.storage import check_storage

Act = Callable[[Run], Awaitable[None]]

__all__ = ["Act", "Step", "look_before", "names", "steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """One check: its name in the report, and what makes it. `ranks`: it runs processes with torch, on GPUs.
    `others`: it needs two workers. `loads`: a training would feel it."""

    name: str
    act: Act
    ranks: bool = False
    others: bool = False
    loads: bool = False


_FACTS = Step("facts", check_facts)
_MESH = Step("mesh", check_mesh, others=True)
_THROUGHPUT = Step("throughput", check_throughput, others=True, loads=True)
_QUICK = (
    (_FACTS,),
    (_MESH, Step("storage", check_storage)),
    (Step("gpus", check_gpus),),
    (Step("device", check_device, ranks=True),),
    (Step("collectives", check_collectives, ranks=True),),
    (Step("ddp", check_ddp, ranks=True),),
)
_STANDARD = (
    (_THROUGHPUT,),
    (Step("fsdp", check_fsdp, ranks=True),),
    (Step("allreduce", check_allreduce, ranks=True),),
    (Step("stragglers", check_stragglers, ranks=True),),
)
_DEEP = ((Step("pairs", check_pairs, ranks=True, others=True),),)


def steps(options: Options) -> Sequence[Sequence[Step]]:
    """The groups of a run with these options."""
    if options.net_only:
        return ((_FACTS,), (_MESH,), (_THROUGHPUT,))
    more = {"quick": (), "standard": _STANDARD, "deep": (*_STANDARD, *_DEEP)}
    return (*_QUICK, *more[options.tier])


def names(options: Options) -> list[str]:
    """Every line that the report will have."""
    return ["roll-call", *(step.name for group in steps(options) for step in group)]
