"""The committed cases match `cases*.py`, are complete and small, and name no machine."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.case import Case
from tests.corpus.cases import CASES, find
from tests.corpus.make import DATA

NAMES = [case.name for case in CASES]
_STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (.*)", re.DOTALL)
#: Allowed names after a slash at the start of a word: cleaned folders, made-up ones, keys of torch's store. Others
#: would be from this machine.
_FOLDERS = {
    "default_pg",
    "opt",
    "workspace",
    "tmp",
    "logs",
    "usr",
    "lib",
    "checkpoints",
    "__w",
    "dev",
    "proc",
    "mnt",
    "none",
}


def document(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / case.name / "case.json").read_text(encoding="utf-8"))
    return found


def logs(case: Case) -> dict[str, bytes]:
    """The plain logs, by worker name."""
    return {
        path.name.removesuffix(".log"): path.read_bytes()
        for path in (DATA / case.name).glob("*.log")
        if not path.name.endswith(".ts.log")
    }


def test_every_case_is_committed_and_no_other() -> None:
    assert sorted(path.name for path in DATA.iterdir()) == sorted(NAMES)


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)
    with pytest.raises(KeyError):
        find("no-such-case")


def test_the_whole_set_is_small() -> None:
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 6_500_000


def truth_is_the_declared_one(case: Case) -> None:
    written = document(case)
    truth = written["truth"]
    assert (truth["kind"], truth["category"]) == (case.kind, case.category)
    assert (written["name"], written["record"]) == (case.name, case.record)
    assert set(logs(case)) == set(written["nodes_started"]) == set(written["exit_code"])
    if case.kind in ("rank", "undecided") and not case.outside and case.faults:
        fault = next(fault for fault in case.faults if fault.id in case.culprits)
        assert fault.worker is not None
        place = truth if case.kind == "rank" else truth["done_by"][0]
        assert (place["node"], place["local_rank"]) == (case.workers()[fault.worker], fault.local_rank)
    if case.at_fault is not None:
        assert truth["node"] == case.workers()[case.at_fault]
    also = [{"verdict": verdict, "node": case.workers()[index]} for verdict, index in case.also_right]
    assert truth.get("also_right", []) == also
    leavers = [case.workers()[index] for index in case.leavers]
    codes = {code for worker, code in written["exit_code"].items() if worker not in leavers}
    assert (case.kind == "none") == (codes == {0})


def truth_agrees_with_events_and_actions(case: Case) -> None:
    """Every named process announced its failure, or was changed from outside."""
    written = document(case)
    truth = written["truth"]
    named = truth.get("any_of", [truth] if case.kind == "rank" else [])
    told = {(e["node"], e["local_rank"], e["rank"]) for e in written["injected_events"] if e["id"] in case.culprits}
    done = {(a["node"], a.get("local_rank"), a.get("rank")) for a in written["outside_actions"]}
    assert {(p["node"], p["local_rank"], p["global_rank"]) for p in named} <= told | done
    if case.outside:
        nodes = [action["node"] for action in written["outside_actions"]]
        assert list(dict.fromkeys(nodes)) == [case.workers()[index] for index in case.outside.workers]


def a_log_shows_the_planned_failure_and_never_the_truth(case: Case) -> None:
    text = b"".join(logs(case).values()).decode("utf-8", "replace")
    assert case.shows in text
    assert "CORPUS" not in text


def timestamped_log_is_the_plain_one_with_rising_stamps(case: Case) -> None:
    for worker, plain in logs(case).items():
        lines = (DATA / case.name / f"{worker}.ts.log").read_bytes().split(b"\n")
        matches = [match for line in lines if (match := _STAMPED.match(line))]
        assert b"\n".join(match[2] for match in matches) == plain.removesuffix(b"\n")
        assert all(before[1] <= after[1] for before, after in pairwise(matches))


def no_path_of_a_machine(case: Case) -> None:
    found = set()
    for path in (DATA / case.name).rglob("*"):
        if path.is_file():
            found |= set(re.findall(r'(?:^|[\s"=(])/(\w+)/', path.read_text("utf-8", "replace")))
    assert found - _FOLDERS == set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    truth_is_the_declared_one(case)
    truth_agrees_with_events_and_actions(case)
    a_log_shows_the_planned_failure_and_never_the_truth(case)
    timestamped_log_is_the_plain_one_with_rising_stamps(case)
    no_path_of_a_machine(case)


def test_a_path_of_a_machine_is_seen(tmp_path: Path) -> None:
    text = 'File "/srv/me/x.py" and /opt/venv/bin'
    assert set(re.findall(r'(?:^|[\s"=(])/(\w+)/', text)) - _FOLDERS == {"srv"}
