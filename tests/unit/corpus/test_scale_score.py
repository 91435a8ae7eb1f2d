"""The promised quality at scale, on small versions of the synthetic cases; docs/en/corpus.md has 64 x 8 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.recording.read import read_saved
from tests.corpus.methods import matcher, root_cause
from tests.corpus.scale.opening import Size
from tests.corpus.scale.rendering import CASES, render
from tests.corpus.score import Evidence, details, score

#: Workers and processes of each case, and seeds: they vary the culprit, missing logs and wrong clocks.
SIZE = Size(12, 4)
SEEDS = (31, 32)
MIN_RIGHT = 0.95
#: Maximum lines of the cascade on a screen.
MAX_LINES = 10


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder of cases for each of `SEEDS`."""
    folders = []
    for seed in SEEDS:
        folder = tmp_path_factory.mktemp(f"scale{seed}")
        for name in CASES:
            render(name, folder, seed, SIZE)
        folders.append(folder)
    return folders


@pytest.mark.parametrize(("number", "evidence"), [(0, Evidence()), (1, Evidence(timestamps=True))], ids=str)
def test_right_at_scale(rendered: list[Path], number: int, evidence: Evidence) -> None:
    found = score("root cause", root_cause, rendered[number], evidence)
    assert len(found.results) == len(CASES)
    assert found.count("right") >= MIN_RIGHT * len(CASES), details(found)
    assert found.wrong_and_certain == 0, details(found)


def test_the_cascade_is_folded(rendered: list[Path]) -> None:
    lengths = []
    for case in sorted(rendered[0].iterdir()):
        logs = [str(path) for path in sorted(case.glob("*.ts.log"))]
        found = diagnose(read_saved(logs, matcher()).job, matcher())
        lengths.append(len(found.cascade))
        assert len(found.cascade) <= MAX_LINES, case.name
    assert max(lengths) > 1
