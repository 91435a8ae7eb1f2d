"""Every sentence of the engine is a translatable message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.platform import Event, PlatformState, judge_event, judge_state
from atlctl.diagnosis.result import Diagnosis
from atlctl.diagnosis.signatures import Matcher, builtin
from atlctl.i18n import Message, translated
from atlctl.recording.read import read_saved
from tests.corpus.scale.opening import Size
from tests.corpus.scale.rendering import CASES as SCALE
from tests.corpus.scale.rendering import render
from tests.unit.diagnosis.cause.logs import STORE, WAITED, Log, closed_by, diagnosed, unread, victim

CASES = Path(__file__).parents[3] / "corpus/data"


def plain(found: Diagnosis) -> list[str]:
    """Reasons and remarks that are not messages."""
    causes = (*found.root_causes, *found.candidates, *found.earlier)
    said = [*(cause.why for cause in causes), *(group.reason for group in found.cascade), *found.remarks]
    return [text for text in said if not isinstance(text, Message)]


def of_folder(folder: Path) -> list[str]:
    matcher = Matcher(builtin().signatures)
    found = [diagnose(read_saved([str(case.parent)], matcher).job, matcher) for case in folder.glob("*/case.json")]
    assert len(found) > 20
    return [text for each in found for text in plain(each)]


def test_sentences_about_the_corpus() -> None:
    assert of_folder(CASES) == []


def test_sentences_about_nccl(tmp_path: Path) -> None:
    for name in SCALE:
        render(name, tmp_path, 0, Size(5, 2))
    assert of_folder(tmp_path) == []


def jobs() -> Iterator[Diagnosis]:
    """Jobs for rules that few or no cases of the corpus use."""
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


def test_sentences_about_rare_ways_to_fail() -> None:
    for found in jobs():
        assert found.root_causes or found.candidates
        assert plain(found) == []


def test_sentences_in_chinese() -> None:
    waited = [Log(index, processes=1).trace(6, 0, WAITED).ended(6.3, 0, 1, WAITED) for index in (0, 1)]
    found = diagnosed(*waited, Log(2, processes=1).start(), unread(3))
    (cause,) = (*found.root_causes, *found.candidates)
    assert translated(cause.why, "zh") == "它的日志突然中断；2 个 worker 上的 2 个 rank 等待它"
    assert [translated(text, "zh") for text in found.remarks] == ["1 个 worker 没有日志：worker-3"]


def test_sentences_of_the_platform_in_chinese() -> None:
    state = judge_state(PlatformState(reason="ImagePullBackOff"))
    event = judge_event(Event(None, None, "n", "Node", "", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1"))
    assert state is not None
    assert translated(state.text, "zh") == "其镜像无法拉取：该 worker 从未启动"
    assert event is not None
    assert translated(event.text, "zh").startswith("Xid 79：")
    assert "fallen" not in translated(event.text, "zh")
