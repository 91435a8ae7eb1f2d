"""Agents that send wrong data, flood, die or sleep: the session still receives the others' answers."""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import Any

import pytest

from atlctl.backends.base import Event, Exited, FailedToStart, Lost
from atlctl.i18n import translated
from atlctl.smoke import session as talk
from atlctl.smoke.session import Session
from tests.support.pace import within
from tests.support.waiting import until
from tests.unit.smoke.scripted import Script, Scripted, Stream, mute, polite, worker

PING = {"worker-0": {"cmd": "ping"}, "worker-1": {"cmd": "ping"}}


def session(odd: Script | Event, count: int = 2) -> Session:
    """The last worker is `odd`, the others are normal."""
    scripts = {f"worker-{count - 1}": odd}
    return Session(Scripted(scripts), [worker(index) for index in range(count)], {"seconds": 9})


NOISE = {
    "no JSON": b"\x1e{nonsense\n",
    "no object": b"\x1e[1, 2]\n",
    "no mark": b'{"ev":"told","re":1,"end":true}\n',
    "no UTF-8": b"\x1e\xff\xfe\n",
    "deep": b"\x1e" + b"[" * 200_000 + b"\n",
    "a number of a million digits": b"\x1e" + b"9" * 1_000_000 + b"\n",
    "a line without an end": b"x" * (9 << 20),
    "a number for another call": b'\x1e{"ev":"told","re":77,"end":true}\n',
    "a number that is none": b'\x1e{"ev":"told","re":{"a":1},"end":true}\n',
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
def test_noise_is_not_heard_and_what_follows_is(noise: bytes) -> None:
    async def noisy(stream: Stream) -> None:
        await stream.ask()
        stream.put(noise)
        stream.put(b"\n")
        stream.hello()
        command = await stream.ask()
        stream.put(noise)
        stream.put(b"\n")
        stream.say(ev="told", re=command["id"], end=True, ok=True)
        await stream.ask()

    async def scenario() -> None:
        async with session(noisy) as agents:
            assert await agents.roll_call(5) == {}
            answers = await agents.ask(PING, 5)
            assert [answer.fields and answer.fields["ok"] for answer in answers.values()] == [True, True]

    asyncio.run(scenario())


def test_one_that_says_nothing_is_named_and_ended_and_the_others_are_not_kept() -> None:
    async def scenario() -> None:
        executor = Scripted({"worker-1": mute})
        async with Session(executor, [worker(0), worker(1)], {"seconds": 9}) as agents:
            begun = time.monotonic()
            missing = await agents.roll_call(0.5)
            assert (seconds := time.monotonic() - begun) > 0.4
            assert within(seconds, 10)
            assert list(missing) == ["worker-1"]
            told = r"no answer within \d\.\d s: its agent was started and says nothing"
            assert re.fullmatch(told, missing["worker-1"])
            assert agents.living() == ["worker-0"]
            answers = await agents.ask(PING, 5)
            assert answers["worker-0"].fields
            assert answers["worker-1"].problem.startswith("no answer within")
            # A silent agent is ended when it is given up, not at the end.
            await until(lambda: executor.streams["worker-1"][0].ended)
        assert agents.may_still_run() == []

    asyncio.run(scenario())


ENDS: dict[str, tuple[Event, str]] = {
    "refused": (FailedToStart(125, "pods/exec is forbidden"), "pods/exec is forbidden"),
    "lost": (Lost("the connection ended"), "lost: the connection ended; the agent may still run there"),
    "no shell": (FailedToStart(127, "no such file"), "shell not found"),
    "exit": (Exited(exit_code=3), "the agent ended with exit 3"),
}


@pytest.mark.parametrize(("event", "said"), ENDS.values(), ids=ENDS)
def test_why_there_is_no_agent(event: Event, said: str) -> None:
    async def scenario() -> None:
        async with session(event) as agents:
            begun = time.monotonic()
            assert await agents.roll_call(25) == {"worker-1": said}
            assert within(time.monotonic() - begun, 15)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("said", "chinese"),
    [
        ("no Python 3.8 or newer found", "找不到 Python 3.8 或更新的版本"),
        ("no Python 3.8 or newer found; not used, because other users can change it: /a /b",
         "找不到 Python 3.8 或更新的版本；/a /b 可被其他用户改动，未予运行"),
        ("no Python 3.8 or newer found; too old: python3.6; not used, because other users can change it: /a",
         "找不到 Python 3.8 或更新的版本；版本太旧：python3.6；/a 可被其他用户改动，未予运行"),
    ],
)  # fmt: skip
def test_one_without_a_python(said: str, chinese: str) -> None:
    async def ends(stream: Stream) -> None:
        stream.put(f"{said}\n".encode(), "stderr")
        stream.events.put_nowait(Exited(exit_code=3))

    async def scenario() -> None:
        async with session(ends) as agents:
            (found,) = (await agents.roll_call(5)).values()
            assert (found, translated(found, "zh")) == (said, chinese)

    asyncio.run(scenario())


def test_one_that_dies_while_it_is_asked() -> None:
    async def dies(stream: Stream) -> None:
        await stream.ask()
        stream.hello()
        await stream.ask()
        stream.put(b"Killed\n", "stderr")
        stream.put(b'\x1e{"ev":"told","re":1,"en')

    async def scenario() -> None:
        async with session(dies, 3) as agents:
            await agents.roll_call(5)
            answers = await agents.ask({**PING, "worker-2": {"cmd": "ping"}}, 5)
            assert [bool(answer.fields) for answer in answers.values()] == [True, True, False]
            assert answers["worker-2"].problem == "Killed"
            assert agents.gone() == {"worker-2": "Killed"}
            again = await agents.ask({"worker-2": {"cmd": "ping"}}, 5)
            assert again["worker-2"].problem == "Killed"

    asyncio.run(scenario())


def test_an_answer_that_comes_too_late_is_no_answer_to_the_next_question() -> None:
    async def slow(stream: Stream) -> None:
        await stream.ask()
        stream.hello()
        first = await stream.ask()
        second = await stream.ask()
        stream.say(ev="told", re=first["id"], end=True, which="first")
        stream.say(ev="told", re=second["id"], end=True, which="second")
        await stream.ask()

    async def scenario() -> None:
        async with session(slow) as agents:
            await agents.roll_call(5)
            late = (await agents.ask(PING, 0.2))["worker-1"]
            assert (late.fields, late.late) == (None, True)
            fields = (await agents.ask({"worker-1": {"cmd": "ping"}}, 5))["worker-1"].fields
            assert fields is not None
            assert fields["which"] == "second"

    asyncio.run(scenario())


def test_with_patience_one_that_is_stuck_is_not_waited_for_as_long_as_it_may_take() -> None:
    async def stuck(stream: Stream) -> None:
        await stream.ask()
        stream.hello()
        await stream.ask()
        await stream.ask()

    async def scenario() -> None:
        async with session(stuck, 4) as agents:
            await agents.roll_call(5)
            begun = time.monotonic()
            answers = await agents.ask({name: {"cmd": "ping"} for name in agents.living()}, 60, patience=0.1)
            assert within(time.monotonic() - begun, 5)
            assert [answer.late for answer in answers.values()] == [False, False, False, True]

    asyncio.run(scenario())


def test_a_listener_that_does_not_understand_costs_that_worker_alone() -> None:
    def heard(name: str, event: dict[str, Any]) -> None:
        if name == "worker-1":
            raise KeyError("figure")

    async def scenario() -> None:
        async with session(polite) as agents:
            await agents.roll_call(5)
            answers = await agents.ask(PING, 5, heard)
            assert answers["worker-0"].fields
            assert answers["worker-1"].problem == "its answer is not understood"
            assert (await agents.ask(PING, 5))["worker-1"].fields

    asyncio.run(scenario())


def test_a_problem_without_words_is_one_all_the_same() -> None:
    async def odd(stream: Stream) -> None:
        await stream.ask()
        stream.hello()
        command = await stream.ask()
        stream.say(ev="problem", re=command["id"], end=True)
        await stream.ask()

    async def scenario() -> None:
        async with session(odd) as agents:
            await agents.roll_call(5)
            answer = (await agents.ask(PING, 5))["worker-1"]
            assert (answer.fields, answer.problem) == (None, "its agent failed")

    asyncio.run(scenario())


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, this machine's load extends a roll call."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def test_where_nobody_has_answered_yet_all_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one answers, the whole timeout applies; then the others get a time that depends on this machine's load."""

    def late(seconds: float) -> Script:
        async def script(stream: Stream) -> None:
            await asyncio.sleep(seconds)
            await polite(stream)

        return script

    async def scenario() -> list[str]:
        executor = Scripted({"worker-0": late(0.6), "worker-1": late(1.6)})
        async with Session(executor, [worker(0), worker(1)], {"seconds": 9}) as agents:
            return list(await agents.roll_call(0.3, 9.0))

    assert asyncio.run(scenario()) == ["worker-1"]
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert asyncio.run(scenario()) == []


@pytest.mark.parametrize(("login", "patience", "pace"), [(0.0, 1.0, 1), (0.0, 3.0, 3), (0.4, 2.0, 4), (5.0, 1.0, 5)])
def test_time_limits_follow_the_slowest_login_and_the_user(
    monkeypatch: pytest.MonkeyPatch, login: float, patience: float, pace: float
) -> None:
    """The last command has no answer."""
    monkeypatch.setattr(talk, "SLOW_LOGIN", 0.2 if login < 1 else 0.01)

    async def slow(stream: Stream) -> None:
        await asyncio.sleep(min(login, 0.4))
        stream.hello()
        await mute(stream)

    async def scenario() -> tuple[float, float]:
        scripts = {"worker-1": slow} if login else {}
        async with Session(Scripted(scripts), [worker(0), worker(1)], {"seconds": 9}, patience) as agents:
            assert await agents.roll_call(9) == {}
            begun = time.monotonic()
            if login:
                assert (await agents.ask({"worker-1": {"cmd": "ping"}}, 0.2))["worker-1"].late
            return agents.pace, time.monotonic() - begun

    found, waited = asyncio.run(scenario())
    assert pace <= found <= pace * 1.5
    assert not login or waited >= 0.2 * pace


def test_a_roll_call_that_makes_progress_waits_for_the_slow_ones() -> None:
    def slow(seconds: float) -> Script:
        async def script(stream: Stream) -> None:
            await asyncio.sleep(seconds)
            await polite(stream)

        return script

    async def scenario(most: float | None) -> dict[str, str]:
        scripts = {f"worker-{index}": slow(0.6 * index) for index in range(4)}
        async with Session(Scripted(scripts), [worker(index) for index in range(4)], {"seconds": 9}) as agents:
            return await agents.roll_call(1.1, most)

    assert asyncio.run(scenario(12.0)) == {}
    assert list(asyncio.run(scenario(None))) == ["worker-2", "worker-3"]
    assert list(asyncio.run(scenario(1.45))) == ["worker-3"]


def test_a_worker_with_too_much_to_do_is_waited_for_and_lies_about_it_are_bounded() -> None:
    def busy(**alive: Any) -> Script:
        async def script(stream: Stream) -> None:
            stream.say(ev="alive", **alive)
            await asyncio.sleep(0.7)
            await polite(stream)

        return script

    def missing(**alive: Any) -> list[str]:
        async def scenario() -> list[str]:
            async with session(busy(**alive)) as agents:
                return list(await agents.roll_call(0.3, 30.0))

        return asyncio.run(scenario())

    assert missing(load=8.0, running=1, cpus=2) == []
    assert missing(load=0.5, running=9, cpus=2) == []
    odd: list[dict[str, Any]] = [
        {"load": 0.1, "running": 1, "cpus": 2},
        {"load": "x", "running": [], "cpus": 2},
        {"load": 1, "cpus": 0},
        {},
    ]
    assert [missing(**fields) for fields in odd] == [["worker-1"]] * 4

    async def liar(stream: Stream) -> None:
        while True:
            stream.put(b'\x1e{"ev":"alive","load":1e999,"running":1,"cpus":1}\n')
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        async with session(liar) as agents:
            begun = time.monotonic()
            assert list(await agents.roll_call(0.2, 30.0)) == ["worker-1"]
            assert within(time.monotonic() - begun, 15)

    asyncio.run(scenario())


def test_a_repeated_hello_makes_no_progress() -> None:
    async def shouts(stream: Stream) -> None:
        while True:
            stream.hello()
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        executor = Scripted({"worker-0": shouts, "worker-1": mute})
        async with Session(executor, [worker(0), worker(1)], {"seconds": 9}) as agents:
            begun = time.monotonic()
            assert list(await agents.roll_call(0.3, 30.0)) == ["worker-1"]
            assert within(time.monotonic() - begun, 15)

    asyncio.run(scenario())
