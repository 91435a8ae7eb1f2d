"""Failures of launchers: signals, rendezvous, and logs without torchelastic output."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.platform import PlatformState
from atlctl.diagnosis.result import Diagnosis, Verdict
from atlctl.diagnosis.signatures import builtin
from atlctl.jobs.model import State
from tests.unit.diagnosis.signatures.examples import EXAMPLES

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
    """These logs do not show whether all agents got it."""
    signalled = Log(0).start().signalled(1)
    for found in (
        diagnosed(signalled, expected=2, missing=("worker-1",)),
        diagnosed(signalled, unread(1)),
        diagnosed(signalled),  # its processes report a world with two more
    ):
        assert found.verdict in (Verdict.WORKER, Verdict.EXTERNAL)
        assert culprit(found)[3] != "certain"


def test_a_signal_after_a_failure_only_cleans_up() -> None:
    failed = Log(0).start().trace(1.0, 1, OWN).trace(1.05, 0, closed_by(0)).ended(1.4, 1, closed=(0,))
    found = diagnosed(failed, Log(1).start().trace(1.1, 0, closed_by(0)).signalled(5.0))
    assert culprit(found)[:3] == ("rank", "worker-0", 1)


def test_a_signal_to_all_while_one_had_raised_already() -> None:
    """The agents had not noticed it yet."""
    found = diagnosed(Log(0).start().trace(1, 1, OWN).signalled(5), Log(1).start().signalled(5))
    assert culprit(found)[:3] == ("rank", "worker-0", 1)


def test_what_processes_say_under_a_signal_is_no_failure() -> None:
    """SIGTERM closes their peers' sockets, and some processes raise SystemExit."""
    log = Log(0).start()
    log.say(1, "W1120 17:45:01.000000 1 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, x")
    log.closing(1, 0, 1).trace(1.1, 0, "KeyboardInterrupt").trace(1.1, 1, closed_by(1))
    assert diagnosed(log, Log(1).start().signalled(1)).verdict is Verdict.EXTERNAL


def test_a_worker_that_never_joined() -> None:
    """The rendezvous host times out and closes; the other worker loses the store."""
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
    """The owner of that address left no log."""
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
    """The master's name could not be resolved yet; the kubelet restarted the container, with the same log."""
    log = Log(1).agent(0).agent_died(5, DNS).agent(30).start()
    assert diagnosed(Log(0).agent(0).start(), log).verdict is Verdict.NONE


def test_a_container_that_failed_again_failed() -> None:
    log = Log(1).agent(0).agent_died(5, DNS).agent(30).agent_died(35, DNS)
    found = diagnosed(Log(0).agent(0), log)
    assert (found.verdict, culprit(found)[1]) == (Verdict.WORKER, "worker-1")


def test_the_next_run_in_the_same_log_has_only_begun() -> None:
    """The failure of the previous run counts: after it, there are only torchrun's first lines."""
    log = Log(0).agent(0).start().trace(1, 1, OWN).trace(1.05, 0, closed_by(1)).ended(1.3, 1, closed=(0,)).agent(60)
    assert culprit(diagnosed(log))[:3] == ("rank", "worker-0", 1)


def clients(joined: int, wanted: int, logs: int) -> list[Log]:
    """Agents whose store timed out and logged the number of members."""
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
    """Three were expected, and all three left logs: the store's count of two does not mean that one was absent."""
    found = diagnosed(*clients(2, 3, 3))
    assert culprit(found) == ("job", None, None, "likely")


def unreachable(place: str, first: Log | WorkerEvidence) -> Diagnosis:
    """Two agents with a timeout while connecting to `place`, and worker-0."""
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
        ("10.42.9.17", Log(0).say(0, "pip install")),  # another address
        ("worker-01", Log(0).say(0, "pip install")),  # a name with the same prefix
        ("worker-0", Log(0).agent(0).start()),  # its agent was started
        ("worker-0", unread(0)),  # the state of its agent is unknown
    ],
)
def test_a_host_that_is_not_known_to_be_mute(place: str, first: Log | WorkerEvidence) -> None:
    found = unreachable(place, first)
    assert all(cause.worker != "worker-0" for cause in (*found.root_causes, *found.candidates))


def test_an_agent_that_reaches_no_host_beside_a_worker_without_an_agent_is_undecided() -> None:
    """That worker may be the host, under another name."""
    error = SILENT_HOST.replace("10.42.9.17", "train-master")
    found = diagnosed(Log(0).say(0, "cd: /mnt/code: No such file"), Log(1).agent_died(60, error, STORE))
    assert (found.verdict, [cause.worker for cause in found.candidates]) == (Verdict.UNDECIDED, ["worker-1"])


def test_a_host_that_fails_as_the_others_do_is_not_mute() -> None:
    error = SILENT_HOST.replace("10.42.9.17", "worker-0")
    found = diagnosed(*(Log(index).agent_died(60, error) for index in (0, 1)))
    assert culprit(found) == ("worker", None, None, "likely")


def test_one_log() -> None:
    (cause,) = diagnosed(*clients(1, 3, 1)).root_causes
    assert cause.why == "1 of 3 agents joined, and there is 1 log"


def crash(log: Log, error: str = OWN) -> Log:
    return log.trace(1, 0, error, prefix=False)


def test_a_traceback_without_a_launcher_is_a_candidate() -> None:
    """The logs do not show which process of which rank printed it."""
    found = diagnosed(crash(Log(0).say(0, "starting")), crash(Log(1), "KeyError: 'lr'"))
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", None), ("worker-1", None)]
    first = found.candidates[0]
    assert (first.exception, first.message, str(first.confidence)) == ("ValueError", OWN, "guess")
    assert first.proofs[0].text == OWN


@pytest.mark.parametrize("others", [(1, 2), (1,), ()])
def test_of_workers_without_a_launcher_the_one_with_an_error_is_the_cause(others: tuple[int, ...]) -> None:
    """The others lose their peer, or are ended silently."""
    logs = [Log(index).say(0, "step 1/300 loss 1.5") for index in range(3)]
    logs[0].trace(1, 0, OWN, prefix=False)
    for index in others:
        logs[index].trace(2, 0, closed_by(0), prefix=False)
    found = diagnosed(*logs)
    assert culprit(found) == ("worker", "worker-0", None, "likely")
    assert found.root_causes[0].message == OWN


#: `accelerate launch` of one process.
ACCELERATE = (
    "Traceback (most recent call last):",
    '  File "/opt/venv/bin/accelerate", line 8, in <module>',
    "    sys.exit(main())",
    '  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 999, in simple_launcher',
    "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)",
    "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' returned non-zero exit status 1.",
)


@pytest.mark.parametrize("count", [1, 2])
def test_workers_without_a_launcher_that_all_end_with_the_same_error(count: int) -> None:
    """Of logs without states it is not known whether the program has ended, or was of one process."""
    logs = [Log(index).say(0, "step 1/300 loss 1.5").trace(1, 0, OWN, prefix=False) for index in range(count)]
    assert diagnosed(*logs).verdict is Verdict.UNDECIDED
    by_states = diagnosed(*(log.evidence(state=State.FAILED) for log in logs))
    by_launchers = diagnosed(*(log.say(2, *ACCELERATE) for log in logs))
    for found in (by_states, by_launchers):
        expected = ("worker", "worker-0", None, "likely") if count == 1 else ("job", None, None, "likely")
        assert culprit(found) == expected
        assert found.root_causes[0].message == OWN


def test_of_workers_without_a_launcher_one_whose_log_is_missing_may_be_the_cause() -> None:
    log = Log(0).say(0, "step 1/300 loss 1.5").trace(1, 0, OWN, prefix=False)
    assert diagnosed(log, Log(1).say(0, "step 1/300 loss 1.5"), unread(2)).verdict is Verdict.UNDECIDED


def test_a_handled_traceback_is_none() -> None:
    found = diagnosed(*(Log(index).start().trace(0.5, 0, OWN, prefix=False).start(1) for index in (0, 1)))
    assert found.verdict is Verdict.NONE


def test_a_logged_traceback_before_more_training_is_none() -> None:
    log = Log(0).start().say(0.5, "2026-11-20 17:45:00,500 ERROR train: could not save, trying again")
    assert (
        diagnosed(log.trace(0.5, 0, "OSError: [Errno 28] No space left", prefix=False).start(1)).verdict is Verdict.NONE
    )


def test_a_noisy_success_is_none() -> None:
    """Ending processes log errors about sockets closed by their peers."""
    logs = []
    for index in (0, 1):
        log = Log(index).start(steps=5)
        log.say(
            9,
            "[W1120 17:45:09.1 TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd=3): "
            "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
            "[rank0]:[W1120 17:45:09.1 ProcessGroupNCCL.cpp:1250] destroy_process_group() was not called",
            "/x/y.py:3: FutureWarning: You are using `torch.load` with `weights_only=False`, which raises later",
        )
        logs.append(log)
    assert diagnosed(*logs).verdict is Verdict.NONE


def test_a_name_that_does_not_resolve_needs_no_rank() -> None:
    error = "socket.gaierror: [Errno -2] Name or service not known"
    assert culprit(diagnosed(crash(Log(0), error)))[:2] == ("job", None)


def test_a_refused_connection_is_the_other_ends() -> None:
    """NCCL logs the address without a listener."""
    own = "w:6:6 [0] NCCL INFO Bootstrap : Using eth0:10.42.1.17<0>"
    refused = "socketStartConnect: Connect to 10.42.1.17<35411> failed : Connection refused"
    warn = f"w:6:90 [0] misc/socket.cc:484 NCCL WARN {refused}"
    found = diagnosed(Log(0).say(0, "loading").say(5, warn), Log(1).say(0, own))
    assert culprit(found) == ("worker", "worker-1", None, "likely")
    assert culprit(diagnosed(Log(0).say(5, warn))) == ("worker", None, None, "likely")


def test_a_signature_alone_is_a_candidate() -> None:
    found = diagnosed(Log(0).say(0, "loading").say(5, "RuntimeError: CUDA out of memory. Tried to allocate 5.25 GiB."))
    assert found.verdict is Verdict.UNDECIDED
    assert found.candidates[0].category == "cuda_oom"


def out_of_memory(index: int, amount: int = 5) -> Log:
    return Log(index).say(0, "loading").say(5, f"RuntimeError: CUDA out of memory. Tried to allocate {amount} GiB.")


def test_the_same_words_at_the_end_of_every_log_are_the_jobs() -> None:
    """The numbers may differ."""
    found = diagnosed(out_of_memory(0, 5), out_of_memory(1, 6))
    assert culprit(found) == ("job", None, None, "likely")
    (cause,) = found.root_causes
    assert (cause.category, cause.why) == ("cuda_oom", "the same failure on all 2 workers")
    assert [(proof.worker, proof.line_no) for proof in cause.proofs] == [("worker-0", 2), ("worker-1", 2)]


@pytest.mark.parametrize(
    "other",
    [
        Log(1).say(0, "loading"),
        Log(1).say(5, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."),
        out_of_memory(1).start(6),
        unread(1),
    ],
)
def test_words_that_not_every_log_ends_with_are_candidates(other: Log | WorkerEvidence) -> None:
    """Nothing, another error, more training after it, or no log at all."""
    found = diagnosed(out_of_memory(0), other)
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found)[0] == ("worker-0", None)


#: Lines in which a launcher, a shell or the kernel reports a death. torchelastic's lines have separate tests: its
#: agents' reports on one attempt do not apply to the next one.
DEATHS = [
    line
    for item in builtin().signatures
    if item.death and not {"exitcode", "Root Cause"} & set(item.literals)
    for line in EXAMPLES[item.id]["match"]
]
#: A line of a launch script that continues, unrelated to the training.
BEHIND = "2026-11-20 17:46:00,100 INFO upload: 3 files"


@pytest.mark.parametrize("line", DEATHS)
@pytest.mark.parametrize("stamped", [True, False])
def test_a_reported_death_is_never_none(line: str, stamped: bool) -> None:
    """Whatever the launch script prints after it, and whatever the ranks were about to print."""
    log = Log(0, stamped=stamped).start().say(5, line)
    for _ in range(3):
        log.say(5.1, "step 4/300 loss 1.5")
    found = diagnosed(log.say(6, BEHIND))
    assert found.verdict is not Verdict.NONE
    told = [proof.text for cause in (*found.root_causes, *found.candidates) for proof in cause.proofs]
    assert any(text and text in line for text in told) or "worker.status.FAILED" in line


@pytest.mark.parametrize(
    "error",
    [
        "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' died with <Signals.SIGSEGV: 11>.",
        "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    ],
)
def test_a_reported_death_in_a_traceback_is_never_none(error: str) -> None:
    found = diagnosed(crash(Log(0).start(), error).say(6, BEHIND))
    assert (found.verdict, found.candidates[0].message) == (Verdict.UNDECIDED, error)


@pytest.mark.parametrize("line", [DEATHS[0], "Traceback (most recent call last):", ""])
def test_a_death_that_the_training_outlived_is_none(line: str) -> None:
    """A launch script that restarts its program, and a program that continues without its subprocesses."""
    log = Log(0).start().say(1, line)
    if line.startswith("Traceback"):
        log.say(1, '  File "/job/train.py", line 20, in <module>', "    run()", crashed := DEATHS[-1])
        assert crashed
    for step in range(20):
        log.say(2 + step, f"step {step}/300 loss 1.5")
    assert diagnosed(log).verdict is Verdict.NONE


@pytest.mark.parametrize(
    "line",
    [
        "[2024-05-06 07:08:09,100] [ERROR] [launch.py:322] ['/usr/bin/python'] exits with return code = 0",
        "Process 2 exit with status code 0.",
        "17:46:00 WARNING git: CalledProcessError: Command '['git', 'log']' returned non-zero exit status 128.",
        "rank 3 finished, killed 0 stragglers",
    ],
)
def test_what_is_no_death_is_none(line: str) -> None:
    assert diagnosed(Log(0).start().say(5, line).say(6, BEHIND)).verdict is Verdict.NONE
