"""Which of several failures came first, and whether that can be known at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atlctl.diagnosis.cause.scene import Scene
from atlctl.diagnosis.failures import Failure

#: Failures that are nearer than this, in seconds, happened at once: no collective passes a failure on so fast.
AT_ONCE = 0.06
#: Clocks of nodes that nobody compared may differ by this much, in seconds.
UNALIGNED = 15.0


@dataclass(frozen=True, slots=True)
class First:
    """`leaders` share the first place. `margin`: seconds to the next one, None where only the log's order tells.

    `tie` says why nobody is alone in front: `at_once` (they are that near), `clocks` (of different workers, whose
    clocks nobody compared) or `unknown` (no times, or too coarse ones).
    """

    leaders: tuple[Failure, ...]
    margin: float | None
    tie: str = ""
    same_log: bool = False


def first_of(scene: Scene, failures: Sequence[Failure]) -> First:
    """The first of failures that all count the same. There is at least one."""
    if len(failures) == 1:
        return First(tuple(failures), None)
    timed = [(when, item) for item in failures if (when := scene.when(item)) is not None]
    if len({item.worker for item in failures}) == 1:
        return _in_one_log(scene, failures)
    if len(timed) < len(failures):
        return First(tuple(failures), None, "unknown")
    timed.sort(key=lambda pair: (pair[0].seconds, pair[1].line_no or 0))
    start, leader = timed[0]
    # In the leader's own worker the log's order decides.
    rivals = [(when, item) for when, item in timed[1:] if item.worker != leader.worker]
    own = [item for _, item in timed if item.worker == leader.worker]
    if len(own) > 1:
        inner = _in_one_log(scene, own)
        if inner.tie:
            return inner
        leader = inner.leaders[0]
    close, unknown, apart, margin = [], [], [], None
    for when, item in rivals:
        gap = when.seconds - start.seconds
        if gap <= UNALIGNED and not scene.clocks.aligned(leader.worker, item.worker):
            apart.append(item)
            continue
        margin = gap if margin is None else min(margin, gap)
        step = max(when.resolution, start.resolution)
        if step < 1 and gap <= AT_ONCE:
            close.append(item)
        elif gap < step:
            unknown.append(item)
    if unknown:
        return First((leader, *close, *unknown), margin, "unknown")
    if close:
        return First((leader, *close), margin, "at_once")
    if apart:
        return First((leader, *apart), margin, "clocks")
    return First((leader,), margin)


def _in_one_log(scene: Scene, failures: Sequence[Failure]) -> First:
    """One worker has one clock, and its log has an order where processes spoke for themselves."""
    spoken = [item for item in failures if item.line_no and item.process.traces]
    if len(spoken) == len(failures):
        leader = min(spoken, key=lambda item: item.process.traces[-1].line_no)
        return First((leader,), None, same_log=True)
    timed = sorted(
        ((when, item) for item in failures if (when := scene.when(item)) is not None), key=lambda pair: pair[0].seconds
    )
    if len(timed) == len(failures):
        start, leader = timed[0]
        tied = [item for when, item in timed if when.seconds - start.seconds < max(when.resolution, start.resolution)]
        if len(tied) == 1:
            return First((leader,), timed[1][0].seconds - start.seconds)
        failures = tied
    # The agent's `failed` line is about the process that it saw end first.
    noted = [item for item in failures if item.process.note is not None]
    if len(noted) == 1 and noted[0].strength == max((item.strength or 0) for item in failures):
        strongest = [item for item in failures if item.strength == noted[0].strength]
        if len(strongest) == 1:
            return First((noted[0],), None, same_log=True)
    return First(tuple(failures), None, "unknown")
