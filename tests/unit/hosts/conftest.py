from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.hosts.local import Local


@pytest.fixture
def local(isolated: object) -> Iterator[Local]:
    made = Local()
    try:
        yield made
    finally:
        made.close()
