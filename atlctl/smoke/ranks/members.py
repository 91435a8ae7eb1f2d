"""Which ranks there are: one for each GPU that is tested, one for each worker where there is no GPU at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from atlctl.i18n import Message
from atlctl.smoke.context import NO_RESULT, OpenCheck, Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.session import words_of

#: Seconds that a worker may take to import torch: from a disk of a network it does take long.
IMPORT = 90.0
_DATA = "ranks"
#: What is kept of what a worker tells of its torch.
_TOLD = ("ok", "error", "absent", "torch", "cuda", "hip", "nccl", "gloo", "python", "file", "seconds")

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """One rank. `number`: its place among all ranks of this smoke test, the same in every stage."""

    number: int
    worker: str
    gpu: int | None = None
    uuid: str = ""

    @property
    def culprit(self) -> Culprit:
        kind: Any = "rank" if self.gpu is None else "gpu"
        return Culprit(kind, self.worker, gpu=self.gpu, rank=self.number)

    @property
    def name(self) -> str:
        """For evidence: `rank 3 on worker-3`."""
        if self.gpu is None:
            return Message("rank {rank} on {worker}", rank=self.number, worker=self.worker)
        return Message("rank {rank} on {worker}, GPU {gpu}", rank=self.number, worker=self.worker, gpu=self.gpu)


@dataclass(frozen=True, slots=True)
class Without:
    """Why a worker has no ranks. `due`: it should have some. `covered`: another has its GPUs, and is tested."""

    why: str
    due: bool = True
    covered: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The members, and for each worker that has none, why."""

    members: tuple[Member, ...]
    without: Mapping[str, Without]


def choose(
    workers: Sequence[str],
    torch: Mapping[str, Fields],
    facts: Mapping[str, Fields],
    gpus: Mapping[str, Sequence[int]] | None,
    cramped: Mapping[str, str] = MappingProxyType({}),
) -> Chosen:
    """`torch`: what each worker told of its torch; `facts`: with the GPUs of each; `gpus`: which the user selected;
    `cramped`: workers that have too little memory for ranks, and why."""
    without: dict[str, Without] = {}
    #: Where no worker has torch, the checks that need it do not apply.
    somewhere = any(told.get("ok") is True for told in torch.values())
    having: dict[str, list[tuple[int, str]]] = {}
    for worker in workers:
        told = torch.get(worker, {})
        if worker in cramped:
            without[worker] = Without(cramped[worker])
            continue
        if told.get("ok") is not True:
            why = words_of(told.get("error")) or Message("it reported nothing")
            without[worker] = Without(
                Message("no torch: {why}", why=why), due=somewhere or told.get("absent") is not True
            )
            continue
        found = _gpus(facts.get(worker, {}))
        having[worker] = [one for one in found if gpus is None or one[0] in gpus.get(worker, ())]
        if gpus is not None:
            if worker not in gpus:
                without[worker] = Without(Message("no GPU of it was selected"), due=False)
            elif missing := sorted(set(gpus[worker]) - {number for number, _ in found}):
                without[worker] = Without(Message("it has no GPU {numbers}", numbers=", ".join(map(str, missing))))
        if having[worker] and not (told.get("cuda") or told.get("hip")):
            without[worker] = Without(Message("it has GPUs, and a torch that was built without CUDA"))
            having[worker] = []
    # Workers of one machine may all see its GPUs. NCCL takes each GPU once.
    owners: dict[str, str] = {}
    for worker, found in having.items():
        having[worker] = [
            (number, uuid) for number, uuid in found if owners.setdefault(uuid or worker, worker) == worker
        ]
        if found and not having[worker]:
            other = owners[found[0][1]]
            why = Message("its GPUs are those of {worker}, and tested there", worker=other)
            without.setdefault(worker, Without(why, due=False, covered=True))
    members: list[Member] = []
    on_gpus = any(having.values()) or gpus is not None
    for worker, found in having.items():
        if on_gpus:
            members += [Member(len(members) + place, worker, *gpu) for place, gpu in enumerate(found)]
            if not found:
                without.setdefault(worker, Without(Message("it has no GPU, and other workers have"), due=False))
        else:
            without.pop(worker, None)
            members.append(Member(len(members), worker))
    return Chosen(tuple(members), without)


def _gpus(facts: Fields) -> list[tuple[int, str]]:
    """Number and UUID of each GPU; what is not understood is left out."""
    told = facts.get("gpus")
    if not isinstance(told, list):
        return []
    found = [gpu for gpu in told if isinstance(gpu, dict) and isinstance(gpu.get("index"), int)]
    return [(gpu["index"], str(gpu.get("uuid") or "")) for gpu in found]


async def chosen(run: Run) -> Chosen:
    """The ranks of this run; the workers are asked for their torch once."""
    data = run.report.data.setdefault(_DATA, {"torch": {}, "left_out": {}})
    living = run.session.living()
    unknown = [
        worker
        for worker in living
        if worker not in data["torch"] and not run.report.workers.get(worker, {}).get("left_out")
    ]
    if unknown:
        answers = await run.session.ask({worker: {"cmd": "torch"} for worker in unknown}, IMPORT)
        for worker, answer in answers.items():
            late = Message("its import is not done yet") if answer.late else answer.problem
            told = answer.fields or {"ok": False, "error": late}
            data["torch"][worker] = {key: told[key] for key in _TOLD if key in told}
    cramped = {name: told["left_out"] for name, told in run.report.workers.items() if told.get("left_out")}
    return choose(living, data["torch"], run.facts, run.options.gpus, cramped)


def unjudged(check: str, chosen: Chosen) -> list[Finding]:
    """A worker that needs no ranks is said once: by the first check."""
    return [
        Finding(check, Severity.NOT_JUDGED, Culprit("worker", worker), without.why, advice=_ADVICE)
        for worker, without in chosen.without.items()
        if not without.due and not without.covered
    ]


def account(run: Run, stage: OpenCheck, chosen: Chosen, took_part: Collection[Member]) -> None:
    """Who was tested: workers all of whose ranks `took_part` to the end. Why the others were not, as far as known."""
    out: Mapping[str, str] = run.report.data[_DATA]["left_out"]
    missing = [member for member in chosen.members if member not in took_part]
    for worker, without in chosen.without.items():
        if without.due:
            stage.untested[worker], stage.advice[worker] = without.why, _ADVICE
        else:
            stage.tested.add(worker)
    for member in missing:
        why = out.get(str(member.number)) or (
            Message("not started: its network is at fault, see mesh") if member.worker in _apart(run) else NO_RESULT
        )
        stage.untested.setdefault(member.worker, why)
    stage.tested |= {member.worker for member in chosen.members} - set(stage.untested)


def leave_out(run: Run, members: Iterable[Member], why: str) -> None:
    """Ranks that are dead or hang: the stages that follow go on without them."""
    for member in members:
        run.report.data[_DATA]["left_out"][str(member.number)] = Message("{what}: {why}", what=member.name, why=why)


def grouped(run: Run, members: Sequence[Member]) -> list[Member]:
    """Those that can form a group: not left out before, on workers that the network checks found in order."""
    gone, apart = run.report.data[_DATA]["left_out"], _apart(run)
    return [member for member in members if str(member.number) not in gone and member.worker not in apart]


def _apart(run: Run) -> set[str]:
    return cut_off([f for f in run.report.findings if f.check == "mesh" and f.severity is Severity.FAIL])


def cut_off(findings: Iterable[Finding]) -> set[str]:
    """Workers without which no two of the rest have a broken link: those that are at fault, then for every link left
    the worker with most of them."""
    accused = [finding.culprit for finding in findings if finding.culprit is not None]
    out = {culprit.worker for culprit in accused if culprit.kind == "worker" and culprit.worker}
    links = [{c.worker, c.peer} - {None} for c in accused if c.kind == "link"]
    while left := [link for link in links if not link & out]:
        names = sorted({name for link in left for name in link if name})
        if not names:
            break
        out.add(max(names, key=lambda name: sum(name in link for link in left)))
    return {name for name in out if name}


def versions(run: Run, members: Iterable[Member]) -> dict[str, list[str]]:
    """Workers of these ranks by the version of their torch."""
    told = run.report.data[_DATA]["torch"]
    found: dict[str, list[str]] = {}
    for worker in dict.fromkeys(member.worker for member in members):
        found.setdefault(str(told.get(worker, {}).get("torch")), []).append(worker)
    return found


_ADVICE = Message("a Python with torch in PATH, or GPUs that it sees, let this worker be tested")
