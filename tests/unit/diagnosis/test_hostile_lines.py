"""Hostile lines: every pattern of the readers is fast enough, and memory is bounded."""

from __future__ import annotations

import importlib
import inspect
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from atlctl.diagnosis import logfacts, tracebacks
from atlctl.diagnosis.logfacts import LogReader
from atlctl.diagnosis.logline import LINE_LIMIT, Moment, Origin, decode
from atlctl.diagnosis.torchelastic import MAX_ALL_ENTRIES
from atlctl.diagnosis.tracebacks import Traces
from tests.support.pace import within
from tests.unit.diagnosis.samples import matcher

#: CPU seconds for one pattern on one line of 16 KiB. The slowest took 13 ms when this was written.
BUDGET = 0.05
#: For all processing of one such line by a reader.
WHOLE_BUDGET = 0.3

MODULES = ("logline", "consequence", "tracebacks", "torchelastic", "logfacts")
#: Patterns that are only matched at the start of a line, used under another name.
MATCHED = ("_LEARN", "_SECTION_ANYWHERE")


def fill(text: str) -> str:
    return (text * (LINE_LIMIT // len(text) + 1))[:LINE_LIMIT]


#: Prefixes and repeated parts for the readers' patterns.
PIECES = [
    "a", " ", "\t", "1", "_", ".", "a.", "A.b", "[", "[[1", "(", "0.", "1, ", ": ", "a=b,", "中", "\u2028", "\x00",
    "[rank", "[rank0]: ", "[a0", "[default0]:", "[a rank=1 ", "[a rank=1 local", "stderr: ", "(a pid=1", "1.1s\t1\t",
    'File "', '  File "a", line 1, in ', "Traceback (most recent call last):", "Error: ", "a.Error", "A.A.Error",
    "[Rank 1]", "[PG ", "[PG ID 0 PG GUID 0(default_pg) ", "WorkNCCL(", "WorkNCCL((ms)=1", "SeqNum=1, ", "Ranks 1, ",
    "last enqueued work: 1, ", "[1, 1", "[1] finished ", "[1] joined ", "following async exception", "gloo/",
    "  what(): ",
    "Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=A", "Detected mismatch",
    "world_size=", "rank 1 of ", "local_rank=1 ", "local rank ", "NCCL INFO ", "NCCL INFO rank 1 nranks 1 ",
    "global_ranks=[1, ",
    "Bootstrap : Using a:", ", local=[a", "gloo/a] Read error ", "\x1b[", "\x1b]a", "Connection closed by peer [",
    "Connection closed by remote peer a", "Timed out waiting 1", "wait timeout after 1", "2026-11-20 17:45:05", "20",
    "W1120 17:45:05.757000 ", "[W1120 17:44:40.665371319 ", "step ====", "epoch [[[[", "1/1 [", "iteration 1/",
    "failed (exitcode: 1", "Unable to shutdown process 1 via ", "Sending process 1", "Received ", "Worker group A",
    "elastic.rendezvous.api.RendezvousAError", '"global_rank": ',
    "╭", "╭─", "+-", "│ ", "│ a:1", "│ a:1 in ", "│ a:1 in f │", "│ a:1 in f ", '{"', '{"a": ', '{"a": {"a": "',
]  # fmt: skip
HOSTILE = [
    *map(fill, PIECES),
    *(
        head + fill(tail)[len(head) :]
        for head in ("[", "Ranks ", "WorkNCCL(", "rank", "20")
        for tail in (" ", "1", "a")
    ),
    decode(random.Random(7).randbytes(LINE_LIMIT)),
]


def patterns(name: str) -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes], list[str]]]:
    """Each pattern of a module, with the methods that use it."""
    module = importlib.import_module(f"atlctl.diagnosis.{name}")
    source = inspect.getsource(module)
    for key, value in vars(module).items():
        if isinstance(value, re.Pattern):
            used = set(re.findall(rf"\b{key}\.(?:full)?(search|match)\(", source))
            yield f"{name}.{key}", value, sorted(used) or ["match" if key in MATCHED else "search"]
        elif key == "_TEXTS":
            yield from ((f"{name}.{item[2]}", item[0], ["search"]) for item in value)


def too_slow(call: Callable[[], object], budget: float) -> bool:
    """Measure slow results again: garbage collection counts, too."""
    for _ in range(3):
        start = time.process_time()
        call()
        if within(time.process_time() - start, budget):
            return False
    return True


@pytest.mark.parametrize("module", MODULES)
def test_each_pattern_is_quick(module):
    found = list(patterns(module))
    slow = []
    for name, pattern, methods in found:
        for line in HOSTILE:
            data = line.encode()[:LINE_LIMIT] if isinstance(pattern.pattern, bytes) else line
            calls = [partial(getattr(pattern, method), data) for method in methods]
            slow += [(name, line[:60]) for call in calls if too_slow(call, BUDGET)]
    assert slow == []
    assert len(found) > 8


BEFORE = {
    "a log": [],
    "a traceback": [b"[rank0]: Traceback (most recent call last):"],
    "a message": [b"Traceback (most recent call last):", b"ValueError: x"],
    "a summary": [b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", b"Root Cause:", b"[0]:"],
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_reader_is_quick(before):
    slow = []
    for line in HOSTILE:
        found = LogReader(matcher())
        for number, data in enumerate(BEFORE[before], 1):
            found.feed(number, data)
        if too_slow(partial(found.feed, 9, line.encode()), WHOLE_BUDGET):
            slow.append(line[:60])
    assert slow == []


def test_a_line_without_end_is_cut():
    found = LogReader(matcher())
    line = b"x" * 20_000_000 + b" ValueError: late"
    assert not too_slow(lambda: found.feed(1, line), WHOLE_BUDGET)
    assert len(found.facts().last_text) <= 1_000


def test_threads_that_print_no_traceback_are_not_kept_for_ever():
    found = Traces()
    for rank in range(2 * tracebacks.MAX_STREAMS):
        found.feed(Origin(rank), "Exception in thread Thread-1:", rank, None)
    kept = [len(value) for value in vars(found).values() if hasattr(value, "__len__")]
    assert max(kept) <= tracebacks.MAX_STREAMS


def test_times_are_kept_of_lines_that_are_kept():
    found = LogReader(matcher())
    moment = Moment(1795196705.5, 0.001, absolute=True)
    for number in range(60_000):
        found.feed(number, b"  time      : 2026-11-20_17:45:05", moment)
    assert len(found.facts().moments) <= 3 * (logfacts.MAX_NOTES + MAX_ALL_ENTRIES)


def test_a_barrier_that_hundreds_missed():
    named = LogReader(matcher())
    ranks = tuple(range(1, 512))
    listed = ", ".join(map(str, ranks))
    named.feed(1, f"[rank0]: RuntimeError: [Rank 0]: Ranks {listed} failed to pass monitoredBarrier in 9 ms".encode())
    named.feed(2, f"\t - [{listed}] finished collective #2, but didn't join collective #3 (count from 1)".encode())
    first, second = named.facts().collectives
    assert first.ranks == second.ranks == ranks
    assert len(first.text) <= 1_000
