"""Both checks with made-up agents, whose answers must never crash the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.jobs.model import State, Worker
from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Culprit, Report, Severity, SmokeVerdict
from atlctl.smoke.network import mesh
from atlctl.smoke.network.mesh import check_mesh
from atlctl.smoke.network.throughput import check_throughput
from atlctl.smoke.session import Answer, Heard, Session
from tests.unit.smoke.network.test_mesh import anything

Agent = Callable[[int, Mapping[str, Any]], dict[str, Any] | None]
WORKERS = tuple(Worker(f"w{index}", index, State.RUNNING) for index in range(4))


class Agents:
    """A fake session: `agent` answers for all workers; None: no answer."""

    pace = 1.0

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def living(self) -> list[str]:
        return [worker.name for worker in WORKERS]

    def gone(self) -> dict[str, str]:
        return {}

    async def ask(
        self,
        commands: Mapping[str, Mapping[str, Any]],
        timeout: float,
        heard: Heard | None = None,
        *,
        patience: float | None = None,
    ) -> dict[str, Answer]:
        answers = {}
        for name, command in commands.items():
            await asyncio.sleep(0)
            fields = self._agent(int(name[1:]), command)
            if fields is not None:
                event = {**fields, "end": True}
                answers[name] = Answer(event)
                if heard is not None:
                    heard(name, event)
        if len(answers) < len(commands):
            await asyncio.sleep(timeout if patience is None else patience)
        return {name: answers.get(name, Answer(None, "late", late=True)) for name in commands}


def good(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of a healthy agent on a separate host; all speeds are equal."""
    if command["cmd"] == "listen":
        own = f"10.0.0.{index + 1}"
        return {"port": 4000, "addresses": [["eth0", own]], "machine": str(index), "stack": "s", "default": own}
    if command["cmd"] == "mesh":
        return {"peers": {peer: {"ok": True, "rtt_ms": 0.1} for peer in command["peers"]}}
    if command["cmd"] == "connect":
        return {"peers": {peer: {"again": 0, "failed": 0} for peer in command["peers"]}}
    turns = [turn for turn in command["turns"] if turn]
    rate = {
        "bytes_per_s": 1e8,
        "bytes": 1e7,
        "seconds": 0.1,
        "segments": 5000,
        "singly": 900,
        "again": 0,
        "needless": 0,
    }
    shares = {"cpu_share": 0.1, "waited_share": 0.0, "receiver_share": 0.0}
    return {"turns": [{"to": turn[0], **rate, **shares} for turn in turns]}


def check(agent: Agent) -> Report:
    async def both() -> Report:
        report = Report("standard")
        run = Run(cast(Session, Agents(agent)), WORKERS, Options("standard"), report)
        await check_mesh(run)
        await check_throughput(run)
        return report

    return asyncio.run(both())


def test_all_well():
    report = check(good)
    assert [(one.name, one.verdict) for one in report.checks] == [
        ("mesh", SmokeVerdict.PASS),
        ("throughput", SmokeVerdict.PASS),
    ]
    assert report.findings == []


def test_what_happened_once_is_no_finding_and_is_told():
    failed: set[str] = set()

    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        if command["cmd"] == "mesh" and index == 1 and not failed:
            failed.add("once")
            assert told is not None
            told["peers"]["0"] = {"ok": False, "kind": "connect", "error": "timed out"}
        return told

    report = check(agent)
    assert report.findings == []
    assert "1 passed only the second time" in report.checks[0].note


def test_bytes_that_arrived_altered_once_are_a_fault_whatever_comes_after():
    altered: set[str] = set()

    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        if command["cmd"] == "mesh" and index == 1 and not altered:
            altered.add("once")
            assert told is not None
            told["peers"]["0"] = {"ok": False, "kind": "data", "error": "bytes came back altered"}
        return told

    (finding,) = check(agent).findings
    assert (finding.culprit, finding.severity) == (Culprit("link", "w0", "w1"), Severity.FAIL)
    assert not finding.confirmed


@pytest.mark.parametrize("counts", [{"again": 7, "failed": 0}, {"again": 0, "failed": 7}, {"again": 6, "failed": 0}])
def test_of_many_workers_a_second_syn_calls_for_more_connections_and_a_dropped_one_for_those_of_its_ends(
    monkeypatch: pytest.MonkeyPatch, counts: dict[str, int]
) -> None:
    monkeypatch.setattr(mesh, "_MANY", 3)
    opened: list[tuple[int, str]] = []

    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        if told is not None and command["cmd"] in ("mesh", "connect") and index == 2 and "0" in told["peers"]:
            told["peers"]["0"] |= {"again": 1} if command["cmd"] == "mesh" else counts
        if command["cmd"] == "connect":
            opened.extend((index, peer) for peer in command["peers"])
        return told

    found = check(agent).findings
    assert opened[0] == (2, "0")
    if sum(counts.values()) < 7:
        assert (found, len(opened)) == ([], 1)
        return
    others = {(one, str(other)) for one in range(4) for other in range(4) if one != other and {one, other} & {0, 2}}
    assert len(opened) == len(others)
    assert set(opened) == others
    (finding,) = found
    assert (finding.culprit, finding.severity) == (Culprit("link", "w0", "w2"), Severity.FAIL)
    assert "7 of 24 connections took a second try or failed" in finding.evidence


def test_a_slow_link_is_measured_again_before_it_is_said():
    looks: list[int] = []

    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        if command["cmd"] == "send" and told is not None:
            looks.append(len(told["turns"]))
            for turn in told["turns"]:
                if {index, turn["to"]} == {1, 2}:
                    turn |= {"bytes_per_s": 1e7, "bytes": 1e6}
        return told

    (finding,) = check(agent).findings
    assert (finding.culprit, finding.severity) == (Culprit("link", "w1", "w2"), Severity.WARN)
    assert len(looks) > 4  # four in the first round, and the second measurement


def test_the_map_has_the_speed_alone_of_what_was_slow_beside_others():
    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        if command["cmd"] == "send" and told is not None and len(told["turns"]) > 1:
            for turn in told["turns"]:
                if (index, turn["to"]) == (1, 2):
                    turn |= {"bytes_per_s": 1e7, "bytes": 1e6}
        return told

    report = check(agent)
    assert (report.findings, report.data["throughput"]["matrix_mb_per_s"][1][2]) == ([], 100.0)


def test_a_starved_worker_is_not_a_slow_one():
    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        if command["cmd"] == "send" and told is not None and index == 1:
            for turn in told["turns"]:
                turn |= {"bytes_per_s": 1e7, "bytes": 1e6, "waited_share": 0.9}
        return told

    assert check(agent).findings == []


@pytest.mark.parametrize(("full", "named"), [(1, 1), (2, 1), (3, 0)])
def test_a_slow_link_whose_receive_window_was_full_is_measured_until_it_was_not_twice(full, named):
    tries = dict.fromkeys(("12", "21"), 0)

    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        if command["cmd"] == "send" and told is not None:
            for turn in told["turns"]:
                if (way := f"{index}{turn['to']}") in tries:
                    alone = len(told["turns"]) == 1
                    turn |= {"bytes_per_s": 1e7, "bytes": 1e6, "receiver_share": 0.4 * (alone and tries[way] < full)}
                    tries[way] += alone
        return told

    assert len(check(agent).findings) == named


def test_half_the_speed_is_no_slow_link_where_all_wait_for_a_cpu():
    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        if command["cmd"] == "send" and told is not None:
            for turn in told["turns"]:
                beside = len(told["turns"]) > 1
                speed = 5e7 if beside or {index, turn["to"]} == {1, 2} else 1e8
                speed *= 0.5 if beside and {index, turn["to"]} == {1, 2} else 1
                turn |= {"bytes_per_s": speed, "bytes": speed / 10, "waited_share": 0.4}
        return told

    report = check(agent)
    assert (report.findings, report.checks[-1].verdict) == ([], SmokeVerdict.NOT_JUDGED)


@pytest.mark.parametrize("what", ["listen", "mesh", "send"])
def test_one_agent_that_talks_nonsense_is_the_only_one_accused(what):
    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        nonsense = index == 2 and command["cmd"] == what
        return {"peers": 1, "turns": {"a": 1}, "port": "x"} if nonsense else good(index, command)

    found = check(agent).findings
    assert {finding.culprit for finding in found} == {Culprit("worker", "w2")}
    # In any case, it was not tested in throughput.
    told = {(finding.check, finding.severity) for finding in found}
    assert told == {("throughput", Severity.INCOMPLETE)} | ({("mesh", Severity.FAIL)} if what != "send" else set())


@settings(max_examples=60)
@given(
    st.sampled_from(["listen", "mesh", "connect", "send"]),
    st.dictionaries(
        st.sampled_from(["port", "addresses", "default", "routes", "machine", "stack", "peers", "turns"]), anything
    ),
    st.integers(0, 3),
)
def test_no_answer_crashes_the_client(what, answer, liar):
    def agent(index: int, command: Mapping[str, Any]) -> dict[str, Any] | None:
        told = good(index, command)
        return {**(told or {}), **answer} if index == liar and command["cmd"] == what else told

    check(agent)
