"""When a training was slow, whether it stands still, and the last steps of workers, as they are shown."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

from atlctl.cli.evidence import recorded
from atlctl.cli.evidence.recorded import last_steps
from atlctl.cli.evidence.steps import steps_chart, still_data, still_of, still_text, when_of
from atlctl.cli.views import workers_table
from atlctl.diagnosis.stepfile import STEPS
from atlctl.diagnosis.steps import StepTrack, Tracks
from atlctl.diagnosis.telling.guide import Guide, Manner
from atlctl.jobs.model import Job, State, Worker
from atlctl.recording import manifest
from atlctl.render.page import ReportPage, render
from atlctl.render.streams import Streams
from atlctl.render.table import render_table
from tests.support.paces import START, Made, lines_of, slowed

WORKERS = tuple(Worker(f"worker-{n}", n, State.RUNNING, uid=f"pod-{n}") for n in range(3))
JOB = Job("train", "PyTorchJob", "kubernetes", State.RUNNING, "uid-1", 3, WORKERS, namespace="team")


def tracks(made: Made) -> list[StepTrack]:
    found = Tracks()
    for line, at in lines_of(made, "megatron"):
        found.feed(line, at)
    return found.main()


def test_when_of_folds_workers_that_were_slow_together() -> None:
    slow = tracks(slowed(random.Random(1), 3))
    found = when_of({"w-0": slow, "w-1": slow, "w-2": tracks(Made([0.5] * 100))})
    assert found.slow
    shown = [line.split() for line in render_table(found.table, Streams()).splitlines()]
    assert shown[0][:4] == ["WORKER", "STEPS", "USUAL", "SLOW"]
    assert shown[1][:5] == ["w-[0-1]", "400", *shown[1][2:4], "201"]
    assert shown[1][-1].startswith(("2.9", "3.0"))
    assert shown[2] == ["w-2", "100", "500", "ms", *"-----"]
    assert [item["worker"] for item in found.data] == ["w-0", "w-1", "w-2"]
    assert found.data[2]["slowdowns"] == []
    (phase,) = found.data[0]["slowdowns"]
    assert (phase["first_step"], phase["last_step"], phase["end"]) == (201, None, None)
    assert phase["start"].startswith("2023-11-14T22:16:")
    json.dumps(found.data)


def test_when_of_nothing() -> None:
    found = when_of({})
    assert (found.slow, list(found.data), list(found.table.rows)) == (False, [], [])


def test_steps_chart_has_slow_tracks_first() -> None:
    lines = dict.fromkeys(("steps usual", "steps over time"), "{usual}")
    manner = Manner("en", True, Guide.builtin(), str, lambda _: None)
    chart = steps_chart({"w-0": tracks(Made([0.5] * 1000)), "w-1": tracks(slowed(random.Random(1), 3))}, manner, lines)
    assert chart is not None
    first, second = chart.curves
    assert (first.name, second.name, len(second.points)) == ("w-1", "w-0", 334)
    assert [time for time, _ in first.changes] == [pytest.approx(START + 200, abs=15)]
    assert "3.0 times slower since" in first.said
    assert second.changes == []
    drawn = render(
        ReportPage(
            "en",
            {"x": "Steps", "verdict": "", "contents": "", "made": ""},
            "t",
            [],
            [],
            "none",
            [],
            [],
            [("x", [chart])],
        )
    )
    assert drawn.count('class="curve"') == 2
    assert drawn.count('class="change"') == 1
    assert "nan" not in drawn
    assert steps_chart({"w-0": tracks(Made([1.0] * 3))}, manner, lines) is None


def test_a_job_stands_still_if_all_its_workers_do() -> None:
    old = [(b"step %d loss 2.3" % number, START + 3 * number) for number in range(100)]
    new = [(line, at + 3600) for line, at in old]
    now = START + 297 + 840
    still = still_of({"w-0": old, "w-1": [(b"no step", START)]}, now)
    assert still is not None
    assert still_data(still) == {"step": 99, "seconds": 840, "usual_seconds": 3.0}
    assert still_text(still) == "no training step for 14 min (step 99 was the last one; the usual step takes 3 s)"
    assert still_of({"w-0": old, "w-1": new}, now + 3600 - 800) is None
    assert still_of({"w-0": []}, now) is None
    assert still_data(None) is None


def recording(*, ended: float | None) -> None:
    folder = recorded.new_folder(JOB)
    os.mkdir(folder, 0o700)
    about = {"name": "train", "kind": "PyTorchJob", "uid": "uid-1", "state": "Running"}
    whole = {"version": manifest.VERSION, "job": about, "workers": [], "recorder": {"updated": 4.0, "ended": ended}}
    Path(folder, "atlctl.json").write_text(json.dumps(whole))
    entry = {"loop": "plain step", "seconds": 2.0}
    now = time.time()
    lines = [
        {"worker": f"worker-{n}", "first": step, "step": step, "time": now - 60 - n + step, **entry}
        for step in range(1, 10)
        for n in range(2)
    ]
    Path(folder, STEPS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.usefixtures("isolated")
def test_last_steps_of_a_recording() -> None:
    assert last_steps(JOB) == {}
    recording(ended=5.0)
    found = last_steps(JOB)
    assert {name: step for name, (step, _) in found.items()} == {"worker-0": 9, "worker-1": 9}
    assert 51 <= found["worker-0"][1] < found["worker-1"][1]


@pytest.mark.usefixtures("isolated")
def test_last_steps_of_a_recording_that_broke_off_are_not_shown() -> None:
    recording(ended=None)
    assert last_steps(JOB) == {}


def test_columns_of_steps_only_if_there_are_steps() -> None:
    table = workers_table(WORKERS, (), Streams(stdout_tty=True, width=200), False, {"worker-1": (120, 75.0)})
    head, *rows = table.splitlines()
    assert "STEP  STEP AGE" in head
    assert [("120" in row, "75s" in row or "1m" in row) for row in rows] == [
        (False, False),
        (True, True),
        (False, False),
    ]
    assert "STEP" not in workers_table(WORKERS, (), Streams(), True, {})
