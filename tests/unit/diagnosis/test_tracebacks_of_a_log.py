"""Tracebacks printed by CPython, torch's excepthook and torchelastic."""

import pytest

from atlctl.diagnosis import tracebacks
from atlctl.diagnosis.logfacts import LogReader
from atlctl.diagnosis.logline import NOBODY, Origin
from atlctl.diagnosis.tracebacks import Trace, Traces, read_chain
from tests.unit.diagnosis.samples import PEER_GONE, STACK, block, entry, matcher, parse

HEAD = "Traceback (most recent call last):"
FRAME = '  File "/jobs/train.py", line 20, in main'
PACKAGE = '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/functional.py", line 1, in linear'
DURING = "During handling of the above exception, another exception occurred:"
CAUSE = "The above exception was the direct cause of the following exception:"
CHAIN = [
    HEAD, '  File "/jobs/a.py", line 3, in load', "    open(path)", "KeyError: 'lr'",
    "", DURING, "",
    HEAD, '  File "/jobs/b.py", line 9, in read', "mylib.BadConfig: no lr", "see the manual",
    "", CAUSE, "",
    HEAD, FRAME, "    step()", "RuntimeError: cannot start",
]  # fmt: skip
#: More than the number of lines at a log's start in which a traceback may lack its header.
BEFORE = [f"loss {n}" for n in range(tracebacks.CUT_TOP + 5)]
PREFIXES = ["", "[rank3]: ", "[default0]:", "[default0]:[rank3]: ", "[rank3]: [rank3]: ", "stderr: [rank3]: "]


def one(lines: list[str]) -> Trace:
    (found,) = parse(lines).traces
    return found


def shape(found: Trace) -> list[tuple[str, str, str]]:
    return [(item.exception, item.message, item.frame.path if item.frame else "") for item in found.chain]


def prefixed(prefix: str, lines: list[str]) -> list[str]:
    """In torch's format: empty lines get no rank prefix, but a prefix of `--tee`."""
    return [prefix + line if line or "[rank" not in prefix else "" for line in lines]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("stamp", ["", "2026-11-20T17:45:05.757882235Z "])
def test_a_chain_in_every_stream(prefix, stamp):
    found = one([*BEFORE, *(stamp + line for line in prefixed(prefix, CHAIN))])
    assert shape(found) == [
        ("KeyError", "KeyError: 'lr'", "/jobs/a.py"),
        ("mylib.BadConfig", "mylib.BadConfig: no lr", "/jobs/b.py"),
        ("RuntimeError", "RuntimeError: cannot start", "/jobs/train.py"),
    ]
    assert found.chain[1].detail == ("see the manual",)
    assert found.line_no == len(BEFORE) + 1
    assert found.last is found.chain[-1]
    assert found.last.line_no == len(BEFORE) + len(CHAIN)
    assert (found.agent, found.thread, found.logged) == (False, False, False)


def test_ranks_that_print_at_once():
    chains = {rank: prefixed(f"[rank{rank}]: ", CHAIN) for rank in range(3)}
    mixed = [text for group in zip(*chains.values(), strict=True) for text in group]
    found = parse([*BEFORE, *mixed]).traces
    assert [item.origin for item in found] == [Origin(0), Origin(1), Origin(2)]
    assert len({tuple(shape(item)) for item in found}) == 1
    assert all(len(item.chain) == 3 for item in found)


def test_a_message_of_many_lines_with_others_in_between():
    lines = [
        f"[rank0]: {HEAD}", f"[rank0]: {FRAME}", "step 4", "[rank0]: RuntimeError: NCCL error in: x.cpp:1, unhandled",
        "[rank1]: something else", "[rank0]: ncclUnhandledCudaError: Call to CUDA function failed.", "loss 0.5",
        "[rank0]: Last error:", "[rank0]: Cuda failure 'out of memory'", f"[rank1]: {HEAD}", "[rank1]: KeyError: 1",
    ]  # fmt: skip
    first, second = parse([*BEFORE, *lines]).traces
    assert first.last.detail[-1] == "Cuda failure 'out of memory'"
    assert "out of memory" in first.last.text
    assert not any("else" in line or "loss" in line for line in first.last.detail)
    assert (second.origin, second.last.message) == (Origin(1), "KeyError: 1")


def test_the_text_of_other_messages_is_their_first_line():
    assert one([*BEFORE, HEAD, FRAME, "ValueError: x", "what follows"]).last.text == "ValueError: x"


def test_a_progress_bar_in_a_traceback_is_not_its_exception():
    lines = [HEAD, FRAME, "Training:  40%|####      | 4/10 [00:03<00:09,  9.9it/s]", FRAME, "ValueError: x"]
    assert one([*BEFORE, *lines]).last.message == "ValueError: x"


def test_a_log_line_ends_a_message():
    lines = [HEAD, FRAME, "ValueError: x", "2026-11-20 17:45:05,123 INFO r0 train: going on", "E1120 17:45:05.1 x"]
    assert one([*BEFORE, *lines]).last.detail == ()


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_a_loader_process_is_part_of_the_message(prefix):
    lines = [
        HEAD, FRAME, "IndexError: Caught IndexError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):", PACKAGE, '  File "/jobs/data.py", line 9, in __getitem__',
        "    return self.rows[i]", "IndexError: list index out of range", "",
    ]  # fmt: skip
    found = one([*BEFORE, *prefixed(prefix, lines)])
    assert shape(found) == [("IndexError", lines[2], "/jobs/train.py")]
    assert "IndexError: list index out of range" in found.last.text


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "[default0]:"])
def test_an_exception_of_a_thread(prefix):
    lines = ["Exception in thread Thread-3 (fill):", HEAD, FRAME, "ValueError: x", HEAD, "KeyError: 1"]
    first, second = parse([*BEFORE, *prefixed(prefix, lines)]).traces
    assert (first.thread, first.last.message) == (True, "ValueError: x")
    assert (second.thread, second.last.message) == (False, "KeyError: 1")


@pytest.mark.parametrize("head", ["2026-11-20 17:45:05,123 ERROR train: retry", "ERROR:root:retry", "caught this:"])
def test_a_traceback_behind_other_text_was_printed_by_who_caught_it(head):
    found = one([*BEFORE, f"{head} {HEAD}", FRAME, "ValueError: x"])
    assert found.logged
    assert found.last.frame is not None


@pytest.mark.parametrize(
    "announced",
    [
        "Exception ignored in: <function Pool.__del__ at 0x7f>",
        "Exception ignored in atexit callback: <function close at 0x7f>",
        "Error in atexit._run_exitfuncs:",
    ],
)
def test_an_exception_that_python_ignored_does_not_end_its_process(announced):
    ignored = [announced, HEAD, FRAME, "ValueError: x"]
    assert parse([*BEFORE, *ignored]).traces == []
    # Only the traceback that follows immediately.
    assert one([*BEFORE, *ignored, HEAD, FRAME, "KeyError: 'lr'"]).last.message == "KeyError: 'lr'"
    assert one([*BEFORE, announced, *BEFORE, HEAD, FRAME, "KeyError: 'lr'"]).last.message == "KeyError: 'lr'"


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_an_exception_that_python_ignored_behind_one_that_ended_its_process(prefix):
    ignored = ["Exception ignored in: <function Pool.__del__ at 0x7f>", HEAD, FRAME, "ValueError: x"]
    assert one([*BEFORE, *prefixed(prefix, [HEAD, FRAME, "KeyError: 'lr'", *ignored])]).last.message == "KeyError: 'lr'"
    thread = ["Exception in thread Thread-3 (fill):", HEAD, FRAME, "ValueError: x"]
    first, second = parse([*BEFORE, *prefixed(prefix, [HEAD, FRAME, "KeyError: 'lr'", *thread])]).traces
    assert (first.thread, second.thread) == (False, True)


@pytest.mark.parametrize("after", [[], ["", "epoch 2", HEAD, FRAME, "TypeError: 5"]])
def test_cython_prints_an_ignored_exception_twice(after):
    same = [HEAD, '  File "cuda/driver.pyx", line 73, in check', "DriverError: illegal memory access"]
    ignored = [*same, "Exception ignored in: 'cuda.Module.__dealloc__'", *same]
    found = parse([*BEFORE, HEAD, FRAME, "RuntimeError: illegal memory access", *ignored, *after]).traces
    assert [trace.last.message for trace in found[:1]] == ["RuntimeError: illegal memory access"]
    assert len(found) == 1 + bool(after)
    # The same exception at other lines may have ended the process.
    other = [HEAD, FRAME, "DriverError: illegal memory access"]
    assert one([*BEFORE, *other, *ignored[3:]]).last.message == "DriverError: illegal memory access"


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_of_an_exception_group_its_first_exception_counts(prefix):
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/jobs/train.py", line 9, in <module>',
        "  |     asyncio.run(main())",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | Exception Group Traceback (most recent call last):",
        '    |   File "/jobs/train.py", line 12, in stage',
        "    | ExceptionGroup: stage (1 sub-exception)",
        "    +-+---------------- 1 ----------------",
        "      | Traceback (most recent call last):",
        '      |   File "/jobs/shards.py", line 20, in load',
        "      |     read()",
        "      | ValueError: bad magic in shard 3",
        "      +------------------------------------",
        "    +---------------- 2 ----------------",
        "    | TypeError: 5",
        "    +------------------------------------",
    ]
    found = one([*BEFORE, *(prefix + line for line in lines)])
    assert shape(found) == [("ValueError", "ValueError: bad magic in shard 3", "/jobs/shards.py")]
    assert not found.logged


@pytest.mark.parametrize(
    "message", ["奖励模型异常: 第 4 步", "数据坏了: 第 4 步", "data.分片错误", "ОшибкаДанных: шаг 4"]
)
def test_an_exceptions_name_may_be_in_any_script(message):
    assert one([*BEFORE, HEAD, FRAME, "    step()", message]).last.message == message


@pytest.mark.parametrize("message", ["第 4 步完成", "进程3", "loss=3"])
def test_a_line_in_any_script_is_no_exception(message):
    assert one([*BEFORE, HEAD, FRAME, message, "KeyError: 'lr'"]).last.message == "KeyError: 'lr'"


def test_a_frame_that_loguru_marks_is_a_frame():
    lines = [HEAD, "", '> File "/jobs/train.py", line 20, in main', "    step(x)", "    │    └ 3", "ValueError: x"]
    assert shape(one([*BEFORE, *lines])) == [("ValueError", "ValueError: x", "/jobs/train.py")]


def test_a_wrappers_report_of_a_failed_launcher_is_the_launchers():
    error = "subprocess.CalledProcessError: Command '['python', '/opt/venv/bin/torchrun', 'lm.py']' returned non-zero"
    assert one([*BEFORE, HEAD, FRAME, error]).agent
    assert not one([*BEFORE, HEAD, FRAME, error.replace("/opt/venv/bin/torchrun", "convert.py")]).agent


def test_a_log_that_begins_in_a_traceback_is_cut_wherever_its_lines_are_counted_from():
    reader = LogReader(matcher())
    for number, line in enumerate([FRAME, "    step()", "ValueError: x"], 5_000):
        reader.feed(number, line.encode())
    facts = reader.facts()
    assert facts.cut
    assert [trace.last.message for trace in facts.traces] == ["ValueError: x"]


@pytest.mark.parametrize("prefix", ["", "[rank0]:", "2026-11-20T17:45:05.7Z "])
def test_a_traceback_that_torchs_logger_reports_is_none(prefix):
    glog = "E1120 17:45:05.757000 1 torch/distributed/elastic/x.py:145] "
    lines = [prefix + glog + line for line in (HEAD, FRAME, "    step()", "ValueError: x")]
    assert parse([*BEFORE, *lines]).traces == []


@pytest.mark.parametrize(
    "path",
    [
        "/opt/venv/bin/torchrun",
        "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py",
        "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py",
        "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py",
        "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/api.py",
    ],
)
def test_the_agents_own(path):
    error = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed."
    found = one([*BEFORE, HEAD, f'  File "{path}", line 1, in f', "    g()", error])
    assert (found.agent, found.last.message) == (True, error)


def test_the_agents_chain_of_a_whole_failure():
    run = '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1, in main'
    found = one([*BEFORE, HEAD, run, "    run(args)", *block(entry(text=STACK)), "step 3"])
    assert found.agent
    assert found.last.exception.endswith("ChildFailedError")


def test_the_function_of_torch_distributed_and_the_users_frame():
    c10d = '  File "/o/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce'
    found = one([*BEFORE, HEAD, FRAME, "    step()", PACKAGE, c10d, "    work.wait()", PEER_GONE])
    assert (found.last.operation, str(found.last.frame)) == ("all_reduce", FRAME.strip())


@pytest.mark.parametrize("kept", range(1, 6))
def test_a_log_that_was_cut_at_its_top(kept):
    lines = [HEAD, FRAME, "    step()", '  File "/jobs/data.py", line 8, in read', "    open(path)", "ValueError: x"]
    found = parse([*lines[len(lines) - kept :], "", *BEFORE]).traces
    assert all(item.last.message == "ValueError: x" for item in found)
    assert len(found) == (1 if kept >= 3 else 0)  # without frames, a line that looks like an exception proves nothing


def test_frames_in_the_midst_of_a_log_are_no_traceback():
    assert parse([*BEFORE, FRAME, "    step()", "ValueError: x"]).traces == []


def test_empty_lines_at_the_top_do_not_make_it_longer():
    lines = [*[""] * 30, *["loss 1"] * 100, f"[rank0]: {FRAME}", "[rank0]: ValueError: x"]
    assert parse(lines).traces == []


@pytest.mark.parametrize(
    ("line", "name"),
    [("AssertionError", "AssertionError"), ("KeyboardInterrupt", "KeyboardInterrupt"), ("SystemExit: 3", "SystemExit")],
)
def test_exceptions_without_a_message(line, name):
    assert one([*BEFORE, HEAD, FRAME, line]).last.exception == name


def test_a_syntax_error_points_into_its_file():
    lines = [HEAD, FRAME, "    import data", '  File "/jobs/data.py", line 9', "    def f(:", "          ^"]
    found = one([*BEFORE, *lines, "SyntaxError: invalid syntax"])
    assert found.last.frame is not None
    assert (found.last.frame.path, found.last.frame.line) == ("/jobs/data.py", 9)


def test_a_traceback_without_an_end_is_none_and_the_next_is_read():
    lines = [f"[rank0]: {HEAD}", f"[rank0]: {FRAME}", f"[rank0]: {HEAD}", "[rank0]: KeyError: 2"]
    assert shape(one([*BEFORE, *lines])) == [("KeyError", "KeyError: 2", "")]


def test_a_progress_bar_in_front():
    bar = " 94%|#########4| 837/888 [9:42:50<34:08, 40.17s/it]"
    found = one([*BEFORE, f"{bar}[rank7]: {HEAD}", f"[rank7]: {FRAME}", "[rank7]: ValueError: x"])
    assert found.origin == Origin(7)
    assert not found.logged


def test_streams_and_tracebacks_are_bounded():
    found = Traces()
    for rank in range(tracebacks.MAX_STREAMS + 50):
        found.feed(Origin(rank), HEAD, rank, None)
        found.feed(Origin(rank), "ValueError: x", rank, None)
    assert len(found.found()) == tracebacks.MAX_STREAMS
    found = Traces()
    total = tracebacks.MAX_FIRST + tracebacks.MAX_LAST + 70
    for number in range(total):
        found.feed(NOBODY, HEAD, number, None)
        found.feed(NOBODY, f"ValueError: {number}", number, None)
    kept = [item.last.message for item in found.found()]
    assert len(kept) <= tracebacks.MAX_FIRST + tracebacks.MAX_LAST + 1
    assert (kept[0], kept[-1]) == ("ValueError: 0", f"ValueError: {total - 1}")


def test_a_message_is_bounded():
    lines = [HEAD, FRAME, "ValueError: " + "x" * 10_000, *["y" * 10_000] * 100]
    found = one([*BEFORE, *lines])
    assert len(found.last.detail) <= tracebacks.MAX_DETAIL
    assert max(map(len, (found.last.message, *found.last.detail))) <= 2_000


def test_a_traceback_is_not_awaited_for_ever():
    found = Traces()
    found.feed(Origin(0), HEAD, 100, None)
    assert found.open_at(150)
    assert not found.open_at(100_000)


def test_the_chain_in_a_text():
    assert [item.exception for item in read_chain("\n".join(CHAIN))] == ["KeyError", "mylib.BadConfig", "RuntimeError"]
    (only,) = read_chain("ValueError: bad\nmore")
    assert (only.exception, only.message, only.detail) == ("ValueError", "ValueError: bad", ("more",))
    (plain,) = read_chain("  the shard is gone\n\nsecond")
    assert (plain.exception, plain.message, plain.detail) == ("", "the shard is gone", ("second",))
    assert read_chain("") == read_chain(" \n") == ()


WIDTH = 80
FOLDED = ("ValueError: bad magic in shard 3 of the set that the second epoch reads first, ", "and nobody can repair it")


def box(*frames: str, ascii_only: bool = False, indent: str = "") -> list[str]:
    """A box in the format of rich 13 and 14 without a terminal: each frame with its code line and a table of locals."""
    corner, dash, side, first, last = "+-||+" if ascii_only else "╭─│╰╯"
    title = " Traceback (most recent call last) "
    lines = [f"{corner}{title:{dash}^{WIDTH - 2}}{'+' if ascii_only else '╮'}"]
    for frame in frames:
        inner = [
            frame,
            "",
            "❱ 20 │   step(path)",
            "",
            "╭───── locals ─────╮",
            "│ e = KeyError: 'no' │",
            "╰──────────────────╯",
        ]
        lines += [f"{side} {row:{WIDTH - 4}} {side}" for row in inner]
    lines.append(f"{'+' if ascii_only else first}{dash * (WIDTH - 2)}{'+' if ascii_only else last}")
    return [indent + line for line in lines]


BOX = box("/jobs/train.py:171 in <module>", "/jobs/data.py:38 in read_header")
BOXES = [*box("/jobs/data.py:9 in read"), "KeyError: 'lr'", "", CAUSE, "", *BOX, *FOLDED]


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "[default1]:", "stderr: "])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_box_of_rich(prefix, ascii_only):
    lines = [
        *box("/jobs/train.py:171 in <module>", "/jobs/data.py:38 in read", ascii_only=ascii_only),
        "KeyError: 'lr'",
    ]
    found = one([*BEFORE, *(prefix + line for line in lines)])
    assert shape(found) == [("KeyError", "KeyError: 'lr'", "/jobs/data.py")]
    assert found.last.frame is not None
    assert (found.last.frame.line, found.last.frame.function) == (38, "read")
    assert (found.line_no, found.last.line_no) == (len(BEFORE) + 1, len(BEFORE) + len(lines))
    assert (found.agent, found.thread, found.logged) == (False, False, False)
    expected = {"[rank1]: ": Origin(1), "[default1]:": Origin(None, 1)}.get(prefix, NOBODY)
    assert found.origin == expected


@pytest.mark.parametrize("prefix", ["[rank1]: ", "[default1]:"])
def test_a_chain_of_boxes_with_a_folded_message(prefix):
    found = one([*BEFORE, *(prefix + line for line in BOXES)])
    assert shape(found) == [
        ("KeyError", "KeyError: 'lr'", "/jobs/data.py"),
        ("ValueError", "".join(FOLDED), "/jobs/data.py"),
    ]


def test_a_long_box_is_not_given_up():
    frames = [f"/jobs/train.py:{n} in f{n}" for n in range(1, 30)]
    lines = box(*frames)
    assert len(lines) > 200
    assert shape(one([*BEFORE, *lines, "ValueError: x"])) == [("ValueError", "ValueError: x", "/jobs/train.py")]


def test_boxes_of_ranks_that_print_at_once():
    mixed = [f"[rank{rank}]: {line}" for line in BOXES for rank in range(3)]
    found = parse([*BEFORE, *mixed]).traces
    assert [item.origin for item in found] == [Origin(0), Origin(1), Origin(2)]
    assert {len(item.chain) for item in found} == {2}


def test_a_folded_message_ends_at_an_empty_line():
    lines = [*BOX, *FOLDED, "", "what another module prints"]
    found = one([*BEFORE, *(f"[default1]:{line}" for line in lines)])
    assert found.last.message == "".join(FOLDED)
    assert found.last.detail == ("what another module prints",)


def test_a_message_without_a_box_is_not_folded():
    assert one([*BEFORE, HEAD, FRAME, *FOLDED]).last.message == FOLDED[0].rstrip()


def test_frames_in_packages_are_not_the_users_in_a_box_either():
    lines = box(
        "/jobs/train.py:171 in main", "/opt/venv/lib/python3.11/site-packages/torch/nn/functional.py:9 in linear"
    )
    found = one([*BEFORE, *lines, "RuntimeError: shapes"])
    assert str(found.last.frame) == 'File "/jobs/train.py", line 171, in main'


def test_a_box_says_in_which_function_of_torch_it_was():
    path = "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    found = one([*BEFORE, *box("/jobs/train.py:171 in main", f"{path}:3252 in all_reduce"), PEER_GONE])
    assert (found.last.operation, str(found.last.frame)) == ("all_reduce", 'File "/jobs/train.py", line 171, in main')


def test_a_box_of_the_agent():
    path = "/o/site-packages/torch/distributed/elastic/rendezvous/api.py"
    assert one([*BEFORE, *box("/jobs/x.py:1 in main", f"{path}:3 in f"), "ValueError: x"]).agent


@pytest.mark.parametrize("kept", [1, 5, len(BOX)])
def test_a_box_that_is_cut_off_is_none_and_the_next_traceback_is_read(kept):
    assert parse([*BEFORE, *BOX[:kept]]).traces == []
    found = one([*BEFORE, *BOX[:kept], HEAD, FRAME, "KeyError: 1", "its own detail"])
    assert shape(found) == [("KeyError", "KeyError: 1", "/jobs/train.py")]
    assert found.last.detail == ("its own detail",)


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last)",
        "a ─ Traceback (most recent call last) ─",
        "│ Traceback (most recent call last) │",
    ],
)
def test_words_without_a_box_begin_none(line):
    assert parse([*BEFORE, line, "KeyError: 1"]).traces == []


def test_a_whole_traceback_of_one_line():
    found = Traces()
    found.feed(Origin(3), HEAD, 5, None)
    found.take(Origin(3), CHAIN, 7, None)
    found.take(NOBODY, [HEAD, FRAME], 8, None)  # no exception in it
    found.feed(Origin(3), "ValueError: around it", 9, None)
    assert [(item.line_no, len(item.chain), item.last.message) for item in found.found()] == [
        (5, 1, "ValueError: around it"),
        (7, 3, "RuntimeError: cannot start"),
    ]


@pytest.mark.parametrize("prefix", ["", "2026-11-20T17:45:05.757882235Z ", "[rank1]: "])
def test_what_stands_behind_a_short_message_in_a_box_is_not_its_end(prefix: str) -> None:
    lines = [*BOX, "KeyError: 'lr'", "step 3", "more"]
    assert one([*BEFORE, *(prefix + row for row in lines)]).last.message == "KeyError: 'lr'"


@pytest.mark.parametrize("prefix", ["", "2026-11-20T17:45:05.757882235Z "])
def test_a_chain_of_boxes_without_a_prefix(prefix: str) -> None:
    found = one([*BEFORE, *(prefix + row for row in BOXES)])
    assert [item.message for item in found.chain] == ["KeyError: 'lr'", "".join(FOLDED)]


def sources(found: Trace) -> list[tuple[str, int, str]]:
    return [(frame.path.rpartition("/")[2], frame.line, frame.source) for frame in found.last.frames]


def test_frames_have_their_line_of_code():
    found = one([*BEFORE, *CHAIN])
    assert sources(found) == [("train.py", 20, "step()")]
    assert [(frame.own, frame.source) for frame in found.chain[0].frames] == [(True, "open(path)")]


def test_code_that_was_not_printed_and_marks_below_code():
    lines = [HEAD, PACKAGE, FRAME, "    a = step(x)", "        ^^^^^^^", PACKAGE, "ValueError: x"]
    found = one([*BEFORE, *prefixed("[rank3]: ", lines)])
    assert sources(found) == [("functional.py", 1, ""), ("train.py", 20, "a = step(x)"), ("functional.py", 1, "")]


def test_the_innermost_frames_are_kept_and_the_others_counted():
    deep = [line for n in range(100) for line in (f'  File "/jobs/a.py", line {n + 1}, in f', f"    f({n})")]
    found = one([*BEFORE, HEAD, *deep, "ValueError: x"])
    assert (len(found.last.frames), found.last.omitted) == (tracebacks.MAX_FRAMES, 100 - tracebacks.MAX_FRAMES)
    assert sources(found)[-1] == ("a.py", 100, "f(99)")


def test_equal_frames_of_ranks_are_one_object():
    first, second = parse([*BEFORE, *prefixed("[rank1]: ", CHAIN), *prefixed("[rank2]: ", CHAIN)]).traces
    assert first.last.frames[0] is second.last.frames[0]


def test_frames_of_a_loader_s_child_take_the_place_of_the_parent_s():
    child = [
        "ValueError: Caught ValueError in DataLoader worker process 0.", f"Original {HEAD}", PACKAGE, "    fetch()",
        '  File "/jobs/data.py", line 7, in __getitem__', "    raise ValueError(n)", "ValueError: bad sample",
    ]  # fmt: skip
    found = one([*BEFORE, *prefixed("[rank3]: ", [HEAD, FRAME, "    for x in loader:", *child])])
    assert sources(found) == [("functional.py", 1, "fetch()"), ("data.py", 7, "raise ValueError(n)")]
    assert found.last.frame is not None
    assert found.last.frame.path == "/jobs/train.py"


def test_the_code_in_a_box():
    found = one([
        *BEFORE, "╭───────────── Traceback (most recent call last) ─────────────╮",
        "│ /jobs/train.py:171 in main                                  │",
        "│                                                             │",
        "│   170 │   x = 1                                             │",
        "│ ❱ 171 │   │   step(x)                                       │",
        "│   172 │   y = 2                                             │",
        "╰─────────────────────────────────────────────────────────────╯", "ValueError: x",
    ])  # fmt: skip
    assert sources(found) == [("train.py", 171, "step(x)")]


def test_the_fields_that_a_configuration_lacks_belong_to_the_message():
    """pydantic names them below the first line."""
    first = "pydantic_core._pydantic_core.ValidationError: 1 validation error for Config"
    trace = one([HEAD, FRAME, first, "lr", "  Input should be a valid number [type=float_parsing]"])
    assert trace.last.told.split("\n") == [first, "lr", "  Input should be a valid number [type=float_parsing]"]
