"""Training steps of a job, kept in `steps.jsonl` (the entries of `StepWatch`), and read from there.

    {"worker": "w-0", "loop": "plain step", "rank": 3, "step": 120, "first": 118, "time": 1700000000.5,
     "seconds": 0.31, "loss": 2.3, "border": true}

`seconds`: of each of the steps `first` to `step`; `time`: of the line of the last of them. `rank`, `local_rank`,
`time`, `loss`, `border` (an epoch begins) are there only if known. Of a loop there is at most one line a second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from atlctl.diagnosis.logline import Origin, decode
from atlctl.diagnosis.steps import MeasuredStep, StepTrack, main_tracks
from atlctl.jobs import fields
from atlctl.jobs.naming import natural_key
from atlctl.jobs.statedir import READ_FLAGS, lines_within, write_all, write_atomic

STEPS = "steps.jsonl"
#: Bytes after which all but the newest quarter of the file is thinned out to half of that.
LIMIT = 8 << 20
#: Seconds between two entries of one loop, and the most that thinning leaves.
_APART, _FARTHEST = 1.0, 1e6
#: Bytes at the end of the file in which the last steps are.
_LAST = 256 << 10


class StepStore(Protocol):
    """The folder of the file."""

    def append(self, name: str) -> int: ...

    def read(self, name: str) -> int: ...

    def replace(self, name: str, data: bytes) -> None: ...


class StepFolder:
    """A folder that only this process writes to."""

    def __init__(self, path: str) -> None:
        self._path = path

    def append(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(os.path.join(self._path, name), flags, 0o600)

    def read(self, name: str) -> int:
        return os.open(os.path.join(self._path, name), READ_FLAGS)

    def replace(self, name: str, data: bytes) -> None:
        write_atomic(os.path.join(self._path, name), data)


class StepsFile:
    """Writer of `steps.jsonl`."""

    def __init__(self, store: StepStore) -> None:
        self._store = store

    def add(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Appends entries. Raises OSError."""
        data = "".join(f"{json.dumps(entry, separators=(',', ':'))}\n" for entry in entries).encode()
        if not data:
            return
        fd = self._store.append(STEPS)
        try:
            write_all(fd, data)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if size > LIMIT:
            with open(self._store.read(STEPS), "rb") as file:
                self._store.replace(STEPS, thinned(file.read(), LIMIT // 2))


def thinned(data: bytes, most: int) -> bytes:
    """The lines, evenly thinned out in all but the newest quarter until they have at most `most` bytes."""
    lines = data.splitlines(keepends=True)
    older, newer = lines[: len(lines) * 3 // 4], lines[len(lines) * 3 // 4 :]
    found = [(line.partition(b'"step"')[0], _time_of(line), line) for line in older]
    size, apart = len(data), _APART
    while size > most and apart < _FARTHEST:
        apart *= 2
        last: dict[bytes, float] = {}
        kept = []
        for item in found:
            loop, at, _ = item
            if not last.get(loop, -apart) <= at < last.get(loop, -apart) + apart:
                last[loop] = at
                kept.append(item)
        found = kept
        size = sum(len(line) for *_, line in found) + sum(map(len, newer))
    return b"".join([line for *_, line in found] + newer)


def _time_of(line: bytes) -> float:
    """The time of an entry; without one all are as old."""
    text = line.partition(b'"time":')[2].partition(b",")[0]
    try:
        return float(text)
    except ValueError:
        return 0.0


def read_recorded(folder: str, *, last: bool = False) -> dict[str, list[StepTrack]]:
    """The tracks, by worker, in the `steps.jsonl` of a recording, or in those of the workers of a start of
    `atlctl run`. `last`: only of the last steps in it. Invalid lines are skipped, and a file that cannot be read is an
    empty one."""
    found: dict[str, dict[tuple[Origin, str], StepTrack]] = {}
    for path in _files(folder):
        with suppress(OSError), open(os.open(path, READ_FLAGS), "rb") as file:
            if last and os.fstat(file.fileno()).st_size > _LAST:
                file.seek(-_LAST, os.SEEK_END)
                file.readline()
            for worker, loop, origin, step in _entries(lines_within(file)):
                tracks = found.setdefault(worker, {})
                tracks.setdefault((origin, loop), StepTrack(origin, loop)).put(step)
    return {worker: main_tracks(found[worker].values()) for worker in sorted(found, key=natural_key)}


def _files(folder: str) -> list[str]:
    whole = os.path.join(folder, STEPS)
    if os.path.lexists(whole):
        return [whole]
    with suppress(OSError):
        return [os.path.join(folder, name, "workers", name, STEPS) for name in os.listdir(folder)]
    return []


def _entries(lines: Iterable[bytes]) -> Iterator[tuple[str, str, Origin, MeasuredStep]]:
    for line in lines:
        try:
            item = fields.parse_json(decode(line))
        except (ValueError, RecursionError):
            continue
        if not isinstance(item, dict):
            continue
        worker, loop = fields.text(item.get("worker"), 300), fields.text(item.get("loop"), 100)
        number, first = fields.whole(item.get("step")), fields.whole(item.get("first"))
        seconds = fields.number(item.get("seconds"))
        if not worker or number is None or first is None or not 0 <= first <= number or not seconds or seconds < 0:
            continue
        origin = Origin(fields.whole(item.get("rank")), fields.whole(item.get("local_rank")))
        at, loss = fields.moment(item.get("time")), fields.number(item.get("loss"))
        yield worker, loop, origin, MeasuredStep(number, first, at, seconds, loss, item.get("border") is True)
