"""Finds processes that failed by themselves (one rank, several, or all of the job alike), and the first of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from atlctl.diagnosis.cause.rounds import CUT_OFF, JudgedJob, Round, gaps, name_process, place_unheard, universe
from atlctl.diagnosis.consequence import Sort
from atlctl.diagnosis.failures import Failure, Part, Strength
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Verdict
from atlctl.diagnosis.signatures import FaultScope
from atlctl.diagnosis.tracebacks import exception_name
from atlctl.i18n import Message, joined, plural

#: Most culprits that are listed.
_MAX_LISTED = 64
#: Categories of failures before the user's code runs: the worker is at fault, not a rank.
_BEFORE_CODE = frozenset({"script_missing", "bad_arguments_or_missing_script"})
#: Categories of faults in a container's image or settings, which all its processes share.
_OF_THE_IMAGE = frozenset({"import_error", "binary_mismatch", "syntax_error", "python_version", "network_interface"})
_ALIKE = Message("several ended in the same way at the same time, without an error message")
_AT_ONCE = Message("they ended with exit code 1 at the same time, without an error message")
UNFINISHED = Message("its traceback is in the log, without the exception")
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\d+")


def find_initiators(this: Round) -> Diagnosis | None:
    """The answer if it follows from processes that failed by themselves; None otherwise."""
    if any(item.sort is Sort.SIZES for item in this.victims) and not any(_spoke(item) for item in this.initiators):
        return None
    if (named := _named_by_others(this) or _with_another_model(this)) is not None:
        return named
    strong = [item for item in this.initiators if item.strength is Strength.STRONG]
    some = [item for item in this.initiators if item.strength is Strength.SOME]
    if strong:
        return _from(this, strong, Strength.STRONG)
    mute = [item for item in this.initiators if item.strength is Strength.OPAQUE]
    lost = [item for item in mute if item.worker in this.job.cut]
    if some and (len(mute) > 1 or lost) and all(item.signal == "SIGABRT" and not _spoke(item) for item in some):
        # An abort without a message often happens in the interpreter at exit.
        return undecided(this, [*some, *mute], CUT_OFF if lost else _ALIKE)
    if some:
        return _from(this, some, Strength.SOME)
    return _opaque(this)


#: A rank that reports another one's failure, by its global rank or by its ranks in groups:
#: `RuntimeError: rank 3 failed: KeyError: 'x'`, `TP1/PP0 crashed`.
_BLAMES = re.compile(
    r"(?:(?P<groups>\b(?:(?:tp|pp|dp|cp)[ _-]?(?:rank)?[ #:=]{0,2}\d{1,6}\b[ ,/]{0,2}){1,4})"
    r"|(?:\brank|进程)[ #:=]{0,2}(?P<rank>\d{1,7})\b) ?(?:has )?"
    r"(?:failed|crashed|died|aborted|raised|reported an error|失败|出错|异常|崩溃)\b(?! to )[^:：]{0,40}"
    r"(?:[:：] ?(?P<words>.+))?",
    re.IGNORECASE,
)
_GROUP = re.compile(r"([a-z]{2})[ _-]?(?:rank)?[ #:=]{0,2}(\d{1,6})", re.IGNORECASE)
_UNKNOWN_GROUP = Message(
    "it reports the failure of another rank by its groups, and the logs do not show which rank that is"
)


def _named_by_others(this: Round) -> Diagnosis | None:
    """The rank whose failure other ranks report, if all processes that failed by themselves report it; else None.

    Some programs exchange their exceptions in a collective, and a rank raises another rank's exception.
    """
    told = {item.raised.of if item.raised else () for item in this.initiators}
    if len(told) == 1 and (ranks := told.pop()):
        return _of_ranks(this, ranks)
    blamed: set[int] = set()
    words, by, known = "", None, True
    for item in this.initiators:
        found = _BLAMES.search(item.message)
        if item.strength is not Strength.STRONG or found is None:
            return None
        groups = {name.lower(): int(at) for name, at in _GROUP.findall(found["groups"] or "")}
        named = this.job.of_groups(groups, item.rank) if groups else int(found["rank"])
        if named is None:
            known = False
        elif named == item.rank:
            return None
        else:
            blamed.add(named)
        words, by = found["words"] or item.message, item
    if not known:
        return undecided(this, this.initiators, _UNKNOWN_GROUP)
    if len(blamed) != 1 or by is None:
        return None
    why = Message("{process} reports its failure", process=name_process(by.process))
    return Diagnosis(Verdict.RANK, (_of_another(this, by, blamed.pop(), words, why, Confidence.LIKELY),))


def _of_ranks(this: Round, ranks: Sequence[int]) -> Diagnosis | None:
    """The answer if all processes that failed by themselves raise the exceptions of these ranks, as
    torch.distributed.checkpoint has them do; None if these are all ranks."""
    if {item.rank for item in this.failures} <= set(ranks):
        return None
    if any(item.rank in ranks for item in this.victims):  # they are numbers in a group that this rank is not in
        return undecided(this, this.initiators, _UNKNOWN_GROUP)
    why = plural(
        "torch.distributed.checkpoint raises its exception on {n} rank",
        "torch.distributed.checkpoint raises its exception on {n} ranks",
        len(this.initiators),
    )
    sure = this.job.whole and set(ranks) <= {item.rank for item in this.initiators}
    confidence = Confidence.CERTAIN if sure else Confidence.LIKELY
    causes = []
    for at, rank in enumerate(ranks[:_MAX_LISTED]):
        by = next((item for item in this.initiators if item.rank == rank), this.initiators[0])
        chain = by.process.chain()
        raised = chain[at] if at < len(chain) else chain[0]
        by = replace(by, raised=raised, message=raised.message, exception=raised.exception, frame=raised.frame)
        causes.append(_of_another(this, by, rank, raised.message, why, confidence))
    return Diagnosis(Verdict.RANK if len(ranks) == 1 else Verdict.RANKS, tuple(causes))


_NO_MAJORITY = Message("they have other parameters than rank 0, and the logs do not show which of them most ranks have")
#: What DDP's constructor compares: all numbers of parameters, and each parameter's sizes with those in rank 0.
_PARAMETERS = re.compile(r"Rank (\d{1,7}) has (\d{1,9}) params, while rank (\d{1,7}) has inconsistent (\d{1,9}) params")
_SIZES = re.compile(
    r"(params\[\d{1,9}\] in this process with sizes \[[\d, ]{1,200}\]) appears not to match .{1,60} 0\b"
)


def _with_another_model(this: Round) -> Diagnosis | None:
    """The only rank whose model has other parameters than all others', as DDP has these say."""
    counts: dict[int, str] = {}
    for item in this.initiators:
        if found := _PARAMETERS.search(item.message):
            counts |= {int(found[1]): found[2], int(found[3]): found[4]}
        elif item.rank is not None and (found := _SIZES.search(item.message)):
            counts |= {item.rank: found[1], 0: ""}
        else:
            return None
    if of_sizes := "" in counts.values():  # a victim went on: it is as rank 0
        counts |= {item.rank: "" for item in this.victims if item.rank is not None}
    usual, most = next(iter(Counter(counts.values()).most_common(1)), ("", 0))
    odd, ranks = [rank for rank, count in counts.items() if count != usual], universe(this)
    lacking = this.job.incomplete or this.job.cut or ranks.unheard or ranks.holes or gaps(this)
    if len(odd) == 1 and most > 1 and not lacking and set(counts) >= set(ranks.known):
        by = next((item for item in this.initiators if item.rank == odd[0]), this.initiators[0])
        own = counts[odd[0]]
        why = Message(
            "number of parameters of its model: {own}; on the {n} others: {usual}", own=own, n=most, usual=usual
        )
        if of_sizes:
            why = Message("a parameter of its model has other sizes than on the {n} others", n=most)
        confidence = Confidence.CERTAIN if this.job.whole and ranks.complete else Confidence.LIKELY
        return Diagnosis(Verdict.RANK, (_of_another(this, by, odd[0], by.message, why, confidence),))
    several = len(this.initiators) > 1 or len(ranks.known) == 2
    alone = of_sizes and several and list(counts.values()).count("") == 1
    return undecided(this, this.initiators, _NO_MAJORITY) if alone else None


def _of_another(this: Round, by: Failure, rank: int, words: str, why: Message, confidence: Confidence) -> Cause:
    """The failure of a rank as `by` reports it: another rank, or itself. `words` is the line of its exception."""
    own = next((item for item in this.failures if item.rank == rank), None)
    process = own.process if own else place_unheard(this, rank)
    made = replace(
        this.job.cause(by, confidence, why),
        worker=process.worker if process else None, rank=rank, local_rank=process.local_rank if process else None,
        message=words, exception=exception_name(words), category=this.job.category(words),
        exit_code=process.exit_code if process else None, signal=own.signal if own else None,
    )  # fmt: skip
    if by.rank == rank or (by.raised is not None and by.raised.of):
        return made
    return replace(made, detail="", frame=None, traceback=None, last_lines=())


def _from(this: Round, found: Sequence[Failure], strength: Strength) -> Diagnosis:
    same = len({shape(item) for item in found}) == 1
    if same and _everybody(this, found):
        return _job(this, found)
    if same and len(found) > 1 and (worker := _whole_worker(this, found)):
        alone = len(this.job.workers) == 1 and not this.job.incomplete
        return _job(this, found) if alone else _worker(this, worker, found)
    if strength is Strength.SOME and len(found) > 1 and first_of(this.job, found).tie:
        return undecided(this, found, _ALIKE)
    first = first_of(this.job, found)
    if first.tie == "unknown":
        return _tie(this, first, found, same)
    leader = first.leaders[0]
    alike = [item for item in found if shape(item) == shape(leader) and item.strength == leader.strength]
    if first.tie == "clocks" and this.job.cut and (not same or len(found) < len(this.initiators)):
        return undecided(this, first.leaders, CUT_OFF)  # lines to compare clocks, and others' errors, may be missing
    if first.tie == "clocks":
        why = Message(
            "each failed by itself, on workers whose clocks cannot be compared; it is unknown which was first"
        )
        return _several(this, first.leaders, why, Confidence.GUESS)
    if first.tie == "at_once":
        why = Message("they failed at the same moment, independently of each other")
        return _several(this, first.leaders, why, Confidence.LIKELY)
    if len(alike) > 1 and _spoke(leader) and _own_words_of_all(alike):
        sure = len(alike) == len(this.initiators) and not (this.job.incomplete or this.job.cut) and this.everywhere
        confidence = (
            Confidence.CERTAIN if sure and not any(i.process.guessed_words for i in alike) else Confidence.LIKELY
        )
        return _several(this, alike, _same_on(alike), confidence)
    if others := _sharers(this, leader):
        why = Message("all processes of its worker lack the same; the others were ended before they could report it")
        shared = [replace(item, category=leader.category, message=leader.message) for item in others]
        return _several(this, [leader, *shared], why, Confidence.LIKELY)
    mute = [item for item in this.initiators if item.worker == leader.worker and item.strength is Strength.OPAQUE]
    if mute and leader.worker in this.job.cut:
        return undecided(this, [leader, *mute], CUT_OFF)  # the others' output, which may be the same, is above
    confidence, why = _sureness(this, leader, first, found)
    if _is_worker_fault(this, leader):
        return _worker(this, leader.worker, [leader], confidence)
    return Diagnosis(Verdict.RANK, (this.job.cause(leader, confidence, why),))


def _sureness(this: Round, leader: Failure, first: First, found: Sequence[Failure]) -> tuple[Confidence, Message]:
    """The confidence that `leader` was the first, and the reason."""
    others = [item for item in this.initiators if item.key != leader.key]
    followed = len(this.victims)
    tail = [others_lost(followed)] if followed else []
    named = leader.local_rank is not None or leader.rank is not None
    sure = named and not leader.process.guessed_words
    if len(found) > 1:
        why = (
            Message("{count} ranks failed by themselves; its error is the first in the log", count=len(found))
            if first.same_log
            else Message(
                "{count} ranks failed by themselves; it failed {seconds:.2g} s before the next",
                count=len(found),
                seconds=first.margin or 0,
            )
        )
        wide = (
            first.margin is not None and first.margin >= 2 and this.job.clocks.aligned(leader.worker, found[1].worker)
        )
        confidence = Confidence.LIKELY if sure or wide else Confidence.GUESS
    elif leader.strength is not Strength.STRONG:
        why = Message("only this rank ended without reporting a peer's failure")
        confidence = Confidence.LIKELY if sure and not others else Confidence.GUESS
        if confidence is Confidence.LIKELY and _left_by_itself(leader) and _all_others_followed(this, leader):
            confidence = Confidence.CERTAIN
    elif leader.signal == "SIGKILL" and this.victims and any(item.sort is Sort.WAITED for item in this.victims):
        why, confidence = Message("killed by SIGKILL; others waited for a peer until a timeout"), Confidence.LIKELY
    elif others:
        why, confidence = Message("only this rank reports a cause"), Confidence.LIKELY
    elif this.job.last_round > this.number:
        why = Message("only this rank failed by itself in this round; later failures are consequences")
        confidence = Confidence.LIKELY
    else:
        alone = not this.failures[1:]
        why = Message("the only failure in the logs") if alone else Message("only this rank failed by itself")
        doubtful = not (sure and this.job.whole and this.everywhere)
        doubtful = doubtful or _of_the_worker(this, leader) or _one_of_several(this, leader)
        confidence = Confidence.LIKELY if doubtful else Confidence.CERTAIN
    return confidence, joined([why, *tail])


def others_lost(count: int) -> Message:
    return plural("the other one lost its peer", "the other {n} lost their peer", count)


def _left_by_itself(item: Failure) -> bool:
    """Whether a process ended by an exit code or a signal that does not follow from a peer's end."""
    return item.raised is None and item.signal != "SIGABRT"


def _all_others_followed(this: Round, leader: Failure) -> bool:
    """Whether every other rank of the job lost a peer, or was running when its agent noticed a failure.

    A launcher that names the global rank of the first failed process ends the others silently.
    """
    ranks, launched = universe(this), this.job.launched
    others = [item for item in ranks.known.values() if item.key != leader.key]
    followed = all(
        item.part is Part.ENDED or item.sort is Sort.LEFT or (launched and item.part is Part.SILENT) for item in others
    )
    known = this.job.whole and (ranks.complete or launched)
    return known and followed and any(item.part is Part.VICTIM for item in others)


def _opaque(this: Round) -> Diagnosis | None:
    """Exit code 1 without a message: an answer only if it is the only one, or if times differ."""
    found = [item for item in this.initiators if item.strength is Strength.OPAQUE]
    if any(item.process.unfinished for item in found):
        # Its exception may be a peer's consequence; only if the others waited for a peer, it surely is.
        if not any(item.sort is Sort.WAITED for item in this.victims):
            return undecided(this, found, UNFINISHED)
        found = [item for item in found if not item.process.unfinished]
    if not found:
        return None
    if any(item.sort is Sort.WAITED for item in this.victims) and len(found) > 1:
        return undecided(this, found, Message("they ended with exit code 1, without an error message"))
    first = first_of(this.job, found)
    lacking = first.leaders[0].worker in this.job.cut
    others = len(this.failures) + len(this.job.workers) > 2
    if lacking and ((len(found) == 1 and others) or this.silent_workers()):
        return undecided(this, found, CUT_OFF)  # its message is lost; or it lost the worker whose log ends abruptly
    if first.tie == "clocks" and (first.margin or 0) >= _UNSURE:
        why = Message(
            "it ended {seconds:.2g} s before the next; the clocks could not be compared", seconds=first.margin
        )
        return Diagnosis(Verdict.RANK, (this.job.cause(first.leaders[0], Confidence.GUESS, why),))
    if first.tie:
        return undecided(this, first.leaders, _AT_ONCE)
    leader, alone = first.leaders[0], len(found) == 1
    why = (
        Message("only this rank does not report a lost peer")
        if alone
        else Message("it ended first; no reason was logged")
    )
    confidence = Confidence.LIKELY if alone else Confidence.GUESS
    return Diagnosis(Verdict.RANK, (this.job.cause(leader, confidence, why),))


def _tie(this: Round, first: First, found: Sequence[Failure], same: bool) -> Diagnosis:
    leaders = [item for item in found if item in first.leaders]
    if all(item.signal == "SIGKILL" for item in leaders) and len({item.worker for item in leaders}) == 1:
        # The kernel may kill all processes of a container at once (memory.oom.group).
        why = Message("{count} processes of one worker were killed at the same time", count=len(leaders))
        return _several(this, leaders, why, Confidence.LIKELY)
    if same and _own_words_of_all(leaders) and len(leaders) > 1:
        return _several(this, leaders, _same_on(leaders), Confidence.LIKELY)
    return undecided(this, leaders, Message("they failed within the same second; the logs have no finer times"))


def _same_on(items: Sequence[Failure]) -> Message:
    return Message("the same failure on {count} ranks", count=len(items))


def _several(this: Round, items: Sequence[Failure], why: str, confidence: Confidence) -> Diagnosis:
    causes = tuple(this.job.cause(item, confidence, why) for item in items[:_MAX_LISTED])
    return Diagnosis(Verdict.RANKS, causes)


def _job(this: Round, found: Sequence[Failure]) -> Diagnosis:
    spoke = next((item for item in found if item.line_no and item.message), found[0])
    why = plural(
        "the same failure on all {count} processes that failed, on {n} worker",
        "the same failure on all {count} processes that failed, on {n} workers",
        len({item.worker for item in found}),
        count=len(found),
    )
    sure = len(found) > 1 and this.job.whole
    cause = this.job.cause(spoke, Confidence.CERTAIN if sure else Confidence.LIKELY, why)
    verdict = Verdict.EXTERNAL if spoke.exception == "KeyboardInterrupt" else Verdict.JOB
    return Diagnosis(verdict, (_everywhere(cause),))


def _everywhere(cause: Cause) -> Cause:
    """The cause without worker and rank, for a cause of the whole job."""
    return replace(cause, worker=None, rank=None, local_rank=None, node=None, host_ip=None)


def _worker(
    this: Round, worker: str, found: Sequence[Failure], confidence: Confidence = Confidence.CERTAIN
) -> Diagnosis:
    head = found[0]
    why = (
        Message("all its processes failed before the user's code ran")
        if len(found) > 1
        else Message("{process} failed before the user's code ran", process=name_process(head.process))
    )
    made = this.job.cause(head, confidence, why)
    return Diagnosis(Verdict.WORKER, (replace(made, worker=worker, rank=None, local_rank=None),))


def _everybody(this: Round, found: Sequence[Failure]) -> bool:
    """Whether every worker has this failure, and hardly any process has another one."""
    if len(found) < 2 or (len(this.job.heard) == 1 and this.job.incomplete):
        return False
    workers = {item.worker for item in found}
    if workers != {item.worker for item in this.failures if item.part is not Part.SILENT} | _untouched(this):
        return False
    if this.job.cut - workers:
        return False
    if found[0].hit is None and not found[0].message.strip() and found[0].exit_code != 2:
        return False
    if found[0].strength is not Strength.STRONG and found[0].exit_code != 2:
        return False
    if found[0].exit_code is not None and found[0].exit_code < 0 and found[0].exception is None:
        return False
    if any(item.part is Part.VICTIM for item in this.failures) and len(found) < 2 * len(this.victims):
        return False
    if _scope(this, found[0]) is FaultScope.WORKER and found[0].exit_code != 2:
        return True
    spoke = [item for item in this.failures if item.part in (Part.INITIATOR, Part.VICTIM)]
    if len(found) != len(spoke):
        return False
    # With one worker, most processes must report it: its agent ends the others before they can.
    known = [item for item in this.failures if item.part is not Part.SILENT or item.process.seen]
    return len({item.worker for item in found}) > 1 or 2 * len(found) > len(known)


def _untouched(this: Round) -> set[str]:
    """Workers with a log that lost neither a process nor the rendezvous."""
    ended = {end.worker for end in this.final_ends}
    spoke = {item.worker for item in this.failures if item.part is not Part.SILENT}
    return {worker.worker for worker in this.job.workers if worker.evidence.log} - spoke - ended


def _whole_worker(this: Round, found: Sequence[Failure]) -> str | None:
    """The worker of which all processes failed before the user's code ran; None if there is none."""
    workers = {item.worker for item in found}
    if len(workers) != 1 or not all(item.category in _BEFORE_CODE or item.exit_code == 2 for item in found):
        return None
    worker = next(iter(workers))
    own = [item for item in this.failures if item.worker == worker]
    return worker if len(found) == len(own) or all(item in found or item.part is Part.ENDED for item in own) else None


def _is_worker_fault(this: Round, item: Failure) -> bool:
    return len(this.job.workers) > 1 and item.category in _BEFORE_CODE and _scope(this, item) is FaultScope.WORKER


def _scope(this: Round, item: Failure) -> FaultScope:
    match = this.job.matcher.match(item.message)
    return match.signature.scope if match else FaultScope.RANK


def _sharers(this: Round, leader: Failure) -> list[Failure]:
    """Processes of its worker that share the software fault, but were ended by their agent before they reported it."""
    others = [item for item in this.failures if item.worker == leader.worker and item.key != leader.key]
    early = leader.category in _OF_THE_IMAGE and not leader.process.seen and len(this.job.workers) > 1
    return others if early and all(item.part is Part.ENDED and not item.process.seen for item in others) else []


def _one_of_several(this: Round, item: Failure) -> bool:
    """Whether others ended by themselves, of which the launcher says nothing: `mp.spawn` passes on one message."""
    note, world = item.process.note, universe(this).world
    if note is None or not note.launcher or note.local_rank is None or world is None or item.raised is None:
        return False
    return len(this.of_part(Part.ENDED)) + len(this.victims) < world - 1


def _of_the_worker(this: Round, item: Failure) -> bool:
    """Whether the fault may be the whole worker's: by its scope, or because others were ended before their report."""
    silenced = any(other.worker == item.worker and other.part is Part.ENDED for other in this.failures)
    # A launcher that starts all ranks ends them without a report.
    silenced = silenced or (this.job.launched and not this.victims)
    # PyTorch puts the global rank before a traceback only once the process group has been made.
    in_group = item.process.seen or any(trace.origin.rank is not None for trace in item.process.traces)
    return _scope(this, item) is FaultScope.WORKER or (silenced and not in_group)


def shape(item: Failure) -> tuple[str, str]:
    """A key that failures of the same cause share: the message without numbers, else category and exit code."""
    if item.exception or item.hit or item.process.said:
        return ("", _VOLATILE.sub("#", item.message)[:300])
    return (item.category, str(item.exit_code))


def _spoke(item: Failure) -> bool:
    return item.exception is not None or item.hit is not None


def _own_words_of_all(items: Sequence[Failure]) -> bool:
    return all(_spoke(item) for item in items)


def undecided(this: Round, items: Sequence[Failure], why: str) -> Diagnosis:
    """An undecided answer with candidates, and the reason why there is no decision."""
    found = tuple(this.job.cause(item, Confidence.GUESS, why) for item in items[:_MAX_LISTED])
    return Diagnosis(Verdict.UNDECIDED, candidates=found)


#: Failures closer than this, in seconds, count as simultaneous: no collective passes on a failure so fast.
AT_ONCE = 0.06
#: Seconds by which clocks of nodes that were not compared may differ.
UNALIGNED = 15.0
#: A smaller skew in seconds may be of the ranks: without collectives they do not print a step at the same moment.
#: Clocks synchronised by a time service differ by less.
_UNSURE = 2.0


@dataclass(frozen=True, slots=True)
class First:
    """`leaders` share the first place. `margin`: seconds to the next one, None if only the log's order is known.

    `tie` is the reason why there is no single first: `at_once` (too close), `clocks` (of different workers, whose
    clocks were not compared) or `unknown` (no times, or too coarse ones).
    """

    leaders: tuple[Failure, ...]
    margin: float | None
    tie: str = ""
    same_log: bool = False


def first_of(job: JudgedJob, failures: Sequence[Failure]) -> First:
    """The first of equally strong failures, of which there must be at least one."""
    if len(failures) == 1:
        return First(tuple(failures), None)
    if len({item.worker for item in failures}) == 1:
        return _in_one_log(job, failures)
    timed = job.timed(failures)
    if len(timed) < len(failures):
        return First(tuple(failures), None, "unknown")
    timed.sort(key=lambda pair: (pair[0].seconds, pair[1].line_no or 0))
    start, leader = timed[0]
    # In the leader's worker, the log's order decides.
    rivals = [(when, item) for when, item in timed[1:] if item.worker != leader.worker]
    own = [item for _, item in timed if item.worker == leader.worker]
    if len(own) > 1:
        inner = _in_one_log(job, own)
        if inner.tie:
            return inner
        leader = inner.leaders[0]
    close, unknown, apart, margin, nearest = [], [], [], None, UNALIGNED
    for when, item in rivals:
        gap = when.seconds - start.seconds
        both = {leader.worker, item.worker}
        if not job.clocks.aligned(leader.worker, item.worker) and (gap <= UNALIGNED or both & job.clocks.adrift):
            apart.append(item)
            nearest = min(nearest, 0.0 if both & job.clocks.adrift else gap)
            continue
        moved = job.clocks.skew.get(item.worker, 0.0) - job.clocks.skew.get(leader.worker, 0.0)
        small = abs(moved) < _UNSURE
        if gap + moved < 0 if small else gap < _UNSURE and both & job.clocks.loose:
            apart.append(item)  # their order depends on a small or rough correction of the clocks
            nearest = 0.0
            continue
        margin = gap if margin is None else min(margin, gap)
        step = max(when.resolution, start.resolution)
        if step < 1 and gap <= AT_ONCE:
            close.append(item)
        elif gap < step:
            unknown.append(item)
    if unknown:
        return First((leader, *close, *unknown), margin, "unknown")
    if close:
        return First((leader, *close), margin, "at_once")
    if apart:
        return First((leader, *apart), nearest, "clocks")
    return First((leader,), margin)


def _in_one_log(job: JudgedJob, failures: Sequence[Failure]) -> First:
    """The first of one worker's failures: by the order of its log if all have tracebacks, else by its one clock."""
    spoken = [item for item in failures if item.line_no and item.process.traces]
    if len(spoken) == len(failures):
        leader = min(spoken, key=lambda item: item.process.traces[-1].line_no)
        end = leader.process.traces[-1].last.line_no
        mixed = [item for item in spoken if item.process.traces[-1].line_no <= end]
        if all(shape(item) == shape(leader) for item in mixed):
            return First((leader,), None, same_log=True)
        failures = mixed  # interleaved tracebacks have no order
    timed = job.timed(failures)
    if len(timed) == len(failures):
        start, leader = timed[0]
        tied = [item for when, item in timed if when.seconds - start.seconds < max(when.resolution, start.resolution)]
        if len(tied) == 1:
            return First((leader,), timed[1][0].seconds - start.seconds)
        failures = tied
    # The agent's `failed` line is about the process whose end it detected first.
    noted = [item for item in failures if item.process.note is not None]
    if len(noted) == 1 and noted[0].strength == max((item.strength or 0) for item in failures):
        strongest = [item for item in failures if item.strength == noted[0].strength]
        if len(strongest) == 1:
            return First((noted[0],), None, same_log=True)
    return First(tuple(failures), None, "unknown")
