"""Excerpts of logs: the lines around the evidence, whole tracebacks, and the versions that a log names at its start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atlctl.diagnosis.logline import clean_line, split_origin, split_stamp
from atlctl.jobs.statedir import READ_FLAGS

BEFORE, BEHIND = 4, 3
#: The last lines of a traceback that are kept.
TRACE = 400
#: Characters of a line that are shown, characters that are held, and bytes that are read.
_WIDTH, _HELD = 400, 1_000
_LINE = 64 * 1024
#: Bytes at the start of a log that are searched for versions.
_HEAD = 256 * 1024

_NUMBER = rb"(\d{1,5}\.\d{1,5}(?:\.[\w+-]{1,20}){0,4}(?:\+[\w.]{1,20})?)"
_VERSIONS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("torch", rb"\b(?:[Pp]y[Tt]orch|torch)(?:\.__version__)?(?: [Vv]ersion)?(?:: |=|==| v?)" + _NUMBER),
        ("NCCL", rb"\bNCCL [Vv]ersion:? " + _NUMBER),
        ("CUDA", rb"\bCUDA (?:[Rr]untime |[Dd]river )?[Vv]ersion:? " + _NUMBER),
        ("driver", rb"\b(?:Driver Version: ?|NVRM version: [\w ]{1,60}? |NVIDIA driver(?: version)?:? )" + _NUMBER),
        # torchrun names only the script; `set -x` prints the whole command line and overrides it.
        ("command", rb"(?m)^[^\n]{0,200}\]   entrypoint +: ([^\n]{1,600})"),
        ("command", rb"(?m)^(?:\S+ )?\+ (\S{0,200}?(?:torchrun|accelerate|deepspeed|python[\d.]*) [^\n]{1,600})"),
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
    """Lines of one file; `first` is the number of the first one, from 1.

    `trace`: the traceback that ends in the passage, as numbered lines without stamps and prefixes.
    """

    first: int
    lines: Sequence[str]
    trace: Sequence[tuple[int, str]] = ()


def around(path: str, numbers: Mapping[int, int]) -> Mapping[int, Passage]:
    """Passages around the lines `numbers` of a file, as far as they exist. Raises OSError.

    `numbers` maps each line to the first line of its traceback, or to itself.
    """
    wanted: dict[int, list[int]] = {}
    for number, begin in numbers.items():
        for near in {*range(max(1, number - BEFORE), number + BEHIND + 1), *range(max(begin, number - TRACE), number)}:
            wanted.setdefault(near, []).append(number)
    found: dict[int, dict[int, str]] = {number: {} for number in numbers}
    last = max(wanted, default=0)
    with open(os.open(path, READ_FLAGS), "rb", buffering=1 << 20) as file:
        for number, line in enumerate(_lines(file.readline), 1):
            for about in wanted.get(number, ()):
                found[about][number] = clean_line(line)[:_HELD]
            if number >= last:
                break
    return {about: _passage(lines, about, numbers[about]) for about, lines in found.items() if about in lines}


def _passage(lines: Mapping[int, str], number: int, begin: int) -> Passage:
    near = [at for at in range(number - BEFORE, number + BEHIND + 1) if at in lines]
    trace = []
    if begin < near[0]:
        # Lines of other processes may be interleaved.
        said = {at: split_origin(_unstamped(text)) for at, text in lines.items() if begin <= at <= number}
        trace = [(at, _cut(text)) for at, (origin, text) in sorted(said.items()) if origin == said[number][0]]
    return Passage(near[0], [_cut(lines[at]) for at in near], trace)


def _unstamped(text: str) -> str:
    return split_stamp(text.encode("utf-8", "replace"))[1].decode()


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]} …"


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while line := read(_LINE):
        yield line
        while len(line) == _LINE and not line.endswith(b"\n"):
            line = read(_LINE)


def versions(path: str) -> Mapping[str, str]:
    """The versions and the command line named at the start of a log, the first of each. Raises OSError."""
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
