"""Opens execs in one container: the request, what is refused before it is made, and refusals in clear words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import quote, quote_plus

from atlctl.backends.base import FailedToStart, Lost
from atlctl.backends.kubernetes import frames, guard
from atlctl.backends.kubernetes.api import Api, ApiError, Missing, NoServer, Refused, Socket
from atlctl.jobs.errors import AtlctlError

#: Bytes of one word: the kernel takes 128 KiB less one (MAX_ARG_STRLEN), its error comes from inside the container.
WORD_LIMIT = 128 * 1024 - 1
#: Bytes of a request's query: the API server takes 1 MiB of headers, and says 431 to more.
QUERY_LIMIT = 1_000_000

_TEXTS = (guard.GUARD, guard.INPUT, guard.TERMINAL)
_QUOTED = {text: quote_plus(text) for text in (*_TEXTS, *map(guard.decoding, _TEXTS), guard.WATCH)}


class Container:
    """One container of one pod, where execs are opened."""

    def __init__(self, api: Api, namespace: str, pod: str, container: str | None) -> None:
        self.api = api
        self.pod = pod
        named = f"container={quote_plus(container)}&" if container else ""
        self._begin = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec?{named}stdout=true"

    def path(
        self, words: Sequence[bytes], text: str | None, before: Sequence[str] = (), *, stdin: bool, tty: bool = False
    ) -> str:
        """The request for `words`; under the shell text `text`, whose arguments `before` and they are then."""
        given: Sequence[bytes | str] = words
        if text is not None and (plain := guard.escaped(words)) is not None:
            text, given = guard.decoding(text), plain
        parts = [self._begin, "&tty=true" if tty else "&stderr=true", "&stdin=true" if stdin else ""]
        if text is not None:
            parts += ["&command=sh&command=-c&command=", _QUOTED[text], "&command=sh"]
        for word in (*before, *given):
            parts += ["&command=", quote_plus(word)]
        return "".join(parts)

    async def open(self, path: str, *, half_close: bool = False) -> Socket:
        """Raises ApiError, NoServer. `half_close`: the end of input must be tellable, which v4 cannot."""
        return await self.api.socket(path, (), (frames.V5,) if half_close else (frames.V5, frames.V4))


class Watcher:
    """An exec that ends a command whose own exec has no watcher, see guard.py."""

    def __init__(self, socket: Socket, mark: str) -> None:
        self._socket = socket
        self._words = guard.Words(mark)
        self._heard: list[str] = []

    @classmethod
    async def begin(cls, container: Container, mark: str, start: tuple[str, str], *, terminal: bool) -> Watcher | None:
        """A watcher that reads, None where none can be had."""
        path = container.path((), guard.WATCH, (mark, *start, "HUP" if terminal else ""), stdin=True)
        try:
            watcher = cls(await container.open(path), mark)
        except AtlctlError:
            return None
        if await watcher._hear("R"):
            return watcher
        await watcher.close()
        return None

    async def end(self, tenths: int) -> bool:
        """End the command. True when nothing is left of it."""
        return await self._say(f"{tenths}\n") and await self._hear("G")

    async def leave(self) -> None:
        """Go, and let live what the command left behind."""
        await self._say("q\n")
        await self.close()

    async def close(self) -> None:
        """Without `leave`, this ends the command."""
        await self._socket.close()

    async def _say(self, line: str) -> bool:
        try:
            await self._socket.send(b"\0" + line.encode())
        except NoServer:
            return False
        return True

    async def _hear(self, word: str) -> bool:
        while word not in self._heard:
            message = await self._socket.receive()
            if message is None:
                return False
            if message[:1] == b"\2":
                self._heard += self._words.feed(message[1:])[1]
            elif message[:1] == b"\3":
                return False
        return True


def impossible(words: tuple[str, ...], path: str) -> FailedToStart | None:
    """Why no request is made for these words, None where one can be."""
    if not words:
        return FailedToStart(125, "no command")
    if any("\0" in word for word in words):
        return FailedToStart(125, f"{words[0]!r}: a word holds a NUL byte")
    if any(len(os.fsencode(word)) > WORD_LIMIT for word in words):
        return FailedToStart(125, f"{words[0]}: a word is longer than {WORD_LIMIT} bytes; send it as input (-i)")
    if len(path) > QUERY_LIMIT:
        return FailedToStart(125, f"{words[0]}: the command is longer than the API server takes; send it as input (-i)")
    return None


def refused(error: AtlctlError, pod: str, *, half_close: bool = False) -> FailedToStart | Lost:
    """What a refused handshake means for the command, which never ran; or may have, where no answer came."""
    if isinstance(error, NoServer) and error.asked:
        return Lost(error.message)
    if not isinstance(error, ApiError):
        return FailedToStart(255, error.message)
    text = error.text.strip()
    if isinstance(error, Refused):
        # Without the pod's name, so that a thousand workers have one reason.
        text = text.replace(f'pods "{pod}" is forbidden', "pods/exec is forbidden")
        return FailedToStart(125, _not_allowed(error.status, text, half_close))
    if isinstance(error, Missing):
        return FailedToStart(255, f"not running: {text or f'pod {pod} is gone'}")
    if "does not have a host assigned" in text or "container not found" in text:
        return FailedToStart(255, f"not running: {text}")
    if error.status == 431:
        return FailedToStart(125, "the command is longer than the API server takes; send it as input (-i)")
    return FailedToStart(125 if error.status == 400 else 255, text or error.message)


def _not_allowed(status: int, text: str, half_close: bool) -> str:
    if status == 401:
        return f"not signed in: {text or 'the server knows no such user'}"
    if half_close and not text:
        # The server's answer to a protocol that it does not speak is a 403 without a word.
        return f"this server cannot tell a command the end of its input ({frames.V5} is needed)"
    if text.endswith("is forbidden:"):
        # The server gives no explanation where "get" is granted and "create" is not.
        return f"not allowed: {text} the role lacks the verb create on pods/exec"
    return f"not allowed: {text or 'the server gives no reason'}"
