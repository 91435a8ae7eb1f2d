"""Logs without a word of torchelastic's: other launchers, pieces of logs, scripts that were started by hand."""

from __future__ import annotations

import re

from atlctl.diagnosis.cause.scene import Round, Scene
from atlctl.diagnosis.consequence import Sort, consequence_of
from atlctl.diagnosis.processes import WorkerRounds
from atlctl.diagnosis.reading.reader import Hit, LogFacts
from atlctl.diagnosis.reading.traces import Trace
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict
from atlctl.diagnosis.signatures.model import Role

#: Lines behind a traceback without a launcher's report in which it still counts as the end of the log.
_END = 60
_MAX_DEATHS = 16
_NUMBERS = re.compile(r"\d+")


def find_loose(this: Round) -> Diagnosis | None:
    """Failures that no process is known for: a verdict where the place does not matter, else candidates."""
    scene = this.scene
    raw = [worker for worker in scene.workers if not worker.elastic]
    traces = [(worker.worker, trace) for worker in raw for trace in worker.loose_traces.get(this.number, [])
              if _ends(scene, worker.worker, trace)]  # fmt: skip
    hits = [(worker.worker, hit) for worker in raw for hit in _last_hits(worker, this.number)]
    roots = [(name, hit) for name, hit in hits if hit.match.signature.role in (Role.ROOT, Role.AMBIGUOUS) or _code(hit)]
    located = [(name, hit) for name, hit in hits if hit.match.groups.get("peer")]
    candidates: list[Cause] = []
    for name, trace in traces:
        first = trace.chain[0]
        match = scene.matcher.match(first.message)
        category = match.signature.category if match else "python_exception"
        if category == "dns_failure":
            cause = Cause(None, category, first.message, Confidence.LIKELY, "the name does not resolve",
                          proofs=(Proof(name, first.line_no, first.message),))  # fmt: skip
            return Diagnosis(Verdict.JOB, (cause,))
        if consequence_of(first.text) is None:
            candidates.append(_candidate(name, category, first.message, first.line_no, first.exception))
    refused = next(((name, hit) for name, hit in located if "refused" in hit.text), None)
    if (refused is not None and not candidates) or (refused and _all_nccl(candidates)):
        assert refused is not None
        return _peer(this, *refused)
    if not candidates and (everywhere := _same_everywhere(this, roots)) is not None:
        return everywhere
    candidates += [
        _candidate(name, hit.match.signature.category, hit.text, hit.line_no, None) for name, hit in roots[:8]
    ]
    if not candidates:
        candidates = [
            _hit(name, hit)
            for name, hit in hits[:8]
            if (why := consequence_of(hit.text)) and why.sort in (Sort.WAITED, Sort.LEFT, Sort.STORE_WAITED)
        ]
        candidates += [
            _candidate(name, "peer_lost", trace.last.message, trace.last.line_no, trace.last.exception)
            for name, trace in traces[:8]
        ]
    return Diagnosis(Verdict.UNDECIDED, candidates=tuple(candidates[:16])) if candidates else None


def reported_deaths(scene: Scene) -> Diagnosis | None:
    """The deaths that launchers, shells and the kernel report, where no failure is known otherwise.

    Those of rounds before the last, and those after which the training went on for long, ended nothing.
    """
    found: list[Cause] = []
    for worker in scene.workers:
        log = worker.evidence.log or LogFacts()
        first = max(log.outlived, *worker.rounds.ends[: worker.rounds.seen - 1], 0)
        told = [*((hit.line_no, hit.text) for hit in log.hits if hit.match.death)]
        told += [(trace.last.line_no, trace.last.message) for trace in log.traces]
        found += [
            _candidate(worker.worker, match.signature.category, text, line_no, None)
            for line_no, text in sorted(told)
            if line_no > first and (match := scene.matcher.match(text)) is not None and match.death
        ]
    return Diagnosis(Verdict.UNDECIDED, candidates=tuple(found[-_MAX_DEATHS:])) if found else None


def _same_everywhere(this: Round, roots: list[tuple[str, Hit]]) -> Diagnosis | None:
    """The same words at the end of every worker's log, and of more than one."""
    last = dict(roots)
    workers = {worker.worker for worker in this.scene.workers}
    if len(workers) < 2 or set(last) != workers or len({_NUMBERS.sub("#", hit.text) for hit in last.values()}) > 1:
        return None
    hit = roots[-1][1]
    why = f"the same failure on all {len(workers)} workers"
    cause = Cause(None, hit.match.signature.category, hit.text, Confidence.LIKELY, why,
                  proofs=tuple(Proof(name, hit.line_no, hit.text) for name, hit in list(last.items())[:3]))  # fmt: skip
    return Diagnosis(Verdict.JOB, (cause,))


def _last_hits(worker: WorkerRounds, number: int) -> list[Hit]:
    """Hits behind which nothing shows the program going on, of processes without another end as well."""
    log = worker.evidence.log
    own = [hit for process in worker.of_round(number) if not process.failed for hit in process.hits]
    found = sorted([*worker.loose_hits.get(number, []), *own], key=lambda hit: hit.line_no)
    return [hit for hit in found if log is not None and hit.line_no > log.last_activity]


def _code(hit: Hit) -> bool:
    """Whether a launcher reports that a process ended in failure, without saying which."""
    return hit.match.groups.get("code", "0") != "0"


def _all_nccl(candidates: list[Cause]) -> bool:
    return all("NCCL" in cause.message for cause in candidates)


def _peer(this: Round, name: str, hit: Hit) -> Diagnosis:
    peer = hit.match.groups.get("peer")
    owner = next(
        (worker.worker for worker in this.scene.workers if peer in worker.addresses),
        None,
    )
    cause = this.scene.worker_cause(
        owner, hit.match.signature.category, hit.text, Confidence.LIKELY, f"{name} could not connect to {peer}",
        extra=[Proof(name, hit.line_no, hit.text)], host=peer,
    )  # fmt: skip
    return Diagnosis(Verdict.WORKER, (cause,))


def _ends(scene: Scene, worker: str, trace: Trace) -> bool:
    """Whether this traceback is the last thing that the log tells: a handled one has the training behind it."""
    log = scene.worker(worker).evidence.log
    if log is None or trace.agent or trace.thread:
        return False
    return log.last_line - trace.last.line_no <= _END and log.last_activity < trace.line_no


def _hit(worker: str, hit: Hit) -> Cause:
    return _candidate(worker, hit.match.signature.category, hit.text, hit.line_no, None)


def _candidate(worker: str, category: str, message: str, line_no: int, exception: str | None) -> Cause:
    why = "the line does not say which process printed it"
    return Cause(worker, category, message, Confidence.GUESS, why, exception=exception,
                 proofs=(Proof(worker, line_no, message),))  # fmt: skip
