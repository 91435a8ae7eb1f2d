"""Python stacks: from what torch's worker server and py-spy say to what a thread is in the middle of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from atlctl.diagnosis.text import without_surrogates
from atlctl.diagnosis.tracebacks import Frame, frame_of

_THREADS, _FRAMES, _TEXT = 64, 100, 300
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]{1,16}) ?(?:\[([^\]]{0,100})\])?", re.ASCII)


class Place(StrEnum):
    """What a thread is in the middle of, by the library that the user's code has called last."""

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
    """One Python thread, its innermost frame first. `main`: Python's main thread. `active`: on a CPU, where told."""

    name: str | None
    main: bool
    active: bool | None
    frames: tuple[Frame, ...]


#: Path and function of frames that say it. The first rule that fits a frame above the user's decides.
_JOINING = (
    r"(init_process_group|new_group|_new_process_group_helper|_store_based_barrier|rendezvous|_create_\w{1,60}_store|"
    r"\w{1,60}_rendezvous_handler|init_device_mesh|split_group)$"
)
_INTERNET = (
    r"(^|/)(socket|ssl|http/client|urllib/request|ftplib)\.py$|"
    r"site-packages/(urllib3|requests|botocore|boto3|aiohttp|httpx|httpcore|grpc)/"
)
_WAITING = r"(^|/)(threading|queue|subprocess|selectors)\.py$|(^|/)(multiprocessing|concurrent|asyncio)/"
_RULES = tuple(
    (place, re.compile(path), re.compile(function))
    for place, path, function in (
        (Place.JOINING, r"torch/distributed/(distributed_c10d|rendezvous|device_mesh)\.py$", _JOINING),
        (
            Place.COLLECTIVE,
            r"torch/distributed/(distributed_c10d|_functional_collectives|_dist2|rpc/api)\.py$",
            r"(?!get_|is_|_get_|_rank_|_check_|_warn)",
        ),
        (
            Place.COLLECTIVE,
            r"torch/nn/parallel/distributed\.py$",
            r"(_sync_\w{1,60}|_verify_\w{1,60}|_ddp_init_helper|join)$",
        ),
        (Place.LOADER, r"torch/utils/data/", r""),
        (Place.STORAGE, r"torch/(serialization\.py$|distributed/checkpoint/)|(^|/)safetensors/", r""),
        (Place.STORAGE, r"(^|/)(shutil|zipfile|tarfile|pathlib|glob|tempfile)\.py$|numpy/lib/(npyio|format)", r""),
        (Place.DEVICE, r"torch/(cuda|npu|xpu|mlu|accelerator)/|(^|/)torch_npu/", r""),
        (Place.BACKWARD, r"torch/(autograd/(graph|__init__)|_tensor)\.py$", r"(_engine_run_backward|backward|grad)$"),
        (Place.NETWORK, _INTERNET, r""),
        (Place.LOCK, _WAITING, r""),
    )
)


def threads_of_torch(text: str) -> tuple[Thread, ...]:
    """The threads in a dump of torch's worker server, which is that of `faulthandler`.

    It lists the youngest thread first, so the last one with frames is the main thread.
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


def read_frame(line: str) -> Frame | None:
    """The frame of a `File "...", line N in f` line."""
    match = re.match(r'\s{0,8}File "(.{1,1000})", line (\d{1,9}) in (.{1,300})$', line)
    return Frame(match[1][:_TEXT], int(match[2]), match[3].strip()[:_TEXT]) if match else None


def threads_of_spy(found: object, pid: int) -> tuple[Thread, ...]:
    """The threads in the report's form of a dump of py-spy. The main one has the number of the process."""
    threads, numbered = [], False
    for item in found[:_THREADS] if isinstance(found, list) else ():
        if not isinstance(item, dict) or not isinstance(item.get("frames"), list):
            continue
        numbered |= item.get("tid") is not None
        frames = tuple(
            Frame(without_surrogates(frame[1])[:_TEXT], frame[2], without_surrogates(frame[0])[:_TEXT])
            for frame in item["frames"][:_FRAMES]
            if isinstance(frame, list) and len(frame) == 3 and _is_frame(frame)
        )
        if frames:
            name, active = item.get("name"), item.get("active")
            threads.append(
                Thread(
                    without_surrogates(name)[:_TEXT] if isinstance(name, str) else None,
                    item.get("tid") == pid or (item.get("tid") is None and name == "MainThread"),
                    active if isinstance(active, bool) else None,
                    frames,
                )
            )
    if threads and not numbered and not any(thread.main for thread in threads):
        # Of older Pythons it may give neither numbers nor names. The youngest thread comes first.
        threads[-1] = replace(threads[-1], main=True)
    return tuple(threads)


def _is_frame(frame: Sequence[object]) -> bool:
    return isinstance(frame[0], str) and isinstance(frame[1], str) and type(frame[2]) is int and 0 <= frame[2] < 1 << 31


def is_users(frame: Frame) -> bool:
    """Code that is neither an installed package nor the standard library."""
    found = frame_of(f'File "{frame.path}", line 1, in f')
    return found is not None and found[2] is not None


def place_of(frames: Sequence[Frame]) -> tuple[Place, str | None]:
    """What the thread is in the middle of, and the function that says so. Only frames above the user's are looked at:
    what called the user's code does not say what that does."""
    above: list[Frame] = []
    for frame in frames:
        if is_users(frame):
            break
        above.append(frame)
    for place, path, function in _RULES:
        # The outermost: `barrier` rather than what it is made of.
        for frame in reversed(above):
            if path.search(frame.path) and function.match(_name(frame)):
                return place, _name(frame)
    return Place.USER, None


def imports(frames: Sequence[Frame]) -> bool:
    """Whether the thread is importing a module."""
    return any("importlib._bootstrap" in frame.path or "importlib/_bootstrap" in frame.path for frame in frames)


def _name(frame: Frame) -> str:
    """The function's own name: py-spy gives the qualified one in newer Pythons."""
    return frame.function.rpartition(".")[2]


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code."""
    return next((frame for frame in frames if is_users(frame)), None)
