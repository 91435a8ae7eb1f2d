"""Rounds of one agent (formats of torch 1.10 to 2.13), and all sources about one process combined."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.evidence import RankLogFacts, WorkerEvidence
from atlctl.diagnosis.joining import Process, Rounds, WorkerRounds, collect_all, split_rounds
from atlctl.diagnosis.logfacts import LogFacts
from atlctl.diagnosis.torchelastic import NoteKind
from atlctl.jobs.model import State
from tests.unit.diagnosis.cause.logs import (
    NOBODY_CAME,
    OWN,
    STORE,
    WAITED,
    Log,
    closed_by,
    error_files,
    unread,
)
from tests.unit.diagnosis.samples import record

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
    """torch 1.10 to 2.1: without times."""
    return f"WARNING:torch.distributed.elastic.multiprocessing.api:{text.partition('] ')[2]}"


def joined(rank: int) -> str:
    return f"rank={rank} world=2 local_rank={rank}"


def rounds_of(lines: list[str]) -> tuple[Rounds, LogFacts]:
    facts = parse(lines)
    starts = [item.line_no for item in facts.identities if item.rank is not None]
    ends = [item.line_no for item in facts.summaries]
    agents = [note.line_no for note in facts.notes if note.kind is NoteKind.STARTED]
    return split_rounds(facts.notes, facts.moments, starts, agents, ends, facts.last_activity), facts


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
    """A restart that fails at its start: no process logged its rank in between."""
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
    """A planned restart closed 14 and 15; in one start, not more processes than the local rank can have lower pids."""
    found, _ = rounds_of([closing(14, 5), closing(15, 5), failed(24 + local, 5.5, local), *SUMMARY])
    assert (found.ends, found.count, found.final) == ((2, 3), 2, True)


@pytest.mark.parametrize(
    ("closed", "pid", "local"),
    [((14,), 15, 1), ((15, 16), 14, 0), ((14, 15, 17), 16, 2), ((15,), 99, 1)],
)
def test_pids_that_fit_their_local_ranks_are_one_start(closed, pid, local):
    """Other processes of the node may have taken the pids in between."""
    found, _ = rounds_of([*(closing(other, 5) for other in closed), failed(pid, 5.5, local), *SUMMARY])
    assert (found.ends, found.count) == ((len(closed) + 1,), 1)


def test_what_was_closed_in_a_round_before_says_nothing_of_the_next():
    found, _ = rounds_of([failed(14, 5), closing(15, 5), closing(24, 20), failed(25, 20.1, 1), *SUMMARY])
    assert found.ends == (1, 2, 4)


def collected(*workers: Log | WorkerEvidence) -> list[WorkerRounds]:
    return collect_all([item.evidence() if isinstance(item, Log) else item for item in workers])


def by_local(worker: WorkerRounds, number: int = 0) -> dict[int | None, Process]:
    return {process.local_rank: process for process in worker.of_round(number)}


def test_all_sources_of_one_process_meet() -> None:
    """Its rank, its traceback, its agent's signal and report, torchrun's summary and its error file."""
    files = error_files(1, {(0, 1): record(OWN, time=1795196701)})
    log = Log(1).start().trace(1, 1, OWN).trace(1.1, 0, closed_by(1)).ended(1.4, 1, closed=(0,))
    (worker,) = collected(log.evidence(error_files=files))
    found = by_local(worker)
    assert sorted(found, key=str) == [0, 1]
    culprit, victim = found[1], found[0]
    assert (culprit.rank, culprit.pid, culprit.exit_code, culprit.attempt) == (3, 7, 1, 0)
    assert culprit.note is not None
    assert culprit.entry is not None
    assert (culprit.record_path, culprit.closed) == (next(iter(files)), None)
    assert [trace.last.message for trace in culprit.traces] == [OWN]
    assert (victim.rank, victim.exit_code) == (2, -15)
    assert victim.closed is not None


def test_a_rank_that_only_spoke_gets_its_local_rank_from_its_worker() -> None:
    log = Log(1).start(named=(0,)).trace(1, 1, OWN).closing(1.2, 0).failed(1.3, 1)
    assert by_local(collected(log)[0])[1].rank == 3


def test_pids_that_an_agent_ended_are_placed_by_the_order_of_starts() -> None:
    """Processes start in the order of their local ranks, so their pids increase."""
    log = Log(0).start().closing(1, 1).failed(1.1, 0)
    found = by_local(collected(log)[0])
    assert (found[1].pid, found[1].closed is not None, found[1].rank) == (7, True, 1)


def test_pids_of_other_workers_help_where_a_worker_has_none() -> None:
    told = Log(0, world=6).start().closing(1, 1).failed(1.1, 0)
    mute = Log(1, world=6).start(named=(0, 1)).closing(1, 1)
    found = by_local(collected(told, mute)[1])
    assert found[1].closed is not None
    assert found[0].closed is None


def test_a_process_that_is_killed_by_its_agent() -> None:
    log = Log(0).start().closing(1, 1).forced(31, 1).failed(31.1, 0).summary(31.2, (0, 1, ""), (1, -9, ""))
    frozen = by_local(collected(log)[0])[1]
    assert frozen.forced is not None
    assert frozen.exit_code == -9


def test_rounds_part_processes() -> None:
    log = Log(0).start().trace(1, 0, OWN).closing(1.2, 1).failed(1.3, 0).restarted().start(5).trace(9, 1, "KeyError: 1")
    (worker,) = collected(log.ended(9.4, 1, closed=(0,)))
    assert worker.rounds.count == 2
    assert by_local(worker)[0].chain()[-1].message == OWN
    assert by_local(worker, 1)[1].chain()[-1].message == "KeyError: 1"
    assert by_local(worker, 1)[0].traces == []


def test_error_files_of_several_attempts_go_to_their_rounds() -> None:
    """Attempts count only this agent's failures, and a summary names only the last one."""
    files = error_files(0, {(0, 0): record(OWN), (1, 1): record("KeyError: 1")})
    log = Log(0).start().closing(1.2, 1).failed(1.3, 0).restarted().start(5).ended(9.4, 1, closed=(0,))
    (worker,) = collected(log.evidence(error_files=files))
    first, second = by_local(worker)[0].record, by_local(worker, 1)[1].record
    assert first is not None
    assert second is not None
    assert (first.message, second.message) == (OWN, "KeyError: 1")
    assert by_local(worker, 1)[1].attempt == 1


def test_a_log_of_its_own_of_one_rank() -> None:
    """`--redirects 3`: the console has only the agent's lines."""
    own = Log(0).trace(1, 1, OWN, prefix=False)
    log = Log(0).closing(1.2, 0).failed(1.3, 1)
    rank_log = RankLogFacts(0, 1, own.facts())
    (worker,) = collected(log.evidence(rank_logs=(rank_log,)))
    assert by_local(worker)[1].chain()[-1].message == OWN


def test_a_traceback_without_a_prefix_goes_to_the_one_that_failed_silently() -> None:
    log = Log(0).start().trace(1, 1, OWN, prefix=False).closing(1.2, 0).failed(1.3, 1)
    found = by_local(collected(log)[0])
    assert found[1].chain()[-1].message == OWN
    assert not found[1].guessed_words
    assert found[0].traces == []


def test_tracebacks_without_prefixes_of_several_are_guesses() -> None:
    log = Log(0).start().trace(1, 0, OWN, prefix=False).trace(1, 1, "KeyError: 'lr'", prefix=False)
    log.failed(1.3, 0).summary(1.4, (0, 1, ""), (1, 1, ""))
    found = by_local(collected(log)[0])
    assert found[0].guessed_words
    assert {process.chain()[-1].message for process in found.values()} == {OWN, "KeyError: 'lr'"}


def test_the_same_traceback_of_all_is_nobodys_guess() -> None:
    log = Log(0).start().trace(1, 0, "KeyError: 1", prefix=False).trace(1, 1, "KeyError: 2", prefix=False)
    log.failed(1.3, 0).summary(1.4, (0, 1, ""), (1, 1, ""))
    assert not any(process.guessed_words for process in by_local(collected(log)[0]).values())


def test_torchruns_own_traceback_is_no_processes() -> None:
    log = Log(0).start().ended(1.4, 0, closed=(1,))
    (worker,) = collected(log)
    assert all(not process.traces for process in worker.processes)
    assert worker.loose_traces == {}
    assert worker.ends == []


def test_ends_of_agents() -> None:
    signalled, timeout, store = (
        collected(log)[0].ends
        for log in (Log(0).start().signalled(1), Log(0).agent_died(1, NOBODY_CAME), Log(0).agent_died(1, OWN, STORE))
    )
    assert [end.signal for end in signalled] == ["SIGTERM"]
    assert [(end.signal, end.text) for end in timeout] == [(None, NOBODY_CAME)]
    assert [(end.text, len(end.chain)) for end in store] == [(STORE, 2)]


def test_an_agent_that_was_started_again_did_not_end() -> None:
    assert collected(Log(0).agent_died(1, STORE).start(9))[0].ends == []


def test_a_log_that_only_names_its_address() -> None:
    log = Log(0).say(0, "worker-0:6:6 [0] NCCL INFO Bootstrap : Using eth0:10.42.0.17<0>", "loading")
    assert collected(log)[0].addresses == frozenset({"10.42.0.17"})


def test_a_worker_without_a_log() -> None:
    (worker,) = collected(unread(0, state=State.FAILED))
    assert (worker.processes, worker.ends, worker.elastic, worker.rounds.count) == ([], [], False, 1)


def test_error_files_alone_make_processes() -> None:
    (worker,) = collected(unread(1, error_files=error_files(1, {(0, 1): record(OWN)})))
    (process,) = worker.processes
    assert (process.local_rank, process.rank, process.failed) == (1, None, True)
    assert process.chain()[-1].message == OWN


def test_statements_about_collectives_go_to_their_rank() -> None:
    log = Log(0).start().watchdog(600, 0).counters(600, 1, enqueued=80)
    found = by_local(collected(log)[0])
    assert {said.enqueued for said in found[1].said} == {80}
    assert len(found[0].said) == 2
    waited = Log(0).trace(6, 0, WAITED)
    assert collected(waited)[0].processes[0].said == []


def placed(*logs: Log) -> list[list[tuple[int | None, int | None]]]:
    """Local and global rank of each worker's processes."""
    return [[(item.local_rank, item.rank) for item in worker.processes] for worker in collected(*logs)]


def told(index: int) -> Log:
    """A worker with two completely known processes."""
    return Log(index).start().trace(1, 0, OWN).ended(1.3, 0, closed=(1,))


def test_the_only_process_that_an_agent_ended_is_local_rank_0() -> None:
    (worker,) = collected(Log(0).closing(1, 0))
    assert [(item.local_rank, item.pid) for item in worker.processes] == [(0, 6)]


def test_two_processes_without_names_stay_nameless() -> None:
    """It is unknown which pid the first of them has."""
    (worker,) = collected(Log(0).closing(1, 0, 1))
    assert [(item.local_rank, item.rank, item.pid) for item in worker.processes] == [(None, None, 6), (None, None, 7)]


@pytest.mark.parametrize("mute", [0, 1])
def test_the_worker_that_named_no_ranks_has_those_that_are_left_over(mute: int) -> None:
    logs = [told(0), told(1)]
    logs[mute] = Log(mute).closing(1.5, 0, 1)
    assert placed(*logs) == [[(0, 0), (1, 1)], [(0, 2), (1, 3)]]


def test_two_workers_without_ranks_stay_without() -> None:
    found = placed(told(0), Log(1).closing(1.5, 0, 1), Log(2).closing(1.5, 0, 1))
    assert found[1] == found[2] == [(0, None), (1, None)]


def test_ranks_are_not_handed_out_where_a_process_was_not_heard() -> None:
    """Of worker-0, only local rank 1 is known: the ranks 0 and 1 are left for one process."""
    assert placed(Log(0).closing(1.5, 1), told(1))[0] == [(1, None)]


@pytest.mark.parametrize("between", [unread(1), Log(1, world=6).say(0, "loading")])
def test_ranks_are_not_handed_out_beside_a_worker_that_was_not_heard(between: object) -> None:
    first = Log(0, world=6).start().trace(1, 0, OWN).ended(1.3, 0, closed=(1,))
    last = collected(first, between, Log(2, world=6).closing(1.5, 0, 1))[2]  # type: ignore[arg-type]
    assert [item.rank for item in last.processes] == [None, None]
