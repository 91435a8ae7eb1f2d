"""Exec: runs commands in containers, over a WebSocket of v5.channel.k8s.io or v4.channel.k8s.io.

A message is a channel byte and data. v5 adds the end of a stream: 255 and the channel. The exit status is sent only in
a Status (JSON) on channel 3: the server always closes with code 1000.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from atlctl.backends.base import NOT_CONNECTED, Exited, FailedToStart, Lost, Output, TerminalSize
from atlctl.backends.guarded import guard
from atlctl.backends.guarded.execution import Channel, Ended, GuardedExecutor
from atlctl.backends.kubernetes.api import Api, ApiError, Denied, NoServer, NotFound, Socket
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.model import Job, Worker

V5 = "v5.channel.k8s.io"
V4 = "v4.channel.k8s.io"

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255

#: Bytes of input in one message; the server sends up to 32 KiB.
CHUNK = 32 * 1024
#: Maximum size of a Status, normally a few hundred bytes.
_STATUS_LIMIT = 64 * 1024
#: Characters to keep of the server's message.
_REASON_LIMIT = 500

#: Error texts of container runtimes for a command that never ran, with the exit code of a shell.
_NOT_STARTED = (
    ("executable file not found", 127),
    ("no such file or directory", 127),
    ("permission denied", 126),
    ("exec format error", 126),
    ("is a directory", 126),
    ("not a directory", 126),
    ("argument list too long", 126),
)
#: The runtimes' error text if they cannot enter the container.
_NOT_ENTERED = "error executing setns process"
_NO_ENTRY = Message("cannot enter the container: it has ended or is ending, or its process limit is reached")
#: Error texts of a failure before the command's start.
_AT_START = ("unable to start container process", "failed to start exec", "exec failed", "failed to exec in container")

#: Bytes of one word: the kernel allows 128 KiB less one (MAX_ARG_STRLEN), and reports more only inside the container.
WORD_LIMIT = 128 * 1024 - 1
#: Bytes of a request's query: the API server accepts 1 MiB of headers and answers 431 to more.
QUERY_LIMIT = 1_000_000

_TOO_LONG = Message("the command is longer than the API server accepts; send it as input (-i)")
_TEXTS = (guard.GUARD, guard.INPUT, guard.TERMINAL)
_QUOTED = {text: quote_plus(text) for text in (*_TEXTS, guard.WATCH, guard.LOOK)}


class KubernetesExecutor(GuardedExecutor):
    """Needs no request for the pod: the worker names its pod and container."""

    def __init__(self, api: Api, job: Job) -> None:
        own = job.namespace or api.namespace

        def place(worker: Worker) -> ExecPlace | FailedToStart:
            if not worker.pod:
                return FailedToStart(255, Message("not running: it has no pod"))
            return ExecPlace(api, worker.namespace or own, worker.pod, worker.container)

        super().__init__(place)


class ExecPlace:
    """A container of a pod, in which execs are opened. See `atlctl.backends.guarded.execution.Place`."""

    def __init__(self, api: Api, namespace: str, pod: str, container: str | None) -> None:
        self.api = api
        self.name = pod
        named = f"container={quote_plus(container)}&" if container else ""
        self._begin = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec?{named}stdout=true"

    def command(
        self, words: Sequence[bytes], text: str | None, before: Sequence[str] = (), *, stdin: bool, tty: bool = False
    ) -> str:
        """The request that runs `words`; with `text`, this shell text with the arguments `before` and `words`."""
        given: Sequence[bytes | str] = (*before, *words)
        parts = [self._begin, "&tty=true" if tty else "&stderr=true", "&stdin=true" if stdin else ""]
        if text is not None:
            try:
                b"\0".join(words).decode()
                parts += ["&command=sh&command=-c&command=", _QUOTED[text], "&command=sh"]
            except UnicodeDecodeError:  # container runtimes refuse it
                given = guard.encoded(guard.line(text, before, words))
        for word in given:
            parts += ["&command=", quote_plus(word)]
        return "".join(parts)

    async def reach(self) -> None:
        """Nothing to do: the request for the command is the first one."""

    def unreached(self) -> FailedToStart:
        return FailedToStart(125, NOT_CONNECTED)

    async def open(self, command: str, *, half_close: bool = False, size: TerminalSize | None = None) -> Channel:
        """Raises ApiError, NoServer. `half_close`: end of input will be sent, which v4 does not support."""
        protocols = (V5,) if half_close else (V5, V4)
        opened = SocketChannel(await self.api.socket(command, (), protocols))
        if size is not None:
            await opened.resize(size)
        return opened

    def impossible(self, words: tuple[str, ...], command: str) -> FailedToStart | None:
        if any(len(os.fsencode(word)) > WORD_LIMIT for word in words):
            return FailedToStart(
                125,
                Message(
                    "{word}: an argument is longer than {limit} bytes; send it as input (-i)",
                    word=words[0],
                    limit=WORD_LIMIT,
                ),
            )
        if len(command) > QUERY_LIMIT:
            return FailedToStart(125, Message("{command}: {why}", command=words[0], why=_TOO_LONG))
        return None

    def refused(self, error: AtlctlError, *, half_close: bool = False) -> FailedToStart | Lost:
        if isinstance(error, NoServer) and error.asked:
            return Lost(error.message)
        if not isinstance(error, ApiError):
            return FailedToStart(255, error.message)
        text = error.text.strip()
        if isinstance(error, Denied):
            # Remove the pod's name, so that a thousand workers share one reason.
            text = text.replace(f'pods "{self.name}" is forbidden', "pods/exec is forbidden")
            return FailedToStart(
                125, _not_allowed(error.status, text, half_close), not_allowed=bool(text) or not half_close
            )
        if isinstance(error, NotFound):
            return FailedToStart(
                255, Message("not running: {why}", why=text or Message("pod {pod} is gone", pod=self.name))
            )
        if "does not have a host assigned" in text or "container not found" in text:
            return FailedToStart(255, Message("not running: {why}", why=text))
        if error.status == 431:
            return FailedToStart(125, _TOO_LONG)
        return FailedToStart(125 if error.status == 400 else 255, text or error.message)


def _not_allowed(status: int, text: str, half_close: bool) -> str:
    if status == 401:
        return Message("authentication failed: {why}", why=text or Message("the server does not know this user"))
    if half_close and not text:
        # The server answers an unsupported protocol with an empty 403.
        return Message("this server cannot signal the end of input to a command ({protocol} is needed)", protocol=V5)
    if text.endswith("is forbidden:"):
        # The server does not explain that "get" is granted and "create" is not.
        return Message("not allowed: {why} the role lacks the verb create on pods/exec", why=text)
    return Message("not allowed: {why}", why=text or Message("the server gives no reason"))


class SocketChannel:
    """See `atlctl.backends.guarded.execution.Channel`."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def receive(self) -> Output | Ended | None:
        while True:
            message = await self._socket.receive()
            if message is None:
                return None
            if (said := decode(message)) is not None:
                return said

    async def send(self, data: bytes) -> bool:
        try:
            for message in stdin_messages(data):
                await self._socket.send(message)
        except NoServer:
            return False
        return True

    async def close_stdin(self) -> None:
        if (message := close_stdin(self._socket.protocol)) is not None:
            await self._say(message)

    async def resize(self, size: TerminalSize) -> None:
        await self._say(resize(size))

    async def _say(self, message: bytes) -> None:
        try:
            await self._socket.send(message)
        except NoServer:
            return  # the next receive reports it

    async def close(self) -> None:
        await self._socket.close()


def decode(message: bytes) -> Output | Ended | None:
    """Decode a server message; None for an empty one (the first always is) and for an unknown one."""
    if len(message) < 2:
        return None
    channel = message[0]
    if channel == STDOUT:
        return Output("stdout", message[1:])
    if channel == STDERR:
        return Output("stderr", message[1:])
    if channel == STATUS:
        return Ended(outcome(message[1:]))
    return None


def outcome(status: bytes) -> Exited | FailedToStart | Lost:
    """The result of a command, from its Status. Lost if it cannot be read: never a success.

    An exit code above 128 may mean a signal or the end of the whole container; the server does not distinguish them.
    """
    found = _parsed(status)
    if found is None:
        return Lost(
            Message(
                "the server's last message was not a status: {text}", text=_shown(status.decode("utf-8", "replace"))
            )
        )
    if found.get("status") == "Success":
        return Exited(exit_code=0)
    if found.get("reason") == "NonZeroExitCode":
        code = _exit_code(found)
        return Lost(Message("the server gave no exit code")) if code is None else Exited(exit_code=code)
    text = found.get("message")
    text = text if isinstance(text, str) else ""
    lowered = text.lower()
    if _NOT_ENTERED in lowered:
        return FailedToStart(125, _NO_ENTRY)
    if any(words in lowered for words in _AT_START):
        code = next((code for words, code in _NOT_STARTED if words in lowered), 125)
        return FailedToStart(code, _shown(_last_words(text)))
    return Lost(_shown(text) or Message("the server did not report how the command ended"))


def _parsed(status: bytes) -> dict[str, Any] | None:
    if len(status) > _STATUS_LIMIT:
        return None
    try:
        found = json.loads(status)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _exit_code(found: dict[str, Any]) -> int | None:
    """The exit code of the first cause that has one, 1 to 255."""
    details = found.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode":
            text = cause.get("message")
            if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 4 and 0 < int(text) < 256:
                return int(text)
    return None


def _last_words(text: str) -> str:
    """The runtime's own message, without the prefixes "error executing command" of each layer."""
    for before in ("unable to start container process: ", "exec failed: "):
        if before in text:
            return text.rpartition(before)[2].removeprefix("exec: ")
    return text


def _shown(text: str) -> str:
    return text if len(text) <= _REASON_LIMIT else text[:_REASON_LIMIT] + "..."


def stdin_messages(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(data), CHUNK):
        yield b"".join((b"\0", view[start : start + CHUNK]))


def close_stdin(protocol: str | None) -> bytes | None:
    """The message that closes the command's stdin; None if the protocol has none (v4)."""
    return bytes((CLOSE, STDIN)) if protocol == V5 else None


def resize(size: TerminalSize) -> bytes:
    return bytes((RESIZE,)) + json.dumps({"Width": size.columns, "Height": size.rows}).encode()
