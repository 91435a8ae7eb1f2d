"""The engine's sentences in Chinese."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.diagnosis import hang as judge
from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.result import Diagnosis
from atlctl.diagnosis.signatures import Matcher, builtin
from atlctl.diagnosis.telling.phrases import said_in
from atlctl.recording.read import read_saved
from tests.corpus.scale.opening import Size
from tests.corpus.scale.rendering import CASES as SCALE
from tests.corpus.scale.rendering import render
from tests.unit.diagnosis.cause.logs import STORE, WAITED, Log, closed_by, diagnosed, victim

CASES = Path(__file__).parents[3] / "corpus/data"


def sentences(folder: Path) -> Iterator[str]:
    """Why, reason and remarks of every case of the folder."""
    matcher = Matcher(builtin().signatures)
    for case in sorted(folder.glob("*/case.json")):
        found = diagnose(read_saved([str(case.parent)], matcher).job, matcher)
        yield from (cause.why for cause in (*found.root_causes, *found.candidates, *found.earlier))
        yield from (group.reason for group in found.cascade)
        yield from found.remarks


@pytest.mark.slow
def test_every_sentence_about_the_corpus_is_known() -> None:
    """A new sentence of the engine's belongs into `phrases.py`; until then a Chinese reader gets it in English."""
    said = dict.fromkeys(sentences(CASES))
    assert len(said) > 20
    assert [text for text in said if said_in(text, "zh") == text] == []


def jobs() -> Iterator[Diagnosis]:
    """Rules that few cases of the corpus meet, or none."""
    waited = [Log(index, processes=1).trace(6, 0, WAITED).ended(6.3, 0, 1, WAITED) for index in (0, 1)]
    yield diagnosed(*waited, Log(2, processes=1).trace(9, 0, closed_by(0)).ended(9.3, 0, 1, closed_by(0)))
    yield diagnosed(
        *(Log(index).say(5, "RuntimeError: CUDA out of memory. Tried to allocate 1 GiB.") for index in (0, 1))
    )
    told = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 2/3 clients joined."
    yield diagnosed(*(Log(index).agent_died(60, told) for index in (0, 1)))
    host = (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
    )
    yield diagnosed(Log(0).say(0, "x"), *(Log(index).agent_died(60, f"{host}(worker-0, 29400).") for index in (1, 2)))
    yield diagnosed(victim(0, of=1), Log(1).trace(1, 0, "ImportError: x", prefix=False).ended(1.3, 0, closed=(1,)))
    yield diagnosed(*(Log(index).start().ended(1.3, 0, code) for index, code in enumerate((1, 1, -6))))
    yield diagnosed(Log(0).trace(1.1, 0, closed_by(0)).ended(1.3, 0), victim(1, of=0))
    yield diagnosed(Log(0).start().signalled(1).agent_died(2, STORE))


def test_every_sentence_about_rare_ways_to_fail_is_known() -> None:
    found = list(jobs())
    causes = [cause for each in found for cause in (*each.root_causes, *each.candidates)]
    said = dict.fromkeys(
        [*(cause.why for cause in causes), *(group.reason for each in found for group in each.cascade)]
    )
    assert all(each.root_causes or each.candidates for each in found)
    assert [text for text in said if said_in(text, "zh") == text] == []


@pytest.mark.slow
def test_every_sentence_about_nccl_is_known(tmp_path: Path) -> None:
    for seed in range(3):
        for name in SCALE:
            render(name, tmp_path / str(seed), seed, Size(5, 2))
    said = dict.fromkeys(text for seed in range(3) for text in sentences(tmp_path / str(seed)))
    assert len(said) > 10
    assert [text for text in said if said_in(text, "zh") == text] == []


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("its log just ends; 3 ranks on 2 workers lost their connection to it",
         "它的日志戛然而止；2 个 worker 上的 3 个 rank 与它断开了连接"),
        ("2 failed of their own, it is 0.25 s before the next; 1 other only lost a peer",
         "2 个进程自身出错，它比下一个早 0.25 s；另有 1 个只是失去对端"),
        ("the job was restarted; what came after round 0 only followed", "作业已重启；第 0 轮之后的都只是后果"),
        ("8 ranks ran ALLREDUCE [4, 2], it did not", "8 个 rank 执行 ALLREDUCE [4, 2]，它没有"),
        ("No agent came up on worker-0", "worker-0 上没有启动 agent"),
        ("2 of 3 agents joined, and there are 2 logs", "3 个 agent 中有 2 个加入，而日志有 2 份"),
        ("Rank 3 (local rank 1) left in mid-run without a word (exit code 0)",
         "Rank 3 (local rank 1) 在运行中途一声不响地离开（退出码 0）"),
    ],
)  # fmt: skip
def test_sentences(english: str, chinese: str) -> None:
    assert said_in(english, "zh") == chinese
    assert said_in(english, "en") == english


@pytest.mark.parametrize("text", ["", "ValueError: x; the name does not resolve", "its log just ends.", "训练"])
def test_what_is_not_wholly_known_stays_as_it_is(text: str) -> None:
    assert said_in(text, "zh") == text


def test_hostile_texts_take_no_time() -> None:
    start = time.process_time()
    for text in ("1 ranks on " * 5000, "; " * 8000, "1" * 16000, "Rank 1: " + "it " * 5000, "a did not " * 1500):
        said_in(text, "zh")
    assert time.process_time() - start < 1


def hang_sentences() -> Iterator[str]:
    """What is said of a rank, alone and beside others, and of the job."""
    tables = (judge._BY_SIGN.items(), judge._BY_PLACE.items())
    # A rank that is no culprit is not told of as one.
    own = [why for table in tables for _, (what, why) in table if what in judge.CULPRIT or what is judge.What.UNKNOWN]
    functions = ("its stack reads or writes files: load", "it waits for its device: synchronize")
    for why in (*own, *judge._IN_USER.values(), *functions):
        for beside in ("", ", while others wait", ", unlike the others", ", like most ranks", ", as others wait"):
            yield f"{why}{beside}; 15 of 16 ranks have waited for 2 s or more"
    for what in judge.What:
        yield f"what the ranks are doing was looked at; {what}; nothing singles out a rank"
    yield "what the ranks are doing was looked at; gone (rank 1, 2 and more); no process has this rank"
    yield "every rank waits, and none is seen to be missing: a network that is down, or ranks that were not seen"
    yield "no rank stood still during the look; --repeat compares two"
    # `stacks` tells of every rank.
    yield from (why for table in tables for _, (_, why) in table)
    yield from ("its stack is in a collective: all_reduce", "its main thread ran during the look")


def test_every_sentence_about_ranks_that_hang_is_known() -> None:
    assert [text for text in hang_sentences() if said_in(text, "zh") == text] == []
