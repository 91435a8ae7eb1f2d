"""`--log-path GLOB`: read the ends of files inside running workers, and join them with the workers' logs.

The files are listed first, then each file is read by its own command, so that contents never share a stream with
metadata. The log has precedence: lines in both count once, and a file that several processes overwrote adds nothing to
a log with failures. Each line's place is kept.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from atlctl.backends.base import Argv, ExecRequest, Exited, FailedToStart, Lost, Output
from atlctl.diagnosis.evidence import RankLogFacts
from atlctl.diagnosis.result import Diagnosis, Proof
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, TimedOut, Unreachable, UsageError, by_signal
from atlctl.jobs.naming import fold_names
from atlctl.recording.hosts import by_host, merged
from atlctl.recording.packed import ENDINGS, MAGIC, Unpacking, unpacking
from atlctl.remote.sending import shell

if TYPE_CHECKING:
    from atlctl.backends.base import Executor
    from atlctl.diagnosis.logfacts import LogFacts
    from atlctl.diagnosis.signatures import Matcher
    from atlctl.jobs.model import Worker
    from atlctl.recording.feed import Feed

#: Bytes that are read of a file: its end.
LIMIT = 64 * 1024 * 1024
#: Files of one worker, and bytes of the list of them.
MAX_FILES = 256
_LIST_LIMIT = 2 * 1024 * 1024
#: Seconds for all files of one worker, seconds from SIGTERM to SIGKILL, workers at once.
PATIENCE = 60.0
_GRACE = 1.0
READERS = 16
#: Bytes from which a file's format is detected, and bytes of a command's error output that are kept.
_SAMPLE = 64 * 1024
_COMPLAINT = 1024

_TOO_LARGE = Message("{file} is compressed and larger than {size} MiB; it was not read")
_FEWER = Message("name fewer files with --log-path")
_UNREAD = Message("its files could not be read: {why}")
_READ = 'tail -c "$2" < "$1"'

_RANK_LOG = re.compile(r"attempt_(\d{1,6})/(\d{1,4})/(?:stdout|stderr)\.log")
#: Keys that make two entries equal. Times may differ: only one of the two may have the platform's timestamps.
_KEYS: Mapping[str, Callable[[Any], Hashable]] = {
    "summaries": lambda item: (
        item.root_index,
        tuple((e.rank, e.local_rank, e.exit_code, e.pid, e.time) for e in item.entries),
    ),
    "notes": lambda item: (item.kind, item.pid, item.local_rank, item.exit_code, item.signal, item.text),
    "traces": lambda item: (item.origin, item.agent, item.last.exception, item.last.message),
    "collectives": lambda item: replace(item, line_no=0, time=None),
    "identities": lambda item: replace(item, line_no=0),
    "hits": lambda item: (item.origin, item.text),
}


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as its worker lists it. `size` in bytes; `ends` is a checksum of its first and last 4 KiB."""

    path: str
    size: int
    changed: str = ""
    ends: str = ""

    @property
    def shown(self) -> str:
        """The name as UTF-8; bytes that are none are written as `\\xNN`."""
        return self.path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

    @property
    def rank(self) -> tuple[int, int] | None:
        """Attempt and local rank, if it is torchelastic's log of one process."""
        match = _RANK_LOG.search(self.path)
        return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class Read:
    """The facts of one file. Lines count from 1; if it was `cut`, from the first complete line that was read.

    `workers` see this file: one, or all that share it. `overwritten`: text that follows its name in a sentence.
    """

    workers: tuple[str, ...]
    file: Listed
    facts: LogFacts
    lines: int
    cut: bool
    overwritten: str | None


@dataclass(slots=True)
class FilesRead:
    """The files read, the errors (by worker), and remarks for the user."""

    files: list[Read] = field(default_factory=list)
    problems: list[tuple[str, AtlctlError]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


async def read_files(
    executor: Callable[[], Executor], workers: Sequence[Worker], pattern: str, matcher: Matcher
) -> FilesRead:
    """Reads the files that match in each worker that runs. Never raises for a single worker.

    Raises AtlctlError where `executor` does. A pattern without a leading `/` counts from where the worker's commands
    start.
    """
    found = FilesRead()
    gone = [worker.name for worker in workers if not worker.state.active]
    if gone:
        found.remarks.append(
            Message("{workers}: not running, so no files could be read there (--log-path)", workers=fold_names(gone))
        )
    living = [worker for worker in workers if worker.state.active]
    if not living:
        return found
    runner = executor()
    try:
        visit = _Visit(runner, living, pattern, matcher, found)
        await visit.list_all()
        await visit.read_all()
    finally:
        await runner.aclose()
    found.remarks += [
        Message("{names}: {text}", names=fold_names(names), text=text) for text, names in visit.said.items()
    ]
    return found


class _Complained(AtlctlError):
    """A command inside a worker ran and failed; the message is what it said."""


class _Visit:
    def __init__(
        self, executor: Executor, workers: Sequence[Worker], pattern: str, matcher: Matcher, found: FilesRead
    ) -> None:
        self._executor = executor
        self._workers = workers
        self._pattern = pattern
        self._matcher = matcher
        self._found = found
        self._gate = asyncio.Semaphore(READERS)
        self._listed: dict[str, list[Listed]] = {}
        self._left: dict[str, float] = dict.fromkeys((worker.name for worker in workers), PATIENCE)
        self._read: dict[str, list[Read]] = {}
        #: Remarks, and their workers.
        self.said: dict[str, list[str]] = {}

    def _say(self, text: str, *names: str) -> None:
        self.said.setdefault(text, []).extend(names)

    async def list_all(self) -> None:
        await asyncio.gather(*(self._within(worker, self._list) for worker in self._workers))
        none = [worker.name for worker in self._workers if self._listed.get(worker.name) == []]
        if none:
            self._say(Message("no file matches {pattern}", pattern=self._pattern), *none)

    async def read_all(self) -> None:
        """Reads each file once, also where several workers see it."""
        seen: dict[Listed, list[str]] = {}
        for worker in self._workers:
            for file in self._listed.get(worker.name, ()):
                seen.setdefault(file, []).append(worker.name)
        shared = {file: tuple(names) for file, names in seen.items() if len(names) > 1 and file.size and file.changed}
        for file, names in shared.items():
            text = Message("{count} workers share {file}; lines that no summary assigns to a worker were ignored")
            self._say(text.filled(count=len(names), file=file.shown), *names)

        async def read(worker: Worker) -> None:
            for file in self._listed.get(worker.name, ()):
                names = shared.get(file, (worker.name,))
                if names[0] == worker.name and file.size:
                    await self._file(worker, file, names)

        await asyncio.gather(*(self._within(worker, read) for worker in self._workers))
        self._found.files = [item for worker in self._workers for item in self._read.get(worker.name, ())]

    async def _within(self, worker: Worker, work: Callable[[Worker], Awaitable[None]]) -> None:
        """Runs `work` in what is left of the worker's time; its failure is a problem of that worker alone."""
        loop = asyncio.get_running_loop()
        async with self._gate:
            start = loop.time()
            try:
                async with asyncio.timeout(self._left[worker.name]):
                    await work(worker)
            except TimeoutError:
                error = TimedOut(Message("its files were not read within {seconds:.0f} s", seconds=PATIENCE), _FEWER)
                self._found.problems.append((worker.name, error))
            except AtlctlError as error:
                self._found.problems.append((worker.name, error))
            self._left[worker.name] = max(0.0, self._left[worker.name] - (loop.time() - start))

    async def _list(self, worker: Worker) -> None:
        parts: list[bytes] = []
        size = 0

        def take(data: bytes) -> bool:
            nonlocal size
            parts.append(data)
            size += len(data)
            return size < _LIST_LIMIT

        await self._run(worker, (shell("list_files"), self._pattern, str(MAX_FILES)), take)
        files, remarks = parse_list(b"".join(parts))
        self._listed[worker.name] = files
        for remark in remarks:
            self._say(remark, worker.name)

    async def _file(self, worker: Worker, file: Listed, names: tuple[str, ...]) -> None:
        if file.size > LIMIT and file.path.endswith(ENDINGS):
            self._say(_TOO_LARGE.filled(file=file.shown, size=LIMIT >> 20), worker.name)
            return
        intake = _Intake(self._matcher, file.shown, skip=file.size > LIMIT)
        try:
            await self._run(worker, (_READ, file.path, str(LIMIT)), intake.take)
        except _Complained as error:
            why = Message("{file} could not be read: {why}", file=file.shown, why=error.message)
            self._found.problems.append((worker.name, AtlctlError(why)))
            return
        except UsageError as error:  # it is compressed, and the package that unpacks it is missing
            self._found.problems.append((worker.name, error))
            return
        if reason := intake.finish():
            self._say(Message("{file} {what}", file=file.shown, what=reason), worker.name)
            return
        if file.size > LIMIT:
            left = file.size - LIMIT
            text = Message(
                "only the last {size} MiB of {file} were read; {left} bytes were skipped",
                file=file.shown,
                size=LIMIT >> 20,
                left=left,
            )
            self._say(text, worker.name)
        if intake.feed is None:
            return
        wrong = intake.feed.overwritten()
        if wrong:
            self._say(Message("{file} {what}", file=file.shown, what=wrong), worker.name)
        facts = intake.reader_of_all.facts()
        for why in intake.feed.unread.values():
            facts.cut = True
            self._say(Message("{path}: {why}", path=file.shown, why=why), worker.name)
        if intake.damage is not None:
            facts.cut = True
            self._say(Message("{path} {problem}", path=file.shown, problem=intake.damage), worker.name)
        item = Read(names, file, facts, intake.feed.number, file.size > LIMIT, wrong)
        self._read.setdefault(worker.name, []).append(item)

    async def _run(self, worker: Worker, words: tuple[str, ...], take: Callable[[bytes], bool]) -> None:
        """Runs a script; `take` gets its output, and says whether it wants more. Raises AtlctlError."""
        script, *arguments = words
        request = ExecRequest(Argv(("/bin/sh", "-c", script, "sh", *arguments)))
        execution = self._executor.run(worker, request)
        complaint = b""
        ended = enough = False
        try:
            async for event in execution:
                match event:
                    case Output(stream="stdout", data=data):
                        enough = not take(data)
                    case Output(data=data):
                        complaint = (complaint + data)[:_COMPLAINT]
                    case FailedToStart(exit_code=code, reason=reason):
                        ended = True
                        kind = Unreachable if code == Unreachable.exit_code else AtlctlError
                        raise kind(_UNREAD.filled(why=reason))
                    case Lost(reason=reason):
                        ended = True
                        raise Unreachable(_UNREAD.filled(why=reason))
                    case Exited(exit_code=code, signal=signal):
                        ended = True
                        if code or signal:
                            said = complaint.decode("utf-8", "backslashreplace").strip()
                            how = by_signal(signal) if signal else Message("exit code {code}", code=code)
                            raise _Complained(said or how)
                    case _:
                        pass
                if enough:
                    break
        finally:
            if not ended:
                await execution.end(_GRACE)
            await execution.aclose()


def parse_list(data: bytes) -> tuple[list[Listed], list[str]]:
    """The files that a worker lists, and remarks on skipped ones. Raises AtlctlError if the list is cut off."""
    *records, rest = data.split(b"\0")
    if rest or not records or not records[-1].startswith(b"e|"):
        raise AtlctlError(Message("its list of files is incomplete"), _FEWER)
    files: list[Listed] = []
    remarks: list[str] = []
    for record in records[:-1]:
        kind, size, changed, ends, name = [*record.split(b"|", 4), b"", b"", b"", b""][:5]
        path = name.decode("utf-8", "surrogateescape")
        digits = size.strip()
        if kind == b"f" and digits.isdigit() and len(digits) < 20:
            when = changed.decode("ascii", "replace")
            files.append(Listed(path, int(digits), when, ends.decode("ascii", "replace")))
        elif kind == b"m":
            remarks.append(Message("more than {count} files match: the others were not read", count=MAX_FILES))
        else:
            special = Message("{file} is not a regular file and was not opened")
            unread = Message("{file} could not be read")
            remarks.append((special if kind == b"s" else unread).filled(file=Listed(path, 0).shown))
    return files, remarks


class _Intake:
    """Receives a file's bytes, and passes them, unpacked, to a reader once its format is known."""

    def __init__(self, matcher: Matcher, shown: str, *, skip: bool) -> None:
        """`skip`: the first line is the rest of one, and is left out."""
        from atlctl.diagnosis.logfacts import LogReader

        self.reader_of_all = LogReader(matcher)
        self.feed: Feed | None = None
        self._matcher = matcher
        self._shown = shown
        self._head: bytes | None = None if skip else b""  # the first bytes, until they show whether it is compressed
        self._unpacking: Unpacking | None = None
        self._start = b""
        self._left = LIMIT
        self._skip = skip
        self._refused: Message | None = None

    @property
    def damage(self) -> Message | None:
        """Why the file was not unpacked to its end, to go behind its name."""
        return self._unpacking.wrong if self._unpacking else None

    def take(self, data: bytes) -> bool:
        """Takes the next bytes; False if no more are needed. Raises UsageError if a package is missing."""
        data = data[: self._left]  # it grows while it is read
        self._left -= len(data)
        if self._head is not None:
            self._head += data
            if len(self._head) < MAGIC:
                return True
            data, self._head = self._head, None
            self._unpacking = unpacking(data, self._shown, self._shown, "errors")
        if self._skip:
            _, newline, data = data.partition(b"\n")
            self._skip = not newline
        for piece in self._unpacking.feed(data) if self._unpacking else (data,):
            self._put(piece)
        return self._left > 0 and self._refused is None and self.damage is None

    def _put(self, data: bytes) -> None:
        if self.feed is not None:
            self.feed.feed(data)
            return
        self._start += data
        if len(self._start) >= _SAMPLE:
            self._begin()

    def finish(self) -> Message | None:
        """The file has ended. Why it was not read, to go behind its name."""
        self._put(self._unpacking.finish() if self._unpacking else self._head or b"")
        if self._unpacking and self._unpacking.refused:
            return self._unpacking.wrong
        if self.feed is None and self._start and self._refused is None:
            self._begin()
        if self.feed is not None:
            self.feed.finish()
        return self._refused or (self.damage if self.feed is None else None)

    def _begin(self) -> None:
        from atlctl.diagnosis.logfacts import literals_of
        from atlctl.recording.feed import Alone, Feed
        from atlctl.recording.lines import not_text

        start, self._start = self._start, b""
        if what := not_text(start):
            self._refused = Message("is not a log but {what}; it was not read", what=what[0])
            return
        feed = Feed(Alone(self.reader_of_all), "", 0, literals_of(self._matcher), start, alone=True)
        if feed.backwards:
            self._refused = Message("has its newest lines first; it was not read")
            return
        self.feed = feed
        feed.feed(start)


@dataclass(frozen=True, slots=True)
class Span:
    """Lines `first` to `last` of a worker's evidence. `path` is None for its log; `whole`: lines are the file's own."""

    first: int
    last: int
    path: str | None
    whole: bool = True


class Story:
    """The log and the files of one worker, in one count of lines."""

    def __init__(self, log: LogFacts | None, *, cut: bool = False) -> None:
        """`cut`: only the end of the log was read, so that its lines have no numbers."""
        self.log = log
        self.rank_logs: list[RankLogFacts] = []
        self._spans = [Span(1, log.last_line, None, not cut)] if log else []

    @property
    def _end(self) -> int:
        return max((span.last for span in self._spans), default=0)

    def add(self, item: Read, facts: LogFacts) -> None:
        """Add the facts that the log lacks. `facts` are those of the file `item`, or of a part of it.

        They follow a log without lines of an agent if they have such lines, otherwise they precede it: after the
        agent's last line they would look like another start of the job.
        """
        if item.file.rank is not None:
            self._add_rank_log(item, facts, *item.file.rank)
            return
        own = self.log
        if own is not None and own.said:
            if item.overwritten:
                return
            facts = _beyond(facts, own)
        if not facts.said:
            return
        if own is None:
            self.log, self._spans = facts, [Span(1, item.lines, item.file.shown, not item.cut)]
        elif not own.said or (_agent(facts) and not _agent(own)):
            self.log = merged(own, moved(facts, self._end))
            self._spans.append(Span(self._end + 1, self._end + item.lines, item.file.shown, not item.cut))
        else:
            by = item.lines
            self.log = merged(moved(own, by), facts)
            behind = [replace(span, first=span.first + by, last=span.last + by) for span in self._spans]
            self._spans = [Span(1, by, item.file.shown, not item.cut), *behind]

    def _add_rank_log(self, item: Read, facts: LogFacts, attempt: int, local_rank: int) -> None:
        """torchelastic's own file of one process: it is known whose words these are."""
        found = moved(facts, self._end)
        self._spans.append(Span(self._end + 1, self._end + item.lines, item.file.shown, not item.cut))
        self.rank_logs.append(RankLogFacts(attempt, local_rank, found))

    def place(self, proof: Proof) -> Proof:
        """The proof with the line of the log, or with the file and its line there; no line where the file was cut."""
        if proof.line_no is None:
            return proof
        for span in self._spans:
            if span.first <= proof.line_no <= span.last:
                number = proof.line_no - span.first + 1
                return replace(proof, line_no=number if span.whole else None, file=span.path or proof.file)
        return proof


def join(
    logs: Mapping[str, LogFacts | None],
    files: Sequence[Read],
    workers: Sequence[Worker],
    cut: Container[str] = frozenset(),
) -> dict[str, Story]:
    """The stories of all workers; of those in `cut` only the end of the log was read.

    Torchelastic's own files come last: they do not move the lines before them.
    """
    stories = {name: Story(log, cut=name in cut) for name, log in logs.items()}
    for item in sorted(files, key=lambda item: item.file.rank is not None):
        for name, facts in _owners(item, workers).items():
            stories[name].add(item, facts)
    return stories


def _owners(item: Read, workers: Sequence[Worker]) -> Mapping[str, LogFacts]:
    """The owners of the facts: a file that several workers wrote is divided by host; other lines are dropped."""
    hosts = {entry.host for summary in item.facts.summaries for entry in summary.entries if entry.host}
    others = {owner_of(host, workers) for host in hosts} - {None, item.workers[0]}
    if len(item.workers) == 1 and len(hosts) < 2 and not others:
        return {item.workers[0]: item.facts}
    found: dict[str, LogFacts] = {}
    for host, part in by_host(item.facts, "").items():
        name = owner_of(host, workers) if host else None
        if name is not None:
            found[name] = merged(found[name], part) if name in found else part
    return found


def owner_of(host: str, workers: Sequence[Worker]) -> str | None:
    """The one worker with this host name; None if there is none, or several."""
    names: Mapping[str, set[str | None]] = {
        worker.name: {worker.name, worker.pod, worker.host, worker.node} for worker in workers
    }
    short = host.partition(".")[0]
    for wanted in (host, short):
        fits = Counter(
            name for name, known in names.items() if any(k and wanted in (k, k.partition(".")[0]) for k in known)
        )
        if len(fits) == 1:
            return next(iter(fits))
    return None


def moved(facts: LogFacts, by: int) -> LogFacts:
    """The same facts, `by` lines further on."""

    def at(item: Any) -> Any:
        return replace(item, line_no=item.line_no + by)

    return replace(
        facts,
        summaries=[replace(at(item), entries=tuple(map(at, item.entries))) for item in facts.summaries],
        notes=[at(item) for item in facts.notes],
        traces=[replace(at(item), chain=tuple(map(at, item.chain))) for item in facts.traces],
        collectives=[at(item) for item in facts.collectives],
        identities=[at(item) for item in facts.identities],
        hits=[at(item) for item in facts.hits],
        events={rank: line + by for rank, line in facts.events.items()},
        moments={line + by: moment for line, moment in facts.moments.items()},
        before={line + by: tuple(map(at, lines)) for line, lines in facts.before.items()},
        tail=tuple(map(at, facts.tail)),
        last_activity=facts.last_activity + by if facts.last_activity else 0,
        outlived=facts.outlived + by if facts.outlived else 0,
        last_line=facts.last_line + by,
    )


def _beyond(facts: LogFacts, own: LogFacts) -> LogFacts:
    """What `facts` hold more than `own`. Repeated entries are matched from the end: logs are cut in front."""
    made = replace(facts, events={rank: line for rank, line in facts.events.items() if rank not in own.events})
    for name, key in _KEYS.items():
        known = Counter(key(item) for item in getattr(own, name))
        kept = []
        for item in reversed(getattr(facts, name)):
            this = key(item)
            if known[this] > 0:
                known[this] -= 1
            else:
                kept.append(item)
        setattr(made, name, kept[::-1])
    return made


def _agent(facts: LogFacts) -> bool:
    return bool(facts.notes or facts.summaries)


def placed(found: Diagnosis, stories: Mapping[str, Story]) -> Diagnosis:
    """The diagnosis with each proof in its place."""

    def place(proof: Proof) -> Proof:
        story = stories.get(proof.worker)
        return story.place(proof) if story else proof

    return found.placed(place)
