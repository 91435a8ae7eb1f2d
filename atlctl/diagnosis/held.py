"""Whether a worker that lives has lost its trainer: torchrun's failure is among the last things that its log says."""

from __future__ import annotations

import re
from collections.abc import Iterable

from atlctl.diagnosis.agentnotes import FAILURE_MARKERS

#: A new start of the agent, or the training going on: then the failure was not the end.
_GOES_ON = re.compile(
    rb"\b\d{1,9}/\d{1,9} \[[\d:]{4,9}|\b[Ss]tep[ =:#]{1,3}\d|\b[Ii]ter(?:ation)?[ =:#]{1,8}\d|\b[Ee]poch[ =:#\[]{1,3}\d"
    rb"|Setting OMP_NUM_THREADS environment variable for each process"
)
_HEAD = 160


def trainer_failed(lines: Iterable[bytes]) -> bool:
    """Whether the last lines of a log tell of a trainer that ended in failure, and of nothing that went on since."""
    failed = False
    for line in lines:
        if any(marker in line for marker in FAILURE_MARKERS):
            failed = True
        elif failed and _GOES_ON.search(line[:_HEAD]):
            failed = False
    return failed
