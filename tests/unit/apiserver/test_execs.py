"""Commands in pods of the test API server: outcomes, leftover processes, and all faults."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import aiohttp
import pytest

from tests.apiserver import processes
from tests.support.pace import within
from tests.unit.apiserver.client import Client, finish, pod, run


def test_outcomes() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        done = await client.exec("p", "sh", "-c", "echo out; echo err >&2; exit 3")
        assert done.frames[0] == (1, b"")
        assert (done.channels[1], done.channels[2], done.close) == (b"out\n", b"err\n", 1000)
        assert done.status is not None
        assert done.status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
        done = await client.exec("p", "true", protocol="v4.channel.k8s.io")
        assert done.status == {"metadata": {}, "status": "Success"}

    run(work)


def test_environment_and_folder(tmp_path) -> None:
    async def work(client: Client) -> None:
        made = pod("p", env=None, nodeName="n")
        container = made["spec"]["containers"][0]
        container["env"] = [
            {"name": "RANK", "value": "3"},
            {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "BOTH", "value": "$(ME)-$(RANK)"},
        ]
        container["workingDir"] = str(tmp_path)
        client.control.put(made, fake=True)
        done = await client.exec("p", "sh", "-c", "echo $RANK $BOTH $HOSTNAME; pwd; env | grep -c ^XDG")
        assert done.channels[1].decode().split() == ["3", "p-3", "p", str(tmp_path), "0"]

    run(work)


def test_half_close_and_much_input() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        async with client.open("p", "wc", "-c", stdin="true") as socket:
            for _ in range(100):
                await socket.send_bytes(b"\0" + b"x" * 60_000)
            await socket.send_bytes(b"\xff\0")
            assert (await finish(socket)).channels[1].strip() == b"6000000"

    run(work)


def test_terminal_and_resize() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        script = "read x; stty size; test -t 1 && echo tty"
        async with client.open("p", "sh", "-c", script, stdin="true", tty="true") as s:
            await s.send_bytes(b'\4{"Width":101,"Height":33}')
            await s.send_bytes(b"\0go\r")
            done = await finish(s)
        assert b"33 101\r\ntty\r\n" in done.channels[1]

    run(work)


@pytest.mark.parametrize("polite", [True, False])
def test_client_gone(polite: bool) -> None:
    """The process is not killed: a reader of stdin gets its end, a silent one keeps running, a writer blocks."""

    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        for name, command in (
            ("silent", ["sleep", "77"]),
            ("reader", ["sh", "-c", "cat >/dev/null; echo over > ended"]),
            ("writer", ["sh", "-c", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"]),
        ):
            socket = await client.open("p", *command, stdin="true" if name == "reader" else "false")
            await socket.receive()
            if not polite:
                socket._response.connection.transport.abort()
            await socket.close()
        folder = client.control.folder("p")
        await client.until(lambda: "ended" in os.listdir(folder))
        await asyncio.sleep(0.2)
        await client.until(lambda: "sleep 77" in [one["command"] for one in client.control.processes("p")])
        writer = next(p for p in client.control.processes("p") if "while :" in p["command"])
        before: list[str] = []
        # Until it has filled what holds its output.
        while before != (before := _ticks(writer["pid"])):  # noqa: ASYNC110 - processes set no event
            await asyncio.sleep(0.3)
        client.control.remove("Pod", "p")
        await client.until(lambda: not _left(client))

    run(work)


def _ticks(pid: int) -> list[str]:
    """The CPU time of a process."""
    return Path(f"/proc/{pid}/stat").read_text().split()[13:15]


def _left(client: Client) -> list[int]:
    """Live processes of all pods."""
    found = processes.marked(client.api.cluster.id)
    return [pid for pid in found if processes.describe(pid)["state"] not in ("Z", "X", "?")]


def test_pod_deleted_during_exec() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p", "sleep", "100"), run=True)
        await client.phase("p", "Running")
        async with client.open("p", "sleep", "50") as socket:
            await socket.receive()
            status, _ = await client.call("DELETE", "/api/v1/namespaces/default/pods/p", gracePeriodSeconds="1")
            assert status == 200
            done = await finish(socket)
        assert done.status is not None
        assert done.status["details"]["causes"][0]["message"] == "137"
        assert done.close == 1000
        await client.until(lambda: client.control.get("Pod", "p") is None)

    run(work)


def test_background_child_holds_the_exec_open() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        started = time.monotonic()
        done = await client.exec("p", "sh", "-c", "sleep 0.6 & echo started")
        assert (seconds := time.monotonic() - started) > 0.5
        assert within(seconds, 10)
        assert done.status is not None
        assert done.status["status"] == "Success"

    run(work)


COMMAND = ("sh", "-c", "printf 'caf\u00e9\u00e9\u00e9\\n'; exit 4")


@pytest.mark.parametrize(
    ("action", "output", "told"),
    [
        ("drop-before-exit", True, False),
        ("drop-inside-exit", True, False),
        ("drop-after-exit", True, True),
        ("stall", False, False),
        ("stall-before-exit", True, False),
    ],
)
def test_faults_on_the_end(action: str, output: bool, told: bool) -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        client.control.fault({"action": action, "times": 1})
        async with client.open("p", *COMMAND) as socket:
            task = asyncio.create_task(finish(socket))
            if "stall" in action:
                _, pending = await asyncio.wait([task], timeout=0.7)
                assert pending, "the connection should have been silent and open"
                (cutters,) = [there.cutters for there in client.api.cluster.kubelet.pods.values()]
                await client.until(lambda: cutters)
                cutters.pop()()
            done = await task
        assert (done.channels.get(1, b"") == "caf\u00e9\u00e9\u00e9\n".encode()) is output
        assert (done.status is not None) is told
        assert done.close != 1000
        assert client.control.faults()[0]["hits"] == 1
        assert client.control.requests()[-1]["fault"] == action
        assert (await client.exec("p", *COMMAND)).close == 1000

    run(work)


def test_split_and_slow_frames() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        client.control.fault({"action": "split", "bytes": 1, "times": 1})
        done = await client.exec("p", *COMMAND)
        assert done.channels[1].decode() == "caf\u00e9\u00e9\u00e9\n"
        assert max(len(data) for channel, data in done.frames if channel == 1) == 1
        client.control.fault({"action": "slow", "seconds": 0.2, "times": 1})
        started = time.monotonic()
        await client.exec("p", "echo", "x")
        assert time.monotonic() - started > 0.2

    run(work)


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"action": "throttle", "seconds": 2}, 429),
        ({"action": "dialing"}, 500),
        ({"action": "unavailable"}, 503),
        ({"action": "status", "code": 502}, 502),
    ],
)
def test_refusals(values: dict[str, object], status: int) -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        client.control.put(pod("q"), fake=True)
        client.control.fault({"name": "p", "times": 1} | values)
        assert (await client.exec("q", "true")).close == 1000
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.exec("p", "true")
        assert caught.value.status == status
        if status == 429:
            assert caught.value.headers is not None
            assert caught.value.headers["Retry-After"] == "2"
        assert (await client.exec("p", "true")).close == 1000

    run(work)


def test_drop_before_the_answer_and_after_a_while() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        client.control.fault({"action": "drop"})  # aiohttp retries once
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await client.exec("p", "true")
        client.control.clear_faults()
        client.control.fault({"action": "drop-after", "seconds": 0.2, "times": 1})
        done = await client.exec("p", "sleep", "55")
        assert done.status is None
        await client.until(lambda: [one["command"] for one in client.control.processes("p")] == ["sleep 55"])

    run(work)


def test_probability_is_the_same_for_a_seed() -> None:
    async def work(client: Client) -> None:
        hits = []
        for _ in range(2):
            client.control.clear_faults()
            client.control.fault({"action": "unavailable", "kind": "list", "probability": 0.3, "seed": 7})
            hits.append([(await client.call("GET", "/api/v1/namespaces/default/pods"))[0] for _ in range(40)])
        assert hits[0] == hits[1]
        assert 3 < hits[0].count(503) < 25

    run(work)


def test_kubelet_death() -> None:
    """Running commands are cut and killed, a followed log ends normally, new requests get 500, a deletion waits."""

    async def work(client: Client) -> None:
        client.control.put(pod("p", "sleep", "100", terminationGracePeriodSeconds=1), run=True)
        await client.phase("p", "Running")
        async with client.open("p", "sleep", "66") as socket, client.log("p", follow="true") as log:
            await socket.receive()
            client.control.node("node1", up=False)
            done = await finish(socket)
            assert await log.read() == b""
        assert (done.status, done.close) == (None, 1006)
        await client.until(lambda: len(client.control.processes("p")) == 1)
        status, body = await client.call("GET", "/api/v1/namespaces/default/pods/p/log")
        assert status == 500
        assert "connect: connection refused" in body["message"]
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.exec("p", "true")
        assert caught.value.status == 500
        await client.call("DELETE", "/api/v1/namespaces/default/pods/p", gracePeriodSeconds="1")
        await asyncio.sleep(0.3)
        assert client.control.get("Pod", "p") is not None
        client.control.node("node1", up=True)
        await client.until(lambda: client.control.get("Pod", "p") is None)

    run(work)
