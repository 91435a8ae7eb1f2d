"""One bare root for each test file; one build of the executable file for the whole run."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.packaging import dists
from atlctl.packaging import executable as packing
from tests.packaging.bare import Bare
from tests.support.once import folder_of_run


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    with Bare(tmp_path_factory.mktemp("bare")) as made:
        yield made


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """sdist and wheel."""
    return dists.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executable file, of the locked packages as this environment has them: no index is asked.

    Where tests run side by side, the first to ask builds it for all.
    """
    shared = folder_of_run(tmp_path_factory) / "atlctl-executable"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = next(shared.glob("*.cdx.json"), None)
        return built.with_name(built.name.removesuffix(".cdx.json")) if built else packing.build(shared, sys.path)[0]
