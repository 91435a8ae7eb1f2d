"""The messages of an exec, v5.channel.k8s.io and v4.channel.k8s.io, to and from bytes. Nothing raises on bytes.

A message is one byte, the channel, and data. v5 adds the end of one stream: 255 and its channel. How the command ended
stands in a Status (JSON) on channel 3 and nowhere else: the server closes with code 1000 whatever happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from atlctl.backends.base import Exited, FailedToStart, Lost, Output, TerminalSize
from atlctl.backends.guarded.channel import Ended

V5 = "v5.channel.k8s.io"
V4 = "v4.channel.k8s.io"

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255

#: Bytes of input in one message; the server itself sends 32 KiB at most.
CHUNK = 32 * 1024
#: A Status is a few hundred bytes. What is longer is none.
_STATUS_LIMIT = 64 * 1024
#: Characters of the server's words that are kept.
_REASON_LIMIT = 500

#: What container runtimes say of a command that never ran, and the exit code of a shell for it.
_NOT_STARTED = (
    ("executable file not found", 127),
    ("no such file or directory", 127),
    ("permission denied", 126),
    ("exec format error", 126),
    ("is a directory", 126),
    ("not a directory", 126),
    ("argument list too long", 126),
)
#: What runtimes say when they could not even enter the container, and what that means.
_NOT_ENTERED = "error executing setns process"
_NO_ENTRY = "the container could not be entered: it has just ended or is ending, or has no room for one more process"
#: Words that place the failure before the start of the command.
_AT_START = ("unable to start container process", "failed to start exec", "exec failed", "failed to exec in container")


def decode(message: bytes) -> Output | Ended | None:
    """What a message of the server says; None for an empty one (the first always is) and for what is not understood."""
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
    """How a command ended, from the Status. What cannot be read is Lost: never a success.

    An exit code above 128 may mean a signal, or the end of the whole container: the server cannot tell them apart.
    """
    found = _parsed(status)
    if found is None:
        return Lost(f"the server's last word was no status: {_shown(status.decode('utf-8', 'replace'))}")
    if found.get("status") == "Success":
        return Exited(exit_code=0)
    if found.get("reason") == "NonZeroExitCode":
        code = _exit_code(found)
        return Lost("the server named no exit code") if code is None else Exited(exit_code=code)
    text = found.get("message")
    text = text if isinstance(text, str) else ""
    lowered = text.lower()
    if _NOT_ENTERED in lowered:
        return FailedToStart(125, _NO_ENTRY)
    if any(words in lowered for words in _AT_START):
        code = next((code for words, code in _NOT_STARTED if words in lowered), 125)
        return FailedToStart(code, _shown(_last_words(text)))
    return Lost(_shown(text) or "the server did not say how the command ended")


def _parsed(status: bytes) -> dict[str, Any] | None:
    if len(status) > _STATUS_LIMIT:
        return None
    try:
        found = json.loads(status)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _exit_code(found: dict[str, Any]) -> int | None:
    """The code of the first cause that has one, 1 to 255."""
    details = found.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode":
            text = cause.get("message")
            if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 4 and 0 < int(text) < 256:
                return int(text)
    return None


def _last_words(text: str) -> str:
    """The runtime's own words, without the layers that each add their own "error executing command"."""
    for before in ("unable to start container process: ", "exec failed: "):
        if before in text:
            return text.rpartition(before)[2].removeprefix("exec: ")
    return text


def _shown(text: str) -> str:
    return text if len(text) <= _REASON_LIMIT else text[:_REASON_LIMIT] + "..."


def stdin(data: bytes) -> Iterator[bytes]:
    """Messages that carry `data` to the command's stdin."""
    view = memoryview(data)
    for start in range(0, len(data), CHUNK):
        yield b"".join((b"\0", view[start : start + CHUNK]))


def close_stdin(protocol: str | None) -> bytes | None:
    """The message that ends the command's stdin, None where the protocol has none (v4)."""
    return bytes((CLOSE, STDIN)) if protocol == V5 else None


def resize(size: TerminalSize) -> bytes:
    """The message that gives the terminal its size."""
    return bytes((RESIZE,)) + json.dumps({"Width": size.columns, "Height": size.rows}).encode()
