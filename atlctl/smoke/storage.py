"""The check `storage`: every worker writes a file on every mount and reads the other workers' files.

The workers' part is in `remote/smoke/storage.py`; its reports are judged here, by pure functions.
"""

from __future__ import annotations

import asyncio
import posixpath
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs import fields
from atlctl.jobs.naming import fold_names
from atlctl.smoke.context import Run
from atlctl.smoke.facts import gather
from atlctl.smoke.facts import size as words
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.session import ODD_ANSWER, Answer, words_of

CHECK = "storage"
#: Maximum bytes that each worker writes to each mount; all workers together use at most a tenth of the free space.
_WANT = {"quick": 4 << 20, "standard": 16 << 20, "deep": 64 << 20}
#: Timeouts in seconds without progress, after which a mount counts as hung; second: the last try for a hung mount.
_PATIENCE, _LAST_PATIENCE = 5.0, 1.0
#: Seconds before a missing file is looked for again.
_AGAIN = 0.7
#: Maximum number of other workers' files that each worker looks for.
_MOST_FILES = 64
#: Maximum number of mounts tested that the user did not name.
MOST_FOUND = 8
#: Slow: above the median by this factor and by this many seconds; third: the factor when measured again, alone.
SLOW, SLOW_SECONDS, SLOW_AGAIN = 4.0, 0.5, 3.0
#: A process that waited for a CPU for this share of its time proves nothing about the mount.
STARVED = 0.3
#: Nearly full: less free than this share and these bytes. Full: less than these bytes.
_LOW_SHARE, _LOW_BYTES, _FULL_BYTES = 0.02, 1 << 30, 1 << 20
_LOW_INODES, _LOW_INODE_COUNT = 0.01, 10_000
#: Errors that may be intended on a mount that the user did not name.
_PERHAPS_MEANT = frozenset({"EROFS", "EACCES", "EPERM", "ENOTDIR"})
_NOT_WRITTEN = Message("may not be written")
_ERRORS = {
    "ENOENT": Message("is not there"),
    "ENOTDIR": Message("is not a folder"),
    "EROFS": Message("is read-only"),
    "ENOSPC": Message("is full"),
    "EDQUOT": Message("is full: the quota is used up"),
    "EACCES": _NOT_WRITTEN,
    "EPERM": _NOT_WRITTEN,
    "ESTALE": Message("is stale: the server knows it no more"),
    "ENOTCONN": Message("is not connected: the process that serves it is gone"),
}
_ON_ALL = Message("on all workers: {what}")
_ADVICE = {
    "ENOENT": Message("mount it there, as on the others"),
    "EROFS": Message("look at how it is mounted there (mount, dmesg): an error may have made it read-only"),
    "ENOSPC": Message("remove what is not needed, or have the volume made larger"),
    "EDQUOT": Message("remove what is not needed, or have the quota raised"),
    "stuck": Message("look at the file server and the way to it; processes that wait for it cannot be killed"),
    "view": Message("compare there: mount, df; the path is another volume than on the others, or not mounted at all"),
    "slow": Message("look at the way from this worker to the file server, and at who else uses it there"),
    "content": Message("have the volume checked; until then do not trust what is written there"),
    "space": Message("a checkpoint may not fit: remove what is not needed"),
    "cache": Message("look at the mount's options for caching (NFS: actimeo, lookupcache)"),
}
_SLOW = {
    "write": Message(
        "slow: {mine:.2f} s to write and sync {size} alone, another worker {theirs:.2f} s; "
        "with all at once {first:.2f} s, the middle one {middle:.2f} s"
    ),
    "read": Message(
        "slow: {mine:.2f} s to read {size} alone, another worker {theirs:.2f} s; "
        "with all at once {first:.2f} s, the middle one {middle:.2f} s"
    ),
}

#: Reports of a file with unexpected contents. A wrong size may only be late; changed bytes are not.
_ALTERED = "differs"
_OTHERWISE = (_ALTERED, "size")
_ADVICE_ELSE = Message("look at the mount on this worker, its free space and rights")

Told = Mapping[str, Any]


async def check_storage(run: Run) -> None:
    with run.check(CHECK) as stage:
        await gather(run)
        living = run.session.living()
        facts = {name: fact for name, fact in run.facts.items() if name in living}
        chosen, findings = places([posixpath.normpath(path) for path in run.options.mounts], facts)
        run.find(*findings)
        if not chosen:
            stage.not_judged(Message("no mount was named, and all workers share none"))
            return
        test = _Test(run, chosen, living)
        await test.write()
        await test.look()
        await test.again()
        found = await test.slow()
        await test.clean()
        stage.tested, stage.untested = set(living) - set(test.silent), test.silent
        for place in chosen:
            run.find(*judge(place, test.looks[place.number]))
        run.find(*found)
        run.report.data[CHECK] = {place.path: test.figures(place) for place in chosen}
        shown = [joined([place.path, _rate(test.figures(place))], " ") for place in chosen[:3]]
        stage.note = joined([*shown, *([Message("{n} more", n=len(chosen) - 3)] if len(chosen) > 3 else [])], COMMA)
        if len(living) < 2:
            stage.note = joined([stage.note, Message("one worker: whether others see the same is not judged")])


@dataclass(frozen=True, slots=True)
class MountUnderTest:
    """A folder under test. `named`: by the user. `shared`: a network file system, with one source for all."""

    number: int
    path: str
    named: bool
    shared: bool = False


@dataclass(slots=True)
class Looks:
    """The workers' reports on one folder, by name. `seen`: how each reader saw each writer's file."""

    written: dict[str, Told] = field(default_factory=dict)
    seen: dict[str, dict[str, str]] = field(default_factory=dict)
    read: dict[str, Told] = field(default_factory=dict)
    #: Reader and writer of each file with changed contents at the first look.
    once: set[tuple[str, str]] = field(default_factory=set)
    #: Workers that were still stuck in the last try.
    still: set[str] = field(default_factory=set)

    @property
    def writers(self) -> list[str]:
        return [name for name, told in self.written.items() if wrote(told)]


class _Test:
    """The test of all folders. A fault of one worker or folder does not prevent the others from being judged."""

    def __init__(self, run: Run, chosen: Sequence[MountUnderTest], names: Sequence[str]) -> None:
        self._run = run
        self._places = {place.number: place for place in chosen}
        self._paths = {str(place.number): place.path for place in chosen}
        self._names = list(names)
        self._index = {worker.name: worker.index for worker in run.workers}
        #: Agents without a usable answer, with the reason.
        self.silent: dict[str, str] = {}
        self.looks = {place.number: Looks() for place in chosen}

    async def write(self) -> None:
        want = _WANT["quick"] if self._run.quiet else _WANT[self._run.options.tier]
        self._write = {"cmd": "storage_write", "want": want, "workers": len(self._names)}
        answers = await self._ask({name: {**self._write, "paths": self._paths} for name in self._names})
        for name, answer in answers.items():
            told_of = _mounts(answer, self.looks)
            for number, told in told_of.items():
                self.looks[number].written[name] = told
            if not told_of:
                why = answer.problem or ODD_ANSWER
                self.silent[name] = Message("it did not report its mounts: {why}", why=why)

    async def look(self, names: Sequence[str] | None = None, only: Sequence[int] | None = None) -> None:
        """Let every worker look for all files, and read the next worker's file completely."""
        asks: dict[str, dict[str, Any]] = {}
        for name in names or self._names:
            files = {}
            for number, looks in self.looks.items():
                told = looks.written.get(name)
                if told is not None and "stuck" not in told and not told.get("failed") and number in (only or [number]):
                    files[str(number)] = [[self._index[w], looks.written[w]["size"]] for w in self._near(name, number)]
            if files:
                whole = self._index[self._next(name)]
                asks[name] = {"cmd": "storage_look", "paths": self._paths, "files": files, "whole": whole}
        by_index = {str(index): name for name, index in self._index.items()}
        for name, answer in (await self._ask(asks)).items():
            for number, told in _mounts(answer, self.looks).items():
                looks = self.looks[number]
                looks.read[name] = told
                if seen := told.get("seen"):
                    before = looks.seen.get(name, {})
                    looks.seen[name] = {by_index[i]: str(how) for i, how in seen.items() if i in by_index}
                    # Changed contents at the first look count even if the second look is good.
                    looks.once |= {(name, w) for w, how in before.items() if how == _ALTERED}

    async def again(self) -> None:
        """Repeat failed writes, and looks at missing or different files, before reporting them."""
        failed: dict[str, dict[str, str]] = {}
        for number, looks in self.looks.items():
            for name, told in looks.written.items():
                if told.get("error"):
                    failed.setdefault(name, {})[str(number)] = self._places[number].path
        for name, answer in (await self._ask({n: {**self._write, "paths": p} for n, p in failed.items()})).items():
            for number, told in _mounts(answer, self.looks).items():
                self.looks[number].written[name] = told
        odd = [
            number
            for number, looks in self.looks.items()
            if any(how in ("missing", *_OTHERWISE) for seen in looks.seen.values() for how in seen.values())
        ]
        if odd:
            await asyncio.sleep(_AGAIN)
        if odd or failed:
            await self.look(only=[*odd, *(int(number) for paths in failed.values() for number in paths)])

    async def slow(self) -> list[Finding]:
        """Measure each slow worker again, alone, and compare it with a worker of normal speed."""
        found: list[Finding] = []
        for number, looks in self.looks.items():
            seem = suspects(looks)
            for what in ("write", "read"):
                names = [name for name, which in seem if which == what]
                tolds = looks.written if what == "write" else looks.read
                times = {n: t for n, told in tolds.items() if (t := seconds(told, what)) is not None}
                fine = [name for name in sorted(times, key=lambda name: times[name]) if name not in names]
                if not names or not fine:
                    continue
                middle = statistics.median(times.values())
                other = await self._alone(fine[len(fine) // 2], number, what)
                for name in names:
                    alone = await self._alone(name, number, what)
                    found += slow(self._places[number], name, what, alone, other, (times[name], middle))
        return found

    async def clean(self) -> None:
        # A hung worker cannot remove its file; other workers on the same volume do it.
        others = {
            str(number): [
                self._index[name]
                for name, told in looks.written.items()
                if "stuck" in told or "stuck" in looks.read.get(name, {})
            ]
            for number, looks in self.looks.items()
        }
        command = {"cmd": "storage_clean", "patience": _LAST_PATIENCE, "others": others}
        for name, answer in (await self._ask(dict.fromkeys(self._names, command))).items():
            for number, told in _mounts(answer, self.looks).items():
                if "stuck" in told:
                    self.looks[number].still.add(name)

    def figures(self, place: MountUnderTest) -> dict[str, Any]:
        looks = self.looks[place.number]
        keys = ("size", "free", "total", "write_s")
        return {
            name: {key: told.get(key) for key in keys} | {"read_s": looks.read.get(name, {}).get("read_s")}
            for name, told in looks.written.items()
            if wrote(told)
        }

    async def _alone(self, name: str, number: int, what: str) -> Mapping[str, Any]:
        if what == "write":
            ask = {**self._write, "paths": {str(number): self._paths[str(number)]}, "again": True}
            answers = await self._ask({name: ask})
            return _mounts(answers[name], self.looks).get(number, {})
        await self.look([name], [number])
        return self.looks[number].read.get(name, {})

    async def _ask(self, asks: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
        asks = {name: {"patience": _PATIENCE * self._run.session.pace, **ask} for name, ask in asks.items()}
        return await self._run.session.ask(asks, 4 * _PATIENCE + 5) if asks else {}

    def _near(self, name: str, number: int) -> list[str]:
        """The writers whose files this worker looks for: all, or if there are too many, its neighbours and a sample."""
        writers = self.looks[number].writers
        if len(writers) <= _MOST_FILES:
            return writers
        at = writers.index(name) if name in writers else 0
        turned = writers[at:] + writers[:at]
        return turned[: _MOST_FILES // 2] + turned[_MOST_FILES // 2 :: -(-2 * len(turned) // _MOST_FILES)]

    def _next(self, name: str) -> str:
        return self._names[(self._names.index(name) + 1) % len(self._names)]


def _mounts(answer: Answer, known: Mapping[int, Looks]) -> dict[int, dict[str, Any]]:
    """The well-formed reports of one agent, by folder number."""
    found = {}
    for number, told in fields.mapping((answer.fields or {}).get("mounts")).items():
        if (mount := fields.mapping(told)) and number.isdigit() and int(number) in known:
            good = isinstance(mount.get("size"), int) or "write_s" not in mount
            found[int(number)] = _plain(mount) if good else {"failed": ODD_ANSWER}
    return found


def _plain(mount: Mapping[str, Any]) -> dict[str, Any]:
    """Keep only numbers, short texts, and `seen`."""
    return {
        key: value
        if isinstance(value, int | float) or (key == "seen" and isinstance(value, dict))
        else str(value)[:300]
        for key, value in mount.items()
        if value is not None
    }


def _rate(figures: Mapping[str, Mapping[str, Any]]) -> str:
    rates = [each["size"] / each["write_s"] / 1e6 for each in figures.values() if each["size"] and each["write_s"]]
    return f"{statistics.median(rates):.0f} MB/s" if rates else Message("not written")


def places(named: Sequence[str], facts: Mapping[str, Told]) -> tuple[list[MountUnderTest], list[Finding]]:
    """The folders to test (named by the user, or network mounts of all workers), and findings for missing mounts."""
    tables = {name: _table(fact) for name, fact in facts.items() if "problem" not in fact}
    paths = Counter(path for table in tables.values() for path in table)
    found, findings = [], []
    for path, count in sorted(paths.items()):
        sources = {table[path] for table in tables.values() if path in table}
        if count == len(tables):
            found.append(MountUnderTest(0, path, False, len(sources) == 1))
        elif len(tables) > 2 and 2 * count > len(tables) and len(sources) == 1 and path not in named:
            lacking = [name for name, table in tables.items() if path not in table]
            source = next(iter(sources))[1]
            text = Message("not mounted; {n} others have it there from {source}", n=count, source=source)
            findings += [_finding(name, path, Severity.WARN, text, "ENOENT") for name in lacking]
    shared = {place.path: place.shared for place in found}
    chosen = [MountUnderTest(0, path, True, shared.get(path, False)) for path in dict.fromkeys(named)]
    chosen += [place for place in found if place.path not in named][:MOST_FOUND]
    return [replace(place, number=number) for number, place in enumerate(chosen)], findings


def judge(place: MountUnderTest, looks: Looks) -> list[Finding]:
    """All findings except speed: at most one for each worker and folder, starting with its first fault."""
    found = [*_failures(place, looks), *_views(place, looks), *_contents(place, looks), *_space(place, looks)]
    merged: dict[str | None, Finding] = {}
    for finding in found:
        who = finding.culprit.worker if finding.culprit is not None else None
        first = merged.setdefault(who, finding)
        if first is not finding:
            worst = Severity.FAIL if Severity.FAIL in (first.severity, finding.severity) else first.severity
            merged[who] = replace(first, severity=worst, evidence=joined([first.evidence, finding.evidence]))
    return list(merged.values())


def wrote(told: Told) -> bool:
    return bool(told.get("done")) and not told.get("error") and fields.number(told.get("write_s")) is not None


def suspects(looks: Looks) -> list[tuple[str, str]]:
    """Workers that were slow in the first test, each with `write` or `read`. Empty for fewer than three workers."""
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


def slow(
    place: MountUnderTest, name: str, what: str, alone: Told, other: Told, first: tuple[float, float]
) -> list[Finding]:
    """The finding for a suspect measured `alone`, compared with a normal worker (`other`). `first`: seconds in the
    first test, and the median then."""
    mine, theirs = seconds(alone, what), seconds(other, what)
    if mine is None or theirs is None or starved(alone, what):
        return []
    if mine < SLOW_AGAIN * theirs or mine - theirs < SLOW_SECONDS / 2:
        return []
    told = {"size": words(_bytes(alone, what)), "mine": mine, "theirs": theirs, "first": first[0], "middle": first[1]}
    return [_finding(name, place.path, Severity.WARN, _SLOW[what].filled(**told), "slow", confirmed=True)]


def seconds(told: Told, what: str) -> float | None:
    """The seconds for one file; None if nothing was written or read."""
    return fields.number(told.get(f"{what}_s")) if _bytes(told, what) else None


def starved(told: Told, what: str) -> bool:
    took, waited = fields.number(told.get(f"{what}_s")), fields.number(told.get("starved_s"))
    return took is not None and waited is not None and waited > STARVED * took


def groups(looks: Looks) -> list[list[str]]:
    """Groups of workers that see each other's files, largest first. Workers that wrote nothing join one they see."""
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
            home = next((group for group in found if any(_sees(looks, name, other) for other in group)), [])
            home.append(name)
            if len(home) == 1:
                found.append(home)
    return sorted(found, key=len, reverse=True)


def _failures(place: MountUnderTest, looks: Looks) -> Iterable[Finding]:
    count = Counter(told.get("errno") for told in looks.written.values() if told.get("error"))
    everybody = len(looks.written)
    told_once = set()
    for name, told in looks.written.items():
        code = str(told.get("errno"))
        if "stuck" in told:
            yield _stuck(place, name, told, still=name in looks.still)
        elif told.get("failed"):
            text = Message("cannot be tested: {why}", why=words_of(told["failed"]))
            yield _finding(name, place.path, Severity.INCOMPLETE, text, "")
        elif told.get("error"):
            meant = not place.named and code in _PERHAPS_MEANT and 2 * count[told.get("errno")] > everybody
            severity = Severity.NOT_JUDGED if meant else Severity.FAIL
            text = _error(_ERRORS.get(code, Message("fails")), told)
            if everybody > 1 and count[told.get("errno")] == everybody:
                if code not in told_once:
                    told_once.add(code)
                    text = _ON_ALL.filled(what=text)
                    yield _finding(None, place.path, severity, text, code, confirmed=True)
            else:
                yield _finding(name, place.path, severity, text, code, confirmed=True)
    for name, told in looks.read.items():
        if "stuck" in told and wrote(looks.written.get(name, {})):
            yield _stuck(place, name, told, still=name in looks.still)
        elif told.get("error"):
            text = _error(Message("cannot be read"), told)
            if wrote(looks.written.get(name, {})):
                yield _finding(name, place.path, Severity.FAIL, text, str(told.get("errno")), confirmed=True)


def _stuck(place: MountUnderTest, name: str, told: Told, still: bool) -> Finding:
    text: str = (
        Message("hangs: no answer in {seconds} s to {stuck} (process state {state}, in {place})")
        if told.get("place")
        else Message("hangs: no answer in {seconds} s to {stuck} (process state {state})")
    ).filled(**{key: told.get(key) for key in ("seconds", "stuck", "state", "place")})
    if not still:
        text = joined([text, Message("later it answered")])
    severity = Severity.FAIL if still else Severity.WARN
    return _finding(name, place.path, severity, text, "stuck", confirmed=True)


def _error(what: str, told: Told) -> Message:
    """The message `what` with the step and the error added."""
    return Message("{what} ({step}: {error})", what=what, step=told.get("step"), error=told.get("error"))


def _views(place: MountUnderTest, looks: Looks) -> Iterable[Finding]:
    found = groups(looks)
    if len(found) < 2:
        yield from _unseen(place, looks)
        return
    total, most = sum(map(len, found)), found[0]
    if len(most) == 1:
        if place.shared:
            text = Message("no worker sees the file of another one, though all mount the same source")
            yield _finding(None, place.path, Severity.FAIL, text, "view", confirmed=True)
        else:
            text = Message("each worker has its own volume there: nothing is shared")
            yield _finding(None, place.path, Severity.NOT_JUDGED, text, "")
    elif 2 * len(most) > total:
        for name in (name for group in found[1:] for name in group):
            text = Message(
                "another volume: it does not see the files of {workers}, who share one view", workers=fold_names(most)
            )
            yield _finding(name, place.path, Severity.FAIL, text, "view", confirmed=True)
    else:
        shown = " | ".join(fold_names(group) for group in found[:6])
        text = Message("not one volume, and no view is that of most: {groups}", groups=shown)
        yield _finding(None, place.path, Severity.FAIL, text, "view", confirmed=True)


def _unseen(place: MountUnderTest, looks: Looks) -> Iterable[Finding]:
    """Findings if all workers share one volume but some files are not seen by some workers."""
    gone = [
        (reader, writer) for reader, seen in looks.seen.items() for writer in seen if not _sees(looks, reader, writer)
    ]
    for writer in dict.fromkeys(writer for _, writer in gone):
        blind = [reader for reader, other in gone if other == writer]
        if 2 * len(blind) > len(looks.seen):
            text = Message("its file is not seen by {workers}", workers=fold_names(blind))
            yield _finding(writer, place.path, Severity.WARN, text, "cache", confirmed=True)
            gone = [pair for pair in gone if pair[1] != writer]
    for reader in dict.fromkeys(reader for reader, _ in gone):
        hidden = fold_names([w for r, w in gone if r == reader])
        text = Message("it does not see the file of {workers}, which others see", workers=hidden)
        yield _finding(reader, place.path, Severity.WARN, text, "cache", confirmed=True)


def _contents(place: MountUnderTest, looks: Looks) -> Iterable[Finding]:
    """Files with changed contents: the writer is at fault if most readers report it, otherwise the readers."""
    wrong: dict[str, list[str]] = {}
    for reader, seen in looks.seen.items():
        for writer, how in seen.items():
            if how in _OTHERWISE or (reader, writer) in looks.once:
                wrong.setdefault(writer, []).append(reader)

    def again(pairs: Iterable[tuple[str, str]]) -> bool:
        return any(looks.seen[reader][writer] in _OTHERWISE for reader, writer in pairs)

    by_reader: dict[str, list[str]] = {}
    for writer, readers in wrong.items():
        asked = [name for name, seen in looks.seen.items() if seen.get(writer) in ("same", *_OTHERWISE)]
        if 2 * len(readers) > len(asked):
            text = Message("its data is read back with other contents, by {workers}", workers=fold_names(readers))
            confirmed = again((reader, writer) for reader in readers)
            yield _finding(writer, place.path, Severity.FAIL, text, "content", confirmed)
        else:
            for reader in readers:
                by_reader.setdefault(reader, []).append(writer)
    for reader, writers in by_reader.items():
        text = Message("it reads otherwise than others what {workers} wrote", workers=fold_names(writers))
        confirmed = again((reader, writer) for writer in writers)
        yield _finding(reader, place.path, Severity.FAIL, text, "content", confirmed)


def _space(place: MountUnderTest, looks: Looks) -> Iterable[Finding]:
    low: dict[str, tuple[Severity, str]] = {}
    for name in looks.writers:
        told = looks.written[name]
        free, total = fields.number(told.get("free")), fields.number(told.get("total"))
        inodes, all_inodes = fields.number(told.get("free_inodes")), fields.number(told.get("inodes"))
        if free is not None and total and free < _LOW_SHARE * total and free < _LOW_BYTES:
            severity, text = (
                (Severity.FAIL, Message("full: {free} free of {total}"))
                if free < _FULL_BYTES
                else (Severity.WARN, Message("nearly full: {free} free of {total}"))
            )
            low[name] = severity, text.filled(free=words(free), total=words(total))
        elif inodes is not None and all_inodes and inodes < min(_LOW_INODES * all_inodes, _LOW_INODE_COUNT):
            text = Message("nearly out of inodes: {free:.0f} free of {total:.0f}", free=inodes, total=all_inodes)
            low[name] = Severity.WARN, text
    if low and len(low) == len(looks.written) > 1:
        severity, what = next(iter(low.values()))
        yield _finding(None, place.path, severity, _ON_ALL.filled(what=what), "space", confirmed=True)
    else:
        for name, (severity, what) in low.items():
            yield _finding(name, place.path, severity, what, "space", confirmed=True)


def _finding(
    name: str | None, path: str, severity: Severity, text: str, advice: str, confirmed: bool = False
) -> Finding:
    told = _ADVICE.get(advice, _ADVICE_ELSE) if advice else None
    return Finding(CHECK, severity, Culprit("mount", name, path=path), text, confirmed, told)


def _sees(looks: Looks, reader: str, writer: str) -> bool | None:
    """Whether the reader saw the file; None if it did not look."""
    how = looks.seen.get(reader, {}).get(writer)
    return None if how is None else how != "missing"


def _together(looks: Looks, one: str, other: str) -> bool:
    ways = _sees(looks, one, other), _sees(looks, other, one)
    return True in ways and False not in ways


def _table(facts: Told) -> dict[str, tuple[str, str]]:
    """A worker's network mounts: file system and source, by path."""
    return {
        path: (str(mount.get("fs")), str(mount.get("source")))
        for mount in fields.entries(facts.get("mounts"))
        if (path := fields.text(mount.get("path"))).startswith("/")
    }


def _bytes(told: Told, what: str) -> float:
    return fields.number(told.get({"write": "size", "read": "read"}[what])) or 0
