"""Parses `events.jsonl`: the platform's events while the job ran, one JSON object per line.

Each is in atlctl's format, `{"time", "worker", "node", "kind", "reason", "message"}`, or an unchanged Kubernetes event
of core/v1 or events.k8s.io/v1, also wrapped by `kubectl get events -w -o json --output-watch-events`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from atlctl.diagnosis.logline import decode
from atlctl.diagnosis.platform import Event
from atlctl.i18n import Message
from atlctl.jobs import fields, podnews
from atlctl.jobs.statedir import LINE_LIMIT

#: Limits: events of a file (the last are kept), remarks about unreadable lines.
MAX_EVENTS = 20_000
MAX_REMARKS = 20
#: Characters of a name and of a message. Kubernetes' limits are 253 and 1,024.
_NAME_LIMIT = 1_000
_MESSAGE_LIMIT = 4_096


def parse_events(lines: Iterable[bytes]) -> tuple[list[Event], list[str]]:
    """Events in file order, and remarks for the user about lines that cannot be read. Never raises."""
    events: deque[Event] = deque(maxlen=MAX_EVENTS)
    remarks: list[str] = []
    good = bad = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found, reason = _parse(line)
        if found is not None:
            good += 1
            events.append(found)
            continue
        bad += 1
        if bad <= MAX_REMARKS:
            remarks.append(Message("line {number}: {why}", number=number, why=reason))
    if bad > MAX_REMARKS:
        remarks.append(Message("{count} more lines are not events", count=bad - MAX_REMARKS))
    if good > MAX_EVENTS:
        remarks.append(
            Message(
                "more than {most} events: the first {count} were dropped",
                most=MAX_EVENTS,
                count=good - MAX_EVENTS,
            )
        )
    return list(events), remarks


def of_object(found: Mapping[str, Any]) -> Event:
    """Parses a Kubernetes event of core/v1 or events.k8s.io/v1."""
    return _of_kubernetes(found, fields.mapping(found.get("involvedObject")) or fields.mapping(found.get("regarding")))


def _parse(line: bytes) -> tuple[Event | None, str]:
    if len(line) > LINE_LIMIT:
        return None, Message("longer than {limit} bytes", limit=LINE_LIMIT)
    try:
        found = fields.parse_json(decode(line))
    except RecursionError:
        return None, Message("nested too deeply")
    except ValueError:
        return None, Message("not JSON (cut off?)")
    if not isinstance(found, dict):
        return None, Message("not a JSON object")
    inner = found.get("object")
    if isinstance(inner, dict) and isinstance(found.get("type"), str):
        found = inner
    about = fields.mapping(found.get("involvedObject")) or fields.mapping(found.get("regarding"))
    event = _of_kubernetes(found, about) if about else _own(found)
    return (event, "") if event.reason or event.message else (None, Message("neither a reason nor a message"))


def _own(found: Mapping[str, Any]) -> Event:
    time = fields.moment(found.get("time"))
    return Event(
        time,
        _name(found.get("worker")),
        _name(found.get("node")),
        _name(found.get("kind")) or "",
        _name(found.get("reason")) or "",
        _message(found.get("message")),
        time,
    )


def _of_kubernetes(found: Mapping[str, Any], about: Mapping[str, Any]) -> Event:
    kind = _name(about.get("kind")) or ""
    name = _name(about.get("name"))
    source = fields.mapping(found.get("source")) or fields.mapping(found.get("deprecatedSource"))
    series = fields.mapping(found.get("series"))
    # The last occurrence: for a repeated event, a controller increments the count of the existing one.
    times = (
        series.get("lastObservedTime"),
        found.get("lastTimestamp"),
        found.get("deprecatedLastTimestamp"),
        found.get("eventTime"),
        found.get("firstTimestamp"),
        found.get("deprecatedFirstTimestamp"),
        fields.mapping(found.get("metadata")).get("creationTimestamp"),
    )
    reason, message = (
        _name(found.get("reason")) or "",
        _message(found.get("message")) or fields.text(found.get("note"), _MESSAGE_LIMIT),
    )
    news = podnews.read(reason, message)
    last = next((moment for time in times if (moment := fields.moment(time)) is not None), None)
    begins = (fields.moment(found.get(key)) for key in ("firstTimestamp", "deprecatedFirstTimestamp", "eventTime"))
    return Event(
        last,
        name if kind == "Pod" else news.pod if news else None,
        name if kind == "Node" else _name(source.get("host")),
        kind,
        reason,
        message,
        next((moment for moment in begins if moment is not None), last),
    )


def _name(value: object) -> str | None:
    return fields.text(value, _NAME_LIMIT) or None


def _message(value: object) -> str:
    return fields.text(value, _MESSAGE_LIMIT)
