"""The check `facts`: who is made otherwise than the others, whose clock is wrong, whose own name leads nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlctl.jobs.naming import fold_names
from atlctl.smoke.context import Run
from atlctl.smoke.facts import gather
from atlctl.smoke.facts.minority import Facts, Vote, astray, compare, labels, loopback
from atlctl.smoke.findings import Culprit, Finding, Severity

CHECK = "facts"
#: Differences of one worker that are told.
_TOLD = 6
_ADVICE = {
    "torch": "use the same image on all workers",
    "CUDA": "use the same image on all workers",
    "NCCL": "use the same image on all workers",
    "Python": "use the same image on all workers",
    "GPU driver": "have the machine's driver brought to the version of the others",
    "GPUs": "compare: atlctl exec --all nvidia-smi -L",
    "NVLinks": "compare: atlctl exec --all nvidia-smi nvlink --status",
    "GPU topology": "compare: atlctl exec --all nvidia-smi topo -m",
    "setting": "set the same variables on all workers",
    "RDMA": "look at the port: ibstat, rdma link; have the cable or the card checked",
    "/dev/shm": "give all workers the same shared memory (an emptyDir of medium Memory)",  # noqa: S108
    "memlock": "give all workers the same limit (RDMA wants no limit)",
}
_ADVICE_CLOCK = "have the machine's time service checked; until then times in logs of several workers mislead"
_ADVICE_NAME = "set GLOO_SOCKET_IFNAME to the network's interface, or give the host's name its real address"


async def check_facts(run: Run) -> None:
    """Fills `run.facts` where nobody has."""
    with run.check(CHECK) as stage:
        await gather.gather(run)
        votes = compare(run.facts)
        if votes:
            await gather.again(run, sorted({name for found in votes.values() for name in found.odd}))
            votes = compare(run.facts)
        run.find(*differences(votes))
        run.find(*await _clocks(run))
        run.find(*names(run.facts))
        silent = {name: fact["problem"] for name, fact in run.facts.items() if "problem" in fact}
        run.find(*(_silent(name, str(why)) for name, why in silent.items()))
        for name, fact in run.facts.items():
            run.report.workers.setdefault(name, {}).update(summary(fact))
        run.report.data[CHECK] = {
            "differ": {label: {"most": found.majority, "odd": found.odd} for label, found in votes.items()},
            "loopback_names": [name for name, fact in run.facts.items() if loopback(fact)],
            "place": {name: fact["place"] for name, fact in run.facts.items() if fact.get("place")},
        }
        stage.note = _note(run.facts)
        if len(run.facts) < 2:
            stage.not_judged("one worker, nothing to compare with" + (f": {stage.note}" if stage.note else ""))


def differences(votes: Mapping[str, Vote]) -> list[Finding]:
    """One finding for each worker that differs from most, and one for all in which there is no most."""
    odd: dict[str, list[str]] = {}
    split = []
    for label, found in votes.items():
        if found.majority is None:
            split.append(f"{label}: {_groups(found.odd)}")
            continue
        for name, value in found.odd.items():
            odd.setdefault(name, []).append(f"{label}: {value} (the others: {found.majority})")
    findings = [
        Finding(CHECK, Severity.WARN, Culprit("facts", name), _some(texts), True, _advice(texts))
        for name, texts in odd.items()
    ]
    if split:
        text = f"not alike, and no value is that of most: {_some(split)}"
        findings.append(Finding(CHECK, Severity.WARN, Culprit("facts"), text, True, _advice(split)))
    return findings


def names(facts: Mapping[str, Facts]) -> list[Finding]:
    """A host's own name that stands for loopback: gloo, told no interface, offers that address to the others. Where all
    are so, it is how these machines are made, and whoever trains on them has dealt with it."""
    leads = {name: loopback(fact) for name, fact in facts.items()}
    bad = [name for name, is_loopback in leads.items() if is_loopback]
    good = [name for name, is_loopback in leads.items() if is_loopback is False]
    if len(bad) >= len(good):
        return []
    findings = []
    for name in bad:
        settings = facts[name].get("settings")
        if isinstance(settings, dict) and settings.get("GLOO_SOCKET_IFNAME"):
            continue
        text = f"its name {facts[name].get('host')} stands for {', '.join(map(str, facts[name]['name'][:4]))} there"
        findings.append(Finding(CHECK, Severity.WARN, Culprit("facts", name), text, True, _ADVICE_NAME))
    return findings


def clock_findings(off: Mapping[str, float], count: int) -> list[Finding]:
    """Of clocks that went astray in two looks, among `count` workers."""
    if not off:
        return []
    if count < 3 or 2 * len(off) >= count:
        text = f"clocks differ: {', '.join(f'{name} by {seconds:+.1f} s' for name, seconds in off.items())}"
        return [Finding(CHECK, Severity.WARN, Culprit("facts"), text, True, _ADVICE_CLOCK)]
    return [
        Finding(
            CHECK,
            Severity.WARN,
            Culprit("facts", name),
            f"its clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} the others', at least",
            True,
            _ADVICE_CLOCK,
        )
        for name, seconds in off.items()
    ]


def summary(facts: Facts) -> dict[str, Any]:
    """What the report tells of a worker."""
    told = labels(facts)
    keys = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "GPU driver", "gpus": "GPUs"}
    found: dict[str, Any] = {key: told[label] for key, label in keys.items() if label in told}
    memory, cpus = facts.get("memory"), facts.get("cpus")
    if isinstance(memory, dict):
        found["memory_room"] = memory.get("room")
    if isinstance(cpus, dict):
        found["cpus"] = cpus.get("quota") or cpus.get("allowed")
        found["cpu_busy"] = cpus.get("busy")
    return found


async def _clocks(run: Run) -> list[Finding]:
    bounds = {name: fact["clock"] for name, fact in run.facts.items() if "clock" in fact}
    first = astray(bounds)
    if not first:
        return []
    calm = next((name for name in bounds if name not in first), None)
    again = bounds | await gather.clocks(run, [*first, *([calm] if calm else [])])
    second = astray(again)
    return clock_findings({name: second[name] for name in first if name in second}, len(bounds))


def _silent(name: str, why: str) -> Finding:
    text = f"it told nothing of itself: {why}"
    return Finding(CHECK, Severity.NOT_JUDGED, Culprit("worker", name), text)


def _note(facts: Mapping[str, Facts]) -> str:
    """The facts that everybody asks for first, where all have the same."""
    every = [labels(fact) for fact in facts.values() if "problem" not in fact]
    parts = []
    for label in ("torch", "CUDA", "NCCL", "GPUs"):
        values = {mine.get(label) for mine in every} - {None}
        if len(values) == 1:
            parts.append(f"{label} {values.pop()}")
    return ", ".join(parts)


def _groups(values: Mapping[str, str]) -> str:
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    return ", ".join(f"{fold_names(who)} {value}" for value, who in list(by_value.items())[:_TOLD])


def _some(texts: Sequence[str]) -> str:
    more = f"; {len(texts) - _TOLD} more" if len(texts) > _TOLD else ""
    return "; ".join(texts[:_TOLD]) + more


def _advice(texts: Sequence[str]) -> str:
    return next((advice for start, advice in _ADVICE.items() for text in texts if text.startswith(start)), "")
