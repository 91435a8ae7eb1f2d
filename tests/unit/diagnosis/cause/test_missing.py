"""Everybody who spoke is a victim: who is missing?"""

from __future__ import annotations

import pytest

from atlctl.diagnosis.platform import PlatformState
from atlctl.diagnosis.result import Verdict

from .logs import STORE, WAITED, Log, address, candidates, closed_by, culprit, diagnosed, unread, victim

BOOTSTRAP = "worker-1:6:6 [0] NCCL INFO Bootstrap : Using eth0:10.42.1.17<0>"
STORE_GONE = (
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?"
)


def waiting(index: int, *, quiet: bool = False, **options: object) -> Log:
    """A worker that waited in a collective until the timeout; `quiet`: its local rank 1 said nothing."""
    log = Log(index, **options).start().trace(6, 0, WAITED)  # type: ignore[arg-type]
    if not quiet:
        log.trace(6.01, 1, WAITED)
    return log.ended(6.3, 0, 1, WAITED, closed=(1,))


def test_a_frozen_rank_that_had_to_be_killed() -> None:
    """The agent's own SIGKILL is no cause, and whom it had to kill did not even react to SIGTERM."""
    log = Log(0).start().trace(6, 0, WAITED).closing(6.2, 1).forced(36.2, 1).failed(36.3, 0)
    log.summary(36.4, (0, 1, WAITED), (1, -9, ""))
    found = diagnosed(log, waiting(1))
    assert culprit(found) == ("rank", "worker-0", 1, "certain")
    (cause,) = found.root_causes
    assert (cause.category, cause.rank, cause.exit_code) == ("hang", 1, -9)
    assert "did not even leave on SIGTERM" in cause.why


def test_a_hang_by_silence() -> None:
    found = diagnosed(waiting(0), waiting(1, quiet=True))
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    (cause,) = found.root_causes
    assert (cause.category, cause.exception) == ("hang", None)
    assert cause.message == "Rank 3 (local rank 1) did not come to the collective in which the others waited"
    assert {proof.worker for proof in cause.proofs} == {"worker-0", "worker-1"}


def test_a_hang_that_only_one_rank_saw_is_less_sure() -> None:
    log = Log(0).trace(6, 0, WAITED).ended(6.3, 0, 1, WAITED, closed=(1,))
    assert culprit(diagnosed(log)) == ("rank", "worker-0", 1, "likely")


def test_two_silent_ranks_are_undecided() -> None:
    found = diagnosed(waiting(0, quiet=True), waiting(1, quiet=True))
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", 1), ("worker-1", 1)]


def test_a_worker_none_of_whose_processes_came() -> None:
    """Its agent only lost the store and ended them."""
    found = diagnosed(waiting(0), Log(1).start().closing(6.5, 0, 1).agent_died(6.6, STORE))
    assert culprit(found) == ("worker", "worker-1", None, "likely")
    assert found.root_causes[0].category == "hang"


def test_exit_0_in_mid_run() -> None:
    """It said who it is; its agent, which ends all that live, neither ended nor reports it."""
    log = Log(0).start().trace(1.1, 0, closed_by(0)).ended(1.3, 0)
    found = diagnosed(log, victim(1, of=0))
    assert culprit(found) == ("rank", "worker-0", 1, "certain")
    assert (found.root_causes[0].category, found.root_causes[0].rank) == ("early_exit_zero", 1)


def test_exit_0_of_a_rank_that_nobody_heard_of() -> None:
    """The others name the world's size: one rank is left over."""
    log = Log(0).start(named=(0,)).trace(1.1, 0, closed_by(0)).ended(1.3, 0)
    found = diagnosed(log, victim(1, of=0))
    assert culprit(found) == ("rank", "worker-0", 1, "likely")
    assert found.root_causes[0].rank == 1


def test_exit_0_without_the_worlds_size_is_not_seen() -> None:
    log = Log(0).trace(1.1, 0, closed_by(0)).ended(1.3, 0)
    other = Log(1).trace(1.1, 0, closed_by(0)).trace(1.1, 1, closed_by(0)).ended(1.6, 0, closed=(1,))
    found = diagnosed(log, other)
    assert found.verdict is Verdict.UNDECIDED
    assert len(found.candidates) == 3


def test_exit_0_after_which_the_others_waited() -> None:
    log = Log(0).start().trace(6, 0, WAITED).ended(6.3, 0, 1, WAITED)
    found = diagnosed(log, waiting(1))
    assert culprit(found)[:3] == ("rank", "worker-0", 1)
    assert found.root_causes[0].category == "early_exit_zero"


@pytest.mark.parametrize(("known", "confidence"), [(False, "likely"), (True, "certain")])
def test_a_worker_whose_log_just_ends(known: bool, confidence: str) -> None:
    """Where it is known to own the address that victims name, nothing is left to doubt."""
    lost = Log(1)
    if known:
        lost.say(0, BOOTSTRAP)
    found = diagnosed(victim(0, of=1), lost.start())
    assert culprit(found) == ("worker", "worker-1", None, confidence)
    (cause,) = found.root_causes
    assert cause.category == "node_lost"
    assert (cause.proofs[0].worker, cause.proofs[0].line_no) == ("worker-1", len(lost.lines))


def test_the_store_went_with_its_host() -> None:
    died = Log(1).start().closing(1.1, 0, 1).agent_died(1.2, STORE_GONE, STORE)
    assert culprit(diagnosed(Log(0).start(), died)) == ("worker", "worker-0", None, "likely")


def test_two_logs_that_just_end_are_undecided() -> None:
    found = diagnosed(victim(0, of=1, world=6), Log(1, world=6).start(), Log(2, world=6).start())
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-1", None), ("worker-2", None)]


def test_an_address_decides_between_two_logs_that_just_end() -> None:
    found = diagnosed(victim(0, of=1, world=6), Log(1, world=6).say(0, BOOTSTRAP).start(), Log(2, world=6).start())
    assert culprit(found) == ("worker", "worker-1", None, "likely")


def test_an_address_whose_owner_left_no_log() -> None:
    """What it would have said is not known: it cannot be certain that the whole worker was lost."""
    found = diagnosed(victim(0, of=1), unread(1, platform=PlatformState(addresses=(address(1),))))
    assert culprit(found)[:3] == ("worker", "worker-1", None)
    assert culprit(found)[3] != "certain"
    assert "log of worker-1 just ends" not in found.root_causes[0].message


def test_a_platform_gives_the_node_of_a_lost_worker() -> None:
    platform = PlatformState(node="gpu-17", host_ip="192.168.3.17", exit_code=137, addresses=(address(1),))
    (cause,) = diagnosed(victim(0, of=1), Log(1).start().evidence(platform=platform)).root_causes
    assert (cause.worker, cause.node, cause.host_ip, cause.exit_code) == ("worker-1", "gpu-17", "192.168.3.17", 137)


def test_victims_alone_are_undecided() -> None:
    found = diagnosed(victim(0, of=1))
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", 0), ("worker-0", 1)]


def test_victims_and_a_worker_that_was_never_seen() -> None:
    found = diagnosed(victim(0, of=1), expected=2, missing=("worker-1",))
    assert culprit(found) == ("worker", "worker-1", None, "guess")
    several = diagnosed(victim(0, of=1), expected=3, missing=("worker-1", "worker-2"))
    assert culprit(several) == ("worker", None, None, "guess")


def test_a_rank_that_is_stuck_with_its_watchdog() -> None:
    """All others waited for it until the timeout; its heartbeat monitor alone reports it."""
    stuck = (
        "[rank3]:[E1120 17:45:10.000000000 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued "
        "collectives."
    )
    others = Log(0).start().watchdog(6, 0).watchdog(6, 1).closing(6.5, 1).failed(6.6, 0, -6)
    log = Log(1).start().watchdog(6, 0).say(10, stuck).closing(10.5, 1).failed(10.6, 0, -6)
    found = diagnosed(others, log)
    assert culprit(found) == ("rank", "worker-1", 1, "likely")
    assert found.root_causes[0].category == "hang"
