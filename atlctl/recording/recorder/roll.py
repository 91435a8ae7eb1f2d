"""Who the workers are, and who they were: the register of a recording, and `atlctl.json` in it.

Beside what `manifest` reads, `atlctl.json` holds `recorder` (`backend`, `started`, `updated`, `ended`, `keep_mib`,
`incomplete`: `worker`, `since`, `reason`), and of each worker `uid`, `ranks` (`rank`, `local_rank`, `gpu_uuid`),
`files` (where its launcher keeps files), and `attempts`: what it was before it was restarted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atlctl.jobs.errors import UsageError
from atlctl.jobs.model import FAILED_STATES, Job, State, Worker
from atlctl.recording import manifest
from atlctl.recording.recorder.ranks import Seats
from atlctl.recording.recorder.store import Store
from atlctl.recording.save import describe_job, describe_worker, stem

#: Attempts of one worker that are kept, the last ones.
MAX_ATTEMPTS = 64
HELD = "its trainer has failed; the launch script lives on"
GONE = "its pod is gone"
#: What is kept of an attempt.
_OF_ATTEMPT = (
    *("uid", "pod", "node", "restarts", "started", "ended", "state", "reason", "message", "exit_code", "signal"),
    *("ranks", "gpus"),
)


@dataclass(slots=True)
class Entry:
    """One worker. `run` counts its pods and containers, from 0. `held`: its log says that its trainer has failed."""

    worker: Worker
    run: int = 0
    held: bool = False
    present: bool = True
    seats: Seats = field(default_factory=Seats)
    attempts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def instance(self) -> tuple[str | None, int]:
        return self.worker.uid, self.worker.restarts

    @property
    def shown(self) -> Worker:
        """The worker with what the recorder knows beside its platform."""
        worker = self.worker
        if not self.present and worker.state.active:
            return replace(worker, state=State.UNKNOWN, reason=GONE, message=f"it was {worker.state} before")
        if self.held and worker.state is State.RUNNING:
            return replace(worker, state=State.HELD, reason=HELD)
        return worker

    @property
    def failed(self) -> bool:
        return self.shown.state in FAILED_STATES

    @property
    def alive(self) -> bool:
        """Whether a command may still reach it."""
        return self.present and self.worker.state in (State.RUNNING, State.HELD, State.STOPPING)

    def data(self) -> dict[str, Any]:
        files = {"roots": sorted(self.seats.roots), "dumps": sorted(self.seats.dumps)}
        return {
            **describe_worker(self.shown),
            "uid": self.worker.uid,
            **self.seats.data(),
            "files": files,
            "run": self.run,
            "attempts": self.attempts,
        }


class Roll:
    """The workers by name, as an earlier recorder knew them (`before`: its `atlctl.json`) and as they are now."""

    def __init__(self, job: Job, before: Mapping[str, Any]) -> None:
        self.job = job
        self.entries: dict[str, Entry] = {}
        self._before = {str(item.get("name")): item for item in before.get("workers", ())}

    def earlier(self, worker: Worker) -> tuple[str | None, int] | None:
        """The pod and the restarts of a worker as the earlier recorder last saw it; None where it did not."""
        known = self._before.get(stem(worker.name))
        return None if known is None else (known.get("uid"), int(known.get("restarts") or 0))

    def take(self, job: Job) -> tuple[list[Entry], list[Entry]]:
        """What is true now. Returns the entries that are new, and those whose worker was restarted."""
        self.job = job
        new: list[Entry] = []
        restarted: list[Entry] = []
        for known in self.entries.values():
            known.present = False
        for worker in job.workers:
            if worker.name not in self.entries:
                self.entries[worker.name] = self._taken_up(worker)
                new.append(self.entries[worker.name])
            entry = self.entries[worker.name]
            if entry.instance != (worker.uid, worker.restarts):
                _next(entry, entry.data())
                restarted.append(entry)
            entry.worker, entry.present = worker, True
        return new, restarted

    def vanish(self) -> None:
        """The job is gone, and with it all its workers."""
        for entry in self.entries.values():
            entry.present = False

    def _taken_up(self, worker: Worker) -> Entry:
        entry = Entry(worker)
        known = self._before.get(stem(worker.name))
        if known is None:
            return entry
        entry.run = int(known.get("run") or 0)
        entry.attempts = list(known.get("attempts") or ())
        if self.earlier(worker) != entry.instance:
            _next(entry, known)
            return entry
        entry.held = known.get("state") == State.HELD
        files = known.get("files") or {}
        entry.seats.roots.update(files.get("roots") or ())
        entry.seats.dumps.update(files.get("dumps") or ())
        return entry

    def data(self, recorder: Mapping[str, Any]) -> bytes:
        """`atlctl.json`. Workers that only the earlier recorder has seen stay as they were."""
        now = {stem(name): entry.data() for name, entry in self.entries.items()}
        left = [item for name, item in self._before.items() if name not in now]
        workers = sorted([*now.values(), *left], key=lambda item: int(item.get("index") or 0))
        whole = {
            "version": manifest.VERSION,
            "job": describe_job(self.job),
            "workers": workers,
            "recorder": {**recorder, "updated": time.time()},
        }
        return json.dumps(whole, indent=1).encode() + b"\n"


def _next(entry: Entry, last: Mapping[str, Any]) -> None:
    """The worker begins anew: what it was is kept."""
    entry.attempts = [*entry.attempts, {name: last.get(name) for name in _OF_ATTEMPT}][-MAX_ATTEMPTS:]
    entry.run += 1
    entry.held = False
    entry.seats = Seats()


def begun(store: Store, job: Job) -> Mapping[str, Any]:
    """The `atlctl.json` of the recorder that began the folder; empty in a new one.

    Raises UsageError where it is of another job, or of something else than a recorder.
    """
    if manifest.NAME not in store.names():
        return {}
    with open(store.read(manifest.NAME), "rb") as file:
        data = file.read(manifest.SIZE_LIMIT + 1)
    known = manifest.read_manifest(data)
    found = json.loads(data)
    hint = "name another folder with --out"
    if not isinstance(found.get("recorder"), dict):
        raise UsageError(f"{store.path} holds saved logs, and no recording", hint)
    if known.job.uid != job.uid:
        raise UsageError(f"{store.path} is the recording of another job ({known.job.name}, uid {known.job.uid})", hint)
    return dict(found)
