"""Which way between ranks NCCL really took, from its own log: a worker that fell back to sockets is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from atlctl.smoke.findings import Culprit, Finding, Severity
from atlctl.smoke.ranks.stages import Outcome

#: By worker, how often NCCL said that two ranks are joined by each way: `NET/IB`, `NET/Socket`, `P2P`, `SHM`.
Ways = Mapping[str, Mapping[str, int]]

_SOCKET = "NET/Socket"
_ADVICE = {
    "NET": "on this worker: ibv_devinfo (is the port ACTIVE?), ulimit -l, NCCL_IB_HCA; is /dev/infiniband there?",
    "SHM": "nvidia-smi topo -p2p r and nvidia-smi nvlink -s on this worker: GPUs there do not reach another directly",
}


def ways(outcome: Outcome) -> dict[str, dict[str, int]]:
    """What the logs of all ranks say; a worker whose NCCL said nothing is left out."""
    found: dict[str, Counter[str]] = {}
    for track in outcome.tracks:
        log = (track.exit or {}).get("nccl")
        if not isinstance(log, dict) or not log.get("said"):
            continue
        kinds = found.setdefault(track.member.worker, Counter())
        via = log.get("via")
        for kind, count in via.items() if isinstance(via, dict) else ():
            if isinstance(count, int):
                kinds[str(kind)[:40]] += count
        nets = log.get("nets")
        # A rank that did not get as far as to its channels has at least chosen a network.
        for net in nets if isinstance(nets, list) and not kinds else ():
            kinds[f"NET/{str(net)[:20]}"] += 1
    return {worker: dict(kinds) for worker, kinds in found.items()}


def judge(check: str, told: Ways, rdma: Sequence[str] = ()) -> list[Finding]:
    """`rdma`: workers with an RDMA port that is active."""
    found = []
    networks = {worker: _most(kinds, "NET/") for worker, kinds in told.items()}
    networks = {worker: kind for worker, kind in networks.items() if kind}
    usual, many = Counter(networks.values()).most_common(1)[0] if networks else ("", 0)
    if usual not in ("", _SOCKET) and 2 * many > len(networks):
        for worker, kind in networks.items():
            if kind == _SOCKET:
                text = f"NCCL fell back to sockets on {worker}; {many} of {len(networks)} workers use {usual[4:]}"
                found.append(Finding(check, Severity.WARN, Culprit("worker", worker), text, True, _ADVICE["NET"]))
    elif usual == _SOCKET and many == len(networks) and set(networks) <= set(rdma):
        text = "NCCL uses sockets on all workers although each has an active RDMA port"
        found.append(Finding(check, Severity.WARN, None, text, True, _ADVICE["NET"]))
    inside = {worker: _most(kinds, "P2P", "SHM") for worker, kinds in told.items()}
    direct = [worker for worker, kind in inside.items() if kind == "P2P"]
    around = [worker for worker, kind in inside.items() if kind == "SHM"]
    if len(direct) > len(around):
        for worker in around:
            text = f"GPUs of {worker} talk through shared memory; on {len(direct)} other workers directly"
            found.append(Finding(check, Severity.WARN, Culprit("worker", worker), text, True, _ADVICE["SHM"]))
    return found


def _most(kinds: Mapping[str, int], *starts: str) -> str:
    """The way of one of these kinds that is taken most."""
    fitting = {kind: count for kind, count in kinds.items() if kind.startswith(starts)}
    return max(fitting, key=lambda kind: (fitting[kind], kind)) if fitting else ""


def note(told: Ways) -> str:
    total: Counter[str] = Counter()
    for kinds in told.values():
        total.update(kinds)
    return ", ".join(f"{kind} x {count}" for kind, count in total.most_common(4))
