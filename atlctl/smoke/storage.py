"""The check `storage`: every mount is written by all workers, synced, renamed, and read by all the others."""

from __future__ import annotations

import asyncio
import posixpath
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from atlctl.smoke.context import Run
from atlctl.smoke.facts import gather
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.mounts import CHECK, Looks, Place, judge, places, seconds, slow, suspects, wrote
from atlctl.smoke.session import Answer

#: Bytes that each worker writes to each mount, at most; a tenth of what is free, shared by all, where that is less.
_WANT = {"quick": 4 << 20, "standard": 16 << 20, "deep": 64 << 20}
#: Seconds without a step after which a mount hangs, and those that a hung one is given at the end.
_PATIENCE, _LAST_PATIENCE = 5.0, 1.0
#: Seconds before a file that is not seen is looked for again.
_AGAIN = 0.7
#: Files of others that each worker looks for.
_MOST_FILES = 64


async def check_storage(run: Run) -> None:
    with run.check(CHECK) as stage:
        await gather.gather(run)
        living = run.session.living()
        facts = {name: fact for name, fact in run.facts.items() if name in living}
        chosen, findings = places([posixpath.normpath(path) for path in run.options.mounts], facts)
        run.find(*findings)
        if not chosen:
            stage.not_judged("no mount was named, and all workers share none")
            return
        test = _Test(run, chosen, living)
        await test.write()
        await test.look()
        await test.again()
        found = await test.slow()
        await test.clean()
        run.find(*test.silent())
        for place in chosen:
            run.find(*judge(place, test.looks[place.number]))
        run.find(*found)
        run.report.data[CHECK] = {place.path: test.figures(place) for place in chosen}
        shown = [f"{place.path} {_rate(test.figures(place))}" for place in chosen[:3]]
        stage.note = ", ".join([*shown, *([f"{len(chosen) - 3} more"] if len(chosen) > 3 else [])])
        if len(living) < 2:
            stage.note += "; one worker: whether others see the same is not judged"


class _Test:
    """One run over all places. A fault of one worker or place keeps none of the others from being judged."""

    def __init__(self, run: Run, chosen: Sequence[Place], names: Sequence[str]) -> None:
        self._run = run
        self._places = {place.number: place for place in chosen}
        self._paths = {str(place.number): place.path for place in chosen}
        self._names = list(names)
        self._index = {worker.name: worker.index for worker in run.workers}
        self._silent: dict[str, str] = {}
        self.looks = {place.number: Looks() for place in chosen}

    async def write(self) -> None:
        want = _WANT["quick"] if self._run.quiet else _WANT[self._run.options.tier]
        self._write = {"cmd": "storage_write", "want": want, "workers": len(self._names), "patience": _PATIENCE}
        answers = await self._ask({name: {**self._write, "paths": self._paths} for name in self._names})
        for name, answer in answers.items():
            told_of = _mounts(answer, self.looks)
            for number, told in told_of.items():
                self.looks[number].written[name] = told
            if not told_of:
                self._silent[name] = answer.problem or "its answer was not understood"

    def silent(self) -> list[Finding]:
        """Agents that live and told nothing. Whose agent is gone is told by the roll call."""
        return [
            Finding(CHECK, Severity.NOT_JUDGED, Culprit("worker", name), f"it told nothing of its mounts: {why}")
            for name, why in self._silent.items()
            if name in self._run.session.living()
        ]

    async def look(self, names: Sequence[str] | None = None, only: Sequence[int] | None = None) -> None:
        """Everybody looks for everybody's file, and reads that of the next one from end to end."""
        asks: dict[str, dict[str, Any]] = {}
        for name in names or self._names:
            files = {}
            for number, looks in self.looks.items():
                told = looks.written.get(name)
                if told is not None and "stuck" not in told and not told.get("failed") and number in (only or [number]):
                    files[str(number)] = [[self._index[w], looks.written[w]["size"]] for w in self._near(name, number)]
            if files:
                whole = self._index[self._next(name)]
                asks[name] = {
                    "cmd": "storage_look", "paths": self._paths, "files": files, "whole": whole, "patience": _PATIENCE
                }  # fmt: skip
        by_index = {str(index): name for name, index in self._index.items()}
        for name, answer in (await self._ask(asks)).items():
            for number, told in _mounts(answer, self.looks).items():
                looks, seen = self.looks[number], told.get("seen")
                looks.read[name] = told
                if isinstance(seen, dict):
                    looks.seen[name] = {by_index[i]: str(how) for i, how in seen.items() if i in by_index}

    async def again(self) -> None:
        """What failed, or was not seen, is tried once more before it is said."""
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
            if any(how in ("missing", "differs") for seen in looks.seen.values() for how in seen.values())
        ]
        if odd:
            await asyncio.sleep(_AGAIN)
        if odd or failed:
            await self.look(only=[*odd, *(int(number) for paths in failed.values() for number in paths)])

    async def slow(self) -> list[Finding]:
        """Those that seem slow once more, each alone, and beside them one that does not."""
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
        # Who hangs cannot remove its file; whoever sees it on the same volume can.
        others = {
            str(number): [
                self._index[name]
                for name, told in looks.written.items()
                if "stuck" in told or "stuck" in looks.read.get(name, {})
            ]
            for number, looks in self.looks.items()
        }
        command = {"cmd": "storage_clean", "patience": _LAST_PATIENCE, "others": others}
        asks = dict.fromkeys(self._names, command)
        for name, answer in (await self._ask(asks)).items():
            for number, told in _mounts(answer, self.looks).items():
                if "stuck" in told:
                    self.looks[number].still.add(name)

    def figures(self, place: Place) -> dict[str, Any]:
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
        return await self._run.session.ask(asks, 4 * _PATIENCE + 5) if asks else {}

    def _near(self, name: str, number: int) -> list[str]:
        """Whose files it looks for: all, or with many workers those next to it and some spread over the others."""
        writers = self.looks[number].writers
        if len(writers) <= _MOST_FILES:
            return writers
        at = writers.index(name) if name in writers else 0
        turned = writers[at:] + writers[:at]
        return turned[: _MOST_FILES // 2] + turned[_MOST_FILES // 2 :: -(-2 * len(turned) // _MOST_FILES)]

    def _next(self, name: str) -> str:
        return self._names[(self._names.index(name) + 1) % len(self._names)]


def _mounts(answer: Answer, known: Mapping[int, Looks]) -> dict[int, dict[str, Any]]:
    """What an agent told of each place, as far as it can be understood."""
    told = (answer.fields or {}).get("mounts")
    found = {}
    for number, mount in (told if isinstance(told, dict) else {}).items():
        if isinstance(mount, dict) and str(number).isdigit() and int(number) in known:
            good = isinstance(mount.get("size"), int) or "write_s" not in mount
            found[int(number)] = _plain(mount) if good else {"failed": "its answer was not understood"}
    return found


def _plain(mount: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing but numbers and words, and what it saw."""
    return {
        key: value
        if isinstance(value, int | float) or (key == "seen" and isinstance(value, dict))
        else str(value)[:300]
        for key, value in mount.items()
        if value is not None
    }


def _rate(figures: Mapping[str, Mapping[str, Any]]) -> str:
    rates = [each["size"] / each["write_s"] / 1e6 for each in figures.values() if each["size"] and each["write_s"]]
    return f"{statistics.median(rates):.0f} MB/s" if rates else "not written"
