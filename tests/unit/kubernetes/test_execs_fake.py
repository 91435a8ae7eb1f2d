"""One exec without a server: messages in, events out, and messages sent back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from atlctl.backends.base import (
    Argv,
    Event,
    ExecRequest,
    Exited,
    FailedToStart,
    Lost,
    Output,
    Started,
    TerminalSize,
)
from atlctl.backends.guarded import execution as execution_module
from atlctl.backends.kubernetes.api import ApiError, Denied, NoServer, NotFound
from atlctl.backends.kubernetes.execs import KubernetesExecutor
from atlctl.jobs.model import Job, State, Worker

WORKER = Worker("worker-0", 0, State.RUNNING, pod="pod-0", container="main")
JOB = Job("job", "PyTorchJob", "kubernetes", State.RUNNING, "uid", 1, (WORKER,), namespace="ml")
SUCCESS = b'\3{"status":"Success"}'
NO_SH = 'OCI runtime exec failed: exec failed: unable to start container process: exec: "sh": executable file not found'


def code(number: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(number)}]
    return (
        b"\3" + json.dumps({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}).encode()
    )


def internal(message: str) -> bytes:
    return b"\3" + json.dumps({"status": "Failure", "reason": "InternalError", "message": message}).encode()


class FakeSocket:
    """Messages from a test; MARK in them becomes the execution's mark."""

    def __init__(self, path: str, protocol: str | None = "v5.channel.k8s.io") -> None:
        self.protocol = protocol
        self.query = parse_qs(urlsplit(path).query, keep_blank_values=True)
        self.sent: list[bytes] = []
        self.closed = False
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.taken = 0
        self.on_send: Callable[[bytes], None] = lambda message: None

    @property
    def mark(self) -> bytes:
        return next((word for word in self.query["command"] if word.startswith("@atlctl-")), "none").encode()

    def say(self, *messages: bytes | None) -> None:
        for message in messages:
            self.incoming.put_nowait(None if message is None else message.replace(b"MARK", self.mark))

    async def receive(self) -> bytes | None:
        message = await self.incoming.get()
        self.taken += 1
        return message

    async def send(self, data: bytes) -> None:
        if self.closed:
            raise NoServer("gone")
        self.sent.append(data)
        self.on_send(data)

    async def close(self) -> None:
        self.closed = True
        self.incoming.put_nowait(None)


class FakeApi:
    """Returns sockets; `script` provides the messages of each, or raises."""

    server, context, namespace = "https://here", None, "default"

    def __init__(self, *scripts: Callable[[FakeSocket], None] | Exception) -> None:
        self.scripts = list(scripts)
        self.sockets: list[FakeSocket] = []
        self.offered: list[Sequence[str]] = []

    async def socket(self, path: str, query: Any, protocols: Sequence[str]) -> FakeSocket:
        assert not query
        self.offered.append(protocols)
        script = self.scripts[len(self.sockets)]
        if isinstance(script, Exception):
            raise script
        socket = FakeSocket(path)
        self.sockets.append(socket)
        script(socket)
        return socket


def saying(*messages: bytes | None) -> Callable[[FakeSocket], None]:
    return lambda socket: socket.say(*messages)


S = b"\2MARK S 17 4711\n"
Run = tuple[list[Event], FakeApi]


def run(*scripts: Any, argv: Sequence[str] = ("tool",), **request: Any) -> Run:
    """All events of one command."""
    api = FakeApi(*scripts)

    async def main() -> list[Event]:
        executor = KubernetesExecutor(api, JOB)  # type: ignore[arg-type]
        found = executor.run(WORKER, ExecRequest(Argv(tuple(argv)), **request))
        events = [event async for event in found]
        await found.aclose()
        await executor.aclose()
        return events

    return asyncio.run(asyncio.wait_for(main(), 100)), api


def test_a_command_from_start_to_end() -> None:
    events, api = run(saying(b"\1", S, b"\1out", b"\2err", b"\2MARK X 0\n", SUCCESS, None))
    assert events == [Started(True), Output("stdout", b"out"), Output("stderr", b"err"), Exited(exit_code=0)]
    assert api.offered == [("v5.channel.k8s.io", "v4.channel.k8s.io")]
    query = api.sockets[0].query
    assert query["container"] == ["main"]
    assert (query["stdin"], query["stdout"], query["stderr"]) == (["true"], ["true"], ["true"])
    assert query["command"][:2] == ["sh", "-c"]
    assert query["command"][-1] == "tool"
    assert api.sockets[0].closed


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("pid", ["7", "17"])
@pytest.mark.parametrize("text", [b"err@atlctl-@", b"err @\n", b"@@\n@\n"])
def test_words_of_the_wrapper_cut_into_pieces(size: int, pid: str, text: bytes) -> None:
    script = b"MARK S %b 4711\n%bMARK X Killed 137\nlater" % (pid.encode(), text)

    def piecewise(socket: FakeSocket) -> None:
        whole = script.replace(b"MARK", socket.mark)
        socket.say(*[b"\2" + whole[at : at + size] for at in range(0, len(whole), size)], code(137), None)

    events, _ = run(piecewise)
    assert events[0] == Started(True)
    assert events[-1] == Exited(signal=9)
    assert b"".join(event.data for event in events if isinstance(event, Output)) == text + b"later"


def test_output_that_overtakes_the_start_comes_after_it() -> None:
    events, _ = run(saying(b"\1early", S, b"\2MARK X 3\n", code(3), None))
    assert events == [Started(True), Output("stdout", b"early"), Exited(exit_code=3)]


@pytest.mark.parametrize(
    ("messages", "end"),
    [
        pytest.param([S, b"\2MARK X 143\n", code(143)], Exited(exit_code=143), id="code-above-128"),
        pytest.param([S, b"\2MARK X Terminated 143\n", code(143)], Exited(signal=15), id="dash-signal"),
        pytest.param(
            [S, b'\2MARK X [2]+ Done(143) ( C "$@" ) 143\n', code(143)], Exited(exit_code=143), id="bash-code"
        ),
        pytest.param(
            [S, b'\2MARK X [2]+ Broken pipe ( C "$@" ) 141\n', code(141)], Exited(signal=13), id="bash-signal"
        ),
        pytest.param([S, b"\2MARK X 6\n", b"\1outMARK E\n"], Exited(exit_code=6), id="whole-without-a-status"),
        pytest.param([S, b"\2MARK X\n", b"\1MARK E\n"], None, id="whole-and-the-waiting-shell-killed"),
        pytest.param([S, b"\1MARK E\n"], None, id="cut-before-the-exit"),
        pytest.param([S, b"\2MARK D\n"], None, id="the-exec-itself-killed"),
        pytest.param([S, code(137)], None, id="container-killed"),
        pytest.param([S, code(3)], None, id="no-word-of-the-end"),
        pytest.param([S, SUCCESS], None, id="success-without-a-word"),
        pytest.param([SUCCESS], None, id="success-without-a-start"),
        pytest.param([S, b"\2MARK X\n", code(125)], None, id="waiting-shell-killed"),
        pytest.param([S, b"\2MARK X 0\n"], None, id="cut-before-the-status"),
        pytest.param([S, b"\1half"], None, id="cut-while-it-runs"),
        pytest.param([], None, id="cut-at-once"),
        pytest.param([S, b'\3{"status":"Succ'], None, id="cut-inside-the-status"),
        pytest.param([S, b"\3"], None, id="empty-status"),
    ],
)
def test_ends(messages: list[bytes], end: Event | None) -> None:
    events, _ = run(saying(*messages, None))
    if end is None:
        assert isinstance(events[-1], Lost)
        assert events[-1].reason
    else:
        assert events[-1] == end
    assert sum(isinstance(event, Exited | FailedToStart | Lost) for event in events) == 1


@pytest.mark.parametrize(
    ("messages", "end"),
    [
        ([b"\2MARK F 127\n", code(127)], FailedToStart(127, "tool: command not found")),
        ([b"\2MARK F 126\n", code(126)], FailedToStart(126, "tool: cannot be executed")),
        (
            [b"\2sh: 3: Syntax error\n", code(2)],
            FailedToStart(125, "the worker's shell failed: sh: 3: Syntax error"),
        ),
        ([code(137)], FailedToStart(255, "not running: the container ended")),
    ],
)
def test_commands_that_never_ran(messages: list[bytes], end: Event) -> None:
    events, _ = run(saying(*messages, None))
    assert events == [end]


def test_the_exit_is_known_while_a_child_holds_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_module, "LINGER_SECONDS", (0.05, 0.1))
    events, api = run(saying(S, b"\2MARK X 6\n", b"\1the lastMARK E\n"), saying(b"\2MARK L 1\n"))
    assert events == [Started(True), Output("stdout", b"the last"), Exited(exit_code=6, truncated=True)]
    assert api.sockets[1].query["command"][-3:] == [api.sockets[0].mark.decode(), "17", "4711"]


@pytest.mark.parametrize("status", [True, False])
def test_a_status_that_is_late_is_waited_for_when_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, status: bool
) -> None:
    monkeypatch.setattr(execution_module, "LINGER_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(execution_module, "LOOK_SECONDS", 0.5)
    main: list[FakeSocket] = []

    def begin(socket: FakeSocket) -> None:
        main.append(socket)
        socket.say(S, b"\1MARK E\n", b"\2MARK X 6\n")

    def look(socket: FakeSocket) -> None:
        socket.say(b"\2MARK L 0\n")
        if status:
            asyncio.get_running_loop().call_later(0.2, main[0].say, code(6))

    assert run(begin, look)[0] == [Started(True), Exited(exit_code=6, truncated=not status)]


def test_output_that_the_word_of_the_exit_overtakes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_module, "LINGER_SECONDS", (0.05, 0.1))

    def late(socket: FakeSocket) -> None:
        socket.say(S, b"\2MARK X 0\n")
        rest = [*[b"\1" + bytes(100_000)] * 30, b"\1MARK E\n", SUCCESS, None]
        asyncio.get_running_loop().call_later(1.0, lambda: socket.say(*rest))

    events, _ = run(late)
    assert sum(len(event.data) for event in events if isinstance(event, Output)) == 3_000_000
    assert events[-1] == Exited(exit_code=0)


def test_a_chatty_child_is_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_module, "AFTERMATH", 100_000)
    events, _ = run(saying(S, b"\1MARK E\n", b"\2MARK X 6\n", *[b"\1" + bytes(10_000)] * 50))
    assert events[-1] == Exited(exit_code=6, truncated=True)
    assert sum(len(event.data) for event in events if isinstance(event, Output)) == 100_000


def test_an_image_without_a_shell() -> None:
    events, api = run(saying(b"\1", internal(NO_SH), None), saying(b"\1", b"\1out", SUCCESS, None))
    assert events == [Started(False), Output("stdout", b"out"), Exited(exit_code=0)]
    assert api.sockets[1].query["command"] == ["tool"]
    assert "stdin" not in api.sockets[1].query
    events, _ = run(saying(internal(NO_SH), None), saying(internal(NO_SH.replace('"sh"', '"tool"')), None))
    assert events == [FailedToStart(127, '"tool": executable file not found')]


def test_a_silent_command_without_a_wrapper_has_started_after_a_while() -> None:
    def later(socket: FakeSocket) -> None:
        asyncio.get_running_loop().call_later(0.5, socket.say, code(3), None)

    events, _ = run(saying(internal(NO_SH), None), later)
    assert events == [Started(False), Exited(exit_code=3)]


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (NotFound(404, "NotFound", 'pods "pod-0" not found'), 255, "not running"),
        (ApiError(500, "", 'container not found ("main")'), 255, "not running"),
        (ApiError(400, "BadRequest", "pod pod-0 does not have a host assigned"), 255, "not running"),
        (ApiError(400, "BadRequest", "container x is not valid for pod pod-0"), 125, "not valid"),
        (ApiError(500, "", "error dialing backend: connection refused"), 255, "dialing"),
        (ApiError(431, "", ""), 125, "longer"),
        (Denied(403, "Forbidden", 'pods "pod-0" is forbidden: '), 125, "the verb create on pods/exec"),
        (Denied(403, "Forbidden", 'User "u" cannot get resource "pods/exec"'), 125, "cannot get resource"),
        (Denied(401, "Unauthorized", "Unauthorized"), 125, "authentication failed"),
        (NoServer("no route to the server"), 255, "no route"),
    ],
)
def test_refused_handshakes(error: Exception, exit_code: int, words: str) -> None:
    (end,), _ = run(error)
    assert isinstance(end, FailedToStart)
    assert end.exit_code == exit_code
    assert words in end.reason
    assert end.not_allowed is isinstance(error, Denied)


@pytest.mark.parametrize("argv", [("tool", "a\0b"), ("tool", "x" * 140_000), ("tool", *["界" * 10_000] * 40)], ids=len)
def test_what_is_never_asked(argv: tuple[str, ...]) -> None:
    (end,), api = run(argv=argv)
    assert isinstance(end, FailedToStart)
    assert end.exit_code == 125
    assert api.offered == []


# Input and the separate watcher

Drive = Callable[[Any, AsyncIterator[Event]], Awaitable[None]]


def drive(api: FakeApi, body: Drive, **request: Any) -> None:
    async def main() -> None:
        executor = KubernetesExecutor(api, JOB)  # type: ignore[arg-type]
        found = executor.run(WORKER, ExecRequest(Argv(("tool",)), **request))
        await body(found, found.__aiter__())
        await executor.aclose()
        assert all(socket.closed for socket in api.sockets)

    asyncio.run(asyncio.wait_for(main(), 100))


def test_input_has_a_watcher_beside_it() -> None:
    api = FakeApi(saying(S), saying(b"\2MARK R\n"))

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        assert await anext(events) == Started(True)
        main, watcher = api.sockets
        assert main.sent == [b"\0\n"], "held back until the watcher reads"
        assert watcher.query["command"][-4:] == [main.mark.decode(), "17", "4711", ""]
        assert await found.write(b"x" * 40_000)
        await found.close_stdin()
        assert [len(message) for message in main.sent] == [2, 32_769, 7_233, 2]
        assert main.sent[-1] == b"\xff\0"
        main.say(b"\2MARK X 0\n", SUCCESS)
        assert await anext(events) == Exited(exit_code=0)
        assert not await found.write(b"late")
        await found.aclose()
        assert watcher.sent == [b"\0q\n"], "what the command left behind on purpose stays"

    drive(api, body, stdin=True)
    assert api.offered[0] == ("v5.channel.k8s.io",), "v4 cannot end the input"


def test_no_watcher_can_be_had() -> None:
    events, _ = run(saying(S, b"\2MARK X 0\n", SUCCESS, None), NoServer("full"), stdin=True)
    assert events == [Started(False), Exited(exit_code=0)]


def test_a_terminal() -> None:
    api = FakeApi(saying(b"\1MARK S 17 4711\r\n$ @"), saying(b"\2MARK R\n"))

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        assert [await anext(events), await anext(events)] == [Started(True), Output("stdout", b"$ @")]
        main, watcher = api.sockets
        assert watcher.query["command"][-1] == "HUP"
        assert "stderr" not in main.query
        assert json.loads(main.sent[0][1:]) == {"Width": 91, "Height": 27}
        found.resize(TerminalSize(40, 10))
        await found.write(b"begun")
        await found.close_stdin()
        await asyncio.sleep(0)
        assert b'\4{"Width": 40, "Height": 10}' in main.sent
        assert [message for message in main.sent if message[0] == 0] == [b"\0begun", b"\0\4\4"]
        main.say(b"\1MARK X 0\n", code(5))
        assert isinstance(await anext(events), Output), "after the start, all is the command's own"
        assert await anext(events) == Exited(exit_code=5)

    drive(api, body, stdin=True, tty=TerminalSize(91, 27))


# The end


def test_an_end_is_proven_by_the_wrapper() -> None:
    def answer(socket: FakeSocket) -> None:
        answers = {
            b"\x0015\n": (b"\1noise" * 1000, b"\2MARK X Terminated 143\nMARK G\n"),
            b"\0q\n": (code(143), None),
        }
        socket.on_send = lambda message: socket.say(*answers[message])
        socket.say(S)

    api = FakeApi(answer)

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        assert await anext(events) == Started(True)
        # The events are not read meanwhile: the end reads them itself.
        assert await found.end(1.5)
        assert await found.end(1.5)
        assert [event async for event in events] == [Exited(signal=15)]

    drive(api, body)
    assert api.sockets[0].sent == [b"\x0015\n", b"\0q\n"]


def test_an_end_waits_for_the_first_word_behind_much_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """stdout and stderr are two streams: output on one may overtake the wrapper's message on the other."""
    monkeypatch.setattr(execution_module, "EARLY_LIMIT", 10)

    def answer(socket: FakeSocket) -> None:
        answers = {b"\x0015\n": (b"\2MARK X Terminated 143\nMARK G\n",), b"\0q\n": (code(143), None)}
        socket.on_send = lambda message: socket.say(*answers[message])
        socket.say(b"\1begun and more\n")

    api = FakeApi(answer)

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        assert await anext(events) == Started(False)
        assert await anext(events) == Output("stdout", b"begun and more\n")
        ending = asyncio.create_task(found.end(1.5))
        await asyncio.sleep(0)
        api.sockets[0].say(b"\1noise\n", S)
        assert await ending
        assert [event async for event in events] == [Exited(signal=15)]

    drive(api, body)


def test_an_end_without_that_word_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_module, "EARLY_LIMIT", 10)
    monkeypatch.setattr(execution_module, "WORD_SECONDS", 0.05)

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        assert await anext(events) == Started(False)
        assert not await found.end(0.1)

    drive(FakeApi(saying(b"\1begun and more\n")), body)


def test_an_end_without_an_answer_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_module, "END_MARGIN_SECONDS", 0.1)

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        await anext(events)
        assert not await found.end(0.0)

    drive(FakeApi(saying(S)), body)
    lost = FakeApi(saying(S, None), NoServer("gone"))
    drive(lost, body)


def test_after_the_end_another_exec_looks_for_what_is_left() -> None:
    def sweep(socket: FakeSocket) -> None:
        socket.on_send = lambda message: socket.say(b"\2MARK G\n")
        socket.say(b"\2MARK R\n")

    api = FakeApi(saying(S, b"\2MARK X 0\n", SUCCESS, None), sweep)

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        assert [event async for event in events][-1] == Exited(exit_code=0)
        assert await found.end(1.0)

    drive(api, body)
    assert api.sockets[1].sent == [b"\x0010\n"]


def test_an_end_before_the_start() -> None:
    api = FakeApi()

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        assert await found.end(1.0)
        assert [event async for event in events] == [FailedToStart(125, "not connected")]

    drive(api, body)


def test_bytes_are_read_only_when_asked() -> None:
    api = FakeApi(saying(S, *[b"\1" + bytes(1000)] * 100))

    async def body(found: Any, events: AsyncIterator[Event]) -> None:
        await anext(events)
        for _ in range(3):
            await anext(events)
        await asyncio.sleep(0.05)
        assert api.sockets[0].taken <= 5

    drive(api, body)
