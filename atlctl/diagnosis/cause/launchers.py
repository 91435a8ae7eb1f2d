"""Finds failures of launchers, or reported only by them: signals to torchrun, a failed rendezvous, other launchers.

Logs without lines of torchelastic are incomplete, from other launchers, or from scripts started by hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from atlctl.diagnosis.cause.initiators import UNALIGNED, UNFINISHED, others_lost
from atlctl.diagnosis.cause.rounds import CUT_OFF, JudgedJob, Round, raised_in, universe
from atlctl.diagnosis.consequence import Sort, consequence_of
from atlctl.diagnosis.failures import Part, Strength
from atlctl.diagnosis.joining import AgentEnd, WorkerRounds
from atlctl.diagnosis.logfacts import LogFacts, SignatureHit
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict
from atlctl.diagnosis.signatures import FaultScope, LineRole
from atlctl.diagnosis.torchelastic import ENDINGS, NoteKind
from atlctl.diagnosis.tracebacks import Raised, Trace
from atlctl.i18n import Message, joined, plural
from atlctl.jobs.model import State

#: The store's count of joined agents, and the address that a client names.
_JOINED = re.compile(r"(?P<joined>\d{1,6})/(?P<wanted>\d{1,6}) clients joined")
_PLACE = re.compile(r"\((?P<host>[^\s,()]{1,253}), \d{1,5}\)")
#: Categories that prevent the start of an agent; those that are about a peer.
_AT_START = frozenset({"port_in_use", "dns_failure", "rendezvous_unreachable", "network_unreachable"})
_FAR = frozenset({"rendezvous_unreachable", "network_unreachable"})
#: Functions of torchelastic in which an agent connects to the store for the first time.
_CONNECTING = frozenset({"create_backend", "_create_tcp_store"})
_ABSENT = Message("A worker without a log did not join the rendezvous")
_UNRESOLVED = Message("the name does not resolve")
_BY_SIGNAL = {"SIGINT": "interrupted", "SIGHUP": "terminal_hangup"}


def find_signals(this: Round) -> Diagnosis | None:
    """The answer if agents were ended from outside; None if no agent received a signal, or a failure preceded it."""
    signalled = [end for end in this.final_ends if end.signal is not None]
    job = this.job
    launcher = _launcher_signalled(job)
    if launcher is not None and not any(item.strength is Strength.STRONG for item in this.initiators):
        why = Message("the launcher received {signal} from outside", signal=launcher.signal or "SIGTERM")
        category = _BY_SIGNAL.get(launcher.signal or "", "preemption")
        return Diagnosis(Verdict.EXTERNAL, (_external(this, [launcher], category, Confidence.LIKELY, why),))
    if not signalled or _failed_before(this, signalled):
        return None
    workers = {end.worker for end in signalled}
    others = [end for end in this.final_ends if end.signal is None]
    signal = signalled[0].signal or "SIGTERM"
    category = _BY_SIGNAL.get(signal, "preemption")
    proofs = [end.proof for end in signalled]
    unknown = not job.whole or universe(this).unheard
    confidence = Confidence.LIKELY if unknown else Confidence.CERTAIN
    if len(workers) == 1 and len(job.heard) == 1 and others:
        # Two agents in one log, one of which followed: the log does not show which worker it was.
        why = Message("one agent received a signal")
        cause = job.worker_cause(None, category, proofs[0].text, Confidence.LIKELY, why, extra=proofs)
        return Diagnosis(Verdict.WORKER, (cause,))
    if workers == job.heard and not (len(workers) == 1 and job.incomplete):
        why = (
            Message("every agent received {signal} from outside", signal=signal)
            if len(workers) > 1
            else Message("the agent received {signal} from outside", signal=signal)
        )
        return Diagnosis(Verdict.EXTERNAL, (_external(this, signalled, category, confidence, why),))
    if len(workers) == 1:
        ended = {item.worker for item in (*this.victims, *this.of_part(Part.ENDED))} | {
            end.worker for end in this.final_ends
        }
        end = signalled[0]
        if ended <= workers:
            if _others_go_on(this, end):
                return None
            confidence = Confidence.LIKELY  # the others may have continued without it
        why = Message(
            "its agent alone received {signal} from outside; the other workers lost their connection to it",
            signal=signal,
        )
        cause = job.worker_cause(end.worker, category, end.text, confidence, why, extra=proofs)
        made = replace(cause, signal=signal, time=job.clocks.when(end.worker, end.time))
        return Diagnosis(Verdict.WORKER, (made,))
    why = Message(
        "{count} of {agents} agents received {signal} from outside",
        count=len(workers),
        agents=len(job.heard),
        signal=signal,
    )
    return Diagnosis(Verdict.EXTERNAL, (_external(this, signalled, category, Confidence.LIKELY, why),))


def _launcher_signalled(job: JudgedJob) -> AgentEnd | None:
    """The signal to a launcher that is not among the workers of the job."""
    launcher = job.evidence.launcher
    if launcher is None or launcher.log is None:
        return None
    ends = (note for note in launcher.log.notes if note.kind is NoteKind.SIGNALLED)
    return next((AgentEnd(launcher.worker, note.line_no, note.text, None, note.signal) for note in ends), None)


def _others_go_on(this: Round, end: AgentEnd) -> bool:
    """Whether the last line of every other log shows training progress long after an agent received its signal."""
    job = this.job
    told = (job.worker(end.worker).evidence.log or LogFacts()).moments.values()
    start = job.clocks.when(end.worker, end.time or max(told, key=lambda moment: moment.seconds, default=None))
    logs = {worker.worker: worker.evidence.log for worker in job.workers if worker.worker != end.worker}
    return (
        start is not None
        and bool(logs)
        and all(
            log is not None
            and log.last_activity == log.last_line
            and (last := job.clocks.when(name, log.last)) is not None
            and last.seconds > start.seconds + UNALIGNED
            for name, log in logs.items()
        )
    )


def _external(this: Round, ends: Sequence[AgentEnd], category: str, confidence: Confidence, why: str) -> Cause:
    """The cause for a signal from outside, with the time of the first agent that received it."""
    times = [when for end in ends if (when := this.job.clocks.when(end.worker, end.time))]
    proofs = tuple(end.proof for end in ends[:5])
    first = min(times, key=lambda when: when.seconds, default=None)
    return Cause(None, category, ends[0].text, confidence, why, signal=ends[0].signal, time=first, proofs=proofs)


def _failed_before(this: Round, signalled: Sequence[AgentEnd]) -> bool:
    """Whether a process had failed by itself before the first signal, or ranks had waited in vain: the platform then
    only cleaned up."""
    job = this.job
    times = [when for end in signalled if (when := job.clocks.when(end.worker, end.time))]
    start = min((when.seconds for when in times), default=None)
    lines = {end.worker: end.line_no for end in signalled}
    signals = {end.worker: end.signal for end in signalled}
    waited = [item for item in this.victims if item.sort in (Sort.WAITED, Sort.STUCK)]
    for item in (*this.initiators, *waited):
        if item.strength is not Strength.STRONG and item.process.note is None and item.part is not Part.VICTIM:
            continue
        if item.exception == "KeyboardInterrupt" and signals.get(item.worker) == "SIGINT":
            continue  # Ctrl-C reaches the launcher and its processes alike
        if item.worker in lines and item.line_no is not None:
            if item.line_no < lines[item.worker]:
                return True
            continue
        when = job.when(item)
        if item.worker not in lines and (when is None or start is None or when.seconds < start + when.resolution):
            return True
    return False


def find_rendezvous(this: Round) -> Diagnosis | None:
    """The answer if the agents did not find each other or lost the store, and no process has a better message."""
    ends = [end for end in this.final_ends if end.signal is None]
    if not ends:
        return None
    own = [(end, raised) for end in ends if (raised := _own(this, end)) is not None]
    if own:
        return _own_failure(this, own)
    timeouts = [end for end in ends if "RendezvousTimeoutError" in end.text]
    if timeouts:
        return _nobody_came(this, timeouts)
    job = this.job
    stores = [end for end in ends if any(_sort(raised) is Sort.STORE_WAITED for raised in end.chain)]
    workers = {end.worker for end in stores}
    if stores and workers == job.heard and not this.victims and not job.incomplete:
        proofs = tuple(end.proof for end in stores[:5])
        counts = [found for end in stores for raised in end.chain if (found := _JOINED.search(raised.text))]
        if any(len(job.heard) < int(found["wanted"]) for found in counts):
            why = plural(
                "{joined} of {wanted} agents joined, and there is {n} log",
                "{joined} of {wanted} agents joined, and there are {n} logs",
                len(job.heard),
                **counts[0].groupdict(),
            )
            cause = job.worker_cause(None, "rendezvous_timeout", _ABSENT, Confidence.LIKELY, why, extra=proofs)
            return Diagnosis(Verdict.WORKER, (cause,))
        category = "elastic_scale_up_rendezvous_failure" if this.job.failures else "rendezvous_timeout"
        why = Message(
            "every agent waited in the store for the others until the timeout; all were there but did not find each "
            "other"
        )
        confidence = Confidence.LIKELY if len(stores) > 1 else Confidence.GUESS
        return Diagnosis(Verdict.JOB, (Cause(None, category, stores[0].text, confidence, why, proofs=proofs),))
    return None


def _sort(raised: Raised) -> Sort | None:
    found = consequence_of(raised.text)
    return found.sort if found else None


def _own(this: Round, end: AgentEnd) -> Raised | None:
    """The agent's exception that is not a peer's consequence: a name, an address or a port that does not work."""
    worker = this.job.worker(end.worker)
    for hit in worker.loose_hits.get(this.number, []):
        if hit.match.signature.category == "dns_failure" and hit.line_no < end.line_no:
            return Raised("", hit.text, (), None, hit.line_no)
    for raised in end.chain:
        if this.job.category(raised.message) in _AT_START:
            return raised
    if not any(item.worker == end.worker and item.part is not Part.SILENT for item in this.failures):
        # It never started a process, so its last messages are the reason.
        for hit in worker.loose_hits.get(this.number, []):
            if hit.match.signature.category in _AT_START:
                return Raised("", hit.text, (), None, hit.line_no)
    if end.chain and _at_start(end.chain[-1]):
        return end.chain[-1]
    if any(consequence_of(raised.text) for raised in end.chain) or consequence_of(end.text):
        return None
    if "Rendezvous" in end.text or not end.chain:
        return None
    return end.chain[0]


def _at_start(raised: Raised) -> bool:
    """Whether an agent never reached the store: it failed while connecting."""
    return any(frame.function in _CONNECTING for frame in raised.frames)


def _category(job: JudgedJob, raised: Raised) -> str:
    return "rendezvous_unreachable" if _at_start(raised) else job.category(raised.message)


def _own_failure(this: Round, own: Sequence[tuple[AgentEnd, Raised]]) -> Diagnosis:
    job = this.job
    # An agent that cannot reach a peer is a consequence if the peer's own agent reports a reason.
    local = [(item, found) for item, found in own if _category(job, found) not in _FAR]
    own = local or own
    end, raised = own[0]
    match = job.matcher.match(raised.message)
    category = _category(job, raised)
    if category == "python_exception" and raised.exception == "ValueError":
        category = "bad_arguments"  # raised by the launcher for invalid options
    peer = match.groups.get("peer") if match else None
    workers = {item.worker for item, _ in own}
    proofs = [Proof(item.worker, item.line_no, found.message) for item, found in own[:5]]
    if category == "dns_failure" and workers == job.heard:
        why = Message("no worker can resolve it") if len(workers) > 1 else _UNRESOLVED
        cause = Cause(None, category, raised.message, Confidence.LIKELY, why, host=peer, proofs=tuple(proofs))
        return Diagnosis(Verdict.JOB, (cause,))
    if category in _FAR and (host := _mute_host(this, raised.message, workers)) is not None:
        why = Message("the others could not reach the rendezvous on it, and its log has no message of an agent")
        message = Message("No agent came up on {host}", host=host)
        cause = job.worker_cause(
            host, category, message, Confidence.LIKELY, why, extra=[*job.last_words(host), *proofs]
        )
        return Diagnosis(Verdict.WORKER, (cause,))
    nameless = _at_start(raised) and peer is None  # the inner exception was cut off
    if category in _FAR and workers == job.heard and not nameless:
        # No agent can reach the same address: the worker there is at fault, and it has no log.
        why = Message("no worker with a log could reach it")
        cause = job.worker_cause(None, category, raised.message, Confidence.LIKELY, why, extra=proofs, host=peer)
        return Diagnosis(Verdict.WORKER, (cause,))
    # Another worker without an agent may be the one that could not be reached.
    unclear = (nameless or category in _FAR) and any(not _came(this, worker) for worker in job.workers)
    if len(workers) == 1 and not unclear:
        why = Message("its agent failed by itself, independently of its processes")
        confidence = Confidence.CERTAIN if category == "port_in_use" else Confidence.LIKELY
        cause = job.worker_cause(end.worker, category, raised.message, confidence, why, extra=proofs, host=peer)
        return Diagnosis(Verdict.WORKER, (cause,))
    if workers == job.heard and not nameless:
        why = Message("the same on every agent")
        cause = Cause(None, category, raised.message, Confidence.LIKELY, why, proofs=tuple(proofs))
        return Diagnosis(Verdict.JOB, (cause,))
    why = Message("its agent failed by itself")
    candidates = tuple(
        job.worker_cause(item.worker, category, found.message, Confidence.GUESS, why,
                         extra=[Proof(item.worker, item.line_no, found.message)])
        for item, found in own
    )  # fmt: skip
    return Diagnosis(Verdict.UNDECIDED, candidates=candidates)


def _mute_host(this: Round, message: str, failed: set[str]) -> str | None:
    """The worker at the unreachable address, if it has a log without lines of an agent."""
    match = _PLACE.search(message)
    if match is None:
        return None
    host = match["host"]
    for worker in this.job.workers:
        named = host == worker.worker or host.startswith(f"{worker.worker}.") or host in worker.addresses
        if named and worker.worker not in failed and worker.evidence.log is not None and not _came(this, worker):
            return worker.worker
    return None


def _came(this: Round, worker: WorkerRounds) -> bool:
    """Whether the log has lines of the worker's agent in this round."""
    return worker.elastic and worker.rounds.count > this.number


def _nobody_came(this: Round, timeouts: Sequence[AgentEnd]) -> Diagnosis:
    """`RendezvousTimeoutError`: fewer workers joined than were asked for."""
    job = this.job
    missing = list(job.evidence.missing)
    proofs = [end.proof for end in timeouts[:5]]
    # A worker whose log ends before any line of an agent never reached the rendezvous.
    stuck = [worker.worker for worker in this.silent_workers() if not worker.elastic]
    name = missing[0] if len(missing) == 1 else stuck[0] if len(stuck) == 1 and not missing else None
    why = Message("the others waited for it in the rendezvous until the timeout")
    message = Message("{worker} did not join the rendezvous", worker=name) if name else _ABSENT
    if name is None and len(job.heard) > 1 and {end.worker for end in timeouts} == job.heard:
        why = Message("every agent waited for others: one has no log, or they waited in different rendezvous")
        cause = job.worker_cause(None, "rendezvous_timeout", message, Confidence.GUESS, why, extra=proofs)
        return Diagnosis(Verdict.UNDECIDED, candidates=(cause,))
    cause = job.worker_cause(name, "rendezvous_timeout", message, Confidence.LIKELY, why, extra=proofs)
    return Diagnosis(Verdict.WORKER, (cause,))


#: Most lines after a traceback that still counts as the end of a log without a launcher's report.
_END = 60
_MAX_DEATHS = 16
_ARGUMENTS = "bad_arguments"
_NUMBERS = re.compile(r"\d+")
_EVERYWHERE = Message("the same failure on all {count} workers")


def find_loose(this: Round) -> Diagnosis | None:
    """The answer for failures of unknown processes: a verdict if the place does not matter, else candidates."""
    job = this.job
    raw = [worker for worker in job.workers if not worker.elastic]
    traces = [
        (worker.worker, trace)
        for worker in raw
        for trace in _endings(job, worker.worker, worker.loose_traces.get(this.number, []))
    ]
    hits = [(worker.worker, hit) for worker in raw for hit in _last_hits(worker, this.number)]
    roots = [
        (name, hit)
        for name, hit in hits
        if hit.match.signature.role in (LineRole.ROOT, LineRole.AMBIGUOUS) or _code(hit)
    ]
    located = [(name, hit) for name, hit in hits if hit.match.groups.get("peer")]
    candidates: list[Cause] = []
    for name, trace in traces:
        first = trace.chain[0]
        category = job.category(first.message)
        if category == "dns_failure":
            proof = Proof(name, first.line_no, first.message)
            cause = Cause(None, category, first.message, Confidence.LIKELY, _UNRESOLVED, proofs=(proof,))
            return Diagnosis(Verdict.JOB, (cause,))
        if consequence_of(first.text) is None:
            made = _candidate(name, category, first.message, first.line_no)
            candidates.append(raised_in(made, trace, Proof(name, trace.line_no, first.message)))
    refused = next(((name, hit) for name, hit in located if "refused" in hit.text), None)
    if refused is not None and all("NCCL" in cause.message for cause in candidates):
        return _peer(this, *refused)
    everywhere = _told_by_most(this, raw) or (None if candidates else _same_everywhere(this, roots))
    if everywhere is not None:
        return everywhere
    candidates += [_candidate(name, hit.match.signature.category, hit.text, hit.line_no) for name, hit in roots[:8]]
    if len(job.workers) == 1 and candidates and {cause.exception for cause in candidates} == {"KeyboardInterrupt"}:
        interrupted = Message("the program was interrupted (Ctrl-C)")
        cause = replace(candidates[-1], worker=None, confidence=Confidence.LIKELY, why=interrupted, signal="SIGINT")
        return Diagnosis(Verdict.EXTERNAL, (cause,))
    if len(job.workers) == 1 and not this.failures and {cause.category for cause in candidates} == {_ARGUMENTS}:
        early = Message("the program refused its options, before it started any process")
        cause = replace(candidates[-1], worker=None, confidence=Confidence.LIKELY, why=early)
        return Diagnosis(Verdict.JOB, (cause,))
    if (own := _of_scripts(this, candidates, {name for name, _ in traces})) is not None:
        return own
    if (own := _of_one_machine(this, candidates, roots)) is not None:
        return own
    if not candidates:
        candidates = [
            _candidate(name, hit.match.signature.category, hit.text, hit.line_no)
            for name, hit in hits[:8]
            if (why := consequence_of(hit.text)) and why.sort in (Sort.WAITED, Sort.LEFT, Sort.STORE_WAITED)
        ]
        candidates += [
            _candidate(name, "peer_lost", trace.last.message, trace.last.line_no, trace.last.exception)
            for name, trace in traces[:8]
        ]
    return Diagnosis(Verdict.UNDECIDED, candidates=tuple(candidates[:16])) if candidates else None


def _of_scripts(this: Round, candidates: Sequence[Cause], ended: set[str]) -> Diagnosis | None:
    """The answer if of several workers one ends with an exception, and the others silently or with a lost peer; or if
    all workers, perhaps one, have failed and end with the same exception.

    `ended`: workers that end with any exception.
    """
    job = this.job
    names = {cause.worker for cause in candidates}
    others = job.heard - names
    same = len({_NUMBERS.sub("#", cause.message) for cause in candidates}) == 1
    everyone = len(names) == len(job.workers) and all(_has_failed(worker) for worker in job.workers)
    if not same or not (everyone or (len(names) == 1 and others)):
        return None
    if not candidates[0].exception or job.incomplete or job.cut or any(worker.elastic for worker in job.workers):
        return None
    why = Message("only this worker ends with an error") if others else Message("its log ends with this error")
    if others and others <= ended:
        why = joined([why, others_lost(len(others))])
    name, proofs = candidates[0].worker, candidates[0].proofs
    if len(names) > 1:
        name, why = None, _EVERYWHERE.filled(count=len(names))
        proofs = tuple(proof for cause in candidates[:3] for proof in cause.proofs)
    one = candidates[0]
    made = job.worker_cause(name, one.category, one.message, Confidence.LIKELY, why, extra=proofs)
    made = replace(made, exception=one.exception, traceback=one.traceback, frame=one.frame)
    return Diagnosis(Verdict.WORKER if name else Verdict.JOB, (made,))


def _has_failed(worker: WorkerRounds) -> bool:
    """Whether the platform says so, or a launcher's traceback is the log's last one: it reports its process's end."""
    traces = worker.evidence.log.traces if worker.evidence.log else ()
    return worker.evidence.failed or bool(traces and traces[-1].agent)


def _of_one_machine(
    this: Round, candidates: Sequence[Cause], roots: Sequence[tuple[str, SignatureHit]]
) -> Diagnosis | None:
    """The answer if of the workers that have failed one logged a fault of its machine, as the kernel reports it."""
    job = this.job
    failed = {worker.worker for worker in job.workers if worker.evidence.failed}
    found = [(name, hit) for name, hit in roots if name in failed]
    faults = all(hit.match.signature.scope is FaultScope.WORKER for _, hit in found)
    if len({name for name, _ in found}) != 1 or not faults or any(cause.exception for cause in candidates):
        return None
    if job.incomplete or job.cut or any(worker.elastic for worker in job.workers):
        return None
    name, hit = next((one for one in found if one[1].match.death), found[-1])
    why = Message("only this worker has failed and logged a fault of its machine")
    proof = Proof(name, hit.line_no, hit.text)
    made = job.worker_cause(name, hit.match.signature.category, hit.text, Confidence.LIKELY, why, extra=[proof])
    return Diagnosis(Verdict.WORKER, (made,))


_OF_A_THREAD = Message("a thread of it ended so; the log does not show whether the process went on")


def reported_deaths(job: JudgedJob) -> Diagnosis | None:
    """Candidates from deaths that launchers, shells and the kernel report, for use if no other failure is known.

    Deaths in earlier rounds, and deaths after which training continued for long, are ignored.
    """
    found: list[Cause] = []
    succeeded = {worker.worker for worker in job.workers if worker.evidence.state is State.SUCCEEDED}
    logs = [
        (worker.worker, log, max(log.outlived, *worker.rounds.ends[: worker.rounds.seen - 1], 0))
        for worker in job.workers
        if (log := worker.evidence.log) is not None
    ]
    launcher = job.evidence.launcher
    if launcher is not None and launcher.log is not None:
        logs.append((launcher.worker, launcher.log, launcher.log.outlived))
    for name, log, first in logs:
        told = [*((hit.line_no, hit.text) for hit in log.hits if hit.match.death)]
        told += [(trace.last.line_no, trace.last.message) for trace in log.traces]
        found += [
            _candidate(name, match.signature.category, text, line_no)
            for line_no, text in sorted(told)
            if line_no > first and (match := job.matcher.match(text)) is not None and match.death
        ]
    for name, log, first in logs if not found else ():
        late = max(first, log.last_activity)
        for item in log.unfinished:
            if item.line_no > late:
                cause = _candidate(name, "unknown", str(item.frame or ""), item.line_no)
                found.append(replace(cause, why=UNFINISHED, frame=item.frame))
        for trace in log.traces:
            own = not trace.agent and consequence_of(trace.last.text) is None
            if own and trace.line_no > late and not (trace.thread and name in succeeded):
                end = trace.last
                cause = _candidate(name, job.category(end.message), end.message, end.line_no, end.exception)
                found.append(replace(cause, rank=trace.origin.rank, why=_OF_A_THREAD) if trace.thread else cause)
        for note in log.notes if not found else ():
            if note.launcher and note.line_no > late and note.kind in ENDINGS:
                found.append(_candidate(name, "unknown", note.text, note.line_no))
    for worker in job.workers if not found else ():
        log = worker.evidence.log or LogFacts()
        if log.cut and not log.last_activity:
            # Only the end of a report is left.
            cause = _candidate(worker.worker, "unknown", log.last_text, log.last_line)
            found.append(replace(cause, why=CUT_OFF))
    return Diagnosis(Verdict.UNDECIDED, candidates=tuple(found[-_MAX_DEATHS:])) if found else None


def _told_by_most(this: Round, raw: Sequence[WorkerRounds]) -> Diagnosis | None:
    """The answer if most processes of a job end with the same message, and no line names its rank."""
    job, world = this.job, universe(this).world
    if len(job.workers) != len(raw) or world is None or world < 2:
        return None
    said: dict[str, list[tuple[Proof, Trace | None]]] = {}
    for worker in raw:
        told: list[tuple[int, str, Trace | None]] = [
            (trace.line_no, trace.chain[0].message, trace) for trace in worker.loose_traces.get(this.number, [])
        ]
        told += [
            (hit.line_no, hit.text, None)
            for hit in worker.loose_hits.get(this.number, [])
            if hit.match.signature.role is LineRole.ROOT
        ]
        outlived = (worker.evidence.log or LogFacts()).outlived
        for line_no, text, trace in told:
            if line_no > outlived and consequence_of(text) is None:
                said.setdefault(_NUMBERS.sub("#", text), []).append((Proof(worker.worker, line_no, text), trace))
    found = max(said.values(), key=len, default=[])
    if 2 * len(found) <= world:
        return None
    proofs = tuple(proof for proof, _ in found[:3])
    why = Message("the same failure on {count} of {all} processes", count=len(found), all=world)
    sure = Confidence.CERTAIN if len(found) == world and job.whole else Confidence.LIKELY
    (proof, first), text = found[0], found[0][0].text
    cause = Cause(None, job.category(text), text, sure, why, proofs=proofs)
    return Diagnosis(Verdict.JOB, (cause if first is None else raised_in(cause, first, proof),))


def _same_everywhere(this: Round, roots: list[tuple[str, SignatureHit]]) -> Diagnosis | None:
    """The answer if the logs of all workers, at least two, end with the same message; else None."""
    last = dict(roots)
    workers = {worker.worker for worker in this.job.workers}
    if len(workers) < 2 or set(last) != workers or len({_NUMBERS.sub("#", hit.text) for hit in last.values()}) > 1:
        return None
    hit = roots[-1][1]
    why = _EVERYWHERE.filled(count=len(workers))
    cause = Cause(None, hit.match.signature.category, hit.text, Confidence.LIKELY, why,
                  proofs=tuple(Proof(name, hit.line_no, hit.text) for name, hit in list(last.items())[:3]))  # fmt: skip
    return Diagnosis(Verdict.JOB, (cause,))


def _last_hits(worker: WorkerRounds, number: int) -> list[SignatureHit]:
    """Hits after which no line shows the program continuing, including those of processes without another end."""
    log = worker.evidence.log
    own = [hit for process in worker.of_round(number) if not process.failed for hit in process.hits]
    found = sorted([*worker.loose_hits.get(number, []), *own], key=lambda hit: hit.line_no)
    return [hit for hit in found if log is not None and hit.line_no > log.last_activity]


def _code(hit: SignatureHit) -> bool:
    """Whether a launcher reports that a process failed, without naming it."""
    return hit.match.groups.get("code", "0") != "0"


def _peer(this: Round, name: str, hit: SignatureHit) -> Diagnosis:
    peer = hit.match.groups.get("peer")
    owner = next((worker.worker for worker in this.job.workers if peer in worker.addresses), None)
    why = Message("{worker} could not connect to {peer}", worker=name, peer=peer)
    proof = Proof(name, hit.line_no, hit.text)
    category = hit.match.signature.category
    cause = this.job.worker_cause(owner, category, hit.text, Confidence.LIKELY, why, extra=[proof], host=peer)
    return Diagnosis(Verdict.WORKER, (cause,))


def _endings(job: JudgedJob, worker: str, traces: Sequence[Trace]) -> list[Trace]:
    """The tracebacks that end the log, in its order: behind each come only those of processes that lost a peer. After a
    handled exception, training continues."""
    log, found = job.worker(worker).evidence.log or LogFacts(), list[Trace]()
    end = log.last_line
    for trace in reversed(traces):
        if end - trace.last.line_no > _END or log.last_activity >= trace.line_no:
            break
        if not (trace.agent or trace.thread):
            found.append(trace)
        if consequence_of(trace.chain[0].text):
            end = trace.line_no
    return found[::-1]


def _candidate(worker: str, category: str, message: str, line_no: int, exception: str | None = None) -> Cause:
    why = Message("the line does not say which process printed it")
    return Cause(worker, category, message, Confidence.GUESS, why, exception=exception,
                 proofs=(Proof(worker, line_no, message),))  # fmt: skip
