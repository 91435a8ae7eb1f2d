"""How `doctor` judges the reports of workers and hosts, however unusual, numerous or late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncssh
import pytest

from atlctl.backends.base import Exited, FailedToStart
from atlctl.backends.hosts.checkup import HostCheck
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.hostkeys import Entries, refusal
from atlctl.cli.doctor import hosts, job
from atlctl.cli.doctor.report import DoctorReport, report_text
from atlctl.cli.target import Current
from atlctl.i18n import Message, specific
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, UsageError
from atlctl.jobs.model import Job, State
from atlctl.render.jsonout import dumps
from atlctl.render.streams import Streams
from atlctl.smoke import session
from tests.unit.smoke.scripted import Scripted, Stream, worker

EVIL = "\x1b]0;x\x07{0}\u202e\n"


def lines(report: DoctorReport, name: str) -> list[tuple[str, str]]:
    return [(str(check.status), check.text) for check in report.checks if check.name == name]


def tells(
    torch: object = "2.13.0+cu130", wall: float | None = None, sought: object = None, **facts: object
) -> Callable[[Stream], Awaitable[None]]:
    """A worker with a normal image, except for `facts`."""

    async def script(stream: Stream) -> None:
        await stream.ask()
        found = ["torch"] if sought is None else sought
        stream.say(ev="hello", pid=1, host="h", python="3.11.7", executable="/opt/venv/bin/python3", sought=found)
        command = await stream.ask()
        assert command["cmd"] == "facts"
        stream.say(ev="clock", re=command["id"], wall=time.time() if wall is None else time.time() + wall)
        ordinary = {"python": "3.11.7", "torch": torch, "cuda": "13.0", "devices": 8}
        stream.say(ev="facts", re=command["id"], end=True, **{**ordinary, **facts})
        await stream.ask()

    return script


def asked(scripts: dict[int, Any], count: int = 4, seconds: float = 5) -> DoctorReport:
    """Check `count` workers; those without a script are normal."""
    report, all_workers = DoctorReport(), [worker(index) for index in range(count)]
    executor = Scripted({one.name: scripts.get(one.index, tells()) for one in all_workers})
    asyncio.run(job.check_workers(report, executor, all_workers, seconds, "-j big", clocks=True))
    return report


ORDINARY = "torch 2.13.0+cu130 (CUDA 13.0), Python 3.11.7 (/opt/venv/bin/python3), GPUs: 8"


def test_workers_that_are_all_alike_take_one_line() -> None:
    report = asked({}, 40)
    assert lines(report, "torch") == [("ok", f"worker-[0-39] (40): {ORDINARY}")]
    assert lines(report, "worker.clock") == [("ok", "within 2 s of this machine's (40)")]
    told = report.data["torch"]
    assert len(told) == 40
    assert told[3] == {
        "worker": "worker-3",
        "python": "3.11.7",
        "executable": "/opt/venv/bin/python3",
        "own": True,
        "torch": "2.13.0+cu130",
        "cuda": "13.0",
        "gpus": 8,
        "problem": None,
    }


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"torch": "2.9.0"}, "torch"),
        ({"cuda": "12.6"}, "CUDA"),
        ({"cuda": None}, "CUDA"),
        ({"python": "3.12.1"}, "Python"),
        ({"devices": 7}, "number of GPUs"),
        ({"sought": ["any"]}, "whose Python"),
    ],
)
def test_one_that_differs_is_a_warning_and_says_in_what(facts: dict[str, Any], what: str) -> None:
    report = asked({2: tells(**facts)})
    first, second = lines(report, "torch")
    assert first == ("ok", f"worker-[0-1,3] (3): {ORDINARY}")
    assert second[0] == "warn"
    assert second[1].startswith("worker-2 (1): torch ")
    assert second[1].endswith(f"; unlike most: {what}")
    assert report.exit_code == 0


def test_a_python_that_another_process_lent_is_told_as_such() -> None:
    report = asked({index: tells(sought=["any"]) for index in range(4)})
    ((status, text),) = lines(report, "torch")
    assert status == "ok"
    assert "its own python3 has no torch" in text
    assert {one["own"] for one in report.data["torch"]} == {False}


def test_workers_without_torch_without_python_and_without_a_word() -> None:
    async def silent(stream: Stream) -> None:
        await asyncio.Event().wait()

    async def dies(stream: Stream) -> None:
        stream.put(b"no Python 3.8 or newer found\n", "stderr")
        stream.events.put_nowait(Exited(exit_code=3))

    scripts = {0: tells(torch=None), 1: silent, 2: dies, 3: FailedToStart(255, "no route")}
    report = asked(scripts, 5, seconds=0.5)
    found = lines(report, "torch")
    assert found[0] == ("ok", f"worker-4 (1): {ORDINARY}")
    assert found[1] == ("warn", "worker-0 (1): no torch in Python 3.11.7 (/opt/venv/bin/python3)")
    assert {status for status, _ in found[1:]} == {"warn"}
    told = {one["worker"]: one["problem"] for one in report.data["torch"]}
    assert "no answer within" in told["worker-1"]
    assert "no Python 3.8" in told["worker-2"]
    assert "no route" in told["worker-3"]
    fixes = [check.fix for check in report.checks]
    assert "atlctl exec -j big -w worker-2 -- python3 -V" in fixes


def test_every_worker_of_its_own_kind_makes_few_lines() -> None:
    report = asked({index: tells(torch=f"2.{index}") for index in range(30)}, 30)
    found = lines(report, "torch")
    assert len(found) == 9
    assert found[-1] == ("warn", "worker-[8-29] (22): differ as well")


@pytest.mark.parametrize(
    "facts",
    [
        {"torch": 7},
        {"torch": ["2.13"], "python": {"a": 1}},
        {"devices": True},
        {"devices": -1},
        {"devices": "8", "cuda": []},
        {"torch": "x" * 100_000},
        {"sought": {"a": 1}},
    ],
)
def test_nonsense_is_no_end(facts: dict[str, Any]) -> None:
    report = asked({1: tells(**facts)}, 2)
    assert len(report.data["torch"]) == 2
    assert all(len(text) < 1000 for _, text in lines(report, "torch"))


def test_hostile_words_are_harmless_on_a_terminal_and_whole_in_json() -> None:
    report = asked({0: tells(torch=EVIL, cuda=EVIL, python=EVIL), 1: tells(torch=None, python=EVIL)}, 3)
    shown = report_text(report, Streams(), "en")
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert "^[]0;x^G{0}\\u202e^J" in shown
    assert report.data["torch"][0]["torch"] == EVIL
    assert "\\u001b]0;x\\u0007{0}\\u202e\\n" in dumps(report.data)


@pytest.mark.parametrize("wall", [float("nan"), 1e300, -1e300])
def test_a_time_that_is_none_is_not_judged(wall: float) -> None:
    report = asked({0: tells(wall=wall), 1: tells()}, 2)
    assert lines(report, "worker.clock") == [("ok", "within 2 s of this machine's (1)")]


def test_a_worker_whose_clock_is_off() -> None:
    report = asked({2: tells(wall=-90.0), 3: tells(wall=10.0)})
    first, second = lines(report, "worker.clock")
    assert first == ("warn", "not this machine's time: worker-[2-3] (2); worker-2 is 90 s behind")
    assert second == ("ok", "within 2 s of this machine's (2)")


def test_clocks_that_cannot_be_told_apart_are_right() -> None:
    report = DoctorReport()
    hosts.judge_clocks(report, "c", {"a": (-30.0, 0.5), "b": (-0.1, 40.0), "c": (1.9, 1.95)})
    assert lines(report, "c") == [("ok", "within 2 s of this machine's (3)")]
    hosts.judge_clocks(report, "none", {})
    assert lines(report, "none") == []


def test_nobody_is_asked_where_nobody_runs() -> None:
    report, executor = DoctorReport(), Scripted()
    ended = [worker(0, State.FAILED), worker(1, State.STOPPED)]
    asyncio.run(job.check_workers(report, executor, ended, 1, "-j x", clocks=True))
    assert lines(report, "torch") == [("skipped", "not asked: no worker is running")]
    assert executor.started == []


def test_what_is_sent_looks_for_torch_and_the_agent_is_told_not_to_import_it() -> None:
    heard = []

    async def script(stream: Stream) -> None:
        heard.append(await stream.ask())
        await tells()(_Said(stream))

    class _Said(Stream):
        """A stream after its first message."""

        def __init__(self, inner: Stream) -> None:
            self.events, self.sent = inner.events, inner.sent
            self.first = True

        async def ask(self) -> dict[str, Any]:
            if self.first:
                self.first = False
                return {}
            return await self.sent.get()

    requests = []

    class Listening(Scripted):
        def run(self, worker: Any, request: Any) -> Any:
            requests.append(request)
            return super().run(worker, request)

    report = DoctorReport()
    executor = Listening({"worker-0": script})
    asyncio.run(job.check_workers(report, executor, [worker(0)], 5, "-j x", clocks=False))
    assert [one["gpus"] for one in report.data["torch"]] == [8]
    assert requests == [session.request_for(True, 1)]
    assert not heard[0].get("torch")


# Hosts


def logins(*found: HostCheck, meant: bool = True) -> DoctorReport:
    report = DoctorReport(data={"ssh": {}})
    site = hosts.Site({}, "x", meant, (), *(None,) * 3)  # type: ignore[arg-type]
    hosts._logins(report, site, found)
    return report


KEY = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()


def failed(index: int, status: Any, message: str, hint: str | None = None, shared: str = "") -> HostCheck:
    text = specific(Message(message), shared) if shared else message
    return HostCheck(f"gpu-{index}", status, error=AtlctlError(text, hint))


def test_logins_are_folded_and_one_that_failed_tells_its_own_reason() -> None:
    good = [HostCheck(f"gpu-{index}", "ok") for index in range(1, 63)]
    report = logins(*good, failed(63, "key-unknown", "the key of gpu-63 is not known (SHA256:x)", "echo 'x' >> f"))
    assert lines(report, "ssh.login") == [
        ("ok", "gpu-[1-62] (62) ok"),
        ("fail", "gpu-63 (1): the key of gpu-63 is not known (SHA256:x)"),
    ]
    assert report.checks[1].fix == "echo 'x' >> f"


def test_those_that_failed_alike_take_one_line() -> None:
    unknown = [
        HostCheck(name, "key-unknown", error=refusal("127.0.0.1", 2222 + index, Entries({}), KEY, "known_hosts"))
        for index, name in enumerate(("gpu-0", "gpu-1", "gpu-2"))
    ]
    refusing = [failed(index, "refused", f"gpu-{index}:22: refused", "check the port", "refused") for index in (7, 8)]
    odd = [failed(index, "other", f"odd {index}") for index in range(20, 40)]
    report = logins(*unknown, *refusing, *odd)
    found = lines(report, "ssh.login")
    assert found[0] == ("fail", "gpu-[0-2] (3): host key not known")
    assert "echo" not in str(report.checks[0].fix)
    assert found[1] == ("fail", "gpu-[7-8] (2): refused")
    assert report.checks[1].fix == "check the port"
    assert len(found) == 9
    assert found[-1][1] == "gpu-[26-39] (14): fail in other ways"


def test_hosts_that_nobody_named_are_no_failure() -> None:
    report = logins(failed(1, "late", "gpu-1:22 does not answer"), meant=False)
    assert (lines(report, "ssh.login")[0][0], report.exit_code) == ("warn", 0)


def test_a_host_of_two_logins_is_told_twice() -> None:
    first, second = Host("gpu1"), Host("gpu1", "ml", 2222)
    assert hosts._by_name([[first, Host("gpu1", slots=8)], [second]]) == {"gpu1": first, "ml@gpu1:2222": second}


# The current job


class Jobs:
    """A backend that finds one job, or fails."""

    def __init__(self, name: str = "kubernetes") -> None:
        self.name = name


def found_job(monkeypatch: pytest.MonkeyPatch, answer: Any, option: str | None = None, **more: Any) -> DoctorReport:
    async def current_job(*_: Any, **__: Any) -> Current:
        if isinstance(answer, Exception):
            raise answer
        made: Current = answer
        return made

    monkeypatch.setattr(job, "current_job", current_job)
    report = DoctorReport(data={"job": None})
    asyncio.run(job.check_current(report, Jobs(), option, **more))  # type: ignore[arg-type]
    return report


JOB = Job("train-7", "PyTorchJob", "kubernetes", State.RUNNING, "u-1", 2, (worker(0), worker(1)), namespace="ml")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("named", "named with -j"),
        ("variable", "named by ATLCTL_JOB"),
        ("place", "this worker belongs to it"),
        ("only", "the only active one"),
    ],
)
def test_how_a_job_was_found(monkeypatch: pytest.MonkeyPatch, how: Any, says: str) -> None:
    report = found_job(monkeypatch, Current(JOB, how))
    assert lines(report, "job") == [("ok", f"train-7 (PyTorchJob, Running, 2 of 2 workers): {says}")]
    assert report.data["job"]["how"] == how
    assert (report.data["job"]["name"], report.data["job"]["namespace"]) == ("train-7", "ml")


@pytest.mark.parametrize(
    ("error", "option", "status", "code"),
    [
        (NothingMatched("there is no job here", "start one"), None, "skipped", 0),
        (UsageError("no job is named", "name one with -j: a, b"), None, "skipped", 0),
        (NothingMatched("no job named x", "there are: a"), "x", "fail", 1),
        (NotAllowed("pods is forbidden", "ask"), None, "warn", 0),
    ],
)
def test_no_job(
    monkeypatch: pytest.MonkeyPatch, error: AtlctlError, option: str | None, status: str, code: int
) -> None:
    report = found_job(monkeypatch, error, option)
    assert lines(report, "job") == [(status, error.message)]
    assert (report.checks[0].fix, report.exit_code, report.data["job"]) == (error.hint, code, None)
    assert report.first_steps == []


def test_how_to_begin_is_told_where_there_is_nothing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = NothingMatched("there is no job here", "start one")
    assert found_job(monkeypatch, nothing, nothing_else=True).first_steps[0][0] == "atlctl demo"
    several = UsageError("no job is named", "name one with -j: a, b")
    assert found_job(monkeypatch, several, nothing_else=True).first_steps == []
    assert found_job(monkeypatch, nothing, "x", nothing_else=True).first_steps == []
