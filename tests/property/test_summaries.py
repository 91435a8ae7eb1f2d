"""Parsing torchelastic's output: the same under every prefix, and never an exception whatever the bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import zip_longest

from hypothesis import example, given, settings
from hypothesis import strategies as st

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.logline import decode
from atlctl.diagnosis.result import Diagnosis
from atlctl.diagnosis.torchelastic import ErrorRecord, Summary, SummaryEntry, parse_error_file
from tests.unit.diagnosis.samples import OLD_BLOCK, PEER_GONE, STACK, block, entry, matcher, parse, worker

FEW = settings(max_examples=60, deadline=None)

PREFIXES = [
    lambda n: "",
    lambda n: "[default0]:",
    lambda n: "[rank0]: ",
    lambda n: "[rank1]: [rank1]: ",
    lambda n: "stderr: ",
    lambda n: "gpu187: ",
    lambda n: "[gpu187:0]:",
    lambda n: "(CommandActor pid=552, ip=10.0.0.7) ",
    lambda n: "main/0 ",
    lambda n: "0: ",
    lambda n: "        ",
    lambda n: f"704.{n}s\t{1400 + n}\t",
    lambda n: f"2026-11-20T17:45:0{n % 10}.{n * 7919:09d}Z ",
    lambda n: f"[2024-05-08 08:47:{n % 60:02d},{n:03d}] torch.distributed.elastic: [ERROR] ",
    lambda n: f"[INFO] 2021-09-13 22:17:{n % 60:02d},651 run: ",
    lambda n: "E1120 17:45:05.757000 140633869123008 torch/distributed/elastic/x.py:1028] ",
    lambda n: "\x1b[31mERROR\x1b[0m ",
]  # fmt: skip


def content(summaries: list[Summary]) -> list[Summary]:
    return [
        replace(item, line_no=0, entries=tuple(replace(found, line_no=0) for found in item.entries))
        for item in summaries
    ]


texts = st.sampled_from([STACK, PEER_GONE, "Signal 9 (SIGKILL) received by PID 4", "<N/A>"])
rows = st.builds(
    entry,
    st.integers(0, 99),
    rank=st.integers(0, 9999),
    local=st.integers(0, 15),
    code=st.sampled_from([1, -9, 17]),
    text=texts,
)
blocks = st.builds(block, rows, st.lists(rows, max_size=4)) | st.just(OLD_BLOCK)


@FEW
@given(blocks, st.lists(st.sampled_from(PREFIXES), min_size=1, max_size=2), st.sampled_from(["\n", "\r\n", ""]))
def test_the_same_under_every_prefix_also_nested(lines, prefixes, ending):
    told = ["".join(prefix(n) for prefix in prefixes) + line + ending for n, line in enumerate(lines)]
    assert content(parse(told).summaries) == content(parse(lines).summaries)
    assert len(parse(lines).summaries) == 1


FOREIGN = [
    "step 4 loss 0.1",
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/f.py", line 1, in g',
    "",
    "\x00",
    "100%|####| 3/3",
    "worker-3:   rank      : 7 (local_rank: 7)",
]


@FEW
@given(blocks, st.lists(st.sampled_from(["own", *FOREIGN]), max_size=60))
def test_foreign_lines_between_change_nothing(lines, choices):
    mixed = [text for line, choice in zip_longest(lines, choices) for text in (choice, line)]
    told = [text for text in mixed if text is not None and text != "own"]
    assert content(parse(told).summaries) == content(parse(lines).summaries)


WORDS = [
    b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    b"Failures:",
    b"Root Cause (first observed failure):",
    b"Root Cause:",
    b"====",
    b"****",
    b"----",
    b"[0]:",
    b"[99999999999999999999]:",
    b"  time      : 2026-11-20_17:45:05",
    b"  time: x",
    b"  rank      : 1 (local_rank: 2)",
    b"  rank      : 99999999999999 (local_rank: 2)",
    b"  exitcode  : -9999999999 (pid: 1)",
    b"  exitcode  : -15 (pid: 1)  (SIGTERM)",
    b"  error_file: /a/attempt_0/0/error.json",
    b"  traceback : Traceback (most recent call last):",
    b'    File "/a.py", line 1, in f',
    b"  ValueError: x",
    b"  msg: \"{'message': 'E",
    b"[rank0]: Traceback (most recent call last):",
    b"[rank0]: ValueError: x",
    b"failed (exitcode: -999) local_rank: -1 (pid: 7) of binary",
    b"Sending process 1 closing signal SIG",
    b"Received 99999 death signal",
    b"torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    b"\x1b]0;",
    b"\x1b[",
    b"\xff\xfe",
    b"\r",
    b"E9999 99:99:99.999999 1 x] failed (exitcode: 1) local_rank: 0 (pid: 7)",
    b"  ",
    b"",
]
hostile_lines = st.lists(st.sampled_from(WORDS) | st.binary(max_size=40), max_size=4).map(b"".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(hostile_lines, max_size=40))
@example([b"Failures:" * 4000, b" " * 40_000 + b"time      : 1", b"A." * 20_000 + b"Error", b"[rank1]:" * 5000])
@example([b"'message': '" * 3000, b"  msg: " + b"'message': '" * 3000, b"[E " + b"x" * 30_000 + b"Watchdog caught"])
def test_hostile_lines_never_raise_and_always_give_an_answer(lines):
    found = worker("w", lines)
    answer = diagnose(JobEvidence((found, replace(found, worker="v", index=1)), expected=3), matcher())
    assert isinstance(answer, Diagnosis)
    assert found.log is not None
    for summary in found.log.summaries:
        assert summary.root_index is None or isinstance(summary.entries[summary.root_index], SummaryEntry)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "extraInfo", "timestamp", "py_callstack", "errorCode"]) | st.text(max_size=3),
            inner,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["message", "timestamp", "extraInfo", "x"]), json_values), st.integers(0, 300))
def test_error_files_of_any_shape_and_cut_anywhere(document, cut):
    data = json.dumps(document).encode()
    for part in (data, data[:cut]):
        record, reason = parse_error_file(part)
        assert (record is None) == bool(reason)
        if isinstance(record, ErrorRecord):
            record.message.encode()
            assert record.time is None or record.time > 0


@FEW
@given(st.binary(max_size=200))
def test_any_bytes_decode(data):
    decode(data).encode()


@FEW
@given(st.text(max_size=60))
def test_valid_text_stays_itself(text):
    assert decode(text.encode("utf-8", "replace")) == text.encode("utf-8", "replace").decode()
