"""Splits a log without prefixes by worker, using the host named in torchelastic's summaries.

Each agent prints one summary of its worker. Lines outside summaries name no host: they are assigned to the following
summary that fits best, or stay unassigned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from atlctl.diagnosis.logfacts import Identity, LogFacts, PlainLine
from atlctl.diagnosis.logline import Origin
from atlctl.diagnosis.torchelastic import AgentNote, NoteKind, Summary

_POD_DOMAIN = re.compile(r"([^.]{1,63})\.[^.]{1,63}\.[^.]{1,63}\.svc(?:\..{1,200})?")
#: The list fields of LogFacts whose entries have line numbers.
_LISTS = ("summaries", "notes", "traces", "unfinished", "collectives", "identities", "hits")


def merged(first: LogFacts, second: LogFacts) -> LogFacts:
    """Merges the facts of two logs of one worker, in the order of their lines."""
    late, early = (first, second) if first.last_line > second.last_line else (second, first)
    made = replace(
        late,
        addresses=tuple(dict.fromkeys((*first.addresses, *second.addresses))),
        events={**first.events, **second.events},
        moments={**first.moments, **second.moments},
        marks={**second.marks, **first.marks},
        went_on={**first.went_on, **second.went_on},
        bases=first.bases | second.bases,
        mesh=first.mesh or second.mesh,
        before={**first.before, **second.before},
        first=early.first or late.first,
        zone=first.zone if first.zone is not None else second.zone,
        adrift=first.adrift or second.adrift,
        last_activity=max(first.last_activity, second.last_activity),
        outlived=max(first.outlived, second.outlived),
    )
    for name in _LISTS:
        both = (*getattr(first, name), *getattr(second, name))
        setattr(made, name, sorted(both, key=lambda item: item.line_no))
    return made


def of_ranks(tasks: Mapping[int, LogFacts], launcher: LogFacts) -> LogFacts | None:
    """Merges the logs of a launcher's tasks and its own lines, if each task is the rank of its number; else None.

    Tasks are not ranks if torchrun runs in them, or if their lines name other ranks.
    """
    made = replace(launcher, before={})
    tails: list[PlainLine] = []
    identities = [item for facts in tasks.values() for item in facts.identities]
    bases = {
        item.rank - item.local_rank for item in identities if item.rank is not None and item.local_rank is not None
    }
    world = len(tasks) if set(tasks) == set(range(len(tasks))) else None
    for number, facts in tasks.items():
        named = {item.rank for item in facts.identities} | {item.origin.rank for item in facts.traces}
        named |= {item.origin.rank for item in facts.hits}
        if facts.summaries or not all(note.launcher for note in facts.notes) or not named <= {None, number}:
            return None
        origin = Origin(number)
        tails += [replace(line, origin=origin) for line in facts.tail]
        made = merged(made, replace(
            facts,
            notes=[],  # of processes that the rank starts itself
            traces=[replace(item, origin=origin) for item in facts.traces],
            hits=[replace(item, origin=origin) for item in facts.hits],
            unfinished=[replace(item, origin=origin) for item in facts.unfinished],
            identities=[Identity(0, number, None, world),  # no line of the task says so
                        *(item if len(bases) == 1 else replace(item, local_rank=None) for item in facts.identities)],
            went_on=dict.fromkeys([number] if facts.went_on else [], max(facts.went_on.values(), default=0)),
            before={},
        ))  # fmt: skip
    made.cut = any(facts.cut for facts in tasks.values())
    made.tail = tuple(sorted(tails, key=lambda line: line.line_no))
    return made if tasks else None


def by_host(found: LogFacts, rest: str) -> Mapping[str, LogFacts]:
    """Splits `found` by host; facts without a known host are under `rest`."""
    named = [(summary, host) for summary in found.summaries if (host := _host(summary))]
    hosts = dict.fromkeys(host for _, host in named)
    if not hosts:
        return {rest: found}
    if len(hosts) == 1 and len(named) == len(found.summaries):
        return {next(iter(hosts)): found}
    parts = {host: _empty(found) for host in hosts}
    parts[rest] = _empty(found)
    for summary in found.summaries:
        parts[_host(summary) or rest].summaries.append(summary)
    for note in found.notes:
        parts[_host_of_note(note, named) or rest].notes.append(note)
    for name in ("traces", "unfinished", "collectives", "identities", "hits"):
        for item in getattr(found, name):
            origin = getattr(item, "origin", item)
            holding = [pair for pair in named if _holds(pair[0], origin.rank)]
            host = next(_behind(item.line_no, holding), None)
            getattr(parts[host or rest], name).append(item)
    return {name: part for name, part in parts.items() if part.said}


def _empty(found: LogFacts) -> LogFacts:
    """A copy with only the facts that hold for every part: line times, the time zone, the end of the log."""
    made = replace(found, events={}, before={}, tail=())
    for name in _LISTS:
        setattr(made, name, [])
    return made


def _host(summary: Summary) -> str | None:
    """The agent's host. A pod's DNS name (`POD.SERVICE.NAMESPACE.svc.DOMAIN`) is cut to the pod's name."""
    host = next((entry.host for entry in summary.entries if entry.host), None)
    pod = _POD_DOMAIN.fullmatch(host) if host else None
    return pod[1] if pod else host


def _behind(line_no: int, named: Sequence[tuple[Summary, str]]) -> Iterator[str]:
    """Hosts of the summaries after a line, the nearest first."""
    return (host for summary, host in named if summary.line_no >= line_no)


def _holds(summary: Summary, rank: int | None) -> bool:
    return rank is not None and any(entry.rank == rank for entry in summary.entries)


def _host_of_note(note: AgentNote, named: Sequence[tuple[Summary, str]]) -> str | None:
    """The host that a note belongs to; None for an agent that prints no summary (killed, or failed in rendezvous)."""
    if note.kind in (NoteKind.SIGNALLED, NoteKind.RENDEZVOUS):
        return None
    same = [
        pair for pair in named if any(_same_process(note, entry.pid, entry.local_rank) for entry in pair[0].entries)
    ]
    return next(_behind(note.line_no, same), None) or next(_behind(note.line_no, named), None)


def _same_process(note: AgentNote, pid: int | None, local_rank: int | None) -> bool:
    return note.pid == pid and note.local_rank in (None, local_rank)
