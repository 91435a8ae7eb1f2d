"""Real failures of jobs with NCCL on a GPU. The data's README says where they are from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.result import Confidence, Diagnosis, Verdict
from atlctl.diagnosis.signatures import Matcher, builtin
from atlctl.recording.read import read_saved

DATA = Path(__file__).parent / "data/h100"
MATCHER = Matcher(builtin().signatures)
CAUSES = {
    "oom": "cuda_oom",
    "illegal": "cuda_illegal_memory_access",
    "assert": "cuda_device_assert",
    "raise": "python_exception",
    "segv": "native_crash",
    "kill": "killed",
    "sleep": "hang",
    "gather": "nccl_usage",
}


def told(*paths: Path) -> Diagnosis:
    return diagnose(read_saved([str(path) for path in paths], MATCHER).job, MATCHER)


@pytest.mark.parametrize("name", CAUSES)
def test_the_log_alone_names_the_rank(name: str) -> None:
    found = told(DATA / name / "worker-0.log")
    (cause,) = found.root_causes
    assert (found.verdict, cause.rank, cause.local_rank, cause.category) == (Verdict.RANK, 1, 1, CAUSES[name])


def test_a_job_that_ended_well() -> None:
    assert told(DATA / "end/worker-0.log").verdict is Verdict.NONE


def test_a_signal_long_after_the_ranks_waited_in_vain_is_not_the_cause() -> None:
    """The platform ended a job that hung; and the dumps beside the log make it certain."""
    (cause,) = told(DATA / "sleep").root_causes
    assert (cause.rank, cause.category, cause.confidence) == (1, "hang", Confidence.CERTAIN)
    assert "number 15 of group default_pg" in cause.why


@pytest.mark.parametrize(
    ("name", "category", "why"),
    [
        ("sleep", "hang", "the flight recorders of 3 ranks have all_reduce number 23 of group default_pg"),
        ("gather", "collective_mismatch", "its own has all_gather [512]"),
        (
            "size",
            "collective_mismatch",
            "have all_reduce [512] as number 1 of group undefined, its own has all_reduce",
        ),
        ("stop", "hang", "3 ranks wait in all_reduce number 23 of group default_pg, and it left no dump"),
    ],
)
def test_dumps_without_a_log(name: str, category: str, why: str, tmp_path: Path) -> None:
    """Whatever the files are called, as long as their names end in the rank, and in a folder of each machine."""
    for path in sorted((DATA / f"dumps-{name}").iterdir()):
        place = tmp_path / f"node{int(path.name[-1]) // 2}"
        place.mkdir(exist_ok=True)
        shutil.copy(path, place / f"trace-of-{path.name[-1]}")
    for folder in (DATA / f"dumps-{name}", tmp_path):
        (cause,) = told(folder).root_causes
        assert (cause.rank, cause.category, cause.confidence) == (2, category, Confidence.LIKELY)
        assert why in cause.why


def test_dumps_of_a_job_that_goes_on_blame_nobody() -> None:
    found = told(DATA / "dumps-none")
    assert (found.verdict, found.root_causes) == (Verdict.UNDECIDED, ())


def test_two_dumps_of_one_rank_and_one_of_none(tmp_path: Path) -> None:
    """A host's name ends in a number, too: then it is not known whose dump it is."""
    for number in range(4):
        shutil.copy(DATA / f"dumps-sleep/dump{number}", tmp_path / f"trace_rank_node_{number}")
    shutil.copy(DATA / "dumps-sleep/dump1", tmp_path / "trace_rank_other_1")
    shutil.copy(DATA / "dumps-sleep/dump1", tmp_path / "trace")
    saved = read_saved([str(tmp_path)], MATCHER)
    assert saved.dumps == 4
    assert [remark.partition(": ")[0].rpartition("/")[2] for remark in saved.remarks] == ["trace", "trace_rank_other_1"]
