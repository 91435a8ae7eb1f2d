"""Finds the missing rank if all ranks with errors are victims: hangs, silent exits, lost workers.

Victims report one of two things. They *waited* until a timeout: a rank did not join, and is alive or frozen. Or a
connection was *closed*: a rank has left. In the first case the culprit is the rank that reported nothing and was ended
by its agent, in the second the rank that no report names, or a whole worker whose log ends abruptly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from atlctl.diagnosis.cause import desync
from atlctl.diagnosis.cause.rounds import (
    CUT_OFF,
    Round,
    Universe,
    gaps,
    name_process,
    place_unheard,
    raised_in,
    rank_of_the_mute,
    universe,
)
from atlctl.diagnosis.consequence import Sort, consequence_of
from atlctl.diagnosis.failures import Failure, Part
from atlctl.diagnosis.joining import OF_VICTIMS, Process, WorkerRounds, is_victim_end
from atlctl.diagnosis.logfacts import LogFacts
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict
from atlctl.diagnosis.torchelastic import NoteKind
from atlctl.diagnosis.tracebacks import Trace
from atlctl.i18n import Message, about, joined, plural

#: Seconds after the last timeout within which a peer that also waited detects the closed connection.
_LATE = 2.0
_ENDS = about("diagnosis", "its log ends abruptly")
_STUCK = Message("its own watchdog thread was stuck, {others}")
_SILENT = Message("only this rank does not report a lost peer, and it logged nothing")
_UNKNOWN = Message("it is unknown which of them failed first")
_WAITS = (Sort.WAITED, Sort.STORE_WAITED, Sort.STUCK)


@dataclass(slots=True)
class _Case:
    """A round's ranks that waited, lost a peer, were ended by their agent, or are silent, and its lost workers."""

    this: Round
    ranks: Universe
    waited: list[Failure]
    left: list[Failure]
    ended: list[Failure]
    silent: list[Failure]
    lost: list[WorkerRounds]


def find_missing(this: Round) -> Diagnosis | None:
    """The answer if a rank is missing; None if there are no victims at all."""
    victims = this.victims
    ends = [end for end in this.final_ends if end.signal is None and is_victim_end(end)]
    if not victims and not ends:
        return None
    case = _Case(
        this,
        universe(this),
        [item for item in victims if item.sort in _WAITS],
        [item for item in victims if item.sort is not None and item.sort not in (*_WAITS, Sort.SIZES)],
        this.of_part(Part.ENDED),
        this.of_part(Part.SILENT),
        [
            worker
            for worker in this.silent_workers()
            if worker.worker not in this.job.evidence.deleted and worker.worker not in this.job.cut
        ],
    )
    named = desync.named(this)
    if named is not None:
        return named
    sizes = [item for item in victims if item.sort is Sort.SIZES]
    if sizes and not case.waited:
        why = Message("it received another size than it expected: it or its peer ran another collective")
        return _undecided(case, sizes, why)
    stuck = [item for item in victims if item.sort is Sort.STUCK]
    others = [item for item in case.waited if item.sort is Sort.WAITED]
    if len(stuck) == 1 and len(case.left) > 2:
        why = _STUCK.filled(others=_count(case.left, Message("lost their peer")))
        return _rank(case, stuck[0], "hang", why, Confidence.LIKELY)
    if len(stuck) == 1 and len(others) > 2 and not (case.ended or case.silent or case.lost):
        why = _STUCK.filled(others=_count(others, Message("waited until the timeout")))
        return _rank(case, stuck[0], "hang", why, Confidence.LIKELY)
    gone, unheard = _gone(case), _unheard_beside_ended(case)
    if len(gone) == 1 and victims and not unheard:
        return _left_silently(case, gone[0])
    if len(unheard) == 1 and victims and not gone:
        place = unheard[0]
        if case.lost:  # their processes may have ended with code 0, too
            return _undecided(case, victims, _UNKNOWN)
        why = joined([Message("its agent ended all other processes of its worker"), _missed(case)])
        return _unheard_rank(case, place.worker, place.rank, place.local_rank, why, "early_exit_zero")
    if case.waited:
        return _somebody_waits(case)
    return _somebody_left(case)


def _gone(case: _Case) -> list[Failure]:
    """Processes that their agent neither reports nor ended, although it ended all other processes of the worker."""
    found = []
    for item in case.silent:
        others = [other for other in case.this.failures if other.worker == item.worker and other.key != item.key]
        if others and all(_ended(other) for other in others):
            found.append(item)
    return found


def _unheard_beside_ended(case: _Case) -> list[Process]:
    """Ranks that no report names, in workers whose agent ended or reports all other processes."""
    places = [place for rank in case.ranks.unheard if (place := place_unheard(case.this, rank)) is not None]
    ended: dict[str, bool] = {}
    for item in case.this.failures:
        ended[item.worker] = ended.get(item.worker, True) and _ended(item)
    return [place for place in places or gaps(case.this) if ended.get(place.worker)]


def _ended(item: Failure) -> bool:
    process = item.process
    return process.closed is not None or process.note is not None or process.entry is not None


def _left_silently(case: _Case, item: Failure) -> Diagnosis:
    victims = [*case.left, *case.waited]
    why = Message(
        "its agent ended all other processes of its worker, but neither ended nor reported this one: it had "
        "already exited with code 0"
    )
    sure = case.ranks.complete and len(victims) > 1 and not case.this.job.incomplete and not case.lost
    confidence = Confidence.CERTAIN if sure else Confidence.LIKELY
    return _rank(case, item, "early_exit_zero", joined([why, _missed(case)]), confidence)


def _somebody_waits(case: _Case) -> Diagnosis:
    """The answer for a timeout: the culprit is among the ranks without an error."""
    this = case.this
    behind = desync.behind(this)
    if behind is not None:
        return behind
    odd = desync.odd_operation(this, all_spoke=not (case.ended or case.silent or case.ranks.unheard))
    if odd is not None:
        return odd
    if len(case.lost) == 1 and not any(item.process.forced is not None for item in case.ended):
        why = joined([_ENDS, _count(case.waited, Message("waited for it"))])
        return _worker(case, case.lost[0].worker, "node_lost", why)
    complained = {item.key for item in (*case.waited, *case.left)}
    spoke = {worker.worker for worker in this.job.workers if worker.elastic}
    quiet = [
        item
        for item in (*case.ended, *case.silent)
        if item.key not in complained and (item.part is Part.ENDED or item.worker in spoke or len(case.waited) > 1)
    ]
    frozen = [item for item in quiet if item.process.forced is not None]
    waited = _count(case.waited, Message("waited for it until the timeout"))
    if len(frozen) == 1:
        why = joined([Message("it did not exit on SIGTERM"), waited])
        return _rank(case, frozen[0], "hang", why, Confidence.CERTAIN if len(case.waited) > 1 else Confidence.LIKELY)
    places = {(item.worker, item.local_rank, item.rank) for item in quiet}
    unheard = [place for rank in case.ranks.unheard if (place := place_unheard(this, rank)) is not None]
    suspects = len(places) + len(case.ranks.unheard)
    if len(places) == 1 and not case.lost and not (case.ranks.unheard and not unheard):
        item = quiet[0]
        others = len({other.worker for other in case.waited if other.worker != item.worker})
        sure = case.ranks.complete or others > 0
        confidence = (
            Confidence.CERTAIN if sure and len(case.waited) > 1 and not this.job.incomplete else Confidence.LIKELY
        )
        why = joined([Message("it logged no error until its agent ended it"), waited])
        return _rank(case, item, "hang", why, confidence)
    if suspects == 1 and unheard and not case.lost:
        return _unheard_rank(case, unheard[0].worker, unheard[0].rank, unheard[0].local_rank, waited, "hang")
    late = _late(case) or _spoke_when_ended(case) if not places and not case.ranks.unheard and not case.lost else []
    if len(late) == 1:
        # If clocks were not compared, the difference may be the clock's.
        compared = all(this.job.clocks.aligned(late[0].worker, item.worker) for item in case.waited)
        confidence = Confidence.LIKELY if compared else Confidence.GUESS
        why = joined([Message("it lost its peers only after they had given up"), waited])
        return _rank(case, late[0], "hang", why, confidence)
    near = _near_the_first(case, quiet)
    if near is not None:
        why = joined([Message("of the group that waited first, only this rank logged no error"), waited])
        return _rank(case, near, "hang", why, Confidence.LIKELY)
    whole = {item.worker for item in quiet} | {worker.worker for worker in case.lost}
    mute = _mute(case) if not (quiet or case.lost or case.ranks.unheard or case.ranks.holes) else []
    if len(mute) == 1:
        why = Message("all processes waited until the timeout, and only its agent did not report an end")
        return _worker(case, mute[0], "network_lost", joined([why, waited]))
    if len(whole) == 1 and len(case.waited) > 1:
        name = next(iter(whole))
        if not any(item.worker == name for item in (*case.waited, *case.left)):
            category = "node_lost" if case.lost else "hang"
            return _worker(case, name, category, joined([Message("none of its processes logged an error"), waited]))
    return _undecided(case, quiet)


def _mute(case: _Case) -> list[str]:
    """Workers whose processes failed but whose agent did not report it, although all other agents did."""
    agents = {worker.worker for worker in case.this.job.workers if worker.elastic or worker.ends}
    return sorted({item.worker for item in case.waited} - agents) if agents else []


def _late(case: _Case) -> list[Failure]:
    """Ranks that found a closed connection long after all others had stopped waiting: they had not joined."""
    job = case.this.job
    waited, left = job.timed(case.waited), job.timed(case.left)
    if len(waited) < len(case.waited) or len(left) < len(case.left):
        return []
    end = max(when.seconds + when.resolution for when, _ in waited)
    return [item for when, item in left if when.seconds > end + _LATE]


def _spoke_when_ended(case: _Case) -> list[Failure]:
    """Ranks that found a closed connection only after their agent's signal, for example in a signal handler."""
    signals: dict[str, int] = {}
    for item in case.this.failures:
        if item.process.closed:
            signals[item.worker] = min(item.process.closed, signals.get(item.worker, item.process.closed))
    return [
        item for item in case.left
        if item.process.traces and item.process.traces[-1].line_no > signals.get(item.worker, 2**62)
    ]  # fmt: skip


def _near_the_first(case: _Case, quiet: Sequence[Failure]) -> Failure | None:
    """The silent process of the worker whose process group waited first."""
    in_groups = {said.rank for said in case.this.statements if said.group}
    grouped = [item for _, item in case.this.job.timed(case.waited) if item.rank in in_groups]
    if len(grouped) < 2:
        return None
    first = grouped[0]
    own = [item for item in quiet if item.worker == first.worker]
    return own[0] if len(own) == 1 else None


def _somebody_left(case: _Case) -> Diagnosis:
    """The answer for a closed connection: the culprit is gone, and its end is not reported."""
    this = case.this
    gone = (
        _count(case.left, Message("lost their connection to it"))
        if case.left
        else Message("the others lost their rendezvous")
    )
    lost = case.lost
    left_early = [worker for worker in lost if _waits_at_the_exit(worker)]
    if len(left_early) == 1:
        return _finished_early(case, left_early[0], gone)
    if len(lost) == 1:
        return _worker(case, lost[0].worker, "node_lost", joined([_ENDS, gone]))
    reported = {item.worker for item in this.failures if item.part is not Part.SILENT}
    left = [item for item in case.silent if item.worker in reported]
    places = {(item.worker, item.local_rank, item.rank) for item in left}
    unheard = case.ranks.unheard
    if len(places) == 1 and not unheard and not lost:
        if any(_ended(item) for item in this.failures if item.worker == left[0].worker):
            return _left_silently(case, left[0])
        # No agent counts the processes: it may have ended in any way.
        return _rank(case, left[0], "unknown_python_exit", joined([_SILENT, gone]), Confidence.LIKELY)
    if not places and len(unheard) == 1 and not lost:
        place = place_unheard(this, unheard[0])
        if place is not None:
            return _unheard_rank(case, place.worker, place.rank, place.local_rank, gone, "early_exit_zero")
    if len(lost) > 1:
        why = Message("the logs of {count} workers end abruptly", count=len(lost))
        return _by_address(case) or _undecided(case, left, why)
    absent = this.job.evidence.missing
    if len(absent) > len(set(this.job.evidence.deleted) - this.job.heard) and not places:
        name = absent[0] if len(absent) == 1 else None
        cause = this.job.worker_cause(name, "node_lost", Message("a worker has no log"), Confidence.GUESS, gone)
        return Diagnosis(Verdict.WORKER, (cause,))
    if len(case.ended) == 1 and not left and not unheard and not lost and len(case.left) > 1:
        # It was already exiting when its agent ended it, and the log has none of its output.
        return _rank(case, case.ended[0], "unknown_python_exit", joined([_SILENT, gone]), Confidence.LIKELY)
    return _by_address(case) or _undecided(case, left or case.ended, _unnamed(case) if left else _UNKNOWN)


def _unnamed(case: _Case) -> Message:
    """The reason why the first of several silent ranks is unknown: a launcher reports one of them, without its name."""
    notes = [
        note
        for worker in case.this.job.workers
        for note in (worker.evidence.log or LogFacts()).notes
        if note.kind is NoteKind.UNNAMED and worker.rounds.of(note.line_no) == case.this.number
    ]
    codes = {note.exit_code: note.signal for note in notes if note.exit_code not in OF_VICTIMS}
    if len(codes) != 1:
        return _UNKNOWN
    code, signal = codes.popitem()
    if signal:
        return Message("one of them ended by {signal}; its launcher does not say which", signal=signal)
    return Message("one of them ended with exit code {code}; its launcher does not say which", code=code)


def _waits_at_the_exit(worker: WorkerRounds) -> bool:
    """Whether the agent reports that its processes have succeeded and that it waits for the others."""
    return any(
        "exit barrier" in hit.text or "WorkerState.SUCCEEDED" in hit.text
        for hits in worker.loose_hits.values()
        for hit in hits
    )


def _finished_early(case: _Case, worker: WorkerRounds, gone: str) -> Diagnosis:
    own = [item for item in case.this.failures if item.worker == worker.worker]
    why = joined([Message("its agent waits at the exit: its processes had already exited with code 0"), gone])
    if len(own) == 1:
        return _rank(case, own[0], "early_exit_zero", why, Confidence.LIKELY)
    if not own and (rank := rank_of_the_mute(case.this, worker.worker)) is not None:
        return _unheard_rank(case, worker.worker, rank, 0, why, "early_exit_zero")
    return _worker(case, worker.worker, "early_exit_zero", why)


def _by_address(case: _Case) -> Diagnosis | None:
    """The answer if all victims name addresses of one worker that is not a victim; else None."""
    peers = Counter(item.peer for item in case.left if item.peer)
    if not peers:
        return None
    owners = {address: worker.worker for worker in case.this.job.workers for address in worker.addresses}
    blamed = Counter(owners[peer] for peer, count in peers.items() for _ in range(count) if peer in owners)
    if len(blamed) == 1 and sum(blamed.values()) == sum(peers.values()):
        name = next(iter(blamed))
        others = {item.worker for item in case.left}
        if name not in others:
            why = Message("all failed ranks name its address {address}", address=next(iter(peers)))
            return _worker(case, name, "node_lost", why)
    return None


def _rank(case: _Case, item: Failure, category: str, why: str, confidence: Confidence) -> Diagnosis:
    if item.worker in case.this.job.cut:
        return _undecided(case, [item], CUT_OFF)
    message = _SENTENCE[category].filled(who=name_process(item.process).capitalize())
    cause = case.this.job.cause(item, confidence, why, category=category, extra=_proofs(case))
    if category == "hang" and (trace := _also_there(case, item)) is not None:
        proof = Proof(item.worker, trace.last.line_no, trace.last.message)
        also = Message("also in the log of its worker: {error}", error=trace.last.message)
        cause = replace(cause, why=joined([why, also]), proofs=(proof, *cause.proofs))
        alone = all(other.worker != item.worker or other.key == item.key for other in case.this.failures)
        if alone or trace.origin.known:
            cause = raised_in(cause, trace, proof)
    return Diagnosis(Verdict.RANK, (replace(cause, message=message, exception=None, detail=""),))


def _also_there(case: _Case, item: Failure) -> Trace | None:
    """The only traceback of this process, or of an unknown one of its worker, that is not a victim's; None of several.
    It is that of a thread, or the program did not go on behind it."""
    worker = case.this.job.worker(item.worker)
    log = worker.evidence.log or LogFacts()
    found = [
        trace
        for trace in log.traces
        if (trace.thread or trace.line_no > log.last_activity)
        and trace.origin.rank in (None, item.rank)
        and trace.origin.local_rank in (None, item.local_rank)
        and worker.rounds.of(trace.line_no) == case.this.number
        and not trace.agent
        and consequence_of(trace.chain[0].text) is None
    ]
    return found[0] if len(found) == 1 else None


def _unheard_rank(case: _Case, worker: str, rank: int | None, local: int | None, why: str, category: str) -> Diagnosis:
    if worker in case.this.job.cut:
        return _undecided(case, [], CUT_OFF)
    message = _SENTENCE[category].filled(who=f"Rank {rank} (local rank {local})")
    why = joined([Message("no log mentions it, although the ranks around it are in the logs"), why])
    cause = Cause(
        worker, category, message, Confidence.LIKELY, why,
        rank=rank, local_rank=local, attempt=case.this.number, proofs=_proofs(case),
    )  # fmt: skip
    return Diagnosis(Verdict.RANK, (cause,))


def _worker(case: _Case, name: str, category: str, why: str) -> Diagnosis:
    job = case.this.job
    unread = name in job.unread
    mine = [item for item in case.this.failures if item.worker == name]
    message = _SENTENCE["worker:unread" if unread else f"worker:{category}"].filled(who=name)
    confidence = Confidence.LIKELY
    alone = not unread and len(case.lost) < 2 and not job.incomplete and len(job.workers) > 1
    victims = len(case.left) + len(case.waited)
    if alone and victims > 1 and (_names_only(case, name) or (case.lost and _only_one_left(case, name))):
        confidence = Confidence.CERTAIN
    cause = job.worker_cause(name, category, message, confidence, why, extra=[*job.last_words(name), *_proofs(case)])
    if len(mine) == 1 and mine[0].process.rank is not None:
        cause = replace(cause, rank=mine[0].rank, local_rank=mine[0].local_rank)
    return Diagnosis(Verdict.WORKER, (cause,))


def _names_only(case: _Case, name: str) -> bool:
    """Whether this worker's address is known, and the first victim of every other worker names it."""
    own = case.this.job.worker(name).addresses
    firsts: dict[str, str | None] = {}
    for item in case.left:
        firsts.setdefault(item.worker, item.peer)
    return bool(own and firsts) and all(peer in own for peer in firsts.values())


def _only_one_left(case: _Case, name: str) -> bool:
    """Whether the end of every process of every other worker is known, from its output or from its agent."""
    others = [item for item in case.this.failures if item.worker != name]
    agents = [worker for worker in case.this.job.workers if worker.worker != name]
    heard = {item.worker for item in others}
    return (
        all(item.part in (Part.VICTIM, Part.ENDED) for item in others)
        and all(worker.elastic and worker.rounds.final and worker.worker in heard for worker in agents)
        and not any(place.worker != name for place in gaps(case.this))
    )


def _proofs(case: _Case) -> tuple[Proof, ...]:
    """Proofs: one victim of each worker, at most three."""
    found: dict[str, Proof] = {}
    for item in (*case.waited, *case.left):
        if item.line_no and item.worker not in found:
            found[item.worker] = Proof(item.worker, item.line_no, item.message)
    return tuple(found.values())[:3]


def _undecided(case: _Case, suspects: Sequence[Failure], why: str = _UNKNOWN) -> Diagnosis:
    job = case.this.job
    candidates = [job.cause(item, Confidence.GUESS, why) for item in suspects[:16]]
    candidates += [
        job.worker_cause(worker.worker, "node_lost", _ENDS, Confidence.GUESS, why) for worker in case.lost[:16]
    ]
    if not candidates:
        why = Message("its failure is a consequence; the first failure is not in these logs")
        candidates = [job.cause(item, Confidence.GUESS, why) for item in (*case.waited, *case.left)[:4]]
    if not candidates:
        why = Message("its agent lost the rendezvous; the first failure is not in these logs")
        candidates = [
            job.worker_cause(end.worker, "peer_lost", end.text, Confidence.GUESS, why, extra=[end.proof])
            for end in case.this.final_ends[:4]
        ]
    return Diagnosis(Verdict.UNDECIDED, candidates=tuple(candidates))


def _missed(case: _Case) -> Message:
    return _count([*case.left, *case.waited], Message("lost it or waited for it"))


def _count(items: Sequence[Failure], what: Message) -> Message:
    ranks = plural("{n} rank", "{n} ranks", len(items))
    workers = plural("{n} worker", "{n} workers", len({item.worker for item in items}))
    return Message("{ranks} on {workers} {what}", ranks=ranks, workers=workers, what=what)


_SENTENCE = {
    "hang": Message("{who} did not reach the collective that the others waited in"),
    "early_exit_zero": Message("{who} exited early without an error message (exit code 0)"),
    "unknown_python_exit": Message("{who} exited, and its output is not in the log"),
    "worker:unread": Message("The others lost their connection to {who}, whose log could not be read"),
    "worker:hang": Message("No process of {who} reached the collective that the others waited in"),
    "worker:node_lost": Message("The log of {who} ends abruptly, and the others lost their connection to it"),
    "worker:network_lost": Message("{who} was cut off from the others"),
    "worker:early_exit_zero": Message("The processes of {who} exited early without an error message (exit code 0)"),
}
