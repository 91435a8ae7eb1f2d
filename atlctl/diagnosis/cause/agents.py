"""Causes outside of the processes: signals to the agents, a rendezvous that fails, a worker that never came."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from atlctl.diagnosis.cause.scene import Round
from atlctl.diagnosis.cause.universe import universe
from atlctl.diagnosis.consequence import Sort, consequence_of
from atlctl.diagnosis.failures import Part, Strength
from atlctl.diagnosis.processes import AgentEnd
from atlctl.diagnosis.reading.traces import Raised
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict

#: The store's count of agents that came, and the address that a client names.
_JOINED = re.compile(r"(?P<joined>\d{1,6})/(?P<wanted>\d{1,6}) clients joined")
_PLACE = re.compile(r"\((?P<host>[^\s,()]{1,253}), \d{1,5}\)")
_BY_SIGNAL = {"SIGINT": "interrupted", "SIGHUP": "terminal_hangup"}


def find_signals(this: Round) -> Diagnosis | None:
    """Somebody outside ended agents; None where no agent got a signal, or a failure came before it."""
    signalled = [end for end in this.final_ends if end.signal is not None]
    if not signalled or _failed_before(this, signalled):
        return None
    scene = this.scene
    workers = {end.worker for end in signalled}
    spoken = {worker.worker for worker in scene.workers if worker.evidence.log is not None}
    others = [end for end in this.final_ends if end.signal is None]
    signal = signalled[0].signal or "SIGTERM"
    category = _BY_SIGNAL.get(signal, "preemption")
    proofs = [Proof(end.worker, end.line_no, end.text) for end in signalled]
    unknown = (
        bool(scene.job.missing)
        or any(worker.evidence.log is None for worker in scene.workers)
        or bool(universe(this).unheard)
    )
    confidence = Confidence.LIKELY if unknown else Confidence.CERTAIN
    if len(workers) == 1 and len(spoken) == 1 and others:
        # Two agents in one log, one of which followed: which worker it was does not stand there.
        cause = scene.worker_cause(
            None, category, proofs[0].text, Confidence.LIKELY, "one agent got a signal", extra=proofs
        )
        return Diagnosis(Verdict.WORKER, (cause,))
    if workers == spoken and not (len(workers) == 1 and scene.job.missing):
        why = f"{'every agent' if len(workers) > 1 else 'the agent'} received {signal} from outside"
        return Diagnosis(
            Verdict.EXTERNAL,
            (_external(this, signalled, category, confidence, why),),
        )
    if len(workers) == 1:
        end = signalled[0]
        why = f"its agent alone received {signal} from outside; the other workers lost their connection to it"
        cause = scene.worker_cause(end.worker, category, end.text, confidence, why, extra=proofs)
        made = replace(cause, signal=signal, time=scene.clocks.when(end.worker, end.time))
        return Diagnosis(Verdict.WORKER, (made,))
    why = f"{len(workers)} of {len(spoken)} agents received {signal} from outside"
    return Diagnosis(Verdict.EXTERNAL, (_external(this, signalled, category, Confidence.LIKELY, why),))


def _external(this: Round, ends: Sequence[AgentEnd], category: str, confidence: Confidence, why: str) -> Cause:
    """The signal from outside, with the time of the first agent that got it."""
    times = [when for end in ends if (when := this.scene.clocks.when(end.worker, end.time))]
    proofs = tuple(Proof(end.worker, end.line_no, end.text) for end in ends[:5])
    first = min(times, key=lambda when: when.seconds, default=None)
    return Cause(None, category, ends[0].text, confidence, why, signal=ends[0].signal, time=first, proofs=proofs)


def _failed_before(this: Round, signalled: Sequence[AgentEnd]) -> bool:
    """Whether a process had failed of its own before the first signal: the platform then only cleaned up."""
    scene = this.scene
    times = [when for end in signalled if (when := scene.clocks.when(end.worker, end.time))]
    start = min((when.seconds for when in times), default=None)
    lines = {end.worker: end.line_no for end in signalled}
    for item in this.initiators:
        if item.strength is not Strength.STRONG and item.process.note is None:
            continue
        if item.worker in lines and item.line_no is not None:
            if item.line_no < lines[item.worker]:
                return True
            continue
        when = scene.when(item)
        if item.worker not in lines and (when is None or start is None or when.seconds < start + when.resolution):
            return True
    return False


def find_rendezvous(this: Round) -> Diagnosis | None:
    """The agents could not meet, or lost the store, and no process says more."""
    ends = [end for end in this.final_ends if end.signal is None]
    if not ends:
        return None
    own = [(end, raised) for end in ends if (raised := _own(this, end)) is not None]
    if own:
        return _own_failure(this, own)
    timeouts = [end for end in ends if "RendezvousTimeoutError" in end.text]
    if timeouts:
        return _nobody_came(this, timeouts)
    scene = this.scene
    stores = [end for end in ends if any(_sort(raised) is Sort.STORE_WAITED for raised in end.chain)]
    workers = {end.worker for end in stores}
    spoken = {worker.worker for worker in scene.workers if worker.evidence.log is not None}
    if stores and workers == spoken and not this.victims and not scene.job.missing:
        proofs = tuple(Proof(end.worker, end.line_no, end.text) for end in stores[:5])
        counts = [found for end in stores for raised in end.chain if (found := _JOINED.search(raised.text))]
        if any(len(spoken) < int(found["wanted"]) for found in counts):
            why = f"{counts[0]['joined']} of {counts[0]['wanted']} agents joined, and there {_logs(len(spoken))}"
            message = "A worker that left no log did not join the rendezvous"
            cause = scene.worker_cause(None, "rendezvous_timeout", message, Confidence.LIKELY, why, extra=proofs)
            return Diagnosis(Verdict.WORKER, (cause,))
        category = "elastic_scale_up_rendezvous_failure" if this.scene.failures else "rendezvous_timeout"
        why = "every agent waited in the store for the others until the timeout: all were there, and they did not meet"
        confidence = Confidence.LIKELY if len(stores) > 1 else Confidence.GUESS
        return Diagnosis(Verdict.JOB, (Cause(None, category, stores[0].text, confidence, why, proofs=proofs),))
    return None


def _logs(count: int) -> str:
    return "is 1 log" if count == 1 else f"are {count} logs"


def _sort(raised: Raised) -> Sort | None:
    found = consequence_of(raised.text)
    return found.sort if found else None


def _own(this: Round, end: AgentEnd) -> Raised | None:
    """The exception of this agent that blames no peer's end: a name, an address or a port that does not work."""
    worker = this.scene.worker(end.worker)
    for hit in worker.loose_hits.get(this.number, []):
        if hit.match.signature.category == "dns_failure" and hit.line_no < end.line_no:
            return Raised("", hit.text, (), None, hit.line_no)
    for raised in end.chain:
        if _category(this, raised) in _AT_START:
            return raised
    if not any(item.worker == end.worker and item.part is not Part.SILENT for item in this.failures):
        # It never got as far as starting a process: what it says before its end is the reason.
        for hit in worker.loose_hits.get(this.number, []):
            if hit.match.signature.category in _AT_START:
                return Raised("", hit.text, (), None, hit.line_no)
    if any(consequence_of(raised.text) for raised in end.chain) or consequence_of(end.text):
        return None
    if "Rendezvous" in end.text or not end.chain:
        return None
    return end.chain[0]


_AT_START = frozenset({"port_in_use", "dns_failure", "rendezvous_unreachable", "network_unreachable"})


_FAR = frozenset({"rendezvous_unreachable", "network_unreachable"})


def _category(this: Round, raised: Raised) -> str:
    match = this.scene.matcher.match(raised.message)
    return match.signature.category if match else "python_exception"


def _own_failure(this: Round, own: Sequence[tuple[AgentEnd, Raised]]) -> Diagnosis:
    scene = this.scene
    # Who cannot reach a peer follows where that peer's own agent says what is wrong.
    local = [(item, found) for item, found in own if _category(this, found) not in _FAR]
    own = local or own
    end, raised = own[0]
    match = scene.matcher.match(raised.message)
    category = match.signature.category if match else "python_exception"
    peer = match.groups.get("peer") if match else None
    workers = {item.worker for item, _ in own}
    spoken = {worker.worker for worker in scene.workers if worker.evidence.log is not None}
    proofs = [Proof(item.worker, item.line_no, found.message) for item, found in own[:5]]
    if category == "dns_failure" and workers == spoken:
        why = "no worker can resolve it" if len(workers) > 1 else "the name does not resolve"
        cause = Cause(None, category, raised.message, Confidence.LIKELY, why, host=peer, proofs=tuple(proofs))
        return Diagnosis(Verdict.JOB, (cause,))
    if category in _FAR and (host := _mute_host(this, raised.message, workers)) is not None:
        why = "the others could not reach the rendezvous on it, and its own log has no word of an agent"
        last = scene.worker(host).evidence.log
        extra = [Proof(host, last.last_line, last.last_text)] if last and last.last_line else []
        message = f"No agent came up on {host}"
        cause = scene.worker_cause(host, category, message, Confidence.LIKELY, why, extra=[*extra, *proofs])
        return Diagnosis(Verdict.WORKER, (cause,))
    if category in _FAR and workers == spoken:
        # Everybody fails to reach the same place: what is there is at fault, and it left no log.
        why = "no worker that left a log could reach it"
        cause = scene.worker_cause(None, category, raised.message, Confidence.LIKELY, why, extra=proofs, host=peer)
        return Diagnosis(Verdict.WORKER, (cause,))
    if len(workers) == 1:
        why = "its agent failed by itself, before or beside its processes"
        confidence = Confidence.CERTAIN if category == "port_in_use" else Confidence.LIKELY
        cause = scene.worker_cause(end.worker, category, raised.message, confidence, why, extra=proofs, host=peer)
        return Diagnosis(Verdict.WORKER, (cause,))
    if workers == spoken:
        cause = Cause(
            None, category, raised.message, Confidence.LIKELY, "the same on every agent", proofs=tuple(proofs)
        )
        return Diagnosis(Verdict.JOB, (cause,))
    candidates = tuple(
        scene.worker_cause(item.worker, category, found.message, Confidence.GUESS, "its agent failed by itself",
                           extra=[Proof(item.worker, item.line_no, found.message)])
        for item, found in own
    )  # fmt: skip
    return Diagnosis(Verdict.UNDECIDED, candidates=candidates)


def _mute_host(this: Round, message: str, failed: set[str]) -> str | None:
    """The worker at whose address nobody answers, where it is one of those with a log and its agent never spoke."""
    match = _PLACE.search(message)
    if match is None:
        return None
    host = match["host"]
    for worker in this.scene.workers:
        named = host == worker.worker or host.startswith(f"{worker.worker}.") or host in worker.addresses
        if named and worker.worker not in failed and worker.evidence.log is not None and not worker.elastic:
            return worker.worker
    return None


def _nobody_came(this: Round, timeouts: Sequence[AgentEnd]) -> Diagnosis:
    """`RendezvousTimeoutError`: fewer workers joined than were asked for."""
    scene = this.scene
    missing = list(scene.job.missing)
    proofs = [Proof(end.worker, end.line_no, end.text) for end in timeouts[:5]]
    # A worker whose log stops before any agent spoke never got as far as the rendezvous.
    stuck = [worker.worker for worker in this.silent_workers() if not worker.elastic]
    name = missing[0] if len(missing) == 1 else stuck[0] if len(stuck) == 1 and not missing else None
    why = "the others waited for it in the rendezvous until the timeout"
    message = f"{name or 'A worker that left no log'} did not join the rendezvous"
    # Where every agent waited by itself, they may as well have waited in two places.
    spoken = {worker.worker for worker in scene.workers if worker.evidence.log is not None}
    alone = len(spoken) > 1 and {end.worker for end in timeouts} == spoken and name is None
    confidence = Confidence.GUESS if alone else Confidence.LIKELY
    cause = scene.worker_cause(name, "rendezvous_timeout", message, confidence, why, extra=proofs)
    return Diagnosis(Verdict.WORKER, (cause,))
