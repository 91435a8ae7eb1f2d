"""The words of a failing rank that are hidden: wrapped by a library, printed without a rank, or like those of a peer.
The lines are those of real runs (torch 2.13, two workers of two ranks), shortened."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.result import Verdict

from .logs import MESH, OWN, Log, closed_by, culprit, diagnosed, victim

RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
STAGE = (
    "RuntimeError: \n            [Stage 1] failed to run forward:\n            args: ('Tensor(torch.Size([2, 8]))',)"
)
NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
UNREACHABLE = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 15000ms while trying to connect to "
    "(10.42.0.17, 29500)."
)


@pytest.mark.parametrize(
    ("first", "category"),
    [(NO_MEMORY, "cuda_oom"), ("KeyError: 'rope'", "python_exception"), (OWN, "python_exception")],
)
def test_a_pipeline_stage_wraps_the_exception(first: str, category: str) -> None:
    (cause,) = diagnosed(Log(0).start().trace(1, 1, first, STAGE).ended(1.2, 1, closed=(0,)), victim(1)).root_causes
    assert (cause.rank, cause.message, cause.category) == (1, first, category)


@pytest.mark.parametrize("more", [(), ("requests.exceptions.ConnectionError: ('Connection aborted.', 104)",)])
def test_a_service_resets_the_connection_of_one_rank(more: tuple[str, ...]) -> None:
    log = Log(0).start().trace(1, 1, RESET, *more).trace(1.1, 0, closed_by(0)).ended(1.2, 1, closed=(0,))
    found = diagnosed(log, victim(1))
    assert culprit(found) == ("rank", "worker-0", 1, "likely")
    assert found.root_causes[0].message == (*more, RESET)[0]


def test_a_reset_connection_of_a_child_process_or_without_an_exit_is_no_cause() -> None:
    log = Log(0).start().say(1, "[rank1]: Traceback (most recent call last):")
    log.say(1, '[rank1]:   File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv')
    log.say(1, "[rank1]:     chunk = read(handle, remaining)", f"[rank1]: {RESET}").ended(1.2, 1, closed=(0,))
    assert RESET not in {cause.message for cause in diagnosed(log, victim(1)).root_causes}
    handled = Log(0).start().trace(1, 1, RESET).trace(1.1, 0, closed_by(0)).ended(1.2, 0, closed=(1,))
    assert diagnosed(handled, victim(1)).verdict is Verdict.UNDECIDED


def test_an_exception_that_a_program_logs_before_it_exits() -> None:
    """By `logging.exception`, in all ranks: without a rank, and the agent ends the other one before it has exited."""
    log = Log(1).start().trace(1, 0, OWN, prefix=False).trace(4, 1, closed_by(1), prefix=False)
    log = log.ended(5, 0, closed=(1,))
    other = Log(0).start().trace(4, 0, closed_by(1), prefix=False).ended(5, 0, closed=(1,))
    found = diagnosed(other, log)
    assert culprit(found) == ("rank", "worker-1", 0, "likely")
    assert found.root_causes[0].message == OWN


def test_a_handled_exception_before_training_went_on_is_not_that_of_the_lost_peer() -> None:
    log = Log(1).start().trace(1, 0, OWN, prefix=False).start(2).trace(4, 1, closed_by(0), prefix=False)
    found = diagnosed(victim(0, 4, of=1), log.ended(5, 1, closed=(0,)))
    assert not [cause for cause in found.root_causes if cause.message == OWN]


def test_the_worker_of_rank_0_has_no_restart_left() -> None:
    """Others cannot reach its store after that: the cause is the failure before the restarts."""
    master = Log(0).start().trace(1, 1, OWN).ended(1.2, 1, closed=(0,)).restarted()
    master.start(3, steps=0).trace(20, 1, MESH).ended(20.2, 1, closed=(0,))
    other = victim(1).restarted()
    other.start(3, steps=0).trace(40, 0, UNREACHABLE).ended(40.2, 0, closed=(1,))
    (cause,) = diagnosed(master, other).root_causes
    assert (cause.rank, cause.message) == (1, OWN)
