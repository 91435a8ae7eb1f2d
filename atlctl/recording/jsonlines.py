"""JSON log lines: the text in them, and the pod they came from.

Loki's `logcli -o jsonl` writes `{"labels": {"pod": ...}, "line": ..., "timestamp": ...}`; container runtimes and log
shippers (Docker, Fluent Bit, Filebeat, cloud logging) each have keys of their own. A worker may also print JSON
itself, with tracebacks in fields beside the message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from atlctl.diagnosis.reading.embedded import embedded_in, rank_in
from atlctl.diagnosis.text import decode, without_surrogates
from atlctl.diagnosis.tracebacks import HEADER

#: Paths of keys at which the pod's name stands, and keys of the text, in falling order.
_POD = (
    ("labels", "pod"),
    ("labels", "pod_name"),
    ("kubernetes", "pod_name"),
    ("kubernetes", "pod", "name"),
    ("resource", "labels", "pod_name"),
    ("pod",),
    ("pod_name",),
)
_TEXT = ("line", "log", "message", "msg", "textPayload")
#: Keys of a program's own logger, whose levels are the program's; those of shippers are of the stream.
_OWN_TEXT = ("message", "msg")
_LEVELS = (("level",), ("levelname",), ("severity",), ("log.level",), ("log", "level"))
_BELOW_ERROR = frozenset({"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING"})
_TIME = ("timestamp", "@timestamp", "time", "ts")
#: Kubernetes' limit for names is 253.
_NAME_LIMIT = 253


@dataclass(frozen=True, slots=True)
class JsonLine:
    """The text of one JSON line, cut into lines. `time` is its stamp as text, empty where it has none."""

    pod: str | None
    text: tuple[bytes, ...]
    time: str


def unwrap(line: bytes) -> JsonLine | None:
    """What a JSON line holds; None where it is no object, or has no text under a known key. Never raises."""
    try:
        found = json.loads(decode(line))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    key = next((key for key in _TEXT if isinstance(found.get(key), str)), None)
    if key is None:
        return None
    text: str = found[key]
    pod = next((name for path in _POD if (name := _at(found, path))), None)
    time = next((found[key] for key in _TIME if isinstance(found.get(key), str)), "")
    lines = without_surrogates(text).encode().removesuffix(b"\n").split(b"\n")
    level = next((level for path in _LEVELS if (level := _at(found, path))), "").upper() if key in _OWN_TEXT else ""
    told = embedded_in({key: value for key, value in found.items() if value != text})
    if level in _BELOW_ERROR or (level and told is not None):
        # Else an error that was handled, and told of with a warning or beside its traceback, would read as one that
        # ended the process.
        lines[0] = f"{level} ".encode() + lines[0]
    elif text.startswith(HEADER) and (rank := rank_in(found)) is not None:
        lines = [b"[rank%d]: " % rank + line for line in lines]
    if told is not None:
        # A program's own logger: the traceback stands in a field of its own, and whose it is in another.
        mark = b"" if told.rank is None else b"[rank%d]: " % told.rank
        lines += [mark + part.encode() for trace in told.tracebacks for part in trace]
    return JsonLine(without_surrogates(pod) if pod else None, tuple(lines), time)


def _at(found: Mapping[str, object], path: Sequence[str]) -> str | None:
    value: object = found
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) and 0 < len(value) <= _NAME_LIMIT else None


def newest_first(times: Sequence[str]) -> bool:
    """True where stamps (ISO 8601, compared to the second) only fall, as `logcli` prints without `--forward`."""
    seconds = [time[:19] for time in times if time]
    steps = list(pairwise(seconds))
    return len(steps) > 1 and any(a > b for a, b in steps) and all(a >= b for a, b in steps)
