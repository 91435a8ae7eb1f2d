"""What happened around the workers, as lines of JSON: the platform's events, and each change of a worker's state.

events.jsonl   events as the platform has them; one that counted up stands there again
states.jsonl   {"time", "worker", "state", "reason", "message", "exit_code", "signal", "restarts", "pod", "node"}
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from atlctl.jobs.model import Worker
from atlctl.jobs.statedir import write_all
from atlctl.recording.events import MAX_EVENTS, lines_within
from atlctl.recording.recorder.store import Store

EVENTS = "events.jsonl"
STATES = "states.jsonl"
#: Bytes after which a file is written anew with its newest lines alone.
LIMIT = 32 << 20


class Lines:
    """A file of JSON lines that is appended to. Raises OSError."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._size = 0

    def recorded(self) -> list[dict[str, Any]]:
        """The objects that an earlier recorder wrote. A line that a crash has cut is ended: it spoils no other."""
        if self._name not in self._store.names():
            return []
        found: list[dict[str, Any]] = []
        torn = False
        with open(self._store.read(self._name), "rb") as file:
            for line in lines_within(file):
                torn = not line.endswith(b"\n")
                try:
                    item = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(item, dict):
                    found.append(item)
            self._size = os.fstat(file.fileno()).st_size
        if torn:
            self._append(b"\n")
        return found

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        data = "".join(f"{json.dumps(item)}\n" for item in items).encode()
        if not data:
            return
        self._append(data)
        if self._size > LIMIT:
            newest = self.recorded()[-MAX_EVENTS:]
            short = "".join(f"{json.dumps(item)}\n" for item in newest).encode()[-LIMIT // 2 :]
            self._store.replace(self._name, short[short.find(b"\n") + 1 :] if len(short) == LIMIT // 2 else short)
            self._size = len(short)

    def _append(self, data: bytes) -> None:
        fd = self._store.append(self._name)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        self._size += len(data)


class Events:
    """The platform's events, each form of one once."""

    def __init__(self, store: Store) -> None:
        self._lines = Lines(store, EVENTS)
        self._seen = {_key(item): None for item in self._lines.recorded()}

    def take(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Raises OSError."""
        fresh = [item for item in found if _key(item) not in self._seen]
        self._lines.add(fresh)
        self._seen.update(dict.fromkeys(map(_key, fresh)))
        while len(self._seen) > 2 * MAX_EVENTS:
            del self._seen[next(iter(self._seen))]


def _key(event: Mapping[str, Any]) -> int:
    """Tells an event, and how often it was seen, from others: an object is changed with every count."""
    meta = event.get("metadata")
    if isinstance(meta, dict) and meta.get("uid") and meta.get("resourceVersion"):
        return hash((str(meta["uid"]), str(meta["resourceVersion"])))
    return hash(json.dumps(event, sort_keys=True))


class States:
    """Changes of workers' states."""

    def __init__(self, store: Store) -> None:
        self._lines = Lines(store, STATES)
        self._last: dict[str, tuple[Any, ...]] = {
            str(item.get("worker")): tuple(item.get(name) for name in _STATE) for item in self._lines.recorded()
        }

    def take(self, workers: Iterable[Worker]) -> None:
        """Raises OSError."""
        changed = []
        for worker in workers:
            values = {name: getattr(worker, name) for name in _STATE} | {"state": str(worker.state)}
            if self._last.get(worker.name) != tuple(values.values()):
                self._last[worker.name] = tuple(values.values())
                changed.append({"time": time.time(), "worker": worker.name, **values})
        self._lines.add(changed)


_STATE = ("state", "reason", "message", "exit_code", "signal", "restarts", "pod", "node")
