"""All ranks with logs are victims: find the missing one."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.platform import Event, PlatformState
from atlctl.diagnosis.result import Verdict
from atlctl.i18n import translated

from .logs import STORE, WAITED, Log, address, candidates, closed_by, culprit, diagnosed, unread, victim

BOOTSTRAP = "worker-1:6:6 [0] NCCL INFO Bootstrap : Using eth0:10.42.1.17<0>"
STORE_GONE = (
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?"
)


def waiting(index: int, *, quiet: bool = False, **options: object) -> Log:
    """A worker that waited in a collective until the timeout; `quiet`: its local rank 1 logged nothing."""
    log = Log(index, **options).start().trace(6, 0, WAITED)  # type: ignore[arg-type]
    if not quiet:
        log.trace(6.01, 1, WAITED)
    return log.ended(6.3, 0, 1, WAITED, closed=(1,))


def test_a_frozen_rank_that_had_to_be_killed() -> None:
    """SIGKILL from the agent is not a cause, but a rank that needed it did not even react to SIGTERM."""
    log = Log(0).start().trace(6, 0, WAITED).closing(6.2, 1).forced(36.2, 1).failed(36.3, 0)
    log.summary(36.4, (0, 1, WAITED), (1, -9, ""))
    found = diagnosed(log, waiting(1))
    assert culprit(found) == ("rank", "worker-0", 1, "certain")
    (cause,) = found.root_causes
    assert (cause.category, cause.rank, cause.exit_code) == ("hang", 1, -9)
    assert "did not exit on SIGTERM" in cause.why


def test_a_hang_by_silence() -> None:
    found = diagnosed(waiting(0), waiting(1, quiet=True))
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    (cause,) = found.root_causes
    assert (cause.category, cause.exception) == ("hang", None)
    assert cause.message == "Rank 3 (local rank 1) did not reach the collective that the others waited in"
    assert {proof.worker for proof in cause.proofs} == {"worker-0", "worker-1"}


def test_a_hang_that_only_one_rank_saw_is_less_sure() -> None:
    log = Log(0).trace(6, 0, WAITED).ended(6.3, 0, 1, WAITED, closed=(1,))
    assert culprit(diagnosed(log)) == ("rank", "worker-0", 1, "likely")


def test_two_silent_ranks_are_undecided() -> None:
    found = diagnosed(waiting(0, quiet=True), waiting(1, quiet=True))
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", 1), ("worker-1", 1)]


def test_a_worker_none_of_whose_processes_came() -> None:
    """Its agent only lost the store and stopped the processes."""
    found = diagnosed(waiting(0), Log(1).start().closing(6.5, 0, 1).agent_died(6.6, STORE))
    assert culprit(found) == ("worker", "worker-1", None, "likely")
    assert found.root_causes[0].category == "hang"


def test_exit_0_in_mid_run() -> None:
    """It logged its rank; its agent, which stops all running processes, neither stopped nor reported it."""
    log = Log(0).start().trace(1.1, 0, closed_by(0)).ended(1.3, 0)
    found = diagnosed(log, victim(1, of=0))
    assert culprit(found) == ("rank", "worker-0", 1, "certain")
    assert (found.root_causes[0].category, found.root_causes[0].rank) == ("early_exit_zero", 1)


def test_exit_0_of_a_rank_that_nobody_heard_of() -> None:
    """The others log the world size: one rank is missing."""
    log = Log(0).start(named=(0,)).trace(1.1, 0, closed_by(0)).ended(1.3, 0)
    found = diagnosed(log, victim(1, of=0))
    assert culprit(found) == ("rank", "worker-0", 1, "likely")
    assert found.root_causes[0].rank == 1


def test_exit_0_without_the_worlds_size_is_told_by_the_other_workers_size() -> None:
    """Launchers start the same number of processes everywhere: worker-0 must have a second process, like worker-1."""
    log = Log(0).trace(1.1, 0, closed_by(0)).ended(1.3, 0)
    other = Log(1).trace(1.1, 0, closed_by(0)).trace(1.1, 1, closed_by(0)).ended(1.6, 0, closed=(1,))
    found = diagnosed(log, other)
    assert culprit(found) == ("rank", "worker-0", 1, "likely")
    (cause,) = found.root_causes
    assert (cause.rank, cause.category) == (1, "early_exit_zero")
    assert cause.why.startswith(
        "no log mentions it, although the ranks around it are in the logs; its agent ended all other processes"
    )


def test_exit_0_where_no_worker_tells_its_size_is_not_seen() -> None:
    """One process of each worker left logs: there is no sign of more."""
    logs = [Log(index).trace(1.1, 0, closed_by(0)).ended(1.3, 0) for index in (0, 1)]
    found = diagnosed(*logs)
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", 0), ("worker-1", 0)]


def test_exit_0_of_two_that_nobody_heard_of_is_not_decided() -> None:
    """Worker-1 has two processes; worker-0 and worker-2 each lack one."""
    other = Log(1).trace(1.1, 0, closed_by(0)).trace(1.1, 1, closed_by(0)).ended(1.6, 0, closed=(1,))
    logs = [Log(0).trace(1.1, 1, closed_by(0)).ended(1.3, 1), other, Log(2).trace(1.1, 1, closed_by(0)).ended(1.3, 1)]
    assert diagnosed(*logs).verdict is Verdict.UNDECIDED


def test_exit_0_after_which_the_others_waited() -> None:
    log = Log(0).start().trace(6, 0, WAITED).ended(6.3, 0, 1, WAITED)
    found = diagnosed(log, waiting(1))
    assert culprit(found)[:3] == ("rank", "worker-0", 1)
    assert found.root_causes[0].category == "early_exit_zero"


def test_a_worker_whose_log_just_ends() -> None:
    """Every process of all other workers is a victim: there is no doubt."""
    lost = Log(1)
    found = diagnosed(victim(0, of=1), lost.start())
    assert culprit(found) == ("worker", "worker-1", None, "certain")
    (cause,) = found.root_causes
    assert cause.category == "node_lost"
    assert (cause.proofs[0].worker, cause.proofs[0].line_no) == ("worker-1", len(lost.lines))


@pytest.mark.parametrize(("known", "confidence"), [(False, "likely"), (True, "certain")])
def test_a_log_that_just_ends_beside_one_that_is_not_accounted_for(known: bool, confidence: str) -> None:
    """A rank of worker-0 left no logs. If victims name the lost worker's address, this does not matter."""
    lost = Log(1)
    if known:
        lost.say(0, BOOTSTRAP)
    found = diagnosed(Log(0).start().trace(1.1, 0, closed_by(1)).trace(1.1, 1, closed_by(1)), lost.start())
    assert culprit(found) == ("worker", "worker-1", None, confidence)


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
    """Its log is unknown, so it is not certain that the whole worker was lost."""
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


STUCK = (
    "[rank{rank}]:[E1120 17:45:10.000000000 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
)


def stuck(index: int, rank: int, *, processes: int = 2, world: int = 4, quiet: int | None = None) -> Log:
    """A worker whose processes waited in a collective; a thread of `rank` reports that it is stuck, `quiet` is
    killed."""
    log = Log(index, processes=processes, world=world).start()
    for local, own in enumerate(log.ranks):
        if own == rank:
            log.say(10, STUCK.format(rank=rank))
        elif own == quiet:
            log.closing(10.5, local)
        else:
            log.watchdog(6, local)
    return log.failed(10.6, 0, -6)


def test_a_rank_that_is_stuck_with_its_watchdog() -> None:
    """All others waited for it until the timeout; only its heartbeat monitor reports it."""
    found = diagnosed(stuck(0, 3), stuck(1, 3))
    assert culprit(found) == ("rank", "worker-1", 1, "likely")
    assert (found.root_causes[0].rank, found.root_causes[0].category) == (3, "hang")


def test_a_rank_that_is_stuck_beside_one_that_said_nothing() -> None:
    """A rank that logged nothing until it was killed is the better suspect."""
    found = diagnosed(stuck(0, 4, processes=3, world=6), stuck(1, 4, processes=3, world=6, quiet=5))
    assert culprit(found)[:3] == ("rank", "worker-1", 2)


def test_a_rank_that_is_stuck_among_few_is_not_decided() -> None:
    """Two waiting ranks are too few: a stuck thread may also be a consequence."""
    found = diagnosed(*(stuck(index, 2, processes=1, world=3) for index in range(3)))
    assert found.verdict is Verdict.UNDECIDED
    assert len(found.candidates) == 3


def late(at: float, *, waited: int = 2, world: int = 3) -> list[Log]:
    """Three ranks. The first `waited` of them timed out after 6 s, the others found a closed connection at `at`."""
    logs = []
    for index in range(3):
        error, when = (WAITED, 6.0) if index < waited else (closed_by(0), at)
        log = Log(index, processes=1, world=world).start().trace(when, 0, error)
        logs.append(log.ended(when + 0.3, 0, 1, error))
    return logs


def test_a_rank_that_meets_closed_connections_when_all_have_given_up() -> None:
    """It was elsewhere while the others waited, and arrived after they had ended."""
    found = diagnosed(*late(9))
    assert culprit(found) == ("rank", "worker-2", 0, "likely")
    (cause,) = found.root_causes
    assert (cause.rank, cause.category, cause.exception) == (2, "hang", None)
    assert cause.why.startswith("it lost its peers only after they had given up; 2 ranks on 2 workers waited")
    assert "closed by a peer" not in {group.reason for group in found.cascade}


def test_a_rank_that_waited_as_well_meets_closed_connections_at_once() -> None:
    """It waited with the others, and the first one that timed out closed its sockets: no rank was late."""
    found = diagnosed(*late(7.9))
    assert found.verdict is Verdict.UNDECIDED
    assert len(found.candidates) == 3


@pytest.mark.parametrize(("waited", "world"), [(1, 3), (2, 4)])
def test_a_late_rank_is_not_decided_where_it_is_not_the_only_suspect(waited: int, world: int) -> None:
    """Two were late, or one rank has no logs and the late one may have waited for it."""
    assert diagnosed(*late(20, waited=waited, world=world)).verdict is Verdict.UNDECIDED


EXIT_BARRIER = (
    "E1120 17:45:01.991000 1 torch/distributed/elastic/agent/server/api.py:1008] Error waiting on exit barrier. "
    "Elapsed: 0.51 seconds"
)


def finished(index: int) -> Log:
    """A worker whose processes ended without logs: its agent waits for the others."""
    return Log(index).say(0, "loading", "epoch 1 done").say(1.9, EXIT_BARRIER)


def left_by(index: int, *, processes: int = 1) -> Log:
    """A worker whose processes lost their connection."""
    log = Log(index, processes=processes)
    for local in range(processes):
        log.trace(1.1, local, closed_by(0))
    return log.ended(1.4, 0, 1, closed_by(0), closed=range(1, processes))


@pytest.mark.parametrize("mute", [0, 1, 2])
def test_the_rank_of_a_worker_that_left_early_is_the_one_left_over(mute: int) -> None:
    logs = [finished(index) if index == mute else left_by(index) for index in range(3)]
    found = diagnosed(*logs)
    assert culprit(found) == ("rank", f"worker-{mute}", 0, "likely")
    assert (found.root_causes[0].rank, found.root_causes[0].category) == (mute, "early_exit_zero")


def test_a_worker_that_left_early_has_no_one_rank_where_workers_have_several() -> None:
    found = diagnosed(left_by(0, processes=2), left_by(1, processes=2), finished(2))
    assert culprit(found)[:3] == ("worker", "worker-2", None)
    assert found.root_causes[0].category == "early_exit_zero"


def test_a_late_rank_on_a_clock_that_nobody_compared() -> None:
    """Its clock is 5 s fast: it found the closed connection 0.2 s after the others timed out."""
    logs = []
    for index, (at, error) in enumerate([(6.0, WAITED), (6.0, WAITED), (6.2, closed_by(0))]):
        log = Log(index, processes=1, world=3, ahead=5 * (index == 2)).start(steps=0).trace(at, 0, error)
        logs.append(log.ended(at + 0.3, 0, 1, error))
    found = diagnosed(*logs)
    assert [str(cause.confidence) for cause in (*found.root_causes, *found.candidates)][:1] == ["guess"]


def told(reason: str, message: str, at: float, worker: str | None = None, kind: str = "PyTorchJob") -> Event:
    return Event(at, worker, None, kind, reason, message, at)


def exited(worker: str, code: int, at: float) -> Event:
    return told("ExitedWithCode", f"Pod: team.bert-{worker} exited with code {code}", at, worker)


def deleted(worker: str, at: float) -> Event:
    return told("SuccessfulDeletePod", f"Deleted pod: bert-{worker}", at, worker)


def stopped(worker: str, at: float) -> Event:
    return told("Killing", "Stopping container pytorch", at, worker, "Pod")


def test_pods_that_their_controller_deleted_are_no_lost_nodes() -> None:
    """One log ends suddenly, one is missing: without the events, both workers would look like lost nodes."""
    cut, none = Log(1).start(), ("worker-2",)
    assert diagnosed(victim(0, of=1), cut).root_causes[0].category == "node_lost"
    assert diagnosed(victim(0, of=2), missing=none).root_causes[0].category == "node_lost"
    events = (deleted("worker-1", 9.0), deleted("worker-2", 9.0))
    for found in (
        diagnosed(victim(0, of=1), cut, events=events),
        diagnosed(victim(0, of=2), missing=none, events=events),
    ):
        assert "node_lost" not in [cause.category for cause in (*found.root_causes, *found.candidates)]


def test_the_events_tell_which_worker_ended_before_its_controller_deleted_the_others() -> None:
    events = (exited("worker-2", 3, 8.0), deleted("worker-1", 9.0), deleted("worker-2", 9.0))
    found = diagnosed(victim(0, of=1), Log(1).start(), unread(2), events=events)
    assert culprit(found) == ("worker", "worker-2", None, "likely")
    (cause,) = found.root_causes
    assert (cause.category, cause.exit_code) == ("explicit_exit", 3)
    assert [proof.text for proof in cause.proofs] == ["Pod: team.bert-worker-2 exited with code 3"]


@pytest.mark.parametrize(
    "events",
    [
        (exited("worker-0", 1, 8.0), deleted("worker-1", 9.0)),
        (exited("worker-1", 137, 9.0), deleted("worker-1", 9.0)),
        (exited("worker-1", 1, 10.0), deleted("worker-1", 9.0)),
        (exited("worker-1", 1, 8.0), exited("worker-2", 1, 8.0), deleted("worker-1", 9.0)),
    ],
    ids=["a victim by its own log", "killed with its pod", "after its pod was deleted", "two at once"],
)
def test_an_end_that_may_be_a_consequence_names_nobody(events: tuple[Event, ...]) -> None:
    found = diagnosed(victim(0, of=1), unread(1), unread(2), events=events)
    assert not any(cause.exit_code for cause in found.root_causes)


def test_a_pod_that_was_stopped_before_any_other_ended_is_the_first() -> None:
    events = (stopped("worker-1", 5.0), exited("worker-0", 1, 8.0), stopped("worker-0", 9.0), deleted("worker-0", 9.0))
    found = diagnosed(victim(0, of=1), Log(1).start(), events=events)
    assert culprit(found) == ("worker", "worker-1", None, "likely")
    assert found.root_causes[0].category == "preemption"


def test_what_a_log_says_of_its_own_failure_counts_more_than_events() -> None:
    failed = Log(1).start().trace(1, 0, "ValueError: bad shard").ended(1.3, 0, 1, "ValueError: bad shard", closed=(1,))
    events = (exited("worker-0", 3, 8.0), deleted("worker-1", 9.0))
    assert culprit(diagnosed(unread(0), failed, events=events))[:3] == ("rank", "worker-1", 0)


def test_the_sentences_about_events_are_known_in_chinese() -> None:
    for events in (
        (exited("worker-2", 3, 8.0), deleted("worker-1", 9.0)),
        (stopped("worker-2", 5.0), deleted("worker-1", 9.0)),
    ):
        (cause,) = diagnosed(victim(0, of=1), Log(1).start(), unread(2), events=events).root_causes
        for text in (cause.message, cause.why):
            assert translated(text, "zh").isascii() is False, text
            assert "before" not in translated(text, "zh")


def test_a_rank_that_goes_on_when_all_others_have_ended() -> None:
    """The processes of the other worker ended with code 0, as the one beside it did: no log says so."""
    last = Log(1).start(named=[1]).trace(9, 1, closed_by(0)).ended(9.5, 1)
    assert diagnosed(Log(0).start(), last).verdict is Verdict.UNDECIDED
    assert culprit(diagnosed(victim(0, of=1), last)) == ("rank", "worker-1", 0, "likely")
