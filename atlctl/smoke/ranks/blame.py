"""A stage that did not come to its end: which rank is to blame, from what each of them said and did. Pure functions."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from atlctl.smoke.ranks.members import Member
from atlctl.smoke.ranks.stages import Outcome, Track

#: Errors that a rank gets because of another one.
_CONSEQUENCE = re.compile(
    r"closed by peer|[Cc]onnection (?:reset|refused|closed)|[Bb]roken pipe|[Tt]imed ?out|[Tt]imeout|aborted|"
    r"did not come to the store|[Ss]ocket.{0,400}?(?:closed|error)|remote process exited|ncclRemoteError|"
    r"failed to recv|got 0 bytes|store->get|DistNetworkError|DistStoreError"
)
_UNREACHED = "the store of the leader cannot be reached"
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
#: The innermost frame of a rank that waits for others, in a collective or for what it has put on its GPU.
_WAITING = re.compile(r"\((?:distributed_c10d|c10d_logger)\.py|^(?:synchronize|_meet|_engine_run_backward) ")
#: Frames and words of a rank that are shown.
_FRAMES, _WORDS = 3, 300


@dataclass(frozen=True, slots=True)
class Blame:
    """One rank that is to blame. `why` in a few words: `crashed`, `hangs`, `does not start`, `fails`."""

    member: Member
    why: str
    evidence: str


def blame(outcome: Outcome) -> list[Blame]:
    """The ranks to blame, empty where it cannot be told. Those whose end follows from another's are not among them."""
    tracks = outcome.tracks
    for found in (_unborn(tracks), _crashed(tracks), _failed(tracks)):
        if found:
            return found
    return _hung(tracks) if outcome.silent else []


def silent(one: Blame) -> bool:
    """It rests on silence alone: on a busy machine that may be nobody's fault."""
    return one.why in ("hangs", "does not start") and "cannot be started" not in one.evidence


def lost(outcome: Outcome) -> list[Track]:
    """Ranks whose agent went away: what the roll call has to say, not this."""
    return [track for track in outcome.tracks if track.lost and track.exit is None]


def _unborn(tracks: Sequence[Track]) -> list[Blame]:
    found = []
    for track in tracks:
        if track.exit is not None and track.exit.get("started") is False:
            why = f"the process of {track.member.name} cannot be started: {track.exit.get('error')}"
            found.append(Blame(track.member, "does not start", why))
        elif not track.up and not track.lost:
            found.append(Blame(track.member, "does not start", f"{track.member.name} does not start{_doing(track)}"))
    return found


def _crashed(tracks: Sequence[Track]) -> list[Blame]:
    found = []
    for track in tracks:
        if track.exit is None or track.done or track.killed or track.error:
            continue
        code, number = track.exit.get("code"), track.exit.get("signal")
        how = f"was ended by {_signal(number)}" if number else f"ended with exit {code}"
        if track.exit.get("late"):
            continue  # at its deadline
        found.append(Blame(track.member, "crashed", f"{track.member.name} {how} in {_step(track)}{_last(track)}"))
    return found


def _failed(tracks: Sequence[Track]) -> list[Blame]:
    """Errors of the ranks themselves. Where many cannot reach the leader's store, that is the leader's."""
    erred = [track for track in tracks if track.error]
    unreached = [track for track in erred if _UNREACHED in track.error]
    others = sum(track.place > 0 for track in tracks)
    leader = next((track for track in tracks if track.place == 0), None)
    if leader is not None and len(unreached) > 1 and 2 * len(unreached) > others:
        text = f"{leader.member.name} opened the store, and {len(unreached)} of {others} ranks cannot reach it"
        return [Blame(leader.member, "fails", f"{text}: {unreached[0].error}")]
    root = [t for t in erred if not _CONSEQUENCE.search(t.error) or _UNREACHED in t.error]
    if len(root) == len(tracks) > 1:
        return []  # what all of them have in common is no fault of one
    return [Blame(t.member, "fails", f"{t.member.name} failed in {_step(t)}: {t.error}") for t in root]


def _hung(tracks: Sequence[Track]) -> list[Blame]:
    """The rank that the others wait for: stopped by somebody, behind them, or busy with another thing than they are."""
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
    # Some wait for it in the same step: it is the one that does not wait, or whose stack is another.
    idle = [track for track in behind if _place(track) and not _WAITING.search(_place(track))]
    if idle and 2 * len(idle) < len(tracks):
        return [_hangs(track) for track in idle]
    usual, many = Counter(_place(track) for track in behind).most_common(1)[0]
    odd = [track for track in behind if _place(track) != usual]
    return [_hangs(track) for track in odd] if len(odd) < many else []


def frames(stack: object) -> list[str]:
    """Of the first thread in faulthandler's text, the innermost frame first: `function (file:line)`."""
    if not isinstance(stack, str):
        return []
    # The last one written is the last one asked for; its first thread, the one that was asked, stands last.
    _, _, last = stack.rpartition("most recent call first")
    return [f"{name} ({file.rpartition('/')[2]}:{line})" for file, line, name in _FRAME.findall(last)]


def _place(track: Track) -> str:
    """Where it is, without lines: ranks that wait for one another may stand on different ones of a loop."""
    found = frames((track.look or {}).get("stack"))
    return " ".join(frame.partition(":")[0] for frame in found[:_FRAMES])


def _hangs(track: Track) -> Blame:
    return Blame(track.member, "hangs", f"{track.member.name} hangs in {_step(track)}{_doing(track)}{_last(track)}")


def _doing(track: Track) -> str:
    look = track.look or track.exit or {}
    state = {"T": ", stopped by a signal", "t": ", stopped by a debugger", "D": ", waiting for a device or a disk"}
    found = frames(look.get("stack"))
    where = f": {' < '.join(found[:_FRAMES])}" if found else ""
    return state.get(str(look.get("state")), "") + where


def _last(track: Track) -> str:
    """Its last words, and where it was when a signal ended it."""
    ended = track.exit or {}
    found = frames(ended.get("stack")) if ended.get("signal") and not track.killed else []
    where = f": {' < '.join(found[:_FRAMES])}" if found else ""
    words = ended.get("words")
    lines = [line.strip() for line in words.splitlines() if line.strip()] if isinstance(words, str) else []
    return where + (f"; it said: {lines[-1][:_WORDS]}" if lines else "")


def _step(track: Track) -> str:
    return track.step or "its start"


def _signal(number: object) -> str:
    try:
        name = signal.Signals(int(str(number))).name
    except ValueError:
        return f"signal {number}"
    return f"signal {number} ({name}{', which is what too little memory looks like' if name == 'SIGKILL' else ''})"
