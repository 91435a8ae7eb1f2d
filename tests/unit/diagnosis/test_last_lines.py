"""The last lines of a log before an end without a traceback."""

from __future__ import annotations

from atlctl.diagnosis.cause.rounds import MAX_LAST_LINES, crash_stack
from atlctl.diagnosis.logfacts import MAX_BEFORE, MAX_ENDS, LogReader, literals_of
from atlctl.diagnosis.result import Cause, Proof
from atlctl.diagnosis.scanner import Scanner
from atlctl.recording.feed import Alone, Feed
from tests.unit.diagnosis.cause.logs import Log, diagnosed, matcher, victim


def cause_of(log: Log) -> Cause:
    (cause,) = diagnosed(log, victim(1, of=0)).root_causes
    return cause


def said(log: Log) -> list[str]:
    return [line.text for line in cause_of(log).last_lines]


def test_lines_of_other_ranks_and_of_the_agent_are_left_out() -> None:
    log = Log(0).start().say(1, "step 7", "[rank0]: mine", "[rank1]: FATAL: no license", "shared").ended(1.3, 1, 3)
    assert said(log)[-3:] == ["step 7", "FATAL: no license", "shared"]


def test_lines_have_their_place_in_the_log() -> None:
    log = Log(0).start().say(1, "the last one").ended(1.3, 1, 3)
    line = cause_of(log).last_lines[-1]
    assert (line.worker, line.text) == ("worker-0", "the last one")
    assert line.line_no is not None
    assert log.lines[line.line_no - 1].endswith("the last one")


def test_tracebacks_of_victims_are_no_last_lines() -> None:
    log = Log(0).start().say(1, "the last one").trace(1.1, 0, "RuntimeError: Connection reset by peer")
    assert said(log.ended(1.3, 1, -9))[-1] == "the last one"


def test_an_end_with_a_traceback_has_none() -> None:
    cause = cause_of(Log(0).start().say(1, "step 7").trace(1.1, 1, "ValueError: x").ended(1.3, 1))
    assert cause.last_lines == ()
    assert cause.traceback is not None
    assert (cause.traceback.exception, cause.traceback.message) == ("ValueError", "ValueError: x")


def test_they_are_few() -> None:
    log = Log(0).start().say(1, *(f"step {n}" for n in range(50))).ended(1.3, 1, 3)
    assert said(log) == [f"step {n}" for n in range(50 - MAX_LAST_LINES, 50)]


def test_of_many_ends_the_last_are_kept() -> None:
    reader = LogReader(matcher())
    for number in range(40):
        reader.feed(2 * number + 1, b"step")
        reader.feed(2 * number + 2, b"failed (exitcode: 3) local_rank: 0 (pid: 7) of binary: python")
    assert list(reader.facts().before) == list(range(82 - 2 * MAX_ENDS, 82, 2))


def test_a_log_that_is_scanned_has_them_as_well() -> None:
    """Insignificant lines reach the reader only before an end."""
    lines = [b"loss %d" % n for n in range(40_000)]
    end = b"E1120 17:45:00.000000 1 api.py:1] failed (exitcode: 3) local_rank: 0 (pid: 7) of binary: python"
    data = b"\n".join([*lines, end, *lines, b""])
    reader = LogReader(matcher())
    feed = Feed(Alone(reader), "w", 0, literals_of(matcher()), data[:1000], alone=True)
    feed.feed(data)
    feed.finish()
    (kept,) = reader.facts().before.values()
    assert [line.text for line in kept] == [f"loss {n}" for n in range(40_000 - MAX_BEFORE, 40_000)]
    assert [line.line_no for line in kept] == list(range(40_001 - MAX_BEFORE, 40_001))


def test_lines_before_the_first_are_none() -> None:
    found: list[list[bytes]] = []

    def take(_number: int, _line: bytes) -> bool:
        found.append(scanner.before(2))
        return False

    scanner = Scanner([b"needle"], take, head=0, tail=0)
    scanner.feed(b"needle\na\nb\nc\nneedle\n")
    scanner.finish()
    assert found == [[], [b"b", b"c"]]


CRASH = [
    "Fatal Python error: Segmentation fault", "", "Thread 0x00007f65fe3d1b70 (most recent call first):",
    '  File "/jobs/loop.py", line 1 in run', "", "Current thread 0x00007f65fe3d1b80 (most recent call first):",
    '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in cast', '  File "/jobs/train.py", line 70 in main',
]  # fmt: skip


def test_the_stack_of_a_crash_is_a_traceback() -> None:
    found = crash_stack([Proof("w", number, text) for number, text in enumerate(["step 1", *CRASH, "end"], 1)])
    assert found is not None
    assert [(frame.path.rpartition("/")[2], frame.line) for frame in found.frames] == [
        ("train.py", 70),
        ("__init__.py", 519),
    ]
    assert (found.message, found.proof) == (CRASH[0], Proof("w", 2, CRASH[0]))
    assert crash_stack([Proof("w", 1, text) for text in CRASH[1:]]) is None
