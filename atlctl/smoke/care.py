"""Safety checks before a test (training in progress, free memory), and the check `gpus` (health of the GPUs)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlctl.diagnosis.signatures import signature_of_xid
from atlctl.i18n import COMMA, Message, given, joined, plural
from atlctl.jobs.fields import entries, items, mapping, number
from atlctl.jobs.naming import fold_names
from atlctl.smoke.context import Options, Run
from atlctl.smoke.facts import GPU_SECONDS, gather, gather_again, gather_gpus_again, size
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.session import words_of

CHECK = "gpus"
#: A GPU is in use above this utilisation in percent, or above this memory in MiB.
_UTILISATION, _HELD_MIB = 5.0, 1024.0
#: Bytes of memory needed by a worker's own torch process, and by each rank in addition.
TORCH_ROOM, RANK_ROOM = 768 << 20, 256 << 20
#: Temperature in degrees Celsius at which a GPU slows its clocks, if the driver does not report it.
_SLOWDOWN = 92.0
#: Timeout in seconds for the second call of an nvidia-smi that did not answer.
_SECOND_LOOK = 10.0
#: The Xid with which the driver requests a GPU reset: not a fault by itself, but the GPU cannot be used.
_RESET = "xid_154"
_XID_TEXT = 300
_NO_SMI = Message("there is no nvidia-smi to ask")
#: Reasons for slowed GPU clocks, by the names of `jobs.gpus`.
SLOWED = {"heat": Message("heat"), "power brake": Message("power brake"), "hardware": Message("hardware")}
#: The owner of the memory limit: the worker's cgroup, or the whole machine.
_OWNERS = {"cgroup": Message("its cgroup"), "machine": Message("its machine")}

Facts = Mapping[str, Any]


async def look_before(run: Run) -> None:
    """Set `run.quiet` if a training is running, and `left_out` for workers with too little memory. Adds no load."""
    await gather(run)
    if unseen := [name for name, fact in run.facts.items() if fact.get("ranks_problem")]:
        await gather_again(run, unseen)
    uses = _in_use(run.facts, run.options)
    if uses and all(use.fleeting for use in uses.values()):
        await gather_gpus_again(run, list(uses), GPU_SECONDS)
        uses = _in_use(run.facts, run.options)
    busy: dict[str, str] = {name: joined(use.reasons) for name, use in uses.items()}
    cramped = too_little(run.facts, run.options)
    for name, why in cramped.items():
        run.report.workers.setdefault(name, {})["left_out"] = why
    run.report.data["care"] = {"busy": busy, "left_out": cramped}
    if busy and not run.options.allow_busy:
        run.quiet = _quiet(busy)
    elif run.ranks:
        # The import takes long, and nothing waits for it yet.
        run.session.tell({name: {"cmd": "torch"} for name in run.facts if name not in cramped})


async def check_gpus(run: Run) -> None:
    """Check the GPUs' health as reported by the driver. Reads only: also allowed during a training."""
    with run.check(CHECK) as stage:
        await gather(run)
        stated = {worker.name: worker.gpus for worker in run.workers}
        sure = trusted(run.facts, stated)
        suspects = [name for name, fact in run.facts.items() if ill(name, fact, stated.get(name), sure, {})]
        first = {name: run.facts[name] for name in suspects}
        if suspects:
            await gather_gpus_again(run, suspects, _SECOND_LOOK)
        for name in suspects:
            run.find(*ill(name, run.facts[name], stated.get(name), sure, first[name]))
        for name, fact in run.facts.items():
            smi = fact.get("smi", {})
            if "tool" in smi:
                stage.tested.add(name)
            else:
                stage.untested[name] = Message("no answer about its GPUs: {why}", why=words_of(smi.get("problem")))
        seen = {name: gpus for name, fact in run.facts.items() if (gpus := _gpus(fact))}
        run.report.data[CHECK] = {name: [_figures(gpu) for gpu in gpus] for name, gpus in seen.items()}
        if not seen and not any(finding.check == CHECK for finding in run.report.findings):
            stage.not_judged(Message("there is no GPU on any worker"))
            return
        # Workers on one machine may all see the same GPUs.
        count = len({gpu.get("uuid") or (name, gpu["index"]) for name, gpus in seen.items() for gpu in gpus})
        gpus_on = plural("{n} GPU", "{n} GPUs", count), plural("{n} worker", "{n} workers", len(seen))
        stage.note = Message("{gpus} on {workers}", gpus=gpus_on[0], workers=gpus_on[1])
        without = [name for name in seen if not run.facts[name].get("smi", {}).get("tool")]
        if without and len(without) == len(seen):
            stage.not_judged(joined([stage.note, _NO_SMI]))


@dataclass(frozen=True, slots=True)
class Use:
    """The signs of a training on a worker. `fleeting`: only a short use of a GPU, which may come from a monitoring
    tool."""

    reasons: tuple[str, ...] = ()
    fleeting: bool = False


def in_use(facts: Facts, chosen: Sequence[int] | None) -> Use:
    """The signs of a training on a worker. `chosen`: GPU numbers to check; None: all."""
    reasons: list[str] = []
    if facts.get("ranks_problem"):
        why = words_of(facts["ranks_problem"])
        reasons.append(Message("it is unknown whether ranks run there: {why}", why=why))
    if ranks := entries(facts.get("ranks")):
        named = {"?" if rank.get("rank") is None else str(rank["rank"]) for rank in ranks}
        numbers = sorted(named, key=lambda n: (len(n), n))
        some = f"{', '.join(numbers[:8])}{', ...' if len(numbers) > 8 else ''}"
        reasons.append(Message("ranks run there ({numbers})", numbers=some))
    gpus = [gpu for gpu in _gpus(facts) if chosen is None or gpu["index"] in chosen]
    holders = [gpu for gpu in gpus if _number(gpu, "processes")]
    held = [gpu for gpu in gpus if (_number(gpu, "memory_used") or 0) > _HELD_MIB and gpu not in holders]
    used = [gpu for gpu in gpus if (_number(gpu, "utilisation") or 0) >= _UTILISATION]
    if holders:
        reasons.append(Message("processes compute on GPU {numbers}", numbers=_numbers(holders)))
    if held:
        most = max(_number(g, "memory_used") or 0 for g in held)
        reasons.append(
            Message("memory of GPU {numbers} is held, up to {most:.0f} MiB", numbers=_numbers(held), most=most)
        )
    fleeting = bool(used) and not reasons
    if used:
        most = max(_number(g, "utilisation") or 0 for g in used)
        reasons.append(Message("GPU {numbers} in use, up to {most:.0f} %", numbers=_numbers(used), most=most))
    return Use(tuple(reasons), fleeting)


def too_little(facts: Mapping[str, Facts], options: Options) -> dict[str, str]:
    """Workers with too little memory for test ranks, and the reason: an OOM kill could hit the training."""
    found: dict[str, str] = {}
    for name, fact in facts.items():
        memory = mapping(fact.get("memory"))
        room = memory.get("room")
        if not isinstance(room, int):
            continue
        chosen = (options.gpus or {}).get(name)
        ranks = max(1, len(_gpus(fact)) if chosen is None else len(chosen))
        needed = TORCH_ROOM + ranks * RANK_ROOM
        if room < needed:
            owner = _OWNERS.get(str(memory.get("of"))) or f"its {memory.get('of')}"
            lacks = Message("{left} of memory are left to {owner}, {needed} are needed")
            found[name] = lacks.filled(left=size(room), owner=owner, needed=size(needed))
            if memory.get("group_kill"):
                found[name] = Message("{said}, and all of its processes would be killed", said=found[name])
    return found


def trusted(facts: Mapping[str, Facts], stated: Mapping[str, int | None]) -> bool:
    """Whether the platform's GPU count is comparable with the driver's: they agree on at least one worker. The platform
    may count slices, shares of a GPU, or cards of another vendor."""
    return any(count and len(_gpus(facts[name])) == count for name, count in stated.items() if name in facts)


def ill(name: str, facts: Facts, stated: int | None, sure: bool, before: Facts) -> list[Finding]:
    """Findings about a worker's GPUs. `stated`: the platform's GPU count, `sure` if it is trusted. `before`: the facts
    of the first look, empty in the first look; faults in both looks are confirmed."""
    smi, gpus = mapping(facts.get("smi")), _gpus(facts)
    if smi.get("hung"):
        text = Message("nvidia-smi hangs: {why}", why=words_of(smi["hung"]))
        return [_worker(name, Severity.FAIL, text, bool(before.get("smi", {}).get("hung")), "hung")]
    odd = [str(line) for line in items(smi.get("odd"))]
    found = []
    sliced = any(str(gpu.get("mig", "")).lower() == "enabled" for gpu in gpus)
    answered = not (smi.get("late") or "problem" in facts)
    if stated and len(gpus) < stated and answered and not sliced and (gpus or sure):
        xids = [fault for xid in _xids(smi) if (fault := _fault(xid))]
        said = [xids[-1]] if xids else odd[:1]
        there = Message("{some} GPUs are there, the platform states {all}", some=len(gpus), all=stated)
        text = joined([there, *said])
        # If the platform shares each GPU, it counts every share.
        shares = gpus and stated % len(gpus) == 0
        severity = Severity.WARN if shares and not (sure or odd) else Severity.FAIL
        found.append(_worker(name, severity, text, bool(before), "missing"))
    elif odd and gpus:
        text = Message("nvidia-smi reports a GPU that does not respond: {words}", words=odd[0])
        found.append(_worker(name, Severity.FAIL, text, bool(before), "missing"))
    elif smi.get("problem") and not gpus and smi.get("devices"):
        found.append(_worker(name, Severity.FAIL, words_of(smi["problem"]), bool(before), "hung"))
    earlier = {gpu["index"]: gpu for gpu in _gpus(before)}
    for gpu in gpus:
        texts, severity = _faults(gpu, _of(gpu, _xids(smi)), earlier.get(gpu["index"]), bool(before))
        if texts:
            culprit = Culprit("gpu", name, gpu=gpu["index"])
            found.append(Finding(CHECK, severity, culprit, joined(texts), bool(before), _ADVICE["gpu"]))
    return found


def _faults(gpu: Facts, xids: Sequence[Facts], earlier: Facts | None, second: bool) -> tuple[list[str], Severity]:
    texts: list[str] = []
    severity = Severity.WARN
    if str(gpu.get("remap_failure", "")).lower() == "yes":
        texts.append(Message("a bad row of its memory could not be remapped"))
        severity = Severity.FAIL
    if "yes" in (str(gpu.get("remap_pending", "")).lower(), str(gpu.get("retire_pending", "")).lower()):
        texts.append(Message("bad memory waits for the GPU to be reset"))
        severity = Severity.FAIL
    ecc = _number(gpu, "ecc")
    if ecc:
        severity = Severity.FAIL
        texts.append(
            plural(
                "{n} memory error that ECC could not correct since the driver was loaded",
                "{n} memory errors that ECC could not correct since the driver was loaded",
                round(ecc),
            )
        )
    texts += [fault for xid in xids if (fault := _fault(xid))][-1:]
    degrees, slowdown = _number(gpu, "temperature"), _number(gpu, "slowdown") or _SLOWDOWN
    if degrees is not None and degrees >= slowdown:
        text = Message("{degrees:.0f} degrees, and its clocks are slowed at {limit:.0f}")
        texts.append(text.filled(degrees=degrees, limit=slowdown))
        severity = Severity.FAIL
    throttled = items(gpu.get("throttled"))
    if throttled and (not second or (earlier or {}).get("throttled")):
        why = joined([SLOWED.get(str(one), str(one)) for one in throttled], COMMA)
        text = Message("its clock is held down: {why}", why=why)
        if degrees is not None:
            text = Message("its clock is held down: {why}, {degrees:.0f} degrees", why=why, degrees=degrees)
        texts.append(text)
    return texts, severity


_ADVICE = {
    "hung": Message("have the machine drained: its driver does not answer, and processes that ask it cannot be killed"),
    "missing": Message("have the machine drained; see dmesg there for details (Xid)"),
    "gpu": Message("look there: nvidia-smi -q; have the GPU reset, or the machine drained"),
}


def _worker(name: str, severity: Severity, text: str, confirmed: bool, advice: str) -> Finding:
    return Finding(CHECK, severity, Culprit("worker", name), text, confirmed, _ADVICE[advice])


def _in_use(facts: Mapping[str, Facts], options: Options) -> dict[str, Use]:
    chosen = options.gpus
    found: dict[str, Use] = {}
    for name, fact in facts.items():
        # If the user selected GPUs, only these GPUs on these workers are tested.
        if chosen is not None and name not in chosen:
            continue
        use = in_use(fact, None if chosen is None else chosen[name])
        if use.reasons:
            found[name] = use
    return found


def _quiet(busy: Mapping[str, str]) -> str:
    (reason, count), *others = Counter(busy.values()).most_common()
    names = [name for name, why in busy.items() if why == reason]
    workers, more = fold_names(names), len(busy) - count
    if not others:
        return Message("training in progress: {workers}: {reason}", workers=workers, reason=reason)
    return Message("training in progress: {workers}: {reason}, and on {n} more", workers=workers, reason=reason, n=more)


def _gpus(facts: Facts) -> list[dict[str, Any]]:
    return entries(facts.get("gpus"))


def _xids(smi: Facts) -> list[dict[str, Any]]:
    return [xid for xid in entries(smi.get("xids")) if isinstance(xid.get("xid"), int)]


def _of(gpu: Facts, xids: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The Xids of this GPU: a machine's kernel log has the GPUs of all its containers."""
    mine = _bus(gpu.get("bus"))
    return [xid for xid in xids if mine and _bus(xid.get("bus")) == mine]


def _bus(text: Any) -> str:
    """A normalised PCI bus ID: `00000000:3B:00.0` and `0000:3b:00` are equal. Empty if it is malformed."""
    parts = str(text or "").lower().partition(".")[0].split(":")
    return ":".join([parts[0].lstrip("0"), *parts[1:]]) if len(parts) == 3 else ""


def _fault(xid: Facts) -> str | None:
    """The Xid as text; None if it is not a GPU fault."""
    signature = signature_of_xid(xid["xid"], str(xid.get("text", ""))[:_XID_TEXT])
    if not (signature.hardware or signature.id == _RESET):
        return None
    age = xid.get("age")
    what = given(signature.meaning.en.rstrip("."), signature.meaning.zh.rstrip("。"))
    if not isinstance(age, int | float):
        return Message("Xid {xid}: {what}", xid=xid["xid"], what=what)
    return Message("Xid {xid} {minutes:.0f} min ago: {what}", xid=xid["xid"], minutes=age / 60, what=what)


def _number(gpu: Facts, key: str) -> float | None:
    return number(gpu.get(key))


def _numbers(gpus: Sequence[Facts]) -> str:
    return ", ".join(str(gpu["index"]) for gpu in gpus[:16])


def _figures(gpu: Facts) -> dict[str, Any]:
    keys = ("index", "uuid", "name", "utilisation", "memory_used", "memory_total", "temperature", "power", "ecc")
    return {key: gpu.get(key) for key in (*keys, "throttled", "processes", "links")}
