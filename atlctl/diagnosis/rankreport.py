"""Parses a worker's report of its rank processes and their Python stacks, as printed by `remote/stacks`.

The text comes from the worker and is not trusted: a field of a wrong type counts as missing. Stacks come from torch's
worker server or from py-spy; a thread's stack shows its activity.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from atlctl.diagnosis import launches
from atlctl.diagnosis.flightrecorder import FlightDump, parse_dump
from atlctl.diagnosis.launches import Launches
from atlctl.diagnosis.tracebacks import Frame, is_users_code, read_frame
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.fields import without_surrogates

#: Limits of one report.
_RANKS, _CHILDREN, _WAITS, _TEXT, _ADDRESSES, _LINKS, _INTERFACES = 4096, 32, 64, 1000, 256, 256, 128


@dataclass(frozen=True, slots=True)
class ThreadState:
    """A thread at one moment. `syscall`: the current system call, `running` on a CPU, None if it cannot be read.

    `timed`: a futex with a timeout. `target`: the file of the call's descriptor.
    """

    name: str
    state: str
    wchan: str | None
    syscall: str | None
    timed: bool | None
    target: str | None


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A child process of the rank, for instance of DataLoader. `ticks`: CPU time in the window."""

    pid: int
    at: ThreadState
    ticks: int


@dataclass(frozen=True, slots=True)
class Sample:
    """`count` equal samples of a thread. `gloo`: whether a thread of gloo was in a collective, None if unknown;
    `mount`: mount and file system of the file in `at`."""

    at: ThreadState
    gloo: bool | None
    mount: str | None
    count: int


@dataclass(frozen=True, slots=True)
class TcpLink:
    """A TCP connection of a rank, with the counts of the window.

    `busy`: seconds in which data was under way to the peer; `acked`: bytes that arrived there; `retransmitted` of
    `segments`.
    """

    peer: str
    busy: float
    acked: int
    retransmitted: int
    segments: int


@dataclass(frozen=True, slots=True)
class RankWatch:
    """The part of `slow` in the report of a rank.

    `stacks`: Python stacks of the main thread, innermost frame first, and how often each was seen; `collecting` and
    `syncing`: paths and numbers of innermost lines that collect garbage, or wait for a GPU. `throttled`: seconds;
    `gpu`: index or UUID in nvidia-smi. Counters are None if unknown.
    """

    samples: tuple[Sample, ...]
    children: tuple[Sample, ...]
    stacks: tuple[tuple[tuple[Frame, ...], int], ...]
    collecting: frozenset[tuple[str, int]]
    syncing: frozenset[tuple[str, int]]
    throttled: float | None
    major_faults: int | None
    written_bytes: int | None
    writes: int | None
    cpu_quota: float | None
    links: tuple[TcpLink, ...]
    addresses: tuple[str, ...]
    interfaces: Mapping[str, Mapping[str, int]]
    gpu: str | None

    @property
    def collects(self) -> int:
        """In how many samples of the stacks the garbage was collected."""
        return sum(count for frames, count in self.stacks if _line_of(frames[0]) in self.collecting)

    def place(self, frames: Sequence[Frame]) -> StackPlace:
        """As `place_of`; a line that waits for a GPU is one of its kind."""
        place = place_of(frames)[0]
        return StackPlace.DEVICE if place is StackPlace.USER and _line_of(frames[0]) in self.syncing else place


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """A GPU at one moment; see `remote/gpus.py`. Clocks in MHz. `slowed`: reasons for reduced clocks. `corrected`,
    `uncorrected`: ECC errors since the driver was loaded."""

    index: int
    uuid: str | None
    use: float | None
    power: float | None
    temperature: float | None
    clock: float | None
    corrected: float | None
    uncorrected: float | None
    slowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerWatch:
    """The part of `slow` in the report of a worker.

    `ticks` of all CPUs by kind; `pressure`: seconds for which `some` or all (`full`) tasks waited for `cpu`, `memory`
    or `io`; `gpus` of each query; `others`: name and CPU seconds of the processes beside the training that used the
    most; `late`: by host and pid, in how many of `launch_looks` at NCCL's counts a process had launched less than
    others.
    """

    seconds: float
    ticks: Mapping[str, int]
    pressure: Mapping[str, Mapping[str, float]]
    gpus: tuple[tuple[GpuLoad, ...], ...]
    gpu_problem: str
    others: tuple[tuple[str, float], ...]
    launch_looks: int
    late: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank process, over a window of some seconds. `rank` is None if its environment could not be read.

    `looks`: its main thread at the start and end of the window, empty if it ended meanwhile. Increases in the window,
    None if unreadable: `ticks` of CPU time (all threads), and of the main thread `main_ticks`, `run_ns`, `wait_ns`
    (ready to run, but no CPU) and `switches`. `started`: seconds since the epoch, `age`: seconds since then. `torch`:
    whether torch's libraries are loaded. `threads` is empty without Python stacks, `source` is their source, `problems`
    the reasons why other sources failed; `spy`: whether py-spy is available, None if it was not searched for.
    `inner`: the pid as the process itself knows it.
    """

    rank: int | None
    pid: int
    inner: int
    start: int
    command: str
    environ: Mapping[str, str]
    unread: str | None
    looks: tuple[ThreadState, ...]
    ticks: int
    main_ticks: int
    run_ns: int | None
    wait_ns: int | None
    switches: int | None
    tracer: int
    frozen: bool
    waits: tuple[ThreadState, ...]
    children: tuple[ChildProcess, ...]
    source: str | None
    threads: tuple[Thread, ...]
    recorder: FlightDump | None
    problems: tuple[str, ...]
    started: float | None
    age: float | None
    torch: bool | None
    spy: bool | None
    watched: RankWatch | None = None

    def number(self, name: str) -> int | None:
        """A whole number from the reported environment."""
        text = self.environ.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None

    @property
    def stack(self) -> Thread | None:
        """The Python stack of the main thread."""
        return next((thread for thread in self.threads if thread.main), None)


@dataclass(frozen=True, slots=True)
class StackReport:
    """The report of one worker. `headroom`: available bytes of memory, None without a limit; below `needed` no stacks
    were taken. `problem`: the reason if no rank has a stack. `hidden`: Python processes of other users. `launchers`:
    torchrun agents, counted if there are no ranks. `now`: its clock, seconds since the epoch. `launches`: the answer of
    NCCL's RAS service, None if there is none or it was not asked. `addresses`: its network addresses."""

    seconds: float
    ticks_per_second: int
    now: float | None
    headroom: int | None
    needed: int | None
    throttled_us: int | None
    hidden: int
    launchers: int
    problem: str | None
    ranks: tuple[RankReport, ...]
    launches: Launches | None
    addresses: tuple[str, ...]
    watched: WorkerWatch | None = None


def parse_report(data: bytes) -> StackReport | None:
    """Parses a report; None if it is not one. Never raises."""
    try:
        found = fields.parse_json(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("atlctl_stacks") != 1:
        return None
    memory, now = fields.mapping(found.get("memory")), fields.number(found.get("now"))
    return StackReport(
        seconds=fields.number(found.get("seconds")) or 0.0,
        ticks_per_second=fields.whole(found.get("ticks_per_second")) or 100,
        now=now,
        headroom=fields.whole(memory.get("headroom")),
        needed=fields.whole(memory.get("needed")),
        throttled_us=fields.whole(found.get("throttled_us")),
        hidden=fields.whole(found.get("hidden")) or 0,
        launchers=fields.whole(found.get("launchers")) or 0,
        problem=fields.message(found.get("problem"), _TEXT) or None,
        ranks=tuple(_rank(item, now) for item in fields.entries(found.get("ranks"), _RANKS)),
        launches=launches.parse(found.get("ras")),
        addresses=_addresses(found.get("addresses")),
        watched=_worker_watch(fields.mapping(found.get("watched")), fields.whole(found.get("ticks_per_second")) or 100),
    )


def _addresses(found: object) -> tuple[str, ...]:
    return tuple(fields.text(item, 64) for item in fields.items(found, _ADDRESSES))


def _rank(item: Mapping[str, Any], now: float | None) -> RankReport:
    pid = fields.whole(item.get("pid")) or 0
    stack = fields.mapping(item.get("stack"))
    source = _text(stack.get("source"))
    threads = threads_of_torch(_text(stack.get("text"), 1 << 16) or "") if source == "torch" else ()
    if source == "py-spy":
        threads = threads_of_spy(stack.get("threads"), pid)
    rank, started = fields.whole(item.get("rank")), fields.number(item.get("started"))
    recorder, problem = _recorder(fields.mapping(item.get("recorder")), rank, started)
    problems = [said for entry in fields.items(item.get("problems"), 8) if (said := fields.message(entry, _TEXT))]
    environ = {str(name): text for name, value in fields.mapping(item.get("environ")).items() if (text := _text(value))}
    return RankReport(
        rank=rank,
        pid=pid,
        inner=fields.whole(item.get("inner")) or pid,
        start=fields.whole(item.get("start")) or 0,
        command=_text(item.get("command")) or _text(item.get("comm")) or "",
        environ=environ,
        unread=_text(item.get("unread")),
        looks=tuple(_moment(look) for look in fields.entries(item.get("looks"), 2)),
        ticks=fields.whole(item.get("ticks")) or 0,
        main_ticks=fields.whole(item.get("main_ticks")) or 0,
        run_ns=fields.whole(item.get("run_ns")),
        wait_ns=fields.whole(item.get("wait_ns")),
        switches=fields.whole(item.get("switches")),
        tracer=fields.whole(item.get("tracer")) or 0,
        frozen=item.get("frozen") is True,
        waits=tuple(_waits(fields.items(item.get("waits")))),
        children=tuple(
            ChildProcess(fields.whole(child.get("pid")) or 0, _moment(child), fields.whole(child.get("ticks")) or 0)
            for child in fields.entries(item.get("children"), _CHILDREN)
        ),
        source=source if threads or stack.get("counted") or stack.get("texts") else None,
        threads=threads,
        recorder=recorder,
        problems=(*problems, *([problem] if problem else [])),
        started=started,
        age=now - started if now is not None and started is not None else None,
        torch=torch if isinstance(torch := item.get("torch"), bool) else None,
        spy=spy if isinstance(spy := item.get("spy"), bool) else None,
        watched=_rank_watch(fields.mapping(item.get("watched")), stack),
    )


def _rank_watch(item: Mapping[str, Any], stack: Mapping[str, Any]) -> RankWatch | None:
    if not item:
        return None
    counted = fields.mapping(item.get("counters"))
    throttled, lines = fields.whole(counted.get("throttled_us")), fields.mapping(item.get("lines"))
    return RankWatch(
        samples=tuple(_samples(item.get("samples"))),
        children=tuple(_samples(item.get("children"))),
        stacks=_stacks(stack),
        collecting=_lines(lines.get("collects")),
        syncing=_lines(lines.get("syncs")),
        throttled=None if throttled is None else throttled / 1e6,
        major_faults=fields.whole(counted.get("major_faults")),
        written_bytes=fields.whole(counted.get("wchar")),
        writes=fields.whole(counted.get("syscw")),
        cpu_quota=fields.number(item.get("cpu_quota")),
        links=tuple(_link(link) for link in fields.entries(item.get("links"), _LINKS)),
        addresses=_addresses(item.get("addresses")),
        interfaces={
            fields.without_surrogates(str(name)[:40]): _counts(found)
            for name, found in list(fields.mapping(item.get("interfaces")).items())[:_INTERFACES]
        },
        gpu=_text(item.get("gpu"), 100),
    )


def _worker_watch(item: Mapping[str, Any], hertz: int) -> WorkerWatch | None:
    if not item:
        return None
    machine = fields.mapping(item.get("machine"))
    pressure = {what: fields.mapping(found) for what, found in fields.mapping(machine.get("pressure")).items()}
    looks, lags = fields.items(item.get("gpus"), 16), fields.mapping(item.get("lags"))
    others = [entry for entry in fields.items(item.get("others"), 8) if isinstance(entry, list) and len(entry) == 3]
    return WorkerWatch(
        seconds=fields.number(item.get("seconds"), 0.0) or 0.0,
        ticks=_counts(machine.get("ticks")),
        pressure={
            str(what): {str(kind): count / 1e6 for kind, count in _counts(found).items()}
            for what, found in list(pressure.items())[:4]
        },
        gpus=tuple(tuple(_gpu(gpu) for gpu in fields.entries(look, 64)) for look in looks),
        gpu_problem=_text(item.get("gpu_problem")) or "",
        others=tuple((fields.text(name, 40), _count(ticks) / hertz) for _, name, ticks in others),
        launch_looks=_count(lags.get("looks")),
        late={
            (fields.text(entry[0], 64), fields.whole(entry[1]) or 0): _count(entry[2])
            for entry in fields.items(lags.get("late"), _WAITS)
            if isinstance(entry, list) and len(entry) == 3
        },
    )


def _counts(found: object) -> dict[str, int]:
    """Counters that grew or did not change, by name."""
    pairs = list(fields.mapping(found).items())[:32]
    return {
        str(name): value for name, value in pairs if (fields.whole(value) or 0) >= 0 and fields.whole(value) is not None
    }


def _count(value: object) -> int:
    return max(0, fields.whole(value) or 0)


def _samples(found: object) -> Iterator[Sample]:
    names = ("name", "state", "syscall", "timed", "wchan", "target")
    for item in fields.items(found, _WAITS):
        if isinstance(item, list) and len(item) == 9:
            gloo = item[6] if isinstance(item[6], bool) else None
            at = _moment(dict(zip(names, item[:6], strict=True)))
            yield Sample(at, gloo, _text(item[7]), _count(item[8]))


def _stacks(stack: Mapping[str, Any]) -> tuple[tuple[tuple[Frame, ...], int], ...]:
    """The main thread's stacks, the most frequent first."""
    found: Counter[tuple[Frame, ...]] = Counter()
    for text in fields.items(stack.get("texts"), 64):
        for thread in threads_of_torch(_text(text, 1 << 16) or ""):
            if thread.main:
                found[thread.frames] += 1
    for item in fields.items(stack.get("counted"), 64):
        if isinstance(item, list) and len(item) == 2 and (folded := _text(item[0], 1 << 14)):
            frames = [frame for part in folded.split(";")[-_FRAMES:] if (frame := _folded(part)) is not None]
            found[tuple(reversed(frames))] += _count(item[1])
    found.pop((), None)
    return tuple(found.most_common())


def _lines(found: object) -> frozenset[tuple[str, int]]:
    return frozenset(
        (path[-_FRAME_TEXT:], number)
        for item in fields.items(found, 64)
        if isinstance(item, list) and len(item) == 2
        and (path := _text(item[0])) and (number := fields.whole(item[1])) is not None
    )  # fmt: skip


def _line_of(frame: Frame) -> tuple[str, int | None]:
    return frame.path, frame.line


def _folded(part: str) -> Frame | None:
    """A frame of py-spy's folded stacks: `function (path:line)`."""
    function, _, place = part.rpartition(" (")
    path, _, line = place.removesuffix(")").rpartition(":")
    if not function or not path or not (line.isascii() and line.isdigit() and len(line) < 8):
        return None
    return Frame(path[-_FRAME_TEXT:], int(line), function[:_FRAME_TEXT])


def _link(item: Mapping[str, Any]) -> TcpLink:
    return TcpLink(
        peer=fields.text(item.get("peer"), 64),
        busy=_count(item.get("busy")) / 1e6,
        acked=_count(item.get("acked")),
        retransmitted=_count(item.get("retransmitted")),
        segments=_count(item.get("sent_segments")),
    )


def _gpu(item: Mapping[str, Any]) -> GpuLoad:
    return GpuLoad(
        index=_count(item.get("index")),
        uuid=_text(item.get("uuid"), 100),
        use=fields.number(item.get("utilization.gpu")),
        power=fields.number(item.get("power.draw")),
        temperature=fields.number(item.get("temperature.gpu")),
        clock=fields.number(item.get("clocks.sm")),
        corrected=fields.number(item.get("ecc.errors.corrected.volatile.total")),
        uncorrected=fields.number(item.get("ecc.errors.uncorrected.volatile.total")),
        slowed=tuple(fields.text(why, 40) for why in fields.items(item.get("slowed"), 4)),
    )


def _moment(item: Mapping[str, Any]) -> ThreadState:
    timed = item.get("timed")
    return ThreadState(
        name=_text(item.get("name")) or "",
        state=(_text(item.get("state")) or "?")[:1],
        wchan=_text(item.get("wchan")),
        syscall=_text(item.get("syscall")),
        timed=timed if isinstance(timed, bool) else None,
        target=_text(item.get("target")),
    )


def _waits(found: list[Any]) -> Iterator[ThreadState]:
    names = ("name", "state", "syscall", "timed", "wchan")
    for item in found[:_WAITS]:
        if isinstance(item, list) and len(item) == 6:
            yield _moment(dict(zip(names, item[:5], strict=True)))


#: Characters of a compressed dump, and bytes of a dump.
_PACKED_LIMIT, _DUMP_LIMIT = 1 << 19, 16 << 20


def _recorder(item: Mapping[str, Any], rank: int | None, started: float | None) -> tuple[FlightDump | None, str | None]:
    """The flight-recorder dump, or the reason why it is not used."""
    if not item or rank is None:
        return None, None
    if item.get("source") == "file":
        try:
            packed = base64.b64decode(_text(item.get("zlib"), _PACKED_LIMIT) or "", validate=True)
            data = zlib.decompressobj().decompress(packed, _DUMP_LIMIT)
        except (binascii.Error, ValueError, zlib.error):
            return None, Message("flight recorder: {why}", why=Message("its dump is damaged"))
    else:
        data = json.dumps(item.get("json")).encode()
    dump, reason = parse_dump(data, f"rank_{rank}")
    if dump is None:
        return None, Message("flight recorder: {why}", why=reason)
    created = [entry.created_ns for group in dump.groups for entry in (*group.done, *group.pending) if entry.created_ns]
    if started is not None and created and max(created) / 1e9 < started:
        return None, Message("flight recorder: {why}", why=Message("its dump is older than the process"))
    return dump, None


def _text(value: object, limit: int = _TEXT) -> str | None:
    return fields.text(value, limit) if isinstance(value, str) else None


_THREADS, _FRAMES, _FRAME_TEXT = 64, 100, 300
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]{1,16}) ?(?:\[([^\]]{0,100})\])?", re.ASCII)


class StackPlace(StrEnum):
    """The activity of a thread, by the library function that the user's code called last."""

    DEBUGGER = "debugger"
    COLLECTIVE = "collective"
    JOINING = "joining"
    BACKWARD = "backward"
    DEVICE = "device"
    LOADER = "loader"
    STORAGE = "storage"
    NETWORK = "network"
    LOCK = "lock"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Thread:
    """One Python thread, its innermost frame first. `main`: Python's main thread. `active`: on a CPU, if known."""

    name: str | None
    main: bool
    active: bool | None
    frames: tuple[Frame, ...]


#: Path and function of frames that show the activity. The first rule that fits a frame above the user's decides.
_JOINING = (
    r"(init_process_group|new_group|_new_process_group_helper|_store_based_barrier|rendezvous|_create_\w{1,60}_store|"
    r"\w{1,60}_rendezvous_handler|init_device_mesh|split_group)$"
)
_INTERNET = (
    r"(^|/)(socket|ssl|http/client|urllib/request|ftplib)\.py$|"
    r"site-packages/(urllib3|requests|botocore|boto3|aiohttp|httpx|httpcore|grpc)/"
)
_DEBUGGERS = r"(^|/)([pb]db\.py$|(debugpy|ipdb|pudb|pydevd|_pydevd_\w{1,40})/|IPython/(core|terminal)/debugger\.py$)"
_WAITING = r"(^|/)(threading|queue|subprocess|selectors)\.py$|(^|/)(multiprocessing|concurrent|asyncio)/"
_RULES = tuple(
    (place, re.compile(path), re.compile(function))
    for place, path, function in (
        (StackPlace.DEBUGGER, _DEBUGGERS, r""),
        (StackPlace.JOINING, r"torch/distributed/(distributed_c10d|rendezvous|device_mesh)\.py$", _JOINING),
        (
            StackPlace.COLLECTIVE,
            r"torch/distributed/(distributed_c10d|_functional_collectives|_dist2|rpc/api)\.py$",
            r"(?!get_|is_|_get_|_rank_|_check_|_warn|wrapper$)",
        ),
        (
            StackPlace.COLLECTIVE,
            r"torch/nn/parallel/distributed\.py$",
            r"(_sync_\w{1,60}|_verify_\w{1,60}|_ddp_init_helper|join)$",
        ),
        (StackPlace.LOADER, r"torch/utils/data/", r""),
        (StackPlace.STORAGE, r"torch/(serialization\.py$|distributed/checkpoint/)|(^|/)safetensors/", r""),
        (StackPlace.STORAGE, r"(^|/)(shutil|zipfile|tarfile|pathlib|glob|tempfile)\.py$|numpy/lib/(npyio|format)", r""),
        (StackPlace.DEVICE, r"torch/(cuda|npu|xpu|mlu|accelerator)/|(^|/)torch_npu/", r""),
        (
            StackPlace.BACKWARD,
            r"torch/(autograd/(graph|__init__)|_tensor)\.py$",
            r"(_engine_run_backward|backward|grad)$",
        ),
        (StackPlace.NETWORK, _INTERNET, r""),
        (StackPlace.LOCK, _WAITING, r""),
    )
)


def threads_of_torch(text: str) -> tuple[Thread, ...]:
    """Parses the threads in a dump of torch's worker server, which has the format of `faulthandler`.

    The youngest thread is first, so the last one with frames is the main thread.
    """
    found: list[tuple[str | None, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            found.append((match[2], []))
        elif found and (frame := read_frame(line)) is not None and len(found[-1][1]) < _FRAMES:
            found[-1][1].append(frame)
    found = [item for item in found if item[1]][-_THREADS:]
    return tuple(
        Thread(name, number == len(found) - 1, None, tuple(frames)) for number, (name, frames) in enumerate(found)
    )


def threads_of_spy(found: object, pid: int) -> tuple[Thread, ...]:
    """The threads in the report's form of a py-spy dump. The main thread's id is the pid."""
    threads, numbered = [], False
    for item in found[:_THREADS] if isinstance(found, list) else ():
        if not isinstance(item, dict) or not isinstance(item.get("frames"), list):
            continue
        numbered |= item.get("tid") is not None
        frames = tuple(
            Frame(without_surrogates(frame[1])[:_FRAME_TEXT], frame[2], without_surrogates(frame[0])[:_FRAME_TEXT])
            for frame in item["frames"][:_FRAMES]
            if isinstance(frame, list) and len(frame) == 3 and _is_frame(frame)
        )
        if frames:
            name, active = item.get("name"), item.get("active")
            threads.append(
                Thread(
                    without_surrogates(name)[:_FRAME_TEXT] if isinstance(name, str) else None,
                    item.get("tid") == pid or (item.get("tid") is None and name == "MainThread"),
                    active if isinstance(active, bool) else None,
                    frames,
                )
            )
    if threads and not numbered and not any(thread.main for thread in threads):
        # For older Pythons, py-spy may give neither ids nor names. The youngest thread comes first.
        threads[-1] = replace(threads[-1], main=True)
    return tuple(threads)


def _is_frame(frame: Sequence[object]) -> bool:
    return isinstance(frame[0], str) and isinstance(frame[1], str) and type(frame[2]) is int and 0 <= frame[2] < 1 << 31


def place_of(frames: Sequence[Frame]) -> tuple[StackPlace, str | None]:
    """The activity of the thread, and the function that shows it. Only frames above the user's are considered: the
    callers of the user's code do not show what it does."""
    above: list[Frame] = []
    for frame in frames:
        if is_users_code(frame.path):
            break
        above.append(frame)
    for place, path, function in _RULES:
        # The outermost: `barrier` rather than the functions that it calls.
        for frame in reversed(above):
            if path.search(frame.path) and function.match(_name(frame)):
                return place, _name(frame)
    return StackPlace.USER, None


def imports(frames: Sequence[Frame]) -> bool:
    """Whether the thread is importing a module."""
    return any("importlib._bootstrap" in frame.path or "importlib/_bootstrap" in frame.path for frame in frames)


def _name(frame: Frame) -> str:
    """The function's unqualified name: for newer Pythons, py-spy gives the qualified one."""
    return frame.function.rpartition(".")[2]


def innermost_user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code."""
    return next((frame for frame in frames if is_users_code(frame.path)), None)
