"""Hardware figures from the user's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.cli.smoke.telling import own_busbw
from atlctl.jobs.errors import UsageError
from atlctl.smoke.ranks.expected import expected

GOOD = '[[row]]\ngpu = "X1"\nworkers = "one"\nbusbw = 99.5\nsource = "our own machine"\n'


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own.toml"
    monkeypatch.setenv("ATLCTL_BUSBW", str(path))
    return path


def test_rows_are_added_to_the_table(named: Path) -> None:
    named.write_text(GOOD)
    row = expected("Vendor X1 80GB", 1, 8, extra=own_busbw())
    assert row is not None
    assert (row.busbw, row.source) == (99.5, "our own machine")
    assert expected("Vendor X1 80GB", 1, 8) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not there"),
        ("row = 3\n", "[[row]]"),
        (GOOD + "\n[other]\n", "[[row]]"),
        (GOOD.replace("99.5", "0"), "numbers above 0"),
        (GOOD.replace('"one"', '"two"'), "one of one, many"),
        (GOOD + "speed = 3\n", "row 1: unknown field speed"),
        (GOOD.replace("busbw = 99.5\n", "").replace("gpu", "#"), "row 1: gpu, busbw missing"),
    ],
)
def test_what_is_wrong_is_told(named: Path, text: str | None, words: str) -> None:
    if text is not None:
        named.write_text(text)
    with pytest.raises(UsageError) as caught:
        own_busbw()
    assert words in caught.value.message
