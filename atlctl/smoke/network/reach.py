"""Who reaches whom: reading what the agents tell of their calls, and naming who is at fault. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.network.blame import Pair, blame
from atlctl.smoke.network.reading import number, text
from atlctl.smoke.session import Fields

CHECK = "mesh"
#: How bad a failed call is for the search of who is to blame: no conversation at all hides all that is milder.
_LARGE, _ALTERED, _SILENT = 1, 2, 3
_SEVERITY = {"large": _LARGE, "data": _ALTERED}
_WORDS = {
    "connect": "no connection",
    "refused": "connections are refused",
    "hello": "connected, and then no answer",
    "small": "connected, and then no answer",
    "stranger": "another worker answers at its address",
    "data": "bytes arrive altered",
    "large": "small packets pass, large ones do not",
}
_ADVICE = {
    "connect": "Look at network policies, security groups, firewalls and routes: every port must be open.",
    "refused": "A firewall between the workers refuses ports that the platform does not name; training needs them all.",
    "stranger": "Two workers have one address; look at the network of their hosts.",
    "data": "Take the hardware between the two out: TCP's checksum does not see this fault.",
    "large": "The MTU of an interface or tunnel on the way is smaller than the workers believe.",
}


@dataclass(frozen=True, slots=True)
class Call:
    """How one call went: `kind` is empty where all was well. Times in ms, where they were measured."""

    kind: str
    error: str = ""
    connect_ms: float | None = None
    rtt_ms: float | None = None

    @property
    def badness(self) -> int:
        return _SEVERITY.get(self.kind, _SILENT) if self.kind else 0


def parse(fields: Fields, caller: str, names: Mapping[int, str], asked: Iterable[int]) -> dict[Pair, Call] | None:
    """The calls of one agent; None where the answer is not understood."""
    told = fields.get("peers")
    if not isinstance(told, dict):
        return None
    calls = {}
    for index in asked:
        entry = told.get(str(index))
        if not isinstance(entry, dict) or not isinstance(entry.get("ok"), bool):
            return None
        kind = "" if entry["ok"] else text(entry.get("kind"))
        if not entry["ok"] and kind not in _WORDS:
            return None
        times = number(entry.get("connect_ms")), number(entry.get("rtt_ms"))
        calls[caller, names[index]] = Call(kind, text(entry.get("error")), *times)
    return calls


def judge(names: Sequence[str], calls: Mapping[Pair, Call]) -> list[Finding]:
    """The findings over all calls, after failed ones were made again."""
    found = blame(names, {pair: call.badness for pair, call in calls.items()})
    findings = []
    for name in found.workers:
        others = set(found.workers) - {name}
        own = {pair: call for pair, call in calls.items() if name in pair and not others & set(pair)}
        findings.append(_worker(name, own or {pair: call for pair, call in calls.items() if name in pair}))
    for one, other in found.links:
        both = {pair: call for pair in ((one, other), (other, one)) if (call := calls.get(pair)) is not None}
        culprit = Culprit("link", one, other)
        findings.append(_finding(culprit, f"{_direction(one, other, both)}", both.values()))
    if found.unclear:
        members = [name for name in names if any(name in pair for pair in found.unclear)]
        both = {
            pair: calls[pair] for one, other in found.unclear for pair in ((one, other), (other, one)) if pair in calls
        }
        said = f"{len(found.unclear)} pairs among {', '.join(members)} fail, too many to tell who is at fault"
        findings.append(_finding(None, said, both.values()))
    return findings


def _worker(name: str, own: Mapping[Pair, Call]) -> Finding:
    outward = {pair: call for pair, call in own.items() if pair[0] == name}
    inward = {pair: call for pair, call in own.items() if pair[1] == name}
    parts = [
        f"{sum(map(bool, (call.kind for call in calls.values())))} of {len(calls)} connections {words} it fail"
        for words, calls in (("to", inward), ("from", outward))
        if calls
    ]
    return _finding(Culprit("worker", name), ", ".join(parts), own.values())


def _direction(one: str, other: str, both: Mapping[Pair, Call]) -> str:
    failed = [pair for pair, call in both.items() if call.kind]
    if len(failed) == 1 and len(both) == 2:
        return f"only connections from {failed[0][0]} to {failed[0][1]} fail"
    return f"connections between {one} and {other} fail"


def _finding(culprit: Culprit | None, said: str, calls: Iterable[Call]) -> Finding:
    failed = [call for call in calls if call.kind]
    kind, _ = Counter(call.kind for call in failed).most_common(1)[0]
    error = next(call.error for call in failed if call.kind == kind)
    evidence = f"{said}: {_WORDS[kind]}" + (f" ({error})" if error else "")
    return Finding(CHECK, Severity.FAIL, culprit, evidence, True, _ADVICE.get(kind, _ADVICE["connect"]))
