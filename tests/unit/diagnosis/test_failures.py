"""Single processes: whether one failed by itself, lost a peer, or was stopped by its agent."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.consequence import Sort
from atlctl.diagnosis.failures import Failure, Judge, Part, Strength
from atlctl.diagnosis.joining import collect_all
from tests.unit.diagnosis.cause.logs import (
    MESH,
    NCCL_REMOTE,
    OWN,
    START,
    STORE,
    WAITED,
    Log,
    address,
    closed_by,
    error_files,
    matcher,
)
from tests.unit.diagnosis.samples import record


def judged(log: Log, **values: object) -> dict[int | None, Failure]:
    """All processes of one worker, by local rank."""
    evidence = log.evidence(**values)
    (worker,) = collect_all([evidence])
    judge = Judge(matcher(), log.facts())
    return {process.local_rank: judge.judge(process) for process in worker.processes}


def test_an_own_exception() -> None:
    found = judged(Log(0).start().trace(1, 1, OWN).closing(1.2, 0).failed(1.3, 1))
    assert (found[1].part, found[1].strength, found[1].category) == (
        Part.INITIATOR, Strength.STRONG, "python_exception",
    )  # fmt: skip
    assert (found[1].exception, found[1].message) == ("ValueError", OWN)
    assert (found[0].part, found[0].strength) == (Part.ENDED, None)


@pytest.mark.parametrize(
    ("error", "sort", "peer"),
    [
        (closed_by(1), Sort.LEFT, address(1)),
        (WAITED, Sort.WAITED, None),
        (MESH, Sort.MESH, None),
        (NCCL_REMOTE, Sort.LEFT, None),
        ("torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /a", Sort.STORE_WAITED, None),
        (STORE, Sort.STORE_LEFT, None),
    ],
)
def test_a_victim_and_the_sort_of_its_words(error: str, sort: Sort, peer: str | None) -> None:
    found = judged(Log(0).start().trace(1, 0, error).failed(1.3, 0))[0]
    assert (found.part, found.strength, found.sort, found.peer) == (Part.VICTIM, None, sort, peer)
    assert found.reason


def test_a_wrapped_consequence_is_a_victims() -> None:
    found = judged(Log(0).start().trace(1, 0, closed_by(1), "TrainingError: step 3").failed(1.3, 0))[0]
    assert (found.part, found.sort) == (Part.VICTIM, Sort.LEFT)


def test_an_own_exception_that_ends_in_a_consequence_is_less_strong() -> None:
    found = judged(Log(0).start().trace(1, 0, OWN, closed_by(1)).failed(1.3, 0))[0]
    assert (found.part, found.strength, found.message) == (Part.INITIATOR, Strength.SOME, OWN)


@pytest.mark.parametrize(
    ("code", "part", "strength", "category"),
    [
        (-9, Part.INITIATOR, Strength.STRONG, "killed"),
        (-11, Part.INITIATOR, Strength.STRONG, "native_crash"),
        (-7, Part.INITIATOR, Strength.STRONG, "shm_bus_error"),
        (-6, Part.INITIATOR, Strength.SOME, "native_crash"),
        (-15, Part.INITIATOR, Strength.SOME, "terminated"),
        (143, Part.INITIATOR, Strength.SOME, "terminated"),
        (137, Part.INITIATOR, Strength.SOME, "killed"),
        (-2, Part.INITIATOR, Strength.SOME, "interrupted"),
        (-1, Part.INITIATOR, Strength.SOME, "terminal_hangup"),
        (1, Part.INITIATOR, Strength.OPAQUE, "unknown_python_exit"),
        (2, Part.INITIATOR, Strength.SOME, "bad_arguments_or_missing_script"),
        (3, Part.INITIATOR, Strength.SOME, "explicit_exit"),
    ],
)
def test_exit_codes_without_a_word(code: int, part: Part, strength: Strength, category: str) -> None:
    found = judged(Log(0).start().failed(1.3, 0, code))[0]
    assert (found.part, found.strength, found.category, found.exit_code) == (part, strength, category, code)


@pytest.mark.parametrize(("code", "signal"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (1, None), (3, None)])
def test_signals(code: int, signal: str | None) -> None:
    assert judged(Log(0).start().failed(1.3, 0, code))[0].signal == signal


def test_sigkill_by_its_agent_is_no_cause() -> None:
    log = Log(0).start().closing(1, 1).forced(31, 1).failed(31.1, 0).summary(31.2, (0, 1, ""), (1, -9, ""))
    assert judged(log)[1].part is Part.ENDED


def test_sigterm_by_its_agent_is_no_cause() -> None:
    log = Log(0).start().closing(1, 1).failed(1.1, 0).summary(1.2, (0, 1, ""), (1, -15, ""))
    assert (judged(log)[1].part, judged(log)[1].strength) == (Part.ENDED, None)


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit: 143"])
def test_what_sigterm_raises_in_python_is_no_cause(error: str) -> None:
    log = Log(0).start().closing(1, 1).trace(1.1, 1, error).failed(1.2, 0)
    assert judged(log)[1].part is Part.ENDED


def test_an_own_exception_under_sigterm_is_a_cause() -> None:
    """It had raised and was ending when its agent stopped it."""
    log = (
        Log(0).start().trace(1, 1, OWN).closing(1.1, 1).failed(1.2, 0).summary(1.3, (0, 1, closed_by(0)), (1, -15, OWN))
    )
    assert (judged(log)[1].part, judged(log)[1].strength) == (Part.INITIATOR, Strength.STRONG)


def test_a_watchdog_that_waited_is_a_victim_though_it_aborts() -> None:
    found = judged(Log(0).start().watchdog(600, 0).failed(601, 0, -6))[0]
    assert (found.part, found.sort) == (Part.VICTIM, Sort.WAITED)


def test_a_watchdog_that_met_an_error_of_the_gpu_is_a_cause() -> None:
    text = (
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"
    )
    log = (
        Log(0).start().say(1, f"[rank0]:[E1120 17:45:01.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0 Rank 0] {text}")
    )
    found = judged(log.failed(1.3, 0, -6))[0]
    assert (found.part, found.strength) == (Part.INITIATOR, Strength.STRONG)


def test_a_process_of_which_only_its_start_is_known() -> None:
    assert judged(Log(0).start())[0].part is Part.SILENT


def test_an_error_file_tells_what_the_log_does_not() -> None:
    files = error_files(0, {(0, 0): record(OWN, time=1795196701)})
    found = judged(Log(0).start().failed(1.3, 0), error_files=files)[0]
    assert (found.part, found.exception) == (Part.INITIATOR, "ValueError")
    assert found.time is not None
    assert (found.time.seconds, found.time.resolution) == (1795196701, 1.0)


def test_the_time_of_its_own_words_comes_before_its_agents_notice() -> None:
    found = judged(Log(0).start().trace(1.25, 0, OWN).failed(2.5, 0))[0]
    assert found.time is not None
    assert found.time.seconds == pytest.approx(START + 1.25, abs=0.001)


def test_without_words_it_is_when_the_agent_began_to_end_the_others() -> None:
    """The report comes after the last process has ended, up to 30 s later."""
    found = judged(Log(0).start().closing(2, 1).failed(2.5, 0, -9))[0]
    assert found.time is not None
    assert found.time.seconds == pytest.approx(START + 2, abs=0.001)


def test_the_end_in_the_users_code() -> None:
    found = judged(Log(0).start().trace(1, 0, OWN, place=77).failed(1.3, 0))[0]
    assert found.frame is not None
    assert (found.frame.path, found.frame.line, found.frame.function) == ("/job/train.py", 77, "main")


def test_categories_come_from_signatures() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.25 GiB."
    found = judged(Log(0).start().trace(1, 0, error).failed(1.3, 0))[0]
    assert (found.category, found.signature) == ("cuda_oom", "cuda_oom")


def test_warnings_of_pytorch_are_not_last_words() -> None:
    """Stores and sockets log warnings at the end of successful runs, too."""
    warning = "[rank0]:[W1120 17:45:01.1 TCPStore.cpp:115] [c10d] recvVector failed: Failed to recv, got 0 bytes."
    found = judged(Log(0).start().say(1, warning).failed(1.3, 0, -6))[0]
    assert found.part is Part.INITIATOR


def test_processes_are_told_apart() -> None:
    found = judged(Log(0).start().trace(1, 1, OWN).closing(1.2, 0).failed(1.3, 1))
    assert len({item.key for item in found.values()}) == 2


BARRIER = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 5000 ms"
MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 5.25 GiB."


def spoken(line: str, code: int | None) -> Failure:
    """A process with one line and an exit code, and without a traceback."""
    log = Log(0).start().say(1, f"[rank0]: {line}")
    return judged(log if code is None else log.failed(1.3, 0, code))[0]


@pytest.mark.parametrize("code", [1, None, -6])
@pytest.mark.parametrize(("line", "sort"), [(BARRIER, Sort.WAITED), (closed_by(1), Sort.LEFT)])
def test_a_victims_line_makes_a_victim(line: str, sort: Sort, code: int | None) -> None:
    """A barrier's line is a root cause in the signatures: of the ranks it names, not of the rank that prints it."""
    found = spoken(line, code)
    assert (found.part, found.strength, found.sort) == (Part.VICTIM, None, sort)


@pytest.mark.parametrize("code", [3, -9])
def test_a_victims_line_explains_no_other_end(code: int) -> None:
    found = spoken(BARRIER, code)
    assert (found.part, found.sort) == (Part.INITIATOR, None)
    assert found.strength is (Strength.SOME if code == 3 else Strength.STRONG)
    assert found.message != BARRIER


@pytest.mark.parametrize("code", [1, None])
def test_an_own_line_beside_a_victims_is_an_own_failure(code: int | None) -> None:
    log = Log(0).start().say(1, f"[rank0]: {BARRIER}", f"[rank0]: {MEMORY}")
    found = judged(log if code is None else log.failed(1.3, 0, code))[0]
    assert (found.part is Part.INITIATOR) is (code == 1)
    assert spoken(MEMORY, code).category == "cuda_oom"
