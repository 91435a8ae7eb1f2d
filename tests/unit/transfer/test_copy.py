"""Copies to and from real shells: success, leftovers, with and without tar."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from atlctl.backends.base import Exited, FailedToStart
from atlctl.fanout.engine import Limits, RunInterrupted
from atlctl.fanout.outcome import EndKind, Outcome
from atlctl.transfer import copy as copying
from atlctl.transfer import unpack
from atlctl.transfer.copy import Copy, Copying, download, parse, take_request, upload
from atlctl.transfer.tar import survey
from atlctl.transfer.unpack import TEMPORARY
from tests.unit.transfer.archives import member, stream
from tests.unit.transfer.shells import BASE, LOST, WORKER, Shells, tools

LIMITS = Limits(grace=0.2)
FORMS = ["tar", "cat"]


def run(copying: Copying) -> tuple[Outcome, Copy]:
    [result] = copying.results(asyncio.run(copying.fan_out.run()))
    return result


def down(shells: Shells, path: str | Path, to: str | Path, each: bool = False, limits: Limits = LIMITS) -> Copying:
    spec = parse(f"{'' if each else 'worker-0'}:{path}", str(to))
    return download(shells, [WORKER], spec.remote, spec.local, each, limits)


def up(shells: Shells, path: str | Path, to: str | Path, limits: Limits = LIMITS) -> Copying:
    spec = parse(str(path), f"worker-0:{to}")
    return upload(shells, [WORKER], survey(spec.local), spec.remote, limits)


@pytest.fixture(params=FORMS)
def shells(request: pytest.FixtureRequest, tmp_path: Path) -> Shells:
    """Workers with and without tar."""
    return Shells(tools(tmp_path / "bin", *BASE, *(["tar"] if request.param == "tar" else [])))


@pytest.fixture
def tar(tmp_path: Path) -> Shells:
    return Shells(tools(tmp_path / "bin", *BASE, "tar"))


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


ODD = [
    *("-x", "$(touch pwned)", "`touch pwned`", "a b", "*", "'", '"', "new\nline", "\\t\\"),
    *("@x", "中文", "\udcff", "--", "\x1b[31m"),
]
BODY = os.urandom(200_001)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder on the "worker", with a file and a folder."""
    folder = tmp_path / "there"
    folder.joinpath("logs/deep").mkdir(parents=True)
    folder.joinpath("logs/a").write_bytes(BODY)
    folder.joinpath("logs/deep/b").write_bytes(b"")
    folder.joinpath("file").write_bytes(BODY)
    folder.joinpath("file").chmod(0o640)
    os.utime(folder / "file", (1_600_000_000, 1_600_000_000))
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


# One file


def test_a_file_comes_whole(shells: Shells, there: Path, here: Path) -> None:
    outcome, copy = run(down(shells, there / "file", here / "new"))
    assert (outcome.ok, copy.tally.files, copy.tally.bytes) == (True, 1, len(BODY))
    assert here.joinpath("new").read_bytes() == BODY
    tar = "tar" in os.listdir(shells.path)
    assert stat.S_IMODE(here.joinpath("new").stat().st_mode) == (0o640 if tar else 0o600)
    assert (here.joinpath("new").stat().st_mtime == 1_600_000_000) == tar
    assert left(here) == ["new"]


def test_a_file_goes_whole(shells: Shells, there: Path, here: Path) -> None:
    outcome, copy = run(up(shells, there / "file", here / "new"))
    assert (outcome.ok, copy.tally.files, copy.tally.bytes) == (True, 1, len(BODY))
    assert here.joinpath("new").read_bytes() == BODY
    assert stat.S_IMODE(here.joinpath("new").stat().st_mode) == 0o640
    assert left(here) == ["new"]


@pytest.mark.parametrize("form", [lambda path: path, lambda path: f"{path}/"])
@pytest.mark.parametrize("copy", [down, up])
def test_a_folder_as_target_takes_the_file_into_it(shells: Shells, there: Path, here: Path, form, copy) -> None:
    assert run(copy(shells, there / "file", form(here)))[0].ok
    assert left(here) == ["file"]


@pytest.mark.parametrize("copy", [down, up])
def test_a_file_that_is_there_is_replaced(shells: Shells, there: Path, here: Path, copy) -> None:
    here.joinpath("file").write_bytes(b"old" * 100_000)
    assert run(copy(shells, there / "file", here / "file"))[0].ok
    assert here.joinpath("file").read_bytes() == BODY


@pytest.mark.parametrize("copy", [down, up])
def test_an_empty_file(shells: Shells, there: Path, here: Path, copy) -> None:
    assert run(copy(shells, there / "logs/deep/b", here))[0].ok
    assert here.joinpath("b").read_bytes() == b""


@pytest.mark.parametrize("copy", [down, up])
def test_a_link_that_was_named_is_followed_as_source_and_refused_as_target(
    shells: Shells, there: Path, here: Path, copy
) -> None:
    there.joinpath("link").symlink_to("file")
    assert run(copy(shells, there / "link", here / "new"))[0].ok
    assert here.joinpath("new").read_bytes() == BODY
    here.joinpath("out").symlink_to(here / "new")
    outcome, _ = run(copy(shells, there / "logs/a", here / "out"))
    assert (outcome.code, outcome.reason.endswith("a link is in its place")) == (1, True)
    assert left(here) == ["new", "out"]


@pytest.mark.parametrize("copy", [down, up])
@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_only_names(shells: Shells, there: Path, here: Path, monkeypatch, copy, name: str) -> None:
    monkeypatch.chdir(there)
    there.joinpath(name).write_bytes(b"odd")
    there.joinpath("file").chmod(0o600)
    if copy is down:
        assert run(down(shells, name, here))[0].ok
    else:
        assert run(up(shells, f"./{name}", here))[0].ok
    assert here.joinpath(name).read_bytes() == b"odd"
    assert not list(here.parent.rglob("pwned"))


# Folders


@pytest.mark.parametrize("copy", [down, up])
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_becomes_the_target_or_goes_into_it(tar: Shells, there: Path, here: Path, copy, slash: str) -> None:
    assert run(copy(tar, f"{there}/logs{slash}", f"{here}/new{slash}"))[0].ok
    assert left(here) == ["new", "new/a", "new/deep", "new/deep/b"]
    assert run(copy(tar, f"{there}/logs{slash}", f"{here}/new{slash}"))[0].ok
    assert left(here)[4:] == ["new/logs", "new/logs/a", "new/logs/deep", "new/logs/deep/b"]


@pytest.mark.parametrize("copy", [down, up])
def test_with_a_dot_at_the_end_what_is_in_it_is_meant(tar: Shells, there: Path, here: Path, copy) -> None:
    for _ in range(2):
        assert run(copy(tar, f"{there}/logs/.", here))[0].ok
        assert left(here) == ["a", "deep", "deep/b"]


@pytest.mark.parametrize("copy", [down, up])
def test_a_folder_is_laid_over_one_of_its_name(tar: Shells, there: Path, here: Path, copy) -> None:
    here.joinpath("logs/deep").mkdir(parents=True)
    here.joinpath("logs/a").write_text("old")
    here.joinpath("logs/deep/kept").write_text("mine")
    there.joinpath("logs/.hidden").write_text("dot")
    assert run(copy(tar, there / "logs", here))[0].ok
    assert left(here / "logs") == [".hidden", "a", "deep", "deep/b", "deep/kept"]
    assert here.joinpath("logs/a").read_bytes() == BODY


@pytest.mark.parametrize("copy", [down, up])
def test_what_stands_in_the_way_inside_is_named(tar: Shells, there: Path, here: Path, copy) -> None:
    here.joinpath("outside").mkdir()
    here.joinpath("logs").mkdir()
    here.joinpath("logs/deep").symlink_to(here / "outside")
    here.joinpath("logs/a").mkdir()
    outcome, _ = run(copy(tar, there / "logs", here))
    assert outcome.code == 1
    assert "is in its place" in outcome.reason
    assert left(here) == ["logs", "logs/a", "logs/deep", "outside"]


@pytest.mark.parametrize("copy", [down, up])
def test_links_and_fifos_are_skipped_and_named(tar: Shells, there: Path, here: Path, copy) -> None:
    there.joinpath("logs/link").symlink_to("/etc/passwd")
    os.mkfifo(there / "logs/fifo")
    there.joinpath("logs/second").hardlink_to(there / "logs/a")
    outcome, result = run(copy(tar, there / "logs", here / "new"))
    assert outcome.ok
    assert sorted(result.tally.skipped.first) == ["fifo (fifo)", "link (symlink)"]
    # A file with two names becomes two files.
    assert left(here / "new") == ["a", "deep", "deep/b", "second"]


@pytest.mark.parametrize("copy", [down, up])
def test_folders_need_tar(tmp_path: Path, there: Path, here: Path, copy) -> None:
    shells = Shells(tools(tmp_path / "bin", *BASE))
    outcome, _ = run(copy(shells, there / "logs", here / "new"))
    assert (outcome.code, outcome.reason) == (
        1,
        "the worker has no tar, and without it only single files are copied",
    )
    assert left(here) == []


def test_each_worker_gets_a_folder_of_its_own(tar: Shells, there: Path, here: Path) -> None:
    for path in ("logs", "file"):
        assert run(down(tar, there / path, here / "all", each=True))[0].ok
    assert left(here / "all") == ["worker-0", "worker-0/a", "worker-0/deep", "worker-0/deep/b", "worker-0/file"]
    assert stat.S_IMODE(here.joinpath("all").stat().st_mode) == 0o700


# Refusals


def reasons(shells: Shells, *copies: Copying) -> list[str]:
    return [f"{outcome.code} {outcome.reason}" for outcome, _ in map(run, copies)]


def test_refusals_are_told_in_plain_words(tar: Shells, there: Path, here: Path) -> None:
    os.mkfifo(there / "fifo")
    assert reasons(
        tar,
        down(tar, there / "nope", here),
        down(tar, there / "fifo", here),
        up(tar, there / "file", f"{here}/nope/"),
        up(tar, there / "file", here / "no/pe"),
        up(tar, there / "logs", there / "file"),
    ) == [
        "1 no such file or folder",
        "1 it is neither a file nor a folder",
        "1 no such folder",
        "1 the folder to put it in does not exist",
        "1 file: a file is in its place",
    ]
    assert left(here) == []


def test_a_worker_without_a_shell_is_told(here: Path) -> None:
    shells = Shells(start=FailedToStart(127, "/bin/sh: command not found"))
    outcome, _ = run(down(shells, "/x", here))
    assert (outcome.code, outcome.reason) == (1, "the worker has no shell: /bin/sh: command not found")


def test_a_worker_that_is_gone_is_255(here: Path) -> None:
    outcome, _ = run(down(Shells(start=FailedToStart(255, "not running")), "/x", here))
    assert (outcome.kind, outcome.code) == (EndKind.FAILED_TO_START, 255)


# Correct reports


@pytest.mark.parametrize("path", ["file", "logs"])
@pytest.mark.parametrize("cut", [0, 5, 11, 700, 66_000, 200_000, 201_500])
def test_an_exit_with_0_is_no_success_where_bytes_are_missing(
    tar: Shells, there: Path, here: Path, path: str, cut: int
) -> None:
    tar.cut = cut
    outcome, _ = run(down(tar, there / path, here / "new"))
    assert (outcome.ok, outcome.code, outcome.reason) == (False, 1, "the stream was cut before its end")
    assert not [name for name in left(here) if name.startswith(TEMPORARY)]
    assert not here.joinpath("new").is_file()
    files = [here / name for name in left(here) if here.joinpath(name).is_file()]
    assert all(
        file.read_bytes() == there.joinpath("logs", file.relative_to(here / "new")).read_bytes() for file in files
    )


def test_cat_counts_the_bytes(tmp_path: Path, there: Path, here: Path) -> None:
    for cut in (0, 16, 100, 200_000, 200_016):
        shells = Shells(tools(tmp_path / f"bin{cut}", *BASE), cut=cut)
        outcome, _ = run(down(shells, there / "file", here / "new"))
        assert (outcome.code, outcome.reason) == (1, "the stream was cut before its end"), cut
        assert left(here) == []


@pytest.mark.parametrize("ending", [LOST, Exited(exit_code=2), Exited(signal=9), Exited()])
@pytest.mark.parametrize("copy", [down, up])
def test_a_whole_stream_without_an_exit_of_0_is_no_success(
    shells: Shells, there: Path, here: Path, ending, copy
) -> None:
    shells.ending = ending
    outcome, _ = run(copy(shells, there / "file", here / "new"))
    assert (outcome.ok, outcome.code) == (False, 255 if ending in (LOST, Exited()) else 1)
    if copy is down:
        assert left(here) == []


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"nonsense\n", "did not report what it sends"),
        (b"x" * 200, "did not report what it sends"),
        (b"file cat -1\n", "did not report what it sends"),
        (b"file cat 9999999999999999999999\n", "did not report what it sends"),
        (b"file cat 3\nabcd", "grew while it was read"),
        (b"file cat 99999999999999999\n", "bytes are needed"),
        (b"file tar\n" + stream(member("a", b"x"), member("b", b"y")), "did not send the one file"),
        (b"folder tar\n" + stream(member("../x", b"x")), "leads out of the target: ../x"),
        (b"folder tar\n" + b"\xff" * 512, "damaged"),
    ],
)
def test_a_lying_worker_is_refused(there: Path, here: Path, tar: Shells, data: bytes, problem: str) -> None:
    tar.replace = data
    outcome, _ = run(down(tar, there / "file", here / "new"))
    assert outcome.code == 1
    assert problem in outcome.reason
    assert left(here) in ([], ["new"])
    assert not here.joinpath("new").is_file()


def test_a_worker_that_never_stops_is_ended(here: Path, tar: Shells) -> None:
    shells = Shells("/dev/null", replace=b"nonsense\n")
    copying = down(shells, "/x", here)

    async def scenario() -> Outcome:
        async with asyncio.timeout(100):
            [outcome] = await copying.fan_out.run()
        return outcome

    shells.path = tar.path
    assert not asyncio.run(scenario()).ok


def fake_tar(folder: Path, text: str, deaf: bool = False) -> Shells:
    """A worker with this script as tar."""
    folder.mkdir()
    folder.joinpath("tar").write_text(f"#!/bin/sh\n{text}\n")
    folder.joinpath("tar").chmod(0o755)
    return Shells(f"{folder}:{os.defpath}", deaf=deaf)


@pytest.mark.parametrize(
    ("says", "code", "ok"),
    [
        ("tar: ./a: file changed as we read it", 1, True),
        ("tar: ./a: file changed as we read it\ntar: ./b: File removed before we read it", 1, True),
        ("tar: ./a: file changed as we read it", 2, False),
        ("tar: ./a: File shrank by 5 bytes; padding with zeros", 1, False),
        ("tar: ./a: file changed as we read it\ntar: ./b: File shrank by 5 bytes; padding with zeros", 1, False),
        ("", 1, False),
    ],
)
@pytest.mark.parametrize("path", ["logs", "file"])
def test_a_log_that_grows_is_copied_and_said(
    tmp_path: Path, there: Path, here: Path, path: str, says: str, code: int, ok: bool
) -> None:
    """GNU tar exits with 1 for it. It pads a file that became shorter: that is not a copy."""
    shells = fake_tar(tmp_path / "fake", f'/bin/tar "$@"; [ -z "{says}" ] || echo "{says}" >&2; exit {code}')
    outcome, copy = run(down(shells, there / path, here / "new"))
    assert (outcome.ok, copy.changed) == (ok, ok)
    assert copy.said == says.partition("\n")[0]
    assert (here / "new").is_file() == (ok and path == "file")


def test_a_source_that_shrinks_meanwhile_leaves_nothing_there(shells: Shells, there: Path, here: Path) -> None:
    copying = up(shells, there / "file", here / "new")
    # The listed file has changed since, and without tar the listed size is sent.
    there.joinpath("file").write_bytes(BODY[:1000])
    if "tar" in os.listdir(shells.path):
        there.joinpath("file").unlink()
    outcome, _ = run(copying)
    assert outcome.code == 1
    assert "became shorter" in outcome.reason or "can no longer be read" in outcome.reason
    assert left(here) == []


def test_a_stream_that_ends_too_early_changes_nothing_there(tar: Shells, there: Path, here: Path, monkeypatch) -> None:
    """Complete members and tar's end mark, so tar is satisfied, but expected members are missing."""
    here.joinpath("logs").mkdir()
    cut = stream(member("data", kind=tarfile.DIRTYPE, mode=0o755), member("data/a", b"x"))
    monkeypatch.setattr(copying, "archive", lambda _: iter([cut]))
    outcome, _ = run(up(tar, there / "logs", here))
    assert (outcome.code, outcome.reason) == (1, "the stream was cut")
    assert left(here) == ["logs"]


def test_a_full_disk_is_told_and_leaves_nothing(shells: Shells, there: Path, here: Path, monkeypatch) -> None:
    def full(file: unpack.NewFile, piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpack.NewFile, "write", full)
    outcome, _ = run(down(shells, there / "file", here / "new"))
    assert (outcome.code, outcome.reason) == (1, f"cannot write {here}/new: No space left on device")
    assert left(here) == []


@pytest.mark.parametrize("copy", [down, up])
def test_a_deadline_is_124_and_leaves_nothing(tmp_path: Path, there: Path, here: Path, copy) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    for name in ("tar", "cat"):
        slow.joinpath(name).write_text("#!/bin/sh\nexec /bin/sleep 60\n")
        slow.joinpath(name).chmod(0o755)
    shells = Shells(f"{slow}:{os.defpath}")
    outcome, _ = run(copy(shells, there / "file", here / "new", limits=Limits(timeout=0.3, grace=0.2)))
    assert (outcome.kind, outcome.code) == (EndKind.TIMEOUT, 124)
    assert left(here) == []


@pytest.mark.parametrize(("copy", "deaf"), [(down, False), (up, False), (up, True)])
def test_interrupted_it_leaves_nothing(tmp_path: Path, there: Path, here: Path, copy, deaf) -> None:
    moves = 'case $1 in -x*) /bin/tar "$@";; *) /bin/tar "$@" | head -c 9000;; esac\n'
    tar = fake_tar(tmp_path / "fake", ("" if deaf else moves) + "exec sleep 60", deaf)
    copying = copy(tar, there / "file", here / "new")

    async def scenario() -> list[Outcome]:
        running = asyncio.create_task(copying.fan_out.run())
        async with asyncio.timeout(100):
            while not left(here):  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(0.01)
        running.cancel()
        try:
            await running
        except RunInterrupted as stopped:
            return stopped.outcomes
        raise AssertionError("it was not interrupted")

    [(outcome, _)] = copying.results(asyncio.run(scenario()))
    assert (outcome.kind, outcome.may_still_run) == (EndKind.CANCELLED, False)
    assert left(here) == []


def test_what_stands_under_the_temporary_name_is_refused_and_kept(here: Path) -> None:
    here.joinpath(".atlctl-cp.known").mkdir()
    here.joinpath(".atlctl-cp.known/precious").write_text("mine")
    words = take_request(f"{here}/", "new", "file", slash=False, tag="known", size=1, mode=0o600).argv.words
    done = subprocess.run(words, input=b"x", capture_output=True, timeout=10)
    assert (done.returncode, done.stdout) == (3, b"")
    assert left(here) == [".atlctl-cp.known", ".atlctl-cp.known/precious"]
