"""Tells workers apart in a log without prefixes: by the host that torchelastic's summaries name.

Each agent prints one summary, of its own worker. What stands outside of summaries names no host: it goes to the
summary behind it that fits best, or stays where it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from atlctl.diagnosis.agentnotes import AgentNote, NoteKind
from atlctl.diagnosis.summary import Summary
from atlctl.diagnosis.torchelastic import SummaryParser
from atlctl.diagnosis.tracebacks import RankTraceback

_POD_DOMAIN = re.compile(r"([^.]{1,63})\.[^.]{1,63}\.[^.]{1,63}\.svc(?:\..{1,200})?")


@dataclass(slots=True)
class Found:
    """What one worker's lines gave, in the order of the log."""

    summaries: list[Summary] = field(default_factory=list)
    notes: list[AgentNote] = field(default_factory=list)
    tracebacks: list[RankTraceback] = field(default_factory=list)

    @classmethod
    def of(cls, parser: SummaryParser) -> Found:
        return cls(parser.summaries(), parser.notes(), parser.tracebacks())

    def __bool__(self) -> bool:
        return bool(self.summaries or self.notes or self.tracebacks)

    def add(self, other: Found) -> None:
        """Takes in what else is known of the same worker."""
        self.summaries = sorted((*self.summaries, *other.summaries), key=_line)
        self.notes = sorted((*self.notes, *other.notes), key=_line)
        self.tracebacks = sorted((*self.tracebacks, *other.tracebacks), key=_line)


def by_host(found: Found, rest: str) -> Mapping[str, Found]:
    """`found` by host; under `rest` what no host can be told of."""
    named = [(summary, host) for summary in found.summaries if (host := _host(summary))]
    hosts = dict.fromkeys(host for _, host in named)
    if len(hosts) == 1 and len(named) == len(found.summaries):
        return {next(iter(hosts)): found}
    parts = {host: Found() for host in hosts}
    parts[rest] = Found()
    for summary in found.summaries:
        parts[_host(summary) or rest].summaries.append(summary)
    for note in found.notes:
        parts[_host_of_note(note, named) or rest].notes.append(note)
    for traceback in found.tracebacks:
        host = next(_behind(traceback.line_no, [pair for pair in named if _holds(pair[0], traceback)]), None)
        parts[host or rest].tracebacks.append(traceback)
    return {name: part for name, part in parts.items() if part}


def _line(item: Summary | AgentNote | RankTraceback) -> int:
    return item.line_no


def _host(summary: Summary) -> str | None:
    """The agent's host. Kubernetes' name of a pod (`POD.SERVICE.NAMESPACE.svc.DOMAIN`) is cut to the pod's."""
    host = next((entry.host for entry in summary.entries if entry.host), None)
    pod = _POD_DOMAIN.fullmatch(host) if host else None
    return pod[1] if pod else host


def _behind(line_no: int, named: Sequence[tuple[Summary, str]]) -> Iterator[str]:
    """Hosts of the summaries behind a line, the nearest first."""
    return (host for summary, host in named if summary.line_no >= line_no)


def _holds(summary: Summary, traceback: RankTraceback) -> bool:
    return any(entry.rank == traceback.rank for entry in summary.entries)


def _host_of_note(note: AgentNote, named: Sequence[tuple[Summary, str]]) -> str | None:
    """An agent that died of a signal or of the rendezvous prints no summary: such a note is none of theirs."""
    if note.kind in (NoteKind.SIGNALLED, NoteKind.RENDEZVOUS):
        return None
    same = [
        pair for pair in named if any(_same_process(note, entry.pid, entry.local_rank) for entry in pair[0].entries)
    ]
    return next(_behind(note.line_no, same), None) or next(_behind(note.line_no, named), None)


def _same_process(note: AgentNote, pid: int | None, local_rank: int | None) -> bool:
    return note.pid == pid and note.local_rank in (None, local_rank)
