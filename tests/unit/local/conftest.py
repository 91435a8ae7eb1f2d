from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.local.local import Local


@pytest.fixture
def local(isolated: object) -> Iterator[Local]:
    made = Local()
    try:
        yield made
    finally:
        made.close()
