"""Recordings of jobs: find them, decide if they have more evidence than the platform, and read them."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed
from atlctl.jobs.fields import entries, items, mapping, parse_json
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import check_private, ensure_dir, read_bytes, state_dir, write_atomic

if TYPE_CHECKING:
    from atlctl.cli.evidence.findings import Display
    from atlctl.jobs.model import Job, RankMap

#: Bytes of all logs that are read at first: a verdict is wanted soon. More is read where the failure began before.
BUDGET = 384 << 20
#: Recordings outside of the default place that are remembered, the last ones; bytes of the file that lists them.
MOST_NOTES = 200
NOTES_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording. `data` is its `atlctl.json`; `running`: a recorder writes to it."""

    folder: str
    data: Mapping[str, Any]
    running: bool

    @property
    def updated(self) -> float:
        """Until when it reaches, seconds since the epoch."""
        value = (self.data.get("recorder") or {}).get("updated")
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def whole(self) -> bool:
        """Whether it reaches to the end of its job."""
        return (self.data.get("recorder") or {}).get("ended") is not None


def place(backend: str, namespace: str | None, name: str) -> str:
    """The folder of the recordings of all jobs that have had this name."""
    parts = ("recordings", backend, safe_file_name(namespace or "_"), safe_file_name(name))
    return os.path.join(state_dir(), *parts)


def new_folder(job: Job) -> str:
    """The default folder of a job's recording; the folders above it are made. Raises AtlctlError."""
    above = place(job.backend, job.namespace, job.name)
    ensure_dir(above, state_dir())
    return os.path.join(above, safe_file_name(job.uid or "_"))


def of_job(job: Job) -> Recording | None:
    """The recording of exactly this job, in the default place or where `record --out` put it."""
    above = place(job.backend, job.namespace, job.name)
    own = _read(os.path.join(above, safe_file_name(job.uid or "_")), state_dir())
    others = [item for item in _elsewhere(job.backend, job.namespace) if job.uid and _about(item, "uid") == job.uid]
    return max((item for item in (own, *others) if item), key=lambda item: item.updated, default=None)


def newest(backend: str, namespace: str | None, name: str, besides: str = "") -> Recording | None:
    """The last recording of a job of this name. `besides`: the UID of a job that does not count."""
    bare = name.rpartition("/")[2]
    above = place(backend, namespace, bare)
    found: list[Recording | None] = []
    with suppress(OSError):
        found += [_read(os.path.join(above, entry), state_dir()) for entry in os.listdir(above)]
    found += [item for item in _elsewhere(backend, namespace) if _about(item, "name") == bare]
    others = [item for item in found if item is not None and not (besides and _about(item, "uid") == besides)]
    return max(others, key=lambda item: item.updated, default=None)


def _about(recording: Recording, key: str) -> Any:
    return mapping(recording.data.get("job")).get(key)


def _notes() -> str:
    """The file that lists recordings outside of the default place: `uid`, `backend`, `namespace`, `folder` of each."""
    return os.path.join(state_dir(), "recordings", "elsewhere.json")


def remember(job: Job, folder: str) -> None:
    """Notes that the recording of the job is in `folder`, an absolute path. Raises AtlctlError."""
    ensure_dir(os.path.dirname(_notes()))
    lock = os.open(f"{_notes()}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = [item for item in _noted() if item["folder"] != folder and os.path.isdir(item["folder"])]
        kept.append({"uid": job.uid, "backend": job.backend, "namespace": job.namespace, "folder": folder})
        write_atomic(_notes(), json.dumps(kept[-MOST_NOTES:], indent=1).encode() + b"\n")
    finally:
        os.close(lock)


def _noted() -> list[dict[str, Any]]:
    """The entries of the file, without those that are none."""
    try:
        data = parse_json(read_bytes(_notes(), NOTES_LIMIT))
    except (FileNotFoundError, AtlctlError, ValueError, RecursionError):
        return []
    return [item for item in entries(data) if isinstance(item.get("folder"), str)]


def _elsewhere(backend: str, namespace: str | None) -> list[Recording]:
    """Recordings that `record --out` made, in folders that only this user can write to."""
    found = []
    for item in _noted():
        if (item.get("backend"), item.get("namespace")) != (backend, namespace) or not os.path.isabs(item["folder"]):
            continue
        recording = _read(item["folder"], item["folder"])
        if recording is not None and _about(recording, "uid") == item.get("uid"):
            found.append(recording)
    return found


def _read(folder: str, top: str) -> Recording | None:
    """The recording in `folder`; None without one, and with a note if other users own or may write to it or a folder
    above it, up to `top`."""
    from atlctl.recording import manifest

    try:
        check_private(folder, top)
        data = read_bytes(os.path.join(folder, manifest.NAME), manifest.SIZE_LIMIT)
        manifest.read_manifest(data)
    except NotAllowed as error:
        say.note(Message("the recording was not read: {why}", why=error.message))
        return None
    except (FileNotFoundError, AtlctlError, ValueError):
        return None
    found = parse_json(data)
    return Recording(folder, found, _locked(folder)) if isinstance(found.get("recorder"), dict) else None


def _locked(folder: str) -> bool:
    from atlctl.recording.recorder.store import LOCK

    try:
        fd = os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def numbers(job: Job) -> dict[str, tuple[str, int]]:
    """Names and indexes of the job's workers by the UIDs of their pods, as its recording knows them."""
    recording = of_job(job)
    found: dict[str, tuple[str, int]] = {}
    for item in recording.data.get("workers", ()) if recording else ():
        for pod in (item, *(item.get("attempts") or ())):
            uid, index = pod.get("uid"), item.get("index")
            if isinstance(uid, str) and isinstance(index, int):
                found[uid] = str(item["name"]), index
    return found


def lost(recording: Recording, job: Job) -> list[str]:
    """Workers of whom the recording has what the platform has no more: their pod is gone, or was another before."""
    from atlctl.recording.save import stem

    now = {stem(worker.name): worker for worker in job.workers}
    found = []
    for item in recording.data.get("workers", ()):
        worker = now.get(item["name"])
        same = worker is not None and (item.get("uid"), item.get("restarts") or 0) == (worker.uid, worker.restarts)
        if not same or item.get("attempts"):
            found.append(str(item["name"]))
    return found


def ranks(job: Job) -> RankMap | None:
    """The worker of each rank when its recorder looked last; None if unknown for this run of every worker.

    A guess if the recorder ended before the job: a later attempt may have assigned other ranks.
    """
    from atlctl.jobs.model import RankMap
    from atlctl.recording.save import stem

    recording = of_job(job)
    if recording is None:
        return None
    now = {stem(worker.name): worker for worker in job.workers}
    found: dict[int, str] = {}
    for item in recording.data.get("workers", ()):
        worker = now.get(item["name"])
        if worker is None or (item.get("uid"), item.get("restarts") or 0) != (worker.uid, worker.restarts):
            continue
        for held in items(item.get("ranks")):
            rank = mapping(held).get("rank")
            if type(rank) is not int or rank < 0 or rank in found:
                return None  # two workers with one rank are two trainings
            found[rank] = worker.name
    guess = not (recording.running or recording.whole)
    return RankMap(found, Message("the recording of the job"), guess) if found else None


def last_steps(job: Job) -> dict[str, tuple[int, float]]:
    """The last step of each worker and seconds since then: from its wrapper, else from the recording of exactly this
    job, if that is being written or whole, else from the files of a wrapper in this container."""
    from atlctl.cli import hosts
    from atlctl.recording.save import stem

    found = {worker.name: worker.step for worker in job.workers if worker.step is not None}
    recording = None if found else of_job(job)
    folder, names = "", {worker.index: stem(worker.name) for worker in job.workers}
    if recording is not None and (recording.running or recording.whole):
        folder = recording.folder
    elif not found and (record := hosts.wrappers_of(job.name)) is not None and record.own is not None:
        folder = os.path.dirname(record.placed(record.own).folder)
        names = {index: placed.name for index, placed in enumerate(record.workers)}
    if folder:
        from atlctl.diagnosis.stepfile import read_recorded
        from atlctl.diagnosis.steps import last_step

        recorded = read_recorded(folder, last=True)
        for worker in job.workers:
            if (last := last_step(recorded.get(names.get(worker.index, ""), ()))) is not None:
                found[worker.name] = last
    now = time.time()
    return {name: (number, max(0.0, now - at)) for name, (number, at) in found.items()}


def completed(job: Job, seen: RankMap | None) -> RankMap | None:
    """`seen`, completed from the recording for workers that no longer hold ranks; observed ranks have precedence over
    the recording, and the recording over a guess."""
    from atlctl.jobs.model import RankMap

    if seen is not None and not seen.guess and set(seen.workers.values()) >= {worker.name for worker in job.workers}:
        return seen
    known = ranks(job)
    if known is None or (seen is not None and seen.guess and known.guess):
        return seen
    if seen is None or seen.guess:
        return known
    living = set(seen.workers.values())
    more = {rank: name for rank, name in known.workers.items() if rank not in seen.workers and name not in living}
    if not more:
        return seen
    return RankMap(
        {**seen.workers, **more}, Message("{one} and {other}", one=seen.source, other=known.source), known.guess
    )


def tells_more(recording: Recording, job: Job) -> bool:
    """Whether a verdict should rest on the recording: it has what is gone, and reaches far enough.

    One that broke off before the job's end counts only where the platform has no logs at all.
    """
    if not lost(recording, job):
        return False
    return recording.running or recording.whole or not job.workers


def source_of(recording: Recording) -> Message:
    return Message("from the recording in {folder}", folder=recording.folder)


def tell(recording: Recording, display: Display) -> int:
    """Prints what the recording says; returns the exit code of `errors`."""
    from atlctl.cli.evidence.findings import tell_saved
    from atlctl.render.table import rfc3339

    until = Message("until {time}", time=rfc3339(recording.updated))
    how = Message("to the end of the job") if recording.whole else until
    say.note(Message("{what}, which reaches {how}", what=source_of(recording), how=how))
    known = recording.data["job"]
    about = {"job": known.get("name"), "uid": known.get("uid"), "state": known.get("state")}
    return tell_saved(
        [recording.folder],
        display,
        error_files=True,
        about=about,
        budget=BUDGET,
    )
