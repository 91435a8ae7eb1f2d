"""The readers of logs on anything: they never raise, take time in proportion, and lose nothing to the prefilter."""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.diagnosis import logfacts, tracebacks
from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.evidence import JobEvidence, WorkerEvidence
from atlctl.diagnosis.logfacts import LogFacts, LogReader, literals_of
from atlctl.diagnosis.result import Diagnosis
from atlctl.diagnosis.tracebacks import HEADER, read_embedded
from atlctl.recording import feed
from atlctl.recording.feed import Feed, Told, pump
from tests.support.pace import within
from tests.unit.diagnosis.samples import block, entry, matcher

DATA = Path(__file__).parents[1] / "corpus" / "data"
LOGS = sorted(DATA.glob("*/*.log"))
#: Facts that judgement rests on. Times and signs of activity are of the lines that are looked at, so they may differ.
TOLD = ("summaries", "notes", "traces", "collectives", "identities", "hits", "addresses", "events")


class One:
    """All lines go to one reader."""

    def __init__(self) -> None:
        self.own = LogReader(matcher())

    def reader(self, name: str, how: Told | None) -> LogReader:
        assert how is None, f"{name} was told from its lines"
        return self.own

    def mixed(self, name: str) -> None:
        raise AssertionError(f"{name} holds other workers' lines")


def scanned(data: bytes) -> LogFacts:
    """As saved logs are read: only lines with a literal, and what the reader asked for."""
    one = One()
    rest = io.BytesIO(data)
    own = Feed(one, "w", 0, literals_of(matcher()), data[:65_536], alone=True)
    pump(rest.read, own, rest.read(4_096), 4_096)
    return one.own.facts()


def read(lines: Iterable[bytes]) -> LogFacts:
    found = LogReader(matcher())
    for number, line in enumerate(lines, 1):
        found.feed(number, line)
    return found.facts()


def lines_of(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def told(facts: LogFacts) -> dict[str, object]:
    return {name: getattr(facts, name) for name in TOLD}


def judged(*logs: LogFacts) -> Diagnosis:
    workers = tuple(WorkerEvidence(f"w-{number}", number, log=facts) for number, facts in enumerate(logs))
    return diagnose(JobEvidence(workers, expected=len(workers) + 1), matcher())


def read_ends(patch: pytest.MonkeyPatch, size: int) -> None:
    """Let the scanner skip no line in ``size`` bytes at both ends of a log."""
    patch.setattr(feed, "_HEAD_EDGE", size)
    patch.setattr(feed, "_TAIL_EDGE", size)


def test_there_are_logs():
    assert len(LOGS) > 60


@pytest.mark.parametrize("folder", sorted({path.parent for path in LOGS}), ids=lambda folder: folder.name)
@pytest.mark.parametrize("edge", [0, 600])
def test_nothing_that_matters_is_lost_by_the_prefilter(folder, edge, monkeypatch):
    read_ends(monkeypatch, edge)
    if not edge:
        # At the top of a log frames without a header count, so that no line of it is left out.
        monkeypatch.setattr(logfacts, "CUT_TOP", 0)
        monkeypatch.setattr(tracebacks, "CUT_TOP", 0)
    for path in folder.glob("*.log"):
        data = path.read_bytes()
        found = scanned(data)
        with monkeypatch.context() as patch:
            patch.setattr(logfacts, "sieve_for", lambda _: lambda _: True)  # the reader takes every line
            patch.setattr(Feed, "_plain", lambda *_: False)  # and gets every one
            every = scanned(data)
        assert told(found) == told(every), path
        assert found.last_line <= every.last_line == len(lines_of(data)), path


def test_the_moments_of_what_is_kept_are_the_same(monkeypatch):
    read_ends(monkeypatch, 0)
    for path in LOGS[::5]:
        data = path.read_bytes()
        every = read(lines_of(data))
        kept = {item.line_no for item in every.notes} & every.moments.keys()
        found = scanned(data).moments
        assert {number: found[number] for number in kept} == {number: every.moments[number] for number in kept}, path


def sampled(path: Path) -> list[bytes]:
    return lines_of(path.read_bytes())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LOGS), st.sampled_from(LOGS), st.randoms(use_true_random=False), st.floats(0, 1), st.floats(0, 1)
)
def test_cut_torn_and_mixed_logs_never_raise(first, second, chance, start, end):
    data = first.read_bytes()
    low, high = sorted((int(start * len(data)), int(end * len(data))))
    cut = read(lines_of(data[low:high]))
    mixed = [*sampled(first), *sampled(second)]
    chance.shuffle(mixed)
    torn = [line[chance.randrange(len(line) + 1) :] + chance.choice(mixed)[:40] for line in mixed[:200]]
    shuffled, broken = read(mixed), read(torn)
    assert isinstance(judged(cut, shuffled, broken), Diagnosis)
    for facts, lines in ((shuffled, mixed), (broken, torn)):
        kinds = (facts.notes, facts.traces, facts.collectives, facts.identities, facts.hits)
        assert all(1 <= item.line_no <= len(lines) for found in kinds for item in found)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LOGS), st.randoms(use_true_random=False))
def test_flipped_bytes_never_raise(path, chance):
    data = bytearray(path.read_bytes()[:20_000])
    for _ in range(len(data) // 50):
        data[chance.randrange(len(data))] = chance.randrange(256)
    facts = read(lines_of(bytes(data)))
    assert isinstance(judged(facts), Diagnosis)
    assert told(scanned(bytes(data)))["summaries"] == facts.summaries


WORDS = [
    b"[rank3]: ", b"[rank99999999]: ", b"[default0]:", b"[default rank=1 local=1] ", b"2026-11-20T17:45:05.5Z ",
    b"2026-99-20T17:45:05.5Z ", b"Traceback (most recent call last):", b"Original ", b'  File "/a.py", line 1, in f',
    b"ValueError: x", b"During handling of the above exception, another exception occurred:", b"Exception in thread T:",
    b"[E1120 17:45:05.123456789 P.cpp:1] ", b"[E9999 99:99:99.1 x.cpp:1] ", b"[PG ID 1 PG GUID 2(x) Rank 3]",
    b"Watchdog caught collective operation timeout: WorkNCCL(", b"SeqNum=9999999999999999999999, OpType=X", b"(ms)=1)",
    b"last enqueued work: -1, last completed work: 99999999999999999999", b"Ranks , , failed to pass monitoredBarrier",
    b"[1, 2] finished collective #2, but didn't join collective", b"Detected mismatch between collectives on ranks. ",
    b"Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=X", b"rank=1 local_rank=2 world=3",
    b"global_ranks=[1, 2]", b"NCCL INFO rank 1 nranks 2 cudaDev 3", b"Bootstrap : Using e:1.2.3.4<0>", b"step 3/9",
    b"failed (exitcode: -999) local_rank: -1 (pid: 7) of binary", b"Received 99999 death signal", b"\x1b[31m",
    b"\x1b]0;", b"\xff\xfe", b"\x00", b"\r", "训练".encode("gbk"), "\ud800".encode("utf-8",
    "surrogatepass"), "\u2028".encode(),
    b'"name": "torchelastic.worker.status.FAILED" "global_rank": 99999999',
    b"ChildFailedError:", b"Root Cause:", b"[0]:",
    *(part.encode() for part in (
        "╭──── ", " Traceback (most recent call last) ", "────╮", "+----", "│ ", " │", "| ", "❱ 3 │", "╰───╯",
        "/a.py:1 in f", "/a.py:999999999999 in ", "{" * 900,
        '{"exc_info": "Traceback (most recent call last):', "\\nValueError: x", '", "rank": ', "3}", "-1e999}",
    )),
]  # fmt: skip
hostile = st.lists(st.sampled_from(WORDS) | st.binary(max_size=30), max_size=5).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(hostile, max_size=60))
def test_hostile_lines_never_raise_and_are_answered(lines):
    facts = read(lines)
    assert isinstance(judged(facts, replace(facts)), Diagnosis)
    for item in (*facts.traces, *facts.hits):
        str(item).encode()


KEYS = ("exc_info", "rank", "global_rank", "message", "error")
TRACEBACKS = (HEADER, f"{HEADER}\nValueError: x", f"x {HEADER}\n\ud800: y", f"{HEADER}\n{HEADER}")
BOXED = (
    "╭──── Traceback (most recent call last) ────╮", "+---- Traceback (most recent call last) ----+",
    "│ /a.py:1 in f │", "| /a.py:1 in f |", "│ ❱ 1 │   f() │", "│ ╭─ locals ─╮ │", "╰────╯", "+----+", "ValueError: x",
    "The above exception was the direct cause of the following exception:", "[rank1]: ", "[rank1]: ValueError: y",
    "folded", "", HEADER,
)  # fmt: skip

PLAIN = [b"plain words %d" % number for number in range(25)]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(hostile | st.just(b"loss 1"), max_size=60), st.sampled_from(LOGS), st.integers(0, 200), st.integers(1, 60)
)
def test_nothing_is_lost_among_hostile_lines(lines, path, start, count):
    mixed = [line.translate(None, b"\n\0") for line in [*PLAIN, *lines, *sampled(path)[start : start + count], *lines]]
    with pytest.MonkeyPatch.context() as patch:
        data = b"\n".join(mixed) + b"\n"
        read_ends(patch, len(b"\n".join(PLAIN)))
        found = scanned(data)
        read_ends(patch, len(data))
        patch.setattr(logfacts, "sieve_for", lambda _: lambda _: True)
        assert told(found) == told(scanned(data))


def open_tracebacks(count: int) -> list[bytes]:
    return [f"[rank{n}]: Traceback (most recent call last):".encode() for n in range(count)]


def endless_message(count: int) -> list[bytes]:
    return [b"Traceback (most recent call last):", b"ValueError: x", *([b"    more and more"] * count)]


def endless_summary(count: int) -> list[bytes]:
    return [*(row.encode() for row in block(entry())[:-1]), *([b"  a row of the message"] * count)]


def many_summaries(count: int) -> list[bytes]:
    return [row.encode() for row in block(entry())] * (count // 16)


def chains(count: int) -> list[bytes]:
    link = [b"Traceback (most recent call last):", b"ValueError: x", b"", b"During handling of the above exception, "]
    link[-1] += b"another exception occurred:"
    return link * (count // 4)


def random_lines(count: int) -> list[bytes]:
    chance = random.Random(5)
    return [b"[rank" + chance.randbytes(60).replace(b"\n", b"") for _ in range(count)]


def counters(count: int) -> list[bytes]:
    line = "[rank{}]:[E1120 17:45:05.1 P.cpp:1] [Rank {}] last enqueued work: 3, last completed work: 2"
    return [line.format(n, n).encode() for n in range(count)]


def colours(count: int) -> list[bytes]:
    return [b"[rank0]: " + b"\x1b[31m" * 30] * count


def bars(count: int) -> list[bytes]:
    return [b" 10%|#  | 1/9 [00:01<00:02, 3it/s]\r" * 20 + b"[rank0]: x"] * count


def boxes(count: int) -> list[bytes]:
    frames = ["│ /a.py:1 in f │", "│ ❱ 1 │   f() │"] * 3
    rows = ["╭─── Traceback (most recent call last) ───╮", *frames, "╰───╯", "ValueError: x", "folded", ""]
    return [row.encode() for row in rows] * (count // len(rows))


def endless_box(count: int) -> list[bytes]:
    return ["╭─── Traceback (most recent call last) ───╮".encode(), *["│ /a.py:1 in f │".encode()] * count]


def json_tracebacks(count: int) -> list[bytes]:
    return [json.dumps({"exc_info": HEADER + "\n  x\nValueError: x", "rank": n}).encode() for n in range(count)]


MAKERS = [
    open_tracebacks,
    endless_message,
    endless_summary,
    many_summaries,
    chains,
    random_lines,
    counters,
    colours,
    bars,
    boxes,
    endless_box,
    json_tracebacks,
]


def cpu(lines: list[bytes]) -> float:
    """The quickest of three: a collection of garbage counts, too."""
    times = []
    for _ in range(3):
        start = time.process_time()
        read(lines)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("make", MAKERS)
def test_time_grows_in_proportion(make: Callable[[int], list[bytes]]) -> None:
    """Four times the lines; ten times the time would be the sign of a square."""
    few, many = cpu(make(1_500)), cpu(make(6_000))
    assert many < 10 * few + 0.05
    assert within(many, 3.0)


@pytest.mark.parametrize(
    "piece", [b"x", b"[rank0]: ", b"\x1b[31m", b"\r10%", b"Error: ", b"\xff", b"\xb7\xd6", b"\x00"]
)
def test_megabyte_lines(piece):
    line = piece * (4_000_000 // len(piece))
    start = time.process_time()
    facts = read([line] * 3)
    assert within(time.process_time() - start, 1.0)
    assert len(facts.last_text) <= 1_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TRACEBACKS) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(json_values, st.text(max_size=10), st.integers(0, 400))
def test_json_lines_never_raise(value, behind, cut):
    """Whole, with something behind them, and cut off."""
    line = json.dumps(value)
    for text in (line, line + behind, line[:-cut]):
        found = read_embedded(text)
        assert found is None or all(rows[0].startswith(HEADER) for rows in found.tracebacks)
        for rows in found.tracebacks if found else ():
            "".join(rows).encode()


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_text_that_looks_like_json_never_raises(text):
    for line in (text, '{"a": "' + HEADER + text, '{"a": "' + HEADER + '", ' + text + "}"):
        found = read_embedded(line)
        assert found is None or found.tracebacks


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(BOXED) | st.text(max_size=30), max_size=80))
def test_boxes_of_anything_never_raise(lines):
    facts = read(
        [f"loss {number}".encode() for number in range(25)] + [line.encode(errors="replace") for line in lines]
    )
    assert isinstance(judged(facts), Diagnosis)
    assert all(trace.line_no > 25 for trace in facts.traces)
