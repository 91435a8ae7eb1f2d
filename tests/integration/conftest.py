"""Fixtures for tests of jobs on hosts; modules that need another `server` or `site` define their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sshjobs import Server, Site, hosts, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def site(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with hosts(server, tmp_path) as made:
        yield made
