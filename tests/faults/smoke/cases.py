"""Network faults between hosts, each with exactly the culprits that the smoke test must name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from atlctl.jobs.model import Worker
from tests.faults.smoke import driving
from tests.faults.smoke.driving import Accused, Told
from tests.faults.smoke.netns import Network

#: Bandwidth of every host in Mbit/s, of a slow one, and of a link whose receive windows are filled by its queue.
MBIT, SLOW, CRAWLING = 200.0, 50.0, 16.0
_NODE = (
    "isolated node",
    "slow node",
    "1 % loss of a node",
    "2 % loss of a node",
    "MTU hole of a node",
    "half of the new connections of a node",
    "limit of new connections to a node",
)
_LINK = ("cut link", "slow link", "1 % loss of a link", "2 % loss of a link", "MTU hole of a link")
_PROCESS = ("silent worker", "exec refused")
SINGLE = (*_NODE, *_LINK, *_PROCESS)
MIXED = ("two at once", "three at once")
#: Weak ones, alone only.
FAINT = ("0.3 % loss of a node", "0.3 % loss of a link", "crawling link")

_PUT: Mapping[str, Callable[..., None]] = {
    "isolated node": Network.isolate,
    "slow node": lambda network, node: network.rate(node, SLOW),
    "1 % loss of a node": lambda network, node: network.lose(node, 1),
    "2 % loss of a node": lambda network, node: network.lose(node, 2),
    "MTU hole of a node": lambda network, node: network.hole(node, 1200),
    "half of the new connections of a node": Network.drop_new,
    "limit of new connections to a node": Network.limit_new,
    "0.3 % loss of a node": lambda network, node: network.lose(node, 0.3),
    "cut link": Network.cut,
    "crawling link": lambda network, one, other: network.slow_link(one, other, CRAWLING),
    "0.3 % loss of a link": lambda network, one, other: network.lose_between(one, other, 0.3),
    "slow link": lambda network, one, other: network.slow_link(one, other, SLOW),
    "1 % loss of a link": lambda network, one, other: network.lose_between(one, other, 1),
    "2 % loss of a link": lambda network, one, other: network.lose_between(one, other, 2),
    "MTU hole of a link": lambda network, one, other: network.hole_between(one, other, 1200),
}


@dataclass
class Case:
    """Faults (kind and targets) on otherwise healthy hosts."""

    hosts: int
    faults: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    mbit: float | None = MBIT

    @property
    def wanted(self) -> set[Accused]:
        return {frozenset(f"worker-{index}" for index in targets) for _, targets in self.faults}

    @property
    def hard(self) -> bool:
        """Whether no fault affects only speed or loss."""
        return all(not any(word in kind for word in ("slow", "crawling", "loss")) for kind, _ in self.faults)

    def run(self) -> Told:
        """Speed is not measured if every fault prevents communication."""
        before: dict[int, Sequence[str]] = {}
        silent: list[str] = []
        with Network(self.hosts, self.mbit) as network:
            for kind, targets in self.faults:
                if kind == "exec refused":
                    before[targets[0]] = ("sh", "-c", "echo no exec here >&2; exit 126")
                elif kind == "silent worker":
                    silent += [f"worker-{targets[0]}"]
                else:
                    _PUT[kind](network, *targets)

            def after(pids: dict[str, int]) -> None:
                for name in silent:
                    driving.stop(name)(pids)

            workers: list[Worker] = network.workers
            return driving.drive(network.hosts(before=before), workers, not self.faults or not self.hard, after)


def single(kind: str, hosts: int, chance: random.Random) -> Case:
    ends = 2 if "link" in kind else 1
    return Case(hosts, [(kind, tuple(sorted(chance.sample(range(hosts), ends))))])


def mixed(count: int, hosts: int, chance: random.Random) -> Case:
    """Simultaneous, distinguishable faults: no faulty link at a faulty worker, and never so many links of one worker
    that the worker itself looks faulty."""
    while True:
        case = Case(
            hosts,
            [fault for _ in range(count) for fault in single(chance.choice((*_NODE, *_LINK)), hosts, chance).faults],
        )
        if _distinct(case):
            return case


def _distinct(case: Case) -> bool:
    nodes = [targets[0] for _, targets in case.faults if len(targets) == 1]
    links = {targets for _, targets in case.faults if len(targets) == 2}
    if len(set(nodes)) + len(links) < len(case.faults) or any(set(nodes) & set(link) for link in links):
        return False
    healthy = case.hosts - len(nodes)
    # Three healthy workers are a reference for one bad link, but not for two; two workers have no reference.
    if healthy < 3 and not (healthy == 2 and not links and case.hosts == 4 and case.hard):
        return False
    if healthy == 3 and len(links) > 1:
        return False
    return all(sum(index in link for link in links) < (healthy - 1) for index in range(case.hosts))
