"""Repeat a group stage until it succeeds: the ranks that prevent this are named, and the others continue without them.

The events and stacks of the ranks show which one is to blame. If they do not, the stage runs in pairs of ranks.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from atlctl.i18n import Message, joined
from atlctl.jobs.naming import fold_names
from atlctl.smoke.context import Run
from atlctl.smoke.facts import SAME_IMAGE
from atlctl.smoke.findings import Finding, Severity
from atlctl.smoke.ranks.members import Member, leave_out, versions
from atlctl.smoke.ranks.stages import Stage, StageOutcome, Track
from atlctl.smoke.session import words_of

#: Maximum rounds of one stage: each names at least one rank and continues without it.
_ROUNDS = 5
#: Partners of each rank in pairs: with fewer, two bad ranks that meet are not both found.
_PARTNERS = 4
#: Errors that are consequences of another rank's failure.
_CONSEQUENCE = re.compile(
    r"closed by peer|[Cc]onnection (?:reset|refused|closed)|[Bb]roken pipe|[Tt]imed ?out|[Tt]imeout|aborted|"
    r"[Ss]ocket.{0,400}?(?:closed|error)|remote process exited|ncclRemoteError|"
    r"failed to recv|got 0 bytes|store->get|DistNetworkError|DistStoreError"
)
#: Error kinds of a rank (`remote/smoke/probe.py`): the leader's store does not answer; the other ranks are missing.
_UNREACHED, _ALONE = "unreached", "alone"
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
#: The innermost frame of a rank that waits for other ranks (in a collective) or for work on its GPU.
_WAITING = re.compile(r"\((?:distributed_c10d|c10d_logger)\.py|^(?:synchronize|_meet|_engine_run_backward) ")
#: Maximum number of frames and characters shown from a rank, and characters of an error without a culprit.
_FRAMES, _WORDS = 3, 300
ADVICE = {
    "crashed": Message("look at the worker's kernel log (dmesg) and its memory limit; then try another GPU or machine"),
    "hangs": Message(
        "atlctl stacks shows what processes of the job do; a GPU or a mount that hangs shows there as well"
    ),
    "does not start": Message("look at the worker's limits for processes and memory (ulimit -u, pids.max)"),
    "busy": Message("try again when the machines have less to do: atlctl top; or with fewer workers: -w"),
    "fails": Message("cure on this worker what the error says: the others pass"),
}

Player = TypeVar("Player", bound=Hashable)
Why = Literal["crashed", "hangs", "does not start", "fails"]


@dataclass(slots=True)
class Settled:
    """The result of `settle`. `outcome`: of the last round. `members`: its ranks. `whole`: all of them finished."""

    outcome: StageOutcome | None
    members: list[Member]
    blamed: list[Blame] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return self.outcome is not None and self.outcome.whole


async def settle(
    run: Run, check: str, members: Sequence[Member], seconds: float, *, least: int = 2, **stage: Any
) -> Settled:
    """Run a stage; adds a finding for each rank to blame, confirmed if the others succeed without it."""
    left, blamed, outcome = list(members), list[Blame](), None
    tried = False
    for _ in range(_ROUNDS):
        if len(left) < least:
            break
        outcome = await Stage(run.session, check, left, seconds, preferred=addresses(run), **stage).run()
        if outcome.whole:
            break
        gone = [track.member for track in lost(outcome)]
        found = blame(outcome)
        blamed += found
        leave_out(run, gone, Message("its agent is gone"))
        for one in found:
            leave_out(run, [one.member], one.why)
        if not found and not gone:
            found = await _localise(run, check, left, outcome, seconds, stage)
            blamed += found
            for one in found:
                leave_out(run, [one.member], one.why)
        out = {*gone, *(one.member for one in found)}
        if not out:
            if tried or not outcome.silent:
                break
            tried = True  # silence of all ranks once may mean a busy machine
        left = [member for member in left if member not in out]
    settled = Settled(outcome, left, blamed)
    run.find(*blame_findings(check, settled, await _once_more(run, check, settled, seconds, stage)))
    if outcome is not None and not outcome.whole and not blamed and len(left) >= least:
        run.find(nobody_to_blame(check, outcome, versions(run, left)))
    return settled


async def _localise(
    run: Run, check: str, members: Sequence[Member], outcome: StageOutcome, seconds: float, stage: Mapping[str, Any]
) -> list[Blame]:
    """The ranks that fail in pairs while their partners succeed without them."""
    culprits = await in_pairs(run, check, members, seconds, lambda end: not end.whole, **stage)
    why = next((track.error for track in outcome.tracks if track.error), Message("the whole group makes no progress"))
    text = Message("{who} fails in pairs with others, who get along without it: {why}", why=why)
    return [Blame(member, "fails", text.filled(who=member.name)) for member in culprits]


async def in_pairs(
    run: Run, check: str, members: Sequence[Member], seconds: float, bad: Callable[[StageOutcome], bool], **stage: Any
) -> list[Member]:
    """Run the stage in pairs, because no rank of the group differs from the others: the ranks that are `bad` with most
    partners. Empty if every pair is bad."""
    if len(members) < 3 or len(versions(run, members)) > 1:
        return []
    played, faulty = list[tuple[Member, Member]](), list[tuple[Member, Member]]()
    for games in pairings(members, _PARTNERS):
        stages = [Stage(run.session, check, pair, seconds, preferred=addresses(run), **stage) for pair in games]
        ends = await asyncio.gather(*(one.run() for one in stages))
        played += games
        faulty += [pair for pair, end in zip(games, ends, strict=True) if bad(end)]
    return [] if len(faulty) == len(played) else losers(played, faulty)[0]


async def _once_more(
    run: Run, check: str, settled: Settled, seconds: float, stage: Mapping[str, Any]
) -> frozenset[Member]:
    """The ranks accused only because of silence that succeed with a healthy rank in a second try."""
    fine = set[Member]()
    sound = settled.members if settled.whole else ()
    for one, partner in zip(filter(is_silent, settled.blamed), sound, strict=False):
        pair = [partner, one.member]
        if (await Stage(run.session, check, pair, seconds, preferred=addresses(run), **stage).run()).whole:
            fine.add(one.member)
    return frozenset(fine)


def blame_findings(check: str, settled: Settled, fine: Collection[Member] = ()) -> list[Finding]:
    """A finding for each rank to blame; `fine`: ranks that succeeded in a second try."""
    return [
        accused(
            check,
            one,
            Severity.WARN if one.member in fine else Severity.FAIL,
            confirmed=settled.whole,
            more=Message("a second time it got along") if one.member in fine else "",
        )
        for one in settled.blamed
    ]


def nobody_to_blame(check: str, outcome: StageOutcome, torch: Mapping[str, Sequence[str]]) -> Finding:
    """The finding if a stage did not finish and no rank can be blamed. Different torch versions may be incompatible."""
    errors = [(track.member.name, words_of(track.error, _WORDS)) for track in outcome.tracks if track.error]
    said = Message("no rank makes progress, and all do the same")
    if errors:
        said = Message("{what}: {why}", what=errors[0][0], why=errors[0][1])
    if len(torch) > 1:
        told = joined(
            Message("{version} on {workers}", version=version, workers=fold_names(names))
            for version, names in sorted(torch.items())
        )
        text = Message("different versions of torch did not get along ({versions}): {why}", versions=told, why=said)
        return Finding(check, Severity.INCOMPLETE, None, text, advice=SAME_IMAGE)
    advice = Message("see the results of mesh and facts for the network between them")
    return Finding(check, Severity.FAIL, None, said, False, advice)


def addresses(run: Run) -> dict[str, str | None]:
    """The platform's address of each worker."""
    return {worker.name: worker.address for worker in run.workers}


# Finding the rank to blame


@dataclass(frozen=True, slots=True)
class Blame:
    """One rank to blame. `refused`: its process could not be started."""

    member: Member
    why: Why
    evidence: str
    refused: bool = False


def blame(outcome: StageOutcome) -> list[Blame]:
    """The ranks to blame; empty if unknown. Ranks that failed as a consequence of another failure are left out."""
    tracks = outcome.tracks
    for found in (_unborn(tracks), _crashed(tracks), _failed(tracks)):
        if found:
            return found
    return _hung(tracks) if outcome.silent else []


def is_silent(one: Blame) -> bool:
    """Whether silence is the only evidence: on a busy machine it may not be a fault."""
    return one.why in ("hangs", "does not start") and not one.refused


def lost(outcome: StageOutcome) -> list[Track]:
    """Ranks whose agent is gone; the roll call reports these."""
    return [track for track in outcome.tracks if track.lost and track.exit is None]


def _unborn(tracks: Sequence[Track]) -> list[Blame]:
    found = []
    for track in tracks:
        if track.exit is not None and track.exit.get("started") is False:
            text = Message("the process of {who} cannot be started: {error}")
            text = text.filled(who=track.member.name, error=track.exit.get("error"))
            found.append(Blame(track.member, "does not start", text, refused=True))
        elif not track.up and not track.lost:
            text = Message("{who} does not start", who=track.member.name)
            found.append(Blame(track.member, "does not start", _doing(text, track)))
    return found


def _crashed(tracks: Sequence[Track]) -> list[Blame]:
    found = []
    for track in tracks:
        if track.exit is None or track.done or track.killed or track.error:
            continue
        if track.exit.get("late"):
            continue  # at its deadline
        number = track.exit.get("signal")
        how = _signal(number) if number else Message("ended with exit {code}", code=track.exit.get("code"))
        text = Message("{who} {ended} in {step}") if track.step else Message("{who} {ended} in its start")
        text = text.filled(who=track.member.name, ended=how, step=track.step)
        found.append(Blame(track.member, "crashed", _last(text, track)))
    return found


def _failed(tracks: Sequence[Track]) -> list[Blame]:
    """Ranks that failed with an error. If many ranks cannot reach the leader's store, the leader is to blame."""
    erred = [track for track in tracks if track.error]
    unreached = [track for track in erred if track.kind == _UNREACHED]
    others = sum(track.place > 0 for track in tracks)
    leader = next((track for track in tracks if track.place == 0), None)
    if leader is not None and len(unreached) > 1 and 2 * len(unreached) > others:
        text = Message("{who} opened the store, and {some} of {all} ranks cannot reach it: {error}")
        text = text.filled(who=leader.member.name, some=len(unreached), all=others, error=unreached[0].error)
        return [Blame(leader.member, "fails", text)]
    root = [t for t in erred if t.kind == _UNREACHED or not (t.kind == _ALONE or _CONSEQUENCE.search(t.error))]
    if len(root) == len(tracks) > 1:
        return []  # an error on all ranks is not the fault of one
    return [Blame(t.member, "fails", _erred(t)) for t in root]


def _erred(track: Track) -> Message:
    text = Message("{who} failed in {step}: {error}") if track.step else Message("{who} failed in its start: {error}")
    return text.filled(who=track.member.name, step=track.step, error=track.error)


def _hung(tracks: Sequence[Track]) -> list[Blame]:
    """The rank that the others wait for: stopped, blocked in the kernel, behind the others, or at another place."""
    left = [track for track in tracks if not track.done and not track.error and not track.lost]
    stopped = [track for track in left if track.look is not None and str(track.look.get("state")) in "TtD"]
    if stopped and len(stopped) < len(tracks):
        return [_hangs(track) for track in stopped]
    reached = Counter(len(track.steps) for track in tracks)
    if len(tracks) < 2 or not left:
        return [_hangs(track) for track in left]
    behind = [track for track in left if len(track.steps) == min(reached)]
    if len(behind) == 1 and len(reached) > 1:
        return [_hangs(behind[0])]
    # Ranks in the same step: the culprit is the one that does not wait, or whose stack differs.
    idle = [track for track in behind if _place(track) and not _WAITING.search(_place(track))]
    if idle and 2 * len(idle) < len(tracks):
        return [_hangs(track) for track in idle]
    usual, many = Counter(_place(track) for track in behind).most_common(1)[0]
    odd = [track for track in behind if _place(track) != usual]
    return [_hangs(track) for track in odd] if len(odd) < many else []


def frames(stack: object) -> list[str]:
    """Parse faulthandler's text: the frames of the main thread as `function (file:line)`, innermost first."""
    if not isinstance(stack, str):
        return []
    # Use the last dump; its last thread is the main thread.
    _, _, last = stack.rpartition("most recent call first")
    return [f"{name} ({file.rpartition('/')[2]}:{line})" for file, line, name in _FRAME.findall(last)]


def _place(track: Track) -> str:
    """The innermost frames without line numbers: ranks that wait for each other may be on different lines of a loop."""
    found = frames((track.look or {}).get("stack"))
    return " ".join(frame.partition(":")[0] for frame in found[:_FRAMES])


def _hangs(track: Track) -> Blame:
    text = Message("{who} hangs in {step}") if track.step else Message("{who} hangs in its start")
    text = text.filled(who=track.member.name, step=track.step)
    return Blame(track.member, "hangs", _last(_doing(text, track), track))


def _doing(what: Message, track: Track) -> Message:
    """The message with the process state and stack added."""
    look = track.look or track.exit or {}
    match str(look.get("state")):
        case "T":
            what = Message("{what}, stopped by a signal", what=what)
        case "t":
            what = Message("{what}, stopped by a debugger", what=what)
        case "D":
            what = Message("{what}, waiting for a device or a disk", what=what)
    return _at(what, look.get("stack"))


def _last(what: Message, track: Track) -> Message:
    """The message with the last output line added, and with the stack if a signal killed the rank."""
    ended = track.exit or {}
    if ended.get("signal") and not track.killed:
        what = _at(what, ended.get("stack"))
    words = ended.get("words")
    lines = [line.strip() for line in words.splitlines() if line.strip()] if isinstance(words, str) else []
    return Message("{what}; it said: {words}", what=what, words=lines[-1][:_WORDS]) if lines else what


def _at(what: Message, stack: object) -> Message:
    found = frames(stack)
    return Message("{what}: {why}", what=what, why=" < ".join(found[:_FRAMES])) if found else what


def _signal(number: object) -> Message:
    try:
        name = signal.Signals(int(str(number))).name
    except ValueError:
        return Message("was ended by signal {number}", number=number)
    text = Message("was ended by signal {number} ({name})")
    if name == "SIGKILL":
        text = Message("was ended by signal {number} (SIGKILL, which is what too little memory looks like)")
    return text.filled(number=number, name=name)


def accused(check: str, one: Blame, severity: Severity = Severity.FAIL, *, confirmed: bool, more: str = "") -> Finding:
    """The finding for a rank that did not finish. `more`: the result of a second test."""
    evidence = joined([one.evidence, more]) if more else one.evidence
    return Finding(check, severity, one.member.culprit, evidence, confirmed, ADVICE[one.why])


# Pairs: the schedule, and the players to blame for bad pairs


def pairings(players: Sequence[Player], most: int | None = None) -> list[list[tuple[Player, Player]]]:
    """All pairs, in rounds in which each player plays at most once; `most`: a fixed random choice of so many rounds."""
    seats: list[Player | None] = [*players, *([None] if len(players) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    if most is not None and most < len(found):
        found = random.Random(7).sample(found, most)  # noqa: S311 - nothing secret
    return found


def losers(
    played: Iterable[tuple[Player, Player]], bad: Iterable[tuple[Player, Player]]
) -> tuple[list[Player], list[tuple[Player, Player]]]:
    """The players that are bad in more than half of their pairs (at least two), and the other bad pairs."""
    games = Counter(player for pair in played for player in pair)
    left, players = list(bad), list[Player]()
    while left:
        losses = Counter(player for pair in left for player in pair)
        player, lost = losses.most_common(1)[0]
        if lost < 2 or 2 * lost <= games[player]:
            break
        players.append(player)
        left = [pair for pair in left if player not in pair]
    return players, left
