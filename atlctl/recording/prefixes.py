"""Which worker a line of a merged log came from, by what stands in front of it.

`[pod/NAME/container] ` (`kubectl logs --prefix`) is certain by itself. Other prefixes look like ordinary text (`NAME: `
like an exception's line), so the start of the log decides: a shape must stand in front of most of its lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_KUBECTL = re.compile(rb"\[pod/([^/\]\s]{1,253})/[^\]\s]{1,253}\] ?")

_NAME = rb"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
_SGR = rb"(?:\x1b\[[0-9;]{0,20}m){0,3}"
#: Words before a colon that are no worker: levels, streams, exceptions, counters of a training loop, source files.
_NO_WORKER = re.compile(
    rb"(?i:debug|info|warn|warning|error|critical|fatal|trace|note|notice|hint|std(?:out|err)|usage)"
    rb"|[\w.]*(?:Error|Exception|Warning|Interrupt|Exit)"
    rb"|(?i:(?:global_?|local_?)?rank|epoch|step|iter|iteration|batch|seed|stage|layer|loss|lr)[._-]?[\d.]*"
    rb"|.*\.(?:py|cc|cpp|h|cu|sh)|[\d.-]+"
)
_ADDRESS = re.compile(rb"\d{1,3}(?:\.\d{1,3}){3}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A form of prefix. `pattern` gives the worker's name in group 1, which `label` stands in front of.

    At least `share` of a log's lines must begin with it. `named`: the name must look like one (a digit in it).
    """

    tool: str
    pattern: re.Pattern[bytes]
    share: float
    label: str = ""
    named: bool = False


_COLON = re.compile(rb"%b(%b):%b(?: |$)" % (_SGR, _NAME, _SGR))

#: The first that fits is taken.
SHAPES = (
    Shape("atlctl, clush or pdsh", _COLON, 0.5, named=True),
    Shape("atlctl, clush or pdsh", _COLON, 0.95),
    Shape("srun -l", re.compile(rb" {0,4}(\d{1,6}): "), 0.95, label="task-"),
    Shape("srun -l", re.compile(rb"\[(\d{1,6})\] "), 0.95, label="task-"),
    Shape("torchx", re.compile(rb"([A-Za-z_][A-Za-z0-9_-]{0,100}/\d{1,6}) "), 0.95),
    Shape("stern", re.compile(rb"([a-z0-9][a-z0-9.]{0,100}-[a-z0-9.-]{0,150}) [a-z][a-z0-9-]{0,62} "), 0.95),
)
#: Lines of the start of a log that are looked at.
SAMPLE_LINES = 5_000


def kubectl_pod(line: bytes) -> tuple[str, bytes] | None:
    """Pod and text of a line of `kubectl logs --prefix`."""
    match = _KUBECTL.match(line)
    return (match[1].decode(errors="replace"), line[match.end() :]) if match else None


class Prefix:
    """Takes the prefixes of one shape off the lines of one log."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._names: dict[bytes, str | None] = {}

    def split(self, line: bytes) -> tuple[str, bytes] | None:
        """Worker and text; None where the line has no such prefix."""
        match = self.shape.pattern.match(line)
        if match is None:
            return None
        word = match[1]
        if word not in self._names:
            if len(self._names) >= 100_000:
                return None
            self._names[word] = self._name(word)
        name = self._names[word]
        return None if name is None else (name, line[match.end() :])

    def _name(self, word: bytes) -> str | None:
        if self.shape.pattern is _COLON and not _ADDRESS.fullmatch(word) and _NO_WORKER.fullmatch(word):
            return None
        if self.shape.named and not any(48 <= code <= 57 for code in word):
            return None
        return self.shape.label + word.decode(errors="replace")


def find_prefix(lines: Sequence[bytes]) -> Prefix | None:
    """The shape of prefix that the start of a log has; None where it has none."""
    told = [line for line in lines[:SAMPLE_LINES] if line.strip()]
    for shape in SHAPES:
        prefix = Prefix(shape)
        names = Counter(found[0] for line in told if (found := prefix.split(line)))
        fits = names.total() >= shape.share * len(told) and 3 * len(names) <= len(told)
        # One word in front of every line may be a program's name; a name with a digit is a worker's.
        if names and fits and (shape.named or shape.label or len(names) > 1):
            return prefix
    return None
