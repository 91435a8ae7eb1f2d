"""The text of a report: workers' texts are sanitised, widths are kept, both languages are equal."""

from __future__ import annotations

import json
import re

import pytest

from atlctl.cli.commands.smoke import exit_code
from atlctl.cli.smoke.telling import Words, report_text, to_data
from atlctl.cli.smoke.torchrun import line
from atlctl.i18n import Language, Message
from atlctl.render.jsonout import dumps
from atlctl.render.streams import Streams
from atlctl.render.width import display_width
from atlctl.smoke.findings import Check, Culprit, Finding, Report, Severity, SmokeVerdict
from tests.unit.smoke.reports import report

NASTY = "a\x1b[2J\x1b]0;t\x07\x9b31m\x85\rover\b\x7f\u202egnp\u2066\u2028\u200b[bold]m[/bold]:smile:\nFAIL  forged\n中"
_BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_COLOR = re.compile("\x1b\\[[0-9;]*m")
SCREENS = {
    "pipe": Streams(),
    "tty40": Streams(stdout_tty=True, width=40),
    "tty80": Streams(stdout_tty=True, width=80),
    "color": Streams(stdout_tty=True, stdout_color=True, width=80),
}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("screen", SCREENS.values(), ids=SCREENS)
def test_hostile_words_and_names_are_harmless(screen: Streams, lang: Language) -> None:
    text = report_text(report(NASTY, NASTY), Words(lang), screen)
    assert _BAD.search(_COLOR.sub("", text) if screen.stdout_color else text) is None
    assert not [one for one in text.splitlines() if one.startswith("FAIL  forged")]
    assert "[bold]m[/bold]:smile:" in text or screen.width == 40


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal(lang: Language, width: int) -> None:
    for words in ("short", "中文" * 60, "word " * 60):
        text = report_text(report(words), Words(lang), Streams(stdout_tty=True, width=width))
        assert max(map(display_width, text.splitlines())) <= width


def test_a_pipe_gets_each_finding_on_two_lines() -> None:
    lines = report_text(report(), Words("en"), Streams()).splitlines()
    assert lines[0] == "FAIL: a fault was found (faults: 2, warnings: 5, checks not judged: 1)"
    assert "FAIL        roll-call      4.0  3 of 4 workers answer" in lines
    at = lines.index("FAIL  mesh: worker-1 <-> worker-2")
    assert lines[at + 1] == "      words of a worker link (seen again at a second look)"
    # The same advice is shown only once.
    assert sum("next: advice words of a worker" in one for one in lines) == 1
    assert "WARN  mesh: GPU 2 of worker-1" in lines
    assert "WARN  mesh: rank 3 on worker-1" in lines
    assert "WARN  mesh: /data/words of a worker on worker-1" in lines
    assert "NOT JUDGED  ddp: worker-[0-3] (4)" in lines
    assert "WARN  facts: culprit unknown" in lines


def test_what_was_not_tested_of_a_worker_is_said_once_with_its_checks() -> None:
    made = Report("quick")
    made.checks = [Check(one, SmokeVerdict.INCOMPLETE) for one in ("device", "ddp")]
    made.findings = [
        Finding(check, Severity.INCOMPLETE, Culprit("worker", name), "no torch", advice=Message("install it"))
        for check in ("device", "ddp")
        for name in ("worker-1", "worker-2")
    ]
    made.findings.append(Finding("ddp", Severity.INCOMPLETE, Culprit("worker", "worker-3"), "no torch"))
    lines = report_text(made, Words("en"), Streams()).splitlines()
    assert lines[0] == "INCOMPLETE: no fault was found, but not everything was tested (checks incomplete: 2)"
    told = lines[lines.index("INCOMPLETE  device, ddp: worker-[1-2] (2)") :]
    assert told[1:] == ["      no torch", "      next: install it", "INCOMPLETE  ddp: worker-3", "      no torch"]


@pytest.mark.parametrize(
    ("seen", "code", "strict"),
    [("pass not_judged skipped", 0, 1), ("pass warn", 0, 1), ("pass incomplete", 5, 5), ("incomplete warn", 5, 1),
     ("incomplete fail", 1, 1), ("pass", 0, 0)],
)  # fmt: skip
def test_the_exit_code(seen: str, code: int, strict: int) -> None:
    made = Report("quick", checks=[Check(str(at), SmokeVerdict(one)) for at, one in enumerate(seen.split())])
    assert (exit_code(made, strict=False), exit_code(made, strict=True)) == (code, strict)


def test_the_worst_comes_first_and_a_flood_is_counted() -> None:
    many = Report("quick")
    many.findings = [
        Finding("mesh", Severity.WARN, Culprit("link", f"a-{at}", f"b-{at}"), f"evidence {at}", True)
        for at in range(100)
    ]
    many.findings.append(Finding("mesh", Severity.FAIL, Culprit("worker", "c"), "evidence", True))
    lines = report_text(many, Words("en"), Streams()).splitlines()
    told = [one for one in lines if one.startswith(("WARN  ", "FAIL  "))]
    assert len(told) == 40
    assert told[0] == "FAIL  mesh: c"
    assert "and 61 more, all of them in -o json" in lines


def test_meaning_does_not_hang_on_colour() -> None:
    plain = report_text(report(), Words("en"), SCREENS["tty80"])
    color = _COLOR.sub("", report_text(report(), Words("en"), SCREENS["color"]))
    assert [one.rstrip() for one in color.splitlines()] == plain.splitlines()


def test_chinese() -> None:
    text = report_text(report(), Words("zh"), Streams())
    assert text.splitlines()[0] == "故障：发现了问题（故障 2、警告 5、未判定的检查 1）"
    assert "facts 环境是否一致" in text
    assert "下一步：advice words" in text


def test_the_map_is_that_of_throughput_else_of_round_trips_and_none_within_one_machine() -> None:
    made = report()
    assert "throughput, row sends to column: median" in report_text(made, Words("en"), Streams())
    del made.data["throughput"]
    assert "round trips, row calls column: median" in report_text(made, Words("en"), Streams())
    made.data["mesh"]["loopback"] = True
    assert "round trips" not in report_text(made, Words("en"), Streams())


def test_the_document_is_lossless_and_valid_whatever_a_worker_says() -> None:
    made = report(NASTY, NASTY)
    data = json.loads(dumps(to_data(made, ["worker-1"])))
    assert data["findings"][0]["evidence"] == f"{NASTY} worker"
    assert data["workers"][0]["host"] == NASTY
    assert data["figures"]["facts"] == {"odd": {NASTY: [1, 2]}, "never": None}
    assert "ranks" not in data["figures"]
    assert data["may_still_run"] == ["worker-1"]
    assert data["findings"][1]["culprit"] == {
        "kind": "link",
        "worker": f"{NASTY}1",
        "peer": f"{NASTY}2",
        "gpu": None,
        "rank": None,
        "path": None,
    }
    deep: dict[str, object] = {}
    made.data["deep"] = deep
    for _ in range(3000):
        deep["below"] = deep = {}
    dumps(to_data(made, []))


def test_the_line_for_torchrun_of_what_a_worker_tells() -> None:
    place = {"MASTER_ADDR": "10.0.0.1", "WORLD_SIZE": "2", "RANK": "1", "odd": 3}
    command, _ = line({"place": place, "gpus": [{"index": 0}, {"index": 1}], "smi": {}})
    assert command == (
        "torchrun --nnodes=2 --node-rank=1 --nproc-per-node=2 --master-addr=10.0.0.1 --master-port=29500 train.py"
    )
    assert "--nproc-per-node=gpu" in line({"place": place, "gpus": [], "smi": {"problem": "?"}})[0]
    assert line({"problem": "no answer"}) == ("", ["no answer"])
    for odd in ({}, {"place": 3, "gpus": "x", "smi": None}, {"place": {"RANK": "x" * 99, "WORLD_SIZE": "-1"}}):
        assert isinstance(line(odd), tuple)
