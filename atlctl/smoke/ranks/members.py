"""Choose the test's ranks: one for each tested GPU, or one for each worker if no worker has a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from atlctl.i18n import Message
from atlctl.jobs.fields import entries
from atlctl.smoke.context import NO_RESULT, OpenCheck, Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.session import words_of

#: Timeout in seconds for importing torch, which is slow from a network file system.
IMPORT = 90.0
_DATA = "ranks"
#: The stored fields of a worker's torch report.
_TOLD = ("ok", "error", "absent", "torch", "cuda", "hip", "nccl", "gloo", "python", "file", "seconds")

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """One rank. `number`: its position among all ranks of this smoke test, the same in every stage."""

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
        """The rank's name in evidence: `rank 3 on worker-3`."""
        if self.gpu is None:
            return Message("rank {rank} on {worker}", rank=self.number, worker=self.worker)
        return Message("rank {rank} on {worker}, GPU {gpu}", rank=self.number, worker=self.worker, gpu=self.gpu)


@dataclass(frozen=True, slots=True)
class Without:
    """Why a worker has no ranks. `due`: it should have ranks. `covered`: its GPUs are tested on another worker."""

    why: str
    due: bool = True
    covered: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The members, and the reason for each worker without members."""

    members: tuple[Member, ...]
    without: Mapping[str, Without]


def choose(
    workers: Sequence[str],
    torch: Mapping[str, Fields],
    facts: Mapping[str, Fields],
    gpus: Mapping[str, Sequence[int]] | None,
    cramped: Mapping[str, str] = MappingProxyType({}),
) -> Chosen:
    """Choose the ranks. `torch`: each worker's torch report; `facts`: include its GPUs; `gpus`: the user's selection;
    `cramped`: workers with too little memory for ranks, with the reason."""
    without: dict[str, Without] = {}
    #: If no worker has torch, the checks that need it do not apply.
    somewhere = any(told.get("ok") is True for told in torch.values())
    having: dict[str, list[tuple[int, str]]] = {}
    for worker in workers:
        told = torch.get(worker, {})
        if worker in cramped:
            without[worker] = Without(cramped[worker])
            continue
        if told.get("ok") is not True:
            why = words_of(told.get("error")) or Message("it reported nothing")
            due = somewhere or told.get("absent") is not True
            without[worker] = Without(Message("no torch: {why}", why=why), due=due)
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
    # Workers on one machine may all see the same GPUs. NCCL accepts each GPU only once.
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
    """Index and UUID of each GPU; malformed entries are left out."""
    found = [gpu for gpu in entries(facts.get("gpus")) if isinstance(gpu.get("index"), int)]
    return [(gpu["index"], str(gpu.get("uuid") or "")) for gpu in found]


async def chosen(run: Run) -> Chosen:
    """The ranks of this run. Each worker is asked about torch only once."""
    data = run.report.data.setdefault(_DATA, {"torch": {}, "left_out": {}})
    living = run.session.living()
    out = {name for name, told in run.report.workers.items() if told.get("left_out")}
    unknown = [worker for worker in living if worker not in data["torch"] and worker not in out]
    if unknown:
        answers = await run.session.ask({worker: {"cmd": "torch"} for worker in unknown}, IMPORT)
        for worker, answer in answers.items():
            late = Message("its import is not done yet") if answer.late else answer.problem
            told = answer.fields or {"ok": False, "error": late}
            data["torch"][worker] = {key: told[key] for key in _TOLD if key in told}
    cramped = {name: run.report.workers[name]["left_out"] for name in out}
    return choose(living, data["torch"], run.facts, run.options.gpus, cramped)


def unjudged(check: str, chosen: Chosen) -> list[Finding]:
    """Findings for workers that need no ranks; only the first check reports them."""
    return [
        Finding(check, Severity.NOT_JUDGED, Culprit("worker", worker), without.why, advice=_ADVICE)
        for worker, without in chosen.without.items()
        if not without.due and not without.covered
    ]


def account(run: Run, stage: OpenCheck, chosen: Chosen, took_part: Collection[Member]) -> None:
    """Record the tested workers (all of their ranks `took_part`), and why the others were not tested, if known."""
    out: Mapping[str, str] = run.report.data[_DATA]["left_out"]
    missing = [member for member in chosen.members if member not in took_part]
    for worker, without in chosen.without.items():
        if without.due:
            stage.untested[worker], stage.advice[worker] = without.why, _ADVICE
        else:
            stage.tested.add(worker)
    for member in missing:
        network = Message("not started: its network is at fault, see mesh")
        why = out.get(str(member.number)) or (network if member.worker in _apart(run) else NO_RESULT)
        stage.untested.setdefault(member.worker, why)
    stage.tested |= {member.worker for member in chosen.members} - set(stage.untested)


def leave_out(run: Run, members: Iterable[Member], why: str) -> None:
    """Exclude dead or hung ranks from the following stages."""
    for member in members:
        run.report.data[_DATA]["left_out"][str(member.number)] = Message("{what}: {why}", what=member.name, why=why)


def grouped(run: Run, members: Sequence[Member]) -> list[Member]:
    """The members that can form a group: not excluded before, and not on workers with a network fault."""
    gone, apart = run.report.data[_DATA]["left_out"], _apart(run)
    return [member for member in members if str(member.number) not in gone and member.worker not in apart]


def _apart(run: Run) -> set[str]:
    return cut_off([f for f in run.report.findings if f.check == "mesh" and f.severity is Severity.FAIL])


def cut_off(findings: Iterable[Finding]) -> set[str]:
    """The workers to exclude so that no broken link remains: workers at fault, then for each remaining link the worker
    with most of them."""
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
    """The workers of these ranks by torch version."""
    told = run.report.data[_DATA]["torch"]
    found: dict[str, list[str]] = {}
    for worker in dict.fromkeys(member.worker for member in members):
        found.setdefault(str(told.get(worker, {}).get("torch")), []).append(worker)
    return found


_ADVICE = Message("a Python with torch in PATH, or GPUs that it sees, let this worker be tested")
