"""The check `storage`: findings from workers' reports on a mount, and the check with agents."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atlctl.remote.smoke import disk
from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Report, Severity, SmokeVerdict
from atlctl.smoke.session import Answer, Session
from atlctl.smoke.storage import Looks, MountUnderTest, check_storage, groups, judge, places, slow, suspects
from tests.support.plainhosts import PlainHosts, workers

PLACE = MountUnderTest(0, "/mnt/a", True)
FOUND = MountUnderTest(0, "/mnt/a", False, True)


def wrote(**more: Any) -> dict[str, Any]:
    told = {"done": True, "size": 4 << 20, "write_s": 0.1, "free": 1 << 40, "total": 1 << 41, "inodes": 10**7}
    return {**told, "free_inodes": 10**6, "starved_s": 0.0, **more}


def failed(code: str, step: str = "create") -> dict[str, Any]:
    return {"done": True, "errno": code, "error": "words", "step": step}


def looks(*views: str, **written: dict[str, Any]) -> Looks:
    """A view for each worker: workers with the same letter share a volume."""
    names = [f"w{n}" for n in range(len(views))]
    tolds = {name: written.get(name, wrote()) for name in names}
    writers = [name for name in names if "write_s" in tolds[name]]
    seen = {
        reader: {
            writer: "same" if views[names.index(writer)] == views[names.index(reader)] else "missing"
            for writer in writers
        }
        for reader in names
    }
    return Looks(dict(tolds), seen)


def said(place: MountUnderTest, found: Looks) -> dict[str | None, tuple[Severity, str]]:
    findings = judge(place, found)
    told = {f.culprit.worker if f.culprit else None: (f.severity, f.evidence) for f in findings}
    assert len(told) == len(findings)
    return told


def test_one_view() -> None:
    assert said(PLACE, looks(*"aaaa")) == {}


@pytest.mark.parametrize(
    ("views", "blamed"),
    [
        ("aaba", ["w2"]),
        ("baaa", ["w0"]),
        ("aaabc", ["w3", "w4"]),
        ("aabbaaaa", ["w2", "w3"]),
        ("aab", ["w2"]),
        ("aabc", [None]),
        ("aabb", [None]),
        ("ab", [None]),
    ],
)
def test_the_minority_has_the_other_volume(views: str, blamed: list[str | None]) -> None:
    told = said(PLACE, looks(*views))
    assert list(told) == blamed
    expected = Severity.NOT_JUDGED if views == "ab" else Severity.FAIL
    assert {severity for severity, _ in told.values()} == {expected}


def test_all_apart_is_a_fault_only_where_they_mount_the_same_source() -> None:
    assert [severity for severity, _ in said(PLACE, looks(*"abcd")).values()] == [Severity.NOT_JUDGED]
    assert [severity for severity, _ in said(FOUND, looks(*"abcd")).values()] == [Severity.FAIL]


@pytest.mark.parametrize(
    ("code", "text"), [("EROFS", "is read-only"), ("ENOSPC", "is full"), ("ENOENT", "is not there"), ("EIO", "fails")]
)
def test_one_that_cannot_write_is_one_finding(code: str, text: str) -> None:
    told = said(PLACE, looks(*"aaaa", w1=failed(code)))
    assert list(told) == ["w1"]
    assert told["w1"][0] is Severity.FAIL
    assert told["w1"][1].startswith(text)


def test_read_only_and_another_volume_are_one_finding() -> None:
    told = said(PLACE, looks(*"abaa", w1=failed("EROFS")))
    assert list(told) == ["w1"]
    assert "read-only" in told["w1"][1]
    assert "another volume" in told["w1"][1]


def test_read_only_everywhere() -> None:
    everybody = {f"w{n}": failed("EROFS") for n in range(3)}
    assert said(PLACE, looks(*"aaa", **everybody)).keys() == {None}
    ((severity, _),) = said(FOUND, looks(*"aaa", **everybody)).values()
    assert severity is Severity.NOT_JUDGED  # a data mount that the user did not name


def test_stuck() -> None:
    found = looks(*"aaaa", w1={"stuck": "fsync", "seconds": 5.0, "state": "D", "place": "nfs_wait"})
    del found.seen["w1"]
    assert said(PLACE, found)["w1"] == (
        Severity.WARN,
        "hangs: no answer in 5.0 s to fsync (process state D, in nfs_wait); later it answered",
    )
    found.still.add("w1")
    assert said(PLACE, found) == {
        "w1": (Severity.FAIL, "hangs: no answer in 5.0 s to fsync (process state D, in nfs_wait)")
    }


def test_content_names_the_writer_or_the_reader() -> None:
    found = looks(*"aaaa")
    for reader in ("w0", "w1", "w3"):
        found.seen[reader]["w2"] = "differs"
    assert said(PLACE, found).keys() == {"w2"}
    found = looks(*"aaaa")
    found.seen["w1"] |= {"w0": "differs", "w3": "differs"}
    assert said(PLACE, found).keys() == {"w1"}


def test_content_that_was_altered_once_is_a_fault_that_is_not_confirmed() -> None:
    found = looks(*"aaaa")
    found.once = {("w1", "w0")}
    (finding,) = judge(PLACE, found)
    assert finding.culprit is not None
    assert (finding.culprit.worker, finding.severity, finding.confirmed) == ("w1", Severity.FAIL, False)
    found.seen["w1"]["w3"] = "size"
    assert [finding.confirmed for finding in judge(PLACE, found)] == [True]


def test_who_is_not_seen_or_does_not_see() -> None:
    found = looks(*"aaaa")
    found.seen["w1"]["w3"] = "missing"
    assert said(PLACE, found) == {"w1": (Severity.WARN, "it does not see the file of w3, which others see")}


def test_space() -> None:
    low = {"free": 600 << 20, "total": 1 << 40}
    assert said(PLACE, looks(*"aaa", **{f"w{n}": wrote(**low) for n in range(3)})).keys() == {None}
    assert said(PLACE, looks(*"aaa", w1=wrote(**low)))["w1"][0] is Severity.WARN
    assert said(PLACE, looks(*"aaa", w1=wrote(free=100, total=1 << 20)))["w1"][0] is Severity.FAIL
    assert "inodes" in said(PLACE, looks(*"aaa", w1=wrote(free_inodes=10)))["w1"][1]
    # A small mount that is mostly free; a mount without inode counts.
    assert said(PLACE, looks(*"a", w0=wrote(free=60 << 20, total=64 << 20, inodes=0, free_inodes=0))) == {}


def test_many_workers_that_look_for_some_only() -> None:
    names = [f"w{n}" for n in range(200)]
    seen = {name: {names[(n + d) % 200]: "same" for d in range(8)} for n, name in enumerate(names)}
    found = Looks({name: wrote() for name in names}, seen)
    assert len(groups(found)) == 1
    for n, name in enumerate(names):
        for other in seen[name]:
            if (n == 7) != (other == "w7"):
                seen[name][other] = "missing"
    assert said(PLACE, found).keys() == {"w7"}


def test_slow_is_judged_among_three_and_confirmed_alone() -> None:
    assert suspects(looks(*"aa", w1=wrote(write_s=9.0))) == []
    found = looks(*"aaaa", w1=wrote(write_s=9.0))
    assert suspects(found) == [("w1", "write")]
    assert suspects(looks(*"aaaa", w1=wrote(write_s=9.0, starved_s=5.0))) == []
    assert suspects(looks(*"aaaa", w1=wrote(write_s=0.55))) == []
    first = (9.0, 0.1)
    assert slow(PLACE, "w1", "write", wrote(write_s=0.2), wrote(), first) == []
    assert slow(PLACE, "w1", "write", wrote(write_s=8.0, starved_s=6.0), wrote(), first) == []
    (finding,) = slow(PLACE, "w1", "write", wrote(write_s=8.0), wrote(), first)
    assert (finding.severity, finding.confirmed) == (Severity.WARN, True)


def _mounts(*paths: str, source: str = "s:/e") -> dict[str, Any]:
    return {"mounts": [{"path": path, "fs": "nfs4", "source": source} for path in paths]}


def test_what_is_tested() -> None:
    facts = {f"w{n}": _mounts("/data", "/home") for n in range(3)} | {"w3": _mounts("/data")}
    chosen, findings = places(["/mine", "/data", "/mine"], facts)
    assert [(p.number, p.path, p.named, p.shared) for p in chosen] == [
        (0, "/mine", True, False),
        (1, "/data", True, True),
    ]
    assert [(f.culprit.worker, f.culprit.path) for f in findings if f.culprit] == [("w3", "/home")]
    assert places([], {"w0": {"mounts": [1, {"path": 3}, {}]}, "w1": {"problem": "x"}, "w2": {"mounts": "x"}}) == (
        [],
        [],
    )
    assert places([], {"w0": _mounts("/a"), "w1": {}})[0] == []


@pytest.mark.parametrize("told", [{}, {"done": True}, {"error": 3}, {"stuck": None}, {"failed": []}, wrote(size=None)])
def test_nonsense_is_survived(told: dict[str, Any]) -> None:
    found = looks(*"aaa", w1=told)
    judge(PLACE, found)
    suspects(found)


def test_no_two_workers_write_the_same() -> None:
    first, second = (next(disk.content(f"token-{n}")) for n in range(2))
    assert len(first) == disk.BLOCK
    pages = {data[at : at + disk.PAGE] for data in (first, second) for at in range(0, disk.BLOCK, disk.PAGE)}
    assert len(pages) == 2 * disk.BLOCK // disk.PAGE


class Lying(Session):
    """A session in which the second worker's agent gives another answer."""

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
    assert check.verdict is SmokeVerdict.PASS
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
    assert "is not a folder" in finding.evidence
    assert file.read_text() == "mine"
