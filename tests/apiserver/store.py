"""Stores objects with their versions and events."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.apiserver.resources import Resource, Served

Object = dict[str, Any]
Key = tuple[str, str]

#: Events kept for watches; older versions are "too old".
HISTORY = 20_000
#: Resources whose objects have no generation.
PLAIN = ("services", "nodes", "events", "configmaps", "namespaces")
FIRST = 1000


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def now() -> str:
    """The time in the server's format, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class Record:
    """A stored object, never changed in place; `rest` is its JSON without kind."""

    obj: Object
    _rest: bytes | None = field(default=None, repr=False)

    @property
    def rest(self) -> bytes:
        if self._rest is None:
            self._rest = dumps({k: v for k, v in self.obj.items() if k not in ("kind", "apiVersion")})[1:]
        return self._rest

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])

    @property
    def version(self) -> str:
        return str(self.obj["metadata"]["resourceVersion"])


@dataclass(frozen=True, slots=True)
class Event:
    """A change: ADDED has no `old`; DELETED has no `new`, and the last state of the object in `old`."""

    version: int
    kind: str
    storage: tuple[str, str]
    old: Record | None
    new: Record | None


class Store:
    """All objects by resource, with one counter of versions."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.version = FIRST
        self.oldest = FIRST
        self.events: deque[Event] = deque()
        self.listeners: list[Callable[[Event], None]] = []
        self._objects: dict[tuple[str, str], dict[Key, Record]] = {}
        self._changed: asyncio.Event | None = None

    def storage(self, resource: Resource) -> tuple[str, str]:
        """The storage key of a resource: all its versions, and both groups of events, share one."""
        group = "" if resource.plural == "events" else resource.group
        return group, resource.plural

    def all(self, resource: Resource) -> dict[Key, Record]:
        return self._objects.setdefault(self.storage(resource), {})

    def get(self, resource: Resource, namespace: str, name: str) -> Record | None:
        return self.all(resource).get((namespace, name))

    def pod(self, namespace: str, name: str) -> Record | None:
        return self._objects.get(("", "pods"), {}).get((namespace, name))

    def everything(self) -> Iterator[tuple[Resource, Key, Record]]:
        seen = set()
        for resource in self.served.resources:
            if (storage := self.storage(resource)) not in seen:
                seen.add(storage)
                for key, record in list(self._objects.get(storage, {}).items()):
                    yield resource, key, record

    def write(self, resource: Resource, obj: Object) -> Record:
        """Create or replace an object. Sets namespace, UID, times and version; a change of the spec increments the
        generation."""
        head: Object = {"kind": resource.kind, "apiVersion": resource.group_version}
        obj = head | obj
        metadata: Object = dict(obj.get("metadata") or {})
        namespace = metadata.get("namespace", "default") if resource.namespaced else ""
        if resource.namespaced:
            metadata["namespace"] = namespace
        key = (namespace, metadata["name"])
        old = self.all(resource).get(key)
        self.version += 1
        if old is not None:
            for part in ("uid", "creationTimestamp", "generation"):
                if part in old.obj["metadata"]:
                    metadata.setdefault(part, old.obj["metadata"][part])
        else:
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
            if resource.plural not in PLAIN:
                metadata.setdefault("generation", 1)
        metadata["resourceVersion"] = str(self.version)
        obj["metadata"] = metadata
        record = Record(obj)
        self.all(resource)[key] = record
        self._happened("ADDED" if old is None else "MODIFIED", resource, old, record)
        return record

    def remove(self, resource: Resource, namespace: str, name: str) -> Record | None:
        old = self.all(resource).pop((namespace, name), None)
        if old is None:
            return None
        self.version += 1
        last = Record(old.obj | {"metadata": old.obj["metadata"] | {"resourceVersion": str(self.version)}})
        self._happened("DELETED", resource, last, None)
        return last

    def update(self, resource: Resource, record: Record, **parts: Any) -> Record | None:
        """Replace top-level parts of an object, independent of its version; None if it is gone."""
        key = (record.obj["metadata"].get("namespace", ""), record.name)
        current = self.all(resource).get(key)
        if current is None or current.uid != record.uid:
            return None
        if all(current.obj.get(name) == part for name, part in parts.items()):
            return current
        return self.write(resource, current.obj | parts)

    def compact(self) -> None:
        """Forget the history: watches from an older version get 410."""
        self.events.clear()
        self.oldest = self.version

    def _happened(self, kind: str, resource: Resource, old: Record | None, new: Record | None) -> None:
        event = Event(self.version, kind, self.storage(resource), old, new)
        self.events.append(event)
        if len(self.events) > HISTORY:
            self.oldest = self.events.popleft().version
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        for listener in self.listeners:
            listener(event)

    async def changed(self, timeout: float) -> bool:
        """Wait for the next event; False after `timeout` seconds."""
        if self._changed is None:
            self._changed = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def since(self, version: int) -> list[Event]:
        """Events after `version`, oldest first. Searches from the end, because recent events are requested most."""
        found = []
        for event in reversed(self.events):
            if event.version <= version:
                break
            found.append(event)
        return found[::-1]
