"""Reads `atlctl.json` of an evidence folder: the job and its workers as the platform reports them. Version 1.

    {"version": 1,
     "job": {"name", "kind", "uid", "state", "namespace", "expected_workers", "command"},
     "workers": [{"name", "index", "node_rank", "pod", "node", "host_ip", "addresses", "state", "reason", "message",
                  "exit_code", "signal", "restarts", "started", "ended",
                  "gpus": [{"local_rank", "index", "uuid", "pci"}]}],
     "streams": [names of logs in the folder that hold the lines of many workers],
     "cut": [paths in the folder of logs that are copies of cut or damaged files]}

Only `version`, `workers` and a worker's `name` are required; null counts as missing, unknown fields are ignored. Times
are RFC 3339, or seconds since the epoch. Texts are not sanitized here: the output does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atlctl.diagnosis.platform import PlatformState
from atlctl.diagnosis.result import GpuIdentity
from atlctl.i18n import Message
from atlctl.jobs.errors import UsageError, too_long
from atlctl.jobs.fields import NotRead, moment, read_json, without_surrogates
from atlctl.jobs.model import State

NAME = "atlctl.json"
VERSION = 1
SIZE_LIMIT = 16 * 1024 * 1024
_HINT = Message("repair it or move it away; the logs can be read without it")


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The job. `expected_workers` is the intended number of workers, `command` the command that they run."""

    name: str = ""
    kind: str = ""
    uid: str = ""
    state: State = State.UNKNOWN
    namespace: str | None = None
    expected_workers: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker. `index` is its position in the job; times are seconds since the epoch."""

    name: str
    index: int
    node_rank: int | None
    pod: str | None
    state: State
    started: float | None
    ended: float | None
    platform: PlatformState


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of the file. `workers` are in file order. `streams` are logs with lines of several workers,
    `cut` those that lack lines."""

    job: JobInfo
    workers: tuple[WorkerInfo, ...]
    streams: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()


def read_manifest(data: bytes) -> Manifest:
    """Parses the manifest. Raises UsageError that names the invalid field."""
    if len(data) > SIZE_LIMIT:
        raise _wrong("", too_long(SIZE_LIMIT))
    try:
        document = read_json(data)
    except NotRead as error:
        raise _wrong("", error.why) from None
    fields = _Fields(document, "")
    version = fields.whole("version")
    if version != VERSION:
        newer = version is not None and version > VERSION
        why = (
            Message("version {version} is newer than this atlctl", version=version)
            if newer
            else Message("expected version {version}", version=VERSION)
        )
        raise _wrong("version", why)
    workers = tuple(_worker(item, place) for place, item in enumerate(fields.items("workers", required=True)))
    names = set()
    for place, worker in enumerate(workers):
        if worker.name in names:
            raise _wrong(f"workers[{place}].name", Message("the name of another worker"))
        names.add(worker.name)
    job = fields.inner("job")
    return Manifest(
        JobInfo(
            job.text("name") or "",
            job.text("kind") or "",
            job.text("uid") or "",
            job.state(),
            job.text("namespace"),
            job.whole("expected_workers", least=0),
            job.text("command") or "",
        ),
        workers,
        frozenset(fields.texts("streams")),
        frozenset(fields.texts("cut")),
    )


def _worker(item: object, place: int) -> WorkerInfo:
    fields = _Fields(item, f"workers[{place}]")
    name = fields.text("name")
    if not name:
        raise _wrong(f"workers[{place}].name", "missing")
    index = fields.whole("index", least=0)
    return WorkerInfo(
        name,
        place if index is None else index,
        fields.whole("node_rank", least=0),
        fields.text("pod"),
        fields.state(),
        fields.time("started"),
        fields.time("ended"),
        PlatformState(
            exit_code=fields.whole("exit_code"),
            signal=fields.whole("signal", least=0),
            reason=fields.text("reason") or "",
            message=fields.text("message") or "",
            finished=fields.time("ended"),
            restarts=fields.whole("restarts", least=0) or 0,
            node=fields.text("node"),
            host_ip=fields.text("host_ip"),
            addresses=tuple(fields.texts("addresses")),
            gpus=tuple(
                _gpu(_Fields(gpu, f"workers[{place}].gpus[{at}]")) for at, gpu in enumerate(fields.items("gpus"))
            ),
        ),
    )


def _gpu(fields: _Fields) -> GpuIdentity:
    return GpuIdentity(
        fields.whole("index", least=0),
        fields.text("uuid"),
        fields.text("pci"),
        fields.whole("local_rank", least=0),
    )


class _Fields:
    """Typed access to the fields of one object. Errors name the path of the field."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(path, Message("expected an object"))
        self._value: Mapping[str, Any] = value
        self._path = path

    def text(self, key: str) -> str | None:
        value = self._value.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise _wrong(self._at(key), Message("expected a string"))
        return without_surrogates(value)

    def whole(self, key: str, *, least: int = -(2**31)) -> int | None:
        value = self._value.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise _wrong(
                self._at(key),
                Message("expected a whole number from 0") if least == 0 else Message("expected a whole number"),
            )
        return value

    def time(self, key: str) -> float | None:
        value = self._value.get(key)
        if value is None:
            return None
        found = moment(value)
        if found is None:
            raise _wrong(self._at(key), Message("expected a time: 2026-11-20T17:45:05Z, or seconds since the epoch"))
        return found

    def state(self) -> State:
        """The state; one that this version does not know counts as unknown."""
        value = self.text("state")
        return State(value) if value in list(State) else State.UNKNOWN

    def items(self, key: str, *, required: bool = False) -> list[Any]:
        value = self._value.get(key)
        if value is None and not required:
            return []
        if not isinstance(value, list):
            raise _wrong(self._at(key), Message("expected a list"))
        return value

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty ones are dropped."""
        found = [_Fields({"": value}, f"{self._at(key)}[{at}]").text("") for at, value in enumerate(self.items(key))]
        return [text for text in found if text]

    def inner(self, key: str) -> _Fields:
        value = self._value.get(key)
        return _Fields({} if value is None else value, self._at(key))

    def _at(self, key: str) -> str:
        return f"{self._path}.{key}".strip(".")


def _wrong(path: str, why: str) -> UsageError:
    return UsageError(Message("{path}: {why}", path=f"{NAME}: {path}" if path else NAME, why=why), _HINT)
