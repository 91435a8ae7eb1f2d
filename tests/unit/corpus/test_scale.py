"""Synthetic cases with many ranks: reproducible by seed, logs that contain the truth, blocks that can be parsed."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from atlctl.diagnosis.logline import clean_line
from atlctl.diagnosis.torchelastic import AgentNote, NoteKind, Summaries, Summary, parse_note
from tests.corpus.scale import agent, job
from tests.corpus.scale.__main__ import main
from tests.corpus.scale.agent import Failed
from tests.corpus.scale.job import MAX_SKEW, Job, Worker
from tests.corpus.scale.log import SECOND, Clock, Log, stamps
from tests.corpus.scale.opening import Size
from tests.corpus.scale.profiles import PROFILES, Profile
from tests.corpus.scale.rendering import CASES, render
from tests.corpus.score import Answer, score
from tests.support.pace import within

SMALL = Size(4, 2)
SEEDS = range(6)
UNDECIDED = {"straggler", "culprit_unseen"}
#: Cases with one silent rank, on which all other watchdogs time out.
SILENT = ("hang", "other_collective")
_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (.*)", re.DOTALL)
_CAUGHT = re.compile(
    r"(?:\[rank(\d+)\]:)?\[E.{0,30}ProcessGroupNCCL\.cpp:\d+\] \[Rank (\d+)\] Watchdog caught.*?(WorkNCCL.*?),"
)
#: Allowed names after a slash at the start of a word; others would be from a machine.
_FOLDERS = {"opt", "workspace", "tmp", "lib", "data", "checkpoints", "pytorch"}


def logs(folder: Path) -> dict[str, str]:
    """The plain logs, by worker name."""
    return {
        path.name.removesuffix(".log"): path.read_bytes().decode()
        for path in sorted(folder.glob("*.log"))
        if not path.name.endswith(".ts.log")
    }


def timed_out(texts: dict[str, str]) -> set[int]:
    """Global ranks whose watchdog reports a timeout."""
    return {int(match[1] or match[2]) for text in texts.values() for match in _CAUGHT.finditer(text)}


def ranks_on(document: dict[str, Any], workers: set[str]) -> set[int]:
    """Global ranks of these workers."""
    size = document["nproc_per_node"][0]
    return {
        node * size + local
        for node, name in enumerate(document["nodes_by_rank"])
        if name in workers
        for local in range(size)
    }


def use_profile(monkeypatch: pytest.MonkeyPatch, profile: Profile) -> None:
    """Use this version for every job that allows it."""

    def pick(rng: Random, least: tuple[int, int] = (2, 1)) -> Profile:
        return profile if profile.number >= least else PROFILES[-1]

    monkeypatch.setattr(job, "pick", pick)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name in CASES:
        for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
            render(name, tmp_path / folder, seed, SMALL)
        first, again, other = (
            {path.name: path.read_bytes() for path in (tmp_path / folder / name).iterdir()} for folder in "abc"
        )
        assert first == again
        assert first != other


@pytest.mark.parametrize("name", CASES)
def test_files_and_truth(name: str, tmp_path: Path) -> None:
    kinds = set()
    for seed in SEEDS:
        document = render(name, tmp_path, seed, SMALL)
        folder = tmp_path / name
        assert document == json.loads((folder / "case.json").read_text())
        present = set(document["nodes_started"]) - set(document["logs_lost"])
        assert {path.name for path in folder.iterdir()} == {
            "case.json",
            *(f"{worker}.log" for worker in present),
            *(f"{worker}.ts.log" for worker in present),
        }
        truth = document["truth"]
        kinds.add(truth["kind"])
        for place in truth.get("any_of", [truth] if "node" in truth else []):
            if truth["kind"] != "missing_node":
                assert place["node"] in present
            if "local_rank" in place:
                assert place["global_rank"] in ranks_on(document, {place["node"]})
                assert place["global_rank"] % SMALL.processes == place["local_rank"]
        assert (truth["kind"] == "none") == (set(document["exit_code"].values()) == {0})
        assert set(document["exit_code"]) == set(document["nodes_started"])
    assert len(kinds) == 1
    assert (kinds == {"undecided"}) == (name in UNDECIDED)


@pytest.mark.parametrize("name", CASES)
def test_stamped_log_is_the_plain_one_with_rising_stamps(name: str, tmp_path: Path) -> None:
    document = render(name, tmp_path, 0, SMALL)
    for worker, plain in logs(tmp_path / name).items():
        stamped = (tmp_path / name / f"{worker}.ts.log").read_bytes().decode()
        matches = [_STAMPED.match(line) for line in stamped.split("\n")[:-1]]
        assert "\n".join(match[2] if match else "?" for match in matches) + "\n" == plain
        assert all(before and after and before[1] < after[1] for before, after in pairwise(matches))
    assert all(abs(skew) <= MAX_SKEW for skew in document["clock_skew_seconds"].values())


@pytest.mark.parametrize("name", CASES)
def test_texts_are_whole_and_name_no_machine_and_no_truth(name: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        render(name, tmp_path, seed, SMALL)
        text = "".join(logs(tmp_path / name).values())
        assert set(re.findall(r'(?:^|[\s"=(])/(\w+)/', text, re.MULTILINE)) - _FOLDERS == set()
        assert not re.search(r"culprit|synthetic|scenario|\{(?!sigval)\w+\}|\bNone\b|<tests\.|object at 0x", text)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.torch)
@pytest.mark.parametrize("name", ["hang", "exception", "two_culprits", "killed", "import_error"])
def test_blocks_parse_back(name: str, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser reads the agents' data correctly, in every version's layout."""
    meant: dict[str, list[Failed]] = {}
    original = agent.summary

    def summary(of: Job, worker: Worker, moment: int, failures: list[Failed]) -> None:
        meant[worker.name] = list(failures)
        original(of, worker, moment, failures)

    monkeypatch.setattr(agent, "summary", summary)
    use_profile(monkeypatch, profile)
    for seed in SEEDS:
        meant.clear()
        document = render(name, tmp_path, seed, SMALL)
        read = logs(tmp_path / name)
        assert meant
        for worker, failures in meant.items():
            if worker in document["logs_lost"]:
                continue
            (block,) = blocks(read[worker])
            assert len(block.entries) == len(failures)
            assert {(e.rank, e.local_rank, e.exit_code, e.pid) for e in block.entries} == {
                (f.rank.number, f.rank.local, f.code, f.rank.pid) for f in failures
            }
            clock = failures[0].rank.worker.log.clock
            first = min(failures, key=lambda failure: clock.second(failure.noticed))
            root = block.entries[block.root_index or 0]
            assert (root.local_rank, root.host) == (first.rank.local, first.rank.worker.host)
            assert root.time == clock.second(first.noticed) + clock.zone
            assert bool(root.error_file) == bool(first.error)
            (note,) = [note for note in notes(read[worker]) if note.kind is NoteKind.FAILED]
            assert (note.local_rank, note.exit_code, note.pid) == (first.rank.local, first.code, first.rank.pid)


def blocks(text: str) -> list[Summary]:
    """The agent's summaries, read by the product's parser."""
    parser = Summaries()
    for number, line in enumerate(text.encode().split(b"\n"), 1):
        parser.feed(clean_line(line), number)
    return parser.found()


def notes(text: str) -> list[AgentNote]:
    """The agent's single lines, read by the product's parser."""
    found = (parse_note(line, number) for number, line in enumerate(text.encode().split(b"\n"), 1))
    return [note for note in found if note is not None]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.torch)
@pytest.mark.parametrize("name", SILENT)
def test_only_the_missing_rank_does_not_time_out(
    name: str, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_profile(monkeypatch, profile)
    for seed in SEEDS:
        document = render(name, tmp_path, seed, SMALL)
        missing = {document["truth"]["global_rank"]} | ranks_on(document, set(document["logs_lost"]))
        assert timed_out(logs(tmp_path / name)) == set(range(SMALL.workers * SMALL.processes)) - missing


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.torch)
def test_nobody_is_missing_where_no_log_decides(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_profile(monkeypatch, profile)
    for name in UNDECIDED:
        document = render(name, tmp_path, 5, SMALL)
        texts = logs(tmp_path / name)
        assert timed_out(texts) == set(range(8)) - ranks_on(document, set(document["logs_lost"]))
        counters = re.findall(r"last enqueued (?:NCCL )?work: (\d+), last completed (?:NCCL )?work: (\d+)", str(texts))
        assert len({completed for _, completed in counters}) <= 1


def test_a_mismatched_rank_times_out_in_another_collective(tmp_path: Path) -> None:
    for seed in SEEDS:
        document = render("collective_mismatch", tmp_path, seed, Size(4, 4))
        by_work = defaultdict(set)
        for text in logs(tmp_path / "collective_mismatch").values():
            for match in _CAUGHT.finditer(text):
                operation = re.search(rf"\[Rank {match[2]}\] Watchdog caught.*?OpType=(\w+)", text)
                by_work[operation and operation[1]].add(int(match[1] or match[2]))
        assert {document["truth"]["global_rank"]} in by_work.values()
        assert len(by_work) == 2


def test_in_a_subgroup_only_the_peers_of_the_missing_rank_wait_in_it(tmp_path: Path) -> None:
    for seed in SEEDS:
        document = render("hang_in_subgroup", tmp_path, seed, Size(4, 4))
        truth, texts = document["truth"], logs(tmp_path / "hang_in_subgroup")
        for worker, text in texts.items():
            operations = set(
                re.findall(r"Watchdog caught collective operation timeout: WorkNCCL\(.*?OpType=(\w+)", text)
            )
            assert ("_ALLGATHER_BASE" in operations) == (worker == truth["node"])
        assert truth["global_rank"] not in timed_out(texts)


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("exception", "trainer.fit(model, loader)"),
        ("cuda_out_of_memory", "CUDA out of memory. Tried to allocate"),
        ("ecc_error", "CUDA error: uncorrectable ECC error encountered"),
        ("illegal_access", "terminated with exception: CUDA error: an illegal memory access"),
        ("killed", "(exitcode: -9)"),
        ("segfault", "(exitcode: -11)"),
        ("worker_evicted", "death signal, shutting down workers"),
        ("hang_in_gpu_call", "ProcessGroupNCCL's watchdog got stuck for 480 seconds"),
        ("restart_then_failure", "failed (exitcode: 1)"),
    ],
)
def test_the_failure_stands_in_one_log_only(name: str, shows: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        document = render(name, tmp_path, seed, SMALL)
        found = {worker for worker, text in logs(tmp_path / name).items() if shows in text}
        assert found == {document["truth"]["node"]}


def early_restarts(folder: Path) -> set[str]:
    """Workers whose first start could not resolve the store's host."""
    return {worker for worker, text in logs(folder).items() if "gai error: -2" in text}


def test_a_lost_worker_says_no_goodbye(tmp_path: Path) -> None:
    for seed in SEEDS:
        document = render("worker_lost", tmp_path, seed, SMALL)
        texts = logs(tmp_path / "worker_lost")
        last_words = re.compile(r"ChildFailedError: $|RendezvousConnectionError: (?!.*\n.*run\.py:766)", re.MULTILINE)
        silent = {name for name, text in texts.items() if not last_words.search(text.rpartition("OMP_NUM_THREADS")[2])}
        assert silent == {document["truth"]["node"]}
        assert document["exit_code"][document["truth"]["node"]] == -9


def test_one_who_leaves_with_zero_is_in_no_agents_note(tmp_path: Path) -> None:
    for seed in SEEDS:
        document = render("exit_zero", tmp_path, seed, Size(4, 4))
        truth = document["truth"]
        text = logs(tmp_path / "exit_zero")[truth["node"]]
        listed = {entry.rank for block in blocks(text) for entry in block.entries}
        assert truth["global_rank"] not in listed
        assert re.search(rf"\[rank{truth['global_rank']}\]:\[W.*(NOT been destroyed|was not called before)", text)


def test_good_runs_end_without_an_agents_failure(tmp_path: Path) -> None:
    for seed in SEEDS:
        for name in ("success", "restart_recovers"):
            document = render(name, tmp_path, seed, SMALL)
            texts = logs(tmp_path / name)
            failed = [worker for worker in texts if any(note.kind is NoteKind.FAILED for note in notes(texts[worker]))]
            assert not any(blocks(text) for text in texts.values())
            assert len(failed) == 0 if name == "success" else len(failed) == 1 or document["logs_lost"]


def test_all_variants_occur(tmp_path: Path) -> None:
    """In several seeds: lost logs, an early restart, both rendezvous types, ranks not in the workers' order."""
    seen: dict[str, set[object]] = defaultdict(set)
    for seed in range(20):
        document = render("hang", tmp_path, seed, Size(12, 2))
        texts = logs(tmp_path / "hang")
        seen["lost"].add(len(document["logs_lost"]))
        seen["early"].add(bool(early_restarts(tmp_path / "hang")))
        seen["c10d"].add("c10d" in document["command"]["worker-1"])
        seen["ordered"].add(document["nodes_by_rank"] == document["nodes"])
        seen["torch"].add(document["torch"])
        seen["bars"].add(any("\r" in text for text in texts.values()))
    assert {key: len(values) > 1 for key, values in seen.items()} == dict.fromkeys(seen, True)
    assert seen["lost"] == {0, 3}


def test_c10d_ranks_follow_the_names(tmp_path: Path) -> None:
    document = render("restart_recovers", tmp_path, 0, Size(12, 2))
    assert document["nodes_by_rank"] == sorted(document["nodes"])


def test_scored_by_the_corpus_tool(tmp_path: Path) -> None:
    for name in CASES.keys() - UNDECIDED:
        render(name, tmp_path, 0, SMALL)
    item = score("job", lambda folder: Answer("job"), tmp_path)
    assert (item.count("right"), item.count("wrong")) == (1, len(CASES) - len(UNDECIDED) - 1)


def test_512_ranks_are_cheap_and_small(tmp_path: Path) -> None:
    begin = time.process_time()
    document = render("hang", tmp_path, 0, Size(64, 8))
    assert within(time.process_time() - begin, 8)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 25_000_000
    missing = {document["truth"]["global_rank"]} | ranks_on(document, set(document["logs_lost"]))
    assert timed_out(logs(tmp_path / "hang")) == set(range(512)) - missing


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "hang", "success", "--workers", "3", "--processes", "2", "--seed", "4"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"hang", "success"}
    assert "2 cases" in capsys.readouterr().out
    for words in (["no-such-case"], ["--workers", "1"], ["--processes", "99999"]):
        with pytest.raises(SystemExit, match="2"):
            main([str(tmp_path), *words])


def test_clocks() -> None:
    noon = 1_775_044_800 * SECOND + 857_123_456  # 2026-04-01 12:00:00.857 UTC
    clock = Clock(skew=-SECOND, zone=8 * 3600)
    assert clock.glog(noon) == "401 19:59:59.857123456"
    assert clock.torch(noon) == "0401 19:59:59.857000"
    assert clock.asctime(noon) == "2026-04-01 19:59:59,857"
    assert clock.second(noon) == 1_775_044_799
    assert Clock(steady=SECOND // 2).glog(noon) == "401 12:00:00.357123456"  # wraps without a carry


def test_a_log_joins_open_lines_and_can_be_cut() -> None:
    log = Log(Clock())
    log.add(2, "later")
    log.add(1, "50%", end="")
    log.add(3, "two\nlines")
    assert [line for _, line in log.lines()] == ["50%later", "two", "lines"]
    assert stamps(log.lines()).startswith("1970-01-01T00:00:00.00")
    log.cut(3)
    assert [line for _, line in log.lines()] == ["50%later"]


def test_every_case_has_a_text(tmp_path: Path) -> None:
    texts = [render(name, tmp_path, 0, Size(2, 2))["what"] for name in CASES]
    assert len(set(texts)) == len(CASES)
    assert all(len(text) > 30 for text in texts)
