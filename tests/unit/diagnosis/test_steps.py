"""Training steps from lines of logs, and when a training became slow: no alarm in healthy ones, none missed."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from atlctl.diagnosis import steps
from atlctl.diagnosis.logline import Origin
from atlctl.diagnosis.signatures import shape
from atlctl.diagnosis.steps import MAX_POINTS, MeasuredStep, Slowdown, StepTrack, Tracks, read_steps, standstill
from atlctl.recording.lines import LineReader
from tests.support.paces import HEALTHY, KINDS, START, lines_of, noisy, slowed

ENTRIES = tomllib.loads(Path(steps._FILE).read_text())["format"]
EXAMPLES = [(entry["id"], example) for entry in ENTRIES for example in entry["examples"]]
CORPUS = (Path(__file__).parents[2] / "corpus" / "data", Path(__file__).parents[4] / "shared" / "corpus")


def fed(lines: Iterable[tuple[bytes, float | None]]) -> Tracks:
    tracks = Tracks()
    for line, at in lines:
        tracks.feed(line, at)
    return tracks


def only(tracks: Tracks) -> StepTrack:
    (track,) = tracks.main()
    return track


# --- lines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "example"), EXAMPLES, ids=[f"{form}-{at}" for at, (form, _) in enumerate(EXAMPLES)])
def test_read_steps_example(form: str, example: dict[str, Any]) -> None:
    (found,) = read_steps(example["line"].encode())
    assert found.form.id == form
    got = {
        "step": found.number,
        "total": found.total,
        "epoch": found.epoch,
        "seconds": found.seconds,
        "loss": found.loss,
        "elapsed": found.elapsed,
    }
    known = {name: value for name, value in got.items() if value is not None}
    assert known == pytest.approx({name: value for name, value in example.items() if name != "line"}, rel=1e-3)


@pytest.mark.parametrize(
    "line",
    [
        b"Total optimization steps = 1,000",
        b"Saving checkpoint at step 100",
        b"resuming from iteration 400",
        b" validation loss at iteration 1000 | lm loss value: 2.3E+00 |",
        b"step 500: train loss 2.1, val loss 2.3",
        b"Evaluating:  12%|#2        | 12/100 [00:03<00:22,  4.00it/s]",
        b"Validation DataLoader 0:  12%|#2        | 12/100 [00:03<00:22,  4.00it/s]",
        b"Loading checkpoint shards: 100%|##########| 3/3 [00:03<00:00,  1.00s/it]",
        b"Map:  12%|#2        | 12/100 [00:03<00:22,  4.00it/s]",
        b"Test:  [ 10/98]  eta: 0:00:11  loss: 0.3 (0.5)  time: 0.2123  data: 0.0002",
        b"{'eval_loss': 2.1, 'eval_runtime': 3.1, 'epoch': 1.0}",
        b"pip: 12 packages, 300 kB/s",
        b"/usr/lib/python3/site-packages/step.py:12: iterating over a set",
        b"step took 12.5 s",
        b"\xff\xfe step=\xff",
    ],
)
def test_read_steps_of_other_lines(line: bytes) -> None:
    assert read_steps(line) == ()


def test_read_steps_takes_stamp_and_rank() -> None:
    (found,) = read_steps(b"2026-11-20T17:45:05.500000000Z [rank3]: step 12 loss 2.3")
    assert (found.origin, found.number, found.at) == (Origin(3), 12, 1795196705.5)


def test_read_steps_takes_the_loggers_time() -> None:
    (found,) = read_steps(b"2026-11-20 17:45:05,250 INFO step 12 loss 2.3")
    assert (found.at, found.resolution) == (1795196705.25, 0.001)


def test_read_steps_of_a_redrawn_bar() -> None:
    drawn = b"".join(b"\r  1%%|  | %d/900 [00:%02d<09:00,  1.00it/s]" % (step, step) for step in range(50))
    found = read_steps(drawn, START)
    assert [(item.number, item.at) for item in found] == [(step, START - 49 + step) for step in range(50)]
    many = read_steps(drawn * 20, START)
    assert 32 <= len(many) <= 64


def test_patterns_are_as_cheap_as_those_of_signatures() -> None:
    for form in steps.formats():
        for pattern in (form.pattern, *form.also):
            shape(pattern.pattern)  # raises PatternRefused


# --- durations ------------------------------------------------------------------------------------------------------


def test_the_time_between_lines_is_the_duration() -> None:
    track = only(fed((b"step %d loss 2" % number, START + 2.0 * number) for number in range(0, 100, 10)))
    assert [point.seconds for point in track.points] == [2.0] * 9
    assert (track.points[0].first, track.points[0].number, track.points[0].began) == (1, 10, START)


def test_lines_that_a_buffer_held_back_are_measured_together() -> None:
    lines = [(b"step %d loss 2" % (100 * bunch + at), START + 100.0 * bunch) for bunch in range(5) for at in range(100)]
    track = only(fed(lines))
    assert [point.seconds for point in track.points] == [1.0] * 4


def test_copies_of_a_line_by_other_ranks_count_once() -> None:
    lines = [(b"step %d loss 2" % (step - late), START + step) for step in range(2, 50) for late in (0, 0, 1)]
    track = only(fed(lines))
    assert {point.seconds for point in track.points} == {1.0}
    assert track.number == 49


def test_each_rank_has_its_track() -> None:
    tracks = fed((b"[rank%d]: step %d loss 2" % (rank, step), START + step) for step in range(9) for rank in (1, 0))
    assert [track.origin.rank for track in tracks.main()] == [0, 1]


def test_steps_of_the_next_epoch_go_on() -> None:
    bars = [
        (f"Epoch {epoch}:  1%|  | {step}/20 [00:{step:02}<01:00,  1.00it/s]".encode(), START + 20 * epoch + step)
        for epoch in range(3)
        for step in range(1, 21)
    ]
    track = only(fed(bars))
    assert (track.number, track.ended, track.points[-1].first) == (60, True, 60)


def test_the_same_number_counted_from_a_bar_without_epoch_goes_on() -> None:
    bars = [
        (f" 1%|  | {step}/20 [00:{step:02}<01:00,  1.00it/s]".encode(), START + 20 * epoch + step)
        for epoch in range(3)
        for step in range(1, 21)
    ]
    assert only(fed(bars)).number == 60


def test_evaluation_bars_without_a_text_are_another_track() -> None:
    lines: list[tuple[bytes, float | None]] = []
    for step in range(1, 200):
        lines.append((f" 1%|  | {step}/1000 [00:01<01:00,  1.00it/s]".encode(), START + step))
        if step % 50 == 0:
            lines += [
                (b" 1%%|  | %d/13 [00:01<01:00,  1.00it/s]" % at, START + step + 0.05 * at) for at in range(1, 14)
            ]
    assert only(fed(lines)).number == 199


def test_long_tracks_are_thinned_out() -> None:
    track = StepTrack()
    for number in range(1, 3 * MAX_POINTS):
        track.put(MeasuredStep(number, number, START + number, 1.0))
    assert len(track.points) <= MAX_POINTS
    assert {point.seconds for point in track.points} == {1.0}
    assert track.points[0].first == 1
    assert track.points[-1].number == 3 * MAX_POINTS - 1


# --- slow -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEALTHY)
def test_no_alarm_in_healthy_training(name: str) -> None:
    for kind in KINDS:
        made = HEALTHY[name](random.Random(name))
        if kind == "bar" and made.epoch:
            continue  # these lines name no epoch
        if kind != "stamps" and len(made.steps) > 3000:
            continue
        tracks = fed(lines_of(made, kind))
        assert [track.slowdowns for track in tracks.found.values()] == [[]], kind


@pytest.mark.parametrize("factor", [1.5, 2, 3, 5])
def test_slow_training_is_found_within_five_steps(factor: float) -> None:
    for seed in range(10):
        tracks, found = Tracks(), None
        for line, at in lines_of(slowed(random.Random(seed), factor), "stamps"):
            tracks.feed(line, at)
            track = only(tracks) if tracks.found and (found or next(iter(tracks.found.values())).points) else None
            if track is not None and found is None and track.current_slowdown:
                found = track.number
        assert found is not None
        assert found <= 205
        (slow,) = only(tracks).slowdowns
        assert abs(slow.first - 201) <= 1
        assert slow.factor == pytest.approx(factor, rel=0.05)
        assert slow.start == pytest.approx(START + 200, rel=1e-6)


@pytest.mark.parametrize("factor", [2, 3])
def test_slow_training_is_found_soon_after_the_warm_up(factor: float) -> None:
    for seed in range(10):
        (slow,) = only(fed(lines_of(slowed(random.Random(seed), factor, at=24), "stamps"))).slowdowns
        assert abs(slow.first - 25) <= 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.1, 0.2])
def test_slow_training_with_more_noise(kind: str, share: float) -> None:
    for seed in range(5):
        slow = only(fed(lines_of(slowed(random.Random(seed), 3, at=600, share=share), kind))).slowdowns
        assert max(item.factor for item in slow) == pytest.approx(3, rel=0.1)
        assert abs(slow[0].first - 601) <= 10


def test_the_platforms_example() -> None:
    times = [3101.0] * 82 + [9465.0] * 5 + [16704.0] * 5
    lines, at = [], START
    for number, ms in enumerate(times, 1):
        at += ms / 1000
        line = f" iteration {number:8}/  500000 | elapsed time per iteration (ms): {ms:.1f} | lm loss: 2.6E+00 |"
        lines.append((line.encode(), at))
    first, second = only(fed(lines)).slowdowns
    assert (first.first, first.last, round(first.factor, 2)) == (83, 87, 3.05)
    assert (second.first, second.last, round(second.factor, 2)) == (88, None, 5.39)
    assert (first.usual, first.now, second.now) == pytest.approx((3.101, 9.465, 16.704))


def test_a_slow_phase_ends() -> None:
    rng = random.Random(1)
    steps_of = [*noisy(rng, 200), *noisy(rng, 60, 2.0), *noisy(rng, 200)]
    track, at = StepTrack(), START
    for number, seconds in enumerate(steps_of, 1):
        at += seconds
        track.put(MeasuredStep(number, number, at, seconds))
    (slow,) = track.slowdowns
    assert (slow.first, slow.last) == (201, 260)
    assert track.current_slowdown is None
    assert slow.seconds == pytest.approx(120, rel=0.05)


def test_equal_slow_phases_at_equal_distances_belong_to_the_training() -> None:
    rng = random.Random(1)

    def phases(gaps: Iterable[int]) -> list[Slowdown]:
        track, number = StepTrack(), 0
        for gap in gaps:
            for seconds in (*noisy(rng, gap), *noisy(rng, 15, 2.0)):
                number += 1
                track.put(MeasuredStep(number, number, START + number, seconds))
        for seconds in noisy(rng, 50):
            number += 1
            track.put(MeasuredStep(number, number, START + number, seconds))
        return track.slowdowns

    assert phases([200] * 5) == []
    assert len(phases([200, 70, 400])) == 3


@pytest.mark.parametrize("folder", CORPUS, ids=["own", "shared"])
def test_no_alarm_in_the_corpus(folder: Path) -> None:
    logs = [path for path in sorted(folder.rglob("*.log")) if path.is_file()]
    if not logs:
        pytest.skip("no corpus")
    found = 0
    for path in logs:
        tracks, reader = Tracks(), LineReader()
        for line in [*reader.feed(path.read_bytes()), *reader.finish()]:
            tracks.feed(line)
        found += len(tracks.main())
        assert [track.slowdowns for track in tracks.found.values() if track.slowdowns] == [], path
    assert found > 20


# --- standstill -----------------------------------------------------------------------------------------------------


def training(count: int, seconds: float, pauses: Iterable[int] = ()) -> StepTrack:
    at, lines = START, []
    for number in range(1, count + 1):
        at += seconds + (300 if number in set(pauses) else 0)
        lines.append((b"step %d loss 2.3" % number, at))
    return only(fed(lines))


def test_standstill() -> None:
    track = training(100, 3.0)
    assert track.last is not None
    assert standstill(track, track.last + 100) is None
    still = standstill(track, track.last + 840)
    assert still is not None
    assert (still.step, still.seconds, still.usual) == (100, 840, 3.0)


def test_no_standstill_within_a_pause_like_the_longest() -> None:
    track = training(100, 3.0, pauses=[50])
    assert track.last is not None
    assert standstill(track, track.last + 500) is None
    assert standstill(track, track.last + 700) is not None


def test_no_standstill_within_ten_usual_steps() -> None:
    track = training(100, 60.0)
    assert track.last is not None
    assert standstill(track, track.last + 590) is None
    assert standstill(track, track.last + 610) is not None


def test_no_standstill_after_the_last_step() -> None:
    track = only(fed((b"step %d/100 loss 2.3" % number, START + number) for number in range(101)))
    assert standstill(track, START + 10_000) is None


@pytest.mark.parametrize("seed", [386, 432, 1153, 1305])
def test_a_change_whose_last_steps_are_as_before_leaves_no_phase_empty(seed: int) -> None:
    """A mean of ten steps may be another one although its last three are not."""
    chance, track, number = random.Random(seed), StepTrack(), 0
    for _ in range(8):
        pace = chance.choice((0.1, 0.2, 0.5))
        for _ in range(chance.randint(5, 60)):
            number += 1
            track.put(MeasuredStep(number, number, None, pace * chance.uniform(1, 2.5)))
            assert track.current_slowdown is None or track.current_slowdown.factor > 1
    assert track.slowdowns
