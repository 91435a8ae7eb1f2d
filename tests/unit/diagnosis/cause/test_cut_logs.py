"""What is left of logs: without the line that tells, an answer is less sure or undecided, never another one."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.result import Verdict

from .logs import NOBODY_CAME, OWN, SITE, STORE, WAITED, Log, candidates, closed_by, culprit, diagnosed, victim

NAN = "FloatingPointError: loss is nan"
FRAME = '  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward'
KEY = "torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /default_pg/0//cpu//0/{rank}"


def behind(log: Log, *lines: str) -> Log:
    """What is left of a log: it begins with these lines."""
    log.lines[:0] = Log(log.index).say(0, *lines).lines
    return log


@pytest.mark.parametrize(
    ("line", "cut"),
    [
        (FRAME, True),
        ("frame #3: <unknown function> + 0x6747a52 (0x7f14 in /x/libtorch_cpu.so)", True),
        ("<omitting python frames>", True),
        ("W1120 17:45:01.000000 1 torch/distributed/elastic/x.py:9] Sending process 6 closing signal SIGTERM", True),
        ("loading", False),
        ("", False),
    ],
)
def test_a_log_that_begins_in_a_report_or_with_an_end_is_cut(line: str, cut: bool) -> None:
    assert Log(0).say(0, line, "loading").facts().cut is cut


@pytest.mark.parametrize(("attempt", "verdict"), [(0, "rank"), (2, "undecided")])
def test_a_summary_of_a_later_attempt_than_the_logs_rounds_shows_that_it_lacks_its_beginning(
    attempt: int, verdict: str
) -> None:
    log = Log(1).start().trace(1, 1, closed_by(0)).ended(2, 1, closed=(0,))
    path = f"/tmp/torchelastic_a/job_b/attempt_{attempt}/1/error.json"
    log.lines = [line.replace("error_file: <N/A>", f"error_file: {path}") for line in log.lines]
    assert diagnosed(log, victim(0, of=1)).verdict == verdict


def test_a_log_that_begins_behind_all_steps_of_another_lacks_its_beginning() -> None:
    """The clocks cannot be compared without common steps, and both failed by themselves."""

    def steps(index: int, first: int) -> Log:
        log = Log(index)
        for step in range(first, first + 3):
            log.say(0.1 * step, f"2026-11-20 17:45:0{step % 10}.000 INFO step {step}/30 loss 1")
        return log

    dead = steps(0, 0).ended(3.05, 0, -9, closed=(1,))
    assert diagnosed(dead, steps(1, 0).trace(3, 0, OWN).ended(3.5, 0, closed=(1,))).verdict is not Verdict.UNDECIDED
    found = diagnosed(dead, steps(1, 7).trace(3, 0, OWN).ended(3.5, 0, closed=(1,)))
    assert found.verdict is Verdict.UNDECIDED
    assert len(candidates(found)) == 2


def test_a_process_whose_words_are_lost_is_not_the_first_beside_a_log_that_just_ends() -> None:
    alive = Log(2, world=6).start()
    later, mute = (
        Log(index, world=6).start().trace(1, 0, closed_by(2)).ended(at, 1, closed=(0,))
        for index, at in ((0, 5), (1, 2))
    )
    assert culprit(diagnosed(later, mute, alive))[:3] == ("rank", "worker-1", 1)
    assert diagnosed(later, behind(mute, FRAME), alive).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("whole", [True, False])
def test_a_summary_without_the_agents_report_before_it_lacks_its_beginning(whole: bool) -> None:
    """Of the only process that its worker's log names the output is gone, and another worker may say more."""
    log = Log(0).start().ended(2, 0, closed=(1,))
    if not whole:
        del log.lines[: next(at for at, line in enumerate(log.lines) if "FAILED" in line)]
    assert log.facts().cut is not whole
    assert diagnosed(log, Log(1).start().closing(3, 0, 1)).verdict is (Verdict.RANK if whole else Verdict.UNDECIDED)


def test_of_a_worker_whose_log_is_cut_one_process_is_not_blamed_beside_another_whose_output_is_lost() -> None:
    """Both may have failed in the same way: a full disk, an old image."""
    log = Log(1).start().trace(1, 0, OWN).failed(2, 0).summary(2.1, (0, 1, ""), (1, 1, ""))
    assert culprit(diagnosed(log, victim(0, of=1)))[:3] == ("rank", "worker-1", 0)
    found = diagnosed(behind(log, FRAME), victim(0, of=1))
    assert candidates(found) == [("worker-1", 0), ("worker-1", 1)]


def test_an_abort_without_a_word_is_no_answer_if_another_ones_words_are_lost() -> None:
    """Interpreters abort on their way out of a failure, too."""
    aborted = Log(0).start().ended(3, 0, -6, closed=(1,))
    mute = Log(1).start().ended(3.5, 1, closed=(0,))
    assert culprit(diagnosed(aborted, mute))[:3] == ("rank", "worker-0", 0)
    assert diagnosed(aborted, behind(mute, FRAME)).verdict is Verdict.UNDECIDED


def test_the_jobs_own_fault_must_be_in_every_log_that_begins_at_its_beginning() -> None:
    broken = Log(0).say(0, "loading").trace(1, 0, "SyntaxError: invalid syntax", prefix=False)
    broken.trace(1, 1, "SyntaxError: invalid syntax", prefix=False).failed(1.5, 0).summary(1.6, (0, 1, ""), (1, 1, ""))
    assert diagnosed(broken, Log(1).agent(0).agent_died(2, STORE)).verdict is Verdict.JOB
    found = diagnosed(broken, Log(1).say(0, FRAME).agent_died(2, STORE))
    assert found.verdict is not Verdict.JOB
    assert {cause.worker for cause in found.root_causes} == {"worker-0"}


def test_a_rank_that_another_one_reports_may_be_in_a_log_that_is_not_here() -> None:
    """Never the one that reports it."""
    log = Log(0).start().trace(1, 0, "RuntimeError: rank 3 failed: KeyError: 'labels'").ended(2, 0, closed=(1,))
    found = diagnosed(log)
    (cause,) = found.root_causes
    assert (found.verdict, cause.worker, cause.rank, cause.local_rank) == (Verdict.RANK, None, 3, None)
    assert cause.message == "KeyError: 'labels'"


@pytest.mark.parametrize(("expected", "sure"), [(1, "certain"), (None, "likely")])
def test_one_log_is_certain_only_if_it_is_known_to_be_the_only_one(expected: int | None, sure: str) -> None:
    log = Log(0, processes=2).trace(1, 0, OWN).trace(2, 1, closed_by(0)).ended(3, 0, closed=(1,))
    assert culprit(diagnosed(log, expected=expected)) == ("rank", "worker-0", 0, sure)


def test_of_workers_that_waited_none_was_cut_off_if_ranks_between_them_left_no_line() -> None:
    """The agent of the last one did not report an end: nor did the worker whose log is not here."""
    reported = Log(0, world=4).trace(6, 0, WAITED).trace(6, 1, WAITED).ended(6.3, 0, closed=(1,))
    silent = [Log(index, world=4).trace(6, 0, WAITED).trace(6, 1, WAITED) for index in (1, 2)]
    assert culprit(diagnosed(reported, silent[0]))[:2] == ("worker", "worker-1")
    assert diagnosed(reported, silent[1]).verdict is Verdict.UNDECIDED


def test_agents_that_all_waited_may_have_waited_for_each_other() -> None:
    logs = [Log(index).agent(0).agent_died(60, NOBODY_CAME) for index in range(2)]
    assert diagnosed(*logs).verdict is Verdict.UNDECIDED
    assert culprit(diagnosed(*logs, missing=("worker-2",)))[:2] == ("worker", "worker-2")


def unconnected(index: int) -> Log:
    """An agent that could not make its store; what was in front of its last traceback is cut off."""
    log = Log(index).say(0, FRAME, "    return what()")
    log.say(0, f'  File "{SITE}/elastic/rendezvous/c10d_rendezvous_backend.py", line 180, in _create_tcp_store')
    return log.say(0, "    raise RendezvousConnectionError(", STORE)


def test_an_agent_that_never_reached_the_store_is_whom_the_others_waited_for() -> None:
    found = diagnosed(Log(0).agent(0).agent_died(60, NOBODY_CAME), unconnected(1))
    assert culprit(found)[:2] == ("worker", "worker-1")
    assert found.root_causes[0].category == "rendezvous_unreachable"


def test_an_agent_that_never_reached_the_store_may_follow_a_worker_whose_agent_never_spoke() -> None:
    assert diagnosed(Log(0).say(0, "cd: /job: No such directory"), unconnected(1)).verdict is not Verdict.WORKER
    assert diagnosed(unconnected(0), unconnected(1)).verdict is not Verdict.WORKER


@pytest.mark.parametrize(("more", "verdict"), [(20, "none"), (5, "worker")])
def test_an_agent_that_was_stopped_while_the_others_went_on_ended_nothing(more: int, verdict: str) -> None:
    others = [Log(index, world=6).start() for index in (0, 1)]
    for log in others:
        log.say(3 + more, f"2026-11-20 17:45:{3 + more:02}.000 INFO step 9/9 loss 1")
    assert diagnosed(*others, Log(2, world=6).start().signalled(3)).verdict == verdict


@pytest.mark.parametrize(("goes_on", "verdict"), [(False, "undecided"), (True, "none")])
def test_the_end_of_a_report_alone_is_not_a_job_without_failure(goes_on: bool, verdict: str) -> None:
    log = Log(0).say(0, "    work.wait()", "  ", "=" * 60)
    assert diagnosed(log.say(1, "INFO step 4/9 loss 1.5") if goes_on else log).verdict == verdict


@pytest.mark.parametrize(("awaited", "verdict"), [(2, "undecided"), (1, "rank")])
def test_a_quiet_rank_did_not_hang_if_the_one_that_was_awaited_by_name_has_no_log(awaited: int, verdict: str) -> None:
    log = Log(0).say(0, "loading").trace(30, 0, KEY.format(rank=awaited)).ended(31, 0, closed=(1,))
    assert diagnosed(log).verdict == verdict


def mixed(first: str, second: str, *, apart: bool) -> Log:
    """Two processes of one worker raise; their tracebacks are mixed or follow each other."""
    log = Log(0).start()
    one, two = Log(0).trace(3, 1, first).lines, Log(0).trace(3, 0, second).lines
    log.lines += one + two if apart else [line for pair in zip(one, two, strict=True) for line in pair]
    return log.failed(4, 0).summary(4.1, (0, 1, ""), (1, 1, ""))


def test_tracebacks_whose_lines_are_mixed_have_no_order() -> None:
    peer = victim(1, 3.5)
    assert culprit(diagnosed(mixed(OWN, NAN, apart=True), peer))[:3] == ("rank", "worker-0", 1)
    assert diagnosed(mixed(OWN, NAN, apart=False), peer).verdict is Verdict.UNDECIDED
    assert len(diagnosed(mixed(OWN, OWN, apart=False), peer).root_causes) == 2


def off_by(log: Log, seconds: int) -> Log:
    """The stamps are another clock's than the processes' own."""
    log.lines = [f"2026-11-20T17:{45 + seconds // 60}{line[16:]}" for line in log.lines]
    return log


@pytest.mark.parametrize("off", [0, 300])
def test_stamps_of_another_clock_than_the_processes_own_give_no_order_over_workers(off: int) -> None:
    """Without steps that would compare the clocks; and within a worker both times are made to fit."""

    def told(index: int, at: float) -> Log:
        log = Log(index)
        for number in range(4):
            log.say(number, f"2026-11-20 17:45:0{number}.000 loaded part {number}")
        return log.ended(at, 0, closed=(1,))

    later = off_by(told(1, 9), off)
    assert later.facts().adrift is bool(off)
    found = diagnosed(told(0, 5), later)
    assert found.verdict is (Verdict.UNDECIDED if off else Verdict.RANK)


@pytest.mark.parametrize(("ahead", "jitter", "verdict"), [(300, 0.0, "rank"), (300, 0.1, "ranks"), (0, 0.1, "rank")])
def test_a_rough_correction_of_clocks_does_not_order_what_is_near(ahead: int, jitter: float, verdict: str) -> None:
    """Ranks that do not meet at each step print it at times of their own."""
    logs = [Log(0), Log(1, ahead=ahead)]
    for number, log in enumerate(logs):
        for step in range(6):
            log.say(step + number * jitter * (step % 3), f"step {step}/300 loss 1.5")
    logs[0].trace(7, 0, OWN).ended(9, 0, closed=(1,))
    logs[1].trace(7.6, 0, NAN).ended(9.5, 0, closed=(1,))
    assert diagnosed(*logs).verdict == verdict
