"""What a client may ask for. Whatever else comes over the socket is refused here, and never ends the supervisor."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

#: Bytes of one request at most. The kernel takes command lines of 6 MiB.
MAX_MESSAGE = 16 * 1024 * 1024
#: What a launcher says when it has taken note of the start.
KEEP = b"k"


class Exec(NamedTuple):
    """Run `argv` in `worker`, on the descriptors that came along. `token` marks all processes of one run."""

    worker: str
    argv: list[str]
    token: str
    tty: bool
    term: str


class End(NamedTuple):
    """End the command of this number: SIGTERM, `grace` seconds later SIGKILL."""

    grace: float


class Stop(NamedTuple):
    """End these workers: SIGTERM, `grace` seconds later SIGKILL."""

    workers: list[str]
    grace: float


class Message(NamedTuple):
    """One request for the job `uid`, with `descriptors` beside it. `request` None: of a kind that is unknown."""

    number: int
    uid: str
    descriptors: int
    request: Exec | End | Stop | None


def parse(line: bytes) -> Message | None:
    """The message in a line, None where it is none."""
    try:
        raw = json.loads(line)
        return Message(_whole(raw["id"]), _text(raw["uid"]), _whole(raw["fds"]), _request(raw))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _request(raw: dict[str, Any]) -> Exec | End | Stop | None:
    if raw["op"] == "exec":
        argv = [_text(word) for word in raw["argv"]]
        if not argv:
            raise ValueError("no command")
        return Exec(_text(raw["worker"]), argv, _text(raw["token"]), bool(raw["tty"]), _text(raw["term"]))
    if raw["op"] == "end":
        return End(_seconds(raw["grace"]))
    if raw["op"] == "stop":
        return Stop([_text(name) for name in raw["workers"]], _seconds(raw["grace"]))
    return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("no whole number")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise TypeError("no span of time")
    return float(value)
