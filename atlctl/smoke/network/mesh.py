"""The check `mesh`: every worker connects to every other worker; workers and links that fail are named.

A call opens a connection, sends small echoes, and sends a large one that a wrong MTU would drop. First the address of
each worker is chosen from the platform's data and the agents' reports. A successful second call does not clear an
intermittent fault: corrupted bytes always count, and after a SYN retransmission more connections are opened.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs.fields import items, mapping, number, text, whole
from atlctl.jobs.model import Worker
from atlctl.jobs.naming import fold_names
from atlctl.smoke.context import OpenCheck, Run
from atlctl.smoke.facts import first_worker
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.network.blame import Pair, blame
from atlctl.smoke.session import ODD_ANSWER, Answer, Fields, words_of

CHECK = "mesh"
TOO_FEW = Message("fewer than two workers can be called")
#: Weight of a failed call when the culprit is searched: if a call fails completely, it hides all milder faults.
_BADNESS, _NO_TALK = {"dropped": 1, "large": 2, "data": 3}, 4
_NO_REPLY = Message("connected, and then no answer")
_WORDS = {
    "connect": Message("no connection"),
    "refused": Message("connections are refused"),
    "hello": _NO_REPLY,
    "small": _NO_REPLY,
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
_ADVICE_SETTING = Message("set it to an interface that all workers have, or leave it out: ip -brief address")
#: The variables that name the interfaces of a training, with what applies without them (NCCL prefers those of
#: InfiniBand), and how many interfaces of each are tested.
SETTINGS, _INTERFACES = {"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": ""}, 4
#: Seconds without progress after which a call is aborted (longer than TCP's SYN retransmission); second: for repeated
#: calls.
_PATIENCE, _AGAIN = 1.4, 2.2
#: Number of extra connections for each call, and how many must be dropped at first to be a fault: a drop rate of half
#: of all new connections is missed in 1 % of runs; 2 % packet loss is mistaken for it once in 3,000 runs.
_OPENED, _DROPPED = 24, 7
#: Maximum number of connections opened to one worker at the same time: its accept queue must not cause the fault.
_AT_ONCE = 64
#: Size of the large echo in bytes: several packets for any MTU; smaller if there are many workers.
_LARGE, _LARGE_MANY, _MANY = 65536, 24576, 16
_MUTE = Message(
    "look at the processes of this worker: it runs, and does not answer; it may be stopped, or starved of CPU"
)
#: Maximum number of peer addresses sent to an agent: it reports which local address it would use to reach them.
TARGETS = 4


async def check_mesh(run: Run) -> None:
    """Add findings for workers and links that do not pass traffic. `report.data["mesh"]` gets the round-trip times
    (`None`: no measurement) and each worker's address; equal numbers in `machines` mean the same kernel."""
    with run.check(CHECK) as stage:
        mesh = _Mesh(run)
        if not await mesh.listen() or len(mesh.where) < 2:
            stage.note = TOO_FEW
            return
        await mesh.call()
        await mesh.meet()
        mesh.judge(stage)
        await mesh.elsewhere(stage)


class _Mesh:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run.session
        self._workers = {worker.name: worker for worker in run.workers}
        self._names = {worker.index: worker.name for worker in run.workers}
        self._calls: dict[Pair, Call] = {}
        self._chosen = AddressPlan({})
        self._machines: dict[str, int] = {}
        self._places: dict[str, Endpoint] = {}
        self._again = 0
        #: Calls with corrupted bytes.
        self._altered: dict[Pair, Call] = {}
        #: Pairs whose connection needed a SYN retransmission or a second call.
        self._late: set[Pair] = set()
        #: Address and port of each reachable worker.
        self.where: dict[str, tuple[str, int]] = {}

    async def listen(self) -> bool:
        """Start the servers, choose the addresses. Adds a finding for each worker without an answer or an address."""
        living = self._session.living()
        workers = [self._workers[name] for name in living if name in self._workers]
        told = await self._endpoints([worker.name for worker in workers], known_addresses(workers))
        unsure = unsure_workers(workers, told)
        if unsure:
            first = choose_addresses(workers, told)
            others = [address for name, address in first.addresses.items() if name not in unsure[1:]]
            told |= await self._endpoints(unsure, others[:TARGETS])
        self._places = told
        self._chosen = choose_addresses(workers, told)
        for name in self._chosen.lost:
            text = Message("it has no address but loopback, while other workers are on other hosts")
            advice = Message("look at the interfaces of this worker: none is up that others could reach")
            self._run.find(Finding(CHECK, Severity.FAIL, Culprit("worker", name), text, True, advice))
        machines = dict.fromkeys(place.machine for place in told.values())
        self._machines = {name: list(machines).index(place.machine) for name, place in told.items()}
        self.where = {name: (address, told[name].port) for name, address in self._chosen.addresses.items()}
        return bool(self.where)

    async def _endpoints(self, names: Iterable[str], targets: list[str]) -> dict[str, Endpoint]:
        """Ask each worker for its endpoint; a worker without an answer is asked again."""
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
        why = answer.problem or ODD_ANSWER
        text = Message("its agent gave no usable answer: {why}", why=why)
        self._run.find(Finding(CHECK, Severity.FAIL, Culprit("worker", name), text, True, _MUTE))

    async def call(self) -> None:
        """Make all calls, repeat the failed ones, and open more connections for suspect pairs."""
        await self._call()
        await self._connect()
        for pair, call in self._altered.items():
            if pair in self._calls and not self._calls[pair].kind:
                self._calls[pair] = replace(call, once=True)

    async def meet(self) -> None:
        """Try MASTER_PORT from all workers that have a connection to the worker of rank 0, unless it listens there."""
        facts, session = self._run.facts, self._session
        first = first_worker(facts) or ""
        master = mapping(facts.get(first, {}).get("master"))
        if "holder" in master or not whole(master.get("port")):
            return
        asks: dict[str, dict[str, Any]] = {}
        for name, fact in facts.items():
            listed = items(mapping(fact.get("master")).get("addresses"))
            addresses = [one for one in listed if literal(one)][:TARGETS]
            if addresses and (name, first) in self._calls and not self._calls[name, first].kind:
                asks[name] = {"cmd": "meet", "addresses": addresses, "port": master["port"]}
        tried, errors = list(asks), dict[str, str]()
        for patience in (_PATIENCE, _AGAIN):
            commands = {name: {**ask, "patience": patience * session.pace} for name, ask in asks.items()}
            answers = await session.ask(commands, TARGETS * patience + 2.0)
            errors = {name: why for name, one in answers.items() if (why := words_of((one.fields or {}).get("error")))}
            asks = {name: asks[name] for name in errors}
        said = Message("port {port} of MASTER_ADDR cannot be reached: {why}")
        # An address of no worker may be that of a Service, which refuses connections until a training listens.
        known = items(facts[first].get("addresses"))
        sure = {name for name, ask in asks.items() if any(address in known for address in ask["addresses"])}
        for name, why in errors.items():
            culprit = Culprit("link", name, first) if len(errors) < len(tried) else Culprit("worker", first)
            severity = Severity.FAIL if name in sure else Severity.WARN
            text = said.filled(port=master["port"], why=why)
            self._run.find(Finding(CHECK, severity, culprit, text, True, _ADVICE["connect"]))
            if culprit.kind == "worker":
                break

    async def elsewhere(self, stage: OpenCheck) -> None:
        """The same calls over each network that NCCL or gloo use by their settings, if it is another one."""
        tested = [{name: address for name, (address, _) in self.where.items()}]
        also: list[str] = []
        for setting, usual in SETTINGS.items() if not self._chosen.loopback else ():
            chosen: dict[str, list[tuple[str, str]]] = {}
            for name in self.where:
                told = self._run.facts.get(name, {}).get("settings")
                if not isinstance(told, dict):
                    continue
                value = told.get(setting, usual)
                if isinstance(value, str) and value and not value.startswith("^"):
                    chosen[name] = named_interfaces(setting, value, self._places[name].interfaces)
                    if not chosen[name] and setting in told:
                        self._unknown(name, setting, value)
            for at in range(_INTERFACES):
                interfaces = {name: own[at] for name, own in chosen.items() if len(own) > at}
                where = {name: address for name, (_, address) in interfaces.items()}
                if len(where) > 1 and not any(where.items() <= known.items() for known in tested):
                    tested.append(where)
                    over = "/".join(sorted({interface for interface, _ in interfaces.values()}))
                    also.append(over)
                    await self._over(over, where)
        if also:
            stage.note = Message("{note}; also over {interfaces}", note=stage.note, interfaces=", ".join(also))
        self._run.report.data[CHECK]["also"] = also

    def _unknown(self, name: str, setting: str, value: str) -> None:
        text = Message("{setting} is {value}, and no such interface has an address ({interfaces})")
        text = text.filled(setting=setting, value=words_of(value), interfaces=", ".join(self._places[name].interfaces))
        self._run.find(Finding(CHECK, Severity.WARN, Culprit("worker", name), text, True, _ADVICE_SETTING))

    async def _over(self, over: str, where: Mapping[str, str]) -> None:
        other = _Mesh(self._run)
        other.where = {name: (address, self.where[name][1]) for name, address in where.items()}
        await other.call()
        for finding in judge_calls(list(other.where), other._calls):
            text = Message("over {interfaces}: {what}", interfaces=over, what=finding.evidence)
            self._run.find(replace(finding, evidence=text))

    async def _call(self) -> None:
        pairs = [(one, other) for one in self.where for other in self.where if one != other]
        mute = await self._round(pairs, _PATIENCE)
        failed = [pair for pair in pairs if pair not in self._calls or self._calls[pair].kind]
        if not failed:
            return
        first = dict(self._calls)
        still = await self._round(failed, _AGAIN)
        for name in mute.keys() & still.keys():
            # Calls to a worker that does not answer prove nothing about the network.
            self._mute(name, still[name])
            del self.where[name]
        for name in still.keys() - mute.keys():  # it ended before the second answer
            self._calls = {pair: call for pair, call in self._calls.items() if pair[0] != name or not call.kind}
        self._calls = {pair: call for pair, call in self._calls.items() if self.where.keys() >= set(pair)}
        passed = {
            p: call.kind for p, call in first.items() if call.kind and p in self._calls and not self._calls[p].kind
        }
        self._again = len(passed)
        self._late |= {pair for pair, kind in passed.items() if kind == "connect"}

    async def _connect(self) -> None:
        """Open more connections: for all pairs or (if there are many) suspects, then for all pairs of faulty
        workers."""
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
        command = {"cmd": "connect", "times": _OPENED, "at_once": at_once}
        command["patience"] = _AGAIN * self._session.pace
        limit = _AGAIN * _OPENED / at_once + 2.0
        answers = await self._session.ask({one: {**command, "peers": own} for one, own in peers.items()}, limit)
        for one, answer in answers.items():
            counts = mapping((answer.fields or {}).get("peers"))
            for index in peers[one]:
                entry = mapping(counts.get(index))
                again, failed = number(entry.get("again")), number(entry.get("failed"))
                self._dropped((one, self._names[int(index)]), again or 0, failed or 0)

    def _dropped(self, pair: Pair, again: float, failed: float) -> None:
        """Mark the call as `dropped` if enough connections failed, unless no connection was possible at all."""
        bad, call = again + failed, self._calls[pair]
        if bad >= _DROPPED and (not call.kind or (call.kind == "connect" and failed < _OPENED)):
            told = Message("{some:.0f} of {all} connections took a second try or failed", some=bad, all=_OPENED)
            self._calls[pair] = replace(call, kind="dropped", error=told)

    async def _round(self, pairs: Iterable[Pair], patience: float) -> dict[str, Answer]:
        """Make these calls at the same time. Returns the answers of agents without usable results."""
        many = len(self.where) > _MANY
        peers: dict[str, dict[str, Any]] = {}
        for one, other in pairs:
            peers.setdefault(one, {})[str(self._workers[other].index)] = self.where[other]
        cap = 2 * patience + 0.05 * len(self.where)
        sizes = {"small": 2, "large": _LARGE_MANY} if many else {"small": 4, "large": _LARGE}
        pace = self._session.pace
        command = {"cmd": "mesh", "patience": patience * pace, "cap": cap * pace, **sizes}
        commands = {name: {**command, "peers": asked} for name, asked in peers.items()}
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


# Addresses of workers


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The network data of one worker, from its agent. Two workers with the same `machine` share a kernel (empty:
    unknown); with the same `stack`, they share a network stack. `interfaces`: the addresses of each."""

    port: int
    addresses: tuple[str, ...]
    default: str | None
    routes: Mapping[str, str]
    machine: str
    stack: str
    interfaces: Mapping[str, tuple[str, ...]]

    @property
    def usable(self) -> tuple[str, ...]:
        """Its addresses that other machines may be able to reach."""
        return tuple(address for address in self.addresses if _remote(address))


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """`addresses` by worker name; `lost`: workers without a usable address; `loopback`: all share one network stack."""

    addresses: Mapping[str, str]
    lost: tuple[str, ...] = ()
    loopback: bool = False


def parse_endpoint(fields: Fields) -> Endpoint | None:
    """Parse the answer to `listen`; None if it is malformed."""
    port, listed = fields.get("port"), fields.get("addresses")
    machine, stack = fields.get("machine"), fields.get("stack")
    if not isinstance(port, int) or not 0 < port < 65536 or not isinstance(listed, list):
        return None
    if not isinstance(machine, str) or not isinstance(stack, str):
        return None
    entries = [entry for entry in listed if isinstance(entry, list) and len(entry) == 2 and literal(entry[1])]
    addresses = [address for _, address in entries]
    interfaces: dict[str, tuple[str, ...]] = {}
    for interface, address in entries:
        if _remote(address):
            interfaces[words_of(interface)] = (*interfaces.get(words_of(interface), ()), address)
    default = fields.get("default")
    return Endpoint(
        port,
        tuple(dict.fromkeys(addresses)),
        default if literal(default) else None,
        {target: own for target, own in mapping(fields.get("routes")).items() if literal(own)},
        machine,
        # A sandbox may give all its guests the same names; their addresses differ.
        f"{machine} {stack} {sorted(addresses)}",
        interfaces,
    )


def named_interfaces(setting: str, value: str, interfaces: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """The interfaces that the value of one of `SETTINGS` names, each with an address. NCCL takes beginnings of names
    unless they are behind `=`, gloo names."""
    exact = setting.startswith("GLOO") or value.startswith("=")
    words = [word.partition(":")[0] for word in value.removeprefix("=").split(",") if word]
    return [
        (interface, _by_family(addresses)[0])
        for interface, addresses in interfaces.items()
        if any(interface == word if exact else interface.startswith(word) for word in words)
    ]


def literal(address: object) -> bool:
    """Whether the value is a text with an IP address without a zone."""
    with suppress(ValueError):
        return isinstance(address, str) and "%" not in address and bool(ipaddress.ip_address(address))
    return False


def _remote(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast)


def known_addresses(workers: Sequence[Worker]) -> list[str]:
    """Some worker addresses known to the platform: the route to them shows which interface the training uses."""
    known = [worker.address for worker in workers if literal(worker.address)]
    return [address for address in known if address is not None and _remote(address)][:TARGETS]


def choose_addresses(workers: Sequence[Worker], places: Mapping[str, Endpoint]) -> AddressPlan:
    """Choose an address for each worker in `places`; not loopback if there is more than one network stack."""
    known = [worker for worker in workers if worker.name in places]
    if len({place.stack for place in places.values()}) <= 1:
        own = {name: "127.0.0.1" if "127.0.0.1" in place.addresses else "::1" for name, place in places.items()}
        return AddressPlan(own, loopback=True)
    # Use an address family that all workers have: the other one may not be routed.
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
    """Workers with several addresses, if neither the platform nor a route to other workers shows which one to use."""
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


# Results of the calls


@dataclass(frozen=True, slots=True)
class Call:
    """The result of one call: `kind` is empty if it succeeded; milliseconds, if measured. `again`: number of SYN
    retransmissions; `once`: a second call succeeded."""

    kind: str
    error: str = ""
    rtt_ms: float | None = None
    again: int = 0
    once: bool = False

    @property
    def badness(self) -> int:
        return _BADNESS.get(self.kind, _NO_TALK) if self.kind else 0


def parse_calls(fields: Fields, caller: str, names: Mapping[int, str], asked: Iterable[int]) -> dict[Pair, Call] | None:
    """Parse the calls of one agent; None if the answer is malformed."""
    told, calls = mapping(fields.get("peers")), {}
    for index in asked:
        entry = mapping(told.get(str(index)))
        if not isinstance(entry.get("ok"), bool):
            return None
        kind = "" if entry["ok"] else text(entry.get("kind"), 200)
        if not entry["ok"] and kind not in _WORDS:
            return None
        rtt, again = number(entry.get("rtt_ms"), least=0), int(number(entry.get("again"), least=0) or 0)
        calls[caller, names[index]] = Call(kind, words_of(entry.get("error"), 200), rtt, again)
    return calls


def judge_calls(names: Sequence[str], calls: Mapping[Pair, Call]) -> list[Finding]:
    """The findings from all calls, after the failed ones were repeated."""
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
        said = Message("{n} pairs among {workers} fail, too many to name the faulty part")
        filled = said.filled(n=len(found.unclear), workers=fold_names(members))
        findings.append(_finding(None, filled, both.values()))
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
