"""Data from a worker cannot get out of its target folder, and no partial files stay."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.transfer.tar import NAMED, BadStreamError, TarReader
from atlctl.transfer.unpack import TEMPORARY, FileTaker, FolderTaker, PlaceError, Tally, open_folder
from tests.unit.transfer.archives import member, pax, record, stream


def extract(data: bytes, root: Path, made: bool = False, commit: bool = True) -> Tally:
    """Extract into `root`; raises the extractor's exception after closing it."""
    tally = Tally()
    taker = FolderTaker(open_folder(str(root)), made, tally)
    try:
        TarReader(taker).feed(data)
        if commit:
            taker.commit()
    finally:
        taker.close()
    return tally


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A target folder. At the end the file next to it is unchanged, and no partial or open file is left."""
    before = len(os.listdir("/proc/self/fd"))
    tmp_path.joinpath("secret").write_text("untouched")
    folder = tmp_path / "root"
    folder.mkdir()
    yield folder
    assert tmp_path.joinpath("secret").read_text() == "untouched"
    assert not list(tmp_path.rglob(f"{TEMPORARY}*"))
    assert {path.name for path in tmp_path.iterdir()} <= {"secret", "root", "outside"}
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_comes_with_modes_and_times(root: Path) -> None:
    before = os.umask(0o027)
    try:
        tally = extract(
            stream(
                member("./", kind=tarfile.DIRTYPE, mode=0o700, mtime=1_000_000),
                member("./sub", kind=tarfile.DIRTYPE, mode=0o555, mtime=2_000_000),
                member("./sub/tool", b"run", mode=0o6777, mtime=3_000_000),
                member("./new/deep/file", b"", mode=0o600),
            ),
            root,
            made=True,
        )
    finally:
        os.umask(before)
    assert tree(root) == {"new": None, "new/deep": None, "new/deep/file": b"", "sub": None, "sub/tool": b"run"}
    assert (tally.files, tally.bytes, tally.failed.count) == (2, 3, 0)

    def about(name: str) -> tuple[int, float]:
        found = root.joinpath(name).stat()
        return stat.S_IMODE(found.st_mode), found.st_mtime

    assert about("") == (0o700, 1_000_000)
    assert about("sub") == (0o550, 2_000_000)
    assert about("sub/tool") == (0o750, 3_000_000)
    assert about("new/deep/file")[0] == 0o600


@pytest.mark.parametrize("name", ["/etc/x", "../secret", "a/../../secret", "..", "a/..", "./../secret"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
@pytest.mark.parametrize("by_pax", [False, True])
def test_names_that_lead_out_end_the_copy(root: Path, name: str, kind: bytes, by_pax: bool) -> None:
    head = [pax(record(b"path", name.encode()))] if by_pax else []
    data = stream(member("good", b"x"), *head, member("innocent" if by_pax else name, kind=kind), member("later", b"y"))
    with pytest.raises(BadStreamError, match="leads out"):
        extract(data, root)
    assert tree(root) == {"good": b"x"}


def test_nul_and_endless_names_end_the_copy(root: Path) -> None:
    for name in (b"a\0b", b"x/" * 3000):
        with pytest.raises(BadStreamError):
            extract(stream(pax(record(b"path", name)), member("a", b"x")), root)
    assert tree(root) == {}


def test_links_and_special_files_are_skipped_and_named(root: Path) -> None:
    tally = extract(
        stream(
            member("s", kind=tarfile.SYMTYPE, linkname="../secret"),
            member("h", kind=tarfile.LNKTYPE, linkname="../secret"),
            member("f", kind=tarfile.FIFOTYPE),
            member("c", kind=tarfile.CHRTYPE, devmajor=1, devminor=3),
            member("b", kind=tarfile.BLKTYPE),
            member("file", b"x"),
        ),
        root,
    )
    assert tally.skipped.first == ["s (symlink)", "h (hardlink)", "f (fifo)", "c (device)", "b (device)"]
    assert tree(root) == {"file": b"x"}


def test_a_link_and_then_a_file_through_it(root: Path) -> None:
    """Links in the stream are never created, so a file cannot go through one."""
    data = stream(member("out", kind=tarfile.SYMTYPE, linkname=".."), member("out/secret", b"changed"))
    extract(data, root)
    assert tree(root) == {"out": None, "out/secret": b"changed"}
    assert not root.joinpath("out").is_symlink()


@pytest.mark.parametrize("kind", ["folder link", "file link", "dangling link"])
def test_links_that_are_there_already_are_not_followed(root: Path, kind: str) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    place = {"folder link": "..", "file link": "../secret", "dangling link": "../outside/new"}[kind]
    root.joinpath("link").symlink_to(place)
    name = "link/secret" if kind == "folder link" else "link"
    tally = extract(stream(member(name, b"changed"), member("good", b"x")), root)
    assert (tally.files, tally.failed.count) == (1, 1)
    assert tally.failed.first == [f"{name}: a link is in its place"]
    assert root.joinpath("link").is_symlink()
    assert root.joinpath("good").read_bytes() == b"x"
    assert not list(outside.iterdir())


def test_what_stands_in_the_way_is_named_and_the_rest_goes_on(root: Path) -> None:
    root.joinpath("folder").mkdir()
    root.joinpath("file").write_text("was")
    os.mkfifo(root / "fifo")
    tally = extract(
        stream(
            member("folder", b"x"),
            member("file", kind=tarfile.DIRTYPE),
            member("file/below", b"x"),
            member("fifo", b"x"),
            member("n" * 256, b"x"),
            member("good", b"x"),
        ),
        root,
    )
    assert (tally.files, tally.failed.count) == (1, 5)
    assert tally.failed.first[:4] == [
        "folder: a folder is in its place",
        "file: a file is in its place",
        "file/below: a file is in its place",
        "fifo: a special file is in its place",
    ]
    assert root.joinpath("file").read_text() == "was"


def test_a_file_that_is_there_is_replaced_whole(root: Path) -> None:
    old = root / "file"
    old.write_text("old and longer")
    other_name = root / "other"
    other_name.hardlink_to(old)
    extract(stream(member("file", b"new")), root)
    # A new file with the old name: other hard links of the old file keep its content.
    assert (old.read_text(), other_name.read_text()) == ("new", "old and longer")


@pytest.mark.parametrize("cut", [512, 600, 1024, 1536, 2048, 2100])
def test_a_cut_stream_leaves_whole_files_only(root: Path, cut: int) -> None:
    root.joinpath("b").write_text("was")
    data = stream(member("a", b"first" * 50), member("b", b"second" * 150))
    extract(data[:cut], root, commit=False)
    # a gets its name when the next member has started; b never does.
    assert tree(root) == ({"a": b"first" * 50} if cut >= 1536 else {}) | {"b": b"was"}


def test_of_folders_that_are_done_nothing_is_kept(root: Path) -> None:
    taker = FolderTaker(open_folder(str(root)), False, Tally())
    TarReader(taker).feed(stream(*[member(f"d{n}", kind=tarfile.DIRTYPE, mode=0o555) for n in range(100)]))
    assert stat.S_IMODE(root.joinpath("d98").stat().st_mode) == 0o555
    assert stat.S_IMODE(root.joinpath("d99").stat().st_mode) == 0o700
    taker.commit()
    assert stat.S_IMODE(root.joinpath("d99").stat().st_mode) == 0o555


def test_many_failures_are_counted_and_few_are_kept(root: Path) -> None:
    data = stream(*[member(f"l{n}", kind=tarfile.SYMTYPE) for n in range(100)])
    tally = extract(data, root)
    assert (tally.skipped.count, len(tally.skipped.first)) == (100, NAMED)


def test_a_file_that_does_not_fit_on_the_disk_is_refused_before_a_byte(root: Path) -> None:
    with pytest.raises(OSError, match="are free"):
        extract(member("bomb", size=1 << 60)[0].tobuf(tarfile.GNU_FORMAT), root)
    assert tree(root) == {}


def test_names_that_are_no_utf8_and_escapes_are_kept(root: Path) -> None:
    names = [b"\xff\xfe", b"\x1b[31mred\r\n", "中".encode(), b"-rf", b"$(touch x)"]
    data = stream(*[member(os.fsdecode(name), name) for name in names])
    extract(data, root)
    assert {os.fsencode(path.name): path.read_bytes() for path in root.iterdir()} == {name: name for name in names}


def test_one_file_goes_to_the_place_that_was_asked_for(root: Path) -> None:
    tally = Tally()
    taker = FileTaker(open_folder(str(root)), "wanted", tally)
    TarReader(taker).feed(stream(member("../secret", b"x" * 600, mode=0o4755)))
    assert tree(root).keys() != {"wanted"}
    taker.commit()
    assert tree(root) == {"wanted": b"x" * 600}
    assert not root.joinpath("wanted").stat().st_mode & stat.S_ISUID


@pytest.mark.parametrize(
    "members", [[member("d", kind=tarfile.DIRTYPE)], [member("s", kind=tarfile.SYMTYPE)], [member("a"), member("b")]]
)
def test_one_file_is_exactly_one_file(root: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    taker = FileTaker(open_folder(str(root)), "wanted", Tally())
    with pytest.raises(BadStreamError):
        TarReader(taker).feed(stream(*members))
    taker.close()
    assert tree(root) == {}


def test_one_file_never_through_a_link(root: Path) -> None:
    root.joinpath("wanted").symlink_to("../secret")
    folder = open_folder(str(root))
    with pytest.raises(PlaceError, match="a link"):
        FileTaker(folder, "wanted", Tally())
    os.close(folder)


def test_a_link_that_is_planted_meanwhile_is_not_followed(root: Path) -> None:
    taker = FileTaker(open_folder(str(root)), "wanted", Tally())
    TarReader(taker).feed(stream(member("a", b"x")))
    root.joinpath("wanted").symlink_to("../secret")
    with pytest.raises(PlaceError, match="a link"):
        taker.commit()
    taker.close()


NAMES = st.lists(st.sampled_from(["a", "b", "..", ".", "", "link", "c" * 300]), min_size=1, max_size=4).map("/".join)
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])


@given(st.lists(st.tuples(NAMES, KINDS, st.binary(max_size=600)), max_size=8), st.integers(0, 10_000))
@settings(max_examples=150)
def test_no_stream_gets_out_however_it_is_made_and_cut(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[str, bytes, bytes]], cut: int
) -> None:
    top = tmp_path_factory.mktemp("fuzz")
    outside, root = top / "outside", top / "root"
    outside.mkdir()
    root.mkdir()
    root.joinpath("link").symlink_to("../outside")
    data = stream(
        *[
            member(name, body if kind == tarfile.REGTYPE else b"", kind, linkname="../outside/x")
            for name, kind, body in members
        ]
    )
    with contextlib.suppress(BadStreamError):
        extract(data[:cut], root)
    assert {path.name for path in top.iterdir()} == {"outside", "root"}
    assert not list(outside.iterdir())
    assert [path for path in root.rglob("*") if path.is_symlink()] == [root / "link"]
    assert not [path for path in root.rglob("*") if path.name.startswith(TEMPORARY)]
