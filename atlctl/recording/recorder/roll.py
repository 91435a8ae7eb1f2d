"""The workers of a recording, now and before their restarts, and the `atlctl.json` that the recorder writes.

Beside the fields that `manifest` reads, `atlctl.json` has `recorder` (`backend`, `started`, `updated`, `ended`,
`keep_mib`, `incomplete`: `worker`, `reason`), and for each worker `uid`, `ranks` (`rank`, `local_rank`, `gpu_uuid`),
`environment` (variables of NCCL, torch and the like), `files` (paths of its launcher's files), and `attempts` (its data
before each restart).

A small script in the worker finds the ranks, their GPUs and the paths of their launcher's files: it reads the
environments of torchrun's processes and runs nvidia-smi. Its output is hostile text.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atlctl.backends.base import Argv, Event, ExecRequest, Executor, Exited, FailedToStart, Lost, Output
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, UsageError, no_answer
from atlctl.jobs.model import FAILED_STATES, HELD_REASON, Job, State, Worker
from atlctl.recording import manifest
from atlctl.recording.folder import NEW_FOLDER
from atlctl.recording.recorder.store import Store
from atlctl.recording.save import describe_job, describe_worker, stem

#: The last attempts of one worker that are kept.
MAX_ATTEMPTS = 64
GONE = Message("its pod is gone")
#: Fields of an attempt that are kept.
_OF_ATTEMPT = (
    *("uid", "pod", "node", "restarts", "started", "ended", "state", "reason", "message", "exit_code", "signal"),
    *("ranks", "gpus"),
)
SEATS_SECONDS = 20.0
_SEATS_LIMIT = 256 * 1024
_MOST = 1024
_TEXT = 4096
#: Prints one line per process: its worker (local jobs only), rank, local rank, visible devices, error file, prefix of
#: its dumps, variables that change its speed. Then the GPUs. One `grep` finds the processes, because a shell loop over
#: all of them is slow. No -F: in some builds of busybox it stops at the first NUL.
_SEATS_SCRIPT = r"""
tab=$(printf '\t')
if command -v grep >/dev/null 2>&1; then set -- $(grep -l TORCHELASTIC_RUN_ID= /proc/[0-9]*/environ 2>/dev/null)
else set -- /proc/[0-9]*/environ; fi
for f in "$@"; do
  tr '\0' '\n' <"$f" 2>/dev/null | { r= l= t= d=- e= b= j= w= s= v=
    while IFS= read -r x; do
      case $x in
        RANK=*) r=${x#*=};; LOCAL_RANK=*) l=${x#*=};; TORCHELASTIC_RUN_ID=*) t=1;;
        CUDA_VISIBLE_DEVICES=*) d=${x#*=};; TORCHELASTIC_ERROR_FILE=*) e=${x#*=};;
        TORCH_NCCL_DEBUG_INFO_TEMP_FILE=*|TORCH_FR_DUMP_TEMP_FILE=*) b=${x#*=};;
        ATLCTL_JOB=*) j=${x#*=};; ATLCTL_WORKER=*) w=${x#*=};; ATLCTL_STATE_DIR=*) s=${x#*=};;
        NCCL_*|TORCH_*|PYTORCH_*|CUDA_*|CUBLAS_*|OMP_*|MKL_*|GLOO_*|UCX_*) v=$v$tab$x;;
      esac
    done
    [ -n "$t" ] && [ -n "$l" ] && [ "$j/$s" = "$ATLCTL_JOB/$ATLCTL_STATE_DIR" ] &&
      printf 'P\t%s\t%s\t%s\t%s\t%s\t%s%s\n' "$w" "$r" "$l" "$d" "$e" "$b" "$v"; }
done | sort -u
command -v nvidia-smi >/dev/null 2>&1 || exit 0
nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv,noheader 2>/dev/null | while IFS= read -r x; do
  printf 'G\t%s\n' "$x"
done
exit 0
"""
#: Seconds from SIGTERM to SIGKILL for a command that takes too long.
_GRACE = 1.0


@dataclass(slots=True)
class Seat:
    """One process: its global and local rank, and its GPU's UUID, if known."""

    rank: int
    local_rank: int
    gpu: str | None = None


@dataclass(slots=True)
class Seats:
    """Processes, GPUs and file paths of one worker. `gpus`: index, UUID, PCI address. `roots`: folders of error files
    and rank logs. `dumps`: prefixes of flight-recorder dumps. `environment`: variables of the first process."""

    seats: list[Seat] = field(default_factory=list)
    gpus: list[tuple[int, str, str]] = field(default_factory=list)
    roots: set[str] = field(default_factory=set)
    dumps: set[str] = field(default_factory=set)
    environment: dict[str, str] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """The `ranks`, `gpus` and `environment` of a worker in `atlctl.json`."""
        local = {seat.gpu: seat.local_rank for seat in self.seats if seat.gpu is not None}
        ranks = [{"rank": seat.rank, "local_rank": seat.local_rank, "gpu_uuid": seat.gpu} for seat in self.seats]
        gpus = [
            {"local_rank": local.get(uuid), "index": index, "uuid": uuid, "pci": pci} for index, uuid, pci in self.gpus
        ]
        return {"ranks": ranks, "gpus": gpus, "environment": self.environment}


@dataclass(slots=True)
class RecordedWorker:
    """One worker. `run` counts its pods and containers, from 0. `held`: its log shows that its trainer has failed."""

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
        """The worker with its state corrected by the recorder: pod gone, or trainer failed."""
        worker = self.worker
        if not self.present and worker.state.active:
            return replace(
                worker,
                state=State.UNKNOWN,
                reason=GONE,
                message=Message("it was {state} before", state=worker.state.label),
            )
        if self.held and worker.state is State.RUNNING:
            return replace(worker, state=State.HELD, reason=HELD_REASON)
        return worker

    @property
    def failed(self) -> bool:
        return self.shown.state in FAILED_STATES

    @property
    def alive(self) -> bool:
        """Whether a command can still run in it."""
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
    """The workers by name, with the data of an earlier recorder (`before`: its `atlctl.json`)."""

    def __init__(self, job: Job, before: Mapping[str, Any]) -> None:
        self.job = job
        self.entries: dict[str, RecordedWorker] = {}
        self._before = {str(item.get("name")): item for item in before.get("workers", ())}

    def earlier(self, worker: Worker) -> tuple[str | None, int] | None:
        """The pod and the restarts of a worker as the earlier recorder last saw them; None if it did not know it."""
        known = self._before.get(stem(worker.name))
        return None if known is None else (known.get("uid"), int(known.get("restarts") or 0))

    def take(self, job: Job) -> tuple[list[RecordedWorker], list[RecordedWorker]]:
        """Updates the workers. Returns the new entries, and the entries of restarted workers."""
        self.job = job
        new: list[RecordedWorker] = []
        restarted: list[RecordedWorker] = []
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
        """Marks all workers as gone, because the job is."""
        for entry in self.entries.values():
            entry.present = False

    def _taken_up(self, worker: Worker) -> RecordedWorker:
        entry = RecordedWorker(worker)
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
        """The contents of `atlctl.json`. Workers that only the earlier recorder saw are kept unchanged."""
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


def _next(entry: RecordedWorker, last: Mapping[str, Any]) -> None:
    """Starts a new run of a restarted worker and keeps its `last` data as an attempt."""
    entry.attempts = [*entry.attempts, {name: last.get(name) for name in _OF_ATTEMPT}][-MAX_ATTEMPTS:]
    entry.run += 1
    entry.held = False
    entry.seats = Seats()


def begun(store: Store, job: Job) -> Mapping[str, Any]:
    """The `atlctl.json` of the earlier recorder of the folder; empty for a new folder.

    Raises UsageError if it belongs to another job, or was not written by a recorder.
    """
    if manifest.NAME not in store.names():
        return {}
    with open(store.read(manifest.NAME), "rb") as file:
        data = file.read(manifest.SIZE_LIMIT + 1)
    known = manifest.read_manifest(data)
    found = json.loads(data)
    hint = NEW_FOLDER
    if not isinstance(found.get("recorder"), dict):
        raise UsageError(Message("{path} holds saved logs, not a recording", path=store.path), hint)
    if known.job.uid != job.uid:
        raise UsageError(
            Message(
                "{path} is the recording of another job ({job}, uid {uid})",
                path=store.path,
                job=known.job.name,
                uid=known.job.uid,
            ),
            hint,
        )
    return dict(found)


async def look_for_seats(executor: Executor, worker: Worker) -> dict[str, Seats] | None:
    """Finds the ranks and GPUs of a running worker, by worker name; None if the script failed.

    Workers of a local job share a machine, so one of them shows the processes of all.
    """
    held = bytearray()

    def take(data: bytes) -> None:
        held.extend(data[: _SEATS_LIMIT - len(held)])

    problem = await ask(executor, worker, Argv(("sh", "-c", _SEATS_SCRIPT)), SEATS_SECONDS, take)
    return None if problem else read_seats(bytes(held), worker.name)


def read_seats(data: bytes, asked: str) -> dict[str, Seats]:
    """Parses the script's output from the worker `asked`. Never raises."""
    gpus: list[tuple[int, str, str]] = []
    processes: dict[str, list[list[str]]] = {asked: []}
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        kind, _, rest = line[:_TEXT].partition("\t")
        if kind == "P" and len(parts := rest.split("\t")) >= 6:
            processes.setdefault(parts[0] or asked, []).append(parts[1:])
        elif kind == "G" and len(gpus) < _MOST:
            index, *more = [part.strip() for part in rest.split(",")]
            if index.isascii() and index.isdigit() and len(index) < 5 and len(more) == 2:
                gpus.append((int(index), more[0], more[1]))
    return {name: _seats(parts, gpus) for name, parts in processes.items()}


def _seats(processes: list[list[str]], gpus: list[tuple[int, str, str]]) -> Seats:
    found = Seats(gpus=gpus)
    for rank, local, visible, error_file, prefix, *variables in processes[:_MOST]:
        if not all(text.isascii() and text.isdigit() and len(text) < 8 for text in (rank, local)):
            continue
        if all(seat.rank != int(rank) for seat in found.seats):
            found.seats.append(Seat(int(rank), int(local), _gpu(int(local), visible, gpus)))
        # RUN/attempt_N/LOCAL_RANK/error.json: all attempts are below RUN.
        root = error_file.rsplit("/", 3)
        found.environment = found.environment or dict(sorted(item.split("=", 1) for item in variables if "=" in item))
        if error_file.startswith("/") and len(root) == 4 and root[0]:
            found.roots.add(root[0])
        if prefix.startswith("/"):
            found.dumps.add(prefix)
    found.seats.sort(key=lambda seat: seat.rank)
    return found


def _gpu(local_rank: int, visible: str, gpus: list[tuple[int, str, str]]) -> str | None:
    """The UUID of the process's GPU: `cuda:LOCAL_RANK`, or the only visible one."""
    if visible == "-":
        order = [uuid for _, uuid, _ in gpus]
    else:
        named = [word.strip() for word in visible.split(",") if word.strip()]
        by_index = {str(index): uuid for index, uuid, _ in gpus}
        order = [by_index.get(word) or next((u for _, u, _ in gpus if u.startswith(word)), "") for word in named]
    place = 0 if len(order) == 1 else local_rank
    return (order[place] or None) if place < len(order) else None


async def ask(executor: Executor, worker: Worker, argv: Argv, seconds: float, take: Callable[[bytes], None]) -> str:
    """Runs a command and passes its standard output to `take`; returns the problem, empty on success."""
    execution = executor.run(worker, ExecRequest(argv))
    last: Event | None = None
    try:
        async with asyncio.timeout(seconds):
            async for last in execution:
                if isinstance(last, Output) and last.stream == "stdout":
                    take(last.data)
    except TimeoutError:
        await execution.end(_GRACE)
        return no_answer(seconds)
    except AtlctlError as error:
        return error.message
    finally:
        await execution.aclose()
    if isinstance(last, Lost | FailedToStart):
        return last.reason
    if isinstance(last, Exited) and last.exit_code == 0:
        return ""
    return Message("the command that reads its files failed")
