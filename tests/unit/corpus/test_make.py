"""The maker: texts are cleaned, plans that went wrong are refused, and one real case comes out as the committed one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.corpus import make, processes
from tests.corpus.cases import Case, Fault, Outside, find
from tests.corpus.network import Place, loopback
from tests.corpus.running import Run, Unfinished
from tests.corpus.writing import check, cleaner, stamp, tell_truth


def run_of(case: Case, folder: Path = Path("/x")) -> Run:
    return Run(case, folder, loopback(len(case.processes)))


def event(worker: str, local_rank: int, fault: str = "root", **more: Any) -> dict[str, Any]:
    return {
        "id": fault,
        "node": worker,
        "rank": 2 + local_rank,
        "local_rank": local_rank,
        "attempt": 0,
        "at_true": 1.5,
        **more,
    }


def test_paths_and_names_are_replaced() -> None:
    run = run_of(find("teed_memory"), Path("/var/run7"))
    clean = cleaner(run, "worker-1")
    host = socket.gethostname().encode()
    for before, after in (
        (b"/var/run7/workspace/train.py", b"/workspace/train.py"),
        (b"/var/run7/tmp/worker-1/torchelastic_x/y", b"/tmp/torchelastic_x/y"),
        (b"/var/run7/elastic/worker-1/run_x", b"/logs/run_x"),
        (os.fsencode(sys.executable), b"/opt/venv/bin/" + os.fsencode(Path(sys.executable).name)),
        (b"/var/run7/workspace-2/x", b"/var/run7/workspace-2/x"),
        (b"  host      : " + host + b"\n", b"  host      : worker-1\n"),
        (b"x" + host + b"x", b"x" + host + b"x"),
        (b"\xff\x00 plain", b"\xff\x00 plain"),
    ):
        assert clean(before) == after


def test_stamp_is_the_nodes() -> None:
    assert stamp(1_795_210_117_000_000_042) == b"2026-11-20T21:28:37.000000042Z "


def test_truth_of_one_rank_needs_exactly_one_event() -> None:
    run = run_of(find("killed_plain"))
    with pytest.raises(Unfinished):
        tell_truth(run)
    run.events = [event("worker-1", 0), event("worker-0", 0, fault="other")]
    assert tell_truth(run) == {
        "kind": "rank",
        "category": "killed",
        "node": "worker-1",
        "local_rank": 0,
        "global_rank": 2,
        "attempt": 0,
        "at_true_unix": 1.5,
    }
    run.events.append(event("worker-1", 1))
    with pytest.raises(Unfinished):
        tell_truth(run)


def test_truth_of_several_ranks_needs_two() -> None:
    run = run_of(find("two_culprits"))
    run.events = [event("worker-0", 1)]
    with pytest.raises(Unfinished):
        tell_truth(run)
    run.events.append(event("worker-1", 0, fault="other"))
    assert [place["node"] for place in tell_truth(run)["any_of"]] == ["worker-0", "worker-1"]


def test_truth_of_an_action_from_outside() -> None:
    run = run_of(find("frozen_process"))
    run.actions = [{"do": "freeze", "node": "worker-0", "local_rank": 1, "rank": 1}]
    truth = tell_truth(run)
    assert (truth["node"], truth["local_rank"], truth["global_rank"]) == ("worker-0", 1, 1)
    assert tell_truth(run_of(find("worker_lost")))["node"] == "worker-1"


def test_a_run_that_failed_otherwise_is_refused() -> None:
    run = run_of(find("bad_arguments"))
    run.exit_codes = {"worker-0": 1, "worker-1": 1}
    run.lines = {"worker-0": [(0, b"MemoryError\n")]}
    with pytest.raises(Unfinished, match="no log shows"):
        check(run)
    run.lines["worker-1"] = [(0, b"train.py: error: unrecognized arguments: --warmup 200\n")]
    check(run)
    run.exit_codes = dict.fromkeys(run.exit_codes, 0)
    with pytest.raises(Unfinished, match="exit codes"):
        check(run)


def test_processes_are_found_by_their_mark_and_killed() -> None:
    mark = "a-mark-of-this-test"
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    environment = {processes.RUN: mark, processes.WORKER: "worker-0", "LOCAL_RANK": "1", "PATH": os.environ["PATH"]}
    environment["ATLCTL_TEST_ID"] = os.environ["ATLCTL_TEST_ID"]
    with subprocess.Popen(command, env=environment) as job:
        assert processes.trainer(mark, "worker-0", 1).pid == job.pid
        assert processes.of_run(mark, "worker-1") == []
        with pytest.raises(LookupError):
            processes.agent(mark, "worker-0")
        assert processes.kill_all(mark)
        assert job.wait() == -signal.SIGKILL


def test_an_unknown_case_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        make.main(["no-such-case"])
    assert caught.value.code == 2
    assert "no-such-case" in capsys.readouterr().err


def test_rendezvous_options_are_one(tmp_path: Path) -> None:
    from tests.corpus.running import _command

    case = find("worker_never_joins")
    words = _command(
        Run(case, tmp_path, [Place((), "127.0.0.1", "127.0.0.1", 1, ("--local-addr", "127.0.0.1"))] * 3), 0
    )
    assert words.count("--rdzv-conf") == 1
    assert words[words.index("--rdzv-conf") + 1] == "is_host=1,join_timeout=10,last_call_timeout=2"
    assert not any(word.startswith("--rdzv-conf=") for word in words)


def names(folder: Path) -> set[str]:
    """The files of a case; what torchelastic draws by chance is left out."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {re.sub(r"torchelastic_\w{8}/corpus_\w{8}", "torchelastic_X/corpus_X", path) for path in paths}


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_a_case_made_anew_is_the_committed_one(tmp_path: Path) -> None:
    case = find("exception_recorded_last_rank")
    make.make(case, tmp_path)
    committed, fresh = make.DATA / case.name, tmp_path / case.name
    # A peer that is ended before it raised leaves no error file: only the culprit's is certain.
    assert {name for name in names(fresh) ^ names(committed) if "/attempt_0/" not in name} == set()
    assert "files/worker-1_tmp/torchelastic_X/corpus_X/attempt_0/1/error.json" in names(fresh)
    old, new = (json.loads((folder / "case.json").read_text()) for folder in (committed, fresh))
    assert old.keys() == new.keys()
    for document in (old, new):
        del document["truth"]["at_true_unix"]
    assert new["truth"] == old["truth"]
    assert new["exit_code"] == old["exit_code"]
    text = (fresh / "worker-1.log").read_text()
    assert case.shows in text
    assert str(tmp_path) not in text


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_a_case_that_takes_too_long_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.corpus.running.LIMIT", 0.5)
    case = Case("slow", "", "rank", "hang", "", (Fault("hang", 0, 0),), outside=Outside("terminate", (0,)))
    with pytest.raises(Unfinished, match="never came to step"):
        make.make(case, tmp_path)
    assert list(tmp_path.iterdir()) == []
