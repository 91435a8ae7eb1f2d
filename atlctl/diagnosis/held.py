"""Whether a worker that lives has lost its trainer: torchrun's failure is among the last things that its log says."""

from __future__ import annotations

import re
from collections.abc import Iterable

from atlctl.diagnosis.agentnotes import AGENT_STARTS, FAILURE_MARKERS
from atlctl.diagnosis.progress import PROGRESS, PROGRESS_HEAD

#: A new start of the agent, or the training going on: then the failure was not the end.
_GOES_ON = re.compile(PROGRESS + b"|" + re.escape(AGENT_STARTS))


def trainer_failed(lines: Iterable[bytes]) -> bool:
    """Whether the last lines of a log tell of a trainer that ended in failure, and of nothing that went on since."""
    failed = False
    for line in lines:
        if any(marker in line for marker in FAILURE_MARKERS):
            failed = True
        elif failed and _GOES_ON.search(line[:PROGRESS_HEAD]):
            failed = False
    return failed
