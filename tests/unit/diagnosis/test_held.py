"""A trainer that has failed, by the last lines of a log."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.agentnotes import FAILURE_MARKERS
from atlctl.diagnosis.held import trainer_failed

STEP = b"[rank0]: step 12/100 loss 0.4"
START = (
    b"W1120 17:45:00.1 1 torch/distributed/run.py:766] Setting OMP_NUM_THREADS environment variable for each process"
)


@pytest.mark.parametrize("marker", FAILURE_MARKERS)
def test_a_failure_at_the_end(marker: bytes) -> None:
    assert trainer_failed([STEP, marker + b" x", b"sleeping for inspection"])


@pytest.mark.parametrize("after", [STEP, START, b" 45%|####      | 45/100 [00:12<00:14]", b"Epoch 3 done"])
def test_a_failure_that_was_not_the_end(after: bytes) -> None:
    assert not trainer_failed([FAILURE_MARKERS[0], after])
    assert trainer_failed([FAILURE_MARKERS[0], after, FAILURE_MARKERS[0]])


def test_no_failure() -> None:
    assert not trainer_failed([])
    assert not trainer_failed([b"Traceback (most recent call last):", b"ValueError: handled", STEP, b"\xff\0" * 100])
