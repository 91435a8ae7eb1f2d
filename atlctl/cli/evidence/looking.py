"""From looks at workers to one scene, for the commands that look at ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atlctl.diagnosis.hang.scene import Scene
    from atlctl.jobs.model import Job
    from atlctl.stacks.look import Look


def scene_of(looks: Sequence[Look], job: Job) -> Scene:
    """What the ranks of the workers that were looked at are doing."""
    from atlctl.diagnosis.hang.scene import diagnose

    reports = {item.worker.name: item.report for item in looks if item.report is not None}
    whole = len(looks) == job.expected and not job.missing
    # A worker that has ended holds no rank any more; one that could not be asked may.
    asked = all(item.report is not None or not item.worker.state.active for item in looks)
    return diagnose(reports, whole and asked)
