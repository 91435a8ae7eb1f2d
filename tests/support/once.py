"""What several tests of a run need and takes long: one of its processes makes it, the others read it."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of a run share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], T]) -> T:
    """What `make` returns, which can be pickled. Others that ask for this `name` wait for it."""
    path = folder_of_run(factory) / f"atlctl-{name}"
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if data := file.read():
            found: T = pickle.loads(data)
            return found
        made = make()
        file.write(pickle.dumps(made))
        return made
