"""Lines of files around those that prove something, and the versions that logs tell of when they begin."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atlctl.diagnosis.logline import clean_line
from atlctl.jobs.statedir import READ_FLAGS

BEFORE, BEHIND = 4, 3
#: Characters of a line that are shown, bytes of one that are held.
_WIDTH = 400
_LINE = 64 * 1024
#: Bytes at the begin of a log in which versions are looked for.
_HEAD = 256 * 1024

_NUMBER = rb"(\d{1,5}\.\d{1,5}(?:\.[\w+-]{1,20}){0,4}(?:\+[\w.]{1,20})?)"
_VERSIONS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("torch", rb"\b(?:[Pp]y[Tt]orch|torch)(?:\.__version__)?(?: [Vv]ersion)?(?:: |=|==| v?)" + _NUMBER),
        ("NCCL", rb"\bNCCL [Vv]ersion:? " + _NUMBER),
        ("CUDA", rb"\bCUDA (?:[Rr]untime |[Dd]river )?[Vv]ersion:? " + _NUMBER),
        ("driver", rb"\b(?:Driver Version: ?|NVRM version: [\w ]{1,60}? |NVIDIA driver(?: version)?:? )" + _NUMBER),
        ("Python", rb"\bPython(?: [Vv]ersion:?)? (3\.\d{1,3}\.\d{1,3})"),
        ("transformers", rb"\b[Tt]ransformers [Vv]ersion:? \"?" + _NUMBER),
        ("DeepSpeed", rb"\bDeepSpeed info: version=" + _NUMBER),
        (
            "GPU",
            rb"\bNVIDIA ((?:GeForce |RTX |Tesla |DGX )?[A-Z]{1,3}\d{1,4}[A-Z]{0,3}(?: [\w-]{2,12}){0,3})(?= *[(|\n])",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Passage:
    """Lines of one file; `first` is the number of the first of them, from 1."""

    first: int
    lines: Sequence[str]


def around(path: str, numbers: Collection[int]) -> Mapping[int, Passage]:
    """What stands around each of the lines `numbers` of a file, as far as it has them. Raises OSError."""
    wanted: dict[int, list[int]] = {}
    for number in numbers:
        for near in range(max(1, number - BEFORE), number + BEHIND + 1):
            wanted.setdefault(near, []).append(number)
    found: dict[int, dict[int, str]] = {number: {} for number in numbers}
    last = max(wanted, default=0)
    with open(os.open(path, READ_FLAGS), "rb", buffering=1 << 20) as file:
        for number, line in enumerate(_lines(file.readline), 1):
            for about in wanted.get(number, ()):
                text = clean_line(line)
                found[about][number] = text if len(text) <= _WIDTH else f"{text[:_WIDTH]} …"
            if number >= last:
                break
    return {about: Passage(min(lines), [lines[at] for at in sorted(lines)]) for about, lines in found.items() if lines}


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while line := read(_LINE):
        yield line
        while len(line) == _LINE and not line.endswith(b"\n"):
            line = read(_LINE)


def versions(path: str) -> Mapping[str, str]:
    """Versions that a log names near its begin, the first of each. Raises OSError."""
    fd = os.open(path, READ_FLAGS)
    try:
        data = os.read(fd, _HEAD)
    finally:
        os.close(fd)
    found = {}
    for name, pattern in _VERSIONS:
        if match := pattern.search(data):
            found[name] = match[1].decode("utf-8", "replace").strip().rstrip(".")
    return found
