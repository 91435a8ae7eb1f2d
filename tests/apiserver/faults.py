"""Faults to inject: per kind of request and pod, a number of times or randomly with a seed."""

from __future__ import annotations

import fnmatch
import itertools
import random
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.apiserver.statuses import Refusal

#: Answers that replace the request's own.
REFUSALS = ("throttle", "dialing", "unavailable", "status")
#: Faults of an exec, a log or any connection.
ACTIONS = (
    *REFUSALS,
    "drop",  # the connection is cut before an answer
    "delay",  # `seconds` before the answer
    "drop-after",  # exec: cut `seconds` after the start; log: cut after `bytes`
    "drop-before-end",  # exec: all output but the last bytes of stdout, then cut
    "drop-before-exit",  # exec: all output, then cut before the frame of channel 3
    "drop-inside-exit",  # exec: cut within that frame
    "drop-after-exit",  # exec: that frame whole, then cut with no close frame
    "stall",  # exec and log: nothing more is sent after the start, for `seconds` (0: forever)
    "stall-before-exit",  # exec: all output, then silence, for `seconds` (0: forever)
    "pause",  # exec: `seconds` of silence in each stream, before more than `bytes` bytes of it
    "slow",  # exec and log: `seconds` between two frames or chunks
    "split",  # exec: frames of `bytes` bytes, cut inside characters
    "end-early",  # log: a clean end after `bytes`, as when a kubelet dies
    "silence",  # the request is accepted and never answered
    "drip",  # `bytes` of the answer at once, then a byte every `seconds` (0: one second), head and all; log: its lines
    "endless",  # a body that never ends: items of a list, lines of a log
    "bomb",  # a small gzip body that unpacks to 4 GiB of empty objects
    "endless-pages",  # list: each page refers to another one
)


@dataclass(slots=True)
class Fault:
    """A fault, applied to requests of `kind` for a pod (or object) whose name matches `name`.

    `kind`: an RBAC verb (get, list, watch, create, patch, delete), exec, log, or any of these; discovery; or every.
    `times`: how often it is applied (None: always); `probability`: chance, from a generator with `seed`.
    """

    action: str
    kind: str = "exec"
    name: str = "*"
    resource: str = "*"
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    seconds: float = 0.0
    bytes: int = 1
    code: int = 500
    message: str = ""
    id: int = 0
    hits: int = 0
    _random: random.Random = field(default_factory=random.Random, repr=False)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"no such fault: {self.action}")
        self._random = random.Random(self.seed)

    def fires(self, kind: str, resource: str, name: str) -> bool:
        """Whether the fault applies now; counts it if so."""
        many = ("every",) if kind == "discovery" else ("any", "every")
        if self.kind not in (kind, *many) or not fnmatch.fnmatchcase(name, self.name):
            return False
        if not fnmatch.fnmatchcase(resource, self.resource):
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        if self.probability < 1.0 and self._random.random() >= self.probability:
            return False
        self.hits += 1
        return True

    def refusal(self) -> Refusal | None:
        """The fault's answer; None if it has none."""
        if self.action == "throttle":
            text = self.message or "Too many requests, please try again later."
            return Refusal(429, text=text + "\n", headers={"Retry-After": f"{max(self.seconds, 0):.0f}"})
        if self.action == "dialing":
            text = self.message or "dial tcp 10.99.0.10:10250: connect: connection refused"
            return Refusal(500, "", f"error dialing backend: {text}")
        if self.action == "unavailable":
            return Refusal(503, text=self.message or "service unavailable\n")
        if self.action == "status":
            return Refusal(
                self.code, "InternalError" if self.code == 500 else "", self.message or "a fault of the test"
            )
        return None

    def asdict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if not key.startswith("_")}


class Switchboard:
    """All faults in the order in which they were set; the first match applies."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._ids = itertools.count(1)

    def add(self, **values: Any) -> Fault:
        fault = Fault(**values)
        fault.id = next(self._ids)
        self.faults.append(fault)
        return fault

    def clear(self) -> None:
        self.faults.clear()

    def ask(self, kind: str, resource: str, name: str) -> Fault | None:
        return next((fault for fault in self.faults if fault.fires(kind, resource, name)), None)
