"""One saved log, passed to the readers of its workers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.diagnosis.logfacts import LogReader, literals_of
from atlctl.recording import feed as feeding
from atlctl.recording.feed import (
    KUBECTL,
    SHAPES,
    Feed,
    LinePrefix,
    find_prefix,
    learned_prefix,
    newest_first,
    pump,
    unwrap,
)
from tests.unit.diagnosis.cause.logs import OWN, Log
from tests.unit.diagnosis.samples import matcher

FAILING = Log(0, stamped=False).start(steps=200).trace(1, 1, OWN).ended(1.4, 1, closed=(0,)).lines


@dataclass
class Workers:
    """Readers by name, and logs with lines of several workers."""

    known: dict[str, LogReader] = field(default_factory=dict)
    how: dict[str, str | None] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    def reader(self, name, how):
        self.how.setdefault(name, how)
        return self.known.setdefault(name, LogReader(matcher()))

    def mixed(self, name):
        self.shared.add(name)

    def places(self) -> dict[str, list[int]]:
        """The line numbers of all tracebacks, by worker."""
        found = {name: [trace.line_no for trace in reader.facts().traces] for name, reader in self.known.items()}
        return {name: lines for name, lines in found.items() if lines}


def fed(data: bytes, *, alone: bool = True, number: int = 0, chunk: int = 4_096) -> tuple[Workers, Feed]:
    workers, rest = Workers(), [data[at : at + chunk] for at in range(0, len(data), chunk)]
    feed = Feed(workers, "w-0", number, literals_of(matcher()), data[:65_536], alone=alone)
    pump(lambda _: rest.pop(0) if rest else b"", feed, rest.pop(0) if rest else b"", chunk)
    return workers, feed


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


AT = FAILING.index("[rank1]: Traceback (most recent call last):") + 1
STAMP = "2026-11-20T17:45:05.757882235Z "


@pytest.mark.parametrize("chunk", [7, 4_096, 1_000_000])
@pytest.mark.parametrize("front", ["", STAMP, f"{STAMP}stderr F "])
def test_lines_are_counted_however_the_log_is_cut(chunk: int, front: str) -> None:
    lines = [front + line for line in FAILING]
    workers, feed = fed(text(lines), chunk=chunk)
    assert feed.number == len(lines)
    assert AT in workers.places()["w-0"]


def test_numbers_go_on_from_the_log_before() -> None:
    workers, feed = fed(text(FAILING), number=1_000)
    assert feed.number == 1_000 + len(FAILING)
    assert 1_000 + AT in workers.places()["w-0"]


def test_plain_stamped_and_kubelet_logs_say_the_same() -> None:
    facts = [
        fed(text([front + line for line in FAILING]))[0].known["w-0"].facts()
        for front in ("", STAMP, f"{STAMP}stderr F ")
    ]
    for found in facts[1:]:
        assert [trace.chain for trace in found.traces] == [trace.chain for trace in facts[0].traces]
        assert [note.kind for note in found.notes] == [note.kind for note in facts[0].notes]
        assert found.first is not None
        assert found.first.absolute


@pytest.mark.parametrize(
    ("form", "how"),
    [
        ("[pod/w-7/pytorch] {line}", "prefix"),
        ("w-7: {line}", "prefix"),
        (STAMP + "w-7: {line}", "prefix"),
        ('{{"labels": {{"pod": "w-7"}}, "line": "{line}"}}', "json"),
    ],
)
def test_lines_of_other_workers(form: str, how: str) -> None:
    lines = [line.replace("\\", "\\\\").replace('"', '\\"') if how == "json" else line for line in FAILING]
    data = text([form.format(line=line) for line in lines])
    workers, _ = fed(data, alone=False)
    assert workers.places()["w-7"][0] == AT
    assert (workers.how["w-7"], workers.shared) == (how, {"w-0"})
    alone, _ = fed(data, alone=True)
    assert (set(alone.known), alone.shared) == ({"w-0"}, set())


def test_the_stamp_of_a_json_line_is_its_time() -> None:
    rows = [f'{{"pod": "w-7", "time": "2026-11-20T17:45:0{n}.5Z", "log": "step {n}/9"}}' for n in range(9)]
    facts = fed(text(rows), alone=False)[0].known["w-7"].facts()
    assert facts.first is not None
    assert (facts.first.seconds % 60, facts.first.absolute) == (0.5, True)


def test_lines_that_run_backwards_are_seen() -> None:
    rows = [f'{{"line": "x", "timestamp": "2026-11-20T17:45:{50 - n}Z"}}' for n in range(5)]
    assert fed(text(rows))[1].backwards
    assert not fed(text(rows[::-1]))[1].backwards
    stamped = [f"2026-11-20T17:45:{50 - n}Z step {n}" for n in range(5)]
    assert fed(text(stamped))[1].backwards
    assert not fed(text(stamped[::-1]))[1].backwards


@pytest.mark.parametrize("data", [b"a\n" + b"\0" * 9 + b"b\n", b"step 1\n" * 30_000 + b"\0" * 50 + b"x\n"])
def test_holes_are_counted_near_the_start_and_far_behind(data: bytes) -> None:
    assert fed(data)[1].holes == 1


@pytest.mark.parametrize("data", [b"", b"\n", b"no newline"])
def test_short_logs(data: bytes) -> None:
    assert fed(data)[1].number == len(data.splitlines())


@pytest.mark.parametrize(
    ("value", "pod", "text"),
    [
        ({"labels": {"pod": "w-1", "app": "x"}, "line": "a", "timestamp": "t"}, "w-1", (b"a",)),
        ({"kubernetes": {"pod_name": "w-1"}, "log": "a\n"}, "w-1", (b"a",)),
        ({"kubernetes": {"pod": {"name": "w-1"}}, "message": "a\nb"}, "w-1", (b"a", b"b")),
        ({"pod": "w-1", "message": "a"}, "w-1", (b"a",)),
        ({"log": "a\n", "stream": "stderr", "time": "t"}, None, (b"a",)),
        ({"pod": ["w-1"], "msg": "a"}, None, (b"a",)),
        ({"resource": {"labels": {"pod_name": "w-1"}}, "textPayload": ""}, "w-1", (b"",)),
        ({"@timestamp": "t", "kubernetes.pod_name": "w-1", "message": "a"}, "w-1", (b"a",)),
        ({"_index": "i", "_source": {"kubernetes": {"pod": {"name": "w-1"}}, "message": "a"}}, "w-1", (b"a",)),
        ({"__time__": 1, "_pod_name_": "w-1", "content": "a"}, "w-1", (b"a",)),
        ({"@timestamp": "t", "@message": "a", "@logStream": "s"}, None, (b"a",)),
        ({"__REALTIME_TIMESTAMP": "1", "MESSAGE": "a"}, None, (b"a",)),
    ],
)
def test_text_and_pod(value, pod, text):
    found = unwrap(json.dumps(value).encode())
    assert found is not None
    assert (found.pod, found.text) == (pod, text)


@pytest.mark.parametrize(
    "line",
    [
        b'{"loss": 0.5}',
        b'{"role": "user", "content": "Traceback"}',
        b'{"message": {"message": "x"}}',
        b'{"log": "cut',
        b"{'a': 1}",
        b"[1]",
    ],
)
def test_other_lines_are_left_as_they_are(line):
    assert unwrap(line) is None


def test_hostile_depth_and_surrogates_are_no_crash():
    assert unwrap(b'{"a":' * 100_000) is None
    found = unwrap(b'{"pod": "\\ud800", "log": "\\udfff x"}')
    assert found is not None
    assert (found.pod, found.text) == ("?", (b"? x",))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200))
def test_never_raises(data):
    found = unwrap(b'{"' + data)
    assert found is None or found.text


def test_newest_first():
    first, later = "2026-11-20T17:45:05.9Z", "2026-11-20T17:45:07Z"
    assert newest_first([later, later, first])
    assert not newest_first([first, later, later])
    assert not newest_first([later, first, later])
    assert not newest_first([first, first, first])
    assert not newest_first([])


ROWS = ("Traceback (most recent call last):", '  File "/job/train.py", line 20, in main', "ValueError: bad")
TRACE = "\n".join(ROWS)


@pytest.mark.parametrize(
    ("fields", "mark"),
    [
        ({"exc_info": TRACE}, ""),
        ({"exc_info": TRACE, "rank": 3}, "[rank3]: "),
        ({"error": {"stack": TRACE}, "global_rank": 5, "rank": 1}, "[rank5]: "),
        ({"exc_info": TRACE, "rank": -1}, ""),
    ],
)
def test_a_traceback_beside_the_text_follows_it_in_the_stream_of_its_rank(fields, mark):
    found = unwrap(json.dumps({"message": "failed", **fields}).encode())
    assert found is not None
    assert found.text == (b"failed", *((mark + row).encode() for row in ROWS))


def test_a_traceback_that_is_the_text_is_not_told_twice():
    for fields in ({"log": TRACE}, {"log": TRACE, "message": TRACE}):
        found = unwrap(json.dumps(fields).encode())
        assert found is not None
        assert [row.decode() for row in found.text] == list(ROWS)


def test_a_traceback_with_surrogates_is_bytes():
    found = unwrap(json.dumps({"log": "x", "exc_info": f"{TRACE} \ud800"}).encode())
    assert found is not None
    assert found.text[-1] == b"ValueError: bad ?"


def test_the_pod_of_a_line_with_a_traceback():
    found = unwrap(json.dumps({"kubernetes": {"pod_name": "w-1"}, "log": "x", "exc_info": TRACE}).encode())
    assert found is not None
    assert (found.pod, len(found.text)) == ("w-1", 1 + len(ROWS))


def test_the_rank_of_a_traceback_that_is_the_text() -> None:
    found = unwrap(json.dumps({"message": TRACE, "rank": 3}).encode())
    assert found is not None
    assert found.text[0] == b"[rank3]: Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"level": "WARNING", "message": "ValueError: x, retrying"}, b"WARNING ValueError: x, retrying"),
        ({"severity": "info", "msg": "step 3"}, b"INFO step 3"),
        ({"log": {"level": "warn"}, "message": "x"}, b"WARN x"),
        ({"log.level": "debug", "message": "x"}, b"DEBUG x"),
        ({"level": "ERROR", "message": "x"}, b"x"),
        ({"level": "error", "message": "ValueError: x, retrying", "exc_info": TRACE}, b"ERROR ValueError: x, retrying"),
        ({"level": 30, "message": "x"}, b"x"),
        ({"level": "own words", "message": "x"}, b"x"),
        ({"severity": "INFO", "textPayload": TRACE}, ROWS[0].encode()),
        ({"level": "info", "log": TRACE}, ROWS[0].encode()),
    ],
)
def test_a_level_below_error_stays_in_front_of_a_programs_own_message(fields, text):
    """The log shipper's level is for the stream: the line is kept unchanged."""
    found = unwrap(json.dumps(fields).encode())
    assert found is not None
    assert found.text[0] == text


def told(lines):
    prefix = find_prefix(lines)
    return None if prefix is None else [prefix.split(line) for line in lines]


BODY = [b"step 1 loss=0.5", b"RuntimeError: x", b"INFO: y", b""]


@pytest.mark.parametrize("names", [("worker-0", "worker-1"), ("gpu187",), ("10.0.0.1", "10.0.0.2"), ("n1.a.example",)])
@pytest.mark.parametrize("form", ["%s: ", "\x1b[38;5;28m%s:\x1b[0m "])
def test_names_in_front_of_lines(names, form):
    rows = [(name, body) for name in names for body in BODY]
    lines = [(form % name).encode() + body for name, body in rows]
    assert told(lines) == rows


def test_a_name_without_a_digit_needs_a_second_one():
    assert told([b"alice: " + body for body in BODY] * 3) is None
    split = told([name + b": " + body for name in (b"alice", b"bob") for body in BODY])
    assert split is not None
    assert {pair[0] for pair in split} == {"alice", "bob"}


def test_lines_of_others_stay_whole():
    lines = [b"worker-0: a", b"worker-0: b", b"worker-1: c", b"RuntimeError: x", b"loss: 3", b"worker-1: d"]
    assert told(lines) == [("worker-0", b"a"), ("worker-0", b"b"), ("worker-1", b"c"), None, None, ("worker-1", b"d")]


@pytest.mark.parametrize(
    "line",
    [
        b"INFO: started",
        b"WARNING: x",
        b"rank3: loss 1",
        b"step-100: loss 1",
        b"ValueError: x",
        b"train.py: x",
        b"stderr: x",
        b"12.5: x",
        b"2026-11-20 17:45:05,757 - INFO - rank 1 - x",
        b"[default0]:x",
        b"[rank3]: Traceback (most recent call last):",
        b"[2024-05-08 08:47:31,261] torch: [ERROR] failed",
        b"W1120 17:45:05.757000 1 torch/x.py:1028] y",
        b"Epoch 3: 10%|# | 1/10 [00:01<00:05]",
        b"mixed-precision training is on",
        b"2026-11-20 17:45:05.757 | INFO     | __main__:main:3 - x",
        b"INFO main[123]: x",
        b"train | epoch 001 | loss 3.2",
        b"Nov 30 12:00:01 x",
    ],
)
def test_ordinary_lines_have_no_prefix(line):
    assert find_prefix([line] * 40, SHAPES) is None


TEXT = [
    b"[rank1]: Traceback (most recent call last):",
    b'[rank1]:   File "/job/train.py", line 9, in <module>',
    b"Traceback (most recent call last):",
    b'  File "/job/train.py", line 3, in main',
    b"    main()",
    b"ValueError: x",
    b"2026-11-20 17:45:05,757 - INFO - step 3",
]


@pytest.mark.parametrize(
    ("forms", "workers"),
    [
        (["[17:45:05] ", "[17:45:06] "], [None]),
        (["      1\t", "  20001\t"], [None]),
        (["01O "], [None]),
        (["[Service Log]"], [None]),
        (["\x1b[36mw-0 |\x1b[0m ", "\x1b[33mw-1 |\x1b[0m "], ["w-0", "w-1"]),
        (["[w-0] ", "[w-1] "], ["w-0", "w-1"]),
        (["10:00 [rank0] ", "10:00 [rank1] "], [None]),
        (["10:00 MainProcess INFO ", "10:00 SpawnProcess-1 INFO "], [None]),
        (["10:00 [SpawnProcess-2] ", "10:01 [SpawnProcess-1] "], [None]),
        (["logs/w-0.log:", "logs/w-1.log:"], ["w-0", "w-1"]),
        (["w-0\t", "w-1\t"], ["w-0", "w-1"]),
        (["10.0.0.1 10:00 | ", "10.0.0.2 10:01 | "], ["10.0.0.1", "10.0.0.2"]),
        (["Nov 30 12:00:01 w-0 torchrun[7]: ", "Nov 30 12:00:02 w-1 torchrun[8]: "], ["w-0", "w-1"]),
        (["train.0.x1@node0    | ", "train.11.y2@node1   | "], ["train.0.x1@node0", "train.11.y2@node1"]),
    ],
)
def test_a_prefix_that_tracebacks_show_is_taken_off(forms: list[str], workers: list[str | None]) -> None:
    prefix = learned_prefix(b"\n".join(form.encode() + line for form in forms for line in TEXT))
    assert prefix is not None
    for form, worker in zip(forms, workers * len(forms), strict=False):
        assert [prefix.split(form.encode() + line) for line in TEXT] == [(worker, line) for line in TEXT]


def test_torchruns_own_lines_show_a_prefix_too() -> None:
    own = b"W1130 06:02:09.420000 4197 torch/distributed/run.py:852] *****"
    prefix = learned_prefix(b"\n".join(b"[12:00:01] " + line for line in [b"Starting", own, own, b"Setting OMP"]))
    assert prefix is not None
    assert prefix.split(b"[12:00:02]   x") == (None, b"  x")


def test_the_time_in_such_a_prefix_stays() -> None:
    prefix = learned_prefix(b"\n".join(b"[2026-11-20T17:45:05.123Z] " + line for line in TEXT))
    assert prefix is not None
    assert prefix.split(b"[2026-11-20T17:45:05.123Z] x") == (None, b"2026-11-20T17:45:05.123Z x")


@pytest.mark.parametrize(
    "lines",
    [
        TEXT,
        [b"2026-11-20 17:45:05 - ERROR - Traceback (most recent call last):", *TEXT[1:]],
        [b"Original Traceback (most recent call last):", b'  File "/x.py", line 3, in y', b"ValueError: x"],
        [b"(Trainer pid=%d) " % number + line for number in (1, 2) for line in TEXT],
        [
            *(b"[t-%d] " % number + line for number in range(9) for line in TEXT),
            b"E torch/distributed/elastic/x.py:3] y",
        ],
        [b"x1" + line for line in TEXT],
    ],
)
def test_what_a_program_prints_itself_is_no_such_prefix(lines: list[bytes]) -> None:
    assert learned_prefix(b"\n".join(lines)) is None


def test_metrics_and_paths_are_no_workers():
    metrics = [b"train/loss 0.5", b"train/acc 0.9", b"eval/loss 0.6"] * 20
    paths = [b"data/shard-%04d.tar was read" % number for number in range(60)]
    assert told(metrics) is None
    assert told(paths) is None


def test_each_line_its_own_word_is_no_prefix():
    assert told([b"layer%d: frozen" % n for n in range(50)] + [b"block-%d: frozen" % n for n in range(60)]) is None


@pytest.mark.parametrize(
    ("form", "names"),
    [
        (b"train-worker-%d pytorch ", ("train-worker-0", "train-worker-1")),
        (b"main/%d ", ("main/0", "main/1")),
        (b"[%d] ", ("task-0", "task-1")),
        (b"%d: ", ("task-0", "task-1")),
    ],
)
def test_prefixes_of_other_tools(form, names):
    split = told([form % n + body for n in (0, 1) for body in BODY[:3]])
    assert split is not None
    assert split == [(name, body) for name in names for body in BODY[:3]]


def test_kubectl_prefix():
    assert LinePrefix(KUBECTL).split(b"[pod/train-worker-1/pytorch] x: y") == ("train-worker-1", b"x: y")
    assert LinePrefix(KUBECTL).split(b"[pod/train-worker-1/pytorch]") == ("train-worker-1", b"")
    assert LinePrefix(KUBECTL).split(b"[pod/train-worker-1] x") is None


def test_nothing_to_look_at():
    assert find_prefix([]) is None
    assert find_prefix([b"", b"  "]) is None


# Logs that are not plain: of lines without a literal, each worker's last ones are enough.

QUIET = [f"loading shard {number} of the data set" for number in range(3_000)]
PREFIX = "[pod/train-worker-{}/pytorch] "
FORMS = {
    "prefix": PREFIX.format(1),
    "kubelet": f"{STAMP}stdout F ",
    "mpirun": "[1,1]<stdout>:",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_failure_among_many_lines_is_found_in_its_place_with_the_lines_before_it(form: str) -> None:
    lines = [*QUIET, *FAILING, *QUIET]
    workers, feed = fed(text([FORMS[form] + line for line in lines]), alone=form != "prefix")
    (facts,) = [found for reader in workers.known.values() if (found := reader.facts()).traces]
    assert feed.number == len(lines)
    assert facts.traces[0].line_no == len(QUIET) + AT
    assert facts.notes[0].line_no == len(QUIET) + 1 + next(at for at, line in enumerate(FAILING) if "closing" in line)
    assert facts.tail[-1].text == QUIET[-1]
    assert facts.tail[-1].line_no == facts.last_line == len(lines)
    (before, *_) = facts.before.values()
    assert len(before) > 10
    assert [line.line_no for line in before] == sorted(line.line_no for line in before)
    assert all(lines[line.line_no - 1].endswith(line.text) for line in before)


def test_the_last_lines_of_a_worker_that_ends_early_are_kept() -> None:
    first = [PREFIX.format(0) + line for line in [*QUIET, "saving to /ckpt"]]
    workers, _ = fed(text([*first, *(PREFIX.format(1) + line for line in QUIET)]), alone=False)
    tail = workers.known["train-worker-0"].facts().tail
    assert (tail[-1].text, tail[-1].line_no) == ("saving to /ckpt", len(first))


@pytest.mark.parametrize("alone", [True, False])
def test_a_literal_in_two_pieces_of_a_line_is_found(alone: bool) -> None:
    error = "[rank1]: Traceback (most recent call last):"
    pieces = [
        f"{STAMP}stderr P {error[:14]}",
        f"{STAMP}stderr F {error[14:]}",
        f"{STAMP}stderr F [rank1]: ValueError: x",
    ]
    lines = [*(f"{STAMP}stderr F {line}" for line in QUIET), *pieces]
    assert fed(text(lines), alone=alone)[0].places() == {"w-0": [len(QUIET) + 2]}


@pytest.mark.parametrize("alone", [True, False])
def test_a_literal_that_json_escapes_is_found(alone: bool) -> None:
    rows = [json.dumps({"log": f"{line}\n"}) for line in QUIET]
    bad = json.dumps({"log": "XTraceback (most recent call last):\n"}).replace("XT", "\\u0054")
    rows += [bad, json.dumps({"log": "ValueError: x\n"})]
    assert fed(text(rows), alone=alone)[0].places() == {"w-0": [len(QUIET) + 1]}


def test_of_a_worker_with_too_many_failures_the_last_lines_are_read_and_the_others_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeding, "MOST", 100)
    monkeypatch.setattr(feeding, "_DENSE", 200)
    bad = [PREFIX.format(1) + "ValueError: bad sample"] * 2_000
    lines = [*bad[:500], *(PREFIX.format(0) + line for line in FAILING), *bad[500:]]
    lines += [PREFIX.format(1) + line for line in FAILING]
    workers, feed = fed(text(lines), alone=False)
    own = workers.known["train-worker-1"].facts()
    found = {name: places[0] for name, places in workers.places().items()}
    assert found == {"train-worker-0": 500 + AT, "train-worker-1": len(lines) - len(FAILING) + AT}
    assert own.last_line == len(lines)
    assert feed.unread == {
        "train-worker-1": f"lines 101 to {len(lines) - 200} were not read: too many lines look like failures"
    }
