"""Fetches what the processes of a worker left, while the worker still lives: error files, their logs, dumps.

The worker sends the files behind a random mark, error files first. Names and bytes are hostile: a name only says
where below the worker's own folder a file goes, and counts and sizes are bounded.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from atlctl.backends.base import Argv, Executor
from atlctl.jobs.model import Worker
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import write_all
from atlctl.recording.recorder.ask import ask
from atlctl.recording.recorder.store import Store, create_in

SECONDS = 30.0
#: Bytes of one file (its last ones), bytes and files of one worker.
FILE_LIMIT = 8 << 20
LIMIT = 256 << 20
MAX_FILES = 4096
_DEPTH = 10
_NAME = 4096
#: $1: the mark, $2: bytes of a file. Then folders, and prefixes of dumps behind a word `-`. Only what torchelastic and
#: the flight recorder write is sent: a launcher's folder may hold anything else beside it.
_SCRIPT = r"""
m=$1 n=$2; shift 2
one() {
  [ -f "$1" ] && [ ! -L "$1" ] && printf '\n%s %s\n' "$m" "$1" && tail -c "$n" "$1"
}
every() {
  while IFS= read -r x; do one "$x"; done
}
what=root
for p in "$@"; do
  if [ "$p" = - ]; then what=dump; continue; fi
  if [ $what = root ]; then [ -f "$p" ] && one "$p"; [ -d "$p" ] && find "$p" -type f -name '*error.json' | every
  else for x in "$p"*; do one "$x"; done; fi
done
for p in "$@"; do
  [ "$p" = - ] && break
  [ -d "$p" ] && find "$p" -type f \( -name stdout.log -o -name stderr.log \) | every
done
printf '\n%s\n' "$m"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where files of one worker go: the folder `below` in the recording. `closed` syncs and closes a descriptor."""

    store: Store
    below: list[str]
    closed: Callable[[int], None]

    def create(self, path: str) -> int:
        """A descriptor of a new file for what the worker calls `path`. Raises OSError."""
        parts = [part for part in path.split("/") if part not in ("", ".", "..")] or ["file"]
        folder = self.store.below([*self.below, *parts[:-1][-_DEPTH:]])
        try:
            return create_in(folder, safe_file_name(parts[-1]))
        finally:
            os.close(folder)

    def keep(self, path: str, data: bytes) -> None:
        """Saves a file that was read in another way. Raises OSError."""
        fd = self.create(path)
        try:
            write_all(fd, data)
        finally:
            self.closed(fd)


@dataclass(frozen=True, slots=True)
class Frozen:
    """`files` were saved; `problem` says why there may be more, empty where there are none."""

    files: int
    problem: str = ""


async def freeze(
    executor: Executor, worker: Worker, roots: Iterable[str], dumps: Iterable[str], place: Place
) -> Frozen:
    """Saves files of a worker that lives. Raises OSError: no room here."""
    mark = f"@atlctl-{secrets.token_hex(16)}"
    taking = Taking(mark.encode(), place)
    words = ("sh", "-c", _SCRIPT, "sh", mark, str(FILE_LIMIT), *sorted(roots), "-", *sorted(dumps))
    try:
        problem = await ask(executor, worker, Argv(words), SECONDS, taking.feed)
    finally:
        taking.close()
    if taking.full:
        problem = f"more than {LIMIT >> 20} MiB or {MAX_FILES} files"
    elif not problem and not taking.whole:
        problem = "the answer was cut"
    return Frozen(taking.files, problem)


class Taking:
    """Takes the stream apart. `whole`: its end was seen; `full`: there was more than is taken."""

    def __init__(self, mark: bytes, place: Place) -> None:
        self.files = 0
        self.whole = self.full = False
        self._mark = b"\n" + mark
        self._place = place
        self._held = b""
        self._fd = -1
        self._size = 0

    def feed(self, data: bytes) -> None:
        """The next bytes. Raises OSError."""
        self._held += data
        while not self.whole:
            at = self._held.find(self._mark)
            if at < 0:
                sure = len(self._held) - len(self._mark)
                if sure > 0:
                    self._write(self._held[:sure])
                    self._held = self._held[sure:]
                return
            end = self._held.find(b"\n", at + len(self._mark))
            if end < 0:
                return
            self._write(self._held[:at])
            name, self._held = self._held[at + len(self._mark) : end], self._held[end + 1 :]
            self._next(name)

    def _next(self, name: bytes) -> None:
        self.close()
        if not name:
            self.whole = True
            return
        if self.files >= MAX_FILES:
            self.full = True
            return
        self._fd = self._place.create(os.fsdecode(name[1 : _NAME + 1]))
        self.files += 1

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            return
        self._size += len(data)
        if self._size > LIMIT:
            self.full = True
            self.close()
            return
        write_all(self._fd, data)

    def close(self) -> None:
        if self._fd >= 0:
            self._place.closed(self._fd)
            self._fd = -1
