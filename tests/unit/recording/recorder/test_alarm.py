"""Files of a worker: fetched by real shells, with an unguessable mark around them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from atlctl.recording.recorder import alarm
from atlctl.recording.recorder.alarm import FilePlace, Frozen, Taking, freeze
from atlctl.recording.recorder.store import Store
from tests.support.pace import within
from tests.support.proc import marked, wait_until
from tests.unit.recording.recorder.parts import close
from tests.unit.transfer.shells import BASE, WORKER, Shells, tools

MARK = b"@atlctl-0123"


@pytest.fixture
def place(tmp_path: Path) -> FilePlace:
    return FilePlace(Store(str(tmp_path / "out")), ["worker-0", "run-0"], close)


def saved(place: FilePlace) -> dict[str, bytes]:
    root = Path(place.store.path, *place.below)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def framed(*files: tuple[bytes, bytes], end: bool = True) -> bytes:
    whole = b"".join(b"\n%s %s\n%s" % (MARK, name, data) for name, data in files)
    return whole + (b"\n%s\n" % MARK if end else b"")


@pytest.mark.parametrize("size", [1, 2, 7, 100, 10_000])
def test_any_cut_of_the_stream_is_the_same(place: FilePlace, size: int) -> None:
    files = {
        "/tmp/a/error.json": b'{"a": 1}\n\n',
        "/tmp/b/empty": b"",
        "/tmp/c": b"\n@atlctl-0122 x\n" + bytes(range(256)),
    }
    stream = framed(*((name.encode(), data) for name, data in files.items()))
    taking = Taking(MARK, place)
    for at in range(0, len(stream), size):
        taking.feed(stream[at : at + size])
    taking.close()
    assert (taking.files, taking.whole, taking.full) == (3, True, False)
    assert saved(place) == {name.removeprefix("/"): data for name, data in files.items()}


def test_hostile_names_stay_inside(place: FilePlace, tmp_path: Path) -> None:
    names = [b"../../../../etc/x", b"/", b"/..", b"\xff\xfe/\x1b[31m", b"/" + b"a/" * 500 + b"f", b"/" + b"n" * 3000]
    taking = Taking(MARK, place)
    taking.feed(framed(*((name, b"data") for name in names)))
    taking.close()
    assert taking.files == len(names)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert all(data == b"data" for data in saved(place).values())


def test_a_stream_without_its_end_is_not_whole(place: FilePlace) -> None:
    taking = Taking(MARK, place)
    taking.feed(framed((b"/a/error.json", b"half"), end=False))
    taking.close()
    assert not taking.whole


def fetch(place: FilePlace, roots: list[str], dumps: list[str], shells: Shells | None = None) -> Frozen:
    return asyncio.run(freeze(shells or Shells(), WORKER, roots, dumps, place))


def made(folder: Path) -> Path:
    """The files of a launcher and its processes, and other files next to them."""
    rank = folder / "run_x" / "attempt_0" / "1"
    rank.mkdir(parents=True)
    rank.joinpath("error.json").write_bytes(b'{"message": 1}')
    rank.joinpath("stdout.log").write_bytes(b"step 1\n")
    rank.joinpath("checkpoint.pt").write_bytes(b"never this")
    rank.joinpath("link_error.json").symlink_to("/etc/passwd")
    folder.joinpath("nccl_trace_rank_1").write_bytes(b"dump")
    return folder


@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_what_a_real_shell_sends(place: FilePlace, tmp_path: Path, shell: str) -> None:
    import shutil

    if (found := shutil.which(shell)) is None:
        pytest.skip(f"no {shell}")
    search = Path(tools(tmp_path / "bin", "find", "tail", *BASE))
    search.joinpath("sh").unlink()
    search.joinpath("sh").symlink_to(found)
    source = made(tmp_path / "src dir")
    got = fetch(place, [f"{source}/run_x", "/nowhere"], [f"{source}/nccl_trace_rank_"], Shells(path=str(search)))
    assert got == Frozen(3)
    below = str(source).removeprefix("/").replace(" ", "%20")
    assert saved(place) == {
        f"{below}/run_x/attempt_0/1/error.json": b'{"message": 1}',
        f"{below}/run_x/attempt_0/1/stdout.log": b"step 1\n",
        f"{below}/nccl_trace_rank_1": b"dump",
    }


def test_a_single_error_file(place: FilePlace, tmp_path: Path) -> None:
    source = made(tmp_path / "src")
    assert fetch(place, [f"{source}/run_x/attempt_0/1/error.json"], []) == Frozen(1)


def test_a_cut_connection_is_told(place: FilePlace, tmp_path: Path) -> None:
    source = made(tmp_path / "src")
    got = fetch(place, [f"{source}/run_x"], [], Shells(cut=80))
    assert got.problem


def test_a_worker_without_a_shell(place: FilePlace, tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    got = fetch(place, ["/tmp/x"], [], Shells(path=str(empty)))
    assert got.files == 0
    assert got.problem


def run(command: str, **env: str) -> tuple[str, bytes]:
    return asyncio.run(alarm.run_hook(command, env))


def test_its_environment_and_its_end() -> None:
    assert run('echo "$ATLCTL_JOB failed"; exit 3', ATLCTL_JOB="train; rm") == ("exit code 3", b"train; rm failed\n")
    assert run("kill -9 $$")[0] == "ended by signal 9"
    assert run("no-such-command-here")[0] == "exit code 127"


def test_it_is_ended_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm, "HOOK_SECONDS", 0.5)
    begun = time.monotonic()
    how, printed = run("echo first; sleep 4321 & sleep 4321")
    assert (how, printed) == ("ended after 0.5 s", b"first\n")
    assert within(time.monotonic() - begun, 5)
    assert wait_until(lambda: not [p for p in marked() if "4321" in p.command])


def test_what_it_prints_is_bounded() -> None:
    how, printed = run("yes | head -c 1000000; echo last")
    assert how == "exit code 0"
    assert len(printed) <= alarm.HOOK_OUTPUT
    assert printed.endswith(b"last\n")
