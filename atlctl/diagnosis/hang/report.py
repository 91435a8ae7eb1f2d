"""One worker's report of its rank processes, as `stacks/probe` prints it. Hostile until shown to be plain: a field of
another type counts as missing."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atlctl.diagnosis.hang.frames import Thread, threads_of_spy, threads_of_torch
from atlctl.diagnosis.recorder.dump import FlightDump, parse_dump
from atlctl.diagnosis.text import without_surrogates
from atlctl.jobs.fields import parse_json

#: What is kept of one report.
_RANKS, _CHILDREN, _WAITS, _TEXT = 4096, 32, 64, 1000
_MAX_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class Moment:
    """A thread at one moment. `syscall`: the call it is in, `running` on a CPU, None where that may not be read.

    `timed`: a futex with a time limit. `target`: what the call's descriptor stands for.
    """

    name: str
    state: str
    wchan: str | None
    syscall: str | None
    timed: bool | None
    target: str | None


@dataclass(frozen=True, slots=True)
class Waits:
    """Threads beside the main one that are alike: `count` of them."""

    at: Moment
    count: int


@dataclass(frozen=True, slots=True)
class Child:
    """A process below the rank's, DataLoader's for instance. `ticks` were used in the window."""

    pid: int
    at: Moment
    ticks: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank process, over a window of some seconds. `rank` is None where its environment could not be read.

    `looks`: its main thread at the window's begin and end, empty where it ended meanwhile. `ticks` of CPU time (all
    threads), `main_ticks`, `run_ns`, `wait_ns` (ready to run, and no CPU) and `switches` of the main thread grew by
    this much in the window; None where it may not be read. `started`: seconds since the epoch, `age`: seconds since
    then. `torch`: whether torch's libraries are loaded. `threads` is empty without Python stacks, `source` says who
    gave them, `problems` why others did not.
    """

    rank: int | None
    pid: int
    start: int
    parent: int
    command: str
    environ: Mapping[str, str]
    unread: str | None
    looks: tuple[Moment, ...]
    ticks: int
    main_ticks: int
    run_ns: int | None
    wait_ns: int | None
    switches: int | None
    tracer: int
    frozen: bool
    waits: tuple[Waits, ...]
    children: tuple[Child, ...]
    source: str | None
    threads: tuple[Thread, ...]
    recorder: FlightDump | None
    problems: tuple[str, ...]
    started: float | None
    age: float | None
    torch: bool | None

    def number(self, name: str) -> int | None:
        """A whole number of the environment that is kept."""
        text = self.environ.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None

    @property
    def stack(self) -> Thread | None:
        """The Python stack of the main thread."""
        return next((thread for thread in self.threads if thread.main), None)


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker told. `headroom`: bytes of memory that may be taken, None where nothing limits it; below
    `needed` no stacks were tried. `problem`: why there are no stacks for any rank. `hidden`: Python processes of other
    users. `launchers`: torchrun agents, counted where there are no ranks. `now`: its clock, seconds since the epoch.
    """

    seconds: float
    ticks_per_second: int
    cpus: int | None
    now: float | None
    headroom: int | None
    needed: int | None
    throttled_us: int | None
    hidden: int
    launchers: int
    problem: str | None
    ranks: tuple[RankReport, ...]


def parse_report(data: bytes) -> Report | None:
    """The report, None where it is none. Never raises."""
    try:
        found = parse_json(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("atlctl_stacks") != 1:
        return None
    memory, now = _mapping(found.get("memory")), _real(found.get("now"))
    return Report(
        seconds=_real(found.get("seconds")) or 0.0,
        ticks_per_second=_whole(found.get("ticks_per_second")) or 100,
        cpus=_whole(found.get("cpus")),
        now=now,
        headroom=_whole(memory.get("headroom")),
        needed=_whole(memory.get("needed")),
        throttled_us=_whole(found.get("throttled_us")),
        hidden=_whole(found.get("hidden")) or 0,
        launchers=_whole(found.get("launchers")) or 0,
        problem=_text(found.get("problem")),
        ranks=tuple(_rank(item, now) for item in _items(found.get("ranks"), _RANKS)),
    )


def _rank(item: Mapping[str, Any], now: float | None) -> RankReport:
    pid = _whole(item.get("pid")) or 0
    stack = _mapping(item.get("stack"))
    source = _text(stack.get("source"))
    threads = threads_of_torch(_text(stack.get("text"), 1 << 16) or "") if source == "torch" else ()
    if source == "py-spy":
        threads = threads_of_spy(stack.get("threads"), pid)
    rank, started = _whole(item.get("rank")), _real(item.get("started"))
    recorder, problem = _recorder(_mapping(item.get("recorder")), rank, started)
    problems = [text for text in (_text(entry) for entry in _list(item.get("problems"))[:8]) if text]
    environ = {str(name): text for name, value in _mapping(item.get("environ")).items() if (text := _text(value))}
    return RankReport(
        rank=rank,
        pid=pid,
        start=_whole(item.get("start")) or 0,
        parent=_whole(item.get("parent")) or 0,
        command=_text(item.get("command")) or _text(item.get("comm")) or "",
        environ=environ,
        unread=_text(item.get("unread")),
        looks=tuple(_moment(look) for look in _items(item.get("looks"), 2)),
        ticks=_whole(item.get("ticks")) or 0,
        main_ticks=_whole(item.get("main_ticks")) or 0,
        run_ns=_whole(item.get("run_ns")),
        wait_ns=_whole(item.get("wait_ns")),
        switches=_whole(item.get("switches")),
        tracer=_whole(item.get("tracer")) or 0,
        frozen=item.get("frozen") is True,
        waits=tuple(_waits(_list(item.get("waits")))),
        children=tuple(
            Child(_whole(child.get("pid")) or 0, _moment(child), _whole(child.get("ticks")) or 0)
            for child in _items(item.get("children"), _CHILDREN)
        ),
        source=source if threads else None,
        threads=threads,
        recorder=recorder,
        problems=(*problems, *([problem] if problem else [])),
        started=started,
        age=now - started if now is not None and started is not None else None,
        torch=torch if isinstance(torch := item.get("torch"), bool) else None,
    )


def _moment(item: Mapping[str, Any]) -> Moment:
    timed = item.get("timed")
    return Moment(
        name=_text(item.get("name")) or "",
        state=(_text(item.get("state")) or "?")[:1],
        wchan=_text(item.get("wchan")),
        syscall=_text(item.get("syscall")),
        timed=timed if isinstance(timed, bool) else None,
        target=_text(item.get("target")),
    )


def _waits(found: list[Any]) -> Iterator[Waits]:
    names = ("name", "state", "syscall", "timed", "wchan")
    for item in found[:_WAITS]:
        if isinstance(item, list) and len(item) == 6:
            yield Waits(_moment(dict(zip(names, item[:5], strict=True))), _whole(item[5]) or 0)


def _recorder(item: Mapping[str, Any], rank: int | None, started: float | None) -> tuple[FlightDump | None, str | None]:
    """The dump, or why it does not count."""
    if not item or rank is None:
        return None, None
    if item.get("source") == "file":
        try:
            data = base64.b64decode(_text(item.get("base64"), 4 << 20) or "", validate=True)
        except (binascii.Error, ValueError):
            return None, "flight recorder: not valid base64"
    else:
        data = json.dumps(item.get("json")).encode()
    dump, reason = parse_dump(data, f"rank_{rank}")
    if dump is None:
        return None, f"flight recorder: {reason}"
    created = [entry.created_ns for group in dump.groups for entry in (*group.done, *group.pending) if entry.created_ns]
    if started is not None and created and max(created) / 1e9 < started:
        return None, "flight recorder: its dump is older than the process"
    return dump, None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _items(value: object, limit: int) -> list[Mapping[str, Any]]:
    return [item for item in _list(value)[:limit] if isinstance(item, dict)]


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) < _MAX_NUMBER else None


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < _MAX_NUMBER else None


def _text(value: object, limit: int = _TEXT) -> str | None:
    return without_surrogates(value[:limit]) if isinstance(value, str) else None
