"""Hands one saved log to the readers of the workers whose lines it holds.

A log of one worker goes through the scanner, which leaves out lines that say nothing. Lines with prefixes, JSON
lines and the kubelet's own format are looked at one by one.

Prefixes: `[pod/NAME/container] ` (`kubectl logs --prefix`) is certain by itself. Others look like ordinary text
(`NAME: ` like an exception's line), so the start of the log decides: a shape must be in front of most of its lines.

JSON lines: Loki's `logcli -o jsonl` writes `{"labels": {"pod": ...}, "line": ..., "timestamp": ...}`; container
runtimes and log shippers (Docker, Fluent Bit, Filebeat, cloud logging) each have keys of their own. A worker may also
print JSON itself, with tracebacks in fields beside the message.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

from atlctl.diagnosis.logfacts import LogReader
from atlctl.diagnosis.logline import decode
from atlctl.diagnosis.scanner import Scanner
from atlctl.diagnosis.tracebacks import HEADER, embedded_in, rank_in
from atlctl.jobs.fields import without_surrogates
from atlctl.recording.lines import LineReader, Uncri, unstamped
from atlctl.recording.overwritten import Overwritten

Told = Literal["file", "prefix", "json", "host"]

#: Bytes at both ends of a log in which every line is looked at: when it began and how it goes on.
_EDGE = 8 * 1024
#: Bytes of one worker's log that show its form.
_FORM = 32 * 1024
#: RFC 3339, as a JSON line's stamp has to be to serve as one.
_RFC3339 = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")
#: Paths of keys at which the pod's name stands, and keys of the text, in falling order.
_POD = (
    ("labels", "pod"),
    ("labels", "pod_name"),
    ("kubernetes", "pod_name"),
    ("kubernetes", "pod", "name"),
    ("resource", "labels", "pod_name"),
    ("pod",),
    ("pod_name",),
)
_TEXT = ("line", "log", "message", "msg", "textPayload")
#: Keys of a program's own logger, whose levels are the program's; those of shippers are of the stream.
_OWN_TEXT = ("message", "msg")
_LEVELS = (("level",), ("levelname",), ("severity",), ("log.level",), ("log", "level"))
_BELOW_ERROR = frozenset({"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING"})
_TIME = ("timestamp", "@timestamp", "time", "ts")
#: Kubernetes' limit for names is 253.
_NAME_LIMIT = 253
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
_COLON = re.compile(rb"%b(%b):%b(?: |$)" % (_SGR, _NAME, _SGR))
#: Lines of the start of a log that are looked at.
SAMPLE_LINES = 5_000


class Readers(Protocol):
    """Where the lines go."""

    def reader(self, name: str, how: Told | None) -> LogReader:
        """The reader of a worker: of a file of its own, or (`how`) told from its lines."""

    def mixed(self, name: str) -> None:
        """The log of `name` holds other workers' lines as well."""


@dataclass(slots=True)
class Alone:
    """Gives all lines of a log to one reader."""

    own: LogReader

    def reader(self, name: str, how: Told | None) -> LogReader:  # noqa: ARG002
        return self.own

    def mixed(self, name: str) -> None:
        """Nothing to note: no worker is told from these lines."""


class Feed:
    """One log. `number` is that of its last line so far, counted over all logs; `holes` are runs of NUL bytes."""

    def __init__(
        self, readers: Readers, name: str, number: int, literals: frozenset[bytes], start: bytes, *, alone: bool
    ) -> None:
        """`start` is the log's beginning, from which its form is told. `alone`: every line is of the worker `name`."""
        self.number = number
        self.backwards = False
        self._holes = 0
        self._first = number
        self._readers = readers
        self._name = name
        self._alone = alone
        self._own = readers.reader(name, None)
        self._uncri = Uncri()
        self._overwritten = Overwritten(alone=alone)
        self._lines = LineReader()
        self._prefix: LinePrefix | None = None
        self._scanner = Scanner(literals, self._take, head=_EDGE, tail=_EDGE) if self._plain(start) else None

    @property
    def holes(self) -> int:
        return self._lines.holes + self._holes

    def overwritten(self) -> str | None:
        """What tells that several processes wrote over each other in this log; goes behind the file's name."""
        return self._overwritten.verdict(self.holes)

    def _plain(self, start: bytes) -> bool:
        """Whether all lines are one worker's and stand as it printed them, but for a stamp."""
        # Whose lines they are shows late in a merged log; the form of one worker's shows at once.
        sample = start[: _FORM if self._alone else None].split(b"\n")
        bare = [text for line in sample if (text := unstamped(line)) is not None]
        wrapped = [found for line in bare if line.startswith(b'{"') and (found := unwrap(line))]
        self.backwards = newest_first([found.time for found in wrapped])
        if not self._alone:
            self._prefix = find_prefix(bare)
            if self._prefix or any(line[:5] == b"[pod/" for line in bare):
                return False
        return not wrapped and b"\0" not in start and not any(Uncri.made(line) for line in sample[:200])

    def feed(self, data: bytes) -> None:
        """The next bytes of the log."""
        if self._scanner is not None:
            self._holes += data.count(b"\n\0") if b"\0" in data else 0
            self._scanner.feed(data)
        else:
            self._each(self._lines.feed(data))

    def finish(self) -> None:
        """The log has ended."""
        if self._scanner is not None:
            self.number = self._first + self._scanner.finish()
            return
        self._each(self._lines.finish())
        if rest := self._uncri.finish():
            self._line(rest)

    def _take(self, number: int, line: bytes) -> bool:
        self._overwritten.feed_line(unstamped(line))
        return self._own.feed(self._first + number, line)

    def _each(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.number += 1
            if (text := self._uncri(line)) is not None:
                self._line(text)

    def _line(self, line: bytes) -> None:
        bare = unstamped(line)
        self._overwritten.feed_line(bare)
        stamp = line[: len(line) - len(bare)]
        if bare[:2] == b'{"' and (found := unwrap(bare)):
            pod = None if self._alone else found.pod
            reader = self._own if pod is None else self._other(pod, "json")
            at = f"{found.time} ".encode() if _RFC3339.fullmatch(found.time) else stamp
            for part in found.text:
                reader.feed(self.number, at + part)
            return
        told = None
        if not self._alone:
            told = kubectl_pod(bare) if bare[:5] == b"[pod/" else self._prefix.split(bare) if self._prefix else None
        if told is None:
            self._own.feed(self.number, line)
        else:
            # A stamp may stand behind the prefix as well: then it is the worker's.
            text = told[1] if unstamped(told[1]) != told[1] else stamp + told[1]
            self._other(told[0], "prefix").feed(self.number, text)

    def _other(self, worker: str, how: Told) -> LogReader:
        self._readers.mixed(self._name)
        return self._readers.reader(worker, how)


def pump(read: Callable[[int], bytes], feed: Feed, start: bytes, chunk: int) -> None:
    """Reads to the end. `read` gives b"" there."""
    data = start
    while data:
        feed.feed(data)
        data = read(chunk)
    feed.finish()


@dataclass(frozen=True, slots=True)
class JsonLine:
    """The text of one JSON line, cut into lines. `time` is its stamp as text, empty where it has none."""

    pod: str | None
    text: tuple[bytes, ...]
    time: str


def unwrap(line: bytes) -> JsonLine | None:
    """What a JSON line holds; None where it is no object, or has no text under a known key. Never raises."""
    try:
        found = json.loads(decode(line))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    key = next((key for key in _TEXT if isinstance(found.get(key), str)), None)
    if key is None:
        return None
    text: str = found[key]
    pod = next((name for path in _POD if (name := _at(found, path))), None)
    time = next((found[key] for key in _TIME if isinstance(found.get(key), str)), "")
    lines = without_surrogates(text).encode().removesuffix(b"\n").split(b"\n")
    level = next((level for path in _LEVELS if (level := _at(found, path))), "").upper() if key in _OWN_TEXT else ""
    told = embedded_in({key: value for key, value in found.items() if value != text})
    if level in _BELOW_ERROR or (level and told is not None):
        # Else an error that was handled, and told of with a warning or beside its traceback, would read as one that
        # ended the process.
        lines[0] = f"{level} ".encode() + lines[0]
    elif text.startswith(HEADER) and (rank := rank_in(found)) is not None:
        lines = [b"[rank%d]: " % rank + line for line in lines]
    if told is not None:
        # A program's own logger: the traceback stands in a field of its own, and whose it is in another.
        mark = b"" if told.rank is None else b"[rank%d]: " % told.rank
        lines += [mark + part.encode() for trace in told.tracebacks for part in trace]
    return JsonLine(without_surrogates(pod) if pod else None, tuple(lines), time)


def _at(found: Mapping[str, object], path: Sequence[str]) -> str | None:
    value: object = found
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) and 0 < len(value) <= _NAME_LIMIT else None


def newest_first(times: Sequence[str]) -> bool:
    """True where stamps (ISO 8601, compared to the second) only fall, as `logcli` prints without `--forward`."""
    seconds = [time[:19] for time in times if time]
    steps = list(pairwise(seconds))
    return len(steps) > 1 and any(a > b for a, b in steps) and all(a >= b for a, b in steps)


@dataclass(frozen=True, slots=True)
class PrefixShape:
    """A form of prefix. `pattern` gives the worker's name in group 1, which `label` stands in front of.

    At least `share` of a log's lines must begin with it. `named`: the name must look like one (a digit in it).
    """

    tool: str
    pattern: re.Pattern[bytes]
    share: float
    label: str = ""
    named: bool = False


#: The first that fits is taken.
SHAPES = (
    PrefixShape("atlctl, clush or pdsh", _COLON, 0.5, named=True),
    PrefixShape("atlctl, clush or pdsh", _COLON, 0.95),
    PrefixShape("srun -l", re.compile(rb" {0,4}(\d{1,6}): "), 0.95, label="task-"),
    PrefixShape("srun -l", re.compile(rb"\[(\d{1,6})\] "), 0.95, label="task-"),
    PrefixShape("torchx", re.compile(rb"([A-Za-z_][A-Za-z0-9_-]{0,100}/\d{1,6}) "), 0.95),
    PrefixShape("stern", re.compile(rb"([a-z0-9][a-z0-9.]{0,100}-[a-z0-9.-]{0,150}) [a-z][a-z0-9-]{0,62} "), 0.95),
)


def kubectl_pod(line: bytes) -> tuple[str, bytes] | None:
    """Pod and text of a line of `kubectl logs --prefix`."""
    match = _KUBECTL.match(line)
    return (match[1].decode(errors="replace"), line[match.end() :]) if match else None


class LinePrefix:
    """Takes the prefixes of one shape off the lines of one log."""

    def __init__(self, shape: PrefixShape) -> None:
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


def find_prefix(lines: Sequence[bytes]) -> LinePrefix | None:
    """The shape of prefix that the start of a log has; None where it has none."""
    told = [line for line in lines[:SAMPLE_LINES] if line.strip()]
    for shape in SHAPES:
        prefix = LinePrefix(shape)
        names = Counter(found[0] for line in told if (found := prefix.split(line)))
        fits = names.total() >= shape.share * len(told) and 3 * len(names) <= len(told)
        # One word in front of every line may be a program's name; a name with a digit is a worker's.
        if names and fits and (shape.named or shape.label or len(names) > 1):
            return prefix
    return None
