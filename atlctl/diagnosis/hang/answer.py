"""A look at the ranks as the answer for a job that goes on, and whose logs name no failure."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from atlctl.diagnosis.hang.frames import user_frame
from atlctl.diagnosis.hang.judge import STUCK, Judged, What
from atlctl.diagnosis.hang.scene import Scene, waited
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Proof, Verdict

#: The categories of what a look finds: a process that lives does not reach what its peers wait in, or lives no more; or
#: its start takes very long.
HANG, START = "hang", "slow_start"
#: What `candidates` lists at most.
_MAX_STUCK = 16
#: Seconds without a line after which a job does not go on.
QUIET = 30.0
#: Frames of a stack that are shown as evidence, the innermost first.
_FRAMES = 6


def joined(found: Diagnosis, scene: Scene, quiet: float | None) -> Diagnosis:
    """`found`, with what the ranks are doing. Where the logs have an answer, or cannot decide between several, that
    stands, and the look is a remark: ranks that wait then wait for those that failed.

    `quiet`: seconds since the last line of any log, None where that is not known. A rank that others wait for in a job
    that still talks is a guess: saving and evaluating look like that, too.
    """
    if found.verdict is Verdict.NONE and scene.what is What.STARTING:
        stuck = [rank for rank in scene.ranks if rank.what is What.STARTING and STUCK <= rank.age < inf]
        if stuck:
            found = replace(
                found, verdict=Verdict.UNDECIDED, candidates=tuple(_cause(rank, scene) for rank in stuck[:_MAX_STUCK])
            )
    if found.verdict is not Verdict.NONE or not scene.culprits:
        return replace(found, remarks=(*found.remarks, _remark(scene)))
    causes = tuple(_cause(rank, scene) for rank in scene.culprits)
    remarks = ["the logs name no failure: this is what the ranks are doing now"]
    if quiet is None or quiet < QUIET:
        causes = tuple(replace(cause, confidence=Confidence.GUESS) for cause in causes)
        if quiet is not None:
            remarks.append(f"the last line of a log is {max(0.0, quiet):.0f} s old: it may only be slow")
    one = Verdict.RANK if causes[0].rank is not None else Verdict.WORKER
    verdict = one if len(causes) == 1 else Verdict.RANKS
    return replace(found, verdict=verdict, root_causes=causes, remarks=(*found.remarks, *remarks))


def _remark(scene: Scene) -> str:
    ranks = [str(rank.rank) for rank in scene.culprits if rank.rank is not None]
    who = f" (rank {', '.join(ranks[:8])}{' and more' if len(ranks) > 8 else ''})" if ranks else ""
    return f"what the ranks are doing was looked at; {scene.what}{who}; {scene.why}"


def _cause(rank: Judged, scene: Scene) -> Cause:
    report = rank.report
    proofs = [Proof(rank.worker, None, str(frame)) for frame in rank.frames[:_FRAMES]] if rank.worker else []
    if rank.worker and report is not None and report.looks:
        at = report.looks[-1]
        place = f" in {at.syscall}" if at.syscall else f" at {at.wchan}" if at.wchan else ""
        proofs.append(
            Proof(rank.worker, None, f"/proc/{report.pid}: state {at.state}{place}, {report.main_ticks} ticks of CPU")
        )
    return Cause(
        worker=rank.worker,
        category=START if rank.what is What.STARTING else HANG,
        message=str(rank.what),
        confidence=rank.confidence or Confidence.GUESS,
        why=rank.why + waited(scene.ranks, scene.seconds),
        rank=rank.rank,
        local_rank=report.number("local_rank") if report is not None else None,
        frame=user_frame(rank.frames),
        proofs=tuple(proofs),
    )
