"""A run from the roll call to the verdict, with made-up agents and checks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from atlctl.backends.base import Event, Exited, FailedToStart, Lost
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, ExitCode
from atlctl.jobs.model import Job, State, Worker
from atlctl.smoke import run as running
from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Culprit, Finding, Report, Severity, SmokeVerdict
from atlctl.smoke.run import Act, Smoke, Step, absent, items, names, steps
from tests.support.pace import within
from tests.unit.smoke.scripted import Script, Scripted, Stream, mute, polite, worker

TITLE = Message("a check")


async def nothing(run: Run) -> None:
    """A check without findings."""


def good(name: str, seconds: float = 0.0) -> Act:
    async def check(run: Run) -> None:
        with run.check(name) as stage:
            await asyncio.sleep(seconds)
            answers = await run.session.ask({one: {"cmd": "ping"} for one in run.session.living()}, 5)
            stage.note, stage.tested = "as it should be", {one for one, answer in answers.items() if answer.fields}

    return check


def smoke(
    monkeypatch: pytest.MonkeyPatch,
    groups: Sequence[Sequence[Step]],
    scripts: Mapping[str, Script | Event] | None = None,
    *,
    count: int = 2,
    options: Options | None = None,
    look: Act = nothing,
    gone: Mapping[str, str] | None = None,
) -> Smoke:
    """Run a smoke test to its end."""
    made = Smoke(Scripted(scripts), [worker(index) for index in range(count)], options or Options(), gone)
    monkeypatch.setattr(running, "steps", lambda _: groups)
    monkeypatch.setattr(running, "names", lambda _: ["roll-call", *(step.name for group in groups for step in group)])
    monkeypatch.setattr(running, "look_before", look)
    asyncio.run(made.run())
    return made


def verdicts(report: Report) -> dict[str, str]:
    return {check.name: str(check.verdict) for check in report.checks}


def notes(report: Report) -> dict[str, str]:
    return {check.name: check.note for check in report.checks}


def test_a_healthy_run(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [
        [Step("facts", TITLE, good("facts"))],
        [Step("mesh", TITLE, good("mesh", 0.2)), Step("storage", TITLE, good("storage"))],
    ]
    made = smoke(monkeypatch, groups)
    assert verdicts(made.report) == dict.fromkeys(("roll-call", "facts", "mesh", "storage"), "pass")
    assert made.report.verdict is SmokeVerdict.PASS
    assert notes(made.report)["roll-call"] == "2 of 2 workers answer"
    assert set(made.report.timings) == {"roll-call", "facts", "mesh", "storage", "total"}
    assert made.may_still_run() == []
    assert made.report.workers["worker-0"]["answered"] is True


def test_who_is_missing_is_named_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PATIENCE", 0.3)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))  # this machine's load extends a roll call
    scripts: dict[str, Script | Event] = {"worker-1": mute, "worker-2": FailedToStart(125, "pods/exec is forbidden")}
    begun = time.monotonic()
    made = smoke(
        monkeypatch, [[Step("facts", TITLE, good("facts"))]], scripts, count=4, gone={"worker-9": "it is gone"}
    )
    assert within(time.monotonic() - begun, 15)
    found = {finding.culprit.worker: finding for finding in made.report.findings if finding.culprit}
    assert list(found) == ["worker-9", "worker-1", "worker-2"]
    assert {finding.severity for finding in found.values()} == {Severity.FAIL}
    assert all(finding.confirmed for finding in found.values())
    assert "says nothing" in found["worker-1"].evidence
    assert found["worker-2"].evidence == "pods/exec is forbidden"
    assert verdicts(made.report) == {"roll-call": "fail", "facts": "pass"}
    assert notes(made.report)["roll-call"] == "2 of 5 workers answer"
    assert isinstance(made._executor, Scripted)
    assert made._executor.started.count("worker-2") == 2


def test_a_late_one_of_a_machine_with_too_much_to_do_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shell reports the load before any Python starts; the same silence without that report is a fault."""
    monkeypatch.setattr(running, "PATIENCE", 0.2)
    monkeypatch.setattr(running, "ROLL_CALL_MOST", 0.5)
    monkeypatch.setattr(running, "_AGAIN_LEAST", 0.0)

    def late(running_: int) -> Script:
        async def script(stream: Stream) -> None:
            stream.say(ev="alive", load=running_, running=running_, cpus=2)
            await asyncio.Event().wait()

        return script

    made = smoke(monkeypatch, [], {"worker-1": late(40), "worker-2": late(1)}, count=3)
    found = {f.culprit.worker: f.severity for f in made.report.findings if f.culprit is not None}
    assert found == {"worker-1": Severity.INCOMPLETE, "worker-2": Severity.FAIL}


def test_one_that_answers_when_it_is_asked_again_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def second(stream: Stream) -> None:
        nonlocal tries
        tries += 1
        if tries > 1:
            await polite(stream)
        stream.events.put_nowait(Lost("reset"))

    made = smoke(monkeypatch, [[Step("facts", TITLE, good("facts", 0.5))]], {"worker-1": second})
    (finding,) = made.report.findings
    assert (finding.severity, finding.confirmed) == (Severity.INCOMPLETE, True)
    assert finding.evidence.endswith("asked once more it answered, and was not tested")
    assert verdicts(made.report)["roll-call"] == "incomplete"


@pytest.mark.parametrize("back", [True, False])
def test_one_that_is_lost_on_the_way(monkeypatch: pytest.MonkeyPatch, back: bool) -> None:
    tries = 0

    async def dies(stream: Stream) -> None:
        nonlocal tries
        tries += 1
        if tries > 1:
            await (polite if back else mute)(stream)
        await stream.ask()
        stream.hello()
        await stream.ask()
        stream.put(b"Killed\n", "stderr")
        stream.events.put_nowait(Exited(signal=9))

    monkeypatch.setattr(running, "PATIENCE", 0.4)
    monkeypatch.setattr(running, "ROLL_CALL_MOST", 1.0)
    made = smoke(
        monkeypatch, [[Step("facts", TITLE, good("facts"))], [Step("mesh", TITLE, good("mesh"))]], {"worker-1": dies}
    )
    (finding,) = made.report.findings
    assert finding.culprit == Culprit("worker", "worker-1")
    assert finding.severity is (Severity.INCOMPLETE if back else Severity.FAIL)
    assert "Killed" in finding.evidence
    verdict = "incomplete" if back else "fail"
    assert verdicts(made.report) == {"roll-call": verdict, "facts": "incomplete", "mesh": "pass"}


REFUSED = {
    "forbidden": (FailedToStart(125, "pods/exec is forbidden: User x", not_allowed=True), ExitCode.NOT_ALLOWED),
    "silent": (mute, ExitCode.TIMEOUT),
    "lost": (Lost("gone"), ExitCode.UNREACHABLE),
    "no Python": (Exited(exit_code=3), ExitCode.UNREACHABLE),
}


@pytest.mark.parametrize(("script", "code"), REFUSED.values(), ids=REFUSED)
def test_nobody_at_all_is_an_error_with_its_code(
    monkeypatch: pytest.MonkeyPatch, script: Script | Event, code: ExitCode
) -> None:
    monkeypatch.setattr(running, "PATIENCE", 0.2)
    monkeypatch.setattr(running, "ROLL_CALL_MOST", 0.5)
    with pytest.raises(AtlctlError) as caught:
        smoke(monkeypatch, [], {"worker-0": script, "worker-1": script})
    assert caught.value.exit_code == code
    assert caught.value.message.startswith("no worker can be tested: worker-[0-1]: ")


def test_what_time_does_not_suffice_for_is_not_tested_and_what_was_found_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slow(run: Run) -> None:
        with run.check("mesh"):
            run.find(Finding("mesh", Severity.FAIL, Culprit("link", "worker-0", "worker-1"), "cut", True))
            await asyncio.sleep(30)

    groups = [[Step("facts", TITLE, good("facts"))], [Step("mesh", TITLE, slow)], [Step("ddp", TITLE, good("ddp"))]]
    begun = time.monotonic()
    made = smoke(monkeypatch, groups, options=Options(timeout=1.0))
    assert within(time.monotonic() - begun, 15)
    assert verdicts(made.report) == {"roll-call": "pass", "facts": "pass", "mesh": "fail", "ddp": "incomplete"}
    assert notes(made.report)["ddp"] == notes(made.report)["mesh"] == "no time left"


def test_a_check_that_fails_itself_costs_that_check_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(run: Run) -> None:
        with run.check("mesh"):
            raise KeyError("figure")

    groups = [
        [Step("facts", TITLE, good("facts"))],
        [Step("mesh", TITLE, broken), Step("storage", TITLE, good("storage"))],
    ]
    made = smoke(monkeypatch, groups)
    assert verdicts(made.report) == {"roll-call": "pass", "facts": "pass", "mesh": "incomplete", "storage": "pass"}
    assert made.report.verdict is SmokeVerdict.INCOMPLETE
    assert notes(made.report)["mesh"] == "the check failed itself: KeyError: 'figure'"


def test_beside_a_training_what_it_would_feel_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(run: Run) -> None:
        run.quiet = "somebody trains"

    groups = [
        [Step("facts", TITLE, good("facts"))],
        [Step("mesh", TITLE, good("mesh"), others=True)],
        [Step("throughput", TITLE, good("throughput"), loads=True), Step("ddp", TITLE, good("ddp"), ranks=True)],
    ]
    made = smoke(monkeypatch, groups, look=busy)
    assert [name for name, verdict in verdicts(made.report).items() if verdict == "skipped"] == ["throughput", "ddp"]
    assert notes(made.report)["ddp"] == "somebody trains"
    assert made.report.verdict is SmokeVerdict.PASS


def test_one_worker_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[Step("mesh", TITLE, good("mesh"), others=True)], [Step("ddp", TITLE, good("ddp"), ranks=True)]]
    made = smoke(monkeypatch, groups, count=1, options=Options(gpu=False))
    assert notes(made.report)["mesh"] == "at least two workers are needed"
    assert notes(made.report)["ddp"] == "--no-gpu"
    assert verdicts(made.report) == {"roll-call": "pass", "mesh": "not_judged", "ddp": "skipped"}


def test_cancelled_it_ends_its_agents_and_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Scripted()
    made = Smoke(executor, [worker(0), worker(1)], Options())
    groups = [
        [Step("facts", TITLE, good("facts"))],
        [Step("mesh", TITLE, good("mesh", 60))],
        [Step("ddp", TITLE, good("ddp"))],
    ]
    monkeypatch.setattr(running, "steps", lambda _: groups)
    monkeypatch.setattr(running, "names", lambda _: ["roll-call", "facts", "mesh", "ddp"])
    monkeypatch.setattr(running, "look_before", nothing)

    async def scenario() -> None:
        task = asyncio.create_task(made.run())
        while not any(check.name == "facts" for check in made.report.checks):  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(0.01)
        task.cancel()
        begun = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert within(time.monotonic() - begun, 15)

    asyncio.run(scenario())
    ended = {"mesh": "incomplete", "ddp": "incomplete"}
    assert verdicts(made.report) == {"roll-call": "pass", "facts": "pass", **ended}
    assert made.report.verdict is SmokeVerdict.INCOMPLETE
    assert made.may_still_run() == []


def test_every_tier_has_its_checks_in_their_order() -> None:
    quick = ["roll-call", "facts", "gpus", "mesh", "storage", "device", "collectives", "ddp"]
    standard = [*quick, "throughput", "fsdp", "allreduce", "stragglers"]
    assert names(Options()) == quick
    assert names(Options(tier="standard")) == standard
    assert names(Options(tier="deep")) == [*standard, "pairs"]
    for tier in ("quick", "deep"):
        asked: Any = tier
        assert names(Options(tier=asked, net_only=True)) == ["roll-call", "facts", "mesh", "throughput"]
    # Steps that start ranks are marked, because they would disturb a training.
    deep = [step for group in steps(Options(tier="deep")) for step in group]
    assert {step.name for step in deep if not step.ranks} == {"facts", "mesh", "storage", "gpus", "throughput"}
    assert steps(Options())[0][0].name == "facts"


def test_items_are_made_instead_of_a_tier_with_what_they_need() -> None:
    assert names(Options(items=("gpus",))) == ["roll-call", "gpus"]
    assert names(Options(tier="deep", items=("ddp", "facts"))) == ["roll-call", "facts", "ddp"]
    assert names(Options(items=("throughput",))) == ["roll-call", "mesh", "throughput"], "it measures what mesh found"
    assert names(Options(items=("roll-call",))) == ["roll-call"]
    assert [step.name for step, _ in items()] == names(Options(tier="deep"))[1:]
    assert all(step.seconds > 0 for step, _ in items()), "they are shown, and budgets are kept by them"


def test_a_training_is_looked_for_before_any_check_but_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def look(_: Run) -> None:
        seen.append("look")

    def act(name: str) -> Act:
        async def check(run: Run) -> None:
            seen.append(name)
            await good(name)(run)

        return check

    smoke(monkeypatch, [[Step("device", TITLE, act("device"))], [Step("ddp", TITLE, act("ddp"))]], look=look)
    assert seen == ["look", "device", "ddp"]
    seen.clear()
    smoke(monkeypatch, [[Step("facts", TITLE, act("facts"))], [Step("device", TITLE, act("device"))]], look=look)
    assert seen == ["facts", "look", "device"]


def test_what_a_budget_does_not_suffice_for_is_skipped_and_what_fits_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [
        [Step("mesh", TITLE, good("mesh"), seconds=1)],
        [Step("device", TITLE, good("device"), seconds=1, on_gpus=10)],
        [Step("allreduce", TITLE, good("allreduce"), seconds=2, each=10)],
        [Step("fsdp", TITLE, good("fsdp"), seconds=0.1, ranks=True)],
        [Step("ddp", TITLE, good("ddp", 0.4), seconds=0.1)],
        [Step("gpus", TITLE, good("gpus"), seconds=4.8)],
    ]

    async def with_gpus(run: Run) -> None:
        run.facts["worker-0"] = {"gpus": [{"index": 0}]}

    made = smoke(monkeypatch, groups, count=5, options=Options(budget=5), look=with_gpus)
    wanted = {"mesh": "pass", "device": "skipped", "allreduce": "skipped", "fsdp": "skipped", "ddp": "pass"}
    wanted["gpus"] = "skipped"
    assert verdicts(made.report) == {"roll-call": "pass", **wanted}
    assert notes(made.report)["device"].startswith("it usually takes 10.0 s, and "), notes(made.report)
    assert notes(made.report)["fsdp"].startswith("it usually takes 9.1 s"), "with the import of torch"
    assert made.report.verdict is SmokeVerdict.PASS, "what an option excluded was not due"


def test_who_is_missing_without_being_asked() -> None:
    made = (
        worker(0),
        Worker("worker-1", 1, State.FAILED, reason="exit 1"),
        Worker("worker-2", 2, State.HELD),
    )
    job = Job("train", "local", "local", State.RUNNING, "uid", 5, made)
    assert absent(job, made, whole=True) == {
        "worker-1": "it is not running (Failed: exit 1)",
        "worker-3": "the job has no worker of index 3",
        "worker-4": "the job has no worker of index 4",
    }
    assert list(absent(job, made[:1], whole=False)) == []
    odd = Job("train", "x", "x", State.RUNNING, "uid", 2, (Worker("lead", 0, State.RUNNING),))
    assert list(absent(odd, odd.workers, whole=True)) == ["#1"]
