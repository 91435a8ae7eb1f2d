"""torchelastic's error files (`error.json`), as every release and the known other writers leave them.

`@record` writes `{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "...",
"timestamp": "1763660699"}}}`; torchrun adds `errorCode` beside the inner `message`. Others write a
plain string: `{"message": "text", "timestamp": 123}`. The content comes from the job: hostile
until shown to be plain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atlctl.diagnosis.text import decode, without_surrogates
from atlctl.diagnosis.tracebacks import HEADER, Frame, exception_type, read_exception, user_frame
from atlctl.jobs.fields import parse_json

#: Bytes of an error file that is still read.
SIZE_LIMIT = 4 * 1024 * 1024
#: Characters that are kept of a message and of a call stack (its end, where the exception stands).
TEXT_LIMIT = 16_384


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What one process wrote down about its own exception.

    `time` is seconds since the epoch by the worker's clock, whole seconds, None where the file
    has none (torchelastic then takes 0 and wrongly lets that entry win). `exit_code` is there only
    in the copy that torchrun makes.
    """

    message: str
    exception: str | None
    traceback: str
    frame: Frame | None
    time: float | None
    exit_code: int | None


def parse_error_file(data: bytes) -> tuple[ErrorRecord | None, str]:
    """The record and an empty string, or None and the reason why it cannot be read. Never raises."""
    if len(data) > SIZE_LIMIT:
        return None, f"larger than {SIZE_LIMIT} bytes"
    if not data.strip():
        return None, "empty"
    try:
        document = parse_json(decode(data))
    except RecursionError:
        return None, "nested too deeply"
    except ValueError as error:
        return None, f"not valid JSON (cut off?): {str(error)[:200]}"
    if not isinstance(document, dict):
        return None, "not a JSON object"
    outer = document.get("message")
    inner: Mapping[str, Any] = outer if isinstance(outer, dict) else {}
    text = inner.get("message") if inner else outer
    message = _text(text)[:TEXT_LIMIT].strip()
    extra = _mapping(inner.get("extraInfo")) or _mapping(document.get("extraInfo"))
    traceback = _text(extra.get("py_callstack"))[-TEXT_LIMIT:].rstrip()
    if not message and not traceback:
        return None, "no message"
    stack = traceback.splitlines() or message.splitlines()
    line, exception = read_exception(stack)
    if not traceback and not message.startswith(HEADER):
        # A plain message starts with its exception, whatever follows on further lines.
        line = next(text.strip() for text in stack if text.strip())
        exception = exception_type(line)
    return (
        ErrorRecord(
            message=line,
            exception=exception,
            traceback=traceback,
            frame=user_frame(stack),
            time=_first_time(extra, inner, document),
            exit_code=_whole(inner.get("errorCode", document.get("errorCode"))),
        ),
        "",
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return without_surrogates(value) if isinstance(value, str) else ""


def _first_time(*places: Mapping[str, Any]) -> float | None:
    for place in places:
        value = place.get("timestamp")
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        try:
            seconds = float(value)
        except (ValueError, OverflowError):
            continue
        # 0 is torchelastic's word for "unknown"; 1e11 s is the year 5138.
        if math.isfinite(seconds) and 0 < seconds < 1e11:
            return seconds
    return None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**31:
        return None
    return value
