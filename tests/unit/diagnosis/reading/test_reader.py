"""A whole log, line by line."""

import pytest

from atlctl.diagnosis.agentnotes import NoteKind
from atlctl.diagnosis.reading import reader
from atlctl.diagnosis.reading.reader import LogFacts, LogReader, literals_of
from atlctl.diagnosis.signatures.match import Matcher
from atlctl.diagnosis.signatures.model import Role
from tests.unit.diagnosis.samples import STACK, block, entry, matcher, parse

OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def test_an_empty_log():
    facts = parse([])
    assert facts == LogFacts()


def test_the_last_line_is_always_kept():
    lines = [*(f"loss {n}" for n in range(200)), "2026-11-20T17:45:05.5Z loading \x1b[31mshard\x1b[0m 7"]
    facts = parse(lines)
    assert (facts.last_line, facts.last_text) == (201, "loading shard 7")
    assert facts.last is not None
    assert facts.last.absolute
    assert (facts.hits, facts.traces, facts.notes) == ([], [], [])


def test_a_stamp_that_comes_beside_the_line():
    told = LogReader(matcher())
    stamp = parse(["2026-11-20T17:45:05.5Z x"]).last
    told.feed(1, b"Sending process 15 closing signal SIGTERM", stamp)
    assert told.facts().moments[1] == stamp
    assert told.facts().last == stamp


def test_it_asks_for_the_lines_it_needs():
    found = LogReader(matcher())
    for number in range(1, 60):
        assert not found.feed(number, b"loss 0.5")
    wanted = [found.feed(60 + number, line.encode()) for number, line in enumerate(block(entry(text=STACK)))]
    assert all(wanted[:-1])
    assert found.feed(100, b"[rank3]: Traceback (most recent call last):")
    assert found.feed(101, b"")


def test_signs_that_the_program_goes_on():
    before = [f"loss {n}" for n in range(50)]
    for line in (
        "2026-11-20 17:45:05,123 INFO train: saved",
        " 30%|###  | 3/10 [00:01<00:02, 3it/s]",
        "step 12 loss 2",
        "Epoch: 3 done",
        "iteration     300/ 1000 | loss 2",
    ):
        assert parse([*before, line, "loss x"]).last_activity == 51, line
    assert parse([*before, "n1:10:20 [1] NCCL INFO Channel 0", "waiting"]).last_activity == 0


def test_notes_traces_and_hits_of_one_failure():
    lines = [
        "2026-11-20T17:45:04.5Z step 3/9",
        "2026-11-20T17:45:05.1Z [rank1]: Traceback (most recent call last):",
        '2026-11-20T17:45:05.1Z [rank1]:   File "/work/train.py", line 3, in main',
        f"2026-11-20T17:45:05.1Z [rank1]: {OUT}",
        "2026-11-20T17:45:05.2Z E1120 17:45:05.200000 1 x.py:1] failed (exitcode: 1) local_rank: 1 (pid: 14) of binary",
        f"2026-11-20T17:45:05.3Z {XID}",
        *(f"2026-11-20T17:45:05.3Z {line}" for line in block(entry(rank=1, local=1))),
    ]
    facts = parse(lines)
    assert [item.last.message for item in facts.traces if not item.agent][:1] == [OUT]
    assert [item.kind for item in facts.notes] == [NoteKind.FAILED]
    assert [item.line_no for item in facts.hits] == [6]
    assert facts.hits[0].match.signature.hardware
    assert [item.entries[0].rank for item in facts.summaries] == [1]
    assert facts.moments[5].absolute
    assert facts.first is not None
    assert facts.last is not None
    assert facts.last.seconds - facts.first.seconds == pytest.approx(0.8)


def test_noise_is_no_hit():
    noise = [item for item in matcher()._signatures if item.role is Role.NOISE]
    assert noise
    line = (
        "[W1120 17:44:40.665371319 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    )
    assert parse([line]).hits == []


def test_torchelastics_events_by_rank():
    event = '{"name": "torchelastic.worker.status.FAILED", "metadata": {"global_rank": 3, "x": 1}}'
    assert parse(["x", event]).events == {3: 2}
    assert (
        parse([event.replace("3,", '"x",'), event.replace("3,", "null,"), event.replace('"global_rank": ', "")]).events
        == {}
    )


def test_the_zone_of_a_log_with_both_times():
    assert parse(["2026-11-20T17:45:05.5Z 2026-11-21 01:45:05,499 INFO x"]).zone == 8 * 3600
    assert parse(["2026-11-20T17:45:05.5Z INFO x", "2026-11-20 17:45:05,499 INFO x"]).zone is None


def test_marks_are_of_lines_in_step():
    facts = parse([f"2026-11-20T17:45:0{n}.5Z [rank0]: step {n}/9 loss {n}" for n in range(5)])
    assert list(facts.marks) == [f"step {n}/9" for n in range(5)]
    again = parse(["2026-11-20T17:45:01.5Z step 1/9", "2026-11-20T17:45:09.5Z step 1/9"])
    assert again.marks["step 1/9"] == parse(["2026-11-20T17:45:01.5Z step 1/9"]).marks["step 1/9"]


def test_a_carriage_return_and_colours():
    facts = parse([" 10%|#\r 20%|##\r\x1b[31mSending process 15 closing signal SIGTERM\x1b[0m\r"])
    assert [item.pid for item in facts.notes] == [15]


def test_bounds_hold():
    counters = "[Rank 1] last enqueued work: 3, last completed work: 2"
    many = max(reader.MAX_COLLECTIVES, reader.MAX_IDENTITIES, reader.MAX_NOTES) + 20
    found = LogReader(matcher())
    for number in range(1, many):
        for line in (
            counters,
            "rank=1 local_rank=1",
            "Sending process 1 closing signal SIGTERM",
            f"Bootstrap : Using e:10.0.{number % 250}.{number % 199}<0>",
            f"2026-11-20 17:45:05,123 INFO step {number}",
        ):
            found.feed(number, line.encode())
    facts = found.facts()
    assert len(facts.collectives) == reader.MAX_COLLECTIVES
    assert len(facts.identities) == reader.MAX_IDENTITIES
    assert len(facts.notes) == reader.MAX_NOTES
    assert len(facts.addresses) == reader.MAX_ADDRESSES
    assert len(facts.marks) == reader.MAX_MARKS


def test_hits_keep_the_first_and_the_last():
    total = reader.MAX_FIRST_HITS + reader.MAX_LAST_HITS + 100
    kept = [item.line_no for item in parse([XID] * total).hits]
    assert len(kept) == reader.MAX_FIRST_HITS + reader.MAX_LAST_HITS
    assert kept[: reader.MAX_FIRST_HITS] == list(range(1, reader.MAX_FIRST_HITS + 1))
    assert kept[-1] == total


def test_texts_are_bounded():
    facts = parse([XID + "x" * 100_000, "Watchdog caught collective " + "x" * 100_000, "y" * 100_000])
    texts = [*(item.text for item in facts.hits), *(item.text for item in facts.collectives)]
    assert max(map(len, texts)) <= 1_000
    assert len(facts.last_text) <= 1_000


@pytest.mark.parametrize(
    "line",
    [
        "failed (exitcode: 1) local_rank: 1 (pid: 14) of binary",
        "Sending process 15 closing signal SIGTERM",
        "Unable to shutdown process 12 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
        "Received 15 death signal, shutting down workers",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "[default] Worker group FAILED. 2/3 attempts left; will restart worker group",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Traceback (most recent call last):",
        "╭─────── Traceback (most recent call last) ────────╮",
        '{"message": "failed", "exc_info": "Traceback (most recent call last):\\nKeyError: 1"}',
        "Exception in thread Thread-3 (fill):",
        "Exception ignored in: <function Pool.__del__ at 0x7f>",
        '{"name": "torchelastic.worker.status.FAILED", "metadata": {"global_rank": 3}}',
    ],
)
def test_each_line_that_is_read_holds_a_literal_of_the_readers_own(line):
    assert any(literal in line.encode() for literal in literals_of(Matcher([])))


def test_literals_serve_the_scanner():
    found = literals_of(matcher())
    assert all(literal.isascii() and b"\n" not in literal for literal in found)
    assert found is literals_of(matcher())
