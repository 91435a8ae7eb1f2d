"""From what a group of ranks measured to findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.ranks.blame import Blame
from atlctl.smoke.ranks.members import Member
from atlctl.smoke.ranks.stages import Outcome
from atlctl.smoke.ranks.verdicts import Results, Wrong

ADVICE = {
    "crashed": "look at the worker's kernel log (dmesg) and its memory limit; then try another GPU or machine",
    "hangs": "atlctl stacks shows what processes of the job do; a GPU or a mount that hangs shows there as well",
    "does not start": "look at the worker's limits for processes and memory (ulimit -u, pids.max)",
    "busy": "try again when the machines have less to do: atlctl top; or with fewer workers: -w",
    "fails": "what the error says is to be cured on this worker alone: the others pass",
}


def accused(check: str, one: Blame, severity: Severity = Severity.FAIL, *, confirmed: bool, more: str = "") -> Finding:
    """The finding about a rank that did not come to its end. `more`: what a second look showed."""
    return Finding(check, severity, one.member.culprit, one.evidence + more, confirmed, ADVICE[one.why])


def results(outcome: Outcome) -> Results:
    """What the ranks of a whole stage told, by their place in the group."""
    return {track.place: track.results for track in outcome.tracks if track.done}


def findings(
    check: str, outcome: Outcome, wrongs: Sequence[Wrong], again: Sequence[Wrong], advice: str
) -> list[Finding]:
    """`again`: what a second look found."""
    places = {track.place: track.member for track in outcome.tracks}
    seen = {(wrong.place, wrong.peer) for wrong in again}
    return [
        Finding(
            check,
            Severity.FAIL,
            _culprit(wrong, places),
            _who(wrong, places) + wrong.evidence,
            (wrong.place, wrong.peer) in seen,
            advice,
        )
        for wrong in wrongs
    ]


def _culprit(wrong: Wrong, places: Mapping[int, Member]) -> Culprit | None:
    member = places.get(wrong.place) if wrong.place is not None else None
    peer = places.get(wrong.peer) if wrong.peer is not None else None
    if member is not None and peer is not None and member.worker != peer.worker:
        first, second = sorted((member, peer), key=lambda one: one.number)
        return Culprit("link", first.worker, second.worker)
    return None if member is None else member.culprit


def _who(wrong: Wrong, places: Mapping[int, Member]) -> str:
    member = places.get(wrong.place) if wrong.place is not None else None
    return f"{member.name}: " if member is not None and wrong.peer is None else ""
