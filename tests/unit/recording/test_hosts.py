"""Workers in one log, separated by the host in torchelastic's summaries."""

from __future__ import annotations

from atlctl.diagnosis.logfacts import LogFacts
from atlctl.recording.hosts import by_host, merged
from tests.unit.diagnosis.cause.logs import OWN, Log, closed_by
from tests.unit.diagnosis.samples import parse

BOTH = ("worker-0", "worker-1")


def own(index: int) -> Log:
    """A worker whose processes all end with an error and an entry in the summary."""
    log = Log(index, stamped=False).start().trace(1, 0, OWN).trace(1.1, 1, closed_by(index))
    return log.closing(1.3, 1).failed(1.4, 0).summary(1.5, (0, 1, OWN), (1, 1, closed_by(index)))


def read(*logs: Log) -> LogFacts:
    return parse([line for log in logs for line in log.lines])


def test_summaries_notes_and_words_go_to_their_host() -> None:
    parts = by_host(read(own(0), own(1)), "input")
    assert [name for name in parts if name != "input"] == list(BOTH)
    for index, name in enumerate(BOTH):
        assert [len(part) for part in (parts[name].summaries, parts[name].notes, parts[name].traces)] == [1, 2, 2]
        assert {trace.origin.rank for trace in parts[name].traces} == {2 * index, 2 * index + 1}


def test_interleaved_words_go_to_the_summary_that_holds_their_rank() -> None:
    first, second = own(0), own(1)
    mixed = [line for pair in zip(first.lines[:40], second.lines[:40], strict=True) for line in pair]
    parts = by_host(parse([*mixed, *first.lines[40:], *second.lines[40:]]), "input")
    for index, name in enumerate(BOTH):
        assert {trace.origin.rank for trace in parts[name].traces} <= {2 * index, 2 * index + 1}


def test_one_host_has_all_of_it() -> None:
    found = read(own(0))
    assert by_host(found, "input") == {"worker-0": found}


def test_without_summaries_all_stays_where_it_was() -> None:
    found = read(Log(0).start().trace(1, 0, OWN))
    assert by_host(found, "input") == {"input": found}


def test_the_name_of_a_pod_is_cut_from_its_domain() -> None:
    log = own(0)
    log.lines = [line.replace(": worker-0", ": worker-0.train.ml.svc.cluster.local") for line in log.lines]
    assert list(by_host(read(log), "input")) == ["worker-0"]


def test_a_signal_to_an_agent_is_none_of_theirs() -> None:
    """An agent killed by a signal prints no summary."""
    parts = by_host(read(own(0), own(1), Log(2, stamped=False).signalled(3)), "input")
    assert {note.signal for note in parts["input"].notes} >= {"SIGTERM"}
    assert all(note.kind.value != "signalled" for name in BOTH for note in parts[name].notes)


def test_two_logs_of_one_worker_are_one() -> None:
    lines = own(0).lines
    early, late = parse(lines[:30]), parse(lines)
    late.first, early.last_activity = None, 99
    found = merged(late, early)
    assert merged(early, late) == found
    assert (found.last_line, found.last_activity) == (len(lines), 99)
    assert found.first == early.first
    assert [trace.line_no for trace in found.traces] == sorted(trace.line_no for trace in (*early.traces, *late.traces))
