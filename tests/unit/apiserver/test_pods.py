"""Pods of the test API server with real processes: states, logs, end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.apiserver.logfile import stamp
from tests.support.proc import alive
from tests.unit.apiserver.client import PODS, Client, pod, run


async def text(client: Client, name: str, **query: str) -> str:
    async with client.log(name, **query) as response:
        assert response.status == 200, await response.text()
        body: bytes = await response.read()
        return body.decode()


@pytest.mark.parametrize(
    ("command", "phase", "code", "reason"),
    [
        ("exit 0", "Succeeded", 0, "Completed"),
        ("exit 3", "Failed", 3, "Error"),
        ("kill -9 $$", "Failed", 137, "Error"),
    ],
)
def test_how_a_container_ends(command: str, phase: str, code: int, reason: str) -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p", "sh", "-c", f"echo said; {command}"), run=True)
        found = await client.phase("p", phase)
        ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (code, reason)
        assert await text(client, "p") == "said\n"
        assert await text(client, "p", follow="true") == "said\n"

    run(work)


def test_a_command_that_cannot_start() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p", "no-such-program"), run=True)
        found = await client.phase("p", "Failed")
        ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
        assert await text(client, "p") == ""

    run(work)


def test_restarts_and_the_previous_log() -> None:
    async def work(client: Client) -> None:
        client.control.settings({"backoff": 30})
        client.control.put(pod("p", "sh", "-c", "echo run $(ls .logs/main); exit 1", restartPolicy="Always"), run=True)

        def waits() -> Any:
            statuses = (client.control.get("Pod", "p") or {}).get("status", {}).get("containerStatuses")
            return statuses and statuses[0]["state"].get("waiting") and statuses[0]

        status = await client.until(waits)
        assert (status["state"]["waiting"]["reason"], status["restartCount"]) == ("CrashLoopBackOff", 1)
        assert status["lastState"]["terminated"]["exitCode"] == 1
        assert await text(client, "p") == "run 0.log 1.log\n"
        assert await text(client, "p", previous="true") == await text(client, "p")
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.exec("p", "true")
        assert caught.value.status == 500
        client.control.settings({"backoff": 0})
        assert await text(client, "p", follow="true") == "run 0.log 1.log\n"

    run(work)


def test_follow_over_a_rotation() -> None:
    """Following misses no line; a plain read returns only the newest file, as the kubelet does."""

    async def work(client: Client) -> None:
        client.control.settings({"rotate": 2000})
        script = "for i in $(seq 200); do echo line $i; test $((i % 20)) = 0 && sleep 0.05; done"
        script = f"until [ -e go ]; do sleep 0.02; done; {script}"
        client.control.put(pod("p", "sh", "-c", script), run=True)
        await client.phase("p", "Running")
        async with client.log("p", follow="true") as response:
            os.mknod(f"{client.control.folder('p')}/go")
            followed = (await response.read()).decode()
        assert followed.splitlines() == [f"line {i}" for i in range(1, 201)]
        rest = (await text(client, "p")).splitlines()
        assert 0 < len(rest) < 100
        assert rest == followed.splitlines()[-len(rest) :]

    run(work)


def test_long_lines_and_a_last_line_without_its_end() -> None:
    async def work(client: Client) -> None:
        client.control.put(
            pod("p", "sh", "-c", "printf '10%%\\r20%%\\n'; head -c 50000 /dev/zero | tr '\\0' z; echo; printf last"),
            run=True,
        )
        await client.phase("p", "Succeeded")
        assert await text(client, "p") == "10%\r20%\n" + "z" * 50000 + "\nlast"
        stamped = await text(client, "p", timestamps="true")
        assert [len(line.split(" ")) for line in stamped.split("\n")] == [2, 2, 2]

    run(work)


def test_options_on_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [b"%s step %d %s" % (stamp(1_700_000_000 + i // 3 + 0.25), i, b"x" * (i % 7 * 900)) for i in range(3000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    plain = [line.partition(b" ")[2].decode() for line in lines]

    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        client.control.log("p", path=str(path))
        assert (await text(client, "p")).splitlines() == plain
        assert (await text(client, "p", timestamps="true")).encode() == path.read_bytes()
        assert (await text(client, "p", tailLines="7")).splitlines() == plain[-7:]
        assert (await text(client, "p", limitBytes="11")) == "step 0 \nste"
        for seconds in (0, 1, 500, 999, 1000):
            since = stamp(1_700_000_000 + seconds).decode()
            wanted = plain[seconds * 3 :]
            assert (await text(client, "p", sinceTime=since)).splitlines() == wanted
            # The kubelet gets whole seconds: with a finer timestamp, earlier lines are returned again.
            assert (await text(client, "p", sinceTime=since.replace(".0", ".9"))).splitlines() == wanted
        both = await text(client, "p", tailLines="2000", sinceTime=stamp(1_700_000_000 + 900).decode())
        assert both.splitlines() == plain[2700:]

    run(work)


@pytest.mark.parametrize("action", ["drop-after", "end-early"])
def test_faults_on_logs(action: str) -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        client.control.log("p", lines=["one", "two", "three"])
        client.control.fault({"action": action, "kind": "log", "bytes": 6, "times": 1})
        async with client.log("p", follow="true") as response:
            if action == "end-early":
                assert await response.read() == b"one\ntw"
            else:
                with pytest.raises((aiohttp.ClientError, ConnectionError)):
                    await response.read()
        async with client.log("p", follow="true") as response:
            assert await response.content.readline() == b"one\n"
            client.control.log("p", lines=["four"], ended=True)
            assert (await response.read()).endswith(b"three\nfour\n")

    run(work)


def test_delete_with_grace() -> None:
    """TERM first; a process that ignores it is killed after the grace period, with all its descendants."""

    async def work(client: Client) -> None:
        polite = "trap 'echo bye; exit 0' TERM; echo up; sleep 100 & wait"
        stubborn = "trap '' TERM; echo up; setsid sleep 101 & wait; sleep 102"
        client.control.put(pod("polite", "sh", "-c", polite), run=True)
        client.control.put(pod("stubborn", "sh", "-c", stubborn), run=True)
        for name in ("polite", "stubborn"):
            await client.phase(name, "Running")
            async with client.log(name, follow="true") as log:
                assert await log.content.readline() == b"up\n"
        async with client.log("polite", follow="true") as log:
            for name in ("polite", "stubborn"):
                status, body = await client.call("DELETE", f"{PODS}/{name}", gracePeriodSeconds="1")
                assert (status, body["metadata"]["deletionGracePeriodSeconds"]) == (200, 1)
            assert await log.read() == b"up\nbye\n"
        assert client.control.processes("stubborn")
        assert len(client.control.processes("stubborn")) >= 1
        pids = [one["pid"] for one in client.control.processes("stubborn")]
        for name in ("polite", "stubborn"):
            await client.gone(name)
        assert not [pid for pid in pids if alive(pid)]

    run(work)


def test_a_first_process_without_a_handler_does_not_get_term() -> None:
    async def work(client: Client) -> None:
        for pid1, left in ((False, 0), (True, 1)):
            client.control.settings({"pid1": pid1})
            client.control.put(pod("p", "sleep", "100"), run=True)
            await client.phase("p", "Running")
            await client.call("DELETE", f"{PODS}/p", gracePeriodSeconds="1")
            await asyncio.sleep(0.5)
            assert len(client.control.processes("p")) == left
            await client.gone("p")

    run(work)


def test_a_follower_of_a_pod_that_goes_is_let_go() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        client.control.log("p", lines=["one"])
        async with client.log("p", follow="true") as log:
            assert await log.content.readline() == b"one\n"
            await client.call("DELETE", f"{PODS}/p")
            assert await log.read() == b""

    run(work)
