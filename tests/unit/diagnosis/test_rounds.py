"""Rounds of one agent, from what it prints in the formats of torch 1.10 to 2.13."""

import pytest

from atlctl.diagnosis.reading.reader import LogFacts
from atlctl.diagnosis.rounds import Rounds, split_rounds

from .samples import block, entry, parse


def closing(pid: int, second: float) -> str:
    return f"{stamp('W', second)} Sending process {pid} closing signal SIGTERM"


def forced(pid: int, second: float) -> str:
    how = "via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL"
    return f"{stamp('W', second)} Unable to shutdown process {pid} {how}"


def failed(pid: int, second: float, local: int = 0) -> str:
    return f"{stamp('E', second)} failed (exitcode: 1) local_rank: {local} (pid: {pid}) of binary: python"


def stamp(level: str, second: float) -> str:
    minutes, rest = divmod(second, 60)
    return f"{level}1120 17:{int(minutes):02d}:{rest:09.6f} 1 torch/distributed/elastic/api.py:1002]"


def old(text: str) -> str:
    """torch 1.10 to 2.1: no time."""
    return f"WARNING:torch.distributed.elastic.multiprocessing.api:{text.partition('] ')[2]}"


def joined(rank: int) -> str:
    return f"rank={rank} world=2 local_rank={rank}"


def rounds_of(lines: list[str]) -> tuple[Rounds, LogFacts]:
    facts = parse(lines)
    starts = [item.line_no for item in facts.identities if item.rank is not None]
    ends = [item.line_no for item in facts.summaries]
    return split_rounds(facts.notes, facts.moments, starts, ends, facts.last_activity), facts


SUMMARY = block(entry())


def test_a_log_without_an_agents_note_is_one_open_round():
    found, _ = rounds_of(["step 1", "[rank0]: Traceback (most recent call last):", "[rank0]: ValueError: x"])
    assert (found.ends, found.final, found.count) == ((), False, 1)
    assert found.of(1) == found.of(10**6) == found.ended_by(3) == 0


def test_a_failing_round_ends_with_its_report():
    lines = [joined(0), closing(15, 5), failed(14, 5.1), *SUMMARY]
    found, facts = rounds_of(lines)
    assert (found.ends, found.final, found.count) == ((3,), True, 1)
    assert found.of(1) == found.of(len(lines)) == found.ended_by(facts.summaries[0].line_no) == 0


def test_the_same_without_times():
    lines = [joined(0), old(closing(15, 0)), old(closing(16, 0)), *["step"] * 30, old(failed(14, 0)), *SUMMARY]
    assert rounds_of(lines)[0].count == 1


def test_processes_that_had_to_be_killed_after_30_seconds_are_one_round():
    lines = [
        joined(0),
        closing(15, 5),
        closing(16, 5),
        forced(15, 35.01),
        forced(16, 35.02),
        failed(14, 35.2),
        *SUMMARY,
    ]
    found, _ = rounds_of(lines)
    assert (found.count, found.final) == (1, True)


def test_a_restart_at_warning_level():
    lines = [joined(0), closing(15, 5), failed(14, 5.1), joined(0), closing(25, 60), failed(24, 60.1), *SUMMARY]
    found, facts = rounds_of(lines)
    assert (found.count, found.final) == (2, True)
    assert [found.of(line) for line in (1, 3, 4, 6, len(lines))] == [0, 0, 1, 1, 1]
    assert found.ended_by(facts.summaries[0].line_no) == 1


def test_two_rounds_that_failed_at_once_are_two():
    """A restart that dies at its start: no process said who it is in between."""
    lines = [failed(14, 5.1), failed(24, 5.4), *SUMMARY]
    assert rounds_of(lines)[0].count == 2


def test_a_restart_at_info_level():
    told = f"{stamp('I', 5.2)} [default] Worker group FAILED. 2/3 attempts left; will restart worker group"
    lines = [joined(0), closing(15, 5), failed(14, 5.1), told, joined(0), "step 9"]
    found, _ = rounds_of(lines)
    assert (found.count, found.final) == (2, False)
    assert found.of(len(lines)) == 1


def test_a_planned_restart_only_closes():
    lines = [joined(0), closing(14, 5), closing(15, 5.001), joined(0), "step 3"]
    found, _ = rounds_of(lines)
    assert (found.ends, found.final, found.count) == ((3,), False, 2)


def test_two_planned_restarts_are_told_apart_by_time_alone():
    found, _ = rounds_of([closing(14, 5), closing(15, 5), closing(24, 20), closing(25, 20)])
    assert found.ends == (2, 4)


def test_a_start_between_two_notes_tells_them_apart():
    found, _ = rounds_of([closing(14, 5), joined(0), closing(24, 6)])
    assert found.count == 3


def test_a_round_that_failed_is_closed_for_what_follows():
    found, _ = rounds_of([failed(14, 5), closing(25, 5.5), failed(24, 5.6), *SUMMARY])
    assert (found.ends, found.count) == ((1, 3), 2)


def test_a_signal_to_the_agent_ends_it():
    death = f"{stamp('W', 5)} Received 15 death signal, shutting down workers"
    lines = [joined(0), death, closing(14, 5), closing(15, 5), "[rank0]: Traceback (most recent call last):"]
    found, _ = rounds_of([*lines, "[rank0]: ValueError: on the way out", *SUMMARY])
    assert (found.count, found.final) == (1, True)
    assert {found.of(line) for line in range(1, 40)} == {0}
    assert found.ended_by(30) == 0


def test_a_signal_after_a_restart():
    signal = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15"
    found, _ = rounds_of([joined(0), failed(14, 5), joined(0), "step", signal, *SUMMARY])
    assert (found.count, found.final) == (2, True)
    assert [found.of(line) for line in (1, 2, 3, 9)] == [0, 0, 1, 1]
    assert found.ended_by(9) == 1


def test_a_summary_in_front_of_a_new_start_does_not_end_the_agent():
    found, _ = rounds_of([failed(14, 5), *SUMMARY, joined(0), "step 1"])
    assert (found.count, found.final) == (2, False)


AGENT = f"{stamp('W', 6)} Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"


def test_a_container_that_was_started_again_behind_a_signal():
    death = f"{stamp('W', 5)} Received 15 death signal, shutting down workers"
    found, _ = rounds_of([joined(0), death, closing(14, 5), AGENT, joined(0), failed(14, 8), *SUMMARY])
    assert (found.ends, found.count, found.final) == ((3, 6), 2, True)


def test_an_agents_start_tells_ends_apart():
    found, _ = rounds_of([failed(14, 5), *SUMMARY, AGENT, failed(14, 7), *SUMMARY])
    assert found.count == 2


@pytest.mark.parametrize("local", [0, 1])
def test_a_process_of_a_later_start_is_of_the_next_round(local):
    """A planned restart closed 14 and 15; of one start, no more can have lower pids than the local rank says."""
    found, _ = rounds_of([closing(14, 5), closing(15, 5), failed(24 + local, 5.5, local), *SUMMARY])
    assert (found.ends, found.count, found.final) == ((2, 3), 2, True)


@pytest.mark.parametrize(
    ("closed", "pid", "local"),
    [((14,), 15, 1), ((15, 16), 14, 0), ((14, 15, 17), 16, 2), ((15,), 99, 1)],
)
def test_pids_that_fit_their_local_ranks_are_one_start(closed, pid, local):
    """Others of the node may have taken the numbers in between."""
    found, _ = rounds_of([*(closing(other, 5) for other in closed), failed(pid, 5.5, local), *SUMMARY])
    assert (found.ends, found.count) == ((len(closed) + 1,), 1)


def test_what_was_closed_in_a_round_before_says_nothing_of_the_next():
    found, _ = rounds_of([failed(14, 5), closing(15, 5), closing(24, 20), failed(25, 20.1, 1), *SUMMARY])
    assert found.ends == (1, 2, 4)
