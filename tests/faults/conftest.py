from __future__ import annotations

from tests.unit.local.conftest import local

__all__ = ["local"]
