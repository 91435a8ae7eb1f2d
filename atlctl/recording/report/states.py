"""Changes of workers' states, as a recorder noted them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from atlctl.diagnosis.text import decode, without_surrogates
from atlctl.jobs.fields import parse_json
from atlctl.recording.events import lines_within, seconds
from atlctl.recording.recorder.happenings import STATES

#: Of one file, its last ones.
MOST = 20_000
_TEXT = 1_000


@dataclass(frozen=True, slots=True)
class Change:
    """A worker's state from `time` on, seconds since the epoch. Texts are hostile."""

    time: float
    worker: str
    state: str
    reason: str = ""
    message: str = ""


def read_states(folder: str) -> list[Change]:
    """The changes in a folder's `states.jsonl`, in its order; lines that are none are passed over."""
    try:
        fd = os.open(os.path.join(folder, STATES), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    found = []
    with open(fd, "rb") as file:
        for line in lines_within(file):
            try:
                item = parse_json(decode(line))
            except (ValueError, RecursionError):
                continue
            time = seconds(item.get("time")) if isinstance(item, dict) else None
            if time is not None and isinstance(item.get("worker"), str):
                texts = [_text(item.get(key)) for key in ("worker", "state", "reason", "message")]
                found.append(Change(time, *texts))
    return found[-MOST:]


def _text(value: object) -> str:
    return without_surrogates(value[:_TEXT]) if isinstance(value, str) else ""
