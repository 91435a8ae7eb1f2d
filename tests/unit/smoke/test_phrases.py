"""Notes and evidence of the smoke test in Chinese: every sentence is known, and nothing else is touched."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.cli.smoke.data import to_data
from atlctl.cli.smoke.phrases import said
from atlctl.cli.smoke.telling import report_text
from atlctl.cli.smoke.words import Words
from atlctl.render.streams import Streams
from atlctl.smoke import findings, mounts
from atlctl.smoke.care import ill, in_use, too_little
from atlctl.smoke.context import Options
from atlctl.smoke.facts.check import clock_findings, differences
from atlctl.smoke.facts.minority import compare
from atlctl.smoke.findings import Check, Finding, Report, Severity, Verdict
from atlctl.smoke.network import reach
from atlctl.smoke.ranks import blame, device, verdicts
from atlctl.smoke.ranks.stages import Outcome
from tests.unit.smoke.care.test_gpus import fact
from tests.unit.smoke.network.test_blame import NAMES
from tests.unit.smoke.network.test_reach import calls
from tests.unit.smoke.ranks.test_blame import SLEEPS, ended, error, step, track
from tests.unit.smoke.ranks.test_verdicts import collectives, ddp
from tests.unit.smoke.sentences import OTHERS, SENTENCES
from tests.unit.smoke.storage.test_mounts import PLACE, failed, looks, wrote

#: What stays as it is in Chinese: terms, names of steps and of system calls, and the made-up words of workers.
_STAY = re.compile(
    r"worker-?|rank|rail|agent|torch|nvidia-smi|import|shell|socket|store|leader|loopback|micro-batch|inode|busbw|"
    r"cgroup|power brake|throughput|memlock|gloo|nccl|nfs_wait|mlx5_\d|no-gpu|matmul|fp32|fp64|bf16|all_to_all|"
    r"all_gather|all_reduce|reduce_scatter|broadcast|init|meeting|memory|probe\.py|poll|main|open|create|write|fsync|"
    r"read|cu124|cpu|x86_64|failed|export|/\w+(?:/\w+)*|(?<=NCCL_PROTO：)none|(?<=worker：)none|GB/s|MB/s|ms|inf|Xid|Python|NVLink|"
    r"RuntimeError|KeyError"
)


@pytest.mark.parametrize("text", SENTENCES)
def test_every_sentence_is_known_and_whole(text: str) -> None:
    """No word of English is left but those that are said so in Chinese, too."""
    told = said(text)
    assert told != text
    assert re.findall(r"[A-Za-z]?[a-z]{2,}", _STAY.sub("", told)) == []


def fragments(path: Path) -> Iterator[str]:
    """Constant parts of two words or more of all texts of a module, but advice, logs, patterns and docstrings."""

    def visit(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if re.search("ADVICE|_MUTE$", name):
                return
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re" | "_log"))):
                return
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Constant(value=str(text)) if re.search("[a-z]{2,} [a-z]", text) and "\n" not in text:
                yield text
        for below in ast.iter_child_nodes(node):
            yield from visit(below)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")))


def test_every_text_in_the_code_is_in_a_sentence() -> None:
    """A new sentence belongs into `sentences.py`, which makes it fail until it has its Chinese."""
    folder = Path(findings.__file__).parent
    # The first tells of an environment and nothing else; the second has programs of its own.
    modules = [path for path in folder.rglob("*.py") if path.name not in ("torchrunline.py", "sending.py")]
    known = "\n".join(SENTENCES)
    probe = (folder / "probe.py").read_text(encoding="utf-8")
    assert len(modules) > 40
    unknown = []
    for path in modules:
        for text in dict.fromkeys(fragments(path)):
            # What the probe prints where it is run by hand.
            alone = path.name == "probe.py" and probe.find(text) > probe.index("\ndef main")
            if text not in known and text not in OTHERS and not alone:
                unknown.append(f"{path.relative_to(folder)}: {text}")
    assert unknown == []


def made() -> Iterator[str]:
    """What the checks say of what the tests of the checks make up."""
    yield from (one.evidence for one in _of_gpus())
    for facts in (fact(utilisation=97.0), fact(memory_used=7e4), fact(processes=2), {"ranks": [{"rank": 9}]}):
        yield "; ".join(in_use(facts, None).reasons)
    yield from too_little(
        {"w": fact() | {"memory": {"room": 9 << 20, "of": "cgroup", "group_kill": True}}}, Options()
    ).values()
    for versions in (("2.4.0", "2.4.0", "2.5.1"), ("2.4.0", "2.5.1", "2.5.0")):
        told = {f"w-{at}": {"torch": torch, "memlock": -at} for at, torch in enumerate(versions)}
        yield from (one.evidence for one in differences(compare(told)))
    for off, count in (({"w-1": 3.0}, 4), ({"w-1": -3.0}, 4), ({"w-1": 3.0, "w-2": -2.5}, 2)):
        yield from (one.evidence for one in clock_findings(off, count))
    for nodes, links in (({2: 3}, {}), ({}, {(1, 3): 1}), ({}, {(1, 3): 2}), (dict.fromkeys(range(4), 3), {})):
        yield from (one.evidence for one in reach.judge(NAMES[:4], calls(4, nodes, links)))
    for views in ("aaba", "aaabc", "aabb", "ab"):
        yield from (one.evidence for one in mounts.judge(PLACE, looks(*views)))
    for code in ("ENOENT", "ENOTDIR", "EROFS", "ENOSPC", "EDQUOT", "EACCES", "EPERM", "ESTALE", "ENOTCONN", "EIO"):
        yield from (one.evidence for one in mounts.judge(PLACE, looks(*"abaa", w1=failed(code))))
    yield from (one.evidence for one in mounts.judge(PLACE, looks(*"aaa", w1=wrote(free=100, total=1 << 20))))
    ends = (ended(None, 11), ended(None, 9), ended(17, words="OWN\nWORDS: 2"), error("RuntimeError: OWN"))
    for tracks in (
        *([track(0, step("init")), track(1, step("init"), end)] for end in ends),
        [track(0, step("x"), step("y")), track(1, step("x"), look={"state": "T", "stack": SLEEPS})],
    ):
        yield from (one.evidence for one in blame.blame(Outcome("ddp", tracks, silent=True)))
    ranks = ddp(4)
    ranks[3]["sync"]["given"][0] += 0.01
    wrongs = [*verdicts.ddp(ranks), *verdicts.collectives(collectives(4, {(1, 3)}))]
    wrongs += verdicts.collectives(collectives(4, {(1, at) for at in range(4)}, {2: True}))
    yield from (one.evidence for one in wrongs)
    yield device.problem({"memory": {"wrong": [17]}, "matmul fp32": {"error": 0.1, "rest": 0.1, "limit": 1e-5}})


def _of_gpus() -> Iterator[Finding]:
    xids = [{"bus": "0000:1b:00", "xid": 74, "age": 120}]
    for facts in (
        fact(ecc=3.0, remap_failure="Yes", throttled=["heat"], temperature=91.0),
        fact(smi={"xids": xids}),
        fact(smi={"odd": ["OWN WORDS"]}),
        fact(smi={"hung": "no answer in 5 s (process state D)"}),
    ):
        yield from ill("worker-0", facts, 2, True, facts)
    yield from ill("worker-0", fact(), 8, True, {})


def test_what_the_checks_make_is_known() -> None:
    texts = list(dict.fromkeys(made()))
    assert len(texts) > 40
    assert [text for text in texts if said(text) == text] == []


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("3 of 4 workers answer", "4 个 worker 中有 3 个应答"),
        ("no answer within 4 s: not connected; asked once more it answered, and was not tested",
         "4 s 内没有应答：未连接上；再次询问时它有应答，但没有参与测试"),
        ("12 of 12 connections, round trip 0.05 ms, all workers share one machine's loopback: no network was tested",
         "12 个连接中有 12 个成功，往返 0.05 ms，所有 worker 都在一台机器的回环网络上：没有测试网络"),
        ("3 of 3 connections to it fail, 3 of 3 connections from it fail: no connection (No route to host)",
         "连到它的 3 个连接中有 3 个失败，由它发起的 3 个连接中有 3 个失败：没有连接（No route to host）"),
        ("GPUs: 7 x NVIDIA H100 (the others: 8 x NVIDIA H100); setting NCCL_ALGO: none (the others: not set)",
         "GPU：7 x NVIDIA H100（其他 worker：8 x NVIDIA H100）；环境变量 NCCL_ALGO：none（其他 worker：未设置）"),
        ("not alike, and no value is that of most: torch: w-[0-1,4] none, w-2 2.4.0",
         "不一致，且没有占多数的值：torch：w-[0-1,4] 无，w-2 2.4.0"),
        (("rank 3 on w-1, GPU 2 hangs in init, stopped by a signal: wait (a.py:3); it said: oh; no; a second time it "
         "got along"),
         "w-1 上 GPU 2 的 rank 3 在 init 中卡住，被信号暂停：wait (a.py:3)；它的消息：oh; no；第二次它正常完成"),
        (("rank 1 on w-1: wrong values from it came to 3 ranks in all_gather (3 values, the first at 17: 1.0 in place "
         "of 2.0)"),
         "w-1 上的 rank 1：3 个 rank 从它收到错误的值（all_gather）（共 3 个值，第一个在 17：应为 2.0，实为 1.0）"),
        ("w-1 has pairs that do not come to their end: no answer to 3.1 GB/s",
         "w-1 有些配对没有完成：没有应答至 3.1 GB/s"),
    ],
)  # fmt: skip
def test_sentences(english: str, chinese: str) -> None:
    assert Words("zh").sentence(english) == chinese
    assert Words("en").sentence(english) == english


@pytest.mark.parametrize(
    "text",
    ["", "worker-0: not connected to 10.0.0.1", "3 of 4 workers answer.", "no time left; Segmentation fault", "训练"],
)
def test_what_is_not_wholly_known_stays_as_it_is(text: str) -> None:
    assert said(text) == text


def test_a_report_is_chinese_for_its_reader_alone() -> None:
    report = Report("quick")
    note, evidence = "3 of 4 workers answer", "no answer within 4 s: not connected"
    report.checks = [Check("roll-call", Verdict.FAIL, note, 4.0)]
    report.findings = [Finding("roll-call", Severity.FAIL, None, evidence, True)]
    for streams in (Streams(), Streams(stdout_tty=True, width=50)):
        english, chinese = (report_text(report, Words(lang), streams) for lang in ("en", "zh"))
        assert note in english
        assert f"      {evidence}" in english
        assert "4 个 worker 中有 3 个应答" in chinese
        assert "      4 s 内没有应答：未连接上（复查时再次出现）" in chinese
    document = json.dumps(to_data(report, []))
    assert note in document
    assert evidence in document


def test_hostile_words_of_a_worker_are_harmless_within_a_sentence() -> None:
    nasty = "a\x1b[2J\x9b31m\u202e\u2028\nFAIL  forged; \\g<0> \\1"
    told = Words("zh").sentence(f"no torch: {nasty}")
    assert told.startswith("没有 torch：a^[[2J")
    assert told.isprintable()
    assert told.endswith("forged; \\g<0> \\1")


def test_hostile_texts_take_no_time() -> None:
    wrappers = "no torch: ", "Xid 1: ", "rank 1 on w: ", "on all workers: ", "its agent failed; ", "skipped: ", "GPUs: "
    texts = [
        *((start * 5000)[:size] for start in wrappers for size in (900, 4000, 60000)),
        *(mark * (size // len(mark)) for mark in ("; ", ", ", "1", "(", ": no connection (") for size in (4000, 60000)),
        ", ".join(f"{at} more" for at in range(400)),
        "rank 1 on w hangs in " * 100 + "x",
        "rank 1 on w" + " hangs in a: b (c)" * 100,
        "not alike, and no value is that of most: " + "torch: a none, " * 200,
        "3 of 3 connections to it fail, " * 120 + "x: no connection",
        "; it said: " * 300,
    ]
    start = time.process_time()
    for text in texts:
        said(text)
    assert time.process_time() - start < 2


def test_a_reader_of_english_loads_no_phrases() -> None:
    code = (
        "import sys; from atlctl.cli.smoke.words import Words; import atlctl.cli.smoke.telling; "
        "Words('en').sentence('no time left'); sys.exit('atlctl.cli.smoke.phrases' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
