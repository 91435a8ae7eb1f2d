"""All of a job on one table: its workers, and per round who failed, who followed, who is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from atlctl.diagnosis.clocks import Clocks, When
from atlctl.diagnosis.evidence import JobEvidence
from atlctl.diagnosis.failures import Failure, Judge, Part
from atlctl.diagnosis.joining import collect_all
from atlctl.diagnosis.platform import PlatformState
from atlctl.diagnosis.processes import AgentEnd, Process, WorkerRounds
from atlctl.diagnosis.reading.collectives import Collective
from atlctl.diagnosis.reading.reader import LogFacts
from atlctl.diagnosis.result import Cause, Confidence, Gpu, Proof
from atlctl.diagnosis.signatures.match import Matcher


@dataclass
class Scene:
    """`failures` are judged processes of all rounds, in the order of workers."""

    job: JobEvidence
    workers: list[WorkerRounds]
    failures: list[Failure]
    clocks: Clocks
    matcher: Matcher

    @cached_property
    def last_round(self) -> int:
        return max((worker.rounds.seen - 1 for worker in self.workers), default=0)

    def when(self, failure: Failure) -> When | None:
        return self.clocks.when(failure.worker, failure.time)

    def worker(self, name: str) -> WorkerRounds:
        return next(worker for worker in self.workers if worker.worker == name)

    def attempt(self, failure: Failure) -> int | None:
        process = failure.process
        return process.attempt if process.attempt is not None else process.round

    def cause(
        self,
        failure: Failure,
        confidence: Confidence,
        why: str,
        *,
        category: str | None = None,
        extra: Sequence[Proof] = (),
    ) -> Cause:
        """A judged process as a root cause."""
        platform = self.worker(failure.worker).evidence.platform
        return Cause(
            worker=failure.worker,
            category=category or failure.category or "unknown",
            message=failure.message,
            confidence=confidence,
            why=why,
            rank=failure.rank,
            local_rank=failure.local_rank,
            attempt=self.attempt(failure),
            node=platform.node if platform else None,
            host_ip=platform.host_ip if platform else None,
            gpu=_gpu(failure, platform),
            exit_code=failure.exit_code,
            signal=failure.signal,
            exception=failure.exception,
            detail=failure.detail,
            frame=failure.frame,
            time=self.when(failure),
            signature=failure.signature,
            proofs=_apart((*proofs(failure), *extra)),
        )

    def worker_cause(
        self,
        name: str | None,
        category: str,
        message: str,
        confidence: Confidence,
        why: str,
        *,
        extra: Sequence[Proof] = (),
        host: str | None = None,
    ) -> Cause:
        """A whole worker as a root cause; `name` is None where it left no log."""
        found = next((worker for worker in self.workers if worker.worker == name), None)
        platform = found.evidence.platform if found else None
        return Cause(
            worker=name,
            category=category,
            message=message,
            confidence=confidence,
            why=why,
            node=platform.node if platform else None,
            host_ip=platform.host_ip if platform else None,
            host=host,
            exit_code=platform.exit_code if platform else None,
            proofs=tuple(extra),
        )


def _gpu(failure: Failure, platform: PlatformState | None) -> Gpu | None:
    """The GPU of a process: as its own line names it, else as the platform lists it for its local rank."""
    groups = failure.hit.match.groups if failure.hit else {}
    if "pci" in groups or "uuid" in groups:
        return Gpu(None, groups.get("uuid"), groups.get("pci"))
    for item in platform.gpus if platform else ():
        if failure.local_rank is not None and failure.local_rank in (item.local_rank, item.index):
            return Gpu(item.index, item.uuid, item.pci)
    return None


def proofs(failure: Failure) -> list[Proof]:
    """Where a failure is to be read: its words, then torchrun's report, then its error file."""
    process = failure.process
    found: dict[int | str, Proof] = {}
    if failure.line_no:
        found[failure.line_no] = Proof(failure.worker, failure.line_no, failure.message)
    if process.note is not None:
        found.setdefault(process.note.line_no, Proof(failure.worker, process.note.line_no, process.note.text))
    elif process.entry is not None:
        entry = process.entry
        text = f"exitcode: {entry.exit_code} (pid: {entry.pid})"
        found.setdefault(entry.line_no, Proof(failure.worker, entry.line_no, text))
    if process.record is not None and process.record_path:
        found[process.record_path] = Proof(failure.worker, None, process.record.message, process.record_path)
    return list(found.values())


def build(job: JobEvidence, matcher: Matcher) -> Scene:
    """Puts the evidence together and judges every process by itself."""
    workers = collect_all(job.workers)
    failures = []
    for worker in workers:
        judge = Judge(matcher, worker.evidence.log or LogFacts())
        failures += [judge.judge(process) for process in worker.processes]
    return Scene(job, workers, failures, Clocks(job.workers), matcher)


@dataclass
class Round:
    """One round of the job. `silent` are workers that have a log and say nothing of an end in this round."""

    scene: Scene
    number: int
    failures: list[Failure] = field(default_factory=list)

    @classmethod
    def of(cls, scene: Scene, number: int) -> Round:
        return cls(scene, number, [item for item in scene.failures if item.process.round == number])

    def of_part(self, part: Part) -> list[Failure]:
        return [item for item in self.failures if item.part is part]

    @cached_property
    def initiators(self) -> list[Failure]:
        return self.of_part(Part.INITIATOR)

    @cached_property
    def victims(self) -> list[Failure]:
        return self.of_part(Part.VICTIM)

    @cached_property
    def final_ends(self) -> list[AgentEnd]:
        """Ends of agents in this round: those of the last one of their worker."""
        return [
            end
            for worker in self.scene.workers
            for end in worker.ends
            if worker.rounds.ended_by(end.line_no) == self.number or worker.rounds.of(end.line_no) == self.number
        ]

    @cached_property
    def statements(self) -> list[Collective]:
        return [
            said
            for worker in self.scene.workers
            if worker.evidence.log
            for said in worker.evidence.log.collectives
            if worker.rounds.of(said.line_no) == self.number
        ]

    def silent_workers(self) -> list[WorkerRounds]:
        """Workers with a log in which nobody says that anything ended in this round."""
        loud = {item.worker for item in self.failures if item.part is not Part.SILENT}
        loud |= {end.worker for end in self.final_ends}
        return [
            worker
            for worker in self.scene.workers
            if worker.worker not in loud and worker.evidence.log is not None and worker.rounds.count > self.number
        ]


def name_process(process: Process) -> str:
    """`rank 3 (local rank 1)`, as far as it is known."""
    if process.rank is not None and process.local_rank is not None:
        return f"rank {process.rank} (local rank {process.local_rank})"
    if process.rank is not None:
        return f"rank {process.rank}"
    return f"local rank {process.local_rank}" if process.local_rank is not None else f"process {process.pid}"


def _apart(found: Sequence[Proof]) -> tuple[Proof, ...]:
    """Each line once, where it stands first."""
    kept: dict[tuple[str, str | None, int | str], Proof] = {}
    for proof in found:
        kept.setdefault((proof.worker, proof.file, proof.line_no or proof.text), proof)
    return tuple(kept.values())
