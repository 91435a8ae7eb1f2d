"""The cost of the log scanner, as ratios to ripgrep that counts the lines with the same literals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from atlctl.diagnosis.logfacts import literals_of
from atlctl.diagnosis.scanner import MOST
from tests.benchmarks.logs import FAILURE, mixed, write_dense, write_failed
from tests.benchmarks.measure import Cost, best, report
from tests.corpus.methods import matcher
from tests.support.needs import needs

GIB = 1 << 30
ATLCTL = [sys.executable, "-m", "atlctl"]
MIB = 1 << 20

#: Prints how many lines were taken in all. Arguments: sieve, bytes of head and tail, the literals' file, logs.
SCAN = """
import sys
from atlctl.diagnosis import scanner
from atlctl.diagnosis.scanner import Scanner

kind, ends, literals, *logs = sys.argv[1:]
if kind == "plain":
    scanner.sieve_for = scanner.plain_sieve
with open(literals, "rb") as file:
    wanted = file.read().splitlines()
taken = 0

def take(number, line):
    global taken
    taken += 1
    return False

for log in logs:
    scanning = Scanner(wanted, take, head=int(ends), tail=int(ends))
    with open(log, "rb", buffering=0) as file:
        while chunk := file.read(1 << 18):
            scanning.feed(chunk)
    scanning.finish()
print(taken)
"""


@pytest.fixture
def literals() -> Path:
    path = Path("literals")
    path.write_bytes(b"".join(literal + b"\n" for literal in sorted(literals_of(matcher()))))
    return path.resolve()


def answered(runs: int, *paths: Path) -> tuple[Cost, dict[str, Any]]:
    """The cheapest of some runs of `errors --from`, and its answer."""
    words = [word for path in paths for word in ("--from", str(path))]
    with Path("answer").open("w+b") as file:
        found = best(runs, [*ATLCTL, "errors", *words, "-o", "json"], stdout=file)
        file.seek(0)
        return found, json.loads(file.read().splitlines()[-1])["data"]


def counted(runs: int, argv: list[str]) -> tuple[Cost, int]:
    """The cheapest of some runs, and the number that the program printed."""
    with Path("printed").open("w+b") as file:
        found = best(runs, argv, stdout=file)
        file.seek(0)
        return found, int(file.read().split()[-1])


def scan(runs: int, literals: Path, logs: list[Path], *, kind: str = "vector", ends: int = 0) -> tuple[Cost, int]:
    return counted(runs, [sys.executable, "-c", SCAN, kind, str(ends), str(literals), *map(str, logs)])


@needs("rg")
def test_a_gigabyte_that_fails_near_its_end(literals: Path) -> None:
    log = Path("train.log")
    size = write_failed(log, GIB)
    rg, expected = counted(3, ["rg", "-c", "-F", "-f", str(literals), str(log)])
    ours, found = scan(3, literals, [log])
    plain, found_plainly = scan(1, literals, [log], kind="plain")
    report(
        f"{size / GIB:.2f} GiB of mixed training output, "
        f"lines with one of {len(literals_of(matcher()))} literals: {expected}",
        [("rg -c -F -f literals", rg), ("the scanner", ours), ("  with the standard library alone", plain)],
        f"MB a CPU-second: rg {size / 1e6 / rg.cpu:.0f}, the scanner {size / 1e6 / ours.cpu:.0f}, "
        f"with the standard library alone {size / 1e6 / plain.cpu:.0f}",
    )
    assert found == found_plainly == expected
    assert ours.cpu < 2 * rg.cpu
    assert ours.peak < 100


@needs("rg")
def test_errors_on_a_gigabyte(literals: Path) -> None:
    log = Path("train.log")
    size = write_failed(log, GIB)
    rg, _ = counted(3, ["rg", "-c", "-F", "-f", str(literals), str(log)])
    with Path("help").open("wb") as file:
        idle = best(2, [*ATLCTL, "errors", "--help"], stdout=file)
    ours, answer = answered(3, log)
    report(
        f"errors --from {size / GIB:.2f} GiB, the failure near its end",
        [("rg -c -F -f literals", rg), ("atlctl errors --help", idle), ("atlctl errors --from", ours)],
        f"{size / 1e6 / (ours.cpu - idle.cpu):.0f} MB a CPU-second",
    )
    assert (answer["verdict"], answer["root_causes"][0]["rank"]) == ("rank", 5)
    assert ours.cpu - idle.cpu < 2 * rg.cpu
    assert ours.peak < 100


@needs("rg")
def test_errors_on_two_gigabytes_of_failures() -> None:
    log = Path("dense.log")
    size = write_dense(log, 2 * GIB)
    words = [word for text in ("Traceback", "Error", "NCCL", "exitcode", "closing signal") for word in ("-e", text)]
    rg, lines = counted(3, ["rg", "-c", *words, str(log)])
    ours, answer = answered(2, log)
    report(
        f"errors --from {size / GIB:.2f} GiB of failed attempts, {lines} lines with one of five texts",
        [("rg -c, five texts", rg), ("atlctl errors --from", ours)],
    )
    assert answer["verdict"] != "none"
    assert ours.cpu < 6 * rg.cpu
    assert ours.peak < 60


@needs("rg")
def test_errors_of_a_thousand_workers(literals: Path) -> None:
    folder = Path("saved")
    folder.mkdir()
    for number in range(40):
        (folder / f"worker-{number}.log").write_bytes(mixed(2 * MIB, seed=number) + (FAILURE if number == 7 else b""))
    for number in range(40, 1000):
        (folder / f"worker-{number}.log").hardlink_to(folder / f"worker-{number % 7}.log")
    with Path("counts").open("wb") as file:
        rg = best(2, ["rg", "-j", "1", "-c", "-F", "-f", str(literals), str(folder)], stdout=file)
    ours, answer = answered(2, folder)
    report(
        "errors --from 1000 logs of 2 MiB, one of which fails",
        [("rg -c -F -f literals", rg), ("atlctl errors --from", ours)],
    )
    assert (answer["root_causes"][0]["worker"], answer["root_causes"][0]["rank"]) == ("worker-7", 5)
    # At both ends of each log every line is looked at: 65 lines here.
    assert ours.cpu < 3 * rg.cpu
    assert ours.peak < 200


#: The least that a program in Python does: it splits the lines, and each into its worker and its text.
SPLIT = """
import re, sys
prefix = re.compile(rb"\\[pod/([^/]{1,253})/[^\\]]{1,253}\\] ").match
found = 0
with open(sys.argv[1], "rb") as file:
    for line in file:
        found += prefix(line) is not None
print(found)
"""


def test_errors_on_lines_with_the_workers_in_front() -> None:
    lines = mixed(128 * MIB).splitlines(keepends=True)
    log = Path("merged.log")
    log.write_bytes(b"".join(b"[pod/w-%d/pytorch] %b" % (at % 4, line) for at, line in enumerate(lines)) + FAILURE)
    floor, _ = counted(2, [sys.executable, "-c", SPLIT, str(log)])
    ours, answer = answered(2, log)
    report(
        f"errors --from {log.stat().st_size / MIB:.0f} MiB of four workers",
        [("lines split in Python", floor), ("atlctl errors --from", ours)],
        f"{log.stat().st_size / 1e6 / ours.cpu:.0f} MB a CPU-second",
    )
    assert answer["verdict"] != "none"
    assert ours.cpu < 12 * floor.cpu
    assert ours.peak < 60


def test_a_literal_in_every_line(literals: Path) -> None:
    log = Path("dense.log")
    text = b"".join(b"ValueError: " + line for line in mixed(64 * MIB).splitlines(keepends=True))
    log.write_bytes(text)
    quiet, _ = scan(1, literals, [Path("/dev/null")])
    ours, taken = scan(2, literals, [log])
    assert taken > MOST
    speed = len(text) / 1e6 / ours.cpu
    report(
        f"{len(text) / MIB:.0f} MiB, a literal in each of {taken} lines",
        [("the scanner on nothing", quiet), ("the scanner", ours)],
        f"{speed:.0f} MB a CPU-second, {(ours.cpu - quiet.cpu) / taken * 1e6:.1f} us a line",
    )
    assert speed > 40
