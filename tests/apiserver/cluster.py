"""The server's whole state, shared by its parts."""

from __future__ import annotations

import itertools
import random
import uuid
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.apiserver.access import Access, User
from tests.apiserver.faults import Fault, Switchboard
from tests.apiserver.kubelet import Kubelet
from tests.apiserver.resources import Resource, Served
from tests.apiserver.store import Store


@dataclass(slots=True)
class Cluster:
    """`requests`: API requests so far, oldest first; `garbage`: seconds until dependents are deleted.

    `rough`: seed of the rough mode of exec (README); None: deliver immediately and in order.
    """

    folder: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    served: Served = field(default_factory=Served)
    access: Access = field(default_factory=Access)
    faults: Switchboard = field(default_factory=Switchboard)
    requests: list[dict[str, Any]] = field(default_factory=list)
    garbage: float = 0.05
    page: int = 0
    rough: int | None = None
    store: Store = field(init=False)
    kubelet: Kubelet = field(init=False)
    _execs: itertools.count[int] = field(init=False, default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.store = Store(self.served)
        self.kubelet = Kubelet(self.store, self.folder, self.id)

    def dice(self) -> random.Random | None:
        """The random generator for the roughness of one exec."""
        return None if self.rough is None else random.Random(f"{self.rough}/{next(self._execs)}")


@dataclass(slots=True)
class Call:
    """A parsed API request. `verb` is RBAC's; `name` is empty for a collection."""

    cluster: Cluster
    request: web.Request
    user: User
    query: list[tuple[str, str]]
    verb: str
    resource: Resource
    namespace: str
    name: str
    sub: str
    entry: dict[str, Any]
    fault: Fault | None = None

    def get(self, key: str, default: str = "") -> str:
        """The first value of a parameter."""
        return next((value for name, value in self.query if name == key), default)

    def flag(self, key: str) -> bool:
        return self.get(key).lower() in ("true", "1")
