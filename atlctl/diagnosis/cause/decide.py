"""Finds the root cause of a job: the deciding round, the kind of failure that explains it, and the platform's facts.

Each kind of failure has a separate module: a process failed by itself (`initiators`), all processes with errors are
victims and a rank is missing (`missing`), the launchers failed or report the failure (`launchers`), ranks are out of
step (`desync`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from atlctl.diagnosis.cause import desync
from atlctl.diagnosis.cause.initiators import find_initiators
from atlctl.diagnosis.cause.launchers import find_loose, find_rendezvous, find_signals, reported_deaths
from atlctl.diagnosis.cause.missing import find_missing
from atlctl.diagnosis.cause.rounds import JudgedJob, Round, build, proofs, raised_in
from atlctl.diagnosis.consequence import Sort, consequence_of
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.failures import Failure, Part
from atlctl.diagnosis.joining import WorkerRounds
from atlctl.diagnosis.logfacts import LogFacts
from atlctl.diagnosis.platform import Event, Judgement, PlatformState, judge_event, judge_state
from atlctl.diagnosis.result import (
    Cause,
    Confidence,
    Diagnosis,
    Followed,
    GpuIdentity,
    Proof,
    RankEnd,
    Verdict,
    WorkerReport,
)
from atlctl.diagnosis.signatures import Matcher
from atlctl.diagnosis.torchelastic import signal_name
from atlctl.diagnosis.tracebacks import Trace
from atlctl.i18n import Message, joined, plural
from atlctl.jobs import podnews

#: Errors of a failed restart that reads leftovers of the previous round.
_STALE = (Sort.MESH, Sort.STORE_LEFT)
#: The category of a rank that did not reach rank 0's store, e.g. as the worker of rank 0 had no restarts left.
_UNREACHABLE = "rendezvous_unreachable"


def diagnose(evidence: JobEvidence, matcher: Matcher) -> Diagnosis:
    """Finds the first failure of the whole job. Never raises, whatever the evidence."""
    job = build(evidence, matcher)
    number, answer = _decide(job)
    if answer.verdict is Verdict.NONE:
        answer = reported_deaths(job) or answer
    if answer.verdict is Verdict.NONE and evidence.dumps and not any(item.log for item in evidence.workers):
        answer = Diagnosis(Verdict.UNDECIDED)  # dumps say nothing of the end of a job
    answer = with_platform(job, answer)
    return replace(answer, **tell_story(job, number, answer))


def _decide(job: JudgedJob) -> tuple[int, Diagnosis]:
    """The deciding round and its answer: the last round that is not only a consequence of an earlier one."""
    skipped: tuple[int, Diagnosis] | None = None
    for number in range(job.last_round, -1, -1):
        this = Round.of(job, number)
        answer = _answer(this)
        if answer is None:
            if number == job.last_round and not _unfinished(this):
                return number, Diagnosis(Verdict.NONE)
            continue
        if number > 0 and _only_follows(this):
            skipped = skipped or (number, answer)
            continue
        if answer.verdict is Verdict.UNDECIDED and skipped is not None:
            return skipped
        return number, answer
    return skipped or (job.last_round, Diagnosis(Verdict.NONE))


def _answer(this: Round) -> Diagnosis | None:
    return (
        find_signals(this)
        or find_initiators(this)
        or (find_rendezvous(this) if not this.victims else None)
        or find_missing(this)
        or find_rendezvous(this)
        or desync.named(this)
        or find_loose(this)
    )


def _only_follows(this: Round) -> bool:
    """Whether the only failure in this round is that the job did not start again after the previous round."""
    if any(item.category != _UNREACHABLE for item in this.initiators) or any(end.signal for end in this.final_ends):
        return False
    # If a worker's log ends abruptly, the ranks that wait in the store wait for it: not a consequence.
    sorts = _STALE if this.silent_workers() else (*_STALE, Sort.STORE_WAITED)
    return bool(this.victims or this.initiators) and all(item.sort in sorts for item in this.victims)


def _unfinished(this: Round) -> bool:
    """Whether this round has no failure because it was cut off: other workers or all processes ended."""
    if any(item.part is not Part.SILENT for item in this.failures):
        return True
    if any(item.process.seen for item in this.failures) or _came_up(this):
        return False
    ended_before = any(worker.rounds.final and worker.rounds.count - 1 < this.number for worker in this.job.workers)
    return ended_before or this.number > 0


def _came_up(this: Round) -> bool:
    """Whether training continued in any worker after the end of the previous round. Other lines prove nothing."""
    return any(
        log.last_activity > worker.rounds.ends[-1]
        for worker in this.job.workers
        if (log := worker.evidence.log) and worker.rounds.ends and not worker.rounds.final
    )


#: Categories of an end without a reason: the platform may report one.
_OPEN = frozenset(
    {
        "killed",
        "terminated",
        "oom_kill",
        "node_lost",
        "network_lost",
        "unknown_python_exit",
        "rendezvous_timeout",
        "preemption",
    }
)
#: Categories that mean only that a worker is gone.
_GONE = frozenset({"node_lost", "network_lost", "rendezvous_timeout"})
#: The kubelet's message when a container is stopped; after a failed probe it is different.
_STOPPING = "Stopping container"
#: Exit codes of SIGKILL and SIGTERM.
_OF_DELETION = (137, 143)
_FIRST = Message("it ended first, according to the states and events of the job")
_PLATFORM_SAYS = Message("the logs do not decide it; the platform reports it")


def with_platform(job: JudgedJob, answer: Diagnosis) -> Diagnosis:
    """Adds the platform's reports about the answer's workers; if the logs do not decide, about other workers."""
    if (first := _first_gone(job)) is not None and _leaves_open(job, answer, first):
        return Diagnosis(Verdict.WORKER, (first,))
    if answer.root_causes:
        causes = tuple(_with_machine(job, _explained(job, cause)) for cause in answer.root_causes)
        return replace(answer, root_causes=causes)
    told = [(worker, found) for worker in job.workers if (found := _judgement(job, worker)) is not None]
    proven = [(worker, found) for worker, found in told if found.certainty == "proves" or found.strong]
    if len(proven) == 1:
        worker, found = proven[0]
        cause = _cause(job, worker.worker, found.category, found.text, Confidence.LIKELY)
        return Diagnosis(Verdict.WORKER, (cause,))
    failed = [worker for worker in job.workers if worker.evidence.failed]
    if answer.verdict is not Verdict.NONE or not failed:
        return answer
    causes = tuple(_ended_silently(job, worker) for worker in failed[:16])
    return Diagnosis(Verdict.WORKER, causes) if len(causes) == 1 else Diagnosis(Verdict.UNDECIDED, candidates=causes)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a worker's container: time in seconds since the epoch, exit code, and the event's text, if any."""

    worker: str
    time: float
    code: int
    event: str = ""


def _first_gone(job: JudgedJob) -> Cause | None:
    """The worker that ended or was stopped before a controller deleted the others; None if events do not show one."""
    deleted = job.evidence.deleted
    stopped = {
        event.worker: event
        for event in reversed(job.evidence.events)
        if event.kind == "Pod" and event.reason == "Killing" and event.message.startswith(_STOPPING) and event.worker
    }
    if not deleted and not stopped:
        return None
    ends = [end for end in _ends(job) if not _by_deletion(end, deleted)]
    first = min((end.time for end in ends), default=math.inf)
    known = {worker.worker for worker in job.workers}  # pods of earlier attempts have names that no worker has
    outside = [
        event
        for name, event in stopped.items()
        if name in known and name not in deleted and (event.first or math.inf) < first
    ]
    if len(outside) == 1 and (deleted or ends):
        return _stopped(job, outside[0])
    firsts = [end for end in ends if end.time == first]
    return _exited(job, firsts[0]) if len(firsts) == 1 and not outside else None


def _ends(job: JudgedJob) -> list[_End]:
    """Ends of containers with an exit code other than 0: from the first event about them, else the last known state."""
    found: dict[str, _End] = {}
    for event in job.evidence.events:
        news = podnews.read(event.reason, event.message)
        if news is not None and news.code and event.worker and event.first is not None:
            found.setdefault(event.worker, _End(event.worker, event.first, news.code, event.message))
    for worker in job.workers:
        state = worker.evidence.platform
        if state is not None and state.exit_code and state.finished is not None:
            found.setdefault(worker.worker, _End(worker.worker, state.finished, state.exit_code))
    return list(found.values())


def _by_deletion(end: _End, deleted: Mapping[str, float]) -> bool:
    """Whether a container ended because its pod was deleted. Within the same second, the exit code decides."""
    at = deleted.get(end.worker, math.inf)
    return end.time > at or (end.time == at and end.code in _OF_DELETION)


def _exited(job: JudgedJob, end: _End) -> Cause:
    judged = judge_state(PlatformState(exit_code=end.code))
    text = Message(
        "{worker} ended with exit code {code}, before the job's controller deleted the other pods",
        worker=end.worker,
        code=end.code,
    )
    cause = _cause(job, end.worker, judged.category if judged else "explicit_exit", text, Confidence.LIKELY, _FIRST)
    proofs = (*cause.proofs, *([Proof(end.worker, None, end.event)] if end.event else ()))
    return replace(cause, exit_code=end.code, proofs=proofs)


def _stopped(job: JudgedJob, event: Event) -> Cause:
    name = event.worker or ""
    text = Message(
        "{worker} was stopped from outside (its pod was deleted or evicted) before any other worker ended", worker=name
    )
    cause = _cause(job, name, "preemption", text, Confidence.LIKELY, _FIRST)
    return replace(cause, proofs=(*cause.proofs, Proof(name, None, f"{event.reason}: {event.message}")))


def _leaves_open(job: JudgedJob, answer: Diagnosis, first: Cause) -> bool:
    """Whether the logs show only that other workers were gone, and the first worker is not a victim."""
    if any(cause.category not in _GONE for cause in answer.root_causes):
        return False
    victims = {item.worker for item in job.failures if item.part is Part.VICTIM}
    return first.category == "preemption" or first.worker not in victims


def _judgement(job: JudgedJob, worker: WorkerRounds) -> Judgement | None:
    """The strongest judgement on a worker: from its state, or from events about it or its node."""
    platform = worker.evidence.platform
    found = [judge_state(platform)] if platform else []
    for event in job.evidence.events:
        about_node = event.worker is None and platform is not None and event.node == platform.node is not None
        if event.worker == worker.worker or about_node:
            found.append(judge_event(event))
    said = [item for item in found if item is not None]
    return max(said, key=lambda item: (item.certainty == "proves", item.strong), default=None)


def _explained(job: JudgedJob, cause: Cause) -> Cause:
    worker = job.find(cause.worker)
    if worker is None or cause.category not in _OPEN or (found := _judgement(job, worker)) is None:
        return cause
    sure = found.certainty == "proves" and cause.rank is None
    return replace(
        cause,
        category=found.category,
        why=joined([cause.why, Message("the platform reports: {text}", text=found.text)]),
        confidence=Confidence.CERTAIN if sure else cause.confidence,
        proofs=(*cause.proofs, Proof(worker.worker, None, found.text)),
    )


#: Categories of lines about the machine in the same worker's log, by the category of the end that they explain.
_OF_MEMORY = frozenset({"memory_limit_kill", "host_oom_kill", "oom_kill"})
_OF_GPU = frozenset({"gpu_hardware", "gpu_ecc_uncorrectable", "gpu_xid_app", "gpu_driver"})
_GPU_ERRORS = frozenset({"cuda_error_unknown", "cuda_illegal_memory_access", "nccl_cuda_error", "cublas_cudnn"})
_MACHINE = dict.fromkeys(("killed", "oom_kill"), _OF_MEMORY) | dict.fromkeys((*_GPU_ERRORS, "hang"), _OF_GPU)


def _with_machine(job: JudgedJob, cause: Cause) -> Cause:
    """Adds the line of the worker's log in which the kernel or the driver explains the cause."""
    worker, wanted = job.find(cause.worker), _MACHINE.get(cause.category, frozenset())
    log = worker.evidence.log if worker else None
    hits = [hit for hit in log.hits if hit.match.signature.category in wanted] if log else []
    if cause.worker is None or not hits:
        return cause
    hit = next((hit for hit in hits if hit.match.signature.hardware), hits[-1])
    said = hit.match.signature.category
    # A driver's note on a program's fault adds nothing to a more specific error.
    renamed = cause.category != "hang" and (said != "gpu_xid_app" or cause.category == "cuda_error_unknown")
    return replace(
        cause,
        category=said if renamed else cause.category,
        why=joined([cause.why, Message("its worker's log reports: {text}", text=hit.text)]),
        gpu=cause.gpu or (GpuIdentity(None, None, pci) if (pci := hit.match.groups.get("pci")) else None),
        proofs=(*cause.proofs, Proof(cause.worker, hit.line_no, hit.text)),
    )


#: Signals that only a fault or the kernel sends, with SIGKILL.
_CRASHES = (4, 6, 7, 8, 9, 11)


def _ended_silently(job: JudgedJob, worker: WorkerRounds) -> Cause:
    """A worker whose log names no failure, as its platform reports its end."""
    name, platform = worker.worker, worker.evidence.platform or PlatformState()
    number, code, found = platform.signal, platform.exit_code, judge_state(platform)
    if number and found:
        signal = signal_name(str(number))
        text = Message("{worker} was ended by {signal}, and its log names no failure", worker=name, signal=signal)
        sure = Confidence.LIKELY if number in _CRASHES else Confidence.GUESS
        return replace(_cause(job, name, found.category, text, sure), signal=signal)
    if code == 1 and (trace := _last_exception(worker)) is not None:
        raised = trace.chain[0]
        proof, category = Proof(name, raised.line_no, raised.message), job.category(raised.message)
        why = Message("the last exception in its log; the lines behind it may be older")
        cause = job.worker_cause(name, category, raised.message, Confidence.LIKELY, why, extra=[proof])
        return raised_in(cause, trace, proof)
    category = "explicit_exit" if code not in (None, 1) else "unknown_python_exit"
    text = Message("{worker} is {state}, and its log names no failure", worker=name, state=worker.evidence.state)
    if code:
        text = Message("{worker} ended with exit code {code}, and its log names no failure", worker=name, code=code)
    return _cause(job, name, found.category if found else category, text, Confidence.GUESS)


def _last_exception(worker: WorkerRounds) -> Trace | None:
    """The last own one that the training did not outlive; lines of the same second prove nothing, as stdout and stderr
    are two pipes."""
    log = worker.evidence.log or LogFacts()
    for trace in reversed(log.traces):
        own = not (trace.agent or trace.thread) and consequence_of(trace.chain[0].text) is None
        at_once = log.last and trace.time and log.last.seconds - trace.time.seconds < 1
        if own and (trace.line_no > log.outlived or at_once):
            return trace
    return None


def _cause(
    job: JudgedJob, name: str, category: str, text: str, confidence: Confidence, why: str = _PLATFORM_SAYS
) -> Cause:
    return job.worker_cause(name, category, text, confidence, why, extra=job.last_words(name))


#: Most groups of consequences; the rest is one more group.
MAX_GROUPS = 9
_MAX_EARLIER = 32


def tell_story(job: JudgedJob, number: int, answer: Diagnosis) -> dict[str, Any]:
    """The fields of a Diagnosis other than its causes."""
    return {
        "cascade": _cascade(job, number, answer),
        "workers": tuple(_worker(job, index) for index in range(len(job.workers))),
        "earlier": _earlier(job, number, answer),
        "remarks": (*_remarks(job, number), *_doubtful_times(job, number, answer)),
        "ranks": tuple(_ranks(job, number, answer)),
        "partial": any(worker.evidence.log is not None and worker.evidence.log.cut for worker in job.workers),
    }


def _cascade(job: JudgedJob, number: int, answer: Diagnosis) -> tuple[Followed, ...]:
    this = Round.of(job, number)
    blamed = {(cause.worker, cause.rank, cause.local_rank) for cause in (*answer.root_causes, *answer.candidates)}
    whole = {cause.worker for cause in answer.root_causes if cause.rank is None and cause.local_rank is None}
    groups: dict[str, list[Failure]] = {}
    if answer.verdict is Verdict.JOB:
        return ()
    for item in this.failures:
        if item.part is Part.SILENT or (item.worker, item.rank, item.local_rank) in blamed:
            continue
        if item.part is Part.INITIATOR and item.worker in whole:
            continue
        groups.setdefault(_reason(item), []).append(item)
    made = [_group(job, reason, items) for reason, items in groups.items()]
    agents = [end for end in this.final_ends if end.signal is None and end.worker not in whole]
    if agents:
        first = agents[0]
        made.append(
            Followed(
                Message("torchrun itself ended: its rendezvous failed"),
                len(agents),
                tuple(dict.fromkeys(end.worker for end in agents)),
                (),
                job.clocks.when(first.worker, first.time),
                first.proof,
            )
        )
    made.sort(key=lambda group: (group.first is None, group.first.seconds if group.first else 0.0))
    if len(made) <= MAX_GROUPS:
        return tuple(made)
    rest = made[MAX_GROUPS:]
    workers = dict.fromkeys(name for group in rest for name in group.workers)
    ranks = sorted({rank for group in rest for rank in group.ranks})
    count = sum(group.count for group in rest)
    return (
        *made[:MAX_GROUPS],
        Followed(Message("other failures"), count, tuple(workers), tuple(ranks), rest[0].first, rest[0].proof),
    )


def _reason(item: Failure) -> str:
    if item.part is Part.ENDED:
        return (
            Message("ended by its own agent (SIGTERM)")
            if item.process.forced is None
            else Message("killed by its own agent (SIGKILL)")
        )
    if item.reason:
        return item.reason
    if item.raised is not None and item.raised.of:
        return Message("torch.distributed.checkpoint: the exception of another rank")
    if item.exception:
        return Message("a later failure: {exception}", exception=item.exception)
    if item.signal:
        return Message("ended by {signal}", signal=item.signal)
    return Message("exit code {code}", code=item.exit_code)


def _group(job: JudgedJob, reason: str, items: list[Failure]) -> Followed:
    first = next(iter(job.timed(items)), None)
    shown = first[1] if first else items[0]
    found = proofs(shown)
    return Followed(
        reason,
        len(items),
        tuple(dict.fromkeys(item.worker for item in items)),
        tuple(sorted({item.rank for item in items if item.rank is not None})),
        first[0] if first else None,
        found[0] if found else None,
    )


def _ranks(job: JudgedJob, number: int, answer: Diagnosis) -> Iterator[RankEnd]:
    """The end of each process of the round, the root causes first."""
    blamed = {(cause.worker, cause.rank, cause.local_rank) for cause in answer.root_causes}
    failures = Round.of(job, number).failures
    known = {(item.worker, item.rank, item.local_rank) for item in failures}
    for cause in answer.root_causes:
        process = cause.rank is not None or cause.local_rank is not None
        if cause.worker and process and (cause.worker, cause.rank, cause.local_rank) not in known:
            # It has no lines: its end is inferred from the other processes.
            yield RankEnd(
                cause.worker, cause.rank, cause.local_rank, "cause", cause.exit_code, cause.signal, cause.message,
                cause.time, None,
            )  # fmt: skip
    for item in sorted(failures, key=lambda item: (item.worker, item.rank, item.local_rank) not in blamed):
        guilty = (item.worker, item.rank, item.local_rank) in blamed
        proof = next(iter(proofs(item)), None)
        yield RankEnd(
            item.worker, item.rank, item.local_rank, "cause" if guilty else str(item.part), item.exit_code,
            item.signal, item.message, job.when(item), proof,
        )  # fmt: skip


def _worker(job: JudgedJob, index: int) -> WorkerReport:
    worker = job.workers[index]
    log = worker.evidence.log
    mine = job.failures_of(worker.worker)
    told = [item for item in mine if item.part is not Part.SILENT]
    first = next(iter(job.timed(told)), None)
    shown = first[1] if first else next(iter(told), None)
    if shown is not None:
        part, said, when = str(shown.part), shown.message or _reason(shown), first[0] if first else None
        proof = next(iter(proofs(shown)), None)
    elif worker.ends:
        end = worker.ends[0]
        part, said, when = "agent", end.text, job.clocks.when(worker.worker, end.time)
        proof = end.proof
    elif log is not None:
        part, said, when = "silent", log.last_text, job.clocks.when(worker.worker, log.last)
        proof = next(iter(job.last_words(worker.worker)), None)
    else:
        part, said, when, proof = "no log", "", None, None
    return WorkerReport(
        worker.worker, worker.evidence.index, part, said, when,
        processes=len({item.key for item in mine}),
        failed=len({item.key for item in told}),
        rounds=worker.rounds.count if shown or worker.ends or log else 0,
        proof=proof,
        skew=job.clocks.skew.get(worker.worker),
    )  # fmt: skip


def _earlier(job: JudgedJob, number: int, answer: Diagnosis) -> tuple[Cause, ...]:
    """Initiators of rounds other than the deciding one."""
    found = [
        job.cause(item, Confidence.LIKELY, Message("failed in another round, after which the job was restarted"))
        for item in job.failures
        if item.part is Part.INITIATOR
        and item.strength
        and (item.process.round < number or answer.verdict is Verdict.NONE)
    ]
    return tuple(found[:_MAX_EARLIER])


#: Most seconds of a consequence before and after its cause; with more, a clock must be wrong.
_AHEAD, _BEHIND = 5.0, 3600.0


def _doubtful_times(job: JudgedJob, number: int, answer: Diagnosis) -> Iterator[str]:
    """A remark on workers whose times do not fit the cause's, if their clocks could not be compared."""
    for cause in answer.root_causes[:1]:
        if cause.time is None or cause.worker is None or cause.category == "hang":
            continue
        names = {
            item.worker: round(gap)
            for item in Round.of(job, number).victims
            if (when := job.when(item)) is not None
            and not job.clocks.aligned(cause.worker, item.worker)
            and not -_AHEAD <= (gap := when.seconds - cause.time.seconds) <= _BEHIND
        }
        if names:
            shown = ", ".join(
                f"{name} {gap / 3600:+.1f} h" if abs(gap) > _BEHIND else f"{name} {gap:+d} s"
                for name, gap in list(names.items())[:5]
            )
            yield Message("clocks seem to differ and could not be compared: {shown}", shown=shown)


def _remarks(job: JudgedJob, number: int) -> tuple[str, ...]:
    found: list[str] = []
    if job.unread:
        names = ", ".join(job.unread[:5])
        found.append(
            plural("no log of {n} worker: {names}", "no log of {n} workers: {names}", len(job.unread), names=names)
        )
    if job.evidence.missing:
        found.append(Message("never seen: {names}", names=", ".join(job.evidence.missing[:5])))
    skewed = {name: skew for name, skew in job.clocks.skew.items() if abs(skew) >= 1}
    if skewed:
        shown = ", ".join(f"{name} {skew:+.1f} s" for name, skew in list(skewed.items())[:5])
        found.append(Message("clocks differ and were corrected: {shown}", shown=shown))
    if job.last_round > number:
        found.append(Message("the job was restarted; failures after round {round} are consequences", round=number))
    return tuple(found)
