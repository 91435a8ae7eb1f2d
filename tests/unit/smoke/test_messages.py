"""Notes and evidence of the smoke test in Chinese: completely translated, except text from workers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from atlctl.cli.smoke.telling import Words, report_text, to_data
from atlctl.i18n import Message, as_data, from_data, joined, translated
from atlctl.jobs import fields
from atlctl.remote.sentences import Sentence
from atlctl.remote.smoke import wire
from atlctl.render.streams import Streams
from atlctl.smoke import storage
from atlctl.smoke.care import ill, in_use, too_little
from atlctl.smoke.context import Options
from atlctl.smoke.facts import clock_findings, compare, differences
from atlctl.smoke.findings import Check, Finding, Report, Severity, SmokeVerdict
from atlctl.smoke.network import mesh
from atlctl.smoke.ranks import device
from atlctl.smoke.ranks.collectives import wrong_in_collectives, wrong_in_ddp
from atlctl.smoke.ranks.settle import blame
from atlctl.smoke.ranks.stages import StageOutcome
from atlctl.smoke.session import _with_messages, words_of
from tests.unit.smoke.care.test_gpus import fact
from tests.unit.smoke.network.test_blame import NAMES
from tests.unit.smoke.network.test_mesh import calls
from tests.unit.smoke.ranks.test_collectives import collectives, ddp
from tests.unit.smoke.ranks.test_settle import SLEEPS, ended, error, step, track
from tests.unit.smoke.test_storage import PLACE, failed, looks, wrote

#: Untranslated words: terms, names of steps and system calls, and made-up text of workers.
_STAY = re.compile(
    r"worker-?|rank|rail|agent|torch|nvidia-smi|import|shell|socket|store|leader|loopback|micro-batch|inode|busbw|"
    r"cgroup|power brake|throughput|memlock|gloo|nccl|nfs_wait|mlx5_\d|no-gpu|matmul|fp32|fp64|bf16|all_to_all|"
    r"all_gather|all_reduce|reduce_scatter|broadcast|init|meeting|memory|probe\.py|poll(?:_device)?|main|open|create|write|fsync|"
    r"read|cu124|cpu|x86_64|failed|export|/\w+(?:/\w+)*|(?<=NCCL_PROTO：)none|(?<=worker：)none|GB/s|MB/s|ms|inf|Xid|Python|NVLink|"
    r"RuntimeError|KeyError|timed out|words|atlctl\.remote\.smoke\.probe"
)


def arrived(message: Sentence) -> str:
    """A worker's message as received by the client."""
    found = _with_messages(json.loads(wire.line({"error": message})))["error"]
    assert isinstance(found, str)
    return found


def _crashed(end: dict[str, object]) -> str:
    return blame(StageOutcome("ddp", [track(0, step("init")), track(1, step("init"), end)]))[0].evidence


def made() -> Iterator[str]:
    """The checks' messages for the data of the checks' tests."""
    yield from (one.evidence for one in _of_gpus())
    for facts in (fact(utilisation=97.0), fact(memory_used=7e4), fact(processes=2), {"ranks": [{"rank": 9}]}):
        yield joined(in_use(facts, None).reasons)
    yield from too_little(
        {"w": fact() | {"memory": {"room": 9 << 20, "of": "cgroup", "group_kill": True}}}, Options()
    ).values()
    for versions in (("2.4.0", "2.4.0", "2.5.1"), ("2.4.0", "2.5.1", "2.5.0")):
        told = {f"w-{at}": {"torch": torch, "memlock": -at} for at, torch in enumerate(versions)}
        yield from (one.evidence for one in differences(compare(told)))
    for off, count in (({"w-1": 3.0}, 4), ({"w-1": -3.0}, 4), ({"w-1": 3.0, "w-2": -2.5}, 2)):
        yield from (one.evidence for one in clock_findings(off, count))
    for nodes, links in (({2: 3}, {}), ({}, {(1, 3): 1}), ({}, {(1, 3): 2}), (dict.fromkeys(range(4), 3), {})):
        yield from (one.evidence for one in mesh.judge_calls(NAMES[:4], calls(4, nodes, links)))
    for views in ("aaba", "aaabc", "aabb", "ab"):
        yield from (one.evidence for one in storage.judge(PLACE, looks(*views)))
    for code in ("ENOENT", "ENOTDIR", "EROFS", "ENOSPC", "EDQUOT", "EACCES", "EPERM", "ESTALE", "ENOTCONN", "EIO"):
        yield from (one.evidence for one in storage.judge(PLACE, looks(*"abaa", w1=failed(code))))
    yield from (one.evidence for one in storage.judge(PLACE, looks(*"aaa", w1=wrote(free=100, total=1 << 20))))
    ends = (ended(None, 11), ended(None, 9), ended(17, words="OWN\nWORDS: 2"), error("RuntimeError: OWN"))
    for tracks in (
        *([track(0, step("init")), track(1, step("init"), end)] for end in ends),
        [track(0, step("x"), step("y")), track(1, step("x"), look={"state": "T", "stack": SLEEPS})],
    ):
        yield from (one.evidence for one in blame(StageOutcome("ddp", tracks, silent=True)))
    ranks = ddp(4)
    ranks[3]["sync"]["given"][0] += 0.01
    wrongs = [*wrong_in_ddp(ranks), *wrong_in_collectives(collectives(4, {(1, 3)}))]
    wrongs += wrong_in_collectives(collectives(4, {(1, at) for at in range(4)}, {2: True}))
    yield from (one.evidence for one in wrongs)
    yield device.problem({"memory": {"wrong": [17]}, "matmul fp32": {"error": 0.1, "rest": 0.1, "limit": 1e-5}})


def _of_gpus() -> Iterator[Finding]:
    xids = [{"bus": "0000:1b:00", "xid": 74, "age": 120}]
    for facts in (
        fact(ecc=3.0, remap_failure="Yes", throttled=["heat"], temperature=91.0),
        fact(smi={"xids": xids}),
        fact(smi={"odd": ["OWN WORDS"]}),
        fact(smi={"hung": arrived(Sentence("no answer in {seconds} s (process state {state})", seconds=5, state="D"))}),
    ):
        yield from ill("worker-0", facts, 2, True, facts)
    yield from ill("worker-0", fact(), 8, True, {})


def test_what_the_checks_make_is_wholly_chinese() -> None:
    """No English word is left, except those also used in Chinese."""
    texts = list(dict.fromkeys(made()))
    assert len(texts) > 40
    left = {text: re.findall(r"[A-Za-z]?[a-z]{2,}", _STAY.sub("", translated(text, "zh"))) for text in texts}
    assert {text: words for text, words in left.items() if words} == {}


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        (Message("{said}; asked once more it answered, and was not tested",
                 said=Message("no answer within {seconds:g} s: {why}", seconds=4.0, why=Message("not connected"))),
         "4 s 内没有应答：未连接上；再次询问时它有应答，但没有参与测试"),
        (mesh.judge_calls(NAMES[:3], calls(3, {1: 3}, {}))[0].evidence,
         "连到它的连接有 2/2 条失败，由它发起的连接有 2/2 条失败：没有连接（timed out）"),
        (_crashed(ended(None, 9, words="OWN; WORDS")),
         "worker-1 上的 rank 1 在 init 中被信号 9（SIGKILL，内存不足时即如此）终止；它的消息：OWN; WORDS"),
        (arrived(Sentence("{what}: {why}", what="RuntimeError", why=Sentence(
            "ranks [{numbers}] of the group did not come to the store", numbers="1, 2"))),
         "RuntimeError：组内的 rank 1, 2 没有到达 store"),
    ],
)  # fmt: skip
def test_sentences(text: str, chinese: str) -> None:
    assert Words("zh").sentence(text) == chinese
    assert Words("en").sentence(text) == text


@pytest.mark.parametrize(
    "sent",
    [
        {"text": "hung up.", "template": "hung up", "values": {}},
        {"text": "no such {x}", "template": "no such {x}", "values": {"x": "{x}"}},
        {"text": "x", "template": "no answer in {seconds} s", "values": {}},
        {"text": "x", "template": "no answer in {seconds} s", "values": []},
        {"text": "x", "template": ["hung up"], "values": None},
        {"text": "x", "template": "no answer within {seconds:g} s", "values": {"seconds": 10**400}},
        {"text": "x", "template": "hung up"},
        {"template": "hung up", "values": {}},
        {"text": {"text": 1}, "template": "hung up", "values": {}},
    ],
)
def test_what_is_no_message_of_ours_stays_a_text(sent: Any) -> None:
    found = _with_messages({"ev": "x", "told": [sent]})["told"][0]
    assert type(found) is str
    assert found == fields.text(sent.get("text"))


def test_words_of_a_worker_are_cut() -> None:
    assert words_of("x" * 5000, 7) == "x" * 7
    assert words_of(["a\ud800"]) == "['a\\ud800']"
    assert words_of("a\ud800") == "a?"
    assert words_of(None) == ""
    long = arrived(Sentence("the process that starts ranks takes no orders: {error}", error="x" * 5000))
    assert type(long) is str
    assert len(long) == 1000


def test_a_saved_document_is_said_in_the_readers_language() -> None:
    for text in made():
        data = json.loads(json.dumps(as_data(text)))
        assert translated(from_data(data, str(text)), "zh") == translated(text, "zh")
        assert from_data(data, "another text") == "another text"


def test_a_report_is_chinese_for_its_reader_alone() -> None:
    report = Report("quick")
    note = Message("{some} of {all} workers answer", some=3, all=4)
    evidence = Message("no answer within {seconds:g} s: {why}", seconds=4.0, why=Message("not connected"))
    report.checks = [Check("roll-call", SmokeVerdict.FAIL, note, 4.0)]
    report.findings = [Finding("roll-call", Severity.FAIL, None, evidence, True)]
    for streams in (Streams(), Streams(stdout_tty=True, width=50)):
        english, chinese = (report_text(report, Words(lang), streams) for lang in ("en", "zh"))
        assert note in english
        assert f"      {evidence}" in english
        assert "3/4 个 worker 有应答" in chinese
        assert "      4 s 内没有应答：未连接上（复查时再次出现）" in chinese
    document = json.dumps(to_data(report, []))
    assert note in document
    assert evidence in document


def test_hostile_words_of_a_worker_are_harmless_within_a_sentence() -> None:
    nasty = "a\x1b[2J\x9b31m\u202e\u2028\nFAIL  forged; \\g<0> \\1"
    told = Words("zh").sentence(Message("no torch: {why}", why=words_of(nasty)))
    assert told.startswith("没有 torch：a^[[2J")
    assert told.isprintable()
    assert told.endswith("forged; \\g<0> \\1")
