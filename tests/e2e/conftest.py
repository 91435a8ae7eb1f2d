"""Tests against a real cluster: one namespace for all of them, skipped without a cluster. See docs/en/e2e.md."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e import kinds, objects
from tests.e2e.cluster import Cluster, ServerError
from tests.e2e.describe import describe
from tests.e2e.kinds import Job, Kind
from tests.e2e.settings import SETTINGS

HERE = Path(__file__).parent
#: Seconds for a test with its setup. All waits inside are shorter, and have better error messages.
TIMEOUT = 900

_open: list[Cluster] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the states and events of the namespace to a failed test's report."""
    report = yield
    if report.failed and _open:
        report.sections.append(("the cluster", _open[0].evidence or describe(_open[0])))
    if _open and report.when == "teardown":
        _open[0].evidence = ""
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if SETTINGS.missing:
        pytest.skip(SETTINGS.missing)
    with Cluster() as own:
        _open.append(own)
        yield own
        _open.clear()


@pytest.fixture(scope="session")
def idle_jobs(cluster: Cluster) -> dict[str, Job | ServerError]:
    """A job of each served kind, all created at once, so that none waits for another."""
    made: dict[str, Job | ServerError] = {}
    for kind in kinds.ALL:
        if kind.resource == kinds.PODS or kind.resource in cluster.kinds:
            try:
                made[kind.id] = kinds.create(cluster, kind, objects.IDLE)
            except ServerError as error:
                made[kind.id] = error
    return made


@pytest.fixture(params=kinds.ALL, ids=lambda kind: kind.id)
def idle(request: pytest.FixtureRequest, cluster: Cluster, idle_jobs: dict[str, Job | ServerError]) -> Job:
    """A running job of each kind. Tests leave it running."""
    return running(cluster, idle_jobs, request.param)


@pytest.fixture
def job(cluster: Cluster, idle_jobs: dict[str, Job | ServerError]) -> Job:
    """A running indexed Job, which every cluster supports. Tests leave it running."""
    return running(cluster, idle_jobs, kinds.INDEXED)


def running(cluster: Cluster, jobs: dict[str, Job | ServerError], kind: Kind) -> Job:
    kinds.served(cluster, kind)
    found = jobs[kind.id]
    if isinstance(found, ServerError):
        raise found
    return found.started()


@pytest.fixture
def torch_image() -> None:
    if SETTINGS.missing:
        pytest.skip(SETTINGS.missing)
    if SETTINGS.missing_torch:
        pytest.skip(SETTINGS.missing_torch)
