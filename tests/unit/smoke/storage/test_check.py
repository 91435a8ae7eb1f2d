"""The check over agents that are real, and over one whose words are not to be trusted."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Report, Severity, Verdict
from atlctl.smoke.session import Answer, Session
from atlctl.smoke.storage import check_storage
from tests.support.plainhosts import PlainHosts, workers


class Lying(Session):
    """The second worker's agent says something else."""

    word: Any = None

    async def ask(
        self,
        commands: Mapping[str, Mapping[str, Any]],
        timeout: float,
        heard: Any = None,
        *,
        patience: float | None = None,
    ) -> dict[str, Answer]:
        answers = await super().ask(commands, timeout, heard, patience=patience)
        if any(str(command["cmd"]).startswith("storage") for command in commands.values()) and "worker-1" in answers:
            answers["worker-1"] = Answer(self.word)
        return answers


def over(folder: Path, count: int = 3, session: type[Session] = Session, mounts: tuple[str, ...] = ()) -> Report:
    async def main() -> Report:
        report = Report("quick")
        config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
        async with session(PlainHosts(), workers(count), config) as agents:
            assert await agents.roll_call(20) == {}
            run = Run(agents, tuple(workers(count)), Options(mounts=mounts or (str(folder),)), report)
            await check_storage(run)
        return report

    report = asyncio.run(main())
    assert os.listdir(folder) == []
    return report


@pytest.mark.parametrize(
    "word",
    [
        None,
        {},
        {"mounts": []},
        {"mounts": {"0": 3, "x": {}, "99": {}}},
        {"mounts": {"0": {"done": True, "write_s": "1", "size": "big"}}},
        {"mounts": {"0": {"done": True, "error": {"a": 1}, "errno": ["x"], "step": {}}}},
        {"mounts": {"0": {"done": True, "write_s": 1.0, "size": 1 << 70, "free": -1, "seen": {"0": [], "7": 3}}}},
        {"mounts": {"0": {"stuck": [], "seconds": {}, "state": None}}},
    ],
)
def test_words_that_are_no_answer_harm_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: Any) -> None:
    monkeypatch.setattr(Lying, "word", word)
    report = over(tmp_path, session=Lying)
    assert {f.culprit.worker for f in report.findings if f.culprit} <= {"worker-1"}
    assert report.findings
    assert [check.name for check in report.checks] == ["storage"]


def test_one_worker_is_told_what_it_cannot_judge(tmp_path: Path) -> None:
    (check,) = over(tmp_path, 1).checks
    assert check.verdict is Verdict.PASS
    assert check.note.endswith("one worker: whether others see the same is not judged")


def test_two_paths_to_one_folder_do_not_meet(tmp_path: Path) -> None:
    other = tmp_path.parent / "other"
    other.symlink_to(tmp_path)
    report = over(tmp_path, 2, mounts=(str(tmp_path), str(other), f"{tmp_path}/"))
    assert (report.findings, len(report.data["storage"])) == ([], 2)


def test_a_file_where_a_folder_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path.parent / "file"
    file.write_text("mine")
    (finding,) = over(tmp_path, 2, mounts=(str(file),)).findings
    assert finding.severity is Severity.FAIL
    assert "is no folder" in finding.evidence
    assert file.read_text() == "mine"
