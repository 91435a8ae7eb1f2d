"""The cost of `cp` on a local worker, as ratios to `tar | tar` over the same disk in the same run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.measure import Cost, cost, report
from tests.support.cli import run_cli

ATLCTL = (sys.executable, "-m", "atlctl")
GIB = 1 << 30
RUNS = 3
#: Wall time beside `tar | tar`: a copy also starts an interpreter, and moves each byte once more.
BIG_RATIO = 4.0
#: Half of it is the start of the interpreter and of the command; small files also cost a few Python calls each.
SMALL_RATIO = 8.0
PEAK_MB = 100


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    started = run_cli("local", "run", "--name", "bench", "--workers", "1", "--detach", "--", "sleep", "1000")
    assert started.code == 0, started.stderr
    yield
    run_cli("stop", "bench", "--yes", "--grace", "1", timeout=60)


def fastest(argv: Callable[[Path], Sequence[str]]) -> Cost:
    """The run of the least wall time, each into a folder of its own: `argv` makes the command from it.

    Only large files are taken away in between. ext4 is slow to make files for seconds after it has deleted many.
    """
    runs = []
    for _ in range(RUNS):
        place = Path(tempfile.mkdtemp(dir=".")).resolve()
        runs.append(cost(argv(place)))
        for file in place.iterdir():
            if file.is_file():
                file.unlink()
    return min(runs, key=lambda run: run.wall)


def compare(title: str, source: Path, ratio: float) -> None:
    words = [*ATLCTL, "cp", "-q", "-j", "bench"]
    tar = f"tar -cf - -C {source.parent} ./{source.name} | tar -xf - -C"
    floor = fastest(lambda place: ["sh", "-c", f"{tar} {place}"])
    down = fastest(lambda place: [*words, f"worker-0:{source}", f"{place}/new"])
    up = fastest(lambda place: [*words, str(source), f"worker-0:{place}/new"])
    report(
        title,
        [("tar | tar", floor), ("atlctl cp worker-0:PATH .", down), ("atlctl cp PATH worker-0:", up)],
        f"wall: {down.wall / floor.wall:.1f} x tar down, {up.wall / floor.wall:.1f} x up",
    )
    assert max(down.wall, up.wall) < ratio * floor.wall
    assert max(down.peak, up.peak) < PEAK_MB


def test_a_gigabyte() -> None:
    source = Path("big").resolve()
    with source.open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(GIB // 64))
    compare("1 GiB in one file", source, BIG_RATIO)


def test_many_small_files() -> None:
    source = Path("many").resolve()
    for folder in range(50):
        source.joinpath(str(folder)).mkdir(parents=True)
        for number in range(100):
            source.joinpath(str(folder), str(number)).write_bytes(bytes(2000))
    compare("5,000 files of 2,000 bytes", source, SMALL_RATIO)
