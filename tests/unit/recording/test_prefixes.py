from __future__ import annotations

import pytest

from atlctl.recording.prefixes import find_prefix, kubectl_pod


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
    ],
)
def test_ordinary_lines_have_no_prefix(line):
    assert told([line] * 40) is None


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
    assert kubectl_pod(b"[pod/train-worker-1/pytorch] x: y") == ("train-worker-1", b"x: y")
    assert kubectl_pod(b"[pod/train-worker-1/pytorch]") == ("train-worker-1", b"")
    assert kubectl_pod(b"[pod/train-worker-1] x") is None


def test_nothing_to_look_at():
    assert find_prefix([]) is None
    assert find_prefix([b"", b"  "]) is None
