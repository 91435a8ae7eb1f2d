"""Fixtures shared by the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.sshhosts import Fleet, Serving, fleet
from tests.unit.hosts.conftest import local

__all__ = ["local"]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A real sshd for all tests of a module."""
    own = Serving(tmp_path_factory.mktemp("sshd"))
    try:
        yield own
    finally:
        own.close()


@pytest.fixture
def hosts(serving: Serving, isolated: Path) -> Iterator[Fleet]:
    """Host names that lead to it, or to ports without an SSH server."""
    with fleet(serving, isolated) as own:
        yield own
