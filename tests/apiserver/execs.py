"""pods/exec over WebSockets: a real local process for each command, with the possible failures."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import struct
import termios

from aiohttp import WSMsgType, web

from tests.apiserver import frames, placing, processes, statuses
from tests.apiserver.cluster import Call
from tests.apiserver.processes import Child, Pipe
from tests.apiserver.statuses import Refusal
from tests.apiserver.store import Record

#: Maximum bytes of stdin to buffer for a process that does not read.
WAITING = 1 << 20
#: Rough mode, based on recordings of a real cluster (recordings/exec-order): bytes of one stream that runtime, kubelet
#: and API server may delay together, while the other stream continues; seconds that a burst may be late.
HELD, LATE_SECONDS = 2 << 20, 0.05


async def serve(call: Call) -> web.StreamResponse:
    """The handshake, possibly refused, and then the session."""
    request = call.request
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise statuses.bad_request("Upgrade request required")
    access = call.cluster.access
    if access.rule(call.user, "create", "", "pods", "exec", call.namespace, call.name) is None:
        raise statuses.forbidden(call.resource, call.name, "")
    record, container = placing.container(call)
    if not record.obj["spec"].get("nodeName"):
        raise statuses.bad_request(f"pod {call.name} does not have a host assigned")
    offered = [word.strip() for word in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if word.strip()]
    protocol = frames.choose(offered)
    if protocol is None:
        raise Refusal(403, text="", close=True)
    placing.reachable(call, record, container)
    if not any(call.flag(stream) for stream in ("stdin", "stdout", "stderr")):
        raise Refusal(400, text="you must specify at least 1 of stdin, stdout, stderr")
    if not placing.is_running(record, container):
        raise Refusal(500, text=f'container not found ("{container}")')
    socket = web.WebSocketResponse(
        protocols=(protocol,) if protocol else (), compress=False, max_msg_size=0, autoclose=True
    )
    if not protocol:
        socket.headers["Sec-WebSocket-Protocol"] = ""
    await socket.prepare(request)
    call.entry["status"] = 101
    session = Session(call, socket, protocol, record, container)
    try:
        await session.run()
    except (ConnectionError, Gone):
        session.leave()
    except asyncio.CancelledError:
        session.leave()
        raise
    return socket


class Gone(Exception):
    """The client has disconnected, or a fault has cut the connection."""


class Session:
    """A command in a container."""

    def __init__(self, call: Call, socket: web.WebSocketResponse, protocol: str, record: Record, container: str):
        self.call = call
        self.socket = socket
        self.protocol = protocol
        self.fault = call.fault
        self.argv = [value for key, value in call.query if key == "command"]
        self.tty = call.flag("tty")
        self.kubelet = call.cluster.kubelet
        self.record = record
        self.pod = self.kubelet.pod(record)
        self.container = container
        self.child: Child | None = None
        self.outputs: list[tuple[int, Pipe]] = []
        self.stdin: Pipe | None = None
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0
        self._room = asyncio.Event()
        self._random = call.cluster.dice()
        self._tail = b""
        self._sent = {frames.STDOUT: 0, frames.STDERR: 0}

    async def run(self) -> None:
        await self.socket.send_bytes(b"\x01") if not self.protocol.startswith("base64") else await self._say(1, b"")
        try:
            self._start()
        except processes.TooLongError as error:
            await self._frame(frames.STDERR, f"{error}\n".encode())
            await self._end(frames.exited(self.protocol, self.argv, 1))
            return
        except processes.StartError as error:
            await self._end(frames.not_started(self.protocol, str(error)))
            return
        assert self.child is not None
        self.pod.execs.append(self.child)
        self.pod.used = True
        self.pod.cutters.add(self._abort)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._receive())]
        if self.fault and self.fault.action == "drop-after":
            tasks.append(loop.create_task(self._cut_after(self.fault.seconds)))
        if self.stdin is not None:
            tasks.append(loop.create_task(self._feed(self.stdin)))
        work = loop.create_task(self._work())
        try:
            # Either the command or the client may end first.
            await asyncio.wait([work, tasks[0]], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Gone
            await work
        finally:
            self.pod.cutters.discard(self._abort)
            work.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(work, *tasks, return_exceptions=True)
            if self.child.ended.done():
                self._close()

    # the process

    def _start(self) -> None:
        spec = placing.container_spec(self.record.obj, self.container)
        env = self.kubelet.env(self.record.obj, spec)
        cwd = self.kubelet.cwd(self.pod, spec)
        if self.tty:
            self._start_on_terminal(env | {"TERM": "xterm"}, cwd)
            return
        ends: list[int] = []
        outputs: list[tuple[int, int]] = []
        stdin: int | None = None
        try:
            child_in = os.open(os.devnull, os.O_RDWR)
            ends.append(child_in)
            if self.call.flag("stdin"):
                child_in, stdin = os.pipe()
                ends.append(child_in)
            targets = [ends[0], ends[0]]
            for index, name in enumerate(("stdout", "stderr")):
                if self.call.flag(name):
                    reading, targets[index] = os.pipe()
                    ends.append(targets[index])
                    outputs.append((frames.STDOUT + index, reading))
            self.child = processes.start(self.argv, env, cwd, child_in, *targets)
        except processes.StartError:
            for fd in [fd for _, fd in outputs] + ([] if stdin is None else [stdin]):
                os.close(fd)
            raise
        finally:
            for fd in ends:
                os.close(fd)
        self.outputs = [(channel, Pipe(fd)) for channel, fd in outputs]
        self.stdin = None if stdin is None else Pipe(stdin)

    def _start_on_terminal(self, env: dict[str, str], cwd: str) -> None:
        master, slave = os.openpty()
        try:
            self.child = processes.start(self.argv, env, cwd, slave, slave, slave, tty=True)
        except processes.StartError:
            os.close(master)
            raise
        finally:
            os.close(slave)
        pipe = Pipe(master)
        self.outputs = [(frames.STDOUT, pipe)]
        self.stdin = pipe if self.call.flag("stdin") else None

    def _close(self) -> None:
        for _, pipe in self.outputs:
            pipe.close()
        if self.stdin is not None:
            self.stdin.close()
        if self.child in self.pod.execs:
            self.pod.execs.remove(self.child)

    def leave(self) -> None:
        """The client has disconnected: the process continues. Its stdin is closed and its output is no longer read."""
        if self.child is None:
            return
        if self.stdin is not None and not self.tty:
            self.stdin.close()
        if self.child.ended.done():
            self._close()
        else:
            self.child.ended.add_done_callback(lambda _: self._close())

    # frames to the client

    async def _work(self) -> None:
        """Send all output, then the result."""
        assert self.child is not None
        if self.fault and self.fault.action == "stall":
            await self._stall(self.fault.seconds)
        copies = [asyncio.get_running_loop().create_task(self._copy(c, pipe)) for c, pipe in self.outputs]
        try:
            await asyncio.gather(*copies)
        finally:
            for task in copies:
                task.cancel()
        code = await asyncio.shield(self.child.ended)
        await self._end(frames.exited(self.protocol, self.argv, code))

    async def _copy(self, channel: int, pipe: Pipe) -> None:
        if self._random is not None:
            await self._deliver(channel, pipe, self._random)
            return
        while data := await pipe.read():
            await self._frame(channel, self._held_back(channel, data))

    async def _deliver(self, channel: int, pipe: Pipe, dice: random.Random) -> None:
        """Send a stream's output, late and in bursts, independent of the other stream."""
        held, over, changed = bytearray(), False, asyncio.Event()
        #: Some execs delay one stream, some both, most none.
        late = dice.choice((0.0, 0.0, 0.1, 0.8))

        async def read() -> None:
            nonlocal over
            while data := await pipe.read():
                held.extend(self._held_back(channel, data))
                changed.set()
                while len(held) >= HELD:
                    changed.clear()
                    await changed.wait()
            over = True
            changed.set()

        reading = asyncio.get_running_loop().create_task(read())
        try:
            while True:
                while not held and not over:
                    changed.clear()
                    await changed.wait()
                if dice.random() < late:
                    await asyncio.sleep(dice.uniform(0, LATE_SECONDS))
                burst = bytes(held[: int(2 ** dice.uniform(12, 21))])
                if not burst and over:
                    return
                del held[: len(burst)]
                changed.set()
                while burst:
                    size = 32768 if dice.random() < 0.9 else dice.randint(1, 64)
                    await self._frame(channel, burst[:size])
                    burst = burst[size:]
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _frame(self, channel: int, data: bytes) -> None:
        fault = self.fault
        if fault is not None and fault.action == "split":
            for begin in range(0, len(data), fault.bytes):
                await self._say(channel, data[begin : begin + fault.bytes])
            return
        if fault is not None and fault.action == "pause":
            before, self._sent[channel] = self._sent[channel], self._sent[channel] + len(data)
            if before <= fault.bytes < self._sent[channel]:
                await asyncio.sleep(fault.seconds)
        if fault is not None and fault.action == "slow":
            await asyncio.sleep(fault.seconds)
        await self._say(channel, data)

    def _held_back(self, channel: int, data: bytes) -> bytes:
        """The part of `data` to send if the end of stdout must never arrive."""
        if self.fault is None or self.fault.action != "drop-before-end" or channel != frames.STDOUT:
            return data
        data = self._tail + data
        self._tail = data[-10:]
        return data[:-10]

    async def _say(self, channel: int, data: bytes) -> None:
        message = frames.encode(self.protocol, channel, data)
        if isinstance(message, str):
            await self.socket.send_str(message)
        else:
            await self.socket.send_bytes(message)

    async def _end(self, outcome: bytes) -> None:
        action = self.fault.action if self.fault else ""
        if action in ("drop-before-end", "drop-before-exit"):
            await self._flushed()
            self._cut()
        if action == "stall-before-exit":
            assert self.fault is not None
            await self._stall(self.fault.seconds)
        if action == "drop-inside-exit":
            transport = self.call.request.transport
            if transport is not None and not transport.is_closing():
                payload = bytes([frames.ERROR]) + outcome
                transport.write(frames.raw_frame(payload, max(2, len(payload) // 2)))
                await self._flushed()
            self._cut()
        if self._random is not None and self._random.random() < 0.2:
            await asyncio.sleep(self._random.uniform(0, LATE_SECONDS))
        if outcome:
            await self._say(frames.ERROR, outcome)
        if action == "drop-after-exit":
            await self._flushed()
            self._cut()
        transport = self.call.request.transport
        if self._random is not None and transport is not None and self._random.random() < 0.5:
            transport.close()  # pending data is sent, but no close frame
            raise Gone
        await self.socket.close(code=1000)

    async def _stall(self, seconds: float) -> None:
        """Send nothing for `seconds`, or forever."""
        await asyncio.sleep(seconds or 86400)

    async def _flushed(self) -> None:
        transport = self.call.request.transport
        for _ in range(200):
            if transport is None or transport.is_closing() or not transport.get_write_buffer_size():
                return
            await asyncio.sleep(0.005)

    def _abort(self) -> None:
        if self.call.request.transport is not None:
            self.call.request.transport.abort()

    def _cut(self) -> None:
        self._abort()
        raise Gone

    async def _cut_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._abort()

    # frames of the client

    async def _receive(self) -> None:
        """Receive until the client closes or disconnects. Answers pings meanwhile."""
        while True:
            message = await self.socket.receive()
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                return
            try:
                channel, data = frames.decode(self.protocol, message.data)
            except ValueError:
                continue
            if channel == frames.STDIN and self.stdin is not None and data:
                self._input.put_nowait(data)
                self._waiting += len(data)
                while self._waiting > WAITING and not self._closing():
                    self._room.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await self._room.wait()
            elif channel == frames.RESIZE and self.tty:
                self._resize(data)
            elif channel == frames.CLOSE and data[:1] == b"\0" and self.protocol == frames.V5:
                self._input.put_nowait(None)

    def _closing(self) -> bool:
        transport = self.call.request.transport
        return transport is None or transport.is_closing()

    async def _feed(self, pipe: Pipe) -> None:
        while (data := await self._input.get()) is not None:
            await pipe.write(data)
            self._waiting -= len(data)
            self._room.set()
        if not self.tty:
            pipe.close()
            self.stdin = None

    def _resize(self, data: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError, OSError, struct.error):
            size = json.loads(data)
            packed = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
            fcntl.ioctl(self.outputs[0][1].fd, termios.TIOCSWINSZ, packed)
