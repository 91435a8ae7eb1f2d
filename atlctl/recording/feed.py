"""Splits one saved log by worker and feeds the lines to each worker's log reader.

A log of one worker goes through the scanner, which skips irrelevant lines. Logs with prefixes, of JSON lines and in the
kubelet's CRI format are read in groups of lines: in a group without a literal, only the last lines of each worker are
kept.

Prefixes: `[pod/NAME/container] ` (`kubectl logs --prefix`) is unambiguous. Others look like ordinary text (`NAME: `
looks like an exception), so the start of the log decides: most of its lines must begin with the same shape. Such a
prefix names a worker, or has only a time and words of the program that passed the lines on.

JSON lines: Loki's `logcli -o jsonl` writes `{"labels": {"pod": ...}, "line": ..., "timestamp": ...}`; container
runtimes and log shippers (Docker, Fluent Bit, Filebeat, cloud logging) use different keys. A worker may also print
JSON itself, with tracebacks in fields beside the message.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Literal, Protocol

from atlctl.diagnosis.logfacts import END_LITERALS, MAX_BEFORE, LogReader
from atlctl.diagnosis.logline import decode, is_utf8
from atlctl.diagnosis.scanner import MOST, Scanner, sieve_for
from atlctl.diagnosis.torchelastic import AGENT_STARTS
from atlctl.diagnosis.tracebacks import HEADER, embedded_in, rank_in
from atlctl.i18n import Message, joined, plural
from atlctl.jobs.fields import without_surrogates
from atlctl.recording.lines import RFC3339, LineReader, Uncri, unstamped

Told = Literal["file", "prefix", "task", "json", "host"]

#: Bytes at both ends of a log in which the scanner skips no line: they show when the log begins and how it ends.
_HEAD_EDGE, _TAIL_EDGE = 8192, 4096
#: More lines than a log has.
_ALL = 1 << 62
#: Lines that are searched at once in a log that is not plain; a worker's first lines there, which are always read.
_GROUP, _FIRST = 64, 64
#: The last lines of a worker that are read if it has too many with a literal; bytes of a line without one.
_DENSE, _SHOWN = 16_384, 1024
#: Bytes at the start of one worker's log from which its format is detected.
_FORM = 32 * 1024
#: RFC 3339. Other time stamps of JSON lines are not used.
_RFC3339 = re.compile(RFC3339.decode())
#: Key paths of the pod's name, and keys of the log text, by descending priority.
_POD = (
    ("labels", "pod"),
    ("labels", "pod_name"),
    ("kubernetes", "pod_name"),
    ("kubernetes", "pod", "name"),
    ("resource", "labels", "pod_name"),
    ("pod",),
    ("pod_name",),
    # Kibana; Aliyun's SLS.
    ("kubernetes.pod_name",),
    ("kubernetes.pod.name",),
    ("_pod_name_",),
    ("__tag__:_pod_name_",),
)
_TEXT = ("line", "log", "message", "msg", "textPayload")
#: Text keys that only count beside a pod or a time of a log service (SLS, CloudWatch, Splunk, journald): a program that
#: prints its data has such keys, too.
_TEXT_OF_SERVICES = ("content", "@message", "_raw", "MESSAGE")
_SERVICES = frozenset({"_time_", "__time__", "@timestamp", "_time", "__REALTIME_TIMESTAMP"})
#: Text keys of a program's own logger: a level beside them is the program's. Log shippers set a level per stream.
_OWN_TEXT = ("message", "msg")
_LEVELS = (("level",), ("levelname",), ("severity",), ("log.level",), ("log", "level"))
_BELOW_ERROR = frozenset({"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING"})
_TIME = ("timestamp", "@timestamp", "time", "ts", "_time_")
#: Kubernetes' limit for names is 253.
_NAME_LIMIT = 253
_NAME = rb"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
_COLOUR = rb"\x1b\[[0-9;]{0,20}m"
_SGR = rb"(?:%b){0,3}" % _COLOUR
#: Words before a colon that are not worker names: log levels, streams, exceptions, training counters, source files.
_NO_WORKER = re.compile(
    rb"(?i:debug|info|warn|warning|error|critical|fatal|trace|note|notice|hint|std(?:out|err)|usage)"
    rb"|[\w.]*(?:Error|Exception|Warning|Interrupt|Exit)"
    rb"|(?i:(?:global_?|local_?)?rank|epoch|step|iter|iteration|batch|seed|stage|layer|loss|lr)[._-]?[\d.]*"
    rb"|(?:\w{0,30}(?:Process|Thread)|Dummy|ThreadPoolExecutor)-[\d_:-]+|.*\.(?:py|cc|cpp|h|cu|sh)|[\d.-]+"
)
_ADDRESS = re.compile(rb"\d{1,3}(?:\.\d{1,3}){3}")
_COLON = rb"%b(?P<worker>%b)(?<!\.log):%b(?: |$)" % (_SGR, _NAME, _SGR)  # `grep` prints files so
#: Lines at the start of a log from which its prefix is detected.
SAMPLE_LINES = 5_000


class TakesLines(Protocol):
    """A reader of one worker's lines, see `LogReader`."""

    def feed(self, line_no: int, line: bytes, /) -> bool: ...

    def catch_up(self, lines: Iterable[tuple[int, bytes]], /) -> None: ...


class Readers(Protocol):
    """Log readers by worker, and notes about mixed logs."""

    def reader(self, name: str, how: Told | None) -> TakesLines:
        """The reader of a worker that has a separate file (`how` is None), or was identified by its lines."""

    def mixed(self, name: str) -> None:
        """Notes that the log of `name` also holds lines of other workers."""


@dataclass(slots=True)
class Alone:
    """Gives all lines of a log to one reader."""

    own: LogReader

    def reader(self, name: str, how: Told | None) -> LogReader:  # noqa: ARG002
        return self.own

    def mixed(self, name: str) -> None:
        """Does nothing: these lines are not split by worker."""


class _Worker:
    """One worker's reader, and its last lines that were not read: number and line, at most `MAX_BEFORE`.

    After `most` lines with a literal, the last `_DENSE` lines are kept instead; `skipped` are the first and the last
    line that are not read then.
    """

    __slots__ = ("_left", "_read", "_waits", "held", "reader", "skipped")

    def __init__(self, reader: TakesLines, most: int) -> None:
        self.reader = reader
        self.held: deque[tuple[int, bytes]] = deque(maxlen=MAX_BEFORE)
        self.skipped: tuple[int, int] | None = None
        self._left = most
        self._read = 0
        self._waits = False

    @property
    def rests(self) -> bool:
        """Whether it needs no line without a literal now."""
        return self._read >= _FIRST and not self._waits

    def feed(self, number: int, line: bytes, *, quiet: bool) -> None:
        if not self._left:
            self.hold(number, line)
            return
        if self.held:
            self.reader.catch_up(self.held)
            self.held.clear()
        self._waits = self.reader.feed(number, line)
        self._read += 1
        self._left -= not quiet
        if not self._left:
            self.held, self._waits = deque(maxlen=_DENSE), False

    def hold(self, number: int, line: bytes) -> None:
        """Keeps a line as one of the last."""
        if not self._left and len(self.held) == _DENSE:
            dropped = self.held[0][0]
            self.skipped = self.skipped[0] if self.skipped else dropped, dropped
        self.held.append((number, line))

    def finish(self) -> None:
        """Reads the last lines of the log."""
        for number, line in self.held:
            self.reader.feed(number, line)
        self.held.clear()


class Feed:
    """Parser of one log. `number` is that of the last line so far, counted over all logs; `holes` are NUL runs."""

    def __init__(
        self,
        readers: Readers,
        name: str,
        number: int,
        literals: frozenset[bytes],
        start: bytes,
        *,
        alone: bool,
        everything: bool = False,
        end: bytes = b"",
    ) -> None:
        """`start` is the start of the log, used to detect its format, as is its `end`, if known. `alone`: every line is
        of the worker `name`. `everything`: however many lines have a literal."""
        self.number = number
        self.backwards = False
        self._holes = 0
        self._first = number
        self._readers = readers
        self._name = name
        self._alone = alone
        self._most = _ALL if everything else MOST
        self._own = _Worker(readers.reader(name, None), self._most)
        #: Whose lines those without a name are.
        self._here = self._own
        self._workers: dict[str, _Worker] = {}
        self._holds = sieve_for(literals)
        self._uncri = Uncri()
        self._overwritten = Overwritten(alone=alone)
        self._lines = LineReader()
        self._prefix: LinePrefix | None = None
        self._kubectl = LinePrefix(KUBECTL)
        self._scanner: Scanner | None = None
        if self._plain(start, end):
            self._scanner = Scanner(literals, self._take, head=_HEAD_EDGE, tail=_TAIL_EDGE, most=self._most)

    @property
    def holes(self) -> int:
        return self._lines.holes + self._holes

    @property
    def unread(self) -> Mapping[str, Message]:
        """By worker, the lines that were not read because too many before them report failures, as the rest of a
        sentence."""
        workers = {self._name: self._own, **self._workers}
        found = {name: worker.skipped for name, worker in workers.items() if worker.skipped}
        if self._scanner is not None and self._scanner.skipped is not None:
            found[self._name] = self._scanner.skipped
        text = Message("lines {first} to {last} were not read: too many lines look like failures")
        return {name: text.filled(first=first, last=last) for name, (first, last) in found.items()}

    def overwritten(self) -> str | None:
        """The signs of several processes overwriting each other in this log, as the predicate of a sentence."""
        return self._overwritten.verdict(self.holes)

    def _plain(self, start: bytes, end: bytes) -> bool:
        """Whether all lines are of one worker and unchanged, apart from a time stamp in front."""
        # A merged log may show its prefix late; one worker's log shows its format at once.
        sample = start[: _FORM if self._alone else None].split(b"\n")
        stamped = [(line, unstamped(line)) for line in sample]
        bare = [text for _, text in stamped]
        wrapped = [found for line in bare if line.startswith(b'{"') and (found := unwrap(line))]
        self.backwards = newest_first(
            [found.time for found in wrapped] or [line[: len(line) - len(text)].decode() for line, text in stamped]
        )
        shapes: tuple[PrefixShape, ...] = SHAPES
        if self._alone:
            # In one worker's log only mpirun's tags are unambiguous.
            shapes = SHAPES[: not any(word in start for word in _AGENTS)]
        self._prefix = find_prefix(bare, shapes)
        pods = not self._alone and any(line[:5] == b"[pod/" for line in bare)
        headed = not self._alone and _HEADER.search(start) is not None
        collected = pods or headed or bool(wrapped) or any(Uncri.made(line) for line in sample[:200])
        if self._prefix is None:
            self._prefix = (None if collected else learned_prefix(start + b"\n" + end)) or _indentation(bare)
        return not collected and self._prefix is None and b"\0" not in start

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the log."""
        if self._scanner is not None:
            self._holes += data.count(b"\n\0") if b"\0" in data else 0
            self._scanner.feed(data)
        else:
            self._each(self._lines.feed(data))

    def finish(self) -> None:
        """Handles the end of the log: the last line and pieces that are still held."""
        if self._scanner is not None:
            self.number = self._first + self._scanner.finish()
            return
        self._each(self._lines.finish())
        if rest := self._uncri.finish():
            self._line(rest, quiet=False)
        for worker in (self._own, *self._workers.values()):
            worker.finish()

    def _take(self, number: int, line: bytes) -> bool:
        self._overwritten.feed_line(unstamped(line))
        # Without a generator, which costs more than the search.
        if self._scanner is not None and (END_LITERALS[0] in line or END_LITERALS[1] in line):
            before = self._scanner.before(MAX_BEFORE)
            self._own.reader.catch_up(enumerate(before, self._first + number - len(before)))
        return self._own.reader.feed(self._first + number, line)

    def _each(self, lines: Sequence[bytes]) -> None:
        text = b"\n".join(lines)
        quiet = not self._holds(text)
        if not quiet and len(lines) > _GROUP:
            middle = len(lines) // 2
            self._each(lines[:middle])
            self._each(lines[middle:])
            return
        whole = not self._uncri.partial and b" P " not in text  # else a literal may be in two pieces of a line
        if quiet and whole and self._here.rests and self._only_own(text) and _verbatim(text):
            skip = max(0, len(lines) - MAX_BEFORE)
            self.number += skip
            lines = lines[skip:]
        for line in lines:
            self.number += 1
            if whole:
                self._line(self._uncri(line) or b"", quiet=quiet or not self._holds(line))
            elif (found := self._uncri(line)) is not None:
                self._line(found, quiet=False)

    def _only_own(self, text: bytes) -> bool:
        """Whether no line is another worker's."""
        return self._alone or not (self._prefix or b"[pod/" in text or b'"pod' in text or b"==> " in text)

    def _line(self, line: bytes, *, quiet: bool) -> None:
        """Passes on a line; `quiet`: it contains no literal."""
        if line[:4] == b"==> " and not self._alone and (header := _HEADER.fullmatch(line)):
            self._here = self._other(header[1].decode(), "prefix")
            return
        bare, stamp = line, b""
        if line[:2] == b"20":
            bare = unstamped(line)
            stamp = line[: len(line) - len(bare)]
        if bare[:2] == b'{"' and (found := unwrap(bare)):
            pod = None if self._alone else found.pod
            worker = self._here if pod is None else self._other(pod, "json")
            at = f"{found.time} ".encode() if _RFC3339.fullmatch(found.time) else stamp
            quiet = quiet and _verbatim(bare)
            for part in found.text:
                self._give(worker, at + part, bare, quiet=quiet or not self._holds(part))
            return
        if bare[:5] == b"[pod/" and not self._alone:
            told = self._kubectl.split(bare)
        else:
            told = self._prefix.split(bare) if self._prefix else None
        if told is None:
            self._give(self._here, line, bare, quiet=quiet)
            return
        name, text = told
        task = self._prefix is not None and bool(self._prefix.shape.label)
        if self._alone and task and name is not None:
            self._give(self._own, stamp + b"[rank%d]: " % task_number(name) + text, bare, quiet=quiet)
            return
        # A second stamp, after the prefix, is the worker's own and is preferred.
        stamped = text if unstamped(text) != text else stamp + text
        if self._alone or name is None:
            self._give(self._here, stamped, text, quiet=quiet)
        else:
            self._give(self._other(name, "task" if task else "prefix"), stamped, bare, quiet=quiet)

    def _give(self, worker: _Worker, line: bytes, bare: bytes, *, quiet: bool) -> None:
        if quiet and worker.rests:
            worker.hold(self.number, line[:_SHOWN])
        else:
            self._overwritten.feed_line(bare)
            worker.feed(self.number, line, quiet=quiet)

    def _other(self, name: str, how: Told) -> _Worker:
        if (found := self._workers.get(name)) is None:
            self._readers.mixed(self._name)
            found = self._workers[name] = _Worker(self._readers.reader(name, how), self._most)
        return found


def _verbatim(text: bytes) -> bool:
    """Whether texts in JSON, if there are any, have no escapes but newlines, so that literals look alike in them."""
    return b'{"' not in text or text.count(b"\\") == text.count(b"\\n")


def pump(read: Callable[[int], bytes], feed: Feed, start: bytes, chunk: int) -> None:
    """Feeds `start` and then all data from `read`, until it returns b""."""
    data = start
    while data:
        feed.feed(data)
        data = read(chunk)
    feed.finish()


@dataclass(frozen=True, slots=True)
class JsonLine:
    """The text of one JSON line, split into lines. `time` is its time stamp as text, empty if there is none."""

    pod: str | None
    text: tuple[bytes, ...]
    time: str


def unwrap(line: bytes) -> JsonLine | None:
    """Parses a JSON line; None if it is not an object or has no text under a known key. Never raises."""
    try:
        found = json.loads(decode(line))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("_source"), dict):  # a hit of Elasticsearch
        found = found["_source"]
    pod = next((name for path in _POD if (name := _at(found, path))), None)
    keys = _TEXT if pod is None and _SERVICES.isdisjoint(found) else (*_TEXT, *_TEXT_OF_SERVICES)
    key = next((key for key in keys if isinstance(found.get(key), str)), None)
    if key is None:
        return None
    text: str = found[key]
    time = next((found[key] for key in _TIME if isinstance(found.get(key), str)), "")
    lines = without_surrogates(text).encode().removesuffix(b"\n").split(b"\n")
    level = next((level for path in _LEVELS if (level := _at(found, path))), "").upper() if key in _OWN_TEXT else ""
    told = embedded_in({key: value for key, value in found.items() if value != text})
    if level in _BELOW_ERROR or (level and told is not None):
        # Without the level, an error that was handled and only logged would look like one that ended the process.
        lines[0] = f"{level} ".encode() + lines[0]
    elif text.startswith(HEADER) and (rank := rank_in(found)) is not None:
        lines = [b"[rank%d]: " % rank + line for line in lines]
    if told is not None:
        # A program's own JSON logger: the traceback and the rank are in separate fields.
        mark = b"" if told.rank is None else b"[rank%d]: " % told.rank
        lines += [mark + part.encode() for trace in told.tracebacks for part in trace]
    return JsonLine(without_surrogates(pod) if pod else None, tuple(lines), time)


def _at(found: Mapping[str, object], path: Sequence[str]) -> str | None:
    value: object = found
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) and 0 < len(value) <= _NAME_LIMIT else None


def newest_first(times: Sequence[str]) -> bool:
    """Whether time stamps (ISO 8601, compared to the second) only decrease, as `logcli` prints without `--forward`."""
    seconds = [time[:19] for time in times if time]
    steps = list(pairwise(seconds))
    return len(steps) > 1 and any(a > b for a, b in steps) and all(a >= b for a, b in steps)


@dataclass(frozen=True, slots=True)
class PrefixShape:
    """A shape of line prefix. The group `worker` of `pattern` is the worker's name, to which `label` is prepended;
    without it, the lines are of one worker. The group `time` is RFC 3339, and stays in front of the text.

    At least `share` of a log's lines must begin with the prefix. `named`: the name must contain a digit, and one
    name in front of all lines is enough. `words`: words that programs print are not names (see `_NO_WORKER`). With a
    `label`, the name is a task number, and the launcher's own lines have no prefix.
    """

    pattern: bytes
    share: float = 0.95
    label: str = ""
    named: bool = False
    words: bool = False


#: Starts of the own lines of launchers that add a prefix to their tasks' lines.
_LAUNCHERS = (b"srun: ", b"slurmstepd: ")
#: Open MPI's `[JOB,RANK]<stdout>:`, with the job's name, the host and the time if options ask for them;
#: horovodrun's `[RANK]<stdout>:`.
_MPI = (
    rb"(?:\[?[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\]?)?\[(?:[\w.@-]{1,200},)?(?P<worker>\d{1,6})\]"
    rb"(?:\[[\w.-]{1,200}:\d{1,10}\])?<std(?:out|err|diag)>:"
)
#: Lines of a torchelastic agent: if a task prints them, it is a launcher, not a rank.
_AGENTS = (b"torch/distributed/elastic", b"torch/distributed/run.py", AGENT_STARTS)

_POD_NAME = rb"(?P<worker>[a-z0-9][a-z0-9.]{0,100}-[a-z0-9.-]{0,150})"
_CONTAINER = rb"[a-z][a-z0-9-]{0,62}"
#: The first match wins.
SHAPES = (
    PrefixShape(_MPI, 0.5, label="task-"),
    PrefixShape(_COLON, 0.5, named=True, words=True),  # atlctl, clush, pdsh, Argo
    PrefixShape(_COLON, words=True),
    # `srun -l`
    PrefixShape(rb" {0,4}(?P<worker>\d{1,6}): ", label="task-"),
    PrefixShape(rb"\[(?P<worker>\d{1,6})\] ", label="task-"),
    # torchx, CloudWatch (`aws logs tail`)
    PrefixShape(rb"(?P<worker>[A-Za-z_][\w.-]{0,100}(?:/[\w.-]{1,100}){0,3}/(?=[^\s/]{0,200}\d)[\w.-]{1,200}) "),
    # stern, also of several namespaces
    PrefixShape(rb"%b%b%b %b%b%b " % (_SGR, _POD_NAME, _SGR, _SGR, _CONTAINER, _SGR)),
    PrefixShape(rb"%b[a-z0-9-]{1,63}%b %b%b%b %b%b%b " % (*(_SGR,) * 3, _POD_NAME, _SGR, _SGR, _CONTAINER, _SGR)),
    # docker compose
    PrefixShape(rb"%b(?P<worker>%b[-_]\d{1,6}) +\|(?: |$)%b" % (_SGR, _NAME, _SGR), 0.9),
)


#: `kubectl logs --prefix`.
KUBECTL = PrefixShape(rb"\[pod/(?P<worker>[^/\]\s]{1,253})/[^\]\s]{1,253}\] ?", 0)


def of_several(start: bytes) -> bool:
    """Whether a log that begins with `start` has the lines of several workers or tasks, each with its name in front."""
    lines = [unstamped(line) for line in start[:_FORM].split(b"\n")]
    if len(set(_HEADER.findall(start))) > 1:
        return True
    prefix = find_prefix(lines, (replace(KUBECTL, share=0.5), *SHAPES[1:])) or learned_prefix(start)
    return prefix is not None and len({told[0] for line in lines if (told := prefix.split(line))}) > 1


class LinePrefix:
    """Strips prefixes of one shape from the lines of one log."""

    def __init__(self, shape: PrefixShape) -> None:
        self.shape = shape
        self._pattern = re.compile(shape.pattern)
        #: Bytes between the prefix and the text.
        self.gap = 0
        self._names: dict[bytes, str | None] = {}

    def split(self, line: bytes) -> tuple[str | None, bytes] | None:
        """Worker, if the prefix names it, and text; None if the line has no such prefix."""
        match = self._pattern.match(line)
        if match is None:
            return None
        told = match.groupdict()
        text = line[match.end() + self.gap :]
        if "time" in told:
            text = told["time"] + b" " + text
        if "worker" not in told:
            return None, text
        word = told["worker"]
        if word not in self._names:
            if len(self._names) >= 100_000:
                return None
            self._names[word] = self._name(word)
        name = self._names[word]
        return None if name is None else (name, text)

    def _name(self, word: bytes) -> str | None:
        if self.shape.words and not _ADDRESS.fullmatch(word) and _NO_WORKER.fullmatch(word):
            return None
        if self.shape.named and not any(48 <= code <= 57 for code in word):
            return None
        return self.shape.label + word.decode(errors="replace")


def task_number(name: str) -> int:
    """The task number in a name from `LinePrefix`."""
    return int(name.rpartition("-")[2])


def find_prefix(lines: Sequence[bytes], shapes: Sequence[PrefixShape] = SHAPES) -> LinePrefix | None:
    """Detects the prefix shape of a log from its first lines; None if there is none."""
    all_told = [line for line in lines[:SAMPLE_LINES] if line.strip()]
    of_tasks = [line for line in all_told if not line.startswith(_LAUNCHERS)]
    for shape in shapes:
        told = of_tasks if shape.label else all_told
        prefix = LinePrefix(shape)
        if shape.share >= 0.9 and not any(map(prefix.split, told[:_FIRST])):
            continue  # saves most of the time
        split = [found for line in told if (found := prefix.split(line))]
        names = Counter(name for name, _ in split)
        # Some versions of mpirun put a space in front of the text.
        prefix.gap = int(shape.pattern is _MPI and all(text[:1] in (b"", b" ") for _, text in split))
        fits = names.total() >= shape.share * len(told) and 3 * len(names) <= len(told)
        # The same word in front of every line may be a program's name, unless it contains a digit.
        if names and fits and (shape.named or shape.label or len(names) > 1):
            return prefix
    return None


#: Lines of a traceback, and torch's mark of a rank, which may be in front of them.
_TRACE, _TRACED, _MARK = HEADER.encode(), b'  File "', rb"\[[A-Za-z_]\w{0,60}\d\]: ?"
_WORD = rb"[\w.@/~-]"
_MARKED = re.compile(rb"(?:%b)?\Z" % _MARK)
_OF_AGENT = re.compile(rb"[EIW]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d{1,9}\Z")
_FITS = re.compile(rb'(?:%b)?[ |]*File "' % _MARK)
#: The name of a worker in front of its lines, or of its file.
_NAMED = rb"(?>(?:%b{1,200}/)?)(?P<worker>[\w.@~-]{1,200}?)(?:\.log|\.out)?" % _WORD
#: The name of the next lines' file, as `tail` prints it if it is given several.
_HEADER = re.compile(rb"^==> (?:[^\n]{0,500}/)?([\w.@~-]{1,200}?)(?:\.log|\.out)? <==$", re.MULTILINE)
_PARTS = re.compile(rb"%b|%b|%b{1,300}|(?:(?!%b)[^\x1b]){1,300}|\x1b" % (RFC3339, _COLOUR, _WORD, _WORD))
#: Bytes and parts of a prefix that is learned, at most, and the number of lines that it is learned from.
_LEARNED, _MOST_PARTS, _HEADS = 300, 40, 200
_DATE = re.compile(rb"\d{4}-\d\d?-\d\d?(?:T\d\d?)?")


def learned_prefix(data: bytes) -> LinePrefix | None:
    """The prefix of an unknown shape that all lines have, learned from the starts of tracebacks and of torchrun's own
    lines."""
    heads = [*islice(_heads(data), _HEADS)]
    forms = Counter(map(_parts, heads))
    form, count = forms.most_common(1)[0] if forms else ((), 0)
    if 2 * count < len(heads) or not 0 < len(form) <= _MOST_PARTS or form[-1] == b"w":
        return None
    if any(b"pid=" in head for head in heads):
        return None  # Ray's processes are not workers
    told = [unstamped(line) for line in data.split(b"\n") if line.strip()]
    word = b"%b{1,300}" % _WORD
    parts = [{b"w": word, b"t": RFC3339}.get(part, part) for part in form]
    found = re.compile(b"".join(b"(%b)" % part if part == word else part for part in parts))
    matches = [match for line in told if (match := found.match(line))]
    bare = [line[match.end() :] for line in told if _TRACED in line and (match := found.match(line))]
    fits = sum(_FITS.match(text) is not None for text in bare)
    agents = [line for line in told if any(word in line for word in _AGENTS)]
    if len(matches) < 0.95 * len(told) or fits < 0.9 * len(bare) or not all(map(found.match, agents)):
        return None
    best, most = -1, 1
    for number, place in enumerate((place for place, part in enumerate(form) if part == b"w"), 1):
        values = {match[number] for match in matches}
        named = all(_ADDRESS.fullmatch(value) or _may_be_worker(value) for value in values)
        if named and most < len(values) <= len(told) // 3:
            best, most = place, len(values)
    if best >= 0:
        parts[best] = _NAMED
    if b"t" in form:
        parts[form.index(b"t")] = b"(?P<time>%b)" % RFC3339
    return LinePrefix(PrefixShape(b"".join(parts)))


def _may_be_worker(word: bytes) -> bool:
    mixed = re.search(rb"[A-Za-z]", word) and re.search(rb"\d", word)
    return bool(mixed) and not _DATE.match(word) and not _NO_WORKER.fullmatch(word)


def _heads(data: bytes) -> Iterator[bytes]:
    """The starts of lines before tracebacks and torchrun's texts, without time stamps and torch's marks of ranks."""
    for literal, before in ((_TRACE, _MARKED), (b" torch/distributed/", _OF_AGENT)):
        at = data.find(literal)
        while at >= 0:
            head = data[max(data.rfind(b"\n", 0, at) + 1, at - _LEARNED) : at]
            if (mark := before.search(head)) and not head.endswith(b" : "):  # a row of a summary
                yield unstamped(head[: mark.start()])
            at = data.find(literal, at + 1)


def _parts(head: bytes) -> tuple[bytes, ...]:
    """The pattern of a prefix in parts; `w`: a word that may be another one in the next line, `t`: a time."""
    bare = head.rstrip(b" \t")
    found = [_part(part) for part in _PARTS.findall(bare.lstrip(b" \t"))]
    found += [re.escape(head[len(bare) :])] if head != bare else []
    return (rb"[ \t]{0,20}", *found) if found and bare else tuple(found)


def _part(part: bytes) -> bytes:
    if re.fullmatch(RFC3339, part):
        return b"t"
    if re.match(_WORD, part):
        return b"w"
    if re.fullmatch(_COLOUR, part):
        return _COLOUR
    return rb"[ \t]+".join(map(re.escape, re.split(rb"[ \t]+", part)))


def _indentation(lines: Sequence[bytes]) -> LinePrefix | None:
    """The blanks that all lines begin with, as those of a quoted log do."""
    texts = [line for line in lines if line.strip()]
    width = min((len(line) - len(line.lstrip(b" \t")) for line in texts), default=0)
    return LinePrefix(PrefixShape(rb"[ \t]{%d}" % width)) if width and len(texts) > 2 else None


# Detection of a log that several processes overwrote: each used `tee` on one file on a shared volume without appending.
#
# Each process writes at its own offset, and the last write wins. A change of writer tears a line, mostly inside a word:
# the line begins with one process's text and ends with another's, or only a tail is left. A process that began late may
# also leave a hole of NUL bytes. Often there is only one torn line: the shorter log ends with its summary, and the rest
# of a longer log follows.
#
# Joined lines are not a sign: processes that share a pipe often cause them. But a pipe keeps each write whole and cuts
# no word. So only cut words count, and two such lines are needed, or one after a summary.

#: Lines at the start of a log whose forms are learned; bytes of a line that are compared.
LEARNED = 256
_WIDTH = 200
#: Lines after a summary that may be another process's tail; most such lines, and hosts, that are kept.
_BEHIND = 8
_KEPT = 64
#: Fewer bytes of a tail or head prove nothing; nor does a line form that occurs less often.
_TAIL = 6
_LONG_TAIL = 12
_HEAD = 3
_OFTEN = 3
#: Common line starts that are searched for inside other lines: how many, and bytes of each.
_STARTS = 16
_START = 6

_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_HOST = re.compile(rb"^  host      : (\S{1,253})")
_BORDER = re.compile(rb"={20,}\s*$")
#: Rows of an entry in torchelastic's summaries, in order.
_ROWS = {
    b"  time      : ": 0,
    b"  host      : ": 1,
    b"  rank      : ": 2,
    b"  exitcode  : ": 3,
    b"  error_file: ": 4,
    b"  traceback : ": 5,
}
#: Starts of lines that are written in one call, with the newline: torch's tracebacks with ranks, c10's logs, Python's
#: logging. Such a start in the middle of such a line means that another process overwrote it.
_GLOG = rb"\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d\.\d{6}"
_LOGGING = rb"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3}"
_PREFIX = re.compile(rb"\[rank\d{1,7}\]: ?|%b[^\]]{0,200}\] ?|%b" % (_GLOG, _LOGGING))
_WHOLE = (b"Traceback (mo", b'  File "', b"Root Cause (f", b"torch.distributed.")
_ANOTHER = re.compile(rb"\[rank\d{1,7}\]: |%b|%b|Traceback \(most recent call last\):" % (_GLOG, _LOGGING))
#: A cut time stamp of Python's logging, followed by a whole one.
_CUT_DATE = re.compile(rb"20\d\d-\d\d-(?:\d\d(?: \d{0,2}(?::\d{0,2}){0,2})?)?(?=%b)" % _LOGGING)
#: Bytes of a line that are searched for the start of another line.
_SEARCHED = 2_000

#: Whole lines that every failed job prints.
_KNOWN = (
    b"Traceback (most recent call last):",
    b"Root Cause (first observed failure):",
    b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    b"  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
)


class Overwritten:
    """Detects overwritten lines in one log. Once `full`, only torch's own lines and those after summaries count."""

    def __init__(self, *, alone: bool) -> None:
        """`alone`: the log is that of one worker, so all its summaries should name the same host."""
        self._alone = alone
        self._fed = 0
        self._forms: Counter[bytes] = Counter()
        self._hosts: dict[bytes, None] = {}
        self._row: int | None = None
        self._torn_rows = 0
        self._torn_prefixes: Counter[bytes] = Counter()
        self._cut_characters = 0
        self._not_utf8 = 0
        self._in_root = False
        self._behind = 0
        self._next_forms: list[bytes] = []
        self._behind_forms: list[bytes] = []
        self._row_behind = False

    @property
    def full(self) -> bool:
        """Whether enough lines were seen to know the log's usual lines."""
        return self._fed >= LEARNED

    def feed_line(self, line: bytes) -> None:
        """Takes one line, without prefix and time stamp. Never raises."""
        self._fed += 1
        row = _ROWS.get(line[:14])
        if row is not None:
            self._take_row(row, line)
        elif line[:1] == b"=":
            if self._in_root and _BORDER.match(line):
                self._in_root = False
                self._behind = _BEHIND
        elif line[:10] == b"Root Cause":
            self._in_root = True
        elif self._behind and self._alone:
            kept = self._next_forms if self._behind == _BEHIND else self._behind_forms
            self._behind -= 1
            if len(kept) < _KEPT:
                kept.append(_form(line))
        self._row = row
        # A line of Python's logging is searched only if it may contain a second time stamp or a rank.
        seen = line[:1] in b"[IWEFTRt " or (line[:2] == b"20" and (line.count(b":") > 3 or b"[rank" in line))
        if not (seen and self._look_inside(line)) and self._fed <= LEARNED:
            self._learn(line)

    def verdict(self, holes: int = 0) -> str | None:
        """The signs of overwriting as the predicate of a sentence about the file; None for a normal log.

        `holes` is the number of runs of NUL bytes that LineReader found.
        """
        starts = self._starts()
        often = {form for form, count in self._forms.items() if count >= _OFTEN}
        whole = sorted({*(form for form in often if _starts_inside(form, starts, 1) < 0), *_KNOWN})
        backwards = sorted(form[::-1] for form in whole)
        heads = [form for form in self._forms.keys() - set(whole) if _is_cut(form, starts, whole)]
        tails = {form for form in self._forms.keys() - often if _is_tail(form, backwards)}
        behind = {form for form in self._next_forms if _is_tail(form, backwards, in_a_word=False)}
        behind |= {form for form in self._behind_forms if _is_tail(form, backwards)}
        behind -= often
        characters = self._cut_characters if self._cut_characters > self._not_utf8 else 0
        count = len(tails.union(behind).difference(heads)) + sum(self._forms[form] for form in heads)
        count += self._torn_rows + self._torn_prefixes.total() + characters
        sure = bool(behind) or self._row_behind
        hosts = [host.decode(errors="replace") for host in self._hosts]
        several = self._alone and len(hosts) > 1
        signs = [plural("{n} hole", "{n} holes", holes)] if holes else []
        if count and (count > 1 or sure or holes or several):
            signs.append(plural("{n} line cut in the middle of a word", "{n} lines cut in the middle of a word", count))
        if several:
            signs.append(
                Message(
                    "summaries of {count} hosts ({hosts})",
                    count=len(hosts),
                    hosts=", ".join([*hosts[:4], "..."] if len(hosts) > 4 else hosts),
                )
            )
        if not signs:
            return None
        if several and len(signs) == 1:
            return Message("has {signs}: several workers wrote into it", signs=signs[0])
        return Message(
            "has {signs}: several processes wrote over each other in it, lines may be missing",
            signs=joined(signs, Message(" and ")),
        )

    def _starts(self) -> list[bytes]:
        """The most common line starts."""
        starts: Counter[bytes] = Counter()
        for form, count in self._forms.items():
            if len(form) >= 2 * _START and not form[:1].isspace():
                starts[form[:_START]] += count
        return [start for start, count in starts.most_common(_STARTS) if count >= _OFTEN]

    def _take_row(self, row: int, line: bytes) -> None:
        if self._alone and row and self._row != row - 1 and self._fed > 1:
            self._torn_rows += 1
            self._row_behind |= self._behind > 0
        if row == 1 and len(self._hosts) < _KEPT and (host := _HOST.match(line)):
            short = host[1].partition(b".")[0]  # a host may be named with or without its domain
            self._hosts[host[1] if short.isdigit() else short] = None

    def _look_inside(self, line: bytes) -> bool:
        """Counts starts of other lines in `line`. If its rank prints more later, a full pipe merely split its text."""
        found = _beginnings_inside(line)
        rank = line[: line.find(b"]", 5, 16) + 1] if line[:5] == b"[rank" else b""
        if rank:
            self._torn_prefixes.pop(rank, None)
        if found and len(self._torn_prefixes) < _KEPT:
            self._torn_prefixes[rank] += found
        return found > 0

    def _learn(self, line: bytes) -> None:
        if line[:1] >= b"\x80" and self._fed > 1:
            rest = line.lstrip(bytes(range(0x80, 0xC0)))
            if len(line) - len(rest) in (1, 2, 3) and is_utf8(rest):
                self._cut_characters += 1
            elif not is_utf8(line):
                self._not_utf8 += 1
        form = _form(line)
        if form:
            self._forms[form] += 1


def _beginnings_inside(line: bytes) -> int:
    """Counts the starts of other lines inside this one."""
    if (
        line.count(b":", 0, _SEARCHED) < 2
        and line.find(b"[rank", 1, _SEARCHED) < 0
        and line.find(b"Traceback (", 1, _SEARCHED) < 0
    ):
        return 0  # each of them has one of these
    at = cut.end() if (cut := _CUT_DATE.match(line)) else 0
    found = int(at > 0)
    while (prefix := _PREFIX.match(line, at)) and at < _WIDTH:
        at = prefix.end()
    if not at and not line.startswith(_WHOLE):
        return 0
    rest = line[at + 1 : _SEARCHED]
    if rest.count(b":") < 2 and b"[rank" not in rest and b"Traceback (" not in rest:
        return found
    for another in _ANOTHER.finditer(line, at + 1, _SEARCHED):
        before = line[at : another.start()]
        # Quoted text follows a quote or an escaped newline; times and tracebacks in a message also follow a space.
        quoted = b"\"'(=_ " if another[0][:1] in b"T2" else b"\"'"
        found += bool(before.strip()) and before[-1:] not in quoted and before[-2:] != b"\\n"
    return found


def _form(line: bytes) -> bytes:
    """Normalizes a line for comparison: digits become 0, and text before a carriage return is dropped."""
    text = line.rstrip()
    cut = text.rfind(b"\r") + 1
    form = text[cut : cut + _WIDTH].translate(_AS_ZEROS)
    while b"00" in form:  # a pattern takes five times as long
        form = form.replace(b"00", b"0")
    return form


def _is_tail(form: bytes, backwards: Sequence[bytes], *, in_a_word: bool = True) -> bool:
    """Whether `form` is the end of a known line that was cut inside a word.

    Without `in_a_word`, a long tail may also begin at another place, but not after a space. `backwards` holds the known
    lines in reverse, sorted.
    """
    before = _longer(form[::-1], backwards)
    if not in_a_word and len(form) >= _LONG_TAIL and any(not byte.isspace() for byte in before):
        return True
    return len(form) >= _TAIL and form[:1].isalpha() and any(map(bytes.isalpha, before))


def _is_cut(form: bytes, starts: Sequence[bytes], whole: Sequence[bytes]) -> bool:
    """Whether `form` begins like a known line and continues, inside a word, with the start of another line."""
    at = _starts_inside(form, starts, _HEAD)
    return at > 0 and form[at - 1 : at].isalpha() and any(map(bytes.isalpha, _longer(form[:at], whole)))


def _starts_inside(form: bytes, starts: Sequence[bytes], first: int) -> int:
    """The first index in `form`, from `first` on, at which one of `starts` occurs; -1 if there is none."""
    return min((at for start in starts if (at := form.find(start, first)) >= 0), default=-1)


def _longer(part: bytes, ordered: Sequence[bytes]) -> list[bytes]:
    """The byte that follows `part` in each text of `ordered` (sorted) that begins with it."""
    at = bisect_right(ordered, part)
    found = []
    while at < len(ordered) and ordered[at].startswith(part):
        found.append(ordered[at][len(part) : len(part) + 1])
        at += 1
    return found
