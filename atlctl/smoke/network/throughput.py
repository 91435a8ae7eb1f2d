"""The check `throughput`: every worker sends to every other worker at full speed for a short time.

A link that is slower than others or loses packets is measured again, alone, before a worker or a link is named.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlctl.i18n import Message, joined
from atlctl.jobs import fields
from atlctl.smoke.context import OpenCheck, Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.network.blame import Pair, PairBlame, accused, confirm
from atlctl.smoke.network.mesh import TOO_FEW

CHECK = "throughput"
#: Up to this many workers, every pair is measured; second: the same on one machine's loopback, which is not judged.
FULL, _LOOPBACK = 64, 16
#: Seconds: all rounds together, minimum and maximum of one transfer, and a repeated transfer alone.
_ALL, _SHORTEST, _LONGEST, _ALONE = 5.0, 0.05, 0.15, 0.12
#: Share of a slot without transfers, so that late neighbours do not overlap.
_GAP = 0.25
_PATIENCE = 2.5
#: Share of a first transfer that sends one segment at a time, to detect loss; the rest measures speed.
_SINGLY = 0.5
#: Number of healthy links measured beside slow ones, and the maximum number of such measurements.
_CONTROLS, _BESIDE = 3, 12

_SLOW_ADVICE = Message(
    "look at the link's speed and errors (ethtool), the interface that is used, and who else is on this path"
)
_LOSS_ADVICE = Message(
    "look at drops and errors of the interfaces (ethtool -S, ip -s link), cables, and queues on the way"
)
#: A link below this share of healthy links' speed, all measured alone, is slow; below the second, it is a suspect. Half
#: of the first counts on starved machines, where speeds vary by chance.
SLOW, SLOWISH = 0.6, 0.7
#: A link is lossy if it retransmits more than this share of its segments, and at least this number. The third and
#: fourth value are the lower limits for a second measurement.
LOSSY, _ENOUGH, _SUSPECT, _FEW = 0.0015, 5, 0.0005, 2
#: Above these shares of the time, the transfer waited for the sender's CPU or for the receiver, not for the network.
_BUSY, _RECEIVER = 0.75, 0.3
#: If transfers waited for a CPU for this share of their time, and did so alone, too, or had below this share of their
#: speed alone, the machines limited the speed.
_WAITED, _AGREE = 0.3, 0.75
#: A transfer that detects loss runs between the second and the first share of the median speed, and if possible at no
#: more than the third share of the link's own speed: a healthy link drops nothing then. It sends this number of
#: segments, within these minimum and maximum seconds.
_USUAL, _LEAST, _OWN, _SEGMENTS, _SHORT, _LONG = 0.25, 0.05, 0.6, 1300, 0.15, 0.8
#: A slow transfer is repeated up to this number of times, until this number was not limited by its hosts.
_TRIES, _CLEAN = 4, 2
#: Maximum number of simultaneous faults for which a reference speed exists.
_FAULTS = 3


async def check_throughput(run: Run) -> None:
    """Add warnings for workers and links that are slower than the others or lose packets. `report.data["throughput"]`
    gets the matrices: with all workers sending at the same time, and of what was slow then, its speed alone."""
    with run.check(CHECK) as stage:
        mesh = run.report.data.get("mesh")
        if not mesh or len(mesh["workers"]) < 2:
            stage.note = TOO_FEW
        else:
            await _Throughput(run, mesh).measure(stage)


class _Throughput:
    def __init__(self, run: Run, mesh: Mapping[str, Any]) -> None:
        self._run = run
        living = set(run.session.living())
        self._names = [name for name in mesh["workers"] if name in living]
        self._index = {worker.name: worker.index for worker in run.workers}
        self._named = {worker.index: worker.name for worker in run.workers}
        self._where = {name: [told["address"], told["port"]] for name, told in mesh["addresses"].items()}
        self._cut = {tuple(pair) for pair in mesh["failed"]} | {tuple(pair[::-1]) for pair in mesh["failed"]}
        self._machine = dict(zip(mesh["workers"], mesh["machines"], strict=True))
        self._loopback = bool(mesh["loopback"])
        self._rates: dict[Pair, Rate] = {}
        #: Bytes per second of slow pairs that were measured again, alone: the best time.
        self._best: dict[Pair, float] = {}

    async def measure(self, stage: OpenCheck) -> None:
        count = len(self._names)
        if self._loopback and count > _LOOPBACK:
            return stage.not_judged(Message("all workers share one machine's loopback: no network to measure"))
        await self._all()
        self._figures()
        if not self._rates:
            stage.note = Message("no transfer was possible")
            return None
        stage.tested = {sender for sender, _ in self._rates}
        speeds = sorted(rate.bytes_per_s for rate in self._rates.values())
        stage.note = Message("median {median}, slowest {slowest}", median=_mb(median(speeds)), slowest=_mb(speeds[0]))
        if self._loopback:
            why = Message("all workers share one machine's loopback: no network to judge")
            return stage.not_judged(joined([stage.note, why]))
        lossy = await self._lossy()
        if count < 3:
            if not lossy:
                why = Message("speed: with two workers there is no reference")
                stage.not_judged(joined([stage.note, why]))
            return None
        hungry = await self._hungry()
        await self._slow(lossy, stage, SLOW / 2 if hungry else SLOW)
        self._figures()
        if hungry:
            stage.not_judged(joined([stage.note, hungry]))
        return None

    # Measuring

    async def _all(self) -> None:
        steps = rounds(len(self._names), FULL)
        slot = min(_LONGEST, max(_SHORTEST, _ALL / max(1, len(steps)))) / (1 - _GAP)
        turns: dict[str, list[list[Any] | None]] = {}
        for place, name in enumerate(self._names):
            others = [self._names[(place + step) % len(self._names)] for step in steps]
            turns[name] = [None if (name, other) in self._cut else self._turn(other) for other in others]
        self._rates = await self._send(turns, slot * (1 - _GAP), slot, singly=_SINGLY)

    def _turn(self, name: str) -> list[Any]:
        return [self._index[name], *self._where[name]]

    async def _send(
        self,
        turns: Mapping[str, Sequence[list[Any] | None]],
        seconds: float,
        slot: float,
        paces: Mapping[str, float] | None = None,
        singly: float = 0.0,
    ) -> dict[Pair, Rate]:
        """Let each of these workers send to its peers, one after another. Malformed results are left out."""
        command = {"cmd": "send", "seconds": seconds, "slot": slot}
        command["patience"] = _PATIENCE * self._run.session.pace
        command |= {"singly": 1.0 if paces else singly, "share": self._run.options.share}
        commands = {
            name: {**command, "turns": own, "pace": int(paces[name]) if paces else 0}
            for name, own in turns.items()
            if any(own)
        }
        longest = max((len(own) for own in turns.values()), default=0)
        limit = longest * (slot + 0.1) + 3 * _PATIENCE
        answers = await self._run.session.ask(commands, limit + 5.0, patience=limit)
        found: dict[Pair, Rate] = {}
        for name, answer in answers.items():
            for turn in fields.items((answer.fields or {}).get("turns")):
                read = parse_transfer(turn)
                if read is not None and read[0] in self._named:
                    found[name, self._named[read[0]]] = read[1]
        return found

    async def _again(self, todo: Iterable[Pair], pace: bool) -> dict[Pair, Rate]:
        """Measure these pairs again, at full speed with no worker in two transfers. Paced transfers may overlap."""
        found: dict[Pair, Rate] = {}
        for batch in batches(todo, apart=not pace):
            if not pace:
                found |= await self._send({one: [self._turn(other)] for one, other in batch}, _ALONE, _ALONE)
                continue
            usual = median([rate.bytes_per_s for rate in self._rates.values()])
            paces = {one: loss_pace(self._rates[one, other], usual) for one, other in batch}
            seconds = max(loss_seconds(self._rates[one, other], paces[one]) for one, other in batch)
            found |= await self._send({one: [self._turn(other)] for one, other in batch}, seconds, seconds, paces)
        return found

    async def _hungry(self) -> str:
        """The reason why the speeds are those of starved machines; empty if single transfers are neither starved nor
        faster."""
        waited = median([rate.waited for rate in self._rates.values()])
        if waited < _WAITED:
            return ""
        alone = await self._again(controls(self._rates, (), _CONTROLS), pace=False)
        fast = median([rate.bytes_per_s for rate in alone.values()])
        agree = median([rate.bytes_per_s for rate in self._rates.values()]) > _AGREE * fast
        if agree and median([rate.waited for rate in alone.values()]) < _WAITED:
            return ""
        text = Message("speed: transfers waited for a CPU {share:.0%} of their time; alone they reach {speed}")
        return text.filled(share=waited, speed=_mb(fast))

    # Judging

    async def _lossy(self) -> set[Pair]:
        """Directions that lose packets even without other traffic; adds findings for the culprits."""
        pooled: dict[Pair, Rate] = {}

        async def look(todo: Sequence[Pair]) -> dict[Pair, bool]:
            left = list(todo)
            for _ in range(3):
                for pair, rate in (await self._again(left, pace=True)).items():
                    pooled[pair] = pooled[pair] + rate if pair in pooled else rate
                left = [pair for pair in left if pair in pooled and pooled[pair].undecided]
                if not left:
                    break
            return {pair: pair in pooled and pooled[pair].lossy for pair in todo}

        bad = await confirm(self._names, self._rates, [p for p, rate in self._rates.items() if rate.suspect], look)
        # Pairs with too few segments are measured again if one of their ends has another bad pair.
        ends = {name for pair in bad for name in pair}
        short = [p for p, rate in self._rates.items() if p not in bad and rate.short and ends & set(p)]
        short = [pair for pair in short if pair[::-1] not in bad and (pair[::-1] not in short or pair < pair[::-1])]
        if short:
            bad |= {pair for pair, again in (await look(short)).items() if again}
        told = accused(self._names, self._rates, bad)
        for name in shared(told.links):
            own = [pair for pair in self._rates if name in pair]
            rest = [pair for pair in own if pair not in bad and pair[::-1] not in bad]
            if 2 * len(rest) < len(own):  # most of its links are lossy: it may be the worker
                bad |= {pair for pair, again in (await look(rest)).items() if again}
                told = accused(self._names, self._rates, bad)
        self._accuse(told, bad, _LOSS_ADVICE, lambda ways: _lost([pooled[way] for way in ways if way in pooled]))
        return {pair for pair in self._rates if pair in bad or set(told.workers) & set(pair)}

    async def _slow(self, lossy: set[Pair], stage: OpenCheck, least: float) -> None:
        """Find links below the share `least` of healthy links' speed, except lossy ones (already judged) and those
        within one machine (always faster)."""
        fair = {
            pair: rate
            for pair, rate in self._rates.items()
            if pair not in lossy and pair[::-1] not in lossy and not self._inside(pair)
        }
        ends = {name for pair in fair for name in pair}
        if len(ends) < 3:
            why = Message("speed: too few links are left to compare")
            return stage.not_judged(joined([stage.note, why]))
        usual = reference(fair, len(ends))
        suspects = [pair for pair, rate in fair.items() if rate.bytes_per_s < SLOWISH * usual]
        if not suspects:
            return None
        chosen = controls(fair, suspects, _CONTROLS)
        beside: list[float] = []
        best = self._best
        #: Slow pairs that had too little CPU time: they count neither as bad nor as good.
        starved: set[Pair] = set()

        async def look(todo: Sequence[Pair]) -> dict[Pair, bool]:
            clean, low = Counter[Pair](), dict.fromkeys(todo)
            for _ in range(_TRIES):  # the best of them: noise can only make a link slower
                left = [pair for pair in low if clean[pair] < _CLEAN]
                fresh = chosen if left and len(beside) < _BESIDE else []
                again = await self._again([*fresh, *left], pace=False)
                beside.extend(again[pair].bytes_per_s for pair in fresh if pair in again)
                for pair in left:
                    if (rate := again.get(pair)) is not None:
                        best[pair] = max(best.get(pair, 0.0), rate.bytes_per_s)
                        clean[pair] += not rate.starved
                        if best[pair] >= least * median(beside):
                            del low[pair]
            slow = {pair: clean[pair] >= _CLEAN for pair in low if pair in best}
            starved.difference_update(todo)
            starved.update(pair for pair, sure in slow.items() if not sure)
            return {pair: slow.get(pair, False) for pair in todo}

        bad = await confirm(self._names, fair, suspects, look)
        told = self._told(fair, bad, starved)
        for name in shared(told.links):
            await look([p for p in fair if p[0] == name and p not in best and p[::-1] not in best])
            low = {p for p in best if name in p and p not in starved and best[p] < SLOWISH * median(beside)}
            if name in (slower := self._told(fair, bad | low, starved)).workers:
                told, bad = slower, bad | low
        known = median(beside)
        self._accuse(told, bad, _SLOW_ADVICE, lambda ways: _speed([best[way] for way in ways if way in best], known))
        return None

    def _told(self, fair: Mapping[Pair, Rate], bad: set[Pair], starved: set[Pair]) -> PairBlame:
        unjudged = {pair for pair in starved - bad if pair[::-1] in starved or pair[::-1] not in fair}
        return accused(self._names, [pair for pair in fair if pair not in unjudged], bad)

    def _inside(self, pair: Pair) -> bool:
        """Whether both workers are on one machine and there are several machines."""
        return len(set(self._machine.values())) > 1 and self._machine[pair[0]] == self._machine[pair[1]]

    def _accuse(self, told: PairBlame, bad: set[Pair], advice: Message, evidence: Any) -> None:
        for name in told.workers:
            ways, every = [pair for pair in bad if name in pair], sum(name in pair for pair in self._rates)
            said = Message("{what} on {some} of {all} of its directions")
            said = said.filled(what=evidence(ways), some=len(ways), all=every)
            self._run.find(Finding(CHECK, Severity.WARN, Culprit("worker", name), said, True, advice))
        for one, other in told.links:
            ways = [pair for pair in ((one, other), (other, one)) if pair in bad]
            each = [Message("{one} to {other}", one=start, other=end) for start, end in ways]
            said = Message("{what} from {ways}", what=evidence(ways), ways=joined(each, Message(" and ")))
            self._run.find(Finding(CHECK, Severity.WARN, Culprit("link", one, other), said, True, advice))
        if told.unclear:
            said = Message(
                "{what} on {n} pairs, too many to name the faulty part", what=evidence(list(bad)), n=len(told.unclear)
            )
            self._run.find(Finding(CHECK, Severity.WARN, None, said, True, advice))

    def _figures(self) -> None:
        def matrix(value: Callable[[Pair], float]) -> list[list[float | None]]:
            return [
                [value((one, other)) if (one, other) in self._rates else None for other in self._names]
                for one in self._names
            ]

        def speed(pair: Pair) -> float:
            return round(max(self._rates[pair].bytes_per_s, self._best.get(pair, 0.0)) / 1e6, 2)

        self._run.report.data[CHECK] = {
            "workers": self._names,
            "matrix_mb_per_s": matrix(speed),
            "matrix_resent_percent": matrix(lambda pair: round(100 * self._rates[pair].share, 3)),
        }


def _mb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.4g} MB/s"


def _lost(found: Sequence[Rate]) -> str:
    lost, sent = sum(rate.again for rate in found), sum(rate.segments for rate in found)
    text = Message("{percent:.1f} % of the packets are lost ({lost} of {sent}, sent slowly)")
    return text.filled(percent=100 * lost / max(1, sent), lost=lost, sent=sent)


def _speed(found: Sequence[float], usual: float) -> str:
    if not any(found):
        return Message("no transfer gets through, alone, where others have {usual},", usual=_mb(usual))
    speed = _mb(median(found))
    return Message("{speed}, alone, where others have {usual},", speed=speed, usual=_mb(usual))


# Results of transfers


@dataclass(frozen=True, slots=True)
class Rate:
    """The result of one transfer. `singly`: segments sent one at a time, so that each is evidence about loss. `again`:
    segments retransmitted because of loss, without needless retransmissions. `busy`: share of the time in which the
    sender computed or waited for a CPU; `waited`: in which it waited; `receiver`: in which the receive window was full.
    `error` is untrusted text."""

    bytes_per_s: float
    segments: int = 0
    again: int = 0
    bytes: int = 0
    busy: float = 0.0
    receiver: float = 0.0
    error: str = ""
    singly: int = 0
    waited: float = 0.0

    @property
    def share(self) -> float:
        """The share of lost segments."""
        return self.again / self.segments if self.segments else 0.0

    @property
    def starved(self) -> bool:
        """Whether the hosts limited the speed, not the network."""
        return not self.error and (self.busy > _BUSY or self.receiver > _RECEIVER)

    @property
    def suspect(self) -> bool:
        return self.again >= _FEW and self.share > _SUSPECT

    @property
    def short(self) -> bool:
        """Whether there are too few segments to exclude loss."""
        return self.singly < _SEGMENTS / 2

    @property
    def undecided(self) -> bool:
        return self.suspect and not self.lossy

    @property
    def lossy(self) -> bool:
        return self.again >= _ENOUGH and self.share > LOSSY

    def __add__(self, other: Rate) -> Rate:
        """Combine two transfers to count lost segments."""
        return Rate(
            max(self.bytes_per_s, other.bytes_per_s),
            self.segments + other.segments,
            self.again + other.again,
            self.bytes + other.bytes,
            min(self.busy, other.busy),
            min(self.receiver, other.receiver),
            self.error and other.error,
            self.singly + other.singly,
            min(self.waited, other.waited),
        )


def parse_transfer(turn: object) -> tuple[int, Rate] | None:
    """Parse one transfer: index of the receiver, and the result; None if it is malformed."""
    if not isinstance(turn, dict) or not isinstance(turn.get("to"), int):
        return None
    if turn.get("error"):
        return turn["to"], Rate(0.0, error=fields.text(turn["error"], 200) or "failed")
    keys = "bytes_per_s", "bytes", "seconds", "segments", "singly", "again", "needless"
    shares = "cpu_share", "waited_share", "receiver_share"
    values = [fields.number(turn.get(key), least=0) for key in (*keys, *shares)]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    speed, count, took, segments, singly, again, needless, cpu, waited, receiver = known
    return turn["to"], Rate(
        max(speed, count / took if took else 0.0),  # the transfer may have stalled at the end
        int(segments),
        max(0, int(again) - int(needless)),
        int(count),
        cpu + waited,
        receiver,
        singly=int(singly),
        waited=waited,
    )


def rounds(count: int, most: int) -> list[int]:
    """In round k, each worker sends to the worker k places behind it. All rounds give the full matrix; with more than
    `most` workers only some distances, short and long."""
    if count <= most:
        return list(range(1, count))
    near = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return sorted({*near, *(count - step for step in near[:4]), count // 2, count // 3})


def reference(rates: Mapping[Pair, Rate], count: int) -> float:
    """The reference speed: if only a few workers are faulty, the fastest pairs must be healthy, and this is their
    median. With few workers it is close to the fastest speed of all."""
    speeds = sorted((rate.bytes_per_s for rate in rates.values()), reverse=True)
    if not speeds:
        return 0.0
    good = count - min(_FAULTS, count // 2)
    share = good * (good - 1) / (count * (count - 1))
    return speeds[min(len(speeds) - 1, int(len(speeds) * share / 2))]


def controls(rates: Mapping[Pair, Rate], apart: Collection[Pair], most: int) -> list[Pair]:
    """Links near the reference speed, to be measured beside suspects in the same way."""
    fast = sorted((pair for pair in rates if pair not in apart), key=lambda pair: -rates[pair].bytes_per_s)
    skipped = max(0, (len(fast) - most) // 4)
    return fast[skipped : skipped + most]


def shared(links: Iterable[Pair]) -> list[str]:
    """The workers at which several of these links end. A worker with a weak fault shows as some bad links."""
    ends = Counter(name for pair in links for name in pair)
    return [name for name, count in ends.most_common() if count > 1]


def batches(todo: Iterable[Pair], apart: bool) -> list[list[Pair]]:
    """Group transfers that may run together: no worker sends or receives twice; with `apart`, none is in two of
    them."""
    found: list[tuple[list[Pair], set[str], set[str]]] = []
    for one, other in todo:
        for own in found:
            batch, senders, hearers = own
            if apart and {one, other} & (senders | hearers):
                continue
            if one not in senders and other not in hearers:
                break
        else:
            batch, senders, hearers = [], set(), set()
            found.append((batch, senders, hearers))
        batch.append((one, other))
        senders.add(one)
        hearers.add(other)
    return [batch for batch, _, _ in found]


def loss_pace(rate: Rate, usual: float) -> float:
    """The pace in bytes per second at which a healthy link drops no packets."""
    return max(1e5, min(_USUAL * usual, max(_LEAST * usual, _OWN * rate.bytes_per_s)))


def loss_seconds(rate: Rate, speed: float) -> float:
    """The seconds that a transfer at `speed` needs to distinguish loss from chance."""
    size = rate.bytes / rate.segments if rate.segments else 1448.0
    return min(_LONG, max(_SHORT, _SEGMENTS * size / speed))


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
