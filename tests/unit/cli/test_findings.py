"""How a diagnosis is shown: JSON or panel, language, exit code."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.cli import say
from atlctl.cli.evidence import findings
from atlctl.diagnosis.result import Diagnosis, Verdict
from tests.unit.diagnosis.causes import CAUSE, ONE, command, doubtful, found, place, signature


class Screen:
    """The printed output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text = ""
        self.documents: list[tuple[Any, Any]] = []
        monkeypatch.setattr(say, "out", self._out)
        monkeypatch.setattr(say, "document", lambda data, errors=(): self.documents.append((data, errors)))

    def _out(self, text: str) -> None:
        self.text += text


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    return Screen(monkeypatch)


def tell(diagnosis: Diagnosis = ONE, **values: Any) -> int:
    own = values.pop("signatures", ())
    source, head = {"job": "train-7", "source": None}, ["job train-7: \x1b[2JFailed"]
    display = findings.Display(**values)
    return findings.tell(
        diagnosis, source, head, ["problem"], display, next_command=command, place=place, signatures=own
    )


def test_the_head_stands_above_the_panel_and_is_cleaned(screen: Screen) -> None:
    assert tell() == 0
    lines = screen.text.splitlines()
    assert lines[:2] == ["job train-7: ^[[2JFailed", "root cause: rank 3 (local rank 1) on worker-1, certain"]
    assert "  next      look at worker-1" in lines
    assert screen.documents == []


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_document_begins_with_the_source(screen: Screen, output: str) -> None:
    assert tell(output=output) == 0
    ((data, problems),) = screen.documents
    assert list(data)[:3] == ["job", "source", "verdict"]
    assert (data["root_causes"][0]["worker"], problems, screen.text) == ("worker-1", ["problem"], "")


def test_text_is_in_the_user_s_language_and_the_document_in_english(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    tell()
    tell(output="json")
    assert "根因：worker-1 的 rank 3（local rank 1），确定" in screen.text
    assert screen.documents[0][0]["root_causes"][0]["advice"].isascii()


def test_the_user_s_signatures_give_advice(screen: Screen) -> None:
    own = [signature("magic", "python_exception", "Ask the storage team.")]
    tell(signatures=own)
    tell(signatures=own, output="json")
    assert "  next      Ask the storage team." in screen.text
    assert screen.documents[0][0]["root_causes"][0]["advice"] == "Ask the storage team."


def test_verbose_tells_more(screen: Screen) -> None:
    tell()
    short = screen.text
    tell(verbose=True)
    assert "of 2 processes failed" not in short
    assert "2 of 2 processes failed" in screen.text


@pytest.mark.parametrize(
    ("diagnosis", "code"),
    [
        (ONE, 1),
        (doubtful(CAUSE), 1),
        (found(Verdict.EXTERNAL, CAUSE), 1),
        (Diagnosis(Verdict.NONE), 0),
        (Diagnosis(Verdict.NONE, earlier=(CAUSE,)), 0),
    ],
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_the_exit_code_is_asked_for(screen: Screen, diagnosis: Diagnosis, code: int, output: str) -> None:
    assert tell(diagnosis, output=output) == 0
    assert tell(diagnosis, output=output, exit_code=True) == code
