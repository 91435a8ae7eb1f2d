"""torchelastic's output after a failure: notes, summaries, error files, and whether a trainer has failed."""

from __future__ import annotations

import json

import pytest

from atlctl.diagnosis.logfacts import MAX_NOTES
from atlctl.diagnosis.torchelastic import (
    ERROR_FILE_LIMIT,
    ERROR_TEXT_LIMIT,
    FAILURE_MARKERS,
    MAX_ALL_ENTRIES,
    MAX_ENTRIES,
    MAX_SUMMARIES,
    SUMMARY_LITERALS,
    TRACEBACK_LIMIT,
    NoteKind,
    Summaries,
    parse_error_file,
    parse_note,
    rank_ended,
    trainer_failed,
)

from .samples import DATA, HEADER, NO_FILE, OLD_BLOCK, STACK, block, entry, parse


def only(lines):
    (summary,) = parse(lines).summaries
    return summary


def test_all_rows_of_a_block():
    file = "/tmp/torchelastic_a/job_b/attempt_0/1/error.json"
    victim = entry(
        1, rank=2, local=0, code=-15, pid=11, signal="SIGTERM", text="Signal 15 (SIGTERM) received by PID 11"
    )
    summary = only(["before", *block(entry(0, rank=3, local=1, pid=12, text=STACK, file=file), [victim]), "after"])

    assert (summary.root_index, summary.line_no) == (1, 2)
    first, root = summary.entries
    assert (first.rank, first.local_rank, first.exit_code, first.pid) == (2, 0, -15, 11)
    assert first.error_file is None
    assert first.message_last_line == "Signal 15 (SIGTERM) received by PID 11"
    assert (root.rank, root.local_rank, root.exit_code) == (3, 1, 1)
    assert (root.host, root.error_file) == ("train-worker-1", file)
    assert root.time == 1795196705
    assert root.traceback == STACK.rstrip()
    assert root.message_last_line == "ValueError: bad magic in shard 3"


@pytest.mark.parametrize("tail", ["", " ", "  (SIGKILL)"])
def test_the_exit_codes_row_of_every_release(tail):
    rows = entry(code=-9)
    rows[4] = f"  exitcode  : -9 (pid: 77){tail}"
    (found,) = only(block(rows)).entries
    assert (found.exit_code, found.pid) == (-9, 77)


def test_torch_1_9():
    summary = only(OLD_BLOCK)
    assert summary.root_index == 0
    root, other = summary.entries
    assert (root.message_last_line, root.rank) == ("KeyError: no such column", 0)
    assert root.time == 1631571450
    assert (other.exit_code, other.message_last_line) == (-9, "Process failed with exitcode -9")


def test_long_borders_of_1_10_and_an_empty_title():
    assert len(only(block(entry(), title="", width=180)).entries) == 1


def test_missing_closing_border_does_not_swallow_what_follows():
    lines = block(entry(text=STACK))[:-1]
    foreign = ["Traceback (most recent call last):", '  File "/other.py", line 1, in g', "    g()", "KeyError: 1"]
    (found,) = only([*lines, *foreign, "  indented but not ours?"]).entries
    assert found.message_last_line == "ValueError: bad magic in shard 3"
    assert "/other.py" not in found.traceback


def test_foreign_lines_inside_a_block_are_skipped():
    rows = block(entry(text=STACK, rank=5))
    mixed = [text for row in rows for text in (row, '[rank0]:   File "/foreign.py", line 9, in f', "loss 0.5")]
    (found,) = only(mixed).entries
    assert (found.rank, found.traceback) == (5, STACK.rstrip())


@pytest.mark.parametrize("text", ["To enable traceback see: https://x", "Signal 15 (SIGTERM) received by PID 7"])
def test_an_entry_without_a_traceback_ends_with_its_row(text):
    rows = block(entry(text=text))
    at = next(number for number, row in enumerate(rows) if text in row) + 1
    (found,) = only([*rows[:at], "/x.py:6: UserWarning: it is slow", "  warnings.warn(text)", *rows[at:]]).entries
    assert (found.traceback, found.message_last_line) == (text, text)


def test_cut_at_the_top_keeps_the_root():
    lines = block(entry(rank=4, text=STACK), [entry(1, rank=1)])
    start = lines.index("Root Cause (first observed failure):")
    assert only(lines[start:]).entries[0].rank == 4
    headless = only(lines[start + 1 :])
    assert (headless.root_index, headless.entries[0].rank) == (0, 4)


@pytest.mark.parametrize(("rows", "rank"), [(2, 3), (3, 3), (4, None)])
def test_cut_at_the_top_between_the_rows_of_an_entry(rows, rank):
    """Without its row of ranks, the path of the error file has the local rank."""
    path = "/tmp/torchelastic_a/job_b/attempt_0/1/error.json"
    (found,) = only([*entry(rank=3, local=1, text=STACK, file=path)[rows:], "=" * 60]).entries
    assert (found.rank, found.local_rank, found.exit_code) == (rank, 1, 1)


def test_cut_at_the_end_has_no_root_but_its_entries():
    lines = block(entry(rank=4), [entry(1, rank=1), entry(2, rank=2)])
    summary = only(lines[: lines.index("Root Cause (first observed failure):") - 3])
    assert summary.root_index is None
    assert [found.rank for found in summary.entries] == [1, 2]


def test_cut_inside_every_line_never_raises_and_never_invents():
    data = "\n".join(block(entry(0, rank=3, text=STACK), [entry(1, rank=2)])).encode()
    for end in range(0, len(data), 7):
        for summary in parse(data[:end].split(b"\n")).summaries:
            assert {found.rank for found in summary.entries} <= {3, 2, None}


def test_indent_lost_on_the_way():
    lines = [
        f"        {line.strip()}" for line in block(entry(rank=1, code=-6, text="Signal 6 (SIGABRT) received by PID 9"))
    ]
    (found,) = only(lines).entries
    assert (found.rank, found.exit_code) == (1, -6)


def test_rows_inside_a_message_are_text():
    stack = STACK + "  rank      : 99 (local_rank: 9)\n============\n[7]:\n"
    summary = only(block(entry(rank=3, text=stack)))
    assert [found.rank for found in summary.entries] == [3]
    assert "rank      : 99" in summary.entries[0].traceback


def test_gbk_and_broken_bytes():
    gbk = [line.encode("gbk") for line in block(entry(text=STACK.replace("bad magic", "分片损坏")))]
    assert only(gbk).entries[0].message_last_line == "ValueError: 分片损坏 in shard 3"
    broken = [line.encode().replace(b"bad", b"\xff\xfe\x00") for line in block(entry(text=STACK))]
    assert only(broken).entries[0].message_last_line.startswith("ValueError: ")


def test_ansi_colours_and_carriage_returns():
    lines = [f"\x1b[36m{line}\x1b[0m\r" for line in block(entry(text=STACK))]
    lines[8] = " 30%|###  | 3/10\r" + lines[8]
    assert only(lines) == only(block(entry(text=STACK)))


def test_hosts_time_that_is_none():
    rows = entry(time="2026-13-45_17:45:05")
    (found,) = only(block(rows)).entries
    assert found.time is None


def test_memory_is_bounded():
    long = "Traceback (most recent call last):\n" + "  deep\n" * 100_000 + "ValueError: end\n"
    (found,) = only(block(entry(text=long))).entries
    assert len(found.traceback) <= TRACEBACK_LIMIT
    assert found.message_last_line == "ValueError: end"
    many = only(block(entry(9999, rank=9999), [entry(n, rank=n) for n in range(MAX_ENTRIES + 7)]))
    assert many.root_index is not None
    assert many.entries[many.root_index].rank == 9999
    assert len(many.entries) == MAX_ENTRIES + 1


def test_many_summaries_keep_the_last():
    summaries = Summaries()
    for number in range(MAX_SUMMARIES + 3):
        for line in block(entry(rank=number)):
            summaries.feed(line, number)
    found = summaries.found()
    assert len(found) == MAX_SUMMARIES
    assert found[-1].entries[0].rank == MAX_SUMMARIES + 2
    crowd = block(entry(), [entry(n, rank=n) for n in range(MAX_ENTRIES)])
    for number in range(2 * MAX_ALL_ENTRIES // MAX_ENTRIES):
        for line in crowd:
            summaries.feed(line, number)
    assert sum(len(item.entries) for item in summaries.found()) <= MAX_ALL_ENTRIES


def test_many_notes_keep_the_first():
    line = "Sending process 1 closing signal SIGTERM"
    assert len(parse([line] * (MAX_NOTES + 5)).notes) == MAX_NOTES


def test_a_summary_is_open_until_its_border():
    summaries = Summaries()
    *rows, border = block(entry(text=STACK))
    for number, row in enumerate(rows, 1):
        summaries.feed(row, number)
        assert summaries.open
    assert summaries.feed(border, 9)
    assert not summaries.open
    assert not summaries.feed("step 3", 10)


@pytest.mark.parametrize("rows", [block(entry(text=STACK)), OLD_BLOCK])
def test_every_beginning_of_a_summary_holds_a_literal(rows):
    data = [row.encode() for row in rows]
    assert any(literal in data[0] for literal in SUMMARY_LITERALS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "E1120 17:47:16.013000 1 x.py:1002] failed (exitcode: -11) local_rank: 2 (pid: 14) of binary",
            (NoteKind.FAILED, 14, 2, -11, "SIGSEGV"),
        ),
        (
            "[2024-05-08 08:47:31,261] torch.x: [ERROR] failed (exitcode: 1) local_rank: 0 (pid: 5) of fn: main",
            (NoteKind.FAILED, 5, 0, 1, None),
        ),
        (
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 15 closing signal SIGTERM",
            (NoteKind.CLOSING, 15, None, None, "SIGTERM"),
        ),
        (
            "Unable to shutdown process 12 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
            (NoteKind.FORCED, 12, None, None, "SIGKILL"),
        ),
        ("Received 15 death signal, shutting down workers", (NoteKind.SIGNALLED, None, None, None, "SIGTERM")),
        (
            "Received Signals.SIGTERM death signal, shutting down workers",
            (NoteKind.SIGNALLED, None, None, None, "SIGTERM"),
        ),
        (
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2",
            (NoteKind.SIGNALLED, None, None, None, "SIGINT"),
        ),
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
            (NoteKind.RENDEZVOUS, None, None, None, None),
        ),
        (
            "[default] Worker group FAILED. 2/3 attempts left; will restart worker group",
            (NoteKind.RESTART, None, None, None, None),
        ),
        (
            "[2024-05-08 08:47:31,002] run: [WARNING] Setting OMP_NUM_THREADS environment variable for each process",
            (NoteKind.STARTED, None, None, None, None),
        ),
    ],
)
@pytest.mark.parametrize("prefix", ["", "2026-11-20T17:45:05.757882235Z ", "\x1b[31m[default0]:"])
def test_the_agents_lines(line, expected, prefix):
    (note,) = parse(["noise", prefix + line]).notes
    assert (note.kind, note.pid, note.local_rank, note.exit_code, note.signal) == expected
    assert note.line_no == 2


@pytest.mark.parametrize(
    "line",
    [
        "signal received", "my closing signal SIGTERM", "failed (exitcode: none)", "SignalException: caught",
        "The node has failed to shutdown the rendezvous 'j' due to an error of type RendezvousConnectionError.",
        "Failures: none so far", "Root Cause analysis of yesterday", "  time      : 3 s",
    ],
)  # fmt: skip
def test_lines_that_say_nothing(line):
    facts = parse([line])
    assert facts.notes == []
    assert facts.summaries == []


@pytest.mark.parametrize(
    "line",
    [
        HEADER,
        "[ERROR] torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the store has failed.",
        '  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 194, in __call__',
    ],
)
def test_lines_that_mean_a_trainer_ended_in_failure(line):
    assert any(marker in line.encode() for marker in FAILURE_MARKERS)


@pytest.mark.parametrize(
    "line",
    [
        "    raise ChildFailedError(",
        "failed (exitcode: 1) local_rank: 0 (pid: 3)",  # an attempt that may be restarted
        "Sending process 15 closing signal SIGTERM",
        "ValueError: x",
        "/opt/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py:194: UserWarning: x",
        NO_FILE,
    ],
)
def test_lines_that_do_not(line):
    assert not any(marker in line.encode() for marker in FAILURE_MARKERS)


def test_a_real_block_of_torch_2_13():
    summary = only((DATA / "peer-gone-worker-1.log").read_bytes().split(b"\n"))
    root = summary.entries[summary.root_index]
    assert (root.rank, root.message_last_line.partition(":")[0]) == (3, "ValueError")
    assert 'File "/workspace/lib/data.py", line 38' in root.traceback
    assert [found.exit_code for found in summary.entries] == [-15, 1]


def read(document):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    record, reason = parse_error_file(data)
    assert (record is None) == bool(reason)
    return record


def reason_of(data: bytes) -> str:
    record, reason = parse_error_file(data)
    assert record is None
    return reason


def test_torchs_own_form():
    record = read(
        {
            "message": {
                "message": "ValueError: bad magic in shard 3",
                "extraInfo": {"py_callstack": STACK, "timestamp": "1763660699"},
            }
        }
    )
    assert (record.message, record.time) == ("ValueError: bad magic in shard 3", 1763660699)
    assert record.traceback == STACK.rstrip()


def test_a_qualified_name_comes_from_the_call_stack():
    stack = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory\n"
    record = read(
        {"message": {"message": "OutOfMemoryError: CUDA out of memory", "extraInfo": {"py_callstack": stack}}}
    )
    assert record.message == "torch.OutOfMemoryError: CUDA out of memory"


@pytest.mark.parametrize(
    ("document", "message", "time"),
    [
        ({"message": "plain words", "timestamp": 123}, "plain words", 123),
        ({"message": "RuntimeError: x\nmore"}, "RuntimeError: x", None),
        ({"message": STACK, "timestamp": "77"}, "ValueError: bad magic in shard 3", 77),
        ({"message": "x", "extraInfo": {"py_callstack": "KeyError: 2", "timestamp": 9}}, "KeyError: 2", 9),
        ({"message": {"message": "KeyError: 1"}}, "KeyError: 1", None),
        ({"message": {"extraInfo": {"py_callstack": STACK}}}, "ValueError: bad magic in shard 3", None),
        ({"message": {"message": "x", "extraInfo": [1]}, "timestamp": True}, "x", None),
    ],
)  # fmt: skip
def test_other_writers(document, message, time):
    record = read(document)
    assert (record.message, record.time) == (message, time)


@pytest.mark.parametrize("value", [0, "0", -5, "soon", None, [1], {}, True, 1e300, "nan", "inf", 10**400, "9" * 5000])
def test_timestamps_that_are_none(value):
    assert read({"message": "x", "timestamp": value}).time is None


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"message": {"message": "ValueErr', "JSON"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b"{}", "message"),
        (b'{"message": {}}', "message"),
        (b'{"message": 5}', "message"),
        (b'{"message": " \\n"}', "message"),
        (b'{"message": ' + b"[" * 200_000, "deeply"),
        (b'{"timestamp": ' + b"9" * 10_000 + b"}", "no message"),
        (b" " * (ERROR_FILE_LIMIT + 1), "larger"),
    ],
)
def test_what_cannot_be_read_has_a_reason(data, word):
    assert word in reason_of(data)


def test_hostile_content_stays_text_of_bounded_length():
    record = read(
        {
            "message": {
                "message": "ValueError: \ud800\x1b]0;x\x07" + "A" * 100_000,
                "extraInfo": {"py_callstack": "B\n" * 100_000},
            }
        }
    )
    record.message.encode()
    assert len(record.message) <= ERROR_TEXT_LIMIT
    assert len(record.traceback) <= ERROR_TEXT_LIMIT


def test_gbk():
    assert read('{"message": "ValueError: 分片损坏"}'.encode("gbk")).message == "ValueError: 分片损坏"


STEP = b"[rank0]: step 12/100 loss 0.4"
START = (
    b"W1120 17:45:00.1 1 torch/distributed/run.py:766] Setting OMP_NUM_THREADS environment variable for each process"
)


@pytest.mark.parametrize("marker", FAILURE_MARKERS)
def test_a_failure_at_the_end(marker: bytes) -> None:
    assert trainer_failed([STEP, marker + b" x", b"sleeping for inspection"])


@pytest.mark.parametrize("after", [STEP, START, b" 45%|####      | 45/100 [00:12<00:14]", b"Epoch 3 done"])
def test_a_failure_that_was_not_the_end(after: bytes) -> None:
    assert not trainer_failed([FAILURE_MARKERS[0], after])
    assert trainer_failed([FAILURE_MARKERS[0], after, FAILURE_MARKERS[0]])


def test_no_failure() -> None:
    assert not trainer_failed([])
    assert not trainer_failed([b"Traceback (most recent call last):", b"ValueError: handled", STEP, b"\xff\0" * 100])


@pytest.mark.parametrize(("status", "code", "signal"), [(3, 3, None), (-9, -9, "SIGKILL"), (-37, 128 + 37, None)])
def test_the_line_of_run_for_one_of_several_processes(status, code, signal):
    note = parse_note(rank_ended(11, status), 1)
    assert note is not None
    assert (note.kind, note.rank, note.exit_code, note.signal) == (NoteKind.FAILED, 11, code, signal)
    assert note.launcher
