"""Runs each test of the suite on all backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.handle import Server
from tests.contract.cluster import KubernetesWorld
from tests.contract.hosts import Hosts, HostsWorld
from tests.contract.world import LocalWorld, World
from tests.support.needs import find_program, needs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Server]:
    """A server for all tests; each test has its own namespace."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts | None]:
    """An sshd for all tests; None if not available."""
    if find_program("sshd") is None:
        yield None
        return
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        yield made
    finally:
        made.server.close()


@pytest.fixture(scope="session")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The server of `atlctl run` for all tests."""
    made = Hosts(tmp_path_factory.mktemp("wrapped"), wrapped=True)
    try:
        yield made
    finally:
        made.server.close()


@pytest.fixture(params=["local", "kubernetes", pytest.param("ssh", marks=needs("sshd")), "run"])
def world(
    request: pytest.FixtureRequest, cluster: Server, site: Hosts, wrapped: Hosts, isolated: Path
) -> Iterator[World]:
    """The servers are created first: they must not be in the folders of one test."""
    made: World
    if request.param == "local":
        made = LocalWorld()
    else:
        hosts = wrapped if request.param == "run" else site
        made = KubernetesWorld(cluster) if request.param == "kubernetes" else HostsWorld(hosts, isolated)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def local(isolated: object) -> Iterator[World]:
    """For features that only jobs of this machine have."""
    made = LocalWorld()
    try:
        yield made
    finally:
        made.close()
