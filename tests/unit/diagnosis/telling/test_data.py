"""A diagnosis as data."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from atlctl.diagnosis.logline import When
from atlctl.diagnosis.result import Diagnosis, GpuIdentity, Proof, RankEnd, Traceback, Verdict
from atlctl.diagnosis.signatures import builtin
from atlctl.diagnosis.telling.data import fraction_digits, to_data, utc
from atlctl.diagnosis.telling.guide import Guide
from atlctl.diagnosis.tracebacks import Frame, Raised
from atlctl.render.jsonout import dumps
from tests.unit.diagnosis import causes
from tests.unit.diagnosis.causes import (
    AT,
    CATEGORIES,
    CAUSE,
    GUIDE,
    MESSAGE,
    ONE,
    SECOND,
    START,
    doubtful,
    found,
    report,
)

DOCS = Path(__file__).parents[4] / "docs"


def test_a_root_cause_has_every_field() -> None:
    cause = replace(
        CAUSE,
        node="n1",
        host_ip="10.0.0.2",
        host="h",
        gpu=GpuIdentity(3, "GPU-1", "0000:3b:00.0"),
        detail="more\nlines",
    )
    (data,) = to_data(found(Verdict.RANK, cause), GUIDE)["root_causes"]
    assert data == {
        "worker": "worker-1", "rank": 3, "local_rank": 1, "attempt": 0, "node": "n1", "host_ip": "10.0.0.2",
        "host": "h", "gpu": {"index": 3, "uuid": "GPU-1", "pci": "0000:3b:00.0"},
        "category": "python_exception", "signature": "magic",
        "exit_code": 1, "signal": None, "exception": "ValueError", "message": MESSAGE, "detail": "more\nlines",
        "frame": {"file": "/job/data.py", "line": 38, "function": "read_header"}, "time": "2026-11-20T17:47:12.905Z",
        "confidence": "certain", "why": CAUSE.why,
        "evidence": [
            {"worker": "worker-1", "line": 25, "text": MESSAGE, "file": None},
            {"worker": "worker-1", "line": None, "text": MESSAGE, "file": "/e/attempt_0/1/error.json"},
        ],
        "advice": "Check the shard.",
        "traceback": None, "last_lines": [],
    }  # fmt: skip


def test_what_is_not_known_is_null_and_not_left_out() -> None:
    bare = replace(
        CAUSE, worker=None, rank=None, local_rank=None, attempt=None, exit_code=None, exception=None, frame=None,
        time=None, signature="", proofs=(),
    )  # fmt: skip
    (data,) = to_data(found(Verdict.WORKER, bare), GUIDE)["root_causes"]
    whole = to_data(ONE, GUIDE)["root_causes"][0]
    assert data.keys() == whole.keys()
    nulls = {key for key, value in data.items() if value is None}
    assert nulls == {
        "worker", "rank", "local_rank", "attempt", "node", "host_ip", "host", "gpu", "signature", "exit_code", "signal",
        "exception", "frame", "time", "traceback",
    }  # fmt: skip
    assert data["evidence"] == []


def test_cascade_workers_and_remarks() -> None:
    data = to_data(ONE, GUIDE)
    assert data["verdict"] == "rank"
    assert data["cascade"] == [
        {
            "reason": "gloo: connection closed by a peer", "count": 3, "workers": ["worker-0", "worker-1"],
            "ranks": [0, 1, 2], "first_time": "2026-11-20T17:47:13.945Z",
            "evidence": {"worker": "worker-0", "line": 7, "text": causes.PEER_GONE, "file": None},
        }
    ]  # fmt: skip
    assert data["workers"][1] == {
        "name": "worker-1", "index": 1, "part": "initiator", "said": MESSAGE, "first_time": "2026-11-20T17:47:12.905Z",
        "processes": 2, "failed": 2, "rounds": 1, "clock_skew": None,
        "evidence": {"worker": "worker-1", "line": 7, "text": MESSAGE, "file": None},
    }  # fmt: skip
    assert data["remarks"] == ["never seen: worker-2"]


def test_lists_are_there_when_they_are_empty() -> None:
    assert to_data(Diagnosis(Verdict.NONE), GUIDE) == {
        "verdict": "none", "root_causes": [], "candidates": [], "cascade": [], "workers": [], "earlier": [],
        "remarks": [], "ranks": None,
    }  # fmt: skip


def test_candidates_and_earlier_failures_have_the_form_of_root_causes() -> None:
    data = to_data(doubtful(CAUSE, earlier=(CAUSE,)), GUIDE)
    whole = to_data(ONE, GUIDE)["root_causes"][0]
    assert data["root_causes"] == []
    assert data["candidates"] == data["earlier"] == [whole]


def test_a_skew_is_rounded_and_a_missing_proof_is_null() -> None:
    worker = report(0, "no log", "", None, proof=None, skew=-1.23456)
    (data,) = to_data(Diagnosis(Verdict.NONE, workers=(worker,)), GUIDE)["workers"]
    assert (data["clock_skew"], data["evidence"], data["first_time"]) == (-1.235, None, None)


def test_hostile_texts_come_through_whole() -> None:
    text = "ValueError: \x1b[2J[bold]\x9b31m\u202e\ud800 训练"
    data = to_data(found(Verdict.RANK, replace(CAUSE, message=text)), GUIDE)
    assert data["root_causes"][0]["message"] == text
    assert json.loads(dumps(data)) == data


@pytest.mark.parametrize(
    ("when", "shown"),
    [
        (AT, "2026-11-20T17:47:12.905Z"),
        (SECOND, "2026-11-20T17:47:12Z"),
        (When(START, 0.01), "2026-11-20T17:47:12.90Z"),
        (When(START + 0.0944, 0.01), "2026-11-20T17:47:12.99Z"),
        (When(START + 0.000123, 1e-6), "2026-11-20T17:47:12.905123Z"),
        (When(START, 1e-9), "2026-11-20T17:47:12.905000Z"),
        (When(START, 60.0), "2026-11-20T17:47:12Z"),
        (None, None),
        (When(1e12, 1.0), None),
        (When(962000000.0, 1.0), None),  # a line without a year
    ],
)
def test_times_have_the_digits_that_their_clock_deserves(when: When | None, shown: str | None) -> None:
    assert utc(when) == shown


def test_a_stamp_comes_back_as_it_was_printed() -> None:
    for milliseconds in range(1000):
        assert utc(When(1795196832 + milliseconds / 1000, 0.001)) == f"2026-11-20T17:47:12.{milliseconds:03d}Z"


def test_digits_of_a_resolution() -> None:
    assert [fraction_digits(step) for step in (2.0, 1.0, 0.5, 0.1, 0.01, 0.001, 1e-6, 1e-12, 0.0, -1.0)] == [
        0, 0, 1, 1, 2, 3, 6, 6, 0, 0,
    ]  # fmt: skip


def test_advice_is_the_signature_s_then_the_category_s_then_none() -> None:
    assert GUIDE.advice(CAUSE, "en") == "Check the shard."
    assert GUIDE.advice(CAUSE, "zh") == "检查该分片。"
    assert GUIDE.advice(replace(CAUSE, signature=""), "en") == "Do python_exception."
    assert GUIDE.advice(replace(CAUSE, category="made_up"), "en") == ""


def test_a_victim_s_signature_has_no_say_on_another_category() -> None:
    cause = replace(CAUSE, category="hang")
    assert GUIDE.advice(cause, "en") == "Do hang."


def test_an_unknown_category_is_told_by_its_signature_or_its_id() -> None:
    cause = replace(CAUSE, category="made_up")
    assert (GUIDE.title(cause, "en"), GUIDE.title(cause, "zh"), GUIDE.meaning(cause, "en")) == (
        "made_up",
        "made_up",
        "",
    )
    assert not GUIDE.hardware(cause)
    own = Guide(CATEGORIES, [causes.signature("magic", "made_up", "Ask them.")])
    assert (own.title(cause, "en"), own.title(cause, "zh")) == ("meaning of magic", "magic 的含义")


def test_hardware_is_what_the_signature_or_category_says() -> None:
    assert GUIDE.hardware(replace(CAUSE, category="gpu_ecc"))
    own = Guide(CATEGORIES, [causes.signature("magic", "python_exception", "Swap it.", hardware=True)])
    assert own.hardware(CAUSE)
    assert not own.hardware(replace(CAUSE, signature=""))


def test_the_user_s_signature_comes_before_the_package_s() -> None:
    known = builtin().signatures[0]
    cause = replace(CAUSE, category=known.category, signature=known.id)
    assert Guide.builtin().advice(cause, "en") == known.advice.en
    own = causes.signature(known.id, known.category, "Ask the storage team.")
    assert Guide.builtin([own]).advice(cause, "en") == "Ask the storage team."


@pytest.mark.parametrize("name", ["en/errors.md", "zh/errors.md"])
def test_every_field_is_documented(name: str) -> None:
    named = set(re.findall(r"`([^`\n]+)`", (DOCS / name).read_text("utf-8")))
    proof = CAUSE.proofs[0]
    trace = Traceback((Frame("a.py", 1, "f"),), earlier=(Raised("E", "E: x", (), None, 1),), proof=proof)
    cause = replace(CAUSE, gpu=GpuIdentity(), traceback=trace, last_lines=(proof,))
    end = RankEnd("w", 0, 0, "cause", 1, None, "", None, proof)
    data = to_data(replace(ONE, root_causes=(cause,), ranks=(end,)), GUIDE, ranks=True)
    (root,), (group,), worker = data["root_causes"], data["cascade"], data["workers"][0]
    shown, (rank,) = root["traceback"], data["ranks"]
    fields = {*data, *root, *root["gpu"], *root["frame"], *root["evidence"][0], *group, *worker, *rank}
    fields |= {*shown, *shown["frames"][0], *shown["earlier"][0]}
    assert fields - named == set()


@pytest.mark.parametrize(("name", "language"), [("en/categories.md", "en"), ("zh/categories.md", "zh")])
def test_every_category_is_documented_with_its_title(name: str, language: str) -> None:
    rows = dict(re.findall(r"^\| `([a-z_0-9]+)` \| ([^|]+) \|", (DOCS / name).read_text("utf-8"), re.MULTILINE))
    titles = {item.id: getattr(item.title, language) for item in builtin().categories.values()}
    assert {key: rows.get(key) for key in titles} == titles


def test_a_traceback_as_data() -> None:
    first = Raised("KeyError", "KeyError: 'lr'", (), Frame("/job/c.py", 3, "load"), 5)
    frames = (Frame("/job/a.py", 1, "f", "g()"), Frame("<string>", 2, "g"))
    trace = Traceback(frames, 4, "ValueError", MESSAGE, (first,), Proof("worker-1", 12, MESSAGE))
    (data,) = to_data(found(Verdict.RANK, replace(CAUSE, traceback=trace)), GUIDE)["root_causes"]
    assert data["traceback"] == {
        "exception": "ValueError", "message": MESSAGE,
        "frames": [
            {"file": "/job/a.py", "line": 1, "function": "f", "source": "g()", "own": True},
            {"file": "<string>", "line": 2, "function": "g", "source": None, "own": False},
        ],
        "omitted": 4,
        "earlier": [
            {"exception": "KeyError", "message": "KeyError: 'lr'",
             "frame": {"file": "/job/c.py", "line": 3, "function": "load"}}
        ],
        "evidence": {"worker": "worker-1", "line": 12, "text": MESSAGE, "file": None},
    }  # fmt: skip


def test_ranks_are_data_if_asked_for() -> None:
    end = RankEnd("worker-1", 3, 1, "cause", 1, None, MESSAGE, AT, None)
    assert to_data(replace(ONE, ranks=(end,)), GUIDE)["ranks"] is None
    assert to_data(replace(ONE, ranks=(end,)), GUIDE, ranks=True)["ranks"] == [
        {
            "worker": "worker-1", "rank": 3, "local_rank": 1, "part": "cause", "exit_code": 1, "signal": None,
            "said": MESSAGE, "time": "2026-11-20T17:47:12.905Z", "evidence": None,
        }
    ]  # fmt: skip
