"""Hand-made diagnoses with known contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atlctl.diagnosis.logline import When
from atlctl.diagnosis.result import Cause, Confidence, Diagnosis, Followed, Proof, Verdict, WorkerReport
from atlctl.diagnosis.signatures import Category, LineRole, Signature, Text
from atlctl.diagnosis.telling.guide import Guide, Manner
from atlctl.diagnosis.telling.people import tell_people
from atlctl.diagnosis.tracebacks import Frame
from atlctl.i18n import Language, Message, joined, plural
from atlctl.jobs.panel import Panel

#: 2026-11-20T17:47:12.905Z, on a clock of milliseconds and on one of whole seconds.
START = 1795196832.905
AT = When(START, 0.001)
SECOND = When(1795196832.0, 1.0)


def after(seconds: float, resolution: float = 0.001) -> When:
    """The time `seconds` after START."""
    return When(START + seconds, resolution)


def _category(ident: str, title: str, title_zh: str, hardware: bool = False) -> Category:
    meaning, advice = Text(f"What {ident} means.", f"{ident} 的含义。"), Text(f"Do {ident}.", f"处理 {ident}。")
    return Category(ident, Text(title, title_zh), meaning, advice, hardware)


CATEGORIES = {
    item.id: item
    for item in (
        _category("python_exception", "Python exception", "Python 异常"),
        _category("killed", "Killed (SIGKILL)", "被强制结束（SIGKILL）"),
        _category("hang", "A rank hangs", "某个 rank 挂起"),
        _category("gpu_ecc", "GPU memory error", "显存错误", hardware=True),
    )
}


def signature(
    ident: str, category: str, advice: str, advice_zh: str = "先看这里。", hardware: bool = False
) -> Signature:
    meaning = Text(f"meaning of {ident}", f"{ident} 的含义")
    return Signature(
        ident, category, LineRole.ROOT, "x", ("xxxx",), meaning, Text(advice, advice_zh), hardware=hardware
    )


GUIDE = Guide(CATEGORIES, [signature("magic", "python_exception", "Check the shard.", "检查该分片。")])

MESSAGE = "ValueError: bad magic in shard 3"
CAUSE = Cause(
    worker="worker-1",
    category="python_exception",
    message=MESSAGE,
    confidence=Confidence.CERTAIN,
    why=joined(
        [
            Message("only this rank failed by itself"),
            plural("the other one lost its peer", "the other {n} lost their peer", 3),
        ]
    ),
    rank=3,
    local_rank=1,
    attempt=0,
    exit_code=1,
    exception="ValueError",
    frame=Frame("/job/data.py", 38, "read_header"),
    time=AT,
    signature="magic",
    proofs=(Proof("worker-1", 25, MESSAGE), Proof("worker-1", None, MESSAGE, "/e/attempt_0/1/error.json")),
)
NOTE = (
    "E1120 17:47:14.864000 1 torch/distributed/elastic/multiprocessing/api.py:1002] "
    "failed (exitcode: -9) local_rank: 1 (pid: 13) of binary: /opt/python"
)
KILLED = replace(
    CAUSE, category="killed", message=NOTE, exception=None, frame=None, exit_code=-9, signal="SIGKILL", signature="",
    proofs=(Proof("worker-1", 41, NOTE),),
)  # fmt: skip
PEER_GONE = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4242"


def report(worker: int, part: str, said: str, first: When | None, **values: Any) -> WorkerReport:
    proof = Proof(f"worker-{worker}", 7, said)
    whole: dict[str, Any] = {"processes": 2, "failed": 2, "rounds": 1, "proof": proof} | values
    return WorkerReport(f"worker-{worker}", worker, part, said, first, **whole)


FOLLOWED = Followed(
    Message("gloo: connection closed by a peer"),
    3,
    ("worker-0", "worker-1"),
    (0, 1, 2),
    after(1.04),
    Proof("worker-0", 7, PEER_GONE),
)
ONE = Diagnosis(
    Verdict.RANK,
    (CAUSE,),
    cascade=(FOLLOWED,),
    workers=(report(0, "victim", PEER_GONE, after(1.04)), report(1, "initiator", MESSAGE, AT)),
    remarks=(Message("never seen: {names}", names="worker-2"),),
)


def found(verdict: Verdict, *causes: Cause, **values: Any) -> Diagnosis:
    return Diagnosis(verdict, tuple(causes), **values)


def doubtful(*causes: Cause, **values: Any) -> Diagnosis:
    return Diagnosis(Verdict.UNDECIDED, candidates=tuple(causes), **values)


def place(proof: Proof) -> str:
    return f"{proof.worker}:{proof.line_no}" if proof.line_no is not None else str(proof.file)


def command(cause: Cause) -> str | None:
    return f"look at {cause.worker}" if cause.worker else None


def told(diagnosis: Diagnosis, language: Language = "en", verbose: bool = False, guide: Guide = GUIDE) -> Panel:
    return tell_people(diagnosis, Manner(language, verbose, guide, place, command))


def title(diagnosis: Diagnosis, language: Language = "en") -> str:
    return "".join(piece.text for piece in told(diagnosis, language).title)


def rows(telling: Panel) -> dict[str, list[str]]:
    return {row.label: list(row.lines) for row in telling.rows}


def lists(telling: Panel) -> dict[str, list[Sequence[str]]]:
    return {listing.label: [line.cells for line in listing.lines] for listing in telling.listings}
