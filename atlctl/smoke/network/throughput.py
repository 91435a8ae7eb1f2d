"""Every worker sends to every other one at full speed for a moment: what is slow, what loses packets, whose fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atlctl.smoke.context import Run, Stage
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.network import rates
from atlctl.smoke.network.blame import Blame, Pair
from atlctl.smoke.network.confirm import accused, confirm
from atlctl.smoke.network.rates import Rate

CHECK = "throughput"
#: Workers up to which every pair is measured, and up to which it is on a machine's loopback, where nothing is judged.
FULL, _LOOPBACK = 64, 16
#: Seconds of all rounds together, of one transfer at least and at most, and of a second one, alone.
_ALL, _SHORTEST, _LONGEST, _ALONE = 5.0, 0.05, 0.15, 0.12
#: Share of a slot in which nothing is sent, so that neighbours who are late do not meet.
_GAP = 0.25
_PATIENCE = 2.5
#: Share of the first transfers that looks for loss, one segment at a time; the rest of it is for speed.
_SINGLY = 0.5
#: Healthy links that are measured beside slow ones, and how often in all.
_CONTROLS, _BESIDE = 3, 12

_SLOW_ADVICE = (
    "Look at the link's speed and errors (ethtool), the interface that is used, and who else is on this path."
)
_LOSS_ADVICE = "Look at drops and errors of the interfaces (ethtool -S, ip -s link), cables, and queues on the way."


async def check_throughput(run: Run) -> None:
    """Adds warnings for workers and links that are slow beside the others or lose packets. `report.data["throughput"]`
    gets the matrices: what was measured first, all workers sending at once."""
    with run.check(CHECK) as stage:
        mesh = run.report.data.get("mesh")
        if run.quiet:
            stage.not_judged(run.quiet)
        elif not mesh or len(mesh["workers"]) < 2:
            stage.not_judged("fewer than two workers can be called")
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

    async def measure(self, stage: Stage) -> None:
        count = len(self._names)
        if self._loopback and count > _LOOPBACK:
            return stage.not_judged("all workers share one machine's loopback: no network to measure")
        await self._all()
        self._figures()
        if not self._rates:
            return stage.not_judged("no transfer was possible")
        speeds = sorted(rate.bytes_per_s for rate in self._rates.values())
        stage.note = f"median {_mb(rates.median(speeds))}, slowest {_mb(speeds[0])}"
        if self._loopback:
            return stage.not_judged(f"{stage.note}; all workers share one machine's loopback: no network to judge")
        lossy = await self._lossy()
        if count < 3:
            if not lossy:
                stage.not_judged(f"{stage.note}; speed: with two workers there is no reference")
            return None
        await self._slow(lossy, stage)
        return None

    # Measuring

    async def _all(self) -> None:
        steps = rates.rounds(len(self._names), FULL)
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
        """Let each of these send to others, one after another. What is not understood is left out."""
        commands = {
            name: {
                "cmd": "send",
                "turns": own,
                "seconds": seconds,
                "slot": slot,
                "patience": _PATIENCE,
                "pace": int(paces[name]) if paces else 0,
                "singly": 1.0 if paces else singly,
            }
            for name, own in turns.items()
            if any(own)
        }
        longest = max((len(own) for own in turns.values()), default=0)
        limit = longest * (slot + 0.1) + 3 * _PATIENCE
        answers = await self._run.session.ask(commands, limit + 5.0, patience=limit)
        found: dict[Pair, Rate] = {}
        for name, answer in answers.items():
            told = answer.fields.get("turns") if answer.fields is not None else None
            for turn in told if isinstance(told, list) else ():
                read = rates.parse(turn)
                if read is not None and read[0] in self._named:
                    found[name, self._named[read[0]]] = read[1]
        return found

    async def _again(self, todo: Iterable[Pair], pace: bool) -> dict[Pair, Rate]:
        """Measure these alone: at full speed no worker takes part in two; paced ones are in nobody's way."""
        found: dict[Pair, Rate] = {}
        for batch in rates.batches(todo, apart=not pace):
            if not pace:
                found |= await self._send({one: [self._turn(other)] for one, other in batch}, _ALONE, _ALONE)
                continue
            usual = rates.median([rate.bytes_per_s for rate in self._rates.values()])
            paces = {one: rates.pace(self._rates[one, other], usual) for one, other in batch}
            seconds = max(rates.seconds(self._rates[one, other], paces[one]) for one, other in batch)
            found |= await self._send({one: [self._turn(other)] for one, other in batch}, seconds, seconds, paces)
        return found

    # Judging

    async def _lossy(self) -> set[Pair]:
        """Directions that lose packets also when nothing is in their way; findings for who is at fault."""
        pooled: dict[Pair, Rate] = {}

        async def look(todo: Sequence[Pair]) -> dict[Pair, bool]:
            left = list(todo)
            for _ in range(2):
                for pair, rate in (await self._again(left, pace=True)).items():
                    pooled[pair] = pooled[pair] + rate if pair in pooled else rate
                left = [pair for pair in left if pair in pooled and pooled[pair].undecided]
                if not left:
                    break
            return {pair: pair in pooled and pooled[pair].lossy for pair in todo}

        bad = await confirm(self._names, self._rates, [p for p, rate in self._rates.items() if rate.suspect], look)
        # What was too short to tell is looked at where one of its ends has another bad pair.
        ends = {name for pair in bad for name in pair}
        short = [p for p, rate in self._rates.items() if p not in bad and rate.short and ends & set(p)]
        short = [pair for pair in short if pair[::-1] not in bad and (pair[::-1] not in short or pair < pair[::-1])]
        if short:
            bad |= {pair for pair, again in (await look(short)).items() if again}
        told = accused(self._names, self._rates, bad)
        self._accuse(told, bad, _LOSS_ADVICE, lambda ways: _lost([pooled[way] for way in ways if way in pooled]))
        return {pair for pair in self._rates if pair in bad or set(told.workers) & set(pair)}

    async def _slow(self, lossy: set[Pair], stage: Stage) -> None:
        """What loses packets is slow for that reason, and judged already. Inside a machine all is faster."""
        fair = {
            pair: rate
            for pair, rate in self._rates.items()
            if pair not in lossy and pair[::-1] not in lossy and not self._inside(pair)
        }
        ends = {name for pair in fair for name in pair}
        if len(ends) < 3:
            return stage.not_judged(f"{stage.note}; speed: too few links are left to compare")
        usual = rates.reference(fair, len(ends))
        suspects = [pair for pair, rate in fair.items() if rate.bytes_per_s < rates.SLOWISH * usual]
        if not suspects:
            return None
        chosen = rates.controls(fair, suspects, _CONTROLS)
        beside: list[float] = []
        best: dict[Pair, float] = {}
        #: Slow ones that got too little CPU to be blamed: they count neither as bad nor as good.
        starved: set[Pair] = set()

        async def look(todo: Sequence[Pair]) -> dict[Pair, bool]:
            slow: dict[Pair, bool] = {}
            for _ in range(2):  # the better of two: a moment's noise makes nothing faster
                left = [pair for pair in todo if slow.get(pair, True)]
                fresh = chosen if left and len(beside) < _BESIDE else []
                again = await self._again([*fresh, *left], pace=False)
                beside.extend(again[pair].bytes_per_s for pair in fresh if pair in again)
                for pair in left:
                    if (rate := again.get(pair)) is None:
                        continue
                    best[pair] = max(best.get(pair, 0.0), rate.bytes_per_s)
                    low = best[pair] < rates.SLOW * rates.median(beside)
                    slow[pair] = low and not rate.starved
                    (starved.add if low and rate.starved else starved.discard)(pair)
            return {pair: slow.get(pair, False) for pair in todo}

        bad = await confirm(self._names, fair, suspects, look)
        known = rates.median(beside)
        unjudged = {pair for pair in starved - bad if pair[::-1] in starved or pair[::-1] not in fair}
        told = accused(self._names, [pair for pair in fair if pair not in unjudged], bad)
        self._accuse(told, bad, _SLOW_ADVICE, lambda ways: _speed([best[way] for way in ways if way in best], known))
        return None

    def _inside(self, pair: Pair) -> bool:
        """Both on one machine, while others are not."""
        return len(set(self._machine.values())) > 1 and self._machine[pair[0]] == self._machine[pair[1]]

    def _accuse(self, told: Blame, bad: set[Pair], advice: str, evidence: Any) -> None:
        for name in told.workers:
            ways = [pair for pair in bad if name in pair]
            said = f"{evidence(ways)} on {len(ways)} of {sum(name in pair for pair in self._rates)} of its directions"
            self._run.find(Finding(CHECK, Severity.WARN, Culprit("worker", name), said, True, advice))
        for one, other in told.links:
            ways = [pair for pair in ((one, other), (other, one)) if pair in bad]
            said = f"{evidence(ways)} from " + " and ".join(f"{start} to {end}" for start, end in ways)
            self._run.find(Finding(CHECK, Severity.WARN, Culprit("link", one, other), said, True, advice))
        if told.unclear:
            said = f"{evidence(list(bad))} on {len(told.unclear)} pairs, too many to tell who is at fault"
            self._run.find(Finding(CHECK, Severity.WARN, None, said, True, advice))

    def _figures(self) -> None:
        def matrix(value: Any) -> list[list[float | None]]:
            return [
                [value(self._rates[one, other]) if (one, other) in self._rates else None for other in self._names]
                for one in self._names
            ]

        self._run.report.data[CHECK] = {
            "workers": self._names,
            "matrix_mb_per_s": matrix(lambda rate: round(rate.bytes_per_s / 1e6, 2)),
            "matrix_resent_percent": matrix(lambda rate: round(100 * rate.share, 3)),
        }


def _mb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.4g} MB/s"


def _lost(found: Sequence[Rate]) -> str:
    lost, sent = sum(rate.again for rate in found), sum(rate.segments for rate in found)
    return f"{100 * lost / max(1, sent):.1f} % of the packets are lost ({lost} of {sent}, sent slowly)"


def _speed(found: Sequence[float], usual: float) -> str:
    if not any(found):
        return f"no transfer gets through, alone, where others have {_mb(usual)},"
    return f"{_mb(rates.median(found))}, alone, where others have {_mb(usual)},"
