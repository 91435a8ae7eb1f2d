"""The maker cleans texts and rejects failed plans; one real case equals the committed one."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.corpus import make, processes
from tests.corpus.case import Case, Fault, Outside
from tests.corpus.cases import find
from tests.corpus.network import Place, loopback
from tests.corpus.running import Run, Unfinished, _clock, _command, _event, _furnish, execute
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
        (b"/var/run7/workspace/worker-1/train.py", b"/workspace/train.py"),
        (b"/var/run7/tmp/worker-1/torchelastic_x/y", b"/tmp/torchelastic_x/y"),
        (b"/var/run7/elastic/worker-1/run_x", b"/logs/run_x"),
        (os.fsencode(sys.executable), b"/opt/venv/bin/" + os.fsencode(Path(sys.executable).name)),
        (b"/var/run7/workspace/worker-12/x", b"/var/run7/workspace/worker-12/x"),
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


def test_truth_of_processes_that_were_killed_from_outside() -> None:
    run = run_of(find("all_processes_killed"))
    run.actions = [{"do": "kill_process", "node": "worker-1", "local_rank": n, "rank": 2 + n} for n in (0, 1)]
    places = [{"node": "worker-1", "local_rank": n, "global_rank": 2 + n} for n in (0, 1)]
    assert tell_truth(run)["any_of"] == places
    run.actions.pop()
    with pytest.raises(Unfinished):
        tell_truth(run)


def test_truth_may_have_another_reading() -> None:
    truth = tell_truth(run_of(find("clm_vocab_missing")))
    assert truth["node"] == "worker-1"
    assert truth["also_right"] == [{"verdict": "ranks", "node": "worker-1"}]


def test_undecided_keeps_who_did_it() -> None:
    run = run_of(find("wrong_size"))
    run.events = [event("worker-1", 0)]
    truth = tell_truth(run)
    assert truth["kind"] == "undecided"
    assert [(place["node"], place["local_rank"]) for place in truth["done_by"]] == [("worker-1", 0)]


def test_who_leaves_a_job_that_succeeds_may_fail() -> None:
    run = run_of(find("elastic_worker_leaves"))
    run.lines = {"worker-0": [(0, b"done after 40 steps\n")]}
    run.exit_codes = {"worker-0": 0, "worker-1": 0, "worker-2": 1}
    check(run)
    run.exit_codes["worker-1"] = 1
    with pytest.raises(Unfinished, match="exit codes"):
        check(run)


def test_a_worker_may_have_a_shell_script_around_its_torchrun(tmp_path: Path) -> None:
    case = find("port_in_use")
    run = Run(case, tmp_path, [Place((), "127.0.0.1", "127.0.0.1", 1234, ())] * 2)
    shell, option, script = _command(run, 0)
    assert (shell, option) == ("bash", "-c")
    assert script.startswith(f"{sys.executable} -m http.server 1234 ")
    assert shlex.split(script)[-3:] == ["train.py", "--steps", "6"]
    assert _command(run, 1)[0] == sys.executable


def test_the_folder_of_a_worker_may_be_special(tmp_path: Path) -> None:
    """Each folder has the scripts, and no files of other workers."""
    for number, (name, special) in enumerate(
        [
            (
                "clm_syntax_error",
                lambda folder: "<<<<<<< HEAD\n        step = 0\n" in (folder / "run_clm.py").read_text(),
            ),
            ("clm_vocab_missing", lambda folder: not (folder / "tokenizer/vocab.txt").exists()),
            ("gpt_scratch_full", lambda folder: len(list(folder.glob("ckpt/*/__[23]_0.distcp"))) == 2),
            ("pipe_library_one_worker", lambda folder: (folder / "libfused.so").exists()),
        ]
    ):
        run = run_of(find(name), tmp_path / str(number))
        for index, worker in enumerate(run.case.workers()):
            _furnish(run, index)
            folder = run.workspace(worker)
            assert {"train.py", "runtime.py", run.case.program} <= {path.name for path in folder.iterdir()}
            assert special(folder) == (index in run.case.prepare)


def test_a_case_with_a_network_of_its_own_is_refused_without_one(tmp_path: Path) -> None:
    with pytest.raises(Unfinished, match="--namespaces"):
        execute(find("pipe_metrics_port"), tmp_path, loopback(2))
    assert list(tmp_path.iterdir()) == []


def test_options_of_one_worker_come_after_those_of_all(tmp_path: Path) -> None:
    run = Run(find("wrong_port_on_one"), tmp_path, [Place((), "127.0.0.1", "127.0.0.1", 1, ())] * 2)
    own = [[word for word in _command(run, index) if word.startswith("--rdzv-endpoint")] for index in (0, 1)]
    assert own == [["--rdzv-endpoint=127.0.0.1:1"], ["--rdzv-endpoint=127.0.0.1:1", "--rdzv-endpoint=worker-0:29500"]]


def test_the_time_of_a_fault_is_the_true_one(tmp_path: Path) -> None:
    """The failing process writes it with its worker's wrong clock."""
    path = tmp_path / "event.json"
    for worker, at_true in (("worker-1", 100), ("worker-0", 140)):
        path.write_text(json.dumps({"node": worker, "at_true": 140.0}))
        assert _event(find("clock_ahead"), path)["at_true"] == at_true


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_clock_that_is_off_changes_the_time_of_day_alone(tmp_path: Path) -> None:
    library = _clock(tmp_path)
    assert _clock(tmp_path) == library
    script = (
        "import threading, time\n"
        "begin = time.monotonic()\n"
        "threading.Event().wait(0.2)\n"
        "time.sleep(0.2)\n"
        "print(time.time(), begin, time.monotonic() - begin)\n"
    )
    environment = {"LD_PRELOAD": str(library), "CLOCK_AHEAD": "-25", "ATLCTL_TEST_ID": os.environ["ATLCTL_TEST_ID"]}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    day, begin, waited = map(float, done.stdout.split())
    assert day == pytest.approx(time.time() - 25, abs=5)
    assert begin == pytest.approx(time.monotonic(), abs=30)
    assert 0.4 <= waited < 5


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
    case = find("worker_never_joins")
    words = _command(
        Run(case, tmp_path, [Place((), "127.0.0.1", "127.0.0.1", 1, ("--local-addr", "127.0.0.1"))] * 3), 0
    )
    assert words.count("--rdzv-conf") == 1
    assert words[words.index("--rdzv-conf") + 1] == "is_host=1,join_timeout=10,last_call_timeout=2"
    assert not any(word.startswith("--rdzv-conf=") for word in words)


def names(folder: Path) -> set[str]:
    """The files of a case, without torchelastic's random names."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {re.sub(r"torchelastic_\w{8}/corpus_\w{8}", "torchelastic_X/corpus_X", path) for path in paths}


@pytest.mark.torch
def test_a_case_made_anew_is_the_committed_one(tmp_path: Path) -> None:
    case = find("exception_recorded_last_rank")
    make.make(case, tmp_path)
    committed, fresh = make.DATA / case.name, tmp_path / case.name
    # A peer killed before it raised leaves no error file: only the culprit's is certain.
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
def test_a_case_that_takes_too_long_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.corpus.running.LIMIT", 0.5)
    case = Case("slow", "", "rank", "hang", "", (Fault("hang", 0, 0),), outside=Outside("terminate", (0,)))
    with pytest.raises(Unfinished, match="never came to step"):
        make.make(case, tmp_path)
    assert list(tmp_path.iterdir()) == []
