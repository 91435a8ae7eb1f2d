"""The check `mesh`: every worker calls every other one, and who does not get through is named.

A call is a connection, small echoes, and a large one that a wrong MTU swallows. First comes where each worker can be
reached: from what the platform says and what the agents say of themselves. An intermittent fault is not taken back by a
call that passes: bytes that arrived altered once are a fault, and if a connection took a second SYN, more are opened.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs.fields import number, text
from atlctl.jobs.model import Worker
from atlctl.smoke.context import OpenCheck, Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.network.blame import Pair, blame
from atlctl.smoke.session import Answer, Fields, words_of

CHECK = "mesh"
TOO_FEW = Message("fewer than two workers can be called")
#: How bad a failed call is for the search of who is to blame: no conversation at all hides all that is milder.
_BADNESS, _NO_TALK = {"dropped": 1, "large": 2, "data": 3}, 4
_WORDS = {
    "connect": Message("no connection"),
    "refused": Message("connections are refused"),
    "hello": Message("connected, and then no answer"),
    "small": Message("connected, and then no answer"),
    "stranger": Message("another worker answers at its address"),
    "data": Message("bytes arrive altered"),
    "dropped": Message("new connections are dropped, and not all of them"),
    "large": Message("small packets pass, large ones do not"),
}
_ADVICE = {
    "connect": Message("look at network policies, security groups, firewalls and routes: every port must be open"),
    "refused": Message(
        "a firewall between the workers refuses ports that the platform does not name; training needs them all"
    ),
    "stranger": Message("two workers have one address; look at the network of their hosts"),
    "data": Message("take the hardware between the two out: TCP's checksum does not see this fault"),
    "dropped": Message("look for limits of new connections (firewall, conntrack, accept queue) and for packet loss"),
    "large": Message("the MTU of an interface or tunnel on the way is smaller than the workers believe"),
}
#: Seconds without a sign of life after which a call is given up: longer than TCP takes to say hello again. The second
#: number for calls that are made again, alone.
_PATIENCE, _AGAIN = 1.4, 2.2
#: Connections that are opened beside each call, and how many of them must be dropped at first to be a fault: half of
#: new connections dropped is missed once in a hundred times; 2 % of all packets lost are taken for it once in 3,000.
_OPENED, _DROPPED = 24, 7
#: Connections that one worker opens at once: its accept queue is not to be the fault that is found.
_AT_ONCE = 64
#: Bytes of the large echo: several packets, whatever the MTU; less among many workers.
_LARGE, _LARGE_MANY, _MANY = 65536, 24576, 16
_MUTE = Message(
    "look at the processes of this worker: it runs, and does not answer; it may be stopped, or starved of CPU"
)
#: Addresses of others that an agent is asked about: which of its own would it use to reach them?
TARGETS = 4


async def check_mesh(run: Run) -> None:
    """Adds findings for workers and links that do not pass traffic. `report.data["mesh"]` gets the round-trip times
    (`None` where there was none) and where each worker was called; equal numbers among `machines` mean one kernel."""
    with run.check(CHECK) as stage:
        mesh = _Mesh(run)
        if not await mesh.listen() or len(mesh.where) < 2:
            stage.note = TOO_FEW
            return
        await mesh.call()
        mesh.judge(stage)


class _Mesh:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run.session
        self._workers = {worker.name: worker for worker in run.workers}
        self._names = {worker.index: worker.name for worker in run.workers}
        self._calls: dict[Pair, Call] = {}
        self._chosen = AddressPlan({})
        self._machines: dict[str, int] = {}
        self._again = 0
        #: Calls in which bytes arrived altered.
        self._altered: dict[Pair, Call] = {}
        #: Pairs whose connection needed a second SYN, or came only with the second call.
        self._late: set[Pair] = set()
        #: Address and port of each worker that can be called.
        self.where: dict[str, tuple[str, int]] = {}

    async def listen(self) -> bool:
        """Start the servers, and choose the addresses. Workers that do not answer, or have none, are found at fault."""
        living = self._session.living()
        workers = [self._workers[name] for name in living if name in self._workers]
        told = await self._places([worker.name for worker in workers], known_addresses(workers))
        unsure = unsure_workers(workers, told)
        if unsure:
            first = choose_addresses(workers, told)
            others = [address for name, address in first.addresses.items() if name not in unsure[1:]]
            told |= await self._places(unsure, others[:TARGETS])
        self._chosen = choose_addresses(workers, told)
        for name in self._chosen.lost:
            self._run.find(
                Finding(
                    CHECK,
                    Severity.FAIL,
                    Culprit("worker", name),
                    Message("it has no address but loopback, while other workers are on other hosts"),
                    True,
                    Message("look at the interfaces of this worker: none is up that others could reach"),
                )
            )
        machines = dict.fromkeys(place.machine for place in told.values())
        self._machines = {name: list(machines).index(place.machine) for name, place in told.items()}
        self.where = {name: (address, told[name].port) for name, address in self._chosen.addresses.items()}
        return bool(self.where)

    async def _places(self, names: Iterable[str], targets: list[str]) -> dict[str, Endpoint]:
        """Who does not answer is asked a second time."""
        found: dict[str, Endpoint] = {}
        asked = list(names)
        answers: dict[str, Answer] = {}
        for timeout in (6.0 + 0.1 * len(asked), 2.0 + 0.05 * len(asked)):
            left = [name for name in asked if name not in found]
            if not left:
                break
            commands = {name: {"cmd": "listen", "targets": targets} for name in left}
            answers |= await self._session.ask(commands, timeout, patience=1.0)
            for name in left:
                fields = answers[name].fields
                place = parse_endpoint(fields) if fields is not None else None
                if place is not None:
                    found[name] = place
        for name in asked:
            if name not in found:
                self._mute(name, answers[name])
        return found

    def _mute(self, name: str, answer: Answer) -> None:
        why = answer.problem or Message("its answer is not understood")
        text = Message("its agent gave no usable answer: {why}", why=why)
        self._run.find(Finding(CHECK, Severity.FAIL, Culprit("worker", name), text, True, _MUTE))

    async def call(self) -> None:
        """All call all; what failed is called again, and suspects get more connections."""
        await self._call()
        await self._connect()
        for pair, call in self._altered.items():
            if pair in self._calls and not self._calls[pair].kind:
                self._calls[pair] = replace(call, once=True)

    async def _call(self) -> None:
        pairs = [(one, other) for one in self.where for other in self.where if one != other]
        mute = await self._round(pairs, _PATIENCE)
        failed = [pair for pair in pairs if pair not in self._calls or self._calls[pair].kind]
        if not failed:
            return
        first = dict(self._calls)
        still = await self._round(failed, _AGAIN)
        for name in mute.keys() & still.keys():
            # Calls to it say nothing of the network.
            self._mute(name, still[name])
            del self.where[name]
        for name in still.keys() - mute.keys():  # it did not live to say it twice
            self._calls = {pair: call for pair, call in self._calls.items() if pair[0] != name or not call.kind}
        self._calls = {pair: call for pair, call in self._calls.items() if self.where.keys() >= set(pair)}
        passed = {
            p: call.kind for p, call in first.items() if call.kind and p in self._calls and not self._calls[p].kind
        }
        self._again = len(passed)
        self._late |= {pair for pair, kind in passed.items() if kind == "connect"}

    async def _connect(self) -> None:
        """More connections: of few workers to all, of many to the suspects, then from and to the ends of a fault."""
        suspects = [pair for pair in self._calls if pair in self._late or len(self.where) <= _MANY]
        await self._open(suspects)
        ends = {name for pair in suspects if self._calls[pair].kind == "dropped" for name in pair}
        await self._open([pair for pair in self._calls if ends & set(pair) and pair not in suspects])

    async def _open(self, pairs: Sequence[Pair]) -> None:
        peers: dict[str, dict[str, Any]] = {}
        for one, other in pairs:
            peers.setdefault(one, {})[str(self._workers[other].index)] = self.where[other]
        if not peers:
            return
        at_once = max(1, min(_OPENED, _AT_ONCE // max(Counter(other for _, other in pairs).values())))
        command = {"cmd": "connect", "times": _OPENED, "at_once": at_once, "patience": _AGAIN}
        limit = _AGAIN * _OPENED / at_once + 2.0
        answers = await self._session.ask({one: {**command, "peers": own} for one, own in peers.items()}, limit)
        for one, answer in answers.items():
            told = (answer.fields or {}).get("peers")
            counts = told if isinstance(told, dict) else {}
            for index in peers[one]:
                entry = counts.get(index)
                if isinstance(entry, dict):
                    self._dropped(
                        (one, self._names[int(index)]), number(entry.get("again")), number(entry.get("failed"))
                    )

    def _dropped(self, pair: Pair, again: float | None, failed: float | None) -> None:
        """The call has this fault if the connections show it, unless none at all was possible."""
        bad, call = (again or 0) + (failed or 0), self._calls[pair]
        if bad >= _DROPPED and (not call.kind or (call.kind == "connect" and (failed or 0) < _OPENED)):
            told = Message("{some:.0f} of {all} connections took a second try or failed", some=bad, all=_OPENED)
            self._calls[pair] = replace(call, kind="dropped", error=told)

    async def _round(self, pairs: Iterable[Pair], patience: float) -> dict[str, Answer]:
        """Make these calls at once. The answers of agents that told nothing."""
        many = len(self.where) > _MANY
        peers: dict[str, dict[str, Any]] = {}
        for one, other in pairs:
            peers.setdefault(one, {})[str(self._workers[other].index)] = self.where[other]
        cap = 2 * patience + 0.05 * len(self.where)
        commands = {
            name: {
                "cmd": "mesh",
                "peers": asked,
                "patience": patience,
                "cap": cap,
                "small": 2 if many else 4,
                "large": _LARGE_MANY if many else _LARGE,
            }
            for name, asked in peers.items()
        }
        silent = {}
        answers = await self._session.ask(commands, 2 * cap + 4.0, patience=patience + 0.8)
        for name, answer in answers.items():
            asked = map(int, peers[name])
            calls = parse_calls(answer.fields, name, self._names, asked) if answer.fields is not None else None
            if calls is None:
                silent[name] = answer
            else:
                self._calls |= calls
                self._altered |= {pair: call for pair, call in calls.items() if call.kind == "data"}
                self._late |= {pair for pair, call in calls.items() if call.again}
        return silent

    def judge(self, stage: OpenCheck) -> None:
        names = list(self.where)
        stage.tested = {caller for caller, _ in self._calls}
        self._run.find(*judge_calls(names, self._calls))
        times = [call.rtt_ms for call in self._calls.values() if call.rtt_ms is not None and not call.kind]
        passed = sum(not call.kind for call in self._calls.values())
        parts = [Message("{some} of {all} connections", some=passed, all=len(self._calls))]
        if times:
            parts.append(Message("round trip {ms:.2f} ms", ms=sorted(times)[len(times) // 2]))
        if self._again:
            parts.append(Message("{n} passed only the second time", n=self._again))
        if self._chosen.loopback:
            parts.append(Message("all workers share one machine's loopback: no network was tested"))
        stage.note = joined(parts, COMMA)
        self._run.report.data[CHECK] = {
            "workers": names,
            "loopback": self._chosen.loopback,
            "addresses": {name: {"address": address, "port": port} for name, (address, port) in self.where.items()},
            "matrix_rtt_ms": _matrix(names, {pair: call.rtt_ms for pair, call in self._calls.items() if not call.kind}),
            "machines": [self._machines[name] for name in names],
            "failed": [list(pair) for pair, call in self._calls.items() if call.kind],
        }


def _matrix(names: list[str], values: Mapping[Pair, float | None]) -> list[list[float | None]]:
    return [[values.get((one, other)) for other in names] for one in names]


# Where a worker can be reached


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What one agent tells of its worker. `machine` is equal where two workers share one kernel (empty: not known),
    `stack` where they share one network stack."""

    port: int
    addresses: tuple[str, ...]
    default: str | None
    routes: Mapping[str, str]
    machine: str
    stack: str

    @property
    def usable(self) -> tuple[str, ...]:
        """Its own addresses that another machine may reach."""
        return tuple(address for address in self.addresses if _remote(address))


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """`addresses` by name; `lost`: workers that have none that others could use. `loopback`: all share one stack."""

    addresses: Mapping[str, str]
    lost: tuple[str, ...] = ()
    loopback: bool = False


def parse_endpoint(fields: Fields) -> Endpoint | None:
    """None where the answer is not understood."""
    port, listed = fields.get("port"), fields.get("addresses")
    machine, stack = fields.get("machine"), fields.get("stack")
    if not isinstance(port, int) or not 0 < port < 65536 or not isinstance(listed, list):
        return None
    if not isinstance(machine, str) or not isinstance(stack, str):
        return None
    addresses = [entry[1] for entry in listed if isinstance(entry, list) and len(entry) == 2 and literal(entry[1])]
    routes = fields.get("routes")
    known = routes if isinstance(routes, dict) else {}
    default = fields.get("default")
    return Endpoint(
        port,
        tuple(dict.fromkeys(addresses)),
        default if literal(default) else None,
        {str(target): own for target, own in known.items() if literal(own)},
        machine,
        # A sandbox may give all of its guests the same names; their addresses differ.
        f"{machine} {stack} {sorted(addresses)}",
    )


def literal(address: object) -> bool:
    """True for the text of an IP address without a zone."""
    if not isinstance(address, str) or "%" in address:
        return False
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _remote(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast)


def known_addresses(workers: Sequence[Worker]) -> list[str]:
    """Addresses that the platform knows, some of them: the way to the training's network leads there."""
    known = [worker.address for worker in workers if literal(worker.address)]
    return [address for address in known if address is not None and _remote(address)][:TARGETS]


def choose_addresses(workers: Sequence[Worker], places: Mapping[str, Endpoint]) -> AddressPlan:
    """An address for each of `places`. Never loopback when one of the others is on another network stack."""
    known = [worker for worker in workers if worker.name in places]
    if len({place.stack for place in places.values()}) <= 1:
        own = {name: "127.0.0.1" if "127.0.0.1" in place.addresses else "::1" for name, place in places.items()}
        return AddressPlan(own, loopback=True)
    # One family for all, where all have it: the other one may lead nowhere.
    families = [{ipaddress.ip_address(a).version for a in places[w.name].usable} for w in known]
    common = set.intersection(*(family for family in families if family)) if any(families) else set()
    addresses, lost = {}, []
    for worker in known:
        place = places[worker.name]
        usable = [a for a in place.usable if not common or ipaddress.ip_address(a).version in common]
        wanted = [worker.address, *place.routes.values(), place.default, *_by_family(usable)]
        found = next((address for address in wanted if address in usable), None)
        if found is None:
            lost.append(worker.name)
        else:
            addresses[worker.name] = found
    return AddressPlan(addresses, tuple(lost))


def unsure_workers(workers: Sequence[Worker], places: Mapping[str, Endpoint]) -> list[str]:
    """Workers with several addresses of which neither the platform nor a route to others says which one counts."""
    return [
        worker.name
        for worker in workers
        if worker.name in places
        and len(places[worker.name].usable) > 1
        and worker.address not in places[worker.name].usable
        and not places[worker.name].routes
    ]


def _by_family(addresses: Sequence[str]) -> list[str]:
    return sorted(addresses, key=lambda address: ipaddress.ip_address(address).version)


# How the calls went


@dataclass(frozen=True, slots=True)
class Call:
    """How one call went: `kind` is empty if all was well. Times in ms, if they were measured. `again`: SYNs that were
    sent again; `once`: a second call was in order."""

    kind: str
    error: str = ""
    connect_ms: float | None = None
    rtt_ms: float | None = None
    again: int = 0
    once: bool = False

    @property
    def badness(self) -> int:
        return _BADNESS.get(self.kind, _NO_TALK) if self.kind else 0


def parse_calls(fields: Fields, caller: str, names: Mapping[int, str], asked: Iterable[int]) -> dict[Pair, Call] | None:
    """The calls of one agent; None where the answer is not understood."""
    told = fields.get("peers")
    if not isinstance(told, dict):
        return None
    calls = {}
    for index in asked:
        entry = told.get(str(index))
        if not isinstance(entry, dict) or not isinstance(entry.get("ok"), bool):
            return None
        kind = "" if entry["ok"] else text(entry.get("kind"), 200)
        if not entry["ok"] and kind not in _WORDS:
            return None
        times = number(entry.get("connect_ms"), least=0), number(entry.get("rtt_ms"), least=0)
        again = int(number(entry.get("again"), least=0) or 0)
        calls[caller, names[index]] = Call(kind, words_of(entry.get("error"), 200), *times, again)
    return calls


def judge_calls(names: Sequence[str], calls: Mapping[Pair, Call]) -> list[Finding]:
    """The findings over all calls, after failed ones were made again."""
    found = blame(names, {pair: call.badness for pair, call in calls.items()})
    findings = []
    for name in found.workers:
        others = set(found.workers) - {name}
        own = {pair: call for pair, call in calls.items() if name in pair and not others & set(pair)}
        findings.append(_worker_finding(name, own or {pair: call for pair, call in calls.items() if name in pair}))
    for one, other in found.links:
        both = {pair: call for pair in ((one, other), (other, one)) if (call := calls.get(pair)) is not None}
        culprit = Culprit("link", one, other)
        findings.append(_finding(culprit, _direction(one, other, both), both.values()))
    if found.unclear:
        members = [name for name in names if any(name in pair for pair in found.unclear)]
        both = {
            pair: calls[pair] for one, other in found.unclear for pair in ((one, other), (other, one)) if pair in calls
        }
        said = Message(
            "{n} pairs among {workers} fail, too many to name the faulty part",
            n=len(found.unclear),
            workers=", ".join(members),
        )
        findings.append(_finding(None, said, both.values()))
    return findings


def _worker_finding(name: str, own: Mapping[Pair, Call]) -> Finding:
    outward = {pair: call for pair, call in own.items() if pair[0] == name}
    inward = {pair: call for pair, call in own.items() if pair[1] == name}

    def failed(calls: Mapping[Pair, Call]) -> dict[str, int]:
        return {"some": sum(bool(call.kind) for call in calls.values()), "all": len(calls)}

    parts = []
    if inward:
        parts.append(Message("{some} of {all} connections to it fail", **failed(inward)))
    if outward:
        parts.append(Message("{some} of {all} connections from it fail", **failed(outward)))
    return _finding(Culprit("worker", name), joined(parts, COMMA), own.values())


def _direction(one: str, other: str, both: Mapping[Pair, Call]) -> str:
    failed = [pair for pair, call in both.items() if call.kind]
    if len(failed) == 1 and len(both) == 2:
        return Message("only connections from {one} to {other} fail", one=failed[0][0], other=failed[0][1])
    return Message("connections between {one} and {other} fail", one=one, other=other)


def _finding(culprit: Culprit | None, said: str, calls: Iterable[Call]) -> Finding:
    failed = [call for call in calls if call.kind]
    kind, _ = Counter(call.kind for call in failed).most_common(1)[0]
    error = next(call.error for call in failed if call.kind == kind)
    evidence = Message("{what}: {why}", what=said, why=_WORDS[kind])
    if error:
        evidence = Message("{what}: {why} ({error})", what=said, why=_WORDS[kind], error=error)
    confirmed = not all(call.once for call in failed)
    return Finding(CHECK, Severity.FAIL, culprit, evidence, confirmed, _ADVICE.get(kind, _ADVICE["connect"]))
