"""Finds ranks out of step: by the ranks named in reports, NCCL's counters, fingerprints, flight-recorder dumps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from atlctl.diagnosis.cause.rounds import Round, place_unheard
from atlctl.diagnosis.consequence import Sort
from atlctl.diagnosis.flightrecorder import missing_ranks
from atlctl.diagnosis.logfacts import CollectiveLine, Says
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict
from atlctl.i18n import Message

#: Most culprits; more ranks than this are a whole part of the job.
MAX_CULPRITS = 64

_NOT_JOINED = Message("it did not join the collective of the others")
_OTHER = Message("it ran another collective than its peers")
_UNLIKE = Message(
    "the flight recorders of {count} ranks have {operation} {sizes} as number {seq} of group {group}, its own has "
    "{other} {other_sizes}"
)
_NOT_RECORDED = Message(
    "the flight recorders of {count} ranks have {operation} number {seq} of group {group}, its own does not"
)
_LEFT_NO_DUMP = Message("{count} ranks wait in {operation} number {seq} of group {group}, and it left no dump")
#: Point-to-point operations: waiting in different ones is not an error.
_POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")


def named(this: Round) -> Diagnosis | None:
    """Ranks that a report names: flight recorder, fingerprints, a barrier's or the desync report's list."""
    return _recorded(this) or _fingerprints(this) or _listed(this)


def behind(this: Round) -> Diagnosis | None:
    """The minority whose last enqueued collective is lower than the others'; None if all are equal or unknown."""
    counts: dict[int, int] = {}
    proofs: dict[int, Proof] = {}
    for worker in this.job.workers:
        for said in worker.evidence.log.collectives if worker.evidence.log else ():
            if (
                said.rank is None
                or said.enqueued is None
                or said.group
                or worker.rounds.of(said.line_no) != this.number
            ):
                continue
            if said.enqueued >= counts.get(said.rank, said.enqueued):
                counts[said.rank] = said.enqueued
                proofs[said.rank] = Proof(worker.worker, said.line_no, said.text)
    if len(counts) < 2:
        return None
    values = Counter(counts.values())
    low = min(values)
    slow = [rank for rank, count in counts.items() if count == low]
    if len(values) == 1 or 2 * len(slow) >= len(counts):
        return None
    ahead = len(counts) - len(slow)
    usual = values.most_common(1)[0][0]
    why = Message(
        "last enqueued collective {low}; {ahead} other ranks had enqueued up to {usual}",
        low=low,
        ahead=ahead,
        usual=usual,
    )
    confidence = Confidence.CERTAIN if ahead > 2 * len(slow) and values[usual] > len(counts) // 2 else Confidence.LIKELY
    message = Message("it did not enqueue the collective that the others waited in")
    return _ranks(this, sorted(slow), "hang", message, why, confidence, proofs)


def odd_operation(this: Round, *, all_spoke: bool) -> Diagnosis | None:
    """The minority of ranks that waited until the timeout in another operation than the others.

    NCCL's watchdog numbers the operations. A traceback only names the operation, which may be of another group: it is
    used only if all ranks logged an error, because a silent rank is a better suspect.
    """
    at: dict[int, str] = {}
    proofs: dict[int, Proof] = {}
    if any(said.says is Says.TIMEOUT and said.group for said in this.statements):
        return None  # different groups of ranks run different operations
    for item in this.victims:
        chain = item.process.chain()
        said = next((said for said in item.process.said if said.says is Says.TIMEOUT), None)
        operation = chain[0].operation if chain and all_spoke else ""
        if said is not None:
            operation = Message(
                "{operation} number {seq} of {sizes} elements",
                operation=said.operation,
                seq=said.seq,
                sizes=said.sizes,
            )
        if item.rank is not None and operation and operation not in _POINT_TO_POINT and item.sort is Sort.WAITED:
            at[item.rank] = operation
            proofs[item.rank] = Proof(item.worker, item.line_no, item.message)
    votes = Counter(at.values())
    if len(votes) < 2:
        return None
    (usual, most), *rest = votes.most_common()
    odd = sorted(rank for rank, operation in at.items() if operation != usual)
    if most <= rest[0][1]:
        return None
    why = Message("it waited in {own}, {count} others in {usual}", own=at[odd[0]], count=most, usual=usual)
    message = Message("it called another collective than its peers")
    return _ranks(this, odd, "collective_mismatch", message, why, Confidence.LIKELY, proofs)


def _listed(this: Round) -> Diagnosis | None:
    lists = [said for said in this.statements if said.says is Says.NAMES]
    if not lists:
        return None
    ranks = sorted({rank for said in lists for rank in said.ranks})
    if not ranks or len(ranks) > MAX_CULPRITS:
        return None
    desync = any("didn't join" in said.text for said in lists)
    proofs = {rank: _proof(this, said) for said in lists for rank in said.ranks}
    category = "collective_mismatch" if desync else "hang"
    what = _NOT_JOINED if desync else Message("it did not reach the barrier")
    waited = {item.rank for item in this.victims if item.rank is not None}
    confidence = Confidence.LIKELY if waited & set(ranks) else Confidence.CERTAIN
    return _ranks(this, ranks, category, what, Message("a report of the waiting ranks names it"), confidence, proofs)


def _fingerprints(this: Round) -> Diagnosis | None:
    """The minority of ranks whose collective's fingerprint differs from the others'."""
    runs: dict[int, set[tuple[int | None, str, str]]] = defaultdict(set)
    proofs: dict[int, Proof] = {}
    for said in this.statements:
        if said.says is Says.RUNS and said.rank is not None:
            runs[said.rank].add((said.seq, said.operation, said.sizes))
            proofs.setdefault(said.rank, _proof(this, said))
    for said in this.statements:
        if said.says is Says.HEARD and said.rank is not None and said.rank not in proofs:
            runs[said.rank].add((said.seq, said.operation, said.sizes))
    prints = {rank: min(found, key=str) for rank, found in runs.items() if len(found) == 1}
    votes = Counter(prints.values())
    if len(votes) < 2:
        return None
    (usual, most), *rest = votes.most_common()
    odd = sorted(rank for rank, found in prints.items() if found != usual)
    category, what = "collective_mismatch", _OTHER
    if most <= rest[0][1]:
        why = Message("two sides, no majority")
        candidates = (
            _cause(this, rank, category, what, why, Confidence.GUESS, proofs.get(rank)) for rank in sorted(prints)
        )
        return Diagnosis(Verdict.UNDECIDED, candidates=tuple(candidates))
    why = Message("{count} ranks ran {operation} {sizes}, it did not", count=most, operation=usual[1], sizes=usual[2])
    confidence = Confidence.CERTAIN if most > 2 * len(odd) else Confidence.LIKELY
    return _ranks(this, odd, category, what, why, confidence, proofs)


def _recorded(this: Round) -> Diagnosis | None:
    """What NCCL's flight recorder saw: the first collective that some ranks of a group did not enter."""
    dumps = [dump for worker in this.job.workers for dump in worker.evidence.dumps]
    dumps += this.job.evidence.dumps
    alone = not any(worker.evidence.log for worker in this.job.workers)
    for missing in missing_ranks(dumps):
        odd = [item.rank for item in missing.mismatches]
        ranks = sorted({*missing.absent, *odd})
        silent = alone and not ranks
        if silent:
            ranks = list(missing.no_dump)
        if not ranks or len(ranks) > MAX_CULPRITS or (alone and len(ranks) >= len(missing.joined)):
            continue
        category = "collective_mismatch" if odd else "hang"
        first = missing.mismatches[0] if odd else None
        template = _UNLIKE if first else _LEFT_NO_DUMP if silent else _NOT_RECORDED
        why = template.filled(
            count=len(missing.joined) - len(odd),
            operation=missing.operation or Message("collective"),
            sizes=_sizes(missing.input_sizes),
            seq=missing.seq,
            group=missing.description or missing.group,
            other=first.operation if first else "",
            other_sizes=_sizes(first.input_sizes) if first else "",
        )
        # Without a log nothing shows that the job did not go on.
        sure = not (alone or missing.no_dump or missing.unclear)
        confidence = Confidence.CERTAIN if sure else Confidence.LIKELY
        return _ranks(this, ranks, category, _OTHER if odd else _NOT_JOINED, why, confidence, {})
    return None


def _sizes(sizes: Sequence[Sequence[int]]) -> str:
    """`[512, 512] [512]`"""
    return " ".join(str(list(size)) for size in sizes[:4]) + (" ..." if len(sizes) > 4 else "")


def _ranks(
    this: Round,
    ranks: Sequence[int],
    category: str,
    message: str,
    why: str,
    confidence: Confidence,
    proofs: Mapping[int, Proof],
) -> Diagnosis:
    causes = tuple(
        _cause(this, rank, category, message, why, confidence, proofs.get(rank)) for rank in ranks[:MAX_CULPRITS]
    )
    if len(ranks) == 1:
        return Diagnosis(Verdict.RANK, causes)
    workers = {cause.worker for cause in causes}
    whole = None not in workers and len(workers) == 1 and _all_of_worker(this, next(iter(workers)), ranks)
    multi = len(this.job.workers) > 1
    if whole and multi:
        name = next(iter(workers))
        text = Message("None of its processes reached the collective that the others waited in")
        cause = this.job.worker_cause(name, category, text, confidence, why, extra=[*proofs.values()][:3])
        return Diagnosis(Verdict.WORKER, (cause,))
    return Diagnosis(Verdict.RANKS, causes)


def _all_of_worker(this: Round, worker: str | None, ranks: Sequence[int]) -> bool:
    own = {item.rank for item in this.failures if item.worker == worker and item.rank is not None}
    return len(own) > 1 and own <= set(ranks)


def _cause(
    this: Round, rank: int, category: str, message: str, why: str, confidence: Confidence, proof: Proof | None
) -> Cause:
    item = next((item for item in this.failures if item.rank == rank), None)
    extra = [proof] if proof else []
    sentence = Message("Rank {rank}: {message}", rank=rank, message=message)
    if item is not None:
        made = this.job.cause(item, confidence, why, category=category, extra=extra)
        return replace(
            made, message=sentence, brief=message, exception=None, detail="", proofs=tuple(extra) or made.proofs
        )
    place = place_unheard(this, rank)
    return Cause(
        place.worker if place else None, category, sentence, confidence, why, rank=rank,
        local_rank=place.local_rank if place else None, attempt=this.number, brief=message, proofs=tuple(extra),
    )  # fmt: skip


def _proof(this: Round, said: CollectiveLine) -> Proof:
    worker = next(
        worker.worker
        for worker in this.job.workers
        if worker.evidence.log and any(said is other for other in worker.evidence.log.collectives)
    )
    return Proof(worker, said.line_no, said.text)
