"""Logs without a word of torchelastic's."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.result import Verdict
from atlctl.diagnosis.signatures.load import builtin
from tests.unit.diagnosis.signatures.examples import EXAMPLES

from .logs import OWN, Log, candidates, culprit, diagnosed, unread


def crash(log: Log, error: str = OWN) -> Log:
    return log.trace(1, 0, error, prefix=False)


def test_a_traceback_without_a_launcher_is_a_candidate() -> None:
    """Which process of which rank printed it stands nowhere."""
    found = diagnosed(crash(Log(0).say(0, "starting")), crash(Log(1), "KeyError: 'lr'"))
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", None), ("worker-1", None)]
    first = found.candidates[0]
    assert (first.exception, first.message, str(first.confidence)) == ("ValueError", OWN, "guess")
    assert first.proofs[0].text == OWN


def test_a_handled_traceback_is_none() -> None:
    found = diagnosed(*(Log(index).start().trace(0.5, 0, OWN, prefix=False).start(1) for index in (0, 1)))
    assert found.verdict is Verdict.NONE


def test_a_logged_traceback_before_more_training_is_none() -> None:
    log = Log(0).start().say(0.5, "2026-11-20 17:45:00,500 ERROR train: could not save, trying again")
    assert (
        diagnosed(log.trace(0.5, 0, "OSError: [Errno 28] No space left", prefix=False).start(1)).verdict is Verdict.NONE
    )


def test_a_noisy_success_is_none() -> None:
    """At their end processes complain of sockets that their peers have closed."""
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
    """NCCL names the address at which nobody listens."""
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
    """Numbers may differ."""
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
    """Nothing, something else, the training behind it, or no log at all."""
    found = diagnosed(out_of_memory(0), other)
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found)[0] == ("worker-0", None)


#: Lines by which a launcher, a shell or the kernel reports a death. torchelastic's have tests of their own: what its
#: agents say of one attempt is none of the next one's.
DEATHS = [
    line
    for item in builtin().signatures
    if item.death and not {"exitcode", "Root Cause"} & set(item.literals)
    for line in EXAMPLES[item.id]["match"]
]
#: A launch script that goes on: it says nothing of the training.
BEHIND = "2026-11-20 17:46:00,100 INFO upload: 3 files"


@pytest.mark.parametrize("line", DEATHS)
@pytest.mark.parametrize("stamped", [True, False])
def test_a_reported_death_is_never_none(line: str, stamped: bool) -> None:
    """Whatever the launch script prints behind it, and whatever ranks were about to print."""
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
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV",
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
    """A launch script that starts its program again, and a program that runs others and does without them."""
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
