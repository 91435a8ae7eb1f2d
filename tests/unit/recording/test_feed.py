"""One saved log, handed to the readers of the workers whose lines it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from atlctl.diagnosis.reading.reader import LogReader, literals_of
from atlctl.recording.feed import Feed, pump
from tests.unit.diagnosis.cause.logs import OWN, Log
from tests.unit.diagnosis.samples import matcher

FAILING = Log(0, stamped=False).start(steps=200).trace(1, 1, OWN).ended(1.4, 1, closed=(0,)).lines


@dataclass
class Workers:
    """Readers by name, and the logs that hold others' lines."""

    known: dict[str, LogReader] = field(default_factory=dict)
    how: dict[str, str | None] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    def reader(self, name, how):
        self.how.setdefault(name, how)
        return self.known.setdefault(name, LogReader(matcher()))

    def mixed(self, name):
        self.shared.add(name)

    def places(self) -> dict[str, list[int]]:
        """The lines of all tracebacks, by worker."""
        found = {name: [trace.line_no for trace in reader.facts().traces] for name, reader in self.known.items()}
        return {name: lines for name, lines in found.items() if lines}


def fed(data: bytes, *, alone: bool = True, number: int = 0, chunk: int = 4_096) -> tuple[Workers, Feed]:
    workers, rest = Workers(), [data[at : at + chunk] for at in range(0, len(data), chunk)]
    feed = Feed(workers, "w-0", number, literals_of(matcher()), data[:65_536], alone=alone)
    pump(lambda _: rest.pop(0) if rest else b"", feed, rest.pop(0) if rest else b"", chunk)
    return workers, feed


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


AT = FAILING.index("[rank1]: Traceback (most recent call last):") + 1
STAMP = "2026-11-20T17:45:05.757882235Z "


@pytest.mark.parametrize("chunk", [7, 4_096, 1_000_000])
@pytest.mark.parametrize("front", ["", STAMP, f"{STAMP}stderr F "])
def test_lines_are_counted_however_the_log_is_cut(chunk: int, front: str) -> None:
    lines = [front + line for line in FAILING]
    workers, feed = fed(text(lines), chunk=chunk)
    assert feed.number == len(lines)
    assert AT in workers.places()["w-0"]


def test_numbers_go_on_from_the_log_before() -> None:
    workers, feed = fed(text(FAILING), number=1_000)
    assert feed.number == 1_000 + len(FAILING)
    assert 1_000 + AT in workers.places()["w-0"]


def test_plain_stamped_and_kubelet_logs_say_the_same() -> None:
    facts = [
        fed(text([front + line for line in FAILING]))[0].known["w-0"].facts()
        for front in ("", STAMP, f"{STAMP}stderr F ")
    ]
    for found in facts[1:]:
        assert [trace.chain for trace in found.traces] == [trace.chain for trace in facts[0].traces]
        assert [note.kind for note in found.notes] == [note.kind for note in facts[0].notes]
        assert found.first is not None
        assert found.first.absolute


@pytest.mark.parametrize(
    ("form", "how"),
    [
        ("[pod/w-7/pytorch] {line}", "prefix"),
        ("w-7: {line}", "prefix"),
        (STAMP + "w-7: {line}", "prefix"),
        ('{{"labels": {{"pod": "w-7"}}, "line": "{line}"}}', "json"),
    ],
)
def test_lines_of_other_workers(form: str, how: str) -> None:
    lines = [line.replace("\\", "\\\\").replace('"', '\\"') if how == "json" else line for line in FAILING]
    data = text([form.format(line=line) for line in lines])
    workers, _ = fed(data, alone=False)
    assert workers.places()["w-7"][0] == AT
    assert (workers.how["w-7"], workers.shared) == (how, {"w-0"})
    alone, _ = fed(data, alone=True)
    assert (set(alone.known), alone.shared) == ({"w-0"}, set())


def test_the_stamp_of_a_json_line_is_its_time() -> None:
    rows = [f'{{"pod": "w-7", "time": "2026-11-20T17:45:0{n}.5Z", "log": "step {n}/9"}}' for n in range(9)]
    facts = fed(text(rows), alone=False)[0].known["w-7"].facts()
    assert facts.first is not None
    assert (facts.first.seconds % 60, facts.first.absolute) == (0.5, True)


def test_lines_that_run_backwards_are_seen() -> None:
    rows = [f'{{"line": "x", "timestamp": "2026-11-20T17:45:{50 - n}Z"}}' for n in range(5)]
    assert fed(text(rows))[1].backwards
    assert not fed(text(rows[::-1]))[1].backwards


@pytest.mark.parametrize("data", [b"a\n" + b"\0" * 9 + b"b\n", b"step 1\n" * 30_000 + b"\0" * 50 + b"x\n"])
def test_holes_are_counted_near_the_start_and_far_behind(data: bytes) -> None:
    assert fed(data)[1].holes == 1


@pytest.mark.parametrize("data", [b"", b"\n", b"no newline"])
def test_short_logs(data: bytes) -> None:
    assert fed(data)[1].number == len(data.splitlines())
