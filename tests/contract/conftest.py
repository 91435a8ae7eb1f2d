"""Each test of the suite runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.world import WORLDS, World


@pytest.fixture(params=list(WORLDS.values()), ids=list(WORLDS))
def world(request: pytest.FixtureRequest, isolated: object) -> Iterator[World]:
    made: World = request.param()
    try:
        yield made
    finally:
        made.close()
