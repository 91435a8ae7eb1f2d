"""The closing summary of `exec`: which workers ended how, by folded range."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Sequence

from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.i18n import Message
from atlctl.jobs.naming import fold_names
from atlctl.render.sanitize import clean

#: Different reasons that are told for one way to end; a thousand hosts may give a thousand texts.
_REASONS = 8

_ORDER = (EndKind.EXITED, EndKind.FAILED_TO_START, EndKind.TIMEOUT, EndKind.LOST, EndKind.CANCELLED)
_LABELS = {
    EndKind.FAILED_TO_START: Message("failed to start"),
    EndKind.TIMEOUT: Message("timed out"),
    EndKind.LOST: Message("lost"),
    EndKind.CANCELLED: Message("cancelled"),
}


def outcome_label(outcome: Outcome) -> Message:
    """How a command ended, in a few words and without the reason: `ok`, `exit 1`, `killed by SIGKILL`, `lost`."""
    if outcome.kind is not EndKind.EXITED:
        return _LABELS[outcome.kind]
    if outcome.signal is None:
        return Message("ok") if outcome.ok else Message("exit {code}", code=outcome.exit_code)
    try:
        return Message("killed by {signal}", signal=signal.Signals(outcome.signal).name)
    except ValueError:
        return Message("killed by signal {number}", number=outcome.signal)


def folded(names: Iterable[str]) -> str:
    """`worker-[0-2] (3)`, cleaned."""
    kept = list(names)
    return f"{clean(fold_names(kept))} ({len(kept)})"


#: Of a command that exited: processes that it left behind hold its output open, and are not waited for.
LATER = Message("later output not shown")
TRUNCATED = Message("output truncated")


def ended(label: str, names: Iterable[str], reason: str = "") -> Message:
    """A line about workers that are alike: `lost: worker-[0-2] (3): no answer`."""
    if reason:
        return Message("{label}: {workers}: {why}", label=label, workers=folded(names), why=reason)
    return Message("{label}: {workers}", label=label, workers=folded(names))


def summary_lines(outcomes: Sequence[Outcome], truncated: Collection[str] = ()) -> list[Message]:
    """One line for each way to end, then what needs attention. `truncated`: more workers whose output is not whole."""
    groups: dict[tuple[int, int, Message], dict[str, list[str]]] = {}
    for outcome in outcomes:
        key = (
            _ORDER.index(outcome.kind),
            outcome.code if outcome.kind is EndKind.EXITED else 0,
            outcome_label(outcome),
        )
        groups.setdefault(key, {}).setdefault(outcome.reason, []).append(outcome.worker.name)
    lines = []
    for (_, _, label), reasons in sorted(groups.items()):
        by_size = sorted(reasons.items(), key=lambda item: -len(item[1]))
        told = by_size if len(by_size) <= _REASONS else by_size[: _REASONS - 1]
        for reason, names in told:
            lines.append(ended(label, names, reason))
        rest = [name for _, names in by_size[len(told) :] for name in names]
        if rest:
            lines.append(ended(label, rest, Message("other reasons")))
    behind = {outcome.worker.name for outcome in outcomes if outcome.truncated and outcome.kind is EndKind.EXITED}
    cut = {outcome.worker.name for outcome in outcomes if outcome.truncated} - behind | set(truncated)
    for label, chosen in (
        (Message("not guarded"), [o for o in outcomes if o.guarded is False]),
        (Message("may still run"), [o for o in outcomes if o.may_still_run]),
        (TRUNCATED, [o for o in outcomes if o.worker.name in cut]),
        (LATER, [o for o in outcomes if o.worker.name in behind]),
    ):
        if chosen:
            lines.append(ended(label, (o.worker.name for o in chosen)))
    return lines
