"""Joins what the files of a worker say with what its log says, and remembers where each line stands.

The log counts first: what stands in both counts once, and of a file that several processes overwrote nothing is added
to a log that has something to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atlctl.cli.evidence.logpath import owner_of
from atlctl.diagnosis.evidence import RankLog
from atlctl.diagnosis.result import Diagnosis, Proof
from atlctl.recording.hosts import by_host, merged

if TYPE_CHECKING:
    from atlctl.cli.evidence.logpath import Read
    from atlctl.diagnosis.reading.reader import LogFacts
    from atlctl.jobs.model import Worker

#: What tells that two entries are the same words. Times differ: only one of the two may have the platform's stamps.
_KEYS: Mapping[str, Callable[[Any], Hashable]] = {
    "summaries": lambda item: (
        item.root_index,
        tuple((e.rank, e.local_rank, e.exit_code, e.pid, e.time_text) for e in item.entries),
    ),
    "notes": lambda item: (item.kind, item.pid, item.local_rank, item.exit_code, item.signal, item.text),
    "traces": lambda item: (item.origin, item.agent, item.last.exception, item.last.message),
    "collectives": lambda item: replace(item, line_no=0, time=None),
    "identities": lambda item: replace(item, line_no=0),
    "hits": lambda item: (item.origin, item.text),
}


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
        self.rank_logs: list[RankLog] = []
        self._spans = [Span(1, log.last_line, None, not cut)] if log else []

    @property
    def _end(self) -> int:
        return max((span.last for span in self._spans), default=0)

    def add(self, item: Read, facts: LogFacts) -> None:
        """Adds what `facts` say beyond the log. `facts` are of the file `item`, or of a part of it.

        They stand behind a log in which no agent spoke, where they bring the agent's words, else in front of it: behind
        the agent's last word they would look like another start of the job.
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
        self.rank_logs.append(RankLog(attempt, local_rank, item.file.shown, found))

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
    """Whose facts these are: a file that others than its worker wrote is divided by host, with nobody's left out."""
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
