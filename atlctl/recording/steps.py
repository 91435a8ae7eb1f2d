"""Training steps of a job, kept in `steps.jsonl` (the entries of `StepWatch`), and read from evidence.

    {"worker": "w-0", "loop": "plain step", "rank": 3, "step": 120, "first": 118, "time": 1700000000.5,
     "seconds": 0.31, "loss": 2.3, "border": true}

`seconds`: of each of the steps `first` to `step`; `time`: of the line of the last of them. `rank`, `local_rank`,
`time`, `loss`, `border` (an epoch begins) are there only if known. Of a loop there is at most one line a second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from atlctl.diagnosis.logline import Origin, decode
from atlctl.diagnosis.steps import MeasuredStep, StepTrack, Tracks, main_tracks, step_literals
from atlctl.jobs import fields
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.statedir import READ_FLAGS, write_all
from atlctl.recording.events import lines_within
from atlctl.recording.feed import Feed, Told, pump
from atlctl.recording.folder import log_name, look, natural
from atlctl.recording.lines import CHUNK, as_utf8, no_log, not_text
from atlctl.recording.packed import PlainBytes
from atlctl.recording.read import INPUT, STDIN, mapped, shown_path

STEPS = "steps.jsonl"
#: Bytes after which all but the newest quarter of the file is thinned out to half of that.
LIMIT = 8 << 20
#: Seconds between two entries of one loop, and the most that thinning leaves.
_APART, _FARTHEST = 1.0, 1e6
#: Bytes at the end of the file in which the last steps are.
_LAST = 256 << 10


class StepStore(Protocol):
    """The part of a recording's folder that the file needs."""

    def append(self, name: str) -> int: ...

    def read(self, name: str) -> int: ...

    def replace(self, name: str, data: bytes) -> None: ...


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
    """The tracks in a folder's `steps.jsonl`, by worker. `last`: only of the last steps in it. Invalid lines are
    skipped, and a file that cannot be read is an empty one."""
    try:
        fd = os.open(os.path.join(folder, STEPS), READ_FLAGS)
    except OSError:
        return {}
    found: dict[str, dict[tuple[Origin, str], StepTrack]] = {}
    with open(fd, "rb") as file:
        if last and os.fstat(fd).st_size > _LAST:
            file.seek(-_LAST, os.SEEK_END)
            file.readline()
        for worker, loop, origin, step in _entries(lines_within(file)):
            tracks = found.setdefault(worker, {})
            tracks.setdefault((origin, loop), StepTrack(origin, loop)).put(step)
    return {worker: main_tracks(found[worker].values()) for worker in sorted(found, key=natural)}


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


@dataclass(slots=True)
class _StepReader:
    """Takes the lines of one worker, see `atlctl.recording.feed.TakesLines`."""

    tracks: Tracks = field(default_factory=Tracks)

    def feed(self, _line_no: int, line: bytes) -> bool:
        self.tracks.feed(line)
        return False

    def catch_up(self, _lines: Iterable[tuple[int, bytes]]) -> None:
        """Skipped lines have no steps."""


@dataclass(slots=True)
class _StepReaders:
    """Readers by worker, see `atlctl.recording.feed.Readers`."""

    found: dict[str, _StepReader] = field(default_factory=dict)

    def reader(self, name: str, _how: Told | None) -> _StepReader:
        return self.found.setdefault(name, _StepReader())

    def mixed(self, _name: str) -> None:
        """A worker without steps is not shown anyway."""


@dataclass(frozen=True, slots=True)
class FoundTracks:
    """Tracks by worker, those without any left out; `problems`: logs that could not be read."""

    workers: Mapping[str, Sequence[StepTrack]]
    problems: Sequence[AtlctlError] = ()


def tracks_of(paths: Sequence[str], command: str) -> FoundTracks:
    """The training steps in saved logs, folders or recordings; `-` is standard input. `command`: see `no_log`.

    Of a folder with `steps.jsonl` only this is read. Raises AtlctlError if nothing could be read.
    """
    readers = _StepReaders()
    of_ranks: dict[tuple[str, int], _StepReaders] = {}
    found: dict[str, Sequence[StepTrack]] = {}
    problems: list[AtlctlError] = []

    def keep_going(path: str, name: str, *, alone: bool, own: _StepReaders = readers) -> None:
        try:
            _read_log(path, name, own, command, alone=alone)
        except OSError as error:
            problems.append(mapped(error, path))
        except AtlctlError as error:
            problems.append(error)

    for path in paths:
        if path == STDIN or not os.path.isdir(path):
            name = INPUT if path == STDIN or len(paths) == 1 else (log_name(os.path.basename(path)) or path)
            keep_going(path, name.removesuffix(".log"), alone=False)
            continue
        recorded = read_recorded(path)
        if recorded:
            found |= recorded
            continue
        content = look(path, error_files=True)
        for name, files in content.logs.items():
            for file in files:
                keep_going(file, name, alone=True)
        for name, rank_logs in content.rank_logs.items():
            if name in readers.found and readers.found[name].tracks.found:
                continue  # with --tee the worker's log has the same lines
            for item in sorted(rank_logs, key=lambda item: item.attempt):
                own = of_ranks.setdefault((name, item.local_rank), _StepReaders())
                keep_going(item.path, name, alone=True, own=own)
    for (name, local_rank), own in of_ranks.items():
        origin = Origin(None, local_rank)
        for track in own.reader(name, None).tracks.main():
            known = readers.reader(name, None).tracks.found
            known[origin, track.loop] = replace(track, origin=origin)
    found |= {
        name: tracks for name in sorted(readers.found, key=natural) if (tracks := readers.found[name].tracks.main())
    }
    if problems and not found and len(problems) == len(paths):
        raise problems[0]
    return FoundTracks(found, problems)


def _read_log(path: str, name: str, readers: _StepReaders, command: str, *, alone: bool) -> None:
    """Reads one log. Raises OSError and AtlctlError."""
    fd = 0 if path == STDIN else os.open(path, READ_FLAGS)
    try:
        shown = shown_path(path)
        plain = PlainBytes(lambda size: os.read(fd, size), shown, path, command)
        read, start = as_utf8(plain.read, plain.read(CHUNK))
        if what := not_text(start):
            raise no_log(what, shown, path, command)
        feed = Feed(readers, name, 0, step_literals(), start, alone=alone, everything=True)
        pump(read, feed, start, CHUNK)
    finally:
        if path != STDIN:
            os.close(fd)
