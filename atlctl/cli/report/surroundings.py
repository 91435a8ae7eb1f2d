"""What stands around a failure: states, events, versions, machines, files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from atlctl.diagnosis.platform import Event
from atlctl.jobs.naming import fold_names
from atlctl.recording.manifest import Manifest
from atlctl.recording.report.states import Change
from atlctl.render.html.model import Table
from atlctl.render.table import rfc3339

#: Rows of one table, and those that are open at once.
MOST, OPEN = 500, 30
_TEXT = 500
_SMOKE = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "driver", "gpus": "GPU"}


def states(changes: Sequence[Change], words: Mapping[str, str]) -> Table | None:
    """Each change, alike ones of one second together."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for item in changes:
        groups.setdefault((rfc3339(item.time), item.state, item.reason, item.message[:_TEXT]), []).append(item.worker)
    rows = [(key[0], fold_names(names), *key[1:]) for key, names in groups.items()]
    return _table(("time", "workers", "state", "reason", "message"), rows, words)


def events(items: Sequence[Event], words: Mapping[str, str]) -> Table | None:
    """What the platform said, the same words of one second together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for item in sorted(items, key=lambda item: item.time or 0.0):
        key = (rfc3339(item.time) if item.time is not None else "", item.reason, item.message[:_TEXT])
        found.setdefault(key, []).append(item.worker or item.node or item.kind)
    rows = [(key[0], fold_names(who), *key[1:], str(len(who)) if len(who) > 1 else "") for key, who in found.items()]
    return _table(("time", "about", "reason", "message", "count"), rows, words, numbers=frozenset((4,)))


def environment(
    versions: Mapping[str, Mapping[str, str]], smoke: Mapping[str, Mapping[str, Any]], words: Mapping[str, str]
) -> Table | None:
    """Versions by name, and who has which; from logs, and from the smoke test. Both by worker."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for worker, told in versions.items():
        for name, value in told.items():
            found.setdefault((name, value, words["from logs"]), []).append(worker)
    for worker, facts in smoke.items():
        for key, name in _SMOKE.items():
            if facts.get(key) not in (None, "", [], {}):
                found.setdefault((name, _value(facts[key]), words["from smoke"]), []).append(worker)
    rows = [(key[0], key[1], fold_names(names), key[2]) for key, names in sorted(found.items())]
    return _table(("name", "value", "workers", "source"), rows, words)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        counted = Counter(map(str, value))
        return ", ".join(f"{count} x {item}" for item, count in counted.items())[:_TEXT]
    return str(value)[:_TEXT]


def machines(manifest: Manifest | None, words: Mapping[str, str]) -> Table | None:
    """Where each worker ran, as far as the platform told."""
    rows = []
    for item in manifest.workers if manifest else ():
        platform = item.platform
        gpus = ", ".join(gpu.uuid or gpu.pci or str(gpu.index) for gpu in platform.gpus)
        addresses = ", ".join(filter(None, [platform.host_ip, *platform.addresses]))
        rank = "" if item.node_rank is None else str(item.node_rank)
        times = [rfc3339(time) if time else "" for time in (item.started, item.ended)]
        rows.append((item.name, rank, platform.node or "", item.pod or "", addresses, gpus[:_TEXT], *times))
    if not any(any(row[2:6]) for row in rows):
        return None
    keys = ("worker", "node rank", "node", "pod", "address", "GPUs", "started", "end")
    return _table(keys, rows, words, most=4 * MOST)


def files(items: Sequence[tuple[str, int]], words: Mapping[str, str]) -> Table | None:
    """What lies in the folder."""
    rows = [(name, size(count)) for name, count in items]
    return _table(("file", "size"), rows, words, numbers=frozenset((1,)), most=4 * MOST)


def size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _table(
    keys: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Mapping[str, str],
    *,
    numbers: frozenset[int] = frozenset(),
    most: int = MOST,
) -> Table | None:
    if not rows:
        return None
    folded = words["rows more"].format(count=len(rows[-most:]) - OPEN)
    caption = words["rows left out"].format(count=len(rows) - most) if len(rows) > most else ""
    shown = OPEN if len(rows) > OPEN else None
    heads = [words[f"head {key}"] for key in keys]
    return without_empty(Table(heads, rows[-most:], numbers, caption=caption, shown=shown, folded=folded))


def without_empty(table: Table) -> Table:
    """The table without the columns that say nothing in any row."""
    kept = [at for at in range(len(table.heads)) if any(row[at] not in ("", "-") for row in table.rows)]
    return Table(
        [table.heads[at] for at in kept],
        [[row[at] for at in kept] for row in table.rows],
        frozenset(kept.index(at) for at in table.numbers if at in kept),
        table.marked,
        table.caption,
        table.shown,
        table.folded,
    )
