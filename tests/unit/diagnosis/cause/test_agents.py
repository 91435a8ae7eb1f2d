"""Causes outside of the processes."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.platform import PlatformState
from atlctl.diagnosis.result import Diagnosis, Verdict

from .logs import (
    NOBODY_CAME,
    OWN,
    STORE,
    Log,
    candidates,
    closed_by,
    culprit,
    diagnosed,
    unread,
    victim,
)

RECV = (
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?"
)
DNS = (
    "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
    "(no-such-host, 29400). The IPv6 network addresses of (no-such-host, 29400) cannot be retrieved "
    "(gai error: -2 - Name or service not known)."
)
PORT = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29400, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
SILENT_HOST = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
    "(10.42.9.17, 29400)."
)


def test_a_signal_to_one_agent_of_many_is_its_workers() -> None:
    found = diagnosed(victim(0, of=1), Log(1).start().signalled(1.0))
    assert culprit(found) == ("worker", "worker-1", None, "certain")
    assert (found.root_causes[0].category, found.root_causes[0].signal) == ("preemption", "SIGTERM")
    assert {group.reason for group in found.cascade} == {
        "gloo: connection closed by a peer", "ended by its own agent (SIGTERM)",
    }  # fmt: skip


@pytest.mark.parametrize(("number", "category"), [(15, "preemption"), (2, "interrupted"), (1, "terminal_hangup")])
def test_signals_to_all_agents_are_external(number: int, category: str) -> None:
    found = diagnosed(*(Log(index).start().signalled(1, number) for index in (0, 1)))
    assert culprit(found) == ("external", None, None, "certain")
    assert found.root_causes[0].category == category
    assert {proof.worker for proof in found.root_causes[0].proofs} == {"worker-0", "worker-1"}


def test_signals_to_several_agents_of_more() -> None:
    logs = [Log(index, world=6).start().signalled(1) for index in (0, 1)]
    assert culprit(diagnosed(*logs, victim(2, of=0, world=6))) == ("external", None, None, "likely")


def test_the_only_agent_of_a_job() -> None:
    assert culprit(diagnosed(Log(0, world=2).start().signalled(1))) == ("external", None, None, "certain")


def test_a_signal_is_not_certain_where_other_workers_are_unknown() -> None:
    """Whether all agents got it does not stand in these logs."""
    signalled = Log(0).start().signalled(1)
    for found in (
        diagnosed(signalled, expected=2, missing=("worker-1",)),
        diagnosed(signalled, unread(1)),
        diagnosed(signalled),  # its processes say that there are two more
    ):
        assert found.verdict in (Verdict.WORKER, Verdict.EXTERNAL)
        assert culprit(found)[3] != "certain"


def test_a_signal_after_a_failure_only_cleans_up() -> None:
    failed = Log(0).start().trace(1.0, 1, OWN).trace(1.05, 0, closed_by(0)).ended(1.4, 1, closed=(0,))
    found = diagnosed(failed, Log(1).start().trace(1.1, 0, closed_by(0)).signalled(5.0))
    assert culprit(found)[:3] == ("rank", "worker-0", 1)


def test_a_signal_to_all_while_one_had_raised_already() -> None:
    """The agents had not even noticed."""
    found = diagnosed(Log(0).start().trace(1, 1, OWN).signalled(5), Log(1).start().signalled(5))
    assert culprit(found)[:3] == ("rank", "worker-0", 1)


def test_what_processes_say_under_a_signal_is_no_failure() -> None:
    """SIGTERM closes their peers' sockets, and some raise SystemExit of their own."""
    log = Log(0).start()
    log.say(1, "W1120 17:45:01.000000 1 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, x")
    log.closing(1, 0, 1).trace(1.1, 0, "KeyboardInterrupt").trace(1.1, 1, closed_by(1))
    assert diagnosed(log, Log(1).start().signalled(1)).verdict is Verdict.EXTERNAL


def test_a_worker_that_never_joined() -> None:
    """The host of the rendezvous waits in vain and closes it; the other loses the store."""
    host, other = Log(0).agent_died(30, NOBODY_CAME), Log(1).agent_died(30.5, RECV, STORE)
    assert culprit(diagnosed(host, other)) == ("worker", None, None, "likely")
    named = diagnosed(host, other, expected=3, missing=("worker-2",))
    assert culprit(named) == ("worker", "worker-2", None, "likely")
    assert named.root_causes[0].category == "rendezvous_timeout"
    assert named.cascade[0].workers == ("worker-0", "worker-1")


def test_a_worker_whose_script_stuck_before_torchrun() -> None:
    found = diagnosed(Log(0).agent_died(30, NOBODY_CAME), Log(1).say(0, "pip install -r requirements.txt"))
    assert culprit(found) == ("worker", "worker-1", None, "likely")


def test_a_name_that_nobody_can_resolve() -> None:
    found = diagnosed(Log(0).agent_died(1, DNS, STORE), Log(1).agent_died(1, DNS, STORE))
    assert culprit(found) == ("job", None, None, "likely")
    assert found.root_causes[0].category == "dns_failure"


def test_a_name_that_one_worker_cannot_resolve() -> None:
    found = diagnosed(Log(0).agent_died(30, NOBODY_CAME), Log(1).agent_died(1, DNS, STORE))
    assert culprit(found) == ("worker", "worker-1", None, "likely")


def test_a_port_that_is_taken() -> None:
    found = diagnosed(Log(0).agent_died(1, PORT), Log(1).agent_died(60, SILENT_HOST, STORE))
    assert culprit(found)[:2] == ("worker", "worker-0")
    assert found.root_causes[0].category == "port_in_use"


def test_a_host_that_nobody_can_reach() -> None:
    """What is at that address left no log."""
    found = diagnosed(Log(0).agent_died(60, SILENT_HOST, STORE), Log(1).agent_died(60, SILENT_HOST, STORE))
    assert culprit(found) == ("worker", None, None, "likely")
    assert found.root_causes[0].category in ("rendezvous_unreachable", "network_unreachable")
    assert len(found.root_causes[0].proofs) == 2


def test_agents_that_all_waited_in_the_store() -> None:
    error = "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /none/torchelastic/rank"
    found = diagnosed(Log(0).agent_died(60, error), Log(1).agent_died(60, error))
    assert culprit(found) == ("job", None, None, "likely")
    assert found.root_causes[0].category == "rendezvous_timeout"


def test_agents_that_failed_in_different_ways_are_candidates() -> None:
    logs = [Log(0).agent_died(1, "PermissionError: a"), Log(1).agent_died(1, "OSError: b"), Log(2).start()]
    found = diagnosed(*logs)
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", None), ("worker-1", None)]


def test_a_container_that_came_up_again_is_no_failure() -> None:
    """The master's name did not resolve yet; the kubelet started the container again, in the same log."""
    log = Log(1).agent(0).agent_died(5, DNS).agent(30).start()
    assert diagnosed(Log(0).agent(0).start(), log).verdict is Verdict.NONE


def test_a_container_that_failed_again_failed() -> None:
    log = Log(1).agent(0).agent_died(5, DNS).agent(30).agent_died(35, DNS)
    found = diagnosed(Log(0).agent(0), log)
    assert (found.verdict, culprit(found)[1]) == (Verdict.WORKER, "worker-1")


def test_the_next_run_in_the_same_log_has_only_begun() -> None:
    """Its failure is the one before's: behind it stands no more than torchrun's first words."""
    log = Log(0).agent(0).start().trace(1, 1, OWN).trace(1.05, 0, closed_by(1)).ended(1.3, 1, closed=(0,)).agent(60)
    assert culprit(diagnosed(log))[:3] == ("rank", "worker-0", 1)


def clients(joined: int, wanted: int, logs: int) -> list[Log]:
    """Agents whose store waited in vain, and counted who came."""
    told = f"Timed out after 61 seconds waiting for clients. {joined}/{wanted} clients joined."
    return [Log(index).agent_died(60, f"torch.distributed.DistStoreError: {told}") for index in range(logs)]


@pytest.mark.parametrize(("joined", "wanted", "logs"), [(2, 3, 2), (3, 4, 3)])
def test_an_agent_that_the_store_missed_and_that_left_no_log(joined: int, wanted: int, logs: int) -> None:
    found = diagnosed(*clients(joined, wanted, logs))
    assert culprit(found) == ("worker", None, None, "likely")
    (cause,) = found.root_causes
    assert cause.category == "rendezvous_timeout"
    assert cause.why == f"{joined} of {wanted} agents joined, and there are {logs} logs"
    assert {proof.worker for proof in cause.proofs} == {f"worker-{index}" for index in range(logs)}


def test_agents_that_all_left_a_log_did_not_meet() -> None:
    """Three were wanted and three spoke: that the store counted two is nobody's absence."""
    found = diagnosed(*clients(2, 3, 3))
    assert culprit(found) == ("job", None, None, "likely")


def unreachable(place: str, first: Log | WorkerEvidence) -> Diagnosis:
    """Two agents that timed out while connecting to `place`, beside worker-0."""
    error = SILENT_HOST.replace("10.42.9.17", place)
    return diagnosed(first, Log(1).agent_died(60, error, STORE), Log(2).agent_died(60, error, STORE))


BOOTSTRAP = "worker-0:6:6 [0] NCCL INFO Bootstrap : Using eth0:10.42.0.17<0>"


@pytest.mark.parametrize(
    ("place", "first"),
    [
        ("worker-0", Log(0).say(0, "pip install -r requirements.txt")),
        ("worker-0.train.ns.svc", Log(0).say(0, "pip install -r requirements.txt")),
        ("10.42.0.17", Log(0).say(0, BOOTSTRAP, "loading")),
        ("10.0.0.9", Log(0).say(0, "x").evidence(platform=PlatformState(addresses=("10.0.0.9",)))),
    ],
)
def test_a_host_with_a_log_whose_agent_never_spoke(place: str, first: Log | WorkerEvidence) -> None:
    found = unreachable(place, first)
    assert culprit(found) == ("worker", "worker-0", None, "likely")
    (cause,) = found.root_causes
    assert (cause.message, cause.proofs[0].worker) == ("No agent came up on worker-0", "worker-0")
    assert {proof.worker for proof in cause.proofs} == {"worker-0", "worker-1", "worker-2"}


@pytest.mark.parametrize(
    ("place", "first"),
    [
        ("10.42.9.17", Log(0).say(0, "pip install")),  # somewhere else
        ("worker-01", Log(0).say(0, "pip install")),  # a name that only begins alike
        ("worker-0", Log(0).agent(0).start()),  # its agent did come up
        ("worker-0", unread(0)),  # nobody knows what its agent did
    ],
)
def test_a_host_that_is_not_known_to_be_mute(place: str, first: Log | WorkerEvidence) -> None:
    found = unreachable(place, first)
    assert all(cause.worker != "worker-0" for cause in (*found.root_causes, *found.candidates))


def test_a_host_that_fails_as_the_others_do_is_not_mute() -> None:
    error = SILENT_HOST.replace("10.42.9.17", "worker-0")
    found = diagnosed(*(Log(index).agent_died(60, error) for index in (0, 1)))
    assert culprit(found) == ("worker", None, None, "likely")


def test_one_log() -> None:
    (cause,) = diagnosed(*clients(1, 3, 1)).root_causes
    assert cause.why == "1 of 3 agents joined, and there is 1 log"
