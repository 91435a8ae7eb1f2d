"""What commands share that look at ranks: room for the connections, and from looks to one scene."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atlctl.diagnosis.hang.scene import Scene
    from atlctl.stacks.look import Look


def prepare(workers: int) -> None:
    """Room for descriptors of a look at `workers` workers. Raises AtlctlError where there is none."""
    from atlctl.cli.execute import DESCRIPTORS_AT_START, DESCRIPTORS_EACH
    from atlctl.fanout.limits import raise_descriptor_limit
    from atlctl.stacks.look import AT_ONCE, PARALLEL

    at_once = min(workers, AT_ONCE)
    needed = at_once * DESCRIPTORS_EACH + min(at_once, PARALLEL) * DESCRIPTORS_AT_START
    raise_descriptor_limit(needed, DESCRIPTORS_EACH + DESCRIPTORS_AT_START)


def scene_of(looks: Sequence[Look], whole: bool) -> Scene:
    """What the ranks of all workers are doing. `whole`: these are all workers of the job."""
    from atlctl.diagnosis.hang.scene import diagnose

    reports = {item.worker.name: item.report for item in looks if item.report is not None}
    # A worker that has ended holds no rank any more; one that could not be asked may.
    ended = all(item.report is not None or not item.worker.state.active for item in looks)
    return diagnose(reports, whole and ended)
