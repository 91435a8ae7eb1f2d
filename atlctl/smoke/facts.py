"""The check `facts`: compare the configuration of all workers and name those that differ.

Every agent reports its worker's facts once in a run (`gather`); other checks use them from `Run.facts`. Values that
should be equal on all workers are compared: versions, settings, GPUs, clocks, and the addresses of the host's name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from atlctl.i18n import COMMA, Message, joined
from atlctl.jobs.fields import entries, items, mapping, number, whole
from atlctl.jobs.naming import fold_names, names_by_reason
from atlctl.remote.gpus import slowed
from atlctl.smoke.context import Run
from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.session import Answer, Heard, words_of

CHECK = "facts"
#: Maximum number of differences shown for one worker.
_TOLD = 6
_ADVICE_MASTER = Message("look at the name there: getent hosts NAME, /etc/hosts, /etc/resolv.conf, the job's Service")
_ADVICE_NAME = Message("set GLOO_SOCKET_IFNAME to the network's interface, or give the host's name its real address")
SAME_IMAGE = Message("use the same image on all workers")
_ADVICE = {
    **dict.fromkeys(("torch", "CUDA", "NCCL", "Python"), SAME_IMAGE),
    "GPU driver": Message("bring the machine's driver to the version of the others"),
    "GPUs": Message("compare: atlctl exec --all nvidia-smi -L"),
    "NVLinks": Message("compare: atlctl exec --all nvidia-smi nvlink --status"),
    "GPU topology": Message("compare: atlctl exec --all nvidia-smi topo -m"),
    "setting": Message("set the same variables on all workers"),
    "RDMA": Message("look at the port: ibstat, rdma link; have the cable or the card checked"),
    "/dev/shm": Message("give all workers the same shared memory (an emptyDir of medium Memory)"),  # noqa: S108
    "memlock": Message("give all workers the same limit (RDMA wants no limit)"),
    "open files": Message("give all workers the same limit (ulimit -n, LimitNOFILE)"),
    "usable CPUs": Message("give all workers the same CPU limit"),
    "interface": Message("look at the interface there: ip link, ethtool; its cable, driver and settings"),
    "MTU": Message("give the interface the MTU of the others: ip link"),
    "PCIe": Message("have the card and its slot checked: nvidia-smi -q, lspci -vv"),
    "power limit": Message("give the GPU the power limit of the others: nvidia-smi -pl"),
    "ECC": Message("give the GPU the ECC mode of the others: nvidia-smi -e, then a reboot"),
    "MASTER_ADDR": _ADVICE_MASTER,
    "port of": Message("end that process if it is left over from another training, or choose another MASTER_PORT"),
    "CPU time": Message("other guests of the host take its CPUs: have the worker moved to another machine"),
    "own host name": _ADVICE_NAME,
    "address of": _ADVICE_MASTER,
}
_ADVICE_CLOCK = Message("have the machine's time service checked; until then times in logs of several workers mislead")
#: Timeouts in seconds: all facts of a worker, and one call of nvidia-smi.
_SECONDS, GPU_SECONDS = 12.0, 5.0
#: Limit for a valid clock value, in seconds since 1970.
_TIME = 1e12
#: Sizes within this relative difference count as equal: a share of a machine's memory varies.
_ALIKE = 0.1
#: Seconds by which clocks may differ without a finding.
CLOCKS = 1.0
#: Prefixes of settings for communication, and the settings that differ on each worker by design.
_TALK = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_")
_OWN = frozenset({"NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"})
#: Maximum number of host names that all workers resolve; of more, each resolves the first and the next ones.
_EVERY, _NEXT = 16, 4
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: Share of CPU time, above that of the others, that a hypervisor may take without a finding.
_STOLEN = 0.1
_word = partial(words_of, most=160)
#: Labels that are translated, and the value of a worker without such a thing.
GPUS, NONE = Message("GPUs"), Message("none")
_UNRESOLVED, _ADDRESS = Message("cannot be resolved"), Message("address of MASTER_ADDR")
_DIFFERS = Message("{label}: {value} (the others: {most})")
_DRIVER, _KERNEL, _MACHINE, _TOPOLOGY, _FILES, _CPUS, _OWN_NAME = (
    Message("GPU driver"), Message("kernel"), Message("machine"), Message("GPU topology"), Message("open files"),
    Message("usable CPUs"), Message("own host name"),
)  # fmt: skip

#: The check that has the findings about network cards, if it was made.
_MESH = "mesh"
#: Counters of damage: of interfaces, and of InfiniBand and RoCE ports. Retransmissions also come of congestion.
_DAMAGED = ("rx_errors", "tx_errors", "symbol_error", "link_error_recovery", "port_rcv_errors")
_ADVICE_LINK = Message("look at the cable, the transceiver and the switch port of this card; ip -s link, dmesg")

#: By worker: lower and upper bound of its clock's offset from the client's clock, in seconds.
Bounds = dict[str, tuple[float, float]]
Facts = Mapping[str, Any]


async def check_facts(run: Run) -> None:
    """Compare all workers; also fills `run.facts`."""
    with run.check(CHECK) as stage:
        await gather(run)
        votes, wrong = compare(run.facts), faulty(run.facts)
        if votes or wrong:
            await gather_again(run, sorted({name for found in votes.values() for name in found.odd} | wrong.keys()))
            votes, wrong = compare(run.facts), faulty(run.facts)
        run.find(*differences(votes, wrong))
        run.find(*await _clocks(run))
        run.find(*loopback_names(run.facts), *unresolved(run.facts))
        silent = {name: fact["problem"] for name, fact in run.facts.items() if "problem" in fact}
        stage.tested = set(run.facts) - set(silent)
        stage.untested = {
            name: Message("it did not report its facts: {why}", why=words_of(why)) for name, why in silent.items()
        }
        for name, fact in run.facts.items():
            run.report.workers.setdefault(name, {}).update(summary(fact))
        run.report.data[CHECK] = {
            "differ": {label: {"most": found.majority, "odd": found.odd} for label, found in votes.items()},
            "loopback_names": [name for name, fact in run.facts.items() if loopback(fact)],
            "place": {name: fact["place"] for name, fact in run.facts.items() if fact.get("place")},
        }
        stage.note = _note(run.facts)
        if len(run.facts) < 2:
            alone = Message("one worker, nothing to compare with")
            noted = Message("one worker, nothing to compare with: {facts}", facts=stage.note)
            stage.not_judged(noted if stage.note else alone)


# Reports of the agents


async def gather(run: Run) -> None:
    """Fill `run.facts`, unless filled already. For each worker: the fields of `remote/smoke/facts.py`; `gpus` (a list,
    each with `index` and `name`); `smi` (other fields of `remote/smoke/gpus.py`); `clock` (bounds of its clock's offset
    from ours in seconds); `problem` if there was no report."""
    if run.facts:
        return
    living = run.session.living()
    gpus = {name: _ask_gpus(run, GPU_SECONDS, more=not run.options.net_only) for name in living}
    told, smi = await asyncio.gather(
        _facts(run, living, processes=not run.options.net_only), run.session.ask(gpus, _SECONDS)
    )
    for name in living:
        run.facts[name] = told[name] | _told_gpus(smi[name])


async def gather_again(run: Run, names: Sequence[str]) -> None:
    """Get the facts of `names` again; keeps the old ones of workers without an answer."""
    living = [name for name in names if name in run.session.living()]
    told = await _facts(run, living, processes=not run.options.net_only, longer=True)
    for name, facts in told.items():
        if "problem" not in facts:
            run.facts[name] = {**run.facts[name], **facts, "clock": run.facts[name].get("clock", facts.get("clock"))}


async def look_after(run: Run) -> None:
    """Read the counters of the network cards again: a link that was lost, or packets that were damaged, since
    `check_facts`, at whatever moment. A lost link explains the slow connections of its worker: these findings go."""
    before = {name: fact.get("counters") for name, fact in run.facts.items()}
    known = [name for name in run.session.living() if isinstance(before.get(name), dict)]
    check = next((one.name for one in run.report.checks if one.name == _MESH), CHECK)
    for name, answer in (await run.session.ask({name: {"cmd": "links"} for name in known}, _SECONDS)).items():
        now = (answer.fields or {}).get("counters")
        if isinstance(now, dict):
            found = list(_of_cards(check, name, before[name] or {}, now))
            if any(finding.severity is Severity.FAIL for finding in found):
                run.report.findings[:] = [one for one in run.report.findings if not _is_slow_link(one, name)]
            run.find(*found)


def _is_slow_link(finding: Finding, name: str) -> bool:
    who = finding.culprit
    link = who is not None and who.kind == "link" and name in (who.worker, who.peer)
    return link and finding.severity is Severity.WARN


def _of_cards(check: str, name: str, before: Facts, now: Facts) -> Iterator[Finding]:
    """Drops do not count: a card also drops what no program waits for."""
    for card, counted in now.items():
        earlier = before.get(card)
        if not isinstance(earlier, dict) or not isinstance(counted, dict) or not (_NIC.match(card) or "/" in card):
            continue
        more = {key: (whole(value) or 0) - (whole(earlier.get(key, value)) or 0) for key, value in counted.items()}
        lost = max(more.get("carrier_changes", 0), more.get("link_downed", 0))
        if lost > 0:
            text = Message("{card} lost its link during the test ({count} changes)", card=_word(card), count=lost)
            yield Finding(check, Severity.FAIL, Culprit("worker", name), text, True, _ADVICE_LINK)
        damaged = sum(max(0, more.get(key, 0)) for key in _DAMAGED)
        if damaged:
            text = Message("{card} counted {count} errors during the test", card=_word(card), count=damaged)
            yield Finding(check, Severity.WARN, Culprit("worker", name), text, True, _ADVICE_LINK)


async def gather_gpus_again(run: Run, names: Sequence[str], seconds: float) -> None:
    """Get the GPU data of `names` again, with a longer timeout."""
    asks = {name: _ask_gpus(run, seconds, more=True) for name in names if name in run.session.living()}
    for name, answer in (await run.session.ask(asks, 2 * seconds + 2)).items():
        run.facts[name] = {**run.facts.get(name, {}), **_told_gpus(answer)}


async def _facts(run: Run, living: list[str], *, processes: bool, longer: bool = False) -> dict[str, dict[str, Any]]:
    bounds: Bounds = {}
    hosts = hosts_to_resolve({name: run.session.hello(name).get("host") for name in run.session.living()})
    shared = {"cmd": "facts", "processes": processes, "pace": run.session.pace, "longer": longer}
    asks = {name: {**shared, "hosts": hosts.get(name, [])} for name in living}
    answers = await run.session.ask(asks, _SECONDS, _clock(bounds))
    facts: dict[str, dict[str, Any]] = {}
    for name, answer in answers.items():
        told = {"problem": answer.problem} if answer.fields is None else answer.fields
        facts[name] = {key: value for key, value in told.items() if key not in ("ev", "re", "end", "t")}
        if name in bounds:
            facts[name]["clock"] = bounds[name]
    return facts


def hosts_to_resolve(hosts: Mapping[str, Any]) -> dict[str, list[str]]:
    """By worker: the host names of other workers that it resolves. `hosts`: the host name of each."""
    counted = Counter(host for host in hosts.values() if isinstance(host, str) and _HOST.fullmatch(host))
    single = [host for host, count in counted.items() if count == 1 and host != "localhost"]
    found = {}
    for at, (name, own) in enumerate(hosts.items()):
        near = single if len(single) <= _EVERY else [single[0], *[*single, *single][at % len(single) :][: _NEXT + 1]]
        found[name] = [host for host in dict.fromkeys(near) if host != own]
    return found


async def clocks_again(run: Run, names: list[str]) -> Bounds:
    """Read the clocks of these workers again, one after another, because load makes the bounds wider."""
    found: Bounds = {}
    for name in names:
        await run.session.ask({name: {"cmd": "facts", "clock": True}}, 3.0, _clock(found))
    return found


def _clock(into: Bounds) -> Heard:
    """A listener that stores the clock bounds of each worker; only the first clock event counts."""
    asked = time.time()

    def heard(name: str, event: dict[str, Any]) -> None:
        wall = event.get("wall")
        if event.get("ev") == "clock" and isinstance(wall, int | float) and abs(wall) < _TIME:
            into.setdefault(name, (wall - time.time(), wall - asked))

    return heard


def _ask_gpus(run: Run, seconds: float, *, more: bool) -> dict[str, Any]:
    return {"cmd": "gpus", "seconds_each": seconds * run.session.pace, "more": more}


def _told_gpus(answer: Answer) -> dict[str, Any]:
    """The GPUs reported by nvidia-smi, or the device files if it hangs; only well-formed entries.

    `throttled`: reasons for slowed clocks.
    """
    fields = answer.fields or {"problem": answer.problem, "late": answer.late}
    gpus = [
        {"name": None, **gpu, "throttled": list(slowed(whole(gpu.get("clock_reasons"))))}
        for gpu in entries(fields.get("gpus"))
        if isinstance(gpu.get("index"), int)
    ]
    if not gpus and fields.get("hung"):
        gpus = [{"index": number, "name": None} for number in range(min(whole(fields.get("devices")) or 0, 1024))]
    smi = {key: value for key, value in fields.items() if key not in ("ev", "re", "end", "t", "gpus")}
    return {"gpus": gpus, "smi": smi}


# Comparison


@dataclass(frozen=True, slots=True)
class Vote:
    """The majority's value, and the workers with another value. `majority` is None if there is no majority."""

    majority: str | None
    odd: dict[str, str] = field(default_factory=dict)


def vote(values: Mapping[str, str]) -> Vote:
    """Find the majority: more than half of at least three workers. `odd` is empty if all values are equal."""
    counted = Counter(values.values())
    if len(counted) < 2:
        return Vote(next(iter(counted), None))
    value, count = counted.most_common(1)[0]
    if len(values) < 3 or 2 * count <= len(values):
        return Vote(None, dict(values))
    return Vote(value, {name: other for name, other in values.items() if other != value})


def compare(facts: Mapping[str, Facts]) -> dict[str, Vote]:
    """The values that differ between workers, by label; workers without a report are ignored."""
    told = {name: labels(fact) for name, fact in facts.items() if "problem" not in fact}
    votes = {}
    for label in dict.fromkeys(label for mine in told.values() for label in mine):
        missing = next((text for start, text in _MISSING.items() if label.startswith(start)), None)
        values: dict[str, str | None] = {name: mine.get(label, missing) for name, mine in told.items()}
        votes[label] = vote({name: value for name, value in values.items() if value is not None})
    votes["/dev/shm"] = _sizes({name: fact.get("shm") for name, fact in facts.items()})  # noqa: S108
    if not any(mine.get("torch", NONE) != NONE for mine in told.values()):
        votes.pop("torch", None)
    return {label: found for label, found in votes.items() if found.odd}


#: Values for workers without such an entry, if another worker has it.
_MISSING = {
    "RDMA port": Message("not there"), "interface ": Message("not there"), "setting ": Message("not set"),
}  # fmt: skip
#: Names of network interfaces of a machine or pod, without bridges and tunnels.
_NIC = re.compile(r"(?:eth|en|ib|bond|net|hsn)[A-Za-z0-9._-]*")
#: Variables with the position of a worker; the first one that is set counts.
_RANK = ("PET_NODE_RANK", "NODE_RANK", "RANK", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def labels(facts: Facts) -> dict[str, str]:
    """The values that should be equal on all workers, by label; unknown values are left out."""
    found: dict[str, Any] = {
        "torch": None if facts.get("versions_problem") else facts.get("torch") or NONE,
        "CUDA": facts.get("cuda"),
        "NCCL": facts.get("nccl"),
        _DRIVER: facts.get("driver") or next((gpu.get("driver") for gpu in entries(facts.get("gpus"))), None),
        "Python": _first(facts.get("python"), 2),
        _KERNEL: _first(facts.get("kernel"), 1),
        _MACHINE: facts.get("machine"),
        "memlock": _limit(facts.get("memlock"), size),
        _FILES: _limit(facts.get("nofile"), str),
        _CPUS: _figure(_usable(facts)),
        GPUS: _gpu_kinds(facts),
        _TOPOLOGY: _topology(facts),
    }
    for port in entries(facts.get("rdma")):
        name = Message("RDMA port {port}", port=f"{_word(port.get('device'))}/{_word(port.get('port'))}")
        told = [_word(port.get(key)) for key in ("state", "rate", "layer")]
        found[name] = ", ".join([*(word for word in told if word), f"{_word(port.get('gids'))} GIDs"])
    if facts.get("rdma_problem"):
        found["RDMA"] = Message("unknown: {why}", why=_word(facts["rdma_problem"]))
    for key, value in mapping(facts.get("settings")).items():
        if key.startswith(_TALK) and key not in _OWN:
            found[Message("setting {name}", name=key)] = value
    for gpu in entries(facts.get("gpus")):
        if links := mapping(gpu.get("links")):
            ends = Message("{up} up, {down} down", up=_word(links.get("up")), down=_word(links.get("down")))
            found[Message("NVLinks of GPU {number}", number=_word(gpu.get("index")))] = ends
        found |= _card(gpu)
    for nic in entries(facts.get("interfaces")):
        device, state = _word(nic.get("name")), nic.get("state")
        if _NIC.fullmatch(device):
            speed = _figure(nic.get("speed")) if state == "up" else None
            how = f"up {speed} Mb/s" if speed else state or Message("unknown")
            found[Message("interface {name}", name=device)] = how
            found[Message("MTU of {name}", name=device)] = nic.get("mtu")
    if "name" in facts:
        found[_OWN_NAME] = Message("resolved") if facts["name"] else _UNRESOLVED
    found |= _master(facts)
    return {label: _word(value) for label, value in found.items() if value is not None}


def _card(gpu: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one GPU and of its slot that should be equal on all workers."""
    number = _word(gpu.get("index"))
    width, gen, watts = (_figure(gpu.get(key)) for key in ("pcie_width", "pcie_gen", "power_limit"))
    return {
        Message("PCIe of GPU {number}", number=number): f"x{width} gen {gen}" if width and gen else None,
        Message("power limit of GPU {number}", number=number): watts and f"{watts} W",
        Message("ECC of GPU {number}", number=number): gpu.get("ecc_mode"),
    }


def _master(facts: Facts) -> dict[str, Any]:
    """The name at which workers meet, and its addresses on a worker that is not the master itself."""
    master = mapping(facts.get("master"))
    if not master or _word(master.get("name")) == "localhost":
        return {}
    found: dict[str, Any] = {"MASTER_ADDR": master.get("name")}
    if _rank(facts) != "0":
        found[_ADDRESS] = ", ".join(_addresses(master)[:4]) or _UNRESOLVED
    return found


def _rank(facts: Facts) -> Any:
    place = mapping(facts.get("place"))
    return next((place[name] for name in _RANK if name in place), "")


def _addresses(told: Any) -> list[str]:
    return [text for one in items(mapping(told).get("addresses")) if (text := _word(one))]


def first_worker(facts: Mapping[str, Facts]) -> str | None:
    """The worker of rank 0, whose address MASTER_ADDR should be. A rendezvous endpoint may be on any worker: on the one
    that most workers find at its name. None if unknown."""
    first = [n for n, fact in facts.items() if _rank(fact) == "0" and "PET_RDZV_ENDPOINT" not in fact["place"]]
    if not first:
        found = Counter(
            name
            for told in facts.values()
            for name, fact in facts.items()
            if not _own(fact).isdisjoint(_addresses(told.get("master")))
        )
        first = [name for name, count in found.items() if 2 * count > len(facts)]
    return first[0] if len(first) == 1 else None


def faulty(facts: Mapping[str, Facts]) -> dict[str, dict[str, str]]:
    """By worker and label: names that it resolves wrongly, MASTER_PORT in use, CPU time that its hypervisor takes."""
    found: dict[str, dict[str, str]] = {}
    for label, owner, asker, value in _misled(facts):
        has = ", ".join(sorted(_own(facts[owner]))[:4])
        text = Message("{label}: {value} ({worker} has {own})", label=label, value=value, worker=owner, own=has)
        found.setdefault(asker, {})[label] = text
    first = first_worker(facts)
    master = mapping(facts[first].get("master")) if first is not None else {}
    if first is not None and master.get("holder"):
        label, holder = Message("port of MASTER_ADDR"), words_of(master["holder"])
        text = Message("port {port} of MASTER_ADDR is in use: {holder}", port=_word(master.get("port")), holder=holder)
        found.setdefault(first, {})[label] = text
    for name, share, usual in _stolen(facts):
        label = Message("CPU time that the hypervisor takes")
        found.setdefault(name, {})[label] = _DIFFERS.filled(label=label, value=f"{share:.0%}", most=f"{usual:.0%}")
    return found


def _stolen(facts: Mapping[str, Facts]) -> Iterator[tuple[str, float, float]]:
    """Workers on machines whose hypervisor takes more CPU time than that of most: its share, and that of most. Workers
    of one machine see one counter at different moments; the least of their shares counts."""
    places = {name: _word(fact.get("boot")) or name for name, fact in facts.items()}
    shares: dict[str, float] = {}
    for name, at in places.items():
        if (share := number(mapping(facts[name].get("cpus")).get("stolen"), least=0)) is not None:
            shares[at] = min(share, shares.get(at, share))
    usual = statistics.median_low(shares.values()) if shares else 0.0
    yield from ((name, shares[at], usual) for name, at in places.items() if shares.get(at, 0.0) - usual >= _STOLEN)


def _misled(facts: Mapping[str, Facts]) -> Iterator[tuple[Message, str, str, str]]:
    """Names of workers that others resolve wrongly: label, the named worker, the asking one, and the value there.

    An address of no worker may be that of a Service. A name that most others cannot resolve is not meant to be, unless
    it is MASTER_ADDR.
    """
    counted = Counter(_word(fact.get("host")) for fact in facts.values())
    owners = {host: name for name, fact in facts.items() if counted[host := _word(fact.get("host"))] == 1}
    own = {name: _own(fact) for name, fact in facts.items()}
    every = set[str]().union(*own.values())
    first, told = first_worker(facts), dict[tuple[Message, str], dict[str, list[str]]]()
    for asker, fact in facts.items():
        name = _word(mapping(fact.get("master")).get("name"))
        named = [(Message("address of {host}", host=_word(one.get("name"))), one) for one in entries(fact.get("hosts"))]
        lookups = [(label, owners.get(_word(one.get("name"))), one) for label, one in named if one.get("name") != name]
        if name and name != "localhost" and not _is_loopback(name):
            lookups.append((_ADDRESS, owners.get(name, first), fact["master"]))
        for label, owner, one in lookups:
            if owner is not None and owner != asker and own[owner] not in (set(), own[asker]):
                told.setdefault((label, owner), {})[asker] = _addresses(one)
    for (label, owner), answers in told.items():
        lost = [asker for asker, addresses in answers.items() if not addresses]
        if label == _ADDRESS:
            due = len(lost) < len(answers) or bool(_addresses(facts[owner].get("master")))
        else:
            due = len(answers) > 1 and 2 * len(lost) <= len(answers)
        for asker, addresses in answers.items():
            wrong = any(one in every or _is_loopback(one) for one in addresses)
            if not addresses and due:
                yield label, owner, asker, _UNRESOLVED
            elif wrong and not own[owner].intersection(addresses):
                yield label, owner, asker, ", ".join(addresses[:4])


def _own(facts: Facts) -> set[str]:
    """The worker's addresses without loopback; equal if workers share a network stack."""
    return {address for address in _addresses(facts) if not _is_loopback(address)}


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def unresolved(facts: Mapping[str, Facts]) -> list[Finding]:
    """Findings for names that no worker can resolve. If only some workers cannot, `compare` names them."""
    masters = [fact["master"] for fact in facts.values() if isinstance(fact.get("master"), dict)]
    own = [fact for fact in facts.values() if "name" in fact]
    found = []
    if masters and not any(master.get("addresses") for master in masters):
        name, why = _word(masters[0].get("name")), words_of(masters[0].get("problem"))
        text = Message("no worker can resolve MASTER_ADDR {name}: {why}", name=name, why=why)
        found.append(Finding(CHECK, Severity.WARN, Culprit("facts"), text, True, _ADVICE_MASTER))
    if own and not any(fact["name"] for fact in own):
        why = words_of(own[0].get("name_problem"))
        text = Message("no worker can resolve its own host name, so gloo may use loopback: {why}", why=why)
        found.append(Finding(CHECK, Severity.WARN, Culprit("facts"), text, True, _ADVICE_NAME))
    return found


def loopback(facts: Facts) -> bool | None:
    """Whether the host's name has only loopback addresses; None if unknown."""
    addresses = facts.get("name")
    if not isinstance(addresses, list) or not addresses:
        return None
    try:
        return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)
    except ValueError:
        return None


def astray(bounds: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Clocks that certainly differ from the median clock, by how many seconds (positive: ahead).

    `bounds`: of the offset from the client's clock; the network delay makes them wider.
    """
    if len(bounds) < 2:
        return {}
    middle = sorted(bounds, key=lambda name: sum(bounds[name]))[(len(bounds) - 1) // 2]
    low, high = bounds[middle]
    found = {}
    for name, (least, most) in bounds.items():
        if least - high > CLOCKS:
            found[name] = least - high
        elif low - most > CLOCKS:
            found[name] = most - low
    return found


def _sizes(rooms: Mapping[str, Any]) -> Vote:
    sizes = {name: count for name, room in rooms.items() if (count := whole(mapping(room).get("size")) or 0) > 0}
    if len(sizes) < 2:
        return Vote(None)
    # Use a real value: the mean of the middle two may not be near any of them.
    middle = statistics.median_low(sizes.values())
    common = size(middle)
    return vote({n: common if abs(s - middle) <= _ALIKE * middle else size(s) for n, s in sizes.items()})


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _gpu_kinds(facts: Facts) -> str | None:
    """The number of GPUs of each type; None if unknown."""
    smi = mapping(facts.get("smi"))
    if not smi or smi.get("hung") or smi.get("late"):
        return None
    names = Counter(_word(gpu.get("name") or Message("of unknown kind")) for gpu in entries(facts.get("gpus")))
    return joined([joined([f"{count} x", name], " ") for name, count in sorted(names.items())], " + ") or NONE


def _topology(facts: Facts) -> str | None:
    pairs = mapping(mapping(facts.get("smi")).get("topology"))
    return ", ".join(f"{kind} x {count}" for kind, count in sorted(pairs.items())) or None


def _limit(value: Any, shown: Callable[[int], str]) -> str | None:
    if not isinstance(value, int):
        return None
    return Message("no limit") if value < 0 or value >= 1 << 62 else shown(value)


def _usable(facts: Facts) -> Any:
    """The number of CPUs that a worker may use: its limit, else the CPUs that it may run on."""
    cpus = mapping(facts.get("cpus"))
    return cpus.get("quota") or cpus.get("allowed")


def _figure(value: Any) -> str | None:
    return f"{value:g}" if isinstance(value, int | float) else None


def _first(version: Any, parts: int) -> str | None:
    return ".".join(version.split(".")[:parts]) if isinstance(version, str) and version else None


# Findings


def differences(votes: Mapping[str, Vote], faults: Mapping[str, Mapping[str, str]] = {}) -> list[Finding]:
    """One finding for each worker that differs from the majority, and one for all values without a majority. `faults`:
    known faults by worker and label."""
    odd = {name: dict(texts) for name, texts in faults.items()}
    split: dict[str, str] = {}
    for label, found in votes.items():
        if any(label in texts for texts in faults.values()):
            continue
        if found.majority is None:
            split[label] = Message("{label}: {groups}", label=label, groups=_groups(found.odd))
            continue
        for name, value in found.odd.items():
            odd.setdefault(name, {})[label] = _DIFFERS.filled(label=label, value=value, most=found.majority)
    findings = [
        Finding(CHECK, Severity.WARN, Culprit("facts", name), _some(texts), True, _advice(texts))
        for name, texts in odd.items()
    ]
    if split:
        text = Message("not alike, and no value is that of most: {differences}", differences=_some(split))
        findings.append(Finding(CHECK, Severity.WARN, Culprit("facts"), text, True, _advice(split)))
    return findings


def loopback_names(facts: Mapping[str, Facts]) -> list[Finding]:
    """Findings for hosts whose name has a loopback address: without a configured interface, gloo announces that
    address. If it is the same on all hosts, it is their normal setup, and the user's trainings work with it."""
    leads = {name: loopback(fact) for name, fact in facts.items()}
    bad = [name for name, is_loopback in leads.items() if is_loopback]
    good = [name for name, is_loopback in leads.items() if is_loopback is False]
    if len(bad) >= len(good):
        return []
    findings = []
    for name in bad:
        if mapping(facts[name].get("settings")).get("GLOO_SOCKET_IFNAME"):
            continue
        addresses = ", ".join(map(str, facts[name]["name"][:4]))
        text = Message(
            "its name {host} stands for {addresses} there", host=facts[name].get("host"), addresses=addresses
        )
        findings.append(Finding(CHECK, Severity.WARN, Culprit("facts", name), text, True, _ADVICE_NAME))
    return findings


def clock_findings(off: Mapping[str, float], count: int) -> list[Finding]:
    """Findings for clocks that were wrong twice, among `count` workers."""
    if not off:
        return []
    if count < 3 or 2 * len(off) >= count:
        each = [Message("{worker} by {seconds:+.1f} s", worker=name, seconds=seconds) for name, seconds in off.items()]
        text = Message("clocks differ: {workers}", workers=joined(each, COMMA))
        return [Finding(CHECK, Severity.WARN, Culprit("facts"), text, True, _ADVICE_CLOCK)]
    ahead = Message("its clock is {seconds:.1f} s ahead of the others', at least")
    behind = Message("its clock is {seconds:.1f} s behind the others', at least")
    told = {name: (ahead if by > 0 else behind).filled(seconds=abs(by)) for name, by in off.items()}
    return [
        Finding(CHECK, Severity.WARN, Culprit("facts", name), text, True, _ADVICE_CLOCK) for name, text in told.items()
    ]


def summary(facts: Facts) -> dict[str, Any]:
    """A worker's facts for the report."""
    told = labels(facts)
    keys = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "GPU driver", "gpus": "GPUs"}
    found: dict[str, Any] = {key: told[label] for key, label in keys.items() if label in told}
    if memory := mapping(facts.get("memory")):
        found["memory_room"] = memory.get("room")
    if cpus := mapping(facts.get("cpus")):
        found |= {"cpus": _usable(facts), "cpu_busy": cpus.get("busy")}
    return found


async def _clocks(run: Run) -> list[Finding]:
    bounds = {name: fact["clock"] for name, fact in run.facts.items() if "clock" in fact}
    first = astray(bounds)
    if not first:
        return []
    calm = next((name for name in bounds if name not in first), None)
    again = bounds | await clocks_again(run, [*first, *([calm] if calm else [])])
    second = astray(again)
    return clock_findings({name: second[name] for name in first if name in second}, len(bounds))


def _note(facts: Mapping[str, Facts]) -> str:
    """The most important facts, if they are the same on all workers."""
    every = [labels(fact) for fact in facts.values() if "problem" not in fact]
    parts: list[str] = []
    for label in ("torch", "CUDA", "NCCL", GPUS):
        values = {mine[label] for mine in every if label in mine}
        if len(values) == 1:
            value = values.pop()
            parts.append(Message("{label} none", label=label) if value == NONE else joined([label, value], " "))
    return joined(parts, COMMA) if parts else ""


def _groups(values: Mapping[str, str]) -> str:
    by_value = names_by_reason(values.items())
    groups = [joined([fold_names(who), value], " ") for value, who in list(by_value.items())[:_TOLD]]
    return joined(groups, COMMA)


def _some(texts: Mapping[str, str]) -> str:
    """The first differences, and the number of the rest."""
    shown = list(texts.values())[:_TOLD]
    return joined([*shown, *([Message("{n} more", n=len(texts) - _TOLD)] if len(texts) > _TOLD else [])])


def _advice(labels: Iterable[str]) -> Message:
    found = (advice for start, advice in _ADVICE.items() for label in labels if label.startswith(start))
    return next(found, Message("give all workers the same image, settings and limits"))
