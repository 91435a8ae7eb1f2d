"""The sampler of `top`: the command that runs on a worker (`remote/sh/top.sh`), and from what it prints to numbers.

The bytes come from a worker: they may be cut, endless or made up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from atlctl.backends.base import Argv
from atlctl.i18n import Message
from atlctl.remote.gpus import FORMAT, QUERY, REASONS, Readout, complaint, parse
from atlctl.remote.sending import shell

#: nvidia-smi ends so if it does not know a field (its manual: "a supplied argument or flag is invalid").
INVALID = 2


def sampler(interval: float, looks: int = 0, root: str = "") -> Argv:
    """The command. `interval`: seconds between two looks; `looks`: how many of them, 0 for no end.

    Of CPUs it takes one sample more, since only two give their use, and the second one after a second. `root`: where
    /proc, /sys and /dev are (for tests).
    """
    whole = max(1, round(interval))
    samples = looks + 1 if looks else 0
    words = (f"{interval:g}", str(whole), str(samples), str(looks), root, QUERY[1], *REASONS, FORMAT)
    return Argv(("/bin/sh", "-c", shell("top"), "sh", *words))


# Its output

#: Bytes of a line that are kept, and of one look at the GPUs: some thousand of them.
_LINE = 1024
_LOOK = 256 << 10
_NUMBER = re.compile(rb"-?[0-9]{1,19}(?:\.[0-9]{1,9})?")
_SPANS = re.compile(rb"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")
_HEADER = re.compile(rb"G [0-2]")
_FOOTER = re.compile(rb"E [0-9]{1,3}")
#: CPUs of a machine beyond which a number is none.
_MOST_CPUS = 65536

Scope = Literal["container", "machine", "processes"]


@dataclass(frozen=True, slots=True)
class Compute:
    """CPU and memory at one moment. `scope`: whose they are.

    `cpu`: cores in use since the sample before, `cpu_limit`: cores that may be used. Memory in bytes, without the file
    cache that can be given back at once. None if not reported.
    """

    scope: Scope
    cpu: float | None
    cpu_limit: float | None
    memory: float | None
    memory_limit: float | None


class LineBuffer:
    """Cuts a stream into lines; of a line that is too long the rest is dropped."""

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, data: bytes) -> list[bytes]:
        first, *more = data.split(b"\n")
        self._begun = (self._begun + first[:_LINE])[:_LINE]
        if not more:
            return []
        lines = [self._begun, *(line[:_LINE] for line in more[:-1])]
        self._begun = more[-1][:_LINE]
        return lines


class ComputeReader:
    """Takes the sampler's stdout; `latest` is the last whole sample, `count` how many there were."""

    def __init__(self) -> None:
        self.latest: Compute | None = None
        self.count = 0
        self._lines = LineBuffer()
        self._allowed: float | None = None
        self._cpus: float | None = None
        self._now: dict[bytes, list[float]] = {}
        self._before: dict[bytes, list[float]] = {}

    def feed(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._line(line)

    def _line(self, line: bytes) -> None:
        letter, _, rest = line.partition(b" ")
        words = rest.split()[:16]
        if letter == b"A" and len(words) == 2:
            self._allowed, self._cpus = _count(words[0]), _positive(_number(words[1]))
        elif letter == b".":
            self._sample()
        elif letter in _LETTERS:
            if letter == b"T":
                self._now = {}
            self._now[letter] = [_number(word) if word != b"max" else -1.0 for word in words]

    def _sample(self) -> None:
        now, self._now = self._now, {}
        if _first(now, b"T") is None:
            return
        before, self._before = self._before, now
        self.count += 1
        self.latest = self._container(now, before) or self._machine(now, before)

    def _machine(self, now: dict[bytes, list[float]], before: dict[bytes, list[float]]) -> Compute:
        total, free = _first(now, b"M"), _first(now, b"F")
        used = total - free if total is not None and free is not None and free <= total else None
        return Compute("machine", self._ticks(now, before), self._cpus, _kib(used), _kib(total))

    def _ticks(self, now: dict[bytes, list[float]], before: dict[bytes, list[float]]) -> float | None:
        """Ticks by kind: user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two."""
        new, old = now.get(b"S", [])[:8], before.get(b"S", [])[:8]
        if len(new) < 5 or len(new) != len(old) or self._cpus is None:
            return None
        spent = [max(0.0, a - b) for a, b in zip(new, old, strict=True)]
        whole = sum(spent)
        return self._cpus * (whole - spent[3] - spent[4]) / whole if whole else None

    def _container(self, now: dict[bytes, list[float]], before: dict[bytes, list[float]]) -> Compute | None:
        version, memory = _first(now, b"V"), _first(now, b"U")
        if version not in (1, 2) or memory is None:
            return None
        total = _kib(_first(now, b"M"))
        limit = _positive(_first(now, b"L"))
        quota = now.get(b"Q", [])
        cores = quota[0] / quota[1] if len(quota) == 2 and quota[0] > 0 and quota[1] > 0 else None
        bounded = limit is not None and total is not None and limit < total
        if version == 1 and not bounded and cores is None:
            return None  # it may be the root of the machine
        allowed = self._allowed or self._cpus
        may = min((one for one in (cores, allowed) if one is not None), default=None)
        used = max(0.0, memory - (_first(now, b"I") or 0.0))
        unit = 1e6 if version == 2 else 1e9
        return Compute("container", _rate(now, before, unit), may, used, limit if bounded else total)


_LETTERS = frozenset(bytes([letter]) for letter in b"TSMFVULIPQ")


def _count(spans: bytes) -> float | None:
    """How many CPUs `0-3,8` are."""
    if not _SPANS.fullmatch(spans):
        return None
    found = 0
    for span in spans.split(b","):
        first, _, last = span.partition(b"-")
        found += max(0, int(last or first) - int(first) + 1)
    return float(found) if 0 < found <= _MOST_CPUS else None


def _number(word: bytes) -> float:
    """-1 for anything else than a number: nothing that is counted here is below 0."""
    return float(word) if _NUMBER.fullmatch(word) else -1.0


def _first(sample: dict[bytes, list[float]], letter: bytes) -> float | None:
    numbers = sample.get(letter)
    return numbers[0] if numbers and numbers[0] >= 0 else None


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _kib(value: float | None) -> float | None:
    return None if value is None else value * 1024


def _rate(now: dict[bytes, list[float]], before: dict[bytes, list[float]], unit: float) -> float | None:
    """Cores: CPU time per time."""
    spent, was = _first(now, b"P"), _first(before, b"P")
    at, then = _first(now, b"T"), _first(before, b"T")
    if spent is None or was is None or at is None or then is None or at <= then or spent < was:
        return None
    cores = (spent - was) / unit / (at - then)
    return cores if cores <= _MOST_CPUS else None


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One whole look at the GPUs. `trouble`: why there are none, empty if all is well (hostile text)."""

    readout: Readout
    trouble: str


class GpuReader:
    """Takes the sampler's stderr; `latest` is the last whole look, `count` how many there were.

    `absent`: there is no nvidia-smi there; `devices`: but GPU devices are.
    """

    def __init__(self) -> None:
        self.latest: GpuLook | None = None
        self.count = 0
        self.absent = self.devices = self.asked = False
        self._lines = LineBuffer()
        self._form = 0
        self._said: list[bytes] = []
        self._size = 0
        self._early: list[bytes] = []

    @property
    def early(self) -> str:
        """Output outside of a look, as of a shell that could not run the sampler. Hostile text."""
        return complaint(b"\n".join(self._early))

    def feed(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line in (b"N 0", b"N 1"):
                self.absent, self.devices = True, line == b"N 1"
            elif _HEADER.fullmatch(line):
                self.asked, self._form = True, int(line[2:])
                self._said, self._size = [], 0
            elif self.asked and _FOOTER.fullmatch(line):
                self._end(int(line[2:]))
            elif self.asked:
                if (size := self._size + len(line) + 1) <= _LOOK:
                    self._size = size
                    self._said.append(line)
            elif len(self._early) < 2:
                self._early.append(line)

    def _end(self, code: int) -> None:
        said, self._said, self._size = b"\n".join(self._said), [], 0
        readout = parse(said, reasons=self._form < 2)
        if code == INVALID and self._form < 2 and not readout.gpus:
            return  # it does not know the field, and is asked again without
        self.count += 1
        self.latest = GpuLook(readout, "" if readout.gpus or readout.none else _trouble(code, complaint(said)))


def _trouble(code: int, said: str) -> str:
    """Rows that came count whatever the exit code: one GPU that is lost makes nvidia-smi fail for all."""
    if code:
        how = Message("signal {number}", number=code - 128) if code > 128 else str(code)
        ended = Message("nvidia-smi ended with {how}", how=how)
        return Message("{what}: {why}", what=ended, why=said) if said else ended
    return Message("nvidia-smi printed no GPU: {output}", output=said) if said else Message("nvidia-smi said nothing")
