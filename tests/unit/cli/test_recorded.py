"""The ranks of workers, from the recording of a job."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from atlctl.cli.evidence import recorded
from atlctl.jobs.model import Job, RankMap, State, Worker
from atlctl.recording import manifest


def job() -> Job:
    workers = tuple(Worker(f"worker-{n}", n, State.HELD, uid=f"pod-{n}", restarts=n) for n in range(2))
    return Job("train", "PyTorchJob", "kubernetes", State.HELD, "uid-1", 2, workers, namespace="team")


def described(number: int, ranks: Any, **more: Any) -> dict[str, Any]:
    return {
        "name": f"worker-{number}",
        "index": number,
        "uid": f"pod-{number}",
        "restarts": number,
        "ranks": ranks,
    } | more


def write(*workers: dict[str, Any], ended: float | None = 5.0) -> None:
    folder = recorded.new_folder(job())
    os.mkdir(folder, 0o700)
    about = {"name": "train", "kind": "PyTorchJob", "uid": "uid-1", "state": "Held"}
    whole = {
        "version": manifest.VERSION,
        "job": about,
        "workers": list(workers),
        "recorder": {"updated": 4.0, "ended": ended},
    }
    Path(folder, "atlctl.json").write_text(json.dumps(whole))


ONE, TWO = [{"rank": 0, "local_rank": 0}, {"rank": 1, "local_rank": 1}], [{"rank": 2, "local_rank": 0}]


@pytest.mark.usefixtures("isolated")
def test_ranks_as_they_were_last_seen() -> None:
    assert recorded.ranks(job()) is None
    write(described(0, ONE), described(1, TWO))
    found = recorded.ranks(job())
    assert found is not None
    assert found.workers == {0: "worker-0", 1: "worker-0", 2: "worker-1"}
    assert (found.source, found.guess) == ("the recording of the job", False)


@pytest.mark.usefixtures("isolated")
def test_a_recording_in_a_folder_that_may_be_forged_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("atlctl.cli.say.note", said.append)
    write(described(0, ONE), described(1, TWO))
    forged = Path(recorded.new_folder(job())).parent
    forged.chmod(0o770)
    assert recorded.ranks(job()) is None
    assert recorded.newest("kubernetes", "team", "train") is None
    assert said == [f"the recording was not read: {forged} can be written by others (mode 0770)"] * 2
    forged.chmod(0o700)
    assert recorded.ranks(job()) is not None


@pytest.mark.usefixtures("isolated")
def test_a_recorder_that_ended_before_the_job_gives_a_guess() -> None:
    write(described(0, ONE), described(1, TWO), ended=None)
    found = recorded.ranks(job())
    assert found is not None
    assert found.guess


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("second", "workers"),
    [
        (described(1, TWO, uid="another pod"), {0: "worker-0", 1: "worker-0"}),
        (described(1, TWO, restarts=7), {0: "worker-0", 1: "worker-0"}),
        (described(1, "x"), {0: "worker-0", 1: "worker-0"}),
        (described(1, ONE), None),
        (described(1, [{"rank": "2"}]), None),
        (described(1, [{"rank": -2}]), None),
    ],
)
def test_what_is_of_another_run_or_odd_does_not_count(second: dict[str, Any], workers: dict[int, str] | None) -> None:
    write(described(0, ONE), second)
    found = recorded.ranks(job())
    assert (None if found is None else found.workers) == workers


SEEN = RankMap({0: "worker-0", 1: "worker-0"}, "processes")


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("seen", "ended", "expected"),
    [
        (None, 5.0, ({0: "worker-0", 1: "worker-0", 2: "worker-1"}, "the recording of the job", False)),
        (SEEN, 5.0, ({0: "worker-0", 1: "worker-0", 2: "worker-1"}, "processes and the recording of the job", False)),
        (SEEN, None, ({0: "worker-0", 1: "worker-0", 2: "worker-1"}, "processes and the recording of the job", True)),
        (
            RankMap({0: "worker-0", 2: "worker-1"}, "processes"),
            5.0,
            ({0: "worker-0", 2: "worker-1"}, "processes", False),
        ),
        (RankMap({7: "worker-1"}, "sums", guess=True), None, ({7: "worker-1"}, "sums", True)),
    ],
)
def test_what_lives_counts_more_and_what_is_missing_is_filled_in(
    seen: RankMap | None, ended: float | None, expected: tuple[dict[int, str], str, bool]
) -> None:
    write(described(0, ONE), described(1, TWO), ended=ended)
    found = recorded.completed(job(), seen)
    assert found is not None
    assert (found.workers, found.source, found.guess) == expected


@pytest.mark.usefixtures("isolated")
def test_without_a_recording_what_was_seen_stays() -> None:
    assert recorded.completed(job(), SEEN) is SEEN
    assert recorded.completed(job(), None) is None


def recording(folder: Path, uid: str = "uid-1", mode: int = 0o700) -> str:
    """A recording in a folder chosen by the user."""
    folder.mkdir(parents=True)
    about = {"name": "train", "kind": "PyTorchJob", "uid": uid, "state": "Failed"}
    workers = [{"name": "worker-0", "index": 0, "uid": "pod-0"}]
    whole = {"version": manifest.VERSION, "job": about, "workers": workers, "recorder": {"updated": 4.0, "ended": 5.0}}
    (folder / manifest.NAME).write_text(json.dumps(whole))
    folder.chmod(mode)
    return str(folder)


def notes() -> Path:
    return Path(recorded.place("x", None, "x")).parents[2] / "elsewhere.json"


@pytest.mark.usefixtures("isolated")
def test_a_recording_of_the_users_own_choice_is_found_again(tmp_path: Path) -> None:
    folder = recording(tmp_path / "mine")
    assert recorded.of_job(job()) is None
    recorded.remember(job(), folder)
    found = recorded.of_job(job())
    assert found is not None
    assert (found.folder, found.whole) == (folder, True)
    gone = recorded.newest("kubernetes", "team", "pytorchjob/train")
    assert gone is not None
    assert gone.folder == folder
    assert recorded.newest("kubernetes", "other", "train") is None
    assert recorded.newest("local", None, "train") is None
    assert notes().stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("wrong", ["another job", "others write", "a link", "gone", "of another user"])
def test_a_folder_that_may_not_be_of_this_job_does_not_count(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = "uid-2" if wrong == "another job" else "uid-1"
    folder = recording(tmp_path / "mine", uid, 0o770 if wrong == "others write" else 0o700)
    if wrong == "a link":
        os.symlink(folder, tmp_path / "link")
        folder = str(tmp_path / "link")
    recorded.remember(job(), folder)
    if wrong == "gone":
        os.rename(folder, tmp_path / "moved")
    if wrong == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert recorded.of_job(job()) is None
    assert recorded.newest("kubernetes", "team", "train") is None


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("data", ["", "{", "7", "[7, {}]", '[{"folder": 3}]', '[{"folder": "a\\u0000b"}]', "[" * 9999])
def test_notes_that_are_none_are_as_good_as_nothing(tmp_path: Path, data: str) -> None:
    folder = recording(tmp_path / "mine")
    notes().parent.mkdir(parents=True)
    notes().write_text(data)
    assert recorded.of_job(job()) is None
    recorded.remember(job(), folder)
    assert recorded.of_job(job()) is not None


@pytest.mark.usefixtures("isolated")
def test_the_last_200_that_are_there_are_remembered(tmp_path: Path) -> None:
    for number in range(205):
        (tmp_path / str(number)).mkdir()
        recorded.remember(job(), str(tmp_path / str(number)))
    (tmp_path / "204").rmdir()
    recorded.remember(job(), str(tmp_path / "100"))
    kept = [item["folder"] for item in json.loads(notes().read_text())]
    assert len(kept) == 199
    assert kept[0] == str(tmp_path / "5")
    assert kept[-1] == str(tmp_path / "100")
    assert str(tmp_path / "204") not in kept
    assert set(json.loads(notes().read_text())[0]) == {"uid", "backend", "namespace", "folder"}
