"""Each test of the suite runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.handle import Server
from tests.contract.cluster import KubernetesWorld
from tests.contract.hosts import Hosts, HostsWorld
from tests.contract.world import LocalWorld, World
from tests.support.needs import needs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Server]:
    """One server for all tests: each has a namespace of its own."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """One sshd for all tests."""
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        yield made
    finally:
        made.server.close()


#: The server of each place comes before `isolated`: it must not live in the folders of one test.
_PLACES = ["local", "cluster", pytest.param("site", marks=needs("sshd"))]


@pytest.fixture(params=_PLACES, ids=["local", "kubernetes", "ssh"])
def place(request: pytest.FixtureRequest) -> object:
    return None if request.param == "local" else request.getfixturevalue(request.param)


@pytest.fixture
def world(place: object, isolated: Path) -> Iterator[World]:
    made: World
    if isinstance(place, Server):
        made = KubernetesWorld(place)
    else:
        made = HostsWorld(place, isolated) if isinstance(place, Hosts) else LocalWorld()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def local(isolated: object) -> Iterator[World]:
    """For what only jobs of this machine do."""
    made = LocalWorld()
    try:
        yield made
    finally:
        made.close()
