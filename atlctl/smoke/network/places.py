"""Where each worker can be reached by the others: from what the platform says and what the agents say of themselves."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atlctl.jobs.model import Worker
from atlctl.smoke.session import Fields

#: Addresses of others that an agent is asked about: which of its own would it use to reach them?
TARGETS = 4


@dataclass(frozen=True, slots=True)
class Place:
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
class Chosen:
    """`addresses` by name; `lost`: workers that have none that others could use. `loopback`: all share one stack."""

    addresses: Mapping[str, str]
    lost: tuple[str, ...] = ()
    loopback: bool = False


def parse(fields: Fields) -> Place | None:
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
    return Place(
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


def targets(workers: Sequence[Worker]) -> list[str]:
    """Addresses that the platform knows, some of them: the way to the training's network leads there."""
    known = [worker.address for worker in workers if literal(worker.address)]
    return [address for address in known if address is not None and _remote(address)][:TARGETS]


def choose(workers: Sequence[Worker], places: Mapping[str, Place]) -> Chosen:
    """An address for each of `places`. Never loopback when one of the others is on another network stack."""
    known = [worker for worker in workers if worker.name in places]
    if len({place.stack for place in places.values()}) <= 1:
        own = {name: "127.0.0.1" if "127.0.0.1" in place.addresses else "::1" for name, place in places.items()}
        return Chosen(own, loopback=True)
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
    return Chosen(addresses, tuple(lost))


def unsure(workers: Sequence[Worker], places: Mapping[str, Place]) -> list[str]:
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
