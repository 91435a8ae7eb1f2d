"""A diagnosis as JSON data. The fields are a contract: docs/en/errors.md has the meaning of each one."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from atlctl.diagnosis.logline import When
from atlctl.diagnosis.result import Cause, Diagnosis, Followed, Proof, RankEnd, Traceback, WorkerReport
from atlctl.diagnosis.telling.guide import Guide
from atlctl.diagnosis.tracebacks import Frame

#: The most fraction digits of a second that are shown.
_MAX_DIGITS = 6
_NO_YEAR = "2000-"


def to_data(diagnosis: Diagnosis, guide: Guide, *, ranks: bool = False) -> dict[str, Any]:
    """The JSON data of a diagnosis. Ranks are global, lines count from 1, empty lists are included. `ranks`: include
    the end of each rank."""
    return {
        "verdict": str(diagnosis.verdict),
        "root_causes": [_cause(item, guide) for item in diagnosis.root_causes],
        "candidates": [_cause(item, guide) for item in diagnosis.candidates],
        "cascade": [_followed(item) for item in diagnosis.cascade],
        "workers": [_worker(item) for item in diagnosis.workers],
        "earlier": [_cause(item, guide) for item in diagnosis.earlier],
        "remarks": list(diagnosis.remarks),
        "ranks": [_rank(item) for item in diagnosis.ranks] if ranks else None,
    }


def utc(when: When | None) -> str | None:
    """RFC 3339 in UTC with the digits of the clock's resolution; None if the time is unknown.

    Further digits are truncated, not rounded, as in the log. A time in the year 2000 is unknown, too: it is set if no
    line of the job names a year.
    """
    if when is None:
        return None
    digits = fraction_digits(when.resolution)
    step = 10**digits
    try:
        # Half a microsecond more: a float may be just below its original time stamp.
        ticks = math.floor((round(when.seconds, _MAX_DIGITS) + 5e-7) * step)
        whole = datetime.fromtimestamp(ticks // step, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return None
    if whole.startswith(_NO_YEAR):
        return None
    return f"{whole}.{ticks % step:0{digits}d}Z" if digits else f"{whole}Z"


def fraction_digits(resolution: float) -> int:
    """The number of fraction digits for a clock of this resolution in seconds: 0 for 1 s, 3 for 1 ms."""
    if not 0 < resolution < 1:
        return 0
    return min(_MAX_DIGITS, math.ceil(-math.log10(resolution) - 1e-9))


def _cause(item: Cause, guide: Guide) -> dict[str, Any]:
    return {
        "worker": item.worker,
        "rank": item.rank,
        "local_rank": item.local_rank,
        "attempt": item.attempt,
        "node": item.node,
        "host_ip": item.host_ip,
        "host": item.host,
        "gpu": None if item.gpu is None else {"index": item.gpu.index, "uuid": item.gpu.uuid, "pci": item.gpu.pci},
        "category": item.category,
        "signature": item.signature or None,
        "exit_code": item.exit_code,
        "signal": item.signal,
        "exception": item.exception,
        "message": item.message,
        "detail": item.detail,
        "frame": None if item.frame is None else _place(item.frame),
        "time": utc(item.time),
        "confidence": str(item.confidence),
        "why": item.why,
        "evidence": [_proof(proof) for proof in item.proofs],
        "advice": guide.advice(item, "en"),
        "traceback": None if item.traceback is None else _traceback(item.traceback),
        "last_lines": [_proof(proof) for proof in item.last_lines],
    }


def _place(frame: Frame) -> dict[str, Any]:
    return {"file": frame.path, "line": frame.line, "function": frame.function}


def _traceback(item: Traceback) -> dict[str, Any]:
    return {
        "exception": item.exception or None,
        "message": item.message,
        "frames": [{**_place(frame), "source": frame.source or None, "own": frame.own} for frame in item.frames],
        "omitted": item.omitted,
        "earlier": [
            {
                "exception": raised.exception,
                "message": raised.message,
                "frame": None if raised.frame is None else _place(raised.frame),
            }
            for raised in item.earlier
        ],
        "evidence": _proof_or_none(item.proof),
    }


def _rank(item: RankEnd) -> dict[str, Any]:
    return {
        "worker": item.worker,
        "rank": item.rank,
        "local_rank": item.local_rank,
        "part": item.part,
        "exit_code": item.exit_code,
        "signal": item.signal,
        "said": item.said,
        "time": utc(item.time),
        "evidence": _proof_or_none(item.proof),
    }


def _followed(item: Followed) -> dict[str, Any]:
    return {
        "reason": item.reason,
        "count": item.count,
        "workers": list(item.workers),
        "ranks": list(item.ranks),
        "first_time": utc(item.first),
        "evidence": _proof_or_none(item.proof),
    }


def _worker(item: WorkerReport) -> dict[str, Any]:
    return {
        "name": item.worker,
        "index": item.index,
        "part": item.part,
        "said": item.said,
        "first_time": utc(item.first),
        "processes": item.processes,
        "failed": item.failed,
        "rounds": item.rounds,
        "clock_skew": None if item.skew is None else round(item.skew, 3),
        "evidence": _proof_or_none(item.proof),
    }


def _proof_or_none(item: Proof | None) -> dict[str, Any] | None:
    return None if item is None else _proof(item)


def _proof(item: Proof) -> dict[str, Any]:
    return {"worker": item.worker, "line": item.line_no, "text": item.text, "file": item.file}
