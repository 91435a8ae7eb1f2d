"""The closing summary of `exec`: which workers ended how, by folded range."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Sequence

from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.jobs.naming import fold_names
from atlctl.render.sanitize import clean

#: Different reasons that are told for one way to end; a thousand hosts may give a thousand texts.
_REASONS = 8

_ORDER = (EndKind.EXITED, EndKind.FAILED_TO_START, EndKind.TIMEOUT, EndKind.LOST, EndKind.CANCELLED)
_LABELS = {
    EndKind.FAILED_TO_START: "failed to start",
    EndKind.TIMEOUT: "timed out",
    EndKind.LOST: "lost",
    EndKind.CANCELLED: "cancelled",
}


def outcome_label(outcome: Outcome) -> str:
    """How a command ended, in a few words and without the reason: `ok`, `exit 1`, `killed by SIGKILL`, `lost`."""
    if outcome.kind is not EndKind.EXITED:
        return _LABELS[outcome.kind]
    if outcome.signal is None:
        return "ok" if outcome.ok else f"exit {outcome.exit_code}"
    try:
        return f"killed by {signal.Signals(outcome.signal).name}"
    except ValueError:
        return f"killed by signal {outcome.signal}"


def folded(names: Iterable[str]) -> str:
    """`worker-[0-2] (3)`, cleaned."""
    kept = list(names)
    return f"{clean(fold_names(kept))} ({len(kept)})"


#: Of a command that exited: processes that it left behind hold its output open, and are not waited for.
LATER = "later output not shown"


def summary_lines(outcomes: Sequence[Outcome], truncated: Collection[str] = ()) -> list[str]:
    """One line for each way to end, then what needs attention. `truncated`: more workers whose output is not whole."""
    groups: dict[tuple[int, int, str], dict[str, list[str]]] = {}
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
            lines.append(f"{label}: {folded(names)}" + (f": {clean(reason)}" if reason else ""))
        rest = [name for _, names in by_size[len(told) :] for name in names]
        if rest:
            lines.append(f"{label}: {folded(rest)}: other reasons")
    behind = {outcome.worker.name for outcome in outcomes if outcome.truncated and outcome.kind is EndKind.EXITED}
    cut = {outcome.worker.name for outcome in outcomes if outcome.truncated} - behind | set(truncated)
    for label, chosen in (
        ("not guarded", [o for o in outcomes if o.guarded is False]),
        ("may still run", [o for o in outcomes if o.may_still_run]),
        ("output truncated", [o for o in outcomes if o.worker.name in cut]),
        (LATER, [o for o in outcomes if o.worker.name in behind]),
    ):
        if chosen:
            lines.append(f"{label}: {folded(o.worker.name for o in chosen)}")
    return lines
