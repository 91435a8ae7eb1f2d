"""The last part of a recorded log, by bytes and from a moment on."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from atlctl.recording import ends
from atlctl.recording.ends import Ends

BEGAN = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
SECONDS = 40_000


def line(second: int) -> bytes:
    at = f"{BEGAN + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S}.123456789Z"
    return f"{at} step {second} {'x' * (second % 70)}\n".encode()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One line a second, in three files."""
    folder = tmp_path_factory.mktemp("log")
    found = []
    for number in range(3):
        path = folder / f"w.part-{number}.ts.log"
        path.write_bytes(b"".join(line(second) for second in range(SECONDS * number, SECONDS * (number + 1))))
        found.append(str(path))
    return found


def first_second(wanted: list[tuple[str, int]]) -> int:
    """The first second of which a whole line is read."""
    path, skip = wanted[0]
    data = Path(path).read_bytes()
    at = 0 if not skip else data.index(b"\n", skip - 1) + 1
    return int(data[at:].split(b" ", 3)[2])


@pytest.mark.parametrize("second", [5, 1_000, SECONDS - 1, SECONDS, SECONDS + 1, 2 * SECONDS + 17, 3 * SECONDS - 3])
def test_from_a_moment_on(parts: list[str], second: int) -> None:
    wanted, cut = Ends(1, BEGAN.timestamp() + second).of(parts)
    read = first_second(wanted)
    assert read <= second
    assert second - read <= ends._NEAR // len(line(0)) or len(wanted) < 3
    assert [path for path, _ in wanted] == parts[3 - len(wanted) :]
    assert all(skip == 0 for _, skip in wanted[1:])
    assert cut == (read > 0)


def test_a_share_is_read_even_of_what_is_older(parts: list[str]) -> None:
    size = os.path.getsize(parts[2])
    wanted, cut = Ends(size + 100, BEGAN.timestamp() + 3 * SECONDS).of(parts)
    (path, skip), last = wanted
    assert (path, last, cut) == (parts[1], (parts[2], 0), True)
    assert 0 <= os.path.getsize(parts[1]) - 100 - skip <= ends._NEAR


def test_bytes_alone(parts: list[str]) -> None:
    assert Ends(1 << 30).of(parts) == ([(path, 0) for path in parts], False)
    assert Ends(10).of(parts) == ([(parts[2], os.path.getsize(parts[2]) - 10)], True)


def test_without_stamps_all_of_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_bytes(b"no stamp here\n" * 100_000)
    assert Ends(10, BEGAN.timestamp()).of([str(path)]) == ([(str(path), 0)], False)


def test_a_file_that_was_rotated_away(parts: list[str], tmp_path: Path) -> None:
    wanted, cut = Ends(1 << 30).of([str(tmp_path / "gone.log"), parts[0]])
    assert (wanted, cut) == ([(parts[0], 0)], False)
