"""What every source says about one process, put together."""

from __future__ import annotations

import pytest

from atlctl.diagnosis.evidence import RankLog, WorkerEvidence
from atlctl.diagnosis.joining import collect_all
from atlctl.diagnosis.processes import Process, WorkerRounds
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


def collected(*workers: Log | WorkerEvidence) -> list[WorkerRounds]:
    return collect_all([item.evidence() if isinstance(item, Log) else item for item in workers])


def by_local(worker: WorkerRounds, number: int = 0) -> dict[int | None, Process]:
    return {process.local_rank: process for process in worker.of_round(number)}


def test_all_sources_of_one_process_meet() -> None:
    """Who it is, its traceback, its agent's signal and report, torchrun's summary and its error file."""
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
    """Processes start in the order of their local ranks, so pids follow each other."""
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
    """Attempts count this agent's own failures, and only the last one is named by a summary."""
    files = error_files(0, {(0, 0): record(OWN), (1, 1): record("KeyError: 1")})
    log = Log(0).start().closing(1.2, 1).failed(1.3, 0).restarted().start(5).ended(9.4, 1, closed=(0,))
    (worker,) = collected(log.evidence(error_files=files))
    first, second = by_local(worker)[0].record, by_local(worker, 1)[1].record
    assert first is not None
    assert second is not None
    assert (first.message, second.message) == (OWN, "KeyError: 1")
    assert by_local(worker, 1)[1].attempt == 1


def test_a_log_of_its_own_of_one_rank() -> None:
    """`--redirects 3`: the console has the agent's lines alone."""
    own = Log(0).trace(1, 1, OWN, prefix=False)
    log = Log(0).closing(1.2, 0).failed(1.3, 1)
    rank_log = RankLog(0, 1, "/logs/attempt_0/1/stderr.log", own.facts())
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
    """A worker whose two processes are wholly known."""
    return Log(index).start().trace(1, 0, OWN).ended(1.3, 0, closed=(1,))


def test_the_only_process_that_an_agent_ended_is_local_rank_0() -> None:
    (worker,) = collected(Log(0).closing(1, 0))
    assert [(item.local_rank, item.pid) for item in worker.processes] == [(0, 6)]


def test_two_processes_without_names_stay_nameless() -> None:
    """Nothing tells which pid the first of them has."""
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
    """Of worker-0 only local rank 1 is known: ranks 0 and 1 are left over for one process."""
    assert placed(Log(0).closing(1.5, 1), told(1))[0] == [(1, None)]


@pytest.mark.parametrize("between", [unread(1), Log(1, world=6).say(0, "loading")])
def test_ranks_are_not_handed_out_beside_a_worker_that_was_not_heard(between: object) -> None:
    first = Log(0, world=6).start().trace(1, 0, OWN).ended(1.3, 0, closed=(1,))
    last = collected(first, between, Log(2, world=6).closing(1.5, 0, 1))[2]  # type: ignore[arg-type]
    assert [item.rank for item in last.processes] == [None, None]
