"""What is wrong with a mount, and where: pure functions over what each worker told of it (`agent/storage.py`)."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atlctl.jobs.naming import fold_names
from atlctl.smoke.facts.minority import size as words
from atlctl.smoke.findings import Culprit, Finding, Severity

CHECK = "storage"
#: Mounts that are looked for without being named.
MOST_FOUND = 8
#: Slow: this many times the middle one's time, and this many seconds more. Seen twice, the second time alone.
SLOW, SLOW_SECONDS, SLOW_AGAIN = 4.0, 0.5, 3.0
#: A process that waited for a CPU for this part of its time says nothing of the mount.
STARVED = 0.3
#: Nearly full: less than this share and less than these bytes. Full: no room for anything.
_LOW_SHARE, _LOW_BYTES, _FULL_BYTES = 0.02, 1 << 30, 1 << 20
_LOW_INODES, _LOW_INODE_COUNT = 0.01, 10_000
#: By which a mount that nobody named may be none to write to.
_PERHAPS_MEANT = frozenset({"EROFS", "EACCES", "EPERM", "ENOTDIR"})
_ERRORS = {
    "ENOENT": "is not there",
    "ENOTDIR": "is no folder",
    "EROFS": "is read-only",
    "ENOSPC": "is full",
    "EDQUOT": "is full: the quota is used up",
    "EACCES": "may not be written",
    "EPERM": "may not be written",
    "ESTALE": "is stale: the server knows it no more",
    "ENOTCONN": "is not connected: the process that serves it is gone",
}
_ADVICE = {
    "ENOENT": "mount it there, as on the others",
    "EROFS": "look at how it is mounted there (mount, dmesg): an error may have made it read-only",
    "ENOSPC": "remove what is not needed, or have the volume made larger",
    "EDQUOT": "remove what is not needed, or have the quota raised",
    "stuck": "look at the file server and the way to it; processes that wait for it cannot be killed",
    "view": "compare there: mount, df; the path is another volume than on the others, or not mounted at all",
    "slow": "look at the way from this worker to the file server, and at who else uses it there",
    "content": "have the volume checked; until then do not trust what is written there",
    "space": "a checkpoint may not fit: remove what is not needed",
    "cache": "look at the mount's options for caching (NFS: actimeo, lookupcache)",
}

Told = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """A folder under test. `named`: by the user. `shared`: a network's file system, of one source for all."""

    number: int
    path: str
    named: bool
    shared: bool = False


@dataclass(slots=True)
class Looks:
    """What the workers told of one place, by name. `seen`: for each reader what it saw, by the writer's name."""

    written: dict[str, Told] = field(default_factory=dict)
    seen: dict[str, dict[str, str]] = field(default_factory=dict)
    read: dict[str, Told] = field(default_factory=dict)
    #: Still stuck when it was asked again.
    still: set[str] = field(default_factory=set)

    @property
    def writers(self) -> list[str]:
        return [name for name, told in self.written.items() if wrote(told)]


def places(named: Sequence[str], facts: Mapping[str, Told]) -> tuple[list[Place], list[Finding]]:
    """What is tested: what the user names, and what all workers mount of a network. Findings: what some lack."""
    tables = {name: _table(fact) for name, fact in facts.items() if "problem" not in fact}
    paths = Counter(path for table in tables.values() for path in table)
    found, findings = [], []
    for path, count in sorted(paths.items()):
        sources = {table[path] for table in tables.values() if path in table}
        if count == len(tables):
            found.append(Place(0, path, False, len(sources) == 1))
        elif len(tables) > 2 and 2 * count > len(tables) and len(sources) == 1 and path not in named:
            lacking = [name for name, table in tables.items() if path not in table]
            text = f"not mounted; {count} others have it there from {next(iter(sources))[1]}"
            findings += [_finding(name, path, Severity.WARN, text, "ENOENT") for name in lacking]
    shared = {place.path: place.shared for place in found}
    chosen = [Place(0, path, True, shared.get(path, False)) for path in dict.fromkeys(named)]
    chosen += [place for place in found if place.path not in named][:MOST_FOUND]
    return [replace(place, number=number) for number, place in enumerate(chosen)], findings


def judge(place: Place, looks: Looks) -> list[Finding]:
    """All but speed. At most one finding for each worker and place, its first fault first."""
    found = [*_failures(place, looks), *_views(place, looks), *_contents(place, looks), *_space(place, looks)]
    merged: dict[str | None, Finding] = {}
    for finding in found:
        who = finding.culprit.worker if finding.culprit is not None else None
        first = merged.setdefault(who, finding)
        if first is not finding:
            worst = Severity.FAIL if Severity.FAIL in (first.severity, finding.severity) else first.severity
            merged[who] = replace(first, severity=worst, evidence=f"{first.evidence}; {finding.evidence}")
    return list(merged.values())


def wrote(told: Told) -> bool:
    return bool(told.get("done")) and not told.get("error") and _number(told.get("write_s")) is not None


def suspects(looks: Looks) -> list[tuple[str, str]]:
    """Who is slow at first sight, and at what (`write`, `read`). Nobody among fewer than three."""
    found = []
    for what, tolds in (("write", looks.written), ("read", looks.read)):
        times = {name: each for name, told in tolds.items() if (each := seconds(told, what)) is not None}
        if len(times) < 3:
            continue
        middle = statistics.median(times.values())
        for name, time in times.items():
            if time > SLOW * middle and time - middle > SLOW_SECONDS and not starved(tolds[name], what):
                found.append((name, what))
    return found


def slow(place: Place, name: str, what: str, alone: Told, other: Told, first: tuple[float, float]) -> list[Finding]:
    """The finding on a suspect that was measured alone, beside one that is none. `first`: seconds then and the
    middle's."""
    mine, theirs = seconds(alone, what), seconds(other, what)
    if mine is None or theirs is None or starved(alone, what):
        return []
    if mine < SLOW_AGAIN * theirs or mine - theirs < SLOW_SECONDS / 2:
        return []
    verb = {"write": "to write and sync", "read": "to read"}[what]
    text = (
        f"slow: {mine:.2f} s {verb} {words(_bytes(alone, what))} alone, another worker {theirs:.2f} s; "
        f"with all at once {first[0]:.2f} s, the middle one {first[1]:.2f} s"
    )
    return [_finding(name, place.path, Severity.WARN, text, "slow", confirmed=True)]


def seconds(told: Told, what: str) -> float | None:
    """What it took, for each MiB's worth of a file of one size: sizes may differ where memory is short."""
    took = _number(told.get(f"{what}_s"))
    size = _bytes(told, what)
    return None if took is None or not size else took


def starved(told: Told, what: str) -> bool:
    took, waited = _number(told.get(f"{what}_s")), _number(told.get("starved_s"))
    return took is not None and waited is not None and waited > STARVED * took


def groups(looks: Looks) -> list[list[str]]:
    """Workers that see each other's files, the largest group first. One that wrote nothing belongs to whom it sees."""
    writers = [name for name in looks.writers if name in looks.seen]
    left, found = list(writers), []
    while left:
        group = [left.pop(0)]
        for name in group:
            near = [other for other in left if _together(looks, name, other)]
            group += near
            left = [other for other in left if other not in near]
        found.append(group)
    found.sort(key=len, reverse=True)
    for name, seen in looks.seen.items():
        if name not in writers and seen:
            home = next((group for group in found if any(_sees(looks, name, other) for other in group)), None)
            if home is not None:
                home.append(name)
            else:
                found.append([name])
    return sorted(found, key=len, reverse=True)


def _failures(place: Place, looks: Looks) -> Iterable[Finding]:
    count = Counter(told.get("errno") for told in looks.written.values() if told.get("error"))
    everybody = len(looks.written)
    told_once = set()
    for name, told in looks.written.items():
        code = str(told.get("errno"))
        if "stuck" in told:
            yield _stuck(place, name, told, still=name in looks.still)
        elif told.get("failed"):
            yield _finding(name, place.path, Severity.NOT_JUDGED, f"cannot be tested: {told['failed']}", "")
        elif told.get("error"):
            meant = not place.named and code in _PERHAPS_MEANT and 2 * count[told.get("errno")] > everybody
            severity = Severity.NOT_JUDGED if meant else Severity.FAIL
            text = f"{_ERRORS.get(code, 'fails')} ({told.get('step')}: {told.get('error')})"
            if everybody > 1 and count[told.get("errno")] == everybody:
                if code not in told_once:
                    told_once.add(code)
                    yield _finding(None, place.path, severity, f"on all workers: {text}", code, confirmed=True)
            else:
                yield _finding(name, place.path, severity, text, code, confirmed=True)
    for name, told in looks.read.items():
        if "stuck" in told and wrote(looks.written.get(name, {})):
            yield _stuck(place, name, told, still=name in looks.still)
        elif told.get("error"):
            text = f"cannot be read ({told.get('step')}: {told.get('error')})"
            if wrote(looks.written.get(name, {})):
                yield _finding(name, place.path, Severity.FAIL, text, str(told.get("errno")), confirmed=True)


def _stuck(place: Place, name: str, told: Told, still: bool) -> Finding:
    inside = f", in {told['place']}" if told.get("place") else ""
    where = f"process state {told.get('state')}{inside}"
    text = f"hangs: no answer in {told.get('seconds')} s to {told.get('stuck')} ({where})"
    if still:
        return _finding(name, place.path, Severity.FAIL, text, "stuck", confirmed=True)
    return _finding(name, place.path, Severity.WARN, f"{text}; later it answered", "stuck", confirmed=True)


def _views(place: Place, looks: Looks) -> Iterable[Finding]:
    found = groups(looks)
    if len(found) < 2:
        yield from _unseen(place, looks)
        return
    total, most = sum(map(len, found)), found[0]
    if len(most) == 1:
        if place.shared:
            text = "no worker sees the file of another one, though all mount the same source"
            yield _finding(None, place.path, Severity.FAIL, text, "view", confirmed=True)
        else:
            text = "each worker has a volume of its own there: nothing is shared"
            yield _finding(None, place.path, Severity.NOT_JUDGED, text, "")
    elif 2 * len(most) > total:
        for name in (name for group in found[1:] for name in group):
            text = f"another volume: it does not see the files of {fold_names(most)}, who share one view"
            yield _finding(name, place.path, Severity.FAIL, text, "view", confirmed=True)
    else:
        shown = " | ".join(fold_names(group) for group in found[:6])
        text = f"not one volume, and no view is that of most: {shown}"
        yield _finding(None, place.path, Severity.FAIL, text, "view", confirmed=True)


def _unseen(place: Place, looks: Looks) -> Iterable[Finding]:
    """One volume, and yet somebody does not see somebody's file."""
    gone = [
        (reader, writer) for reader, seen in looks.seen.items() for writer in seen if not _sees(looks, reader, writer)
    ]
    for writer in dict.fromkeys(writer for _, writer in gone):
        blind = [reader for reader, other in gone if other == writer]
        if 2 * len(blind) > len(looks.seen):
            text = f"its file is not seen by {fold_names(blind)}"
            yield _finding(writer, place.path, Severity.WARN, text, "cache", confirmed=True)
            gone = [pair for pair in gone if pair[1] != writer]
    for reader in dict.fromkeys(reader for reader, _ in gone):
        text = f"it does not see the file of {fold_names([w for r, w in gone if r == reader])}, which others see"
        yield _finding(reader, place.path, Severity.WARN, text, "cache", confirmed=True)


def _contents(place: Place, looks: Looks) -> Iterable[Finding]:
    """Files that read otherwise than they were written: the writer's fault where most readers say so."""
    wrong: dict[str, list[str]] = {}
    for reader, seen in looks.seen.items():
        for writer, how in seen.items():
            if how == "differs":
                wrong.setdefault(writer, []).append(reader)
    by_reader: dict[str, list[str]] = {}
    for writer, readers in wrong.items():
        asked = [name for name, seen in looks.seen.items() if seen.get(writer) in ("same", "differs")]
        if 2 * len(readers) > len(asked):
            text = f"what it wrote reads otherwise: {fold_names(readers)} read it"
            yield _finding(writer, place.path, Severity.FAIL, text, "content", confirmed=True)
        else:
            for reader in readers:
                by_reader.setdefault(reader, []).append(writer)
    for reader, writers in by_reader.items():
        text = f"it reads otherwise than others what {fold_names(writers)} wrote"
        yield _finding(reader, place.path, Severity.FAIL, text, "content", confirmed=True)


def _space(place: Place, looks: Looks) -> Iterable[Finding]:
    low: dict[str, tuple[Severity, str]] = {}
    for name in looks.writers:
        told = looks.written[name]
        free, total = _number(told.get("free")), _number(told.get("total"))
        inodes, all_inodes = _number(told.get("free_inodes")), _number(told.get("inodes"))
        if free is not None and total and free < _LOW_SHARE * total and free < _LOW_BYTES:
            full = free < _FULL_BYTES
            text = f"{'full' if full else 'nearly full'}: {words(free)} free of {words(total)}"
            low[name] = Severity.FAIL if full else Severity.WARN, text
        elif inodes is not None and all_inodes and inodes < min(_LOW_INODES * all_inodes, _LOW_INODE_COUNT):
            low[name] = Severity.WARN, f"nearly out of inodes: {inodes:.0f} free of {all_inodes:.0f}"
    if low and len(low) == len(looks.written) > 1:
        severity, text = next(iter(low.values()))
        yield _finding(None, place.path, severity, f"on all workers: {text}", "space", confirmed=True)
    else:
        for name, (severity, text) in low.items():
            yield _finding(name, place.path, severity, text, "space", confirmed=True)


def _finding(
    name: str | None, path: str, severity: Severity, text: str, advice: str, confirmed: bool = False
) -> Finding:
    return Finding(CHECK, severity, Culprit("mount", name, path=path), text, confirmed, _ADVICE.get(advice, ""))


def _sees(looks: Looks, reader: str, writer: str) -> bool | None:
    """None where it was not asked to look."""
    how = looks.seen.get(reader, {}).get(writer)
    return None if how is None else how != "missing"


def _together(looks: Looks, one: str, other: str) -> bool:
    ways = _sees(looks, one, other), _sees(looks, other, one)
    return True in ways and False not in ways


def _table(facts: Told) -> dict[str, tuple[str, str]]:
    """The mounts of a network that a worker told of: file system and source, by path."""
    mounts = facts.get("mounts")
    return {
        str(mount["path"]): (str(mount.get("fs")), str(mount.get("source")))
        for mount in (mounts if isinstance(mounts, list) else [])
        if isinstance(mount, dict) and str(mount.get("path", "")).startswith("/")
    }


def _bytes(told: Told, what: str) -> float:
    return _number(told.get({"write": "size", "read": "read"}[what])) or 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
