"""The checks `collectives`, `ddp` and `fsdp`: ranks compute known results; a wrong value identifies the faulty rank.

Data from a worker may be malformed: a value of the wrong type counts as not reported.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from atlctl.i18n import COMMA, Message, joined, plural
from atlctl.jobs.fields import items, mapping, number
from atlctl.smoke.context import OpenCheck, Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.ranks.members import Member, account, chosen, grouped
from atlctl.smoke.ranks.settle import Settled, in_pairs, settle
from atlctl.smoke.ranks.stages import StageOutcome

Fields = dict[str, Any]
#: Each rank's result of each step, by its place in the group.
Results = Mapping[int, Mapping[str, Fields]]
#: By worker: number of NCCL connections of each kind (`NET/IB`, `NET/Socket`, `P2P`, `SHM`).
Ways = Mapping[str, Mapping[str, int]]

_SECONDS = {"collectives": 60.0, "ddp": 60.0, "fsdp": 90.0}
_ADVICE = {
    "collectives": Message(
        "take this GPU or machine out of the job, and test its memory and its network card by themselves"
    ),
    "ddp": Message(
        "take this GPU or machine out of the job: a training on it would use wrong gradients without any error"
    ),
    "fsdp": Message("look at all_gather and reduce_scatter of this GPU or machine: see the check collectives"),
}
_ADVICE_LATE = Message("see what else runs on this machine and on its GPU (atlctl top), and its CPU limit")
_SOCKET = "NET/Socket"
_ADVICE_WAYS = {
    "NET": Message(
        "on this worker: ibv_devinfo (is the port ACTIVE?), ulimit -l, NCCL_IB_HCA; is /dev/infiniband there?"
    ),
    "SHM": Message(
        "nvidia-smi topo -p2p r and nvidia-smi nvlink -s on this worker: GPUs there do not reach another directly"
    ),
}
#: Relative tolerances: gradients of one micro-batch (share of their norm), and synced gradients (share of the greatest
#: value). Both are far above the rounding error of fp32 and far below a relevant bit error.
_AGREE, SYNCED = 1e-5, 2e-5
#: Tolerance against fp64, which is used if there are fewer than three ranks to vote.
_AGREE_FP64 = 1e-4
#: Seconds by which a rank comes late to a collective, beside the time in which it waited for a CPU.
LATE = 0.25
_GRADIENTS = Message("its gradients differ from those of the other ranks after the sync")
_PARAMETERS = Message("its parameters differ from those of the other ranks after the sync")


async def check_collectives(run: Run) -> None:
    """Check collectives with exact integers, bit by bit; on GPUs also the transport that NCCL used."""
    with run.check("collectives") as stage:
        settled = await group_check(run, stage, "collectives", wrong_in_collectives)
        if settled is None or not settled.whole:
            return
        await _check_late(run, settled)
        if settled.members[0].gpu is not None:
            await _check_ways(run, stage, settled)


async def check_ddp(run: Run) -> None:
    """Check one DDP step: gradients as computed, as passed to DDP, and after the sync."""
    with run.check("ddp") as stage:
        await group_check(run, stage, "ddp", wrong_in_ddp)


async def check_fsdp(run: Run) -> None:
    """Check a small FSDP step: sharded parameters are gathered, reduced and updated."""
    with run.check("fsdp") as stage:
        settled = await group_check(run, stage, "fsdp", wrong_in_fsdp)
        tracks = settled.outcome.tracks if settled is not None and settled.outcome is not None else []
        skipped = [why for track in tracks for why in track.skipped.values()]
        if skipped and not any(track.results for track in tracks):
            stage.not_judged(Message("skipped: {what}", what=skipped[0]))


async def group_check(
    run: Run, stage: OpenCheck, check: str, judge: Callable[[Results], list[Wrong]]
) -> Settled | None:
    """Run a group stage; adds findings for ranks that keep it from finishing and for wrong values (tested twice)."""
    selected = await chosen(run)
    members = grouped(run, selected.members)
    if len(members) < 2:
        stage.not_judged(alone(len(members)))
        account(run, stage, selected, members)
        return None
    settled = await settle(run, check, members, _SECONDS[check])
    account(run, stage, selected, settled.members if settled.whole else ())
    if settled.outcome is None or not settled.whole:
        stage.note = unfinished(len(settled.members), len(members))
        return settled
    wrongs = judge(results(settled.outcome))
    if wrongs:
        culprits, seconds = list[Member](), _SECONDS[check]
        if all(wrong.place is None for wrong in wrongs):
            culprits = await in_pairs(run, check, settled.members, seconds, lambda end: bool(_wrong(end, judge)))
        second = await settle(run, check, [m for m in settled.members if m not in culprits], seconds)
        again = _wrong(second.outcome, judge)
        if culprits and second.whole and not again:
            wrongs = again = _in_pairs(settled.outcome, culprits, wrongs[0].evidence)
        run.find(*wrong_findings(check, settled.outcome, wrongs, again))
    stage.note = note(settled, len(members))
    return settled


def _in_pairs(outcome: StageOutcome, culprits: Collection[Member], evidence: str) -> list[Wrong]:
    """The culprits that the stage in pairs has shown, without whom the other ranks are right."""
    text = Message(
        "{why}; in pairs of ranks, only those with it are wrong, and the other ranks are right without it", why=evidence
    )
    return [Wrong(track.place, text) for track in outcome.tracks if track.member in culprits]


def _wrong(outcome: StageOutcome | None, judge: Callable[[Results], list[Wrong]]) -> list[Wrong]:
    return judge(results(outcome)) if outcome is not None and outcome.whole else []


def alone(ranks: int) -> Message:
    """The reason why too few ranks are not judged."""
    return plural("{n} rank: no other rank to compare with", "{n} ranks: no other rank to compare with", ranks)


def unfinished(some: int, every: int) -> Message:
    """The note of a check that did not finish."""
    return Message("did not come to its end for {some} of {all} ranks", some=some, all=every)


def note(settled: Settled, asked: int) -> str:
    """The check's note: number of ranks, backend, and skipped steps."""
    tracks = settled.outcome.tracks if settled.outcome is not None else []
    skipped = sorted({step for track in tracks for step in track.skipped})
    backend = "nccl" if any(member.gpu is not None for member in settled.members) else "gloo"
    some = len(settled.members)
    text = (
        Message("{some} of {all} ranks, {backend}", some=some, all=asked, backend=backend)
        if asked > some
        else Message("{n} ranks, {backend}", n=some, backend=backend)
    )
    return joined([text, Message("skipped: {what}", what=", ".join(skipped))]) if skipped else text


# From wrong values to the faulty rank


@dataclass(frozen=True, slots=True)
class Wrong:
    """One fault, of rank `place` (None: unknown). With `peer`, it may also be of the peer or of their connection."""

    place: int | None
    evidence: str
    peer: int | None = None


def wrong_in_collectives(results: Results) -> list[Wrong]:
    """Ranks that sent or received wrong values. A wrong sum does not identify a rank, so sums count only if nothing
    else explains them."""
    pairs: dict[tuple[int, int], list[str]] = defaultdict(list)
    for receiver, steps in results.items():
        for step, result in steps.items():
            for key in mapping(result.get("wrong")):
                if key.isdigit() and int(key) in results:
                    pairs[int(key), receiver].append(step)
    found: list[Wrong] = []
    left = dict(pairs)
    while left:
        sent = Counter(sender for sender, _ in left)
        got = Counter(receiver for _, receiver in left)
        # A rank that finds its own part wrong is at fault in any case.
        own = Counter({sender: len(results) for sender, receiver in left if sender == receiver})
        place, _ = (sent + got + own).most_common(1)[0]
        several = max(sent[place], got[place]) > 1
        if not several and place not in own:
            (sender, receiver), names = next(iter(left.items()))
            told = Message(
                "data from rank {sender} arrived wrong at rank {receiver} only, in {steps}",
                sender=sender,
                receiver=receiver,
                steps=_steps(names),
            )
            found.append(Wrong(sender, _first(told, results, sender, receiver), receiver))
            left.pop((sender, receiver))
            continue
        if own[place] or sent[place] >= got[place]:
            mine = {pair: steps for pair, steps in left.items() if pair[0] == place}
            told = plural(
                "wrong values from it came to {n} rank in {steps}",
                "wrong values from it came to {n} ranks in {steps}",
                len({receiver for _, receiver in mine}),
                steps=_steps([step for one in mine.values() for step in one]),
            )
        else:
            mine = {pair: steps for pair, steps in left.items() if pair[1] == place}
            told = plural(
                "it got wrong values from {n} rank that others got right",
                "it got wrong values from {n} ranks that others got right",
                len(mine),
            )
        found.append(Wrong(place, _first(told, results, *next(iter(mine)))))
        left = {pair: steps for pair, steps in left.items() if place not in pair}
    return found or _sums(results)


def _sums(results: Results) -> list[Wrong]:
    """A wrong sum of all_reduce that came to few ranks is their fault. Everything else may be any rank's: a part of
    reduce_scatter comes to one rank, from all."""
    wrong = {
        place: [step for step, result in steps.items() if isinstance(result.get("sum"), list) and result["sum"]]
        for place, steps in results.items()
    }
    bad = {place: steps for place, steps in wrong.items() if steps}
    if not bad:
        return []
    if 2 * len(bad) < len(results) and all("all_reduce" in steps for steps in bad.values()):
        return [
            Wrong(place, Message("wrong sums in {steps} came to it, and right ones to the others", steps=_steps(steps)))
            for place, steps in sorted(bad.items())
        ]
    steps = [step for one in bad.values() for step in one]
    return [Wrong(None, wrong_sums(len(bad), len(results), _steps(steps)))]


def wrong_sums(some: int, every: int, steps: str) -> Message:
    return Message("wrong sums in {steps} came to {some} of {all} ranks", steps=steps, some=some, all=every)


def _first(said: Message, results: Results, sender: int, receiver: int) -> Message:
    """The message with the first wrong value added."""
    for result in results[receiver].values():
        what = items(mapping(result.get("wrong")).get(str(sender)))
        if len(what) == 4:
            n, at, got, want = what
            text = Message("{said} ({n} values, the first at {at}: {got} in place of {want})")
            return text.filled(said=said, n=n, at=at, got=got, want=want)
    return said


def _steps(steps: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(steps))


def wrong_in_ddp(results: Results) -> list[Wrong]:
    """Ranks at fault, most certain evidence first: outvoted gradients, gradients passed to DDP, synced values."""
    found: dict[int, str] = {}
    agreed = _votes(results, found)
    for place, steps in results.items():
        given = _numbers(steps.get("sync", {}).get("given"))
        if place not in found and given and place in agreed and not _near(given, agreed[place], _AGREE_FP64):
            found[place] = Message("the gradient that it gave to DDP is not the one of its micro-batch")
    _diverged(results, "sync", _GRADIENTS, found)
    _diverged(results, "update", _PARAMETERS, found)
    differ = Message("gradients after the sync differ from the reference on {some} of {all} ranks")
    return [Wrong(place, text) for place, text in sorted(found.items())] or _off(results, "sync", differ)


def wrong_in_fsdp(results: Results) -> list[Wrong]:
    """Ranks whose parameters after a step differ from those of other ranks, or from the reference."""
    found: dict[int, str] = {}
    _diverged(results, "fsdp", _PARAMETERS, found, of="fsdp")
    differ = Message("parameters after a step differ from the reference on {some} of {all} ranks")
    return [Wrong(place, text) for place, text in sorted(found.items())] or _off(results, "fsdp", differ)


def _off(results: Results, step: str, what: Message) -> list[Wrong]:
    """Ranks whose values after a step are not the reference's; a single one of several is at fault."""
    bad = [place for place, steps in results.items() if step in steps and not _small(steps[step].get("error"))]
    blamed = bad[0] if len(bad) == 1 and len(results) > 1 else None
    return [Wrong(blamed, what.filled(some=len(bad), all=len(results)))] if bad else []


def _votes(results: Results, found: dict[int, str]) -> dict[int, list[float]]:
    """The majority's gradient for each micro-batch; ranks that disagree are added to `found`."""
    said: dict[int, dict[int, list[float]]] = defaultdict(dict)
    for voter, steps in results.items():
        for key, marks in mapping(steps.get("gradients", {}).get("votes")).items():
            numbers = _numbers(marks)
            if key.isdigit() and int(key) in results and numbers:
                said[int(key)][voter] = numbers
    agreed: dict[int, list[float]] = {}
    against: Counter[int] = Counter()
    for sender, votes in said.items():
        backed = {voter: sum(_near(marks, other, _AGREE) for other in votes.values()) for voter, marks in votes.items()}
        best = max(backed, key=lambda voter: backed[voter])
        if 2 * backed[best] <= len(votes):
            continue
        agreed[sender] = votes[best]
        against.update(voter for voter, marks in votes.items() if not _near(marks, votes[best], _AGREE))
    for voter, times in against.items():
        cast = sum(voter in votes for votes in said.values())
        if 2 * times >= cast:
            found[voter] = Message(
                "the gradients that it computes are outvoted {some} of {all} times", some=times, all=cast
            )
    if len(results) < 3:
        _against_fp64(results, found, agreed)
    return agreed


def _against_fp64(results: Results, found: dict[int, str], agreed: dict[int, list[float]]) -> None:
    """If there are too few ranks to vote: find a rank whose gradient differs from its own fp64 reference."""
    for place, steps in results.items():
        gradients = steps.get("gradients", {})
        own = _numbers(mapping(gradients.get("votes")).get(str(place)))
        exact = _numbers(gradients.get("reference"))
        if own and exact and not _near(own, exact, _AGREE_FP64):
            found[place] = Message("the gradient that it computes differs from its own reference in fp64")
        elif exact:
            agreed.setdefault(place, exact)


def _diverged(results: Results, step: str, what: Message, found: dict[int, str], of: str = "sync") -> None:
    """Find ranks whose bits differ after the sync. Without a majority, the errors of step `of` decide."""
    digests = {place: str(steps[step].get("digest")) for place, steps in results.items() if step in steps}
    kinds = Counter(digests.values())
    if len(kinds) < 2:
        return
    usual, many = kinds.most_common(1)[0]
    odd = [place for place, digest in digests.items() if digest != usual]
    if 2 * many <= len(digests):
        odd = [place for place, steps in results.items() if not _small(steps.get(of, {}).get("error"))]
    for place in odd:
        found.setdefault(place, what)


def _numbers(value: object) -> list[float]:
    if not isinstance(value, list) or not all(isinstance(number, int | float) for number in value):
        return []
    return [float(number) for number in value]


def _near(one: Sequence[float], other: Sequence[float], share: float) -> bool:
    """Compare two fingerprints: a norm, then sums whose error the norm bounds. NaN is never near."""
    if len(one) != len(other) or not one:
        return False
    scale = max(abs(one[0]), abs(other[0]), 1e-30)
    return all(abs(a - b) <= share * scale for a, b in zip(one, other, strict=True))


def _small(error: object) -> bool:
    return isinstance(error, int | float) and error <= SYNCED


def results(outcome: StageOutcome) -> Results:
    """The results of all ranks that finished the stage, by their place in the group."""
    return {track.place: track.results for track in outcome.tracks if track.done}


def wrong_findings(check: str, outcome: StageOutcome, wrongs: Sequence[Wrong], again: Sequence[Wrong]) -> list[Finding]:
    """The findings for wrong values; confirmed if they are also in `again`, the result of the second test."""
    places = {track.place: track.member for track in outcome.tracks}
    seen = {(wrong.place, wrong.peer) for wrong in again}
    found = [(_culprit(one, places), _said(one, places), (one.place, one.peer) in seen) for one in wrongs]
    return [Finding(check, Severity.FAIL, *one, _ADVICE[check]) for one in found]


def _culprit(wrong: Wrong, places: Mapping[int, Member]) -> Culprit | None:
    member = places.get(wrong.place) if wrong.place is not None else None
    peer = places.get(wrong.peer) if wrong.peer is not None else None
    if member is not None and peer is not None and member.worker != peer.worker:
        first, second = sorted((member, peer), key=lambda one: one.number)
        return Culprit("link", first.worker, second.worker)
    return None if member is None else member.culprit


def _said(wrong: Wrong, places: Mapping[int, Member]) -> str:
    member = places.get(wrong.place) if wrong.place is not None else None
    if member is None or wrong.peer is not None:
        return wrong.evidence
    return Message("{what}: {why}", what=member.name, why=wrong.evidence)


# Arrivals


async def _check_late(run: Run, settled: Settled) -> None:
    """Add a warning for each rank for which the others wait in a collective, in two runs."""
    first = late(settled.outcome) if settled.outcome is not None else {}
    if not first:
        return
    second = await settle(run, "collectives", settled.members, _SECONDS["collectives"])
    again = late(second.outcome) if second.outcome is not None and second.whole else {}
    for member, (step, seconds) in first.items():
        if member in again:
            text = Message("{who} comes {seconds:.1f} s late to {step}, twice, and the other ranks wait for it")
            text = text.filled(who=member.name, seconds=min(seconds, again[member][1]), step=step)
            run.find(Finding("collectives", Severity.WARN, member.culprit, text, True, _ADVICE_LATE))


def late(outcome: StageOutcome) -> dict[Member, tuple[str, float]]:
    """The ranks that began a collective later than the others, which were in it meanwhile: the step, and by how many
    seconds. Each rank counts from the end of the collective before, so no clocks are compared."""
    found: dict[Member, tuple[str, float]] = {}
    for step in dict.fromkeys(step for track in outcome.tracks for step in track.results):
        results = {track.member: track.results.get(step, {}) for track in outcome.tracks}
        came = {one: number(result.get("before"), least=0) for one, result in results.items()}
        waited = {one: number(result.get("inside"), least=0) for one, result in results.items()}
        for member, seconds in came.items():
            others = [(came[one], waited[one]) for one in came if one != member]
            known = [(begun, inside) for begun, inside in others if begun is not None and inside is not None]
            if seconds is None or not known or len(known) < len(others):
                break
            by = seconds - median(begun for begun, _ in known)
            if by > max(LATE, found.get(member, ("", 0.0))[1]) and median(inside for _, inside in known) > by / 2:
                found[member] = step, by
    return found


# Transports used by NCCL, from its log


async def _check_ways(run: Run, stage: OpenCheck, settled: Settled) -> None:
    """Check the transports that NCCL used. Workers with a worse transport than the others are tested twice."""
    told = ways(settled.outcome) if settled.outcome is not None else {}
    rdma = [worker for worker, facts in run.facts.items() if _has_rdma(facts)]
    if first := judge_ways(told, rdma):
        again = await settle(run, "collectives", settled.members, _SECONDS["collectives"])
        second = judge_ways(ways(again.outcome), rdma) if again.outcome is not None else []
        run.find(*(finding for finding in first if finding.culprit in [one.culprit for one in second]))
    if told:
        run.report.data["nccl"] = {worker: dict(kinds) for worker, kinds in told.items()}
        stage.note = joined([stage.note, ways_note(told)])


def _has_rdma(facts: Mapping[str, Any]) -> bool:
    """Whether the worker has an active RDMA port."""
    return any("ACTIVE" in str(device) for device in items(facts.get("rdma")))


def ways(outcome: StageOutcome) -> dict[str, dict[str, int]]:
    """The transports by worker, from the logs of all ranks; workers without NCCL log lines are left out."""
    found: dict[str, Counter[str]] = {}
    for track in outcome.tracks:
        log = mapping((track.exit or {}).get("nccl"))
        if not log.get("said"):
            continue
        kinds = found.setdefault(track.member.worker, Counter())
        for kind, count in mapping(log.get("via")).items():
            if isinstance(count, int):
                kinds[kind[:40]] += count
        # A rank without channels in its log has at least chosen a network.
        for net in items(log.get("nets")) if not kinds else ():
            kinds[f"NET/{str(net)[:20]}"] += 1
    return {worker: dict(kinds) for worker, kinds in found.items()}


def judge_ways(told: Ways, rdma: Sequence[str] = ()) -> list[Finding]:
    """Findings about transports. `rdma`: workers with an active RDMA port."""
    found = []
    networks = {worker: _most(kinds, "NET/") for worker, kinds in told.items()}
    networks = {worker: kind for worker, kind in networks.items() if kind}
    usual, many = Counter(networks.values()).most_common(1)[0] if networks else ("", 0)
    if usual not in ("", _SOCKET) and 2 * many > len(networks):
        for worker, kind in networks.items():
            if kind == _SOCKET:
                text = Message(
                    "NCCL fell back to sockets on {worker}; {some} of {all} workers use {way}",
                    worker=worker,
                    some=many,
                    all=len(networks),
                    way=usual[4:],
                )
                found.append(
                    Finding("collectives", Severity.WARN, Culprit("worker", worker), text, True, _ADVICE_WAYS["NET"])
                )
    elif usual == _SOCKET and many == len(networks) and set(networks) <= set(rdma):
        text = Message("NCCL uses sockets on all workers although each has an active RDMA port")
        found.append(Finding("collectives", Severity.WARN, None, text, True, _ADVICE_WAYS["NET"]))
    inside = {worker: _most(kinds, "P2P", "SHM") for worker, kinds in told.items()}
    direct = [worker for worker, kind in inside.items() if kind == "P2P"]
    around = [worker for worker, kind in inside.items() if kind == "SHM"]
    if len(direct) > len(around):
        for worker in around:
            text = Message(
                "GPUs of {worker} talk through shared memory; on {n} other workers directly",
                worker=worker,
                n=len(direct),
            )
            found.append(
                Finding("collectives", Severity.WARN, Culprit("worker", worker), text, True, _ADVICE_WAYS["SHM"])
            )
    return found


def _most(kinds: Mapping[str, int], *starts: str) -> str:
    """The most used transport with one of these prefixes."""
    fitting = {kind: count for kind, count in kinds.items() if kind.startswith(starts)}
    return max(fitting, key=lambda kind: (fitting[kind], kind)) if fitting else ""


def ways_note(told: Ways) -> str:
    total: Counter[str] = Counter()
    for kinds in told.values():
        total.update(kinds)
    return joined((f"{kind} x {count}" for kind, count in total.most_common(4)), COMMA)
