"""Opens execs in one container: the request, what is refused before it is made, and refusals in clear words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import quote, quote_plus

from atlctl.backends.base import FailedToStart, Lost, TerminalSize
from atlctl.backends.guarded import guard
from atlctl.backends.guarded.channel import Channel
from atlctl.backends.kubernetes import frames
from atlctl.backends.kubernetes.api import Api, ApiError, Missing, NoServer, Refused
from atlctl.backends.kubernetes.stream import SocketChannel
from atlctl.jobs.errors import AtlctlError

#: Bytes of one word: the kernel takes 128 KiB less one (MAX_ARG_STRLEN), its error comes from inside the container.
WORD_LIMIT = 128 * 1024 - 1
#: Bytes of a request's query: the API server takes 1 MiB of headers, and says 431 to more.
QUERY_LIMIT = 1_000_000

_TOO_LONG = "the command is longer than the API server takes; send it as input (-i)"
_TEXTS = (guard.GUARD, guard.INPUT, guard.TERMINAL)
_QUOTED = {text: quote_plus(text) for text in (*_TEXTS, *map(guard.decoding, _TEXTS), guard.WATCH, guard.LOOK)}


class Container:
    """One container of one pod, where execs are opened. See `atlctl.backends.guarded.channel.Place`."""

    def __init__(self, api: Api, namespace: str, pod: str, container: str | None) -> None:
        self.api = api
        self.name = pod
        named = f"container={quote_plus(container)}&" if container else ""
        self._begin = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec?{named}stdout=true"

    def command(
        self, words: Sequence[bytes], text: str | None, before: Sequence[str] = (), *, stdin: bool, tty: bool = False
    ) -> str:
        """The request for `words`; under the shell text `text`, whose arguments `before` and they are then."""
        given: Sequence[bytes | str] = words
        if text is not None:
            text, given = guard.carried(text, words)
        parts = [self._begin, "&tty=true" if tty else "&stderr=true", "&stdin=true" if stdin else ""]
        if text is not None:
            parts += ["&command=sh&command=-c&command=", _QUOTED[text], "&command=sh"]
        for word in (*before, *given):
            parts += ["&command=", quote_plus(word)]
        return "".join(parts)

    async def reach(self) -> None:
        """The request for the command is the first thing that is sent."""

    async def open(self, command: str, *, half_close: bool = False, size: TerminalSize | None = None) -> Channel:
        """Raises ApiError, NoServer. `half_close`: the end of input must be tellable, which v4 cannot."""
        protocols = (frames.V5,) if half_close else (frames.V5, frames.V4)
        opened = SocketChannel(await self.api.socket(command, (), protocols))
        if size is not None:
            await opened.resize(size)
        return opened

    def impossible(self, words: tuple[str, ...], command: str) -> FailedToStart | None:
        if any(len(os.fsencode(word)) > WORD_LIMIT for word in words):
            return FailedToStart(125, f"{words[0]}: a word is longer than {WORD_LIMIT} bytes; send it as input (-i)")
        if len(command) > QUERY_LIMIT:
            return FailedToStart(125, f"{words[0]}: {_TOO_LONG}")
        return None

    def refused(self, error: AtlctlError, *, half_close: bool = False) -> FailedToStart | Lost:
        if isinstance(error, NoServer) and error.asked:
            return Lost(error.message)
        if not isinstance(error, ApiError):
            return FailedToStart(255, error.message)
        text = error.text.strip()
        if isinstance(error, Refused):
            # Without the pod's name, so that a thousand workers have one reason.
            text = text.replace(f'pods "{self.name}" is forbidden', "pods/exec is forbidden")
            return FailedToStart(125, _not_allowed(error.status, text, half_close))
        if isinstance(error, Missing):
            return FailedToStart(255, f"not running: {text or f'pod {self.name} is gone'}")
        if "does not have a host assigned" in text or "container not found" in text:
            return FailedToStart(255, f"not running: {text}")
        if error.status == 431:
            return FailedToStart(125, _TOO_LONG)
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
