"""The cases of other launchers than torchrun: their shape, and today's answers."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.launchers.make import FAULTS, Outcome, truth_of, victims
from tests.corpus.launchers.sites import SITES, SIZE
from tests.corpus.methods import root_cause
from tests.corpus.score import LAUNCHERS, VERDICTS, Answer, Evidence, by_launcher, judge, show_evidence

NAMES = sorted(path.parent.name for path in LAUNCHERS.glob("*/case.json"))
_KNOWN = {f"{site.name}_{fault.name}": (site, fault) for site in SITES for fault in FAULTS}
_STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) ")
#: Folders that a log may name: cleaned ones, those of any Linux, and places where the launchers' own files were built.
_FOLDERS = {"opt", "workspace", "tmp", "usr", "lib", "lib64", "dev", "proc", "__w", "bin", "sys", "var"}


@functools.cache
def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LAUNCHERS / name / "case.json").read_text(encoding="utf-8"))
    return found


@functools.cache
def text(name: str) -> str:
    return (LAUNCHERS / name / "worker-0.ts.log").read_text(encoding="utf-8", errors="replace")


def has_its_shape(name: str) -> None:
    site, fault = _KNOWN[name]
    written = document(name)
    truth = written["truth"]
    assert (written["name"], written["launcher"], written["fault"]) == (name, site.name, fault.name)
    assert (truth["kind"], truth["category"]) == (fault.kind, fault.category)
    assert truth["kind"] in VERDICTS
    assert len(truth.get("also", ())) == len(truth.get("also_why", ()))
    assert {path.name for path in (LAUNCHERS / name).iterdir()} == {"case.json", "worker-0.ts.log"}
    # A launcher may end well after a signal: Lightning stops its training.
    assert fault.kind == "external" or (fault.kind == "none") == (written["exit_code"] == 0)


def truth_is_what_the_fault_wrote(name: str) -> None:
    written = document(name)
    truth = written["truth"]
    places = truth.get("any_of", [truth] if truth["kind"] == "rank" else [])
    recorded = {(event["rank"], event["local_rank"]) for event in written["injected_events"] if "rank" in event}
    assert {(place["global_rank"], place["local_rank"]) for place in places} <= recorded
    assert all(place["global_rank"] in range(SIZE) and place["node"] in written["nodes"] for place in places)


def truth_follows_from_events_and_rules(name: str, tmp_path: Path) -> None:
    """The maker's rules of today give the committed truth, with all accepted answers."""
    site, fault = _KNOWN[name]
    written = document(name)
    show_evidence(LAUNCHERS / name, tmp_path / "plain", Evidence())
    lines = [(0, line) for line in (tmp_path / "plain" / "worker-0.log").read_bytes().splitlines(keepends=True)]
    outcome = Outcome([], lines, written["injected_events"], written["exit_code"])
    assert truth_of(site, fault, victims(fault, 0), outcome) == written["truth"]
    if fault.kind in ("rank", "ranks"):
        assert sorted(event["rank"] for event in written["injected_events"]) == victims(fault, 0)


def log_shows_the_fault(name: str) -> None:
    site, fault = _KNOWN[name]
    shown = text(name)
    flat = " ".join(_STAMPED.sub(b"", line).decode(errors="replace") for line in shown.encode().split(b"\n"))
    words = [fault.shows, *site.deaths] if fault.shows else site.deaths
    assert fault.kind == "external" or any(word in flat for word in words)
    assert "CORPUS" not in shown
    stamps = [match[1] for line in shown.encode().splitlines() if (match := _STAMPED.match(line))]
    assert all(before <= after for before, after in pairwise(stamps))
    assert set(re.findall(r'(?:^|[\s"\'=(])/(\w+)/', shown)) - _FOLDERS == set()


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str, tmp_path: Path) -> None:
    has_its_shape(name)
    truth_is_what_the_fault_wrote(name)
    truth_follows_from_events_and_rules(name, tmp_path)
    log_shows_the_fault(name)


def test_the_whole_set_is_small() -> None:
    assert sum(path.stat().st_size for path in LAUNCHERS.rglob("*") if path.is_file()) < 6_000_000


def test_each_launcher_has_most_faults() -> None:
    counts = Counter(name.partition("_")[0] for name in NAMES)
    assert all(counts[site.name] >= 20 for site in SITES), counts


def test_plain_log_is_made_from_the_stamped_one(tmp_path: Path) -> None:
    name = NAMES[0]
    show_evidence(LAUNCHERS / name, tmp_path / "plain", Evidence())
    plain = (tmp_path / "plain" / "worker-0.log").read_bytes()
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["worker-0.log"]
    assert not _STAMPED.match(plain)
    assert plain.count(b"\n") == text(name).count("\n")


@pytest.mark.parametrize("name", NAMES)
def test_answer(name: str, tmp_path: Path) -> None:
    """Right or accepted; a wrong answer is never called certain."""
    truth = document(name)["truth"]
    for evidence in (Evidence(), Evidence(timestamps=True)):
        seen = tmp_path / str(evidence)
        show_evidence(LAUNCHERS / name, seen, evidence)
        answer = root_cause(seen)
        mark = judge(truth, answer)
        assert (mark, answer.confidence) != ("wrong", "certain"), (evidence, truth, answer)
        assert mark in ("right", "accepted"), (evidence, truth, answer)
    # A file named alone may hold the lines of several hosts; the launcher's own lines are no host.
    answer = root_cause(tmp_path / str(Evidence()) / "worker-0.log")
    if answer.worker not in document(name)["nodes"]:
        answer = answer._replace(worker=answer.worker and "worker-0")  # the log has no name of a host
    assert judge(truth, answer) in ("right", "accepted"), answer


def test_table_by_launcher() -> None:
    shown = by_launcher(lambda folder: Answer("job", confidence="certain"))
    lines = shown.split("\n")
    assert lines[0].split()[:3] == ["launcher", "cases", "right"]
    assert lines[-1].split()[:2] == ["all", str(len(NAMES))]
