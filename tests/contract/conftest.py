"""Each test of the suite runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.apiserver.handle import Server
from tests.contract.cluster import KubernetesWorld
from tests.contract.world import LocalWorld, World


@pytest.fixture(scope="session")
def cluster() -> Iterator[Server]:
    """One server for all tests: each has a namespace of its own."""
    with Server() as server:
        yield server


@pytest.fixture(params=["local", "kubernetes"])
def world(request: pytest.FixtureRequest, cluster: Server, isolated: object) -> Iterator[World]:
    """`cluster` comes first: it must not live in the folders of one test."""
    made: World = LocalWorld() if request.param == "local" else KubernetesWorld(cluster)
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
