"""Training steps in saved logs, folders and recordings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atlctl.diagnosis.logline import Origin
from atlctl.diagnosis.stepfile import read_recorded
from atlctl.diagnosis.steps import StepTrack, Tracks, step_literals
from atlctl.jobs.errors import AtlctlError
from atlctl.jobs.naming import natural_key
from atlctl.jobs.statedir import READ_FLAGS
from atlctl.recording.feed import Feed, Told, pump
from atlctl.recording.folder import log_name, look
from atlctl.recording.lines import CHUNK, STDIN, as_utf8, no_log, not_text
from atlctl.recording.packed import PlainBytes
from atlctl.recording.read import INPUT, mapped, shown_path


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
        name: tracks for name in sorted(readers.found, key=natural_key) if (tracks := readers.found[name].tracks.main())
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
