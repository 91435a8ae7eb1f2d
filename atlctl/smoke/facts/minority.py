"""Who differs from the others: pure functions over what each worker told."""

from __future__ import annotations

import ipaddress
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Sizes that are this near to each other are the same: a share of a machine's memory varies.
_ALIKE = 0.1
#: Seconds by which clocks may differ before it is said.
CLOCKS = 1.0
#: Settings that decide how a training talks, and those of them that each worker has for itself.
_TALK = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_")
_OWN = frozenset({"NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"})
_WORD = 160

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Vote:
    """What most have, and who has something else. `majority` is None where no value is that of most."""

    majority: str | None
    odd: dict[str, str] = field(default_factory=dict)


def vote(values: Mapping[str, str]) -> Vote:
    """`odd` is empty where all are alike. Most: more than half of three workers or more."""
    counted = Counter(values.values())
    if len(counted) < 2:
        return Vote(next(iter(counted), None))
    value, count = counted.most_common(1)[0]
    if len(values) < 3 or 2 * count <= len(values):
        return Vote(None, dict(values))
    return Vote(value, {name: other for name, other in values.items() if other != value})


def compare(facts: Mapping[str, Facts]) -> dict[str, Vote]:
    """What is not alike among the workers that told anything, by what it is called."""
    told = {name: labels(fact) for name, fact in facts.items() if "problem" not in fact}
    votes = {}
    for label in dict.fromkeys(label for mine in told.values() for label in mine):
        missing = next((text for start, text in _MISSING.items() if label.startswith(start)), None)
        values = {name: mine.get(label, missing) for name, mine in told.items()}
        votes[label] = vote({name: value for name, value in values.items() if value is not None})
    votes["/dev/shm"] = _sizes({name: fact.get("shm") for name, fact in facts.items()})  # noqa: S108
    if not any(mine.get("torch", "none") != "none" for mine in told.values()):
        votes.pop("torch", None)
    return {label: found for label, found in votes.items() if found.odd}


#: What a worker has that does not tell of such a thing, where another one does.
_MISSING = {"RDMA port": "not there", "setting ": "not set"}


def labels(facts: Facts) -> dict[str, str]:
    """What should be equal on all workers, in words. What is not told is left out."""
    found: dict[str, Any] = {
        "torch": None if facts.get("versions_problem") else facts.get("torch") or "none",
        "CUDA": facts.get("cuda"),
        "NCCL": facts.get("nccl"),
        "GPU driver": facts.get("driver"),
        "Python": _first(facts.get("python"), 2),
        "kernel": _first(facts.get("kernel"), 1),
        "machine": facts.get("machine"),
        "memlock": _limit(facts.get("memlock")),
        "GPUs": _gpus(facts),
        "GPU topology": _topology(facts),
    }
    for port in _dicts(facts.get("rdma")):
        name = f"RDMA port {_word(port.get('device'))}/{_word(port.get('port'))}"
        told = [_word(port.get(key)) for key in ("state", "rate", "layer")]
        found[name] = ", ".join([*(word for word in told if word), f"{_word(port.get('gids'))} GIDs"])
    if facts.get("rdma_problem"):
        found["RDMA"] = f"not told: {facts['rdma_problem']}"
    settings = facts.get("settings")
    for name, value in (settings if isinstance(settings, dict) else {}).items():
        if name.startswith(_TALK) and name not in _OWN:
            found[f"setting {name}"] = value
    for gpu in _dicts(facts.get("gpus")):
        links = gpu.get("links")
        if isinstance(links, dict):
            found[f"NVLinks of GPU {gpu.get('index')}"] = f"{links.get('up')} up, {links.get('down')} down"
    return {label: _word(value) for label, value in found.items() if value is not None}


def loopback(facts: Facts) -> bool | None:
    """Whether the worker's own name stands for loopback addresses only; None where it is not told."""
    addresses = facts.get("name")
    if not isinstance(addresses, list) or not addresses:
        return None
    try:
        return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)
    except ValueError:
        return None


def astray(bounds: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Clocks that differ from the one in the middle for certain, by how many seconds (positive: ahead).

    `bounds`: within which the distance from the client's clock lies, as far as the way to and fro tells.
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
    sizes = {
        name: room["size"]
        for name, room in rooms.items()
        if isinstance(room, dict) and isinstance(room.get("size"), int) and room["size"] > 0
    }
    if len(sizes) < 2:
        return Vote(None)
    # Not the mean of the middle two, which neither of them may be near to.
    middle = statistics.median_low(sizes.values())
    common = size(middle)
    return vote({n: common if abs(s - middle) <= _ALIKE * middle else size(s) for n, s in sizes.items()})


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _gpus(facts: Facts) -> str | None:
    """How many of which, where that is told."""
    smi = facts.get("smi")
    if not isinstance(smi, dict) or smi.get("hung") or smi.get("late"):
        return None
    names = Counter(_word(gpu.get("name") or "of unknown kind") for gpu in _dicts(facts.get("gpus")))
    return " + ".join(f"{count} x {name}" for name, count in sorted(names.items())) or "none"


def _topology(facts: Facts) -> str | None:
    smi = facts.get("smi")
    pairs = smi.get("topology") if isinstance(smi, dict) else None
    return ", ".join(f"{kind} x {count}" for kind, count in sorted(pairs.items())) if isinstance(pairs, dict) else None


def _limit(value: Any) -> str | None:
    if not isinstance(value, int):
        return None
    return "no limit" if value < 0 or value >= 1 << 62 else size(value)


def _first(version: Any, parts: int) -> str | None:
    return ".".join(version.split(".")[:parts]) if isinstance(version, str) and version else None


def _dicts(value: Any) -> Sequence[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _word(value: Any) -> str:
    return "" if value is None else str(value)[:_WORD]
