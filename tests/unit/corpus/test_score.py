"""The scoring rules, and today's scores on the committed cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.corpus import methods
from tests.corpus.cuts import CUTS, cut_scores
from tests.corpus.make import DATA
from tests.corpus.score import VIEWS, Answer, Evidence, Score, details, judge, kinds, score, show_evidence, table
from tests.support.once import once

ROOT = Path(__file__).parents[3]
RANK = {"kind": "rank", "node": "worker-1", "local_rank": 1}
RANKS = {"kind": "ranks", "any_of": [{"node": "a", "local_rank": 0}, {"node": "b", "local_rank": 1}]}
NODE = {"kind": "node", "node": "worker-0"}
BOTH = {**NODE, "also_right": [{"verdict": "ranks", "node": "worker-0"}]}
MISSING = {"kind": "missing_node", "node": "worker-2"}


@pytest.mark.parametrize(
    ("truth", "answer", "mark"),
    [
        (RANK, Answer("rank", "worker-1", 1), "right"),
        (RANK, Answer("rank", "worker-1", 0), "wrong"),
        (RANK, Answer("rank", "worker-0", 1), "wrong"),
        (RANK, Answer("rank", "worker-1", None), "wrong"),
        (RANK, Answer("rank"), "wrong"),
        ({**RANK, "global_rank": 3}, Answer("rank", "worker-1", None, rank=3), "right"),
        ({**RANK, "global_rank": 3}, Answer("rank", "worker-0", None, rank=3), "wrong"),
        ({**RANK, "global_rank": 3}, Answer("rank", "worker-1", 0, rank=3), "wrong"),
        ({**RANK, "global_rank": 3}, Answer("rank", rank=3), "right"),
        ({**RANK, "global_rank": 3}, Answer("rank", rank=2), "wrong"),
        ({**RANK, "also": ["undecided"]}, Answer("undecided"), "accepted"),
        ({**RANK, "also": ["ranks"]}, Answer("ranks", "worker-0", 0), "accepted"),
        ({**RANK, "also": ["node:worker-1"]}, Answer("worker", "worker-1"), "accepted"),
        ({**RANK, "also": ["node:worker-1"]}, Answer("worker", "worker-0"), "wrong"),
        ({**NODE, "also": ["rank_on:worker-0"]}, Answer("rank", "worker-0", 1), "accepted"),
        (RANK, Answer("worker", "worker-1"), "wrong"),
        (RANK, Answer("undecided", "worker-1", 1), "abstained"),
        (RANKS, Answer("ranks", "b", 1), "right"),
        (RANKS, Answer("ranks", "b", 0), "wrong"),
        (RANKS, Answer("rank", "b", 1), "wrong"),
        ({**RANKS, "also": ["one_of"]}, Answer("rank", "b", 1), "accepted"),
        ({**RANKS, "also": ["one_of"]}, Answer("rank", "b", 0), "wrong"),
        ({"kind": "rank", "log": "x", "node": "a", "global_rank": 2}, Answer("rank", "x", None, rank=2), "right"),
        ({"kind": "rank", "log": "x", "node": "a", "global_rank": 2}, Answer("rank", "x", 2, rank=1), "wrong"),
        (NODE, Answer("worker", "worker-0"), "right"),
        (NODE, Answer("worker", "worker-0", 1), "right"),
        (NODE, Answer("worker"), "wrong"),
        (NODE, Answer("external", "worker-0"), "wrong"),
        (MISSING, Answer("worker", "worker-2"), "right"),
        (MISSING, Answer("worker"), "right"),
        (MISSING, Answer("worker", "worker-0"), "wrong"),
        ({"kind": "job"}, Answer("job"), "right"),
        ({"kind": "job", "node": None}, Answer("job", "worker-0"), "right"),
        ({"kind": "external"}, Answer("external"), "right"),
        ({"kind": "none"}, Answer("none"), "right"),
        (BOTH, Answer("worker", "worker-0"), "right"),
        (BOTH, Answer("ranks", "worker-0", 1), "right"),
        (BOTH, Answer("ranks", "worker-1", 1), "wrong"),
        (BOTH, Answer("rank", "worker-0", 1), "wrong"),
        ({"kind": "none"}, Answer("undecided"), "abstained"),
        ({"kind": "none"}, Answer("job"), "wrong"),
    ],
)
def test_rules(truth: dict[str, Any], answer: Answer, mark: str) -> None:
    assert judge(truth, answer) == mark


def test_a_method_never_sees_the_truth(tmp_path: Path) -> None:
    case = DATA / "exception_recorded_last_rank"
    seen = {}
    for number, view in enumerate(VIEWS):
        target = tmp_path / str(number)
        show_evidence(case, target, view)
        seen[view] = {path.name for path in target.iterdir()}
    assert seen[Evidence()] == {"worker-0.log", "worker-1.log"}
    assert seen[Evidence(timestamps=True)] == {"worker-0.ts.log", "worker-1.ts.log"}
    assert seen[VIEWS[-1]] == {"worker-0.ts.log", "worker-1.ts.log", "files"}


def always(confidence: str) -> Score:
    """The score of a method that always blames the second process of worker 1."""
    return score("always", lambda folder: Answer("rank", "worker-1", 1, confidence))


def test_counts_and_calibration() -> None:
    item = always("certain")
    right, wrong = item.count("right"), item.count("wrong")
    assert right > 0
    assert right + wrong == sum(kinds().values()) == len(item.results)
    assert item.wrong_and_certain == item.count("wrong", "certain") == wrong
    assert item.words() == ["certain"]
    assert always("guess").wrong_and_certain == 0
    text = table([item])
    assert f"certain  {right + wrong}" in " ".join(text.split("\n")[-1:])
    assert f"{100 * right / (right + wrong):.0f} %" in text
    assert details(item).count("\n") + 1 == wrong


def test_abstaining_has_no_calibration() -> None:
    item = score("mute", lambda folder: Answer("undecided"))
    honest = kinds()["undecided"]
    assert (item.count("right"), item.count("abstained")) == (honest, len(item.results) - honest)
    assert item.words() == []


def test_there_are_cases_of_every_kind() -> None:
    assert set(kinds()) == {"rank", "ranks", "node", "missing_node", "job", "external", "none", "undecided"}


#: The promised shares on the committed cases: right of all, `certain` of the decidable, right of the `likely`.
MIN_RIGHT = 0.94
MIN_CERTAIN = 0.6
MIN_LIKELY_RIGHT = 0.9


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> list[Score]:
    def made() -> list[Score]:
        every = methods.METHODS.items()
        return [score(name, method, evidence=view) for name, (method, views) in every for view in views]

    return once(tmp_path_factory, "scores", made)


def test_todays_score(scores: list[Score], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{table(scores)}")
    ours = [item for item in scores if item.method == "root cause"]
    baselines = [item for item in scores if item.method != "root cause"]
    decidable = sum(count for kind, count in kinds().items() if kind not in ("none", "undecided"))
    assert len(ours) == len(VIEWS)
    for item in ours:
        assert item.count("right") >= MIN_RIGHT * len(item.results), details(item)
        assert item.count("right", "certain") >= MIN_CERTAIN * decidable
        likely = item.count("right", "likely")
        assert likely >= MIN_LIKELY_RIGHT * (likely + item.count("wrong", "likely")), details(item)
        assert item.wrong_and_certain == 0, details(item)
        assert all(item.count("right") > 3 * other.count("right") for other in baselines)
    # Error files only improve the result.
    for without, also in ((ours[0], ours[1]), (ours[2], ours[3])):
        assert also.count("right") >= without.count("right")
        assert also.count("wrong") <= without.count("wrong")


def test_damaged_logs_get_no_wrong_answer() -> None:
    """At most one of a hundred, and none that is called certain; of those without their evidence one of twenty."""
    cut = {name: cut_scores(name) for name in CUTS}
    shown = "\n".join(f"{item.method}: {details(item, only_wrong=True)}" for item in cut.values())
    assert not any(item.wrong_and_certain for item in cut.values()), shown
    bare = cut.pop("without its evidence")
    assert bare.count("wrong") <= 0.05 * len(bare.results), shown
    assert sum(item.count("wrong") for item in cut.values()) <= 0.01 * sum(len(x.results) for x in cut.values()), shown


@pytest.mark.slow  # if the other test that takes the scores is skipped, this one makes them
def test_the_table_in_the_docs_is_todays(scores: list[Score]) -> None:
    assert table(scores) in (ROOT / "docs/en/corpus.md").read_text(encoding="utf-8")
