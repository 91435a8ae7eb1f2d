"""Diagnoses a slow job from the workers' reports: the rank or the link that the others wait for, and the cause.

In a collective every rank waits for the last one. So the rank that waits least, while the others wait, is the slow one;
its samples, stacks and counters, in comparison with those of the others, show the cause. If all wait alike, the links
between workers are compared; if no rank differs, the job is slow as a whole. With NCCL the GPUs wait, not the main
threads: a rank is late if it has not launched what others have, or if it waits less for its GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from atlctl.diagnosis.hang import (
    BY_PLACE,
    BY_SIGN,
    CHILD_CALLS,
    FILE_CALLS,
    POLL_CALLS,
    SLEEP_CALLS,
    WRITE_CALLS,
    Sign,
    call_of,
    nobody,
)
from atlctl.diagnosis.launches import processes
from atlctl.diagnosis.rankreport import (
    GpuLoad,
    RankReport,
    RankWatch,
    Sample,
    StackPlace,
    StackReport,
    innermost_user_frame,
)
from atlctl.diagnosis.result import Confidence
from atlctl.diagnosis.tracebacks import Frame
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.naming import fold_names, fold_numbers

#: The least difference, in shares of the time, between the waiting of the late ranks and of the others.
_GAP = 0.15
#: The same by stacks, of which there are fewer, and on a machine with less idle CPU time than this: its ranks differ by
#: chance.
_GAP_OF_STACKS = _GAP_OF_LAUNCHES = _GAP_IF_BUSY = 0.25
_IDLE = 0.05
#: The least number of looks at NCCL's counts.
_LOOKS = 6
#: The least share of the time in which the others wait, if a rank is late.
_WAITED = 0.15
#: Shares of the time from which a counter explains a late rank.
_THROTTLED, _STOLEN, _PRESSED, _QUEUED = 0.1, 0.08, 0.1, 0.2
#: The share of the time on a CPU by which a rank may exceed the others before its code counts as the cause.
_COMPUTES = 0.1
#: How much larger a counter of the late rank is than that of the others.
_TIMES = 1.5
#: Faults a second that need a disk, from which memory is short.
_FAULTS = 50.0
#: Share of a GPU's clock below that of the others', and use in percent, from which it is slow.
_CLOCK, _USED = 0.8, 20.0
#: Bytes and calls a second from which a rank writes much, and how much more than the others.
_WRITTEN, _WRITES, _WRITTEN_TIMES = 1e6, 2000.0, 10.0
#: The share of the time from which a rank mostly runs, or waits for a lock.
_MAINLY = 0.5
#: The share of the time in which all ranks wait, from which the network is the cause.
_ALL_WAIT = 0.35
#: A slow link: the least share of the time with data under way, the most of the others' rate, the least bytes.
_BUSY, _RATE, _BYTES = 0.2, 0.4, 64 << 10
#: A lossy link: the least number of segments sent again, their least share, how much larger than on the others.
_LOST, _LOST_SHARE, _LOST_TIMES = 5, 0.004, 4.0
#: Counters of interfaces and ports, and their least number in the window that counts as a fault. A link that goes down,
#: is trained again or gives no acknowledgement stops for up to seconds; of the others, each costs a packet, which is
#: sent again. Dropped packets are a fault only as a share of all, because a healthy host drops those of protocols that
#: it does not know. All workers of a network count these alike, so that a fault must also be distinct from the others'.
_FAULTY: Mapping[str, int] = {
    **dict.fromkeys(("carrier_changes", "link_downed", "link_error_recovery", "local_ack_timeout_err"), 1),
    **dict.fromkeys(("rx_errors", "tx_errors"), _LOST),
    **dict.fromkeys(("symbol_error", "port_rcv_errors", "port_xmit_discards", "packet_seq_err"), 10),
    **dict.fromkeys(("rx_dropped", "tx_dropped"), 80),
}
#: Corrected ECC errors in the window: a healthy GPU has a few in months, and a bad cell is corrected at each access.
_CORRECTED = 10
#: The most ranks that may be late, as a share of all.
_MINORITY = 0.5


class CauseClass(StrEnum):
    """The class of a cause."""

    GPU = "gpu"
    CPU_LIMIT = "cpu_limit"
    CPU_SHARED = "cpu_shared"
    STEAL = "steal"
    MEMORY = "memory"
    INPUT = "input"
    OUTPUT = "output"
    NETWORK = "network"
    CODE = "code"
    GARBAGE = "garbage_collection"
    SLEEP = "sleep"
    UNKNOWN = "unknown"


CAUSES: Mapping[CauseClass, Message] = {
    CauseClass.GPU: Message("GPU"),
    CauseClass.CPU_LIMIT: Message("CPU limit"),
    CauseClass.CPU_SHARED: Message("CPU shared with other processes"),
    CauseClass.STEAL: Message("CPU taken by other virtual machines"),
    CauseClass.MEMORY: Message("memory"),
    CauseClass.INPUT: Message("input"),
    CauseClass.OUTPUT: Message("output"),
    CauseClass.NETWORK: Message("network"),
    CauseClass.CODE: Message("code"),
    CauseClass.GARBAGE: Message("garbage collection"),
    CauseClass.SLEEP: Message("sleep"),
    CauseClass.UNKNOWN: Message("unknown cause"),
}


class Doing(StrEnum):
    """The activity of the main thread of a rank."""

    WAIT = "wait"
    RUN = "run"
    READ = "read"
    WRITE = "write"
    RECEIVE = "receive"
    SLEEP = "sleep"
    CHILD = "child"
    LOCK = "lock"
    OTHER = "other"


class WitnessKind(StrEnum):
    """The source of a fact. Two of them that agree make a verdict certain."""

    SAMPLES = "samples"
    LAUNCHES = "launches"
    STACKS = "stacks"
    COUNTERS = "counters"
    GPU = "gpu"
    LINKS = "links"
    TEST = "network_test"


@dataclass(frozen=True, slots=True)
class Witness:
    kind: WitnessKind
    text: Message


@dataclass(frozen=True, slots=True)
class RankPace:
    """One rank in the window: shares of its time. `doing`: of the main thread, from samples; `places`: from stacks.
    `waits`: in collectives, for the others; None if neither source shows it. `behind`: share of the looks at NCCL's
    counts in which it had launched less than others, None without. `queued`: ready to run, without a CPU."""

    rank: int | None
    worker: str
    report: RankReport
    watched: RankWatch
    seconds: float
    doing: Mapping[Doing, float]
    places: Mapping[StackPlace, float]
    knows_gloo: bool
    behind: float | None
    queued: float
    throttled: float
    cpu: float

    @property
    def sampled(self) -> float | None:
        """The share of waiting by the samples; None if those do not show it. No thread of gloo shows a wait in `recv`:
        of the time in locks, what the stacks show in collectives counts."""
        if not self.doing or not self.knows_gloo:
            return None
        waits = self.doing.get(Doing.WAIT, 0.0)
        return waits + max(0.0, min(self.doing.get(Doing.LOCK, 0.0), _known(self.stacked) - waits))

    @property
    def stacked(self) -> float | None:
        """The share of waiting by the stacks, None without stacks."""
        if not self.places:
            return None
        return sum(self.places.get(place, 0.0) for place in _WAITING)

    @property
    def waits(self) -> float | None:
        return self.stacked if self.sampled is None else self.sampled

    @property
    def runs(self) -> float:
        """The share in which its main thread runs, which it also does while it waits for a GPU."""
        return self.doing.get(Doing.RUN, 0.0)

    @property
    def frame(self) -> Frame | None:
        """The line of the user's code that was seen most often, outside of collectives if there is any."""
        return busiest_frame(self.watched)


@dataclass(frozen=True, slots=True)
class Laggard:
    """The culprit: a rank, a worker or a link. `peer`: the other end of a link."""

    worker: str | None
    rank: int | None = None
    peer: str | None = None
    gpu: int | None = None
    mount: str | None = None
    frame: Frame | None = None

    @property
    def name(self) -> str:
        if self.peer is not None:
            return Message("link from {one} to {other}", one=self.worker or "?", other=self.peer)
        worker = self.worker or "?"
        return worker if self.rank is None else _rank_on(self.rank, worker)


@dataclass(frozen=True, slots=True)
class SlowVerdict:
    """The answer. `culprits` is empty if no worker is slower than the others; `cause` is then that of all. `unseen`:
    ranks without a report."""

    cause: CauseClass
    confidence: Confidence | None
    why: str
    culprits: tuple[Laggard, ...]
    witnesses: tuple[Witness, ...]
    contradictions: tuple[Message, ...]
    ranks: tuple[RankPace, ...]
    unseen: tuple[int, ...]
    seconds: float


#: The workers' reports, by name.
Reports = Mapping[str, StackReport]
_WAITING = (StackPlace.COLLECTIVE, StackPlace.JOINING, StackPlace.DEVICE)


def judge(reports: Reports) -> SlowVerdict:
    """Diagnoses the workers' reports, which are by name."""
    behind, stranger = _behind(reports)
    ranks = sorted(_paces(reports, behind), key=lambda pace: (pace.rank is None, pace.rank or 0, pace.worker))
    world = max((pace.report.number("world_size") or 0 for pace in ranks), default=0)
    known = {pace.rank for pace in ranks}
    unseen = tuple(rank for rank in range(min(world, 1 << 16)) if rank not in known)
    seconds = max((pace.seconds for pace in ranks), default=0.0)
    found = _judge(ranks, reports) if stranger is None or not ranks else _of_stranger(*stranger)
    return replace(found, ranks=tuple(ranks), unseen=unseen, seconds=seconds)


def _answer(
    cause: CauseClass, why: str, culprits: Iterable[Laggard], witnesses: Iterable[Witness], *against: Message
) -> SlowVerdict:
    told = tuple(dict.fromkeys(witnesses))
    kinds = {witness.kind for witness in told}
    sure = Confidence.CERTAIN if len(kinds) > 1 and not against else Confidence.LIKELY
    confidence = sure if told and cause is not CauseClass.UNKNOWN else None
    return SlowVerdict(cause, confidence, why, tuple(culprits), told, against, (), (), 0.0)


def _of_stranger(host: str, pid: int, share: float) -> SlowVerdict:
    text = Message("pid {pid} on {host} had launched less than others in {share:.0%} of the looks at NCCL's counts",
                   pid=pid, host=host, share=share)  # fmt: skip
    why = Message("a rank on {host} that was not looked at launches last", host=host)
    return _answer(CauseClass.UNKNOWN, why, (), (Witness(WitnessKind.LAUNCHES, text),))


def _judge(ranks: Sequence[RankPace], reports: Reports) -> SlowVerdict:
    if not ranks:
        return _answer(CauseClass.UNKNOWN, nobody(reports), (), ())
    least = _GAP_IF_BUSY if any(_busy(report) for report in reports.values()) else _GAP
    sampled = late(ranks, lambda pace: pace.sampled, least)
    # Without stacks, a wait in `recv` for one of them looks like one for a lock.
    sampled = [pace for pace in sampled if pace.places or pace.doing.get(Doing.LOCK, 0.0) < _MAINLY] or sampled
    launched = late(ranks, lambda pace: None if pace.behind is None else 1.0 - pace.behind, _GAP_OF_LAUNCHES)
    stacked = late(ranks, lambda pace: pace.stacked, _GAP_OF_STACKS)
    first = sampled or launched
    if first and stacked and not set(_keys(first)) & set(_keys(stacked)):
        text = (Message("by samples {ranks} arrive last, by stacks {others}") if sampled
                else Message("by NCCL's counts {ranks} arrive last, by stacks {others}"))  # fmt: skip
        against = text.filled(ranks=named(first), others=named(stacked))
        return _answer(CauseClass.UNKNOWN, Message("the witnesses contradict each other"), (), (), against)
    unknown = any(pace.sampled is None for pace in ranks)
    # Stacks decide only if neither samples nor launches show who waits.
    last = first or (stacked if unknown else [])
    if not last and unknown and median(pace.runs for pace in ranks) >= _MAINLY:
        last = late(ranks, lambda pace: pace.runs, _GAP_OF_STACKS)
    if last:
        others = [pace for pace in ranks if pace not in last]
        return _of_late(last, others, reports, bool(sampled), bool(launched), bool(stacked))
    seen = all(pace.behind is not None for pace in ranks) or median(_known(pace.waits) for pace in ranks) >= _WAITED
    if len(ranks) > 1 and unknown and not seen:
        return _answer(CauseClass.UNKNOWN, Message("nothing shows which rank the others wait for"), (), ())
    return _of_all(ranks, reports)


def _busy(report: StackReport) -> bool:
    """Whether its machine had next to no idle CPU time."""
    ticks = report.watched.ticks if report.watched else {}
    return bool(ticks) and ticks.get("idle", 0) + ticks.get("iowait", 0) < _IDLE * sum(ticks.values())


def _keys(ranks: Iterable[RankPace]) -> list[tuple[str, int]]:
    return [(pace.worker, pace.report.pid) for pace in ranks]


def late(ranks: Sequence[RankPace], waits: Callable[[RankPace], float | None], least: float = _GAP) -> list[RankPace]:
    """The ranks that wait less than the others by a share of `least`, at most half of them; empty if there are none, or
    if it is unknown how long a rank waits."""
    known = [(share, pace) for pace in ranks if (share := waits(pace)) is not None]
    if len(known) < 2 or len(known) < len(ranks):
        return []
    known.sort(key=lambda item: item[0])
    most = max(1, int(len(known) * _MINORITY))
    gap, at = max((known[at][0] - known[at - 1][0], at) for at in range(1, most + 1))
    if gap < least or known[at][0] < _WAITED:
        return []
    return [pace for _, pace in known[:at]]


# A rank that arrives last


def _of_late(
    last: Sequence[RankPace],
    others: Sequence[RankPace],
    reports: Reports,
    by_samples: bool,
    by_launches: bool,
    by_stacks: bool,
) -> SlowVerdict:
    first = last[0]

    def witness(kind: WitnessKind, text: Message, share: Callable[[RankPace], float | None]) -> Witness:
        usual = median(_known(share(pace)) for pace in others)
        return Witness(kind, text.filled(ranks=named(last), share=_known(share(first)), waits=usual))

    witnesses = []
    if by_samples:
        text = Message("{ranks}: waits for the others {share:.0%} of the time, the others {waits:.0%}")
        witnesses.append(witness(WitnessKind.SAMPLES, text, lambda pace: pace.sampled))
    if by_launches:
        text = Message("{ranks}: had launched less than others in {share:.0%} of the looks at NCCL's counts, the "
                       "others in {waits:.0%}")  # fmt: skip
        witnesses.append(witness(WitnessKind.LAUNCHES, text, lambda pace: pace.behind))
    if by_stacks:
        text = (Message("stacks: {share:.0%} in collectives, the others {waits:.0%}") if by_samples
                else Message("{ranks}: stacks: waits for the others or its GPU {share:.0%} of the time, the others "
                             "{waits:.0%}"))  # fmt: skip
        witnesses.append(witness(WitnessKind.STACKS, text, lambda pace: pace.stacked))
    guessed = not witnesses
    if guessed:
        text = Message("{ranks}: computes or waits for a GPU {share:.0%} of the time, the others {waits:.0%}")
        witnesses.append(witness(WitnessKind.SAMPLES, text, lambda pace: pace.runs))
    found = next((found for found in _explained(first, others, reports) if found is not None), None)
    against = tuple(_against(last, reports)) if found is None or found.cause is not CauseClass.GPU else ()
    if found is None:
        return _answer(
            CauseClass.UNKNOWN, Message("it arrives last, and nothing shows why"), _laggards(last), witnesses
        )
    answer = _answer(found.cause, found.why, _laggards(last, found), [*witnesses, *found.witnesses], *against)
    # That a rank does something else does not show that the others wait for it.
    return replace(answer, confidence=answer.confidence and Confidence.LIKELY) if guessed else answer


def _known(share: float | None) -> float:
    return share or 0.0


def _laggards(last: Sequence[RankPace], found: Explained | None = None) -> Iterator[Laggard]:
    for at, pace in enumerate(last):
        yield Laggard(pace.worker, pace.rank, gpu=found.gpu if found and not at else None,
                      mount=found.mount if found and not at else None, frame=pace.frame)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Explained:
    """A cause, with its facts."""

    cause: CauseClass
    why: str
    witnesses: tuple[Witness, ...] = ()
    gpu: int | None = None
    mount: str | None = None


def _explained(pace: RankPace, others: Sequence[RankPace], reports: Reports) -> Iterator[Explained | None]:
    """The causes that fit, the strongest first."""
    yield _gpu(pace, others, reports)
    yield _limited(pace)
    yield _stolen(pace, others, reports)
    yield _pressed(pace, others, reports)
    yield _queued(pace, others, reports)
    yield _activity(pace, others)


_SLOWED = {
    "heat": Message("heat slows its clocks"),
    "power brake": Message("the power supply slows its clocks"),
    "hardware": Message("its hardware slows its clocks"),
}


def gpu_of(pace: RankPace, reports: Reports) -> list[GpuLoad]:
    """The rank's GPU in each query of nvidia-smi."""
    watched = reports[pace.worker].watched
    wanted = pace.watched.gpu
    if watched is None or wanted is None:
        return []
    return [gpu for look in watched.gpus for gpu in look if wanted in (str(gpu.index), gpu.uuid)]


def _gpu(pace: RankPace, others: Sequence[RankPace], reports: Reports) -> Explained | None:
    looks = gpu_of(pace, reports)
    if not looks:
        return None
    last, reasons = looks[-1], dict.fromkeys(why for look in looks for why in look.slowed)
    clock, usual = _clock(looks), _middle(_clock(gpu_of(other, reports)) for other in others)
    slow, errors = _is_low(looks, usual), _ecc(looks)
    if not reasons and not slow and errors is None:
        return None
    whys = [_SLOWED[why] for why in reasons if why in _SLOWED] or [Message("its clock is low")] * slow
    why: Message = joined([*whys, *([Message("its memory has ECC errors")] if errors else [])])
    facts = Message(
        "GPU {index} of {worker}: {clock} MHz (the others {usual}), {power} W, {temperature} °C, {use} %",
        index=last.index, worker=pace.worker, clock=_figure(clock), usual=_figure(usual), power=_figure(last.power),
        temperature=_figure(last.temperature), use=_figure(last.use),
    )  # fmt: skip
    texts = [facts, *([errors] if errors else [])]
    return Explained(CauseClass.GPU, why, tuple(Witness(WitnessKind.GPU, text) for text in texts), gpu=last.index)


def _clock(looks: Sequence[GpuLoad]) -> float | None:
    return _middle(look.clock for look in looks)


def _is_low(looks: Sequence[GpuLoad], usual: float | None) -> bool:
    """Whether the clock of a GPU in use is below that of the others."""
    clock = _clock(looks)
    return clock is not None and usual is not None and clock < _CLOCK * usual and (looks[-1].use or 0.0) >= _USED


def _ecc(looks: Sequence[GpuLoad]) -> Message | None:
    """The ECC errors of a GPU in the window, if there are too many."""
    corrected, uncorrected = (
        max(known) - known[0] if known else 0.0
        for known in ([count for count in counts if count is not None]
                      for counts in ([look.corrected for look in looks], [look.uncorrected for look in looks]))
    )  # fmt: skip
    if corrected < _CORRECTED and uncorrected < 1:
        return None
    return Message("its memory had {corrected:.0f} ECC errors that were corrected, and {uncorrected:.0f} that were not",
                   corrected=corrected, uncorrected=uncorrected)  # fmt: skip


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _limited(pace: RankPace) -> Explained | None:
    if pace.throttled < _THROTTLED:
        return None
    limit = pace.watched.cpu_quota
    text = Message(
        "its control group was throttled for {share:.0%} of the time; its limit: {limit} CPUs",
        share=min(1.0, pace.throttled), limit="?" if limit is None else f"{limit:.2g}",
    )  # fmt: skip
    return Explained(CauseClass.CPU_LIMIT, Message("its CPU limit"), (Witness(WitnessKind.COUNTERS, text),))


def _stolen(pace: RankPace, others: Sequence[RankPace], reports: Reports) -> Explained | None:
    share = steal(reports[pace.worker])
    usual = median([steal(reports[other.worker]) for other in others] or [0.0])
    if share < _STOLEN or share < _TIMES * usual:
        return None
    text = Message("the hypervisor took {share:.0%} of the machine's CPU time", share=share)
    return Explained(CauseClass.STEAL, Message("other machines on its host"), (Witness(WitnessKind.COUNTERS, text),))


def steal(report: StackReport) -> float:
    """The share of the machine's CPU time that a hypervisor gave to others."""
    ticks = report.watched.ticks if report.watched else {}
    return ticks.get("steal", 0) / max(1, sum(ticks.values()))


def _pressed(pace: RankPace, others: Sequence[RankPace], reports: Reports) -> Explained | None:
    def faults(rank: RankPace) -> float:
        return (rank.watched.major_faults or 0) / max(rank.seconds, 1.0)

    share = short_of_memory(reports[pace.worker])
    usual = median([short_of_memory(reports[other.worker]) for other in others] or [0.0])
    many = faults(pace) >= _FAULTS and faults(pace) >= _TIMES * median([faults(other) for other in others] or [0.0])
    if not many and (share < _PRESSED or share < _TIMES * usual):
        return None
    text = Message(
        "all tasks of its control group waited for memory {share:.0%} of the time; {faults:.0f} page faults a second "
        "needed a disk",
        share=share, faults=faults(pace),
    )  # fmt: skip
    return Explained(CauseClass.MEMORY, Message("it is short of memory"), (Witness(WitnessKind.COUNTERS, text),))


def short_of_memory(report: StackReport) -> float:
    """The share of the window in which all tasks waited for memory."""
    watched = report.watched
    return watched.pressure.get("memory", {}).get("full", 0.0) / max(watched.seconds, 1.0) if watched else 0.0


def _queued(pace: RankPace, others: Sequence[RankPace], reports: Reports) -> Explained | None:
    usual = median([other.queued for other in others] or [0.0])
    more = _computes(pace) > _TIMES * median([_computes(other) for other in others] or [0.0]) + _COMPUTES
    if pace.queued < _QUEUED or more:
        return None
    # On a busy machine the others wait for a CPU, too.
    if pace.queued < _TIMES * usual and _most(_excess(pace, others)) is not Doing.RUN:
        return None
    text = Message(
        "it was ready to run and had no CPU {share:.0%} of the time, the others {usual:.0%}",
        share=pace.queued, usual=usual,
    )  # fmt: skip
    witnesses = [Witness(WitnessKind.COUNTERS, text), *_beside(reports[pace.worker])]
    return Explained(CauseClass.CPU_SHARED, Message("other processes use its CPUs"), tuple(witnesses))


def _computes(pace: RankPace) -> float:
    """The share of the time in which its main thread was on a CPU."""
    return (pace.report.run_ns or 0) / 1e9 / pace.seconds


def _beside(report: StackReport) -> Iterator[Witness]:
    watched = report.watched
    busy = [f"{name} {seconds:.1f} s" for name, seconds in (watched.others if watched else ()) if seconds >= 1.0][:3]
    if busy:
        yield Witness(WitnessKind.COUNTERS, Message("CPU time of other processes: {busy}", busy=joined(busy, LIST)))


_BY_DOING: Mapping[Doing, tuple[CauseClass, str]] = {
    Doing.SLEEP: (CauseClass.SLEEP, BY_SIGN[Sign.SLEEP][1]),
    Doing.READ: (CauseClass.INPUT, BY_SIGN[Sign.FILE][1]),
    Doing.RECEIVE: (CauseClass.INPUT, Message("it waits for data from the network")),
    Doing.WRITE: (CauseClass.OUTPUT, Message("it writes")),
    Doing.RUN: (CauseClass.CODE, Message("its Python code takes long")),
    Doing.LOCK: (CauseClass.CODE, Message("it waits for a lock or a thread")),
    Doing.CHILD: (CauseClass.CODE, BY_SIGN[Sign.CHILD][1]),
}


def _excess(pace: RankPace, others: Sequence[RankPace]) -> dict[Doing, float]:
    """The shares of activities beyond those of the others."""
    return {
        doing: pace.doing.get(doing, 0.0) - median([other.doing.get(doing, 0.0) for other in others] or [0.0])
        for doing in _BY_DOING
    }


def _most(excess: Mapping[Doing, float]) -> Doing:
    return max(excess, key=lambda doing: excess[doing])


#: Activities by the place of the stack.
_BY_STACK: Mapping[StackPlace, Doing] = {
    StackPlace.USER: Doing.RUN,
    StackPlace.STORAGE: Doing.READ,
    StackPlace.NETWORK: Doing.RECEIVE,
    StackPlace.LOCK: Doing.LOCK,
}


def _activity(pace: RankPace, others: Sequence[RankPace]) -> Explained | None:
    """The activity in which it exceeds the others most."""
    excess = _excess(pace, others)
    doing = _most(excess)
    loads = pace.places.get(StackPlace.LOADER, 0.0)
    usual = median([other.places.get(StackPlace.LOADER, 0.0) for other in others] or [0.0])
    if loads - usual >= _GAP and loads - usual >= excess[doing] / 2:
        return _loader(pace, loads)
    if excess[doing] < _GAP / 2:
        # Ranks that wait for a GPU run, as those that work: only the stacks differ.
        beyond = {
            place: pace.places.get(place, 0.0) - median([other.places.get(place, 0.0) for other in others] or [0.0])
            for place in _BY_STACK
        }
        place = max(beyond, key=lambda place: beyond[place])
        if beyond[place] < _GAP:
            return None
        doing = _BY_STACK[place]
    found = _doing(pace, doing, pace.doing.get(doing, 0.0))
    much = any(
        counted(pace) >= max(least, _WRITTEN_TIMES * median([counted(other) for other in others] or [0.0]))
        for counted, least in ((_written, _WRITTEN), (_writes, _WRITES))
    )
    if much and found.cause is CauseClass.CODE:
        text = Message("it writes {rate:.1f} MB/s, in {calls:.0f} calls a second", rate=_written(pace) / 1e6,
                       calls=_writes(pace))  # fmt: skip
        witnesses = (Witness(WitnessKind.COUNTERS, text), *found.witnesses)
        return replace(found, cause=CauseClass.OUTPUT, why=_BY_DOING[Doing.WRITE][1], witnesses=witnesses)
    return found


def _written(pace: RankPace) -> float:
    """Bytes that it writes in a second."""
    return (pace.watched.written_bytes or 0) / pace.seconds


def _writes(pace: RankPace) -> float:
    """Calls in which it writes, in a second."""
    return (pace.watched.writes or 0) / pace.seconds


def _loader(pace: RankPace, share: float) -> Explained:
    text = Message("stacks: waits for its DataLoader {share:.0%} of the time", share=share)
    witnesses, mount = [Witness(WitnessKind.STACKS, text)], None
    lower = _shares(pace.watched.children)
    if lower:
        doing, most = max(lower.items(), key=lambda item: item[1])
        target, mount = _target(pace.watched.children, doing)
        text = Message("its child processes: {what}: {share:.0%} of the time{target}")
        text = text.filled(what=VERBS[doing], share=most, target=target)
        witnesses.append(Witness(WitnessKind.SAMPLES, text))
    return Explained(CauseClass.INPUT, BY_PLACE[StackPlace.LOADER][1], tuple(witnesses), mount=mount)


def _doing(pace: RankPace, doing: Doing, share: float) -> Explained:
    cause, why = _BY_DOING[doing]
    target, mount = _target(pace.watched.samples, doing)
    if doing is Doing.READ and target:
        why = Message("{why}{target}", why=why, target=target)
    witnesses = [Witness(WitnessKind.SAMPLES, Message("{what}: {share:.0%} of the time{target}", what=VERBS[doing],
                                                      share=share, target=target))]  # fmt: skip
    total = sum(count for _, count in pace.watched.stacks)
    if doing is Doing.RUN and pace.watched.collects >= max(2, total * share / 3):
        cause, why = CauseClass.GARBAGE, Message("it collects garbage")
    frame = pace.frame
    if frame is not None:
        text = Message("stacks: most often in {function} ({path}:{line})", function=frame.function, path=frame.path,
                       line=frame.line)  # fmt: skip
        witnesses.append(Witness(WitnessKind.STACKS, text))
    return Explained(cause, why, tuple(witnesses), mount=mount)


VERBS: Mapping[Doing, Message] = {
    Doing.WAIT: Message("waits for the others"),
    Doing.RUN: Message("runs"),
    Doing.READ: Message("reads"),
    Doing.WRITE: Message("writes"),
    Doing.RECEIVE: Message("receives"),
    Doing.SLEEP: Message("sleeps"),
    Doing.CHILD: Message("waits for a process"),
    Doing.LOCK: Message("waits for a lock or a thread"),
    Doing.OTHER: Message("other"),
}


def _target(samples: Sequence[Sample], doing: Doing) -> tuple[str, str | None]:
    """The file in half of the samples of an activity or more, behind a colon, and its mount. Some calls have none."""
    found = Counter[tuple[str | None, str | None]]()
    for sample in samples:
        if activity(sample) is doing:
            found[sample.at.target, sample.mount] += sample.count
    (target, mount), count = found.most_common(1)[0] if found else ((None, None), 0)
    return (f": {target}", mount) if target and 2 * count >= found.total() else ("", None)


def _against(last: Sequence[RankPace], reports: Reports) -> Iterator[Message]:
    """Facts that point to another rank."""
    names = {pace.worker for pace in last}
    for worker, report in reports.items():
        for look in report.watched.gpus[-1:] if report.watched else ():
            for gpu in look:
                if gpu.slowed and worker not in names:
                    yield Message("GPU {index} of {worker} is slowed, and the others do not wait for it",
                                  index=gpu.index, worker=worker)  # fmt: skip


# No rank that arrives last


def _of_all(ranks: Sequence[RankPace], reports: Reports) -> SlowVerdict:
    waits = median(_known(pace.waits) for pace in ranks)
    if ranks[0].sampled is not None:
        text = Message("all ranks wait in collectives {waits:.0%} of the time", waits=waits)
        shown = Witness(WitnessKind.SAMPLES, text)
    else:
        text = Message("all ranks wait in collectives or for their GPUs {waits:.0%} of the time", waits=waits)
        shown = Witness(WitnessKind.STACKS, text)
    if waits >= _ALL_WAIT:
        slow, faults = _links(ranks, reports), _interfaces(ranks)
        if slow is not None:
            ends = {end for culprit in slow.culprits for end in (culprit.worker, culprit.peer)}
            agree = tuple(fault for worker, fault in faults.items() if worker in ends)
            against = tuple(Message("{fault}; its links are not slow", fault=fault.text)
                            for worker, fault in faults.items() if worker not in ends)  # fmt: skip
            sure = Confidence.LIKELY if against else Confidence.CERTAIN
            return replace(slow, witnesses=(shown, *slow.witnesses, *agree), contradictions=against, confidence=sure)
        if 0 < len(faults) <= len({pace.worker for pace in ranks}) * _MINORITY:
            why = Message("its network interface has errors")
            found = _answer(CauseClass.NETWORK, why, map(Laggard, faults), faults.values())
            return replace(found, witnesses=(shown, *found.witnesses))
    looks = {id(pace): gpu_of(pace, reports) for pace in ranks}
    usual = _middle(_clock(some) for some in looks.values())
    hot = [pace for pace in ranks if (some := looks[id(pace)])
           and (any(look.slowed for look in some) or _ecc(some) or _is_low(some, usual))]  # fmt: skip
    if 0 < len(hot) <= len(ranks) * _MINORITY:
        bad = _gpu(hot[0], [pace for pace in ranks if pace not in hot], reports)
        if bad is not None:
            return _answer(CauseClass.GPU, bad.why, _laggards(hot, bad), bad.witnesses)
    limited = [pace for pace in ranks if pace.throttled >= _THROTTLED]
    if len(limited) > len(ranks) * _MINORITY:
        limit = _limited(limited[0])
        return _answer(CauseClass.CPU_LIMIT, EQUAL, (), limit.witnesses if limit else ())
    queued = median(pace.queued for pace in ranks)
    if queued >= _QUEUED:
        text = Message("the ranks were ready to run and had no CPU {share:.0%} of the time", share=queued)
        busiest = max(ranks, key=lambda pace: pace.queued)
        witnesses = [Witness(WitnessKind.COUNTERS, text), *_beside(reports[busiest.worker])]
        why = Message("the machine is short of CPUs for all of its ranks")
        return _answer(CauseClass.CPU_SHARED, why, (), witnesses)
    return _alike(ranks, shown)


EQUAL = Message("no worker is slower than the others")


def _alike(ranks: Sequence[RankPace], waiting: Witness) -> SlowVerdict:
    """The activity of most of the time of all ranks."""
    shares = {doing: median(pace.doing.get(doing, 0.0) for pace in ranks) for doing in Doing}
    loads = median(pace.places.get(StackPlace.LOADER, 0.0) for pace in ranks)
    devices = median(pace.places.get(StackPlace.DEVICE, 0.0) for pace in ranks)
    doing = max(shares, key=lambda doing: shares[doing])
    if loads >= 0.3 and loads >= shares[Doing.WAIT]:
        found = _loader(ranks[0], loads)
        return _answer(found.cause, EQUAL, (), found.witnesses)
    if devices >= 0.3 and devices >= shares[Doing.WAIT]:
        text = Message("stacks: all ranks wait for their GPUs {share:.0%} of the time", share=devices)
        why = Message("all ranks wait alike for their GPUs, or for the network between them")
        return _answer(CauseClass.GPU, why, (), (Witness(WitnessKind.STACKS, text),))
    if doing is Doing.WAIT:
        return _answer(CauseClass.NETWORK, EQUAL, (), (waiting,))
    if doing not in _BY_DOING:
        return _answer(CauseClass.UNKNOWN, EQUAL, (), ())
    # Without gloo, a main thread that runs computes, launches, or waits for its GPU.
    spins = doing is Doing.RUN and ranks[0].sampled is None
    if spins and not any(pace.places for pace in ranks):
        why = Message("all ranks launch alike; only stacks show whether they compute or wait")
        return _answer(CauseClass.UNKNOWN, why, (), ())
    most = max(ranks, key=lambda pace: pace.doing.get(doing, 0.0))
    alike = _doing(most, doing, shares[doing])
    answer = _answer(alike.cause, EQUAL, (), alike.witnesses)
    return replace(answer, confidence=Confidence.LIKELY) if spins else answer


@dataclass(slots=True)
class _Route:
    """All connections from one worker to another."""

    busy: float = 0.0
    acked: int = 0
    again: int = 0
    segments: int = 0

    @property
    def rate(self) -> float:
        return self.acked / self.busy if self.busy else 0.0

    @property
    def lost(self) -> float:
        return self.again / self.segments if self.segments else 0.0


def _links(ranks: Sequence[RankPace], reports: Reports) -> SlowVerdict | None:
    """The link, or the worker at the end of several, that is slow or loses data."""
    homes = {address: worker for worker, report in reports.items() for address in report.addresses}
    # Ranks may be in another network namespace than the probe.
    homes |= {address: pace.worker for pace in ranks for address in pace.watched.addresses}
    ways: dict[tuple[str, str], _Route] = {}
    for pace in ranks:
        for link in pace.watched.links:
            peer = homes.get(link.peer)
            if peer is not None and peer != pace.worker and not link.peer.startswith("127."):
                way = ways.setdefault((pace.worker, peer), _Route())
                way.busy += link.busy
                way.acked += link.acked
                way.again += link.retransmitted
                way.segments += link.segments
    used = {ends: way for ends, way in ways.items() if way.acked >= _BYTES}
    seconds = max(pace.seconds for pace in ranks)
    losses = [ends for ends, way in used.items() if way.again >= _LOST and way.lost >= _LOST_SHARE
              and way.lost >= _LOST_TIMES * _rest(used, ends, lambda way: way.lost)]  # fmt: skip
    slow = [ends for ends, way in used.items() if way.busy >= _BUSY * seconds
            and way.rate <= _RATE * _rest(used, ends, lambda way: way.rate)]  # fmt: skip
    for suspects, why in ((losses, Message("data is lost and sent again")), (slow, Message("data arrives slowly"))):
        culprit = _common(suspects)
        if culprit is not None:
            return _answer(CauseClass.NETWORK, why, (culprit,), [_route_text(ends, used[ends]) for ends in suspects])
    return None


def _rest(used: Mapping[tuple[str, str], _Route], ends: tuple[str, str], figure: Callable[[_Route], float]) -> float:
    """The best figure of the links that share no worker with this one; of all others if there are none."""
    others = [figure(way) for other, way in used.items() if other != ends]
    return median(others) if others else 0.0


def _common(suspects: Sequence[tuple[str, str]]) -> Laggard | None:
    """The link, or the worker that all links share."""
    if not suspects:
        return None
    pairs = {frozenset(ends) for ends in suspects}
    if len(pairs) == 1:
        return Laggard(suspects[0][0], peer=suspects[0][1])
    shared = frozenset.intersection(*pairs)
    return Laggard(next(iter(shared))) if len(shared) == 1 else None


def _route_text(ends: tuple[str, str], way: _Route) -> Witness:
    text = Message(
        "{one} to {other}: {rate:.1f} MB/s while data was under way ({busy:.1f} s), {again} of {segments} "
        "segments sent again",
        one=ends[0], other=ends[1], rate=way.rate / 1e6, busy=way.busy, again=way.again, segments=way.segments,
    )  # fmt: skip
    return Witness(WitnessKind.LINKS, text)


def _interfaces(ranks: Sequence[RankPace]) -> dict[str, Witness]:
    """The faults of network interfaces and InfiniBand ports, by worker."""
    counts = {(pace.worker, name): found for pace in ranks for name, found in pace.watched.interfaces.items()}
    found: dict[str, list[str]] = {}
    for (worker, name), own in counts.items():
        packets = own.get("rx_packets", 0) + own.get("tx_packets", 0)
        bad = []
        for kind, least in _FAULTY.items():
            count = own.get(kind, 0)
            rest = [other.get(kind, 0) for (peer, _), other in counts.items() if peer != worker]
            lost = not kind.endswith("_dropped") or count >= _LOST_SHARE * packets
            if count >= least and lost and count > _LOST_TIMES * median(rest or [0]):
                bad.append(f"{kind} {count}")
        if bad:
            found.setdefault(worker, []).append(f"{name}: {', '.join(bad)}")
    return {
        worker: Witness(
            WitnessKind.COUNTERS, Message("faults of {worker}: {faults}", worker=worker, faults="; ".join(bad))
        )
        for worker, bad in found.items()
    }


def with_network_test(found: SlowVerdict, faults: Mapping[Laggard, str], note: str) -> SlowVerdict:
    """The verdict with the result of the network test: its `faults` by link or worker; `note`: its figures."""
    texts = [Message("network test: {who}: {what}", who=who.name, what=what) for who, what in faults.items()]
    texts = texts or [Message("network test: no slow or lossy link ({note})", note=note)]
    added = replace(found, witnesses=(*found.witnesses, *(Witness(WitnessKind.TEST, text) for text in texts)))
    suspects, blamed = ({end for who in some for end in (who.worker, who.peer)} for some in (faults, found.culprits))
    network = found.cause is CauseClass.NETWORK
    if not faults and not (network and blamed):
        return added
    if network and not blamed:
        why = Message("the network test found it slow or lossy")
        return replace(added, culprits=tuple(faults), why=why, confidence=Confidence.LIKELY)
    if network and suspects & blamed:
        return added if found.contradictions else replace(added, confidence=Confidence.CERTAIN)
    other = Message("the network test found a fault, and the ranks do not wait for the network")
    against = Message("the network test does not confirm it") if network else other
    sure = found.confidence and Confidence.LIKELY
    return replace(added, contradictions=(*found.contradictions, against), confidence=sure)


# Shares


def _paces(reports: Reports, behind: Mapping[int, float]) -> Iterator[RankPace]:
    every = [rank.watched for report in reports.values() for rank in report.ranks if rank.watched is not None]
    # Jobs with NCCL may have a group of gloo that is seldom used.
    uses_gloo = any(sample.gloo for watched in every for sample in watched.samples)
    for worker, report in reports.items():
        seconds = report.watched.seconds if report.watched and report.watched.seconds else report.seconds
        for rank in report.ranks:
            if rank.watched is None or not rank.looks:
                continue
            window = max(seconds, 0.1)
            throttled = (rank.watched.throttled or 0.0) / window
            yield RankPace(
                rank=rank.rank,
                worker=worker,
                report=rank,
                watched=rank.watched,
                seconds=window,
                doing=_shares(rank.watched.samples),
                places=_places(rank.watched),
                knows_gloo=uses_gloo and any(sample.gloo is not None for sample in rank.watched.samples),
                behind=behind.get(id(rank)),
                queued=(rank.wait_ns or 0) / 1e9 / window,
                throttled=throttled,
                cpu=rank.ticks / report.ticks_per_second / window,
            )


def _behind(reports: Reports) -> tuple[dict[int, float], tuple[str, int, float] | None]:
    """`RankPace.behind` by the `id` of the rank's report, and host, pid and share of the process without a report that
    was behind most often, if it was often. Nothing if a process that was behind may be one of several."""
    every = [report.watched for report in reports.values() if report.watched is not None]
    looks, counts = sum(watched.launch_looks for watched in every), Counter[tuple[str, int]]()
    for watched in every:
        counts.update(watched.late)
    ranks = processes(reports)
    if looks < _LOOKS or any(ranks.get(process, True) is None for process in counts):
        return {}, None
    shares = {id(rank): 0.0 for report in reports.values() for rank in report.ranks}
    stranger = None
    for process, count in counts.most_common():
        rank, share = ranks.get(process), min(1.0, count / looks)
        if rank is not None:
            shares[id(rank)] = share
        elif stranger is None and share >= _GAP_OF_LAUNCHES:
            stranger = (*process, share)
    return shares, stranger


def _shares(samples: Sequence[Sample]) -> dict[Doing, float]:
    found = Counter[Doing]()
    for sample in samples:
        found[activity(sample)] += sample.count
    return {doing: count / found.total() for doing, count in found.items()} if found.total() else {}


def activity(sample: Sample) -> Doing:
    """The activity of a thread at the moment of a sample."""
    at, call = sample.at, call_of(sample.at)
    if at.state == "R":
        return Doing.RUN
    if call == "futex":
        return Doing.WAIT if sample.gloo else Doing.LOCK
    for doing, calls in (
        (Doing.SLEEP, SLEEP_CALLS),
        (Doing.WRITE, WRITE_CALLS),
        (Doing.READ, FILE_CALLS),
        (Doing.CHILD, CHILD_CALLS),
        (Doing.RECEIVE, POLL_CALLS),
    ):
        if call in calls:
            return doing
    return Doing.OTHER


def _places(watched: RankWatch) -> dict[StackPlace, float]:
    found = Counter[StackPlace]()
    for frames, count in watched.stacks:
        found[watched.place(frames)] += count
    return {place: count / found.total() for place, count in found.items()} if found.total() else {}


def busiest_frame(watched: RankWatch) -> Frame | None:
    """The user's line that most samples are in, of those that do not wait for others if there are any."""
    found = Counter[Frame]()
    waiting = Counter[Frame]()
    for frames, count in watched.stacks:
        frame = innermost_user_frame(frames)
        if frame is not None:
            (waiting if watched.place(frames) in _WAITING else found)[frame] += count
    best = (found or waiting).most_common(1)
    return best[0][0] if best else None


def named(ranks: Sequence[RankPace]) -> Message:
    """`rank 2 on worker-2`."""
    workers = fold_names(dict.fromkeys(pace.worker for pace in ranks))
    numbers = sorted(pace.rank for pace in ranks if pace.rank is not None)
    if not numbers:
        return Message("a rank of unknown number on {workers}", workers=workers)
    if len(numbers) == 1:
        return _rank_on(numbers[0], workers)
    return Message("ranks {numbers} on {workers}", numbers=fold_numbers(numbers), workers=workers)


def _rank_on(rank: int, workers: str) -> Message:
    return Message("rank {rank} on {workers}", rank=rank, workers=workers)
