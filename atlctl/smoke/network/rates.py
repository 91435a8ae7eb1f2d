"""What a transfer tells, and what is slow or loses packets beside the others. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from atlctl.smoke.network.blame import Pair
from atlctl.smoke.network.reading import number, text

#: A link below this share of healthy ones, each measured alone, is slow; below the second one it is looked at.
SLOW, SLOWISH = 0.6, 0.7
#: A link that sends more than this share of its segments again loses packets. It takes some of them to say so; far
#: fewer are enough for a second look.
LOSSY, _ENOUGH, _SUSPECT, _FEW = 0.003, 5, 0.002, 2
#: Above these shares of the time it was not the network that a transfer waited for.
_BUSY, _RECEIVER = 0.75, 0.3
#: A transfer that is to show loss runs between the first two shares of the usual speed, and if it can at no more than
#: this share of the link's own, where a healthy link drops nothing; for as many segments, but for no longer than these
#: seconds.
_USUAL, _LEAST, _OWN, _SEGMENTS, _SHORT, _LONG = 0.25, 0.05, 0.6, 1300, 0.15, 0.8
#: Faults at once that still leave a reference.
_FAULTS = 3


@dataclass(frozen=True, slots=True)
class Rate:
    """One transfer. `singly`: segments that nothing had put together with others, so that each of them tells of loss by
    itself. `again`: segments that had to be sent again because they were lost, those not counted that had
    arrived after all. `busy`: share of the time in which the sender computed or waited for a CPU; `receiver`: in which
    the receiver took no more. `error` is hostile text."""

    bytes_per_s: float
    segments: int = 0
    again: int = 0
    bytes: int = 0
    busy: float = 0.0
    receiver: float = 0.0
    error: str = ""
    singly: int = 0

    @property
    def share(self) -> float:
        """Of the segments, those that were lost."""
        return self.again / self.segments if self.segments else 0.0

    @property
    def starved(self) -> bool:
        """Whether the hosts, and not the network, kept it from being faster."""
        return not self.error and (self.busy > _BUSY or self.receiver > _RECEIVER)

    @property
    def suspect(self) -> bool:
        return self.again >= _FEW and self.share > _SUSPECT

    @property
    def short(self) -> bool:
        """Too few segments to say that none are lost."""
        return self.singly < _SEGMENTS / 2

    @property
    def undecided(self) -> bool:
        return self.suspect and not self.lossy

    @property
    def lossy(self) -> bool:
        return self.again >= _ENOUGH and self.share > LOSSY

    def __add__(self, other: Rate) -> Rate:
        """Both transfers as one, for what was lost."""
        return Rate(
            max(self.bytes_per_s, other.bytes_per_s),
            self.segments + other.segments,
            self.again + other.again,
            self.bytes + other.bytes,
            min(self.busy, other.busy),
            min(self.receiver, other.receiver),
            self.error and other.error,
            self.singly + other.singly,
        )


def parse(turn: object) -> tuple[int, Rate] | None:
    """To whom, and how it went; None where it is not understood."""
    if not isinstance(turn, dict) or not isinstance(turn.get("to"), int):
        return None
    if turn.get("error"):
        return turn["to"], Rate(0.0, error=text(turn["error"]) or "failed")
    keys = "bytes_per_s", "bytes", "seconds", "segments", "singly", "again", "needless"
    shares = "cpu_share", "waited_share", "receiver_share"
    values = [number(turn.get(key)) for key in (*keys, *shares)]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    speed, count, took, segments, singly, again, needless, cpu, waited, receiver = known
    return turn["to"], Rate(
        max(speed, count / took if took else 0.0),  # it may have stood still in the end
        int(segments),
        max(0, int(again) - int(needless)),
        int(count),
        cpu + waited,
        receiver,
        singly=int(singly),
    )


def rounds(count: int, most: int) -> list[int]:
    """In round k everyone sends to the one k places behind. All of them make the full matrix; above `most` workers some
    distances, near and far."""
    if count <= most:
        return list(range(1, count))
    near = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return sorted({*near, *(count - step for step in near[:4]), count // 2, count // 3})


def reference(rates: Mapping[Pair, Rate], count: int) -> float:
    """The speed of a link that must be healthy if no more than a few workers are at fault: the median of those pairs
    that this leaves, the fastest ones. With few workers that is nearly the fastest of all."""
    speeds = sorted((rate.bytes_per_s for rate in rates.values()), reverse=True)
    if not speeds:
        return 0.0
    good = count - min(_FAULTS, count // 2)
    share = good * (good - 1) / (count * (count - 1))
    return speeds[min(len(speeds) - 1, int(len(speeds) * share / 2))]


def controls(rates: Mapping[Pair, Rate], apart: Collection[Pair], most: int) -> list[Pair]:
    """Links at about the reference's speed, to be measured beside suspects in the same way."""
    fast = sorted((pair for pair in rates if pair not in apart), key=lambda pair: -rates[pair].bytes_per_s)
    skipped = max(0, (len(fast) - most) // 4)
    return fast[skipped : skipped + most]


def batches(todo: Iterable[Pair], apart: bool) -> list[list[Pair]]:
    """Transfers that may run at once: no worker sends to two or hears two; with `apart` none takes part in two."""
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


def pace(rate: Rate, usual: float) -> float:
    """Bytes a second at which nothing but a fault drops packets of this link."""
    return max(1e5, min(_USUAL * usual, max(_LEAST * usual, _OWN * rate.bytes_per_s)))


def seconds(rate: Rate, speed: float) -> float:
    """How long a transfer at `speed` takes that is long enough to tell loss from chance."""
    size = rate.bytes / rate.segments if rate.segments else 1448.0
    return min(_LONG, max(_SHORT, _SEGMENTS * size / speed))


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
