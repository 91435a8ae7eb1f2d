"""The client's side of the control socket: requests stay complete, even if their senders are cancelled."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from atlctl.backends.hosts.execution import MOST_WIDENED, PIPE_SIZE, READ_SIZE, ControlClient
from atlctl.jobs.errors import AtlctlError, NotAllowed, Unreachable
from atlctl.jobs.model import Job, State
from atlctl.remote.supervisor.control import MAX_MESSAGE
from tests.support.pace import within
from tests.unit.hosts.local import listening_as

JOB = Job("job", "Local", "local", State.RUNNING, "uid", 1)
BIG = "x" * 5_000_000


class Server:
    """A supervisor that only does what a test says."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "control.sock"))
        self._listener.listen()
        self.sock: socket.socket | None = None

    def accept(self) -> socket.socket:
        self.sock, _ = self._listener.accept()
        self.sock.settimeout(100)
        return self.sock

    def messages(self, count: int) -> list[dict[str, Any]]:
        """The next messages; no others may follow."""
        data = b""
        assert self.sock is not None
        while data.count(b"\n") < count:
            chunk = self.sock.recv(1 << 20)
            assert chunk, "the connection was closed"
            data += chunk
        return [json.loads(line) for line in data.splitlines()]

    def close(self) -> None:
        self._listener.close()
        if self.sock is not None:
            self.sock.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    try:
        yield made
    finally:
        made.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 100))


async def connected(tmp_path: Path, server: Server) -> ControlClient:
    client = ControlClient(JOB, str(tmp_path))
    await client.connect()
    server.accept()
    return client


def test_nobody_listens(tmp_path: Path) -> None:
    async def main() -> None:
        client = ControlClient(JOB, str(tmp_path))
        with pytest.raises(Unreachable) as caught:
            await client.connect()
        assert "atlctl ps job" in (caught.value.hint or "")
        await client.aclose()

    run(main())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")
def test_a_supervisor_of_another_user_is_told_nothing(tmp_path: Path) -> None:
    async def main(server: socket.socket) -> None:
        client = ControlClient(JOB, str(tmp_path))
        with pytest.raises(NotAllowed, match="runs as another user"):
            await client.connect()
        with pytest.raises(Unreachable):
            await client.send(client.listen(lambda _: None), {"op": "exec", "argv": ["secret"]})
        with server.accept()[0] as peer:
            assert peer.recv(100) == b""
        await client.aclose()

    with listening_as(4243, tmp_path) as server:
        run(main(server))


def test_a_cancelled_request_leaves_the_connection_whole(tmp_path: Path, server: Server) -> None:
    """Half of it was sent: the rest follows, then the other requests."""

    async def main() -> None:
        client = await connected(tmp_path, server)
        first = asyncio.create_task(client.send(1, {"op": "exec", "text": BIG}))
        second = asyncio.create_task(client.send(2, {"op": "exec", "text": BIG}))
        third = asyncio.create_task(client.send(3, {"op": "end"}))
        await asyncio.sleep(0.05)
        assert not first.done()
        first.cancel()  # has started sending
        second.cancel()  # is waiting for its turn
        reading = asyncio.create_task(asyncio.to_thread(server.messages, 2))
        await third
        found = await reading
        assert [message["id"] for message in found] == [1, 3]
        assert found[0]["text"] == BIG
        await client.aclose()

    run(main())


def test_a_connection_lost_in_the_middle_of_a_request(tmp_path: Path, server: Server) -> None:
    async def main() -> None:
        client = await connected(tmp_path, server)
        heard: list[object] = []
        number = client.listen(heard.append)
        waiting = [asyncio.create_task(client.send(number, {"text": BIG})) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert server.sock is not None
        server.sock.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert heard == [None]
        # The started one is notified through its listener; the others were never sent.
        assert results[0] is None or isinstance(results[0], Unreachable)
        assert all(isinstance(result, Unreachable) for result in results[1:])
        with pytest.raises(Unreachable):
            await client.send(9, {})
        await client.aclose()

    run(main())


def test_giving_back_with_a_request_on_its_way(tmp_path: Path, server: Server) -> None:
    async def main() -> None:
        client = await connected(tmp_path, server)
        waiting = [asyncio.create_task(client.send(1, {"text": BIG})) for _ in range(2)]
        await asyncio.sleep(0.05)
        await client.aclose()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[1], Unreachable)

    run(main())


def test_descriptors_travel_once_with_the_first_bytes(tmp_path: Path, server: Server) -> None:
    async def main() -> None:
        client = await connected(tmp_path, server)
        reader, writer = os.pipe()
        sending = asyncio.create_task(client.send(1, {"text": BIG}, [writer]))
        await asyncio.sleep(0.05)
        assert server.sock is not None
        _, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, server.sock, 1000, 10)
        assert len(descriptors) == 1
        while not sending.done():
            _, more, _, _ = await asyncio.to_thread(socket.recv_fds, server.sock, 1 << 20, 10)
            assert more == []
            await asyncio.sleep(0)
        os.write(descriptors[0], b"through")
        assert os.read(reader, 100) == b"through"
        for descriptor in (reader, writer, *descriptors):
            os.close(descriptor)
        await client.aclose()

    run(main())


def test_a_request_that_is_too_long_is_not_sent(tmp_path: Path, server: Server) -> None:
    async def main() -> None:
        client = await connected(tmp_path, server)
        with pytest.raises(AtlctlError, match="too long"):
            await client.send(1, {"text": "x" * MAX_MESSAGE})
        await client.send(2, {})
        assert [message["id"] for message in server.messages(1)] == [2]
        await client.aclose()

    run(main())


def test_answers_go_to_their_listeners(tmp_path: Path, server: Server) -> None:
    async def main() -> None:
        client = await connected(tmp_path, server)
        heard: dict[int, list[object]] = {1: [], 2: []}
        numbers = [client.listen(heard[1].append), client.listen(heard[2].append)]
        assert numbers == [1, 2]
        assert server.sock is not None
        # In pieces, and one without a receiver.
        for piece in (b'{"id": 2, "eve', b'nt": "b"}\n{"id": 9, "event": "c"}\n{"id"', b': 1, "event": "a"}\n'):
            server.sock.send(piece)
            await asyncio.sleep(0.02)
        client.forget(2)
        server.sock.send(b'{"id": 2, "event": "late"}\n')
        await asyncio.sleep(0.02)
        assert heard == {1: [{"id": 1, "event": "a"}], 2: [{"id": 2, "event": "b"}]}
        await client.aclose()
        assert heard[1][-1] is None, "the connection has ended"

    run(main())


def test_one_connection_for_all(tmp_path: Path, server: Server) -> None:
    async def main() -> None:
        client = ControlClient(JOB, str(tmp_path))
        first = asyncio.create_task(client.connect())
        others = [asyncio.create_task(client.connect()) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)
        begun = time.monotonic()
        server.accept()
        await client.send(1, {})
        assert server.messages(1)[0]["id"] == 1
        assert within(time.monotonic() - begun, 10)
        await client.aclose()

    run(main())


def test_widen_pipes_up_to_a_number_each_once(tmp_path: Path) -> None:
    """All pipes of a user share one limit: a command on many workers leaves most of it to others."""
    client = ControlClient(JOB, str(tmp_path))
    pipes = [os.pipe() for _ in range(MOST_WIDENED + 1)]
    try:
        for reader, _ in pipes:
            client.widen(reader)
            client.widen(reader)
        sizes = [fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) for reader, _ in pipes]
    finally:
        for ends in pipes:
            for end in ends:
                os.close(end)
    assert sizes == [READ_SIZE] * MOST_WIDENED + [PIPE_SIZE]
