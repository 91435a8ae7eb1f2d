"""Processes that failed by themselves; which one was first, and when this is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from atlctl.diagnosis.cause.initiators import first_of
from atlctl.diagnosis.cause.rounds import JudgedJob, build
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.failures import Part
from atlctl.diagnosis.result import Confidence, Verdict

from .logs import (
    NCCL_REMOTE,
    OWN,
    RESET,
    WAITED,
    Log,
    address,
    candidates,
    closed_by,
    culprit,
    diagnosed,
    matcher,
    unread,
    victim,
)


def own(index: int = 1, local: int = 1, error: str = OWN, at: float = 1.0, **options: object) -> Log:
    """A worker with one process that raises, and another that loses it."""
    log = Log(index, **options).start()  # type: ignore[arg-type]
    log.trace(at, local, error).trace(at + 0.05, 1 - local, closed_by(index))
    return log.ended(at + 0.4, local, closed=(1 - local,))


@pytest.mark.parametrize("stamped", [True, False])
def test_an_own_exception_among_victims_of_gloo(stamped: bool) -> None:
    found = diagnosed(victim(0, of=1, stamped=stamped), own(stamped=stamped))
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    (cause,) = found.root_causes
    assert (cause.rank, cause.attempt, cause.exit_code, cause.signal) == (3, 0, 1, None)
    assert (cause.exception, cause.message, cause.category) == ("ValueError", OWN, "python_exception")
    assert cause.frame is not None
    assert (cause.frame.path, cause.frame.line) == ("/job/train.py", 20)
    assert [(group.reason, group.ranks) for group in found.cascade] == [
        ("gloo: connection closed by a peer", (0, 1, 2))
    ]


def test_an_own_exception_among_victims_of_nccl() -> None:
    log = Log(1).start().trace(1.0, 1, OWN).trace(1.05, 0, NCCL_REMOTE).ended(1.4, 1, closed=(0,))
    other = Log(0).start().trace(1.1, 0, NCCL_REMOTE).trace(1.1, 1, NCCL_REMOTE).ended(1.5, 0, closed=(1,))
    found = diagnosed(other, log)
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    assert [(group.reason, group.count) for group in found.cascade] == [("NCCL: a peer left", 3)]


@pytest.mark.parametrize(("prefix", "sure"), [(True, "certain"), (False, "likely")])
def test_a_rank_whose_neighbour_was_ended_before_its_report(prefix: bool, sure: str) -> None:
    """The neighbour may have had the same fault, unless the process group was there: then it lost its peer."""
    log = Log(1).start(named=()).trace(1.0, 1, OWN, prefix=prefix).ended(1.4, 1, closed=(0,))
    assert culprit(diagnosed(victim(0, of=1), log)) == ("rank", "worker-1", 1, sure)


def test_it_does_not_matter_that_a_victim_spoke_first() -> None:
    """Because of clocks and buffers, a victim's log is a consequence, whatever its time."""
    assert culprit(diagnosed(victim(0, at=0.2, of=1), own(at=1.0))) == ("rank", "worker-1", 1, "certain")


def test_sigkill_beside_a_recorded_victim() -> None:
    """torchrun names the victim: its error file is from the second in which the agent noticed the kill."""
    log = Log(0).start().trace(1.0, 0, closed_by(0)).closing(1.2, 0).failed(1.3, 1, -9)
    log.summary(1.4, (0, -15, closed_by(0)), (1, -9, ""))
    found = diagnosed(log, victim(1, of=0))
    assert culprit(found) == ("rank", "worker-0", 1, "certain")
    (cause,) = found.root_causes
    assert (cause.signal, cause.exit_code, cause.category) == ("SIGKILL", -9, "killed")


def test_sigkill_while_others_waited_is_less_sure() -> None:
    """The rank may have been killed because it hung."""
    waited = Log(0).start().trace(6, 0, WAITED).trace(6, 1, WAITED).ended(6.3, 0, closed=(1,))
    killed = Log(1).start().trace(6, 0, WAITED).ended(6.3, 1, -9, closed=(0,))
    assert culprit(diagnosed(waited, killed)) == ("rank", "worker-1", 1, "likely")


def test_a_segmentation_fault() -> None:
    log = Log(1).start()
    log.say(
        1.0, "Fatal Python error: Segmentation fault", "", "Current thread 0x00007f95e69dbb80 (most recent call first):"
    )
    log.say(1.0, '  File "/job/train.py", line 159 in read_batch')
    log.trace(1.1, 0, closed_by(1)).ended(1.3, 1, -11, closed=(0,))
    found = diagnosed(victim(0, of=1), log)
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    assert (found.root_causes[0].signal, found.root_causes[0].category) == ("SIGSEGV", "native_crash")


def test_an_error_that_the_watchdog_met() -> None:
    """Its peers abort as well: the watchdog's GPU error shows which one was first."""
    log = Log(1).start()
    text = "Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"
    log.say(1.0, f"[rank3]:[E1120 17:45:01.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 3] {text}")
    log.ended(1.4, 1, -6, closed=(0,))
    other = Log(0).start().trace(1.1, 0, NCCL_REMOTE).trace(1.1, 1, NCCL_REMOTE).ended(1.5, 0, closed=(1,))
    found = diagnosed(other, log)
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    assert found.root_causes[0].category == "gpu_ecc_uncorrectable"


@pytest.mark.parametrize(
    ("code", "category", "sure"),
    [(3, "explicit_exit", "certain"), (-15, "terminated", "certain"), (-6, "native_crash", "likely"),
     (1, "unknown_python_exit", "likely")],
)  # fmt: skip
def test_an_exit_code_without_a_word(code: int, category: str, sure: str) -> None:
    """Victims end by exceptions or aborts; with all others lost to a peer, another code is a proof."""
    log = Log(1).start().trace(1.1, 0, closed_by(1)).ended(1.3, 1, code, closed=(0,))
    found = diagnosed(victim(0, of=1), log)
    assert culprit(found) == ("rank", "worker-1", 1, sure)
    assert (found.root_causes[0].category, found.root_causes[0].exit_code) == (category, code)


def test_exit_codes_without_a_word_at_the_same_time_are_undecided() -> None:
    logs = [Log(index).start().ended(1.3, 0, closed=(1,)) for index in (0, 1)]
    found = diagnosed(*logs)
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", 0), ("worker-1", 0)]


def test_exit_codes_without_a_word_seconds_apart_are_a_guess() -> None:
    logs = [Log(index).start().ended(at, 0, closed=(1,)) for index, at in ((0, 5.3), (1, 1.3))]
    assert culprit(diagnosed(*logs)) == ("rank", "worker-1", 0, "guess")


def test_a_traceback_without_a_prefix_is_the_process_that_failed() -> None:
    """Before the process group exists, there is no `[rank3]: `."""
    log = Log(1).start().trace(1, 1, "ModuleNotFoundError: No module named 'fused'", prefix=False)
    found = diagnosed(victim(0, of=1), log.ended(1.3, 1, 1, closed=(0,)))
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    assert found.root_causes[0].exception == "ModuleNotFoundError"


def test_a_thread_that_dies_does_not_end_its_process() -> None:
    log = Log(1).start().say(1, "Exception in thread Thread-1 (prefetch):").trace(1, 0, OWN, prefix=False)
    log.trace(3, 0, "KeyError: 'lr'").ended(3.3, 0, closed=(1,))
    assert diagnosed(victim(0, 3.1, of=1), log).root_causes[0].exception == "KeyError"


def test_the_same_failure_everywhere_is_the_jobs() -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/data/config.json'"
    logs = [Log(index).start().trace(1, 0, error).trace(1, 1, error).ended(1.3, 0, closed=(1,)) for index in (0, 1)]
    found = diagnosed(*logs)
    assert culprit(found) == ("job", None, None, "certain")
    assert (found.root_causes[0].rank, found.root_causes[0].exception) == (None, "FileNotFoundError")
    assert found.cascade == ()


def test_numbers_do_not_make_another_failure() -> None:
    logs = [
        Log(index)
        .start()
        .trace(1, 0, f"KeyError: {index}1")
        .trace(1, 1, f"KeyError: {index}2")
        .ended(1.3, 0, closed=(1,))
        for index in (0, 1)
    ]
    assert diagnosed(*logs).verdict is Verdict.JOB


def test_a_worker_that_failed_before_the_users_code() -> None:
    """No process of it can run the script; the other agent loses the store and stops starting processes."""
    text = "/opt/venv/bin/python: can't open file '/job/train.py': [Errno 2] No such file or directory"
    bad = Log(1).say(1, text, text).failed(1.3, 0, 2).summary(1.4, (0, 2, ""), (1, 2, ""))
    other = Log(0).closing(2, 0, 1).agent_died(2.1, "RuntimeError: Connection reset by peer")
    for first in (other, victim(0, of=1)):
        found = diagnosed(first, bad)
        assert culprit(found) == ("worker", "worker-1", None, "certain")
        assert (found.root_causes[0].rank, found.root_causes[0].category) == (None, "script_missing")


def test_two_culprits_at_once() -> None:
    found = diagnosed(own(0, 0, "KeyError: 'lr'", 1.0), own(1, 0, OWN, 1.02))
    assert found.verdict is Verdict.RANKS
    assert [(cause.worker, cause.local_rank, str(cause.confidence)) for cause in found.root_causes] == [
        ("worker-0", 0, "likely"),
        ("worker-1", 0, "likely"),
    ]
    assert [group.ranks for group in found.cascade] == [(1, 3)]


def test_the_same_failure_on_some_ranks() -> None:
    found = diagnosed(own(0, 0, OWN, 1.0), own(1, 0, OWN, 3.0))
    assert found.verdict is Verdict.RANKS
    assert [cause.rank for cause in found.root_causes] == [0, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: own(1, 1),
        lambda: Log(1).start().trace(1.1, 0, closed_by(1)).ended(1.3, 1, -9, closed=(0,)),
        lambda: Log(1).start().trace(1.1, 0, closed_by(1)).ended(1.3, 1, 3, closed=(0,)),
    ],
)
def test_missing_logs_and_workers_lower_the_confidence(make: Callable[[], Log]) -> None:
    """A worker without logs may have failed before."""
    for found in (
        diagnosed(unread(0), make()),
        diagnosed(victim(0, of=1), make(), expected=3, missing=("worker-2",)),
    ):
        assert culprit(found) == ("rank", "worker-1", 1, "likely")


def test_a_victim_whose_code_wraps_the_error() -> None:
    log = Log(0).start()
    for local in (0, 1):
        log.trace(1.1, local, closed_by(1), "TrainingError: step 3 failed")
    found = diagnosed(log.ended(1.4, 0, closed=(1,)), own())
    assert culprit(found) == ("rank", "worker-1", 1, "certain")
    assert found.cascade[0].ranks == (0, 1, 2)


def test_a_culprit_whose_handler_then_loses_its_peer() -> None:
    """Its last error is a victim's, but the first error of the chain is its own and decides."""
    log = Log(1).start().trace(1, 1, OWN, RESET.format(address=address(0))).trace(1.1, 0, closed_by(1))
    found = diagnosed(victim(0, of=1), log.ended(1.4, 1, closed=(0,)))
    assert culprit(found) == ("rank", "worker-1", 1, "likely")
    assert (found.root_causes[0].exception, found.root_causes[0].message) == ("ValueError", OWN)


def test_a_peer_that_a_user_names_is_no_victim() -> None:
    """An external service with errors is not a peer."""
    error = "ConnectionError: metrics service: 503 Service Unavailable after 5 attempts"
    assert culprit(diagnosed(victim(0, of=1), own(error=error)))[:3] == ("rank", "worker-1", 1)


def test_many_culprits_are_listed_up_to_a_limit() -> None:
    logs = [own(index, 0, "KeyError: 'lr'", 1.0, world=200) for index in range(100)]
    found = diagnosed(*logs)
    assert found.verdict is Verdict.RANKS
    assert len(found.root_causes) == 64
    assert {cause.confidence for cause in found.root_causes} == {Confidence.LIKELY}


def lacking(error: str, *, seen: Sequence[int] = (), peer: str | None = None) -> Log:
    """Worker 1: one process could not start; its agent stopped the other, which is `seen` or lost its `peer`."""
    log = Log(1)
    if seen:
        log.start(named=seen)
    log.trace(1, 0, error, prefix=False)
    if peer is not None:
        log.trace(1.1, 1, peer)
    return log.ended(1.3, 0, closed=(1,))


NO_MODULE = "ModuleNotFoundError: No module named 'fused'"


@pytest.mark.parametrize("error", [NO_MODULE, "ImportError: libcudart.so.12: cannot open shared object file"])
def test_what_an_image_lacks_all_its_processes_lack(error: str) -> None:
    """The agent stopped the second one before it could fail."""
    found = diagnosed(victim(0, of=1), lacking(error))
    assert found.verdict is Verdict.RANKS
    assert [(cause.worker, cause.local_rank, str(cause.confidence)) for cause in found.root_causes] == [
        ("worker-1", 0, "likely"),
        ("worker-1", 1, "likely"),
    ]
    assert found.root_causes[0].category == "import_error"
    assert found.root_causes[0].why.startswith("all processes of its worker lack the same")


@pytest.mark.parametrize(
    "log",
    [
        lacking("KeyError: 'lr'"),  # not an error of the image
        lacking(NO_MODULE, seen=(0,)),  # it had started, so the image is complete
        lacking(NO_MODULE, seen=(1,)),  # the other one had started
        lacking(NO_MODULE, peer=closed_by(1)),  # the other one has another error
    ],
)
def test_an_import_that_the_others_need_not_share(log: Log) -> None:
    assert culprit(diagnosed(victim(0, of=1), log))[:3] == ("rank", "worker-1", 0)


def test_an_import_error_of_the_only_worker_is_no_statement_about_its_image() -> None:
    assert culprit(diagnosed(lacking(NO_MODULE)))[:3] == ("rank", "worker-1", 0)


def ends(*codes: int, words: str = "") -> list[Log]:
    """A worker for each exit code of its first process; `words` are printed before an abort."""
    logs = []
    for index, code in enumerate(codes):
        log = Log(index, world=2 * len(codes)).start()
        if code == -6 and words:
            log.say(1, "terminate called after throwing an instance of 'c10::Error'", f"  what():  {words}")
        logs.append(log.ended(1.3, 0, code, closed=(1,)))
    return logs


def test_an_abort_without_a_word_among_silent_exits_is_undecided() -> None:
    """The interpreter often aborts during its exit."""
    found = diagnosed(*ends(1, 1, -6))
    assert found.verdict is Verdict.UNDECIDED
    assert sorted(candidates(found), key=str) == [("worker-0", 0), ("worker-1", 0), ("worker-2", 0)]
    assert {cause.why for cause in found.candidates} == {
        "several ended in the same way at the same time, without an error message"
    }


def test_an_abort_with_an_exception_of_its_own_stands_out() -> None:
    """Its last error is a victim's, the first one is its own."""
    log = Log(2, world=6).start().trace(1, 0, OWN, RESET.format(address=address(0))).ended(1.3, 0, -6, closed=(1,))
    assert culprit(diagnosed(*ends(1, 1), log))[:3] == ("rank", "worker-2", 0)


@pytest.mark.parametrize(
    ("codes", "words"),
    [((1, -6), ""), ((1, 1, 3), ""), ((1, 1, -6), "CUDA error: an illegal memory access was encountered")],
)
def test_an_end_that_stands_out_among_silent_exits(codes: tuple[int, ...], words: str) -> None:
    """A single silent exit, a different exit code, an abort with an error message."""
    assert culprit(diagnosed(*ends(*codes, words=words)))[:3] == ("rank", f"worker-{len(codes) - 1}", 0)


def test_what_shares_a_cause_tells_the_cause() -> None:
    found = diagnosed(victim(0, of=1), lacking(NO_MODULE))
    assert [(cause.local_rank, cause.category, cause.message) for cause in found.root_causes] == [
        (0, "import_error", NO_MODULE),
        (1, "import_error", NO_MODULE),
    ]


ERRORS = ("KeyError: 'lr'", "ValueError: bad magic in shard 3", "TypeError: unhashable")


def failing(index: int, at: float, *, trained: bool = True, **options: object) -> Log:
    """A worker whose local rank 0 raises an error that no other worker has."""
    log = Log(index, **options)  # type: ignore[arg-type]
    if trained:
        log.start()
    log.trace(at, 0, ERRORS[index]).trace(at + 0.05, 1, closed_by(index))
    return log.ended(at + 0.4, 0, closed=(1,))


def judged(*logs: Log) -> JudgedJob:
    return build(JobEvidence(tuple(log.evidence() for log in logs)), matcher())


def tie_of(*logs: Log) -> str:
    job = judged(*logs)
    return first_of(job, [item for item in job.failures if item.part is Part.INITIATOR]).tie


def test_the_earlier_one_where_clocks_were_compared() -> None:
    """Both workers log their steps at the same times, so their clocks agree."""
    found = diagnosed(failing(0, 1.5), failing(1, 1.0))
    assert culprit(found) == ("rank", "worker-1", 0, "likely")
    assert "0.5 s before the next" in found.root_causes[0].why


@pytest.mark.parametrize("ahead", [-5.0, 5.0, 120.0])
def test_clocks_that_differ_are_set_right(ahead: float) -> None:
    """Worker 1 was first, even if its clock differs."""
    found = diagnosed(failing(0, 1.6), failing(1, 1.0, ahead=ahead))
    assert culprit(found)[:3] == ("rank", "worker-1", 0)
    assert found.remarks == (f"clocks differ and were corrected: worker-1 {ahead:+.1f} s",)


def test_nearer_than_a_collective_can_pass_on_is_at_once() -> None:
    assert tie_of(failing(0, 1.0), failing(1, 1.05)) == "at_once"
    assert tie_of(failing(0, 1.0), failing(1, 1.08)) == ""


def test_clocks_that_nobody_compared_leave_it_open() -> None:
    """Both failed by themselves: two culprits in unknown order."""
    found = diagnosed(failing(0, 1.0, trained=False), failing(1, 6.0, trained=False))
    assert found.verdict is Verdict.RANKS
    assert {str(cause.confidence) for cause in found.root_causes} == {"guess"}
    assert "clocks cannot be compared" in found.root_causes[0].why


def test_clocks_are_not_wrong_by_a_minute() -> None:
    found = diagnosed(failing(0, 60.0, trained=False), failing(1, 1.0, trained=False))
    assert culprit(found)[:3] == ("rank", "worker-1", 0)


def test_the_same_second_is_undecided() -> None:
    """Summaries have a resolution of one second, and old versions print nothing else."""
    logs = []
    for index in (0, 1):
        log = Log(index, stamped=False).start().trace(1 + index / 2, 0, ERRORS[index])
        logs.append(log.summary(2, (0, 1, ERRORS[index]), (1, -15, "")))
    found = diagnosed(*logs)
    assert found.verdict is Verdict.UNDECIDED
    assert candidates(found) == [("worker-0", 0), ("worker-1", 0)]
    assert "within the same second" in found.candidates[0].why


def test_milliseconds_of_the_agents_notice_decide_where_clocks_agree() -> None:
    found = diagnosed(failing(0, 1.5, stamped=False), failing(1, 1.0, stamped=False))
    assert culprit(found)[:3] == ("rank", "worker-1", 0)


def test_in_one_log_the_order_of_words_decides() -> None:
    log = Log(0, stamped=False).start().trace(1, 1, ERRORS[0]).trace(1, 0, ERRORS[1]).ended(1.4, 0, closed=(1,))
    found = diagnosed(log)
    assert culprit(found) == ("rank", "worker-0", 1, "likely")
    assert "its error is the first in the log" in found.root_causes[0].why


def test_one_failure_has_no_rival() -> None:
    job = judged(failing(0, 1.0))
    only = [item for item in job.failures if item.part is Part.INITIATOR]
    first = first_of(job, only)
    assert (first.leaders, first.margin, first.tie) == ((only[0],), None, "")
