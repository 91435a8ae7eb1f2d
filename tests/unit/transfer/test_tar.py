from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.jobs.errors import UsageError
from atlctl.transfer import tar
from atlctl.transfer.tar import PIECE, BadStreamError, SourceError, TarEntry, TarReader, archive, survey
from tests.unit.transfer.archives import Form, by_tarfile, member, pax, record, stream

LONG = "d/" * 90 + "n" * 120
MEMBERS = [
    member("dir", kind=tarfile.DIRTYPE, mode=0o755),
    member("dir/a", b"alpha"),
    member("dir/empty"),
    member("exact", b"x" * 1024),
    member(LONG, b"long"),
    member("中文", b"utf-8"),
    member("link", kind=tarfile.SYMTYPE, linkname="/etc/passwd"),
    member("hard", kind=tarfile.LNKTYPE, linkname="dir/a"),
    member("fifo", kind=tarfile.FIFOTYPE),
    member("null", kind=tarfile.CHRTYPE),
    member("disk", kind=tarfile.BLKTYPE),
    member("last", b"z" * 5000, mode=0o4755),
]


class Collected:
    """Stores all its input."""

    def __init__(self) -> None:
        self.entries: list[TarEntry] = []
        self.files: dict[bytes, bytes] = {}
        self.ends = 0

    def begin(self, entry: TarEntry) -> None:
        self.entries.append(entry)
        if entry.kind == "file":
            self.files[entry.name] = b""

    def data(self, piece: memoryview) -> None:
        self.files[self.entries[-1].name] += bytes(piece)

    def end(self) -> None:
        self.ends += 1


def read(data: bytes, *cuts: int) -> tuple[Collected, TarReader]:
    taker = Collected()
    reader = TarReader(taker)
    start = 0
    for cut in sorted(cuts):
        reader.feed(data[start:cut])
        start = max(start, cut)
    reader.feed(data[start:])
    return taker, reader


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_form_is_read(form: Form) -> None:
    members = [m for m in MEMBERS if form != tarfile.USTAR_FORMAT or m[0].name not in (LONG, "中文")]
    taker, reader = read(by_tarfile(*members, form=form))
    assert reader.ended
    assert [entry.name.decode().rstrip("/") for entry in taker.entries] == [info.name for info, _ in members]
    assert taker.files == {info.name.encode(): data for info, data in members if info.isreg()}
    assert taker.ends == len(taker.files)
    kinds = {entry.name.decode().rstrip("/"): entry.kind for entry in taker.entries}
    assert [kinds[name] for name in ("dir", "link", "hard", "fifo", "null", "disk")] == [
        "folder", "symlink", "hardlink", "fifo", "device", "device",
    ]  # fmt: skip
    assert (taker.entries[-1].mode, taker.entries[-1].mtime) == (0o4755, 1_600_000_000)


@given(st.lists(st.integers(0, 20_000), max_size=6))
def test_where_it_is_cut_into_chunks_changes_nothing(cuts: list[int]) -> None:
    data = by_tarfile(*MEMBERS)
    whole, _ = read(data)
    taker, reader = read(data, *cuts)
    assert (taker.entries, taker.files, taker.ends, reader.ended) == (whole.entries, whole.files, whole.ends, True)


def test_a_cut_stream_has_no_end_wherever_it_is_cut() -> None:
    data = stream(*MEMBERS)
    for cut in range(0, len(data) - 511, 97):
        _, reader = read(data[:cut])
        assert not reader.ended, cut


def test_padding_behind_the_end_is_taken_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    _, reader = read(stream(member("a", b"x")) + bytes(20_000))
    assert reader.ended
    monkeypatch.setattr(tar, "MAX_PADDING", 1000)
    with pytest.raises(BadStreamError):
        read(stream(member("a", b"x")) + bytes(20_000))


def test_a_lone_zero_block_is_no_end() -> None:
    with pytest.raises(BadStreamError):
        read(bytes(512) + stream(member("a", b"x")))


def test_pax_sizes_and_times_count() -> None:
    data = stream(
        pax(record(b"path", b"other") + record(b"mtime", b"12.5") + record(b"size", b"3")), member("a", b"xyz")
    )
    taker, _ = read(data)
    assert taker.entries == [TarEntry(b"other", "file", 3, 0o644, 12.5)]
    assert taker.files == {b"other": b"xyz"}


def test_a_global_header_means_nothing() -> None:
    info, body = pax(record(b"path", b"/etc/passwd"))
    info.type = tarfile.XGLTYPE
    taker, _ = read(stream((info, body), member("a", b"x")))
    assert [entry.name for entry in taker.entries] == [b"a"]


def test_extension_headers_hold_for_one_member() -> None:
    taker, _ = read(stream(pax(record(b"path", b"other")), member("a", b"x"), member("b", b"y")))
    assert [entry.name for entry in taker.entries] == [b"other", b"b"]


@pytest.mark.parametrize(
    "records",
    [
        b"nonsense",
        b"99999 path=x\n",
        b"0 path=x\n",
        b"3 x\n",
        b"9 path=xx\n",
        b"-5 path=x\n",
        b"1234567890 path=x\n",
        record(b"size", b"-1"),
        record(b"size", b"9" * 40),
        record(b"size", b"1e3"),
        record(b"mtime", b"nan"),
        record(b"mtime", b"inf"),
        record(b"mtime", b"1" * 500),
        record(b"mtime", b"soon"),
    ],
)
def test_hostile_pax_records_are_refused(records: bytes) -> None:
    with pytest.raises(BadStreamError):
        read(stream(pax(records), member("a", b"x")))


def test_times_are_kept_within_reason() -> None:
    for text in (b"1e300", b"-1e300"):
        taker, _ = read(stream(pax(record(b"mtime", text)), member("a")))
        assert abs(taker.entries[0].mtime) == 1 << 33


def test_sparse_files_are_told_and_not_taken() -> None:
    records = record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.realsize", b"9" * 18)
    taker, reader = read(stream(pax(records), member("a", b"x" * 600), member("b", b"y")))
    assert [(entry.name, entry.kind) for entry in taker.entries] == [(b"a", "sparse"), (b"b", "file")]
    assert (taker.files, reader.ended) == ({b"b": b"y"}, True)


def test_links_have_no_bytes_whatever_size_they_state() -> None:
    header = member("hard", kind=tarfile.LNKTYPE, size=600)[0].tobuf(tarfile.GNU_FORMAT)
    taker, reader = read(header + stream(member("a", b"x")))
    assert ([entry.name for entry in taker.entries], taker.files, reader.ended) == ([b"hard", b"a"], {b"a": b"x"}, True)


def test_the_old_sparse_form_with_more_maps_is_refused() -> None:
    header = bytearray(member("a", kind=tarfile.GNUTYPE_SPARSE)[0].tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    with pytest.raises(BadStreamError, match="sparse"):
        read(summed(header))


def test_long_extension_headers_and_many_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadStreamError, match="too long"):
        read(stream(pax(record(b"comment", b"x" * (tar.MAX_EXTENSION + 1)))))
    monkeypatch.setattr(tar, "MAX_HEADERS", 10)
    with pytest.raises(BadStreamError, match="too many"):
        read(stream(*[pax(record(b"a", b"b"))] * 11))


@pytest.mark.parametrize("size", [b"\xff" * 12, b"12345678901x", b"        -1 \0"])
def test_sizes_that_are_none_are_refused(size: bytes) -> None:
    header = bytearray(member("a")[0].tobuf(tarfile.GNU_FORMAT))
    header[124:136] = size
    with pytest.raises(BadStreamError):
        read(summed(header))


def test_a_size_beyond_eight_gibibytes_is_read() -> None:
    taker, reader = read(member("a", size=20 << 30)[0].tobuf(tarfile.GNU_FORMAT))
    assert (taker.entries[0].size, reader.ended) == (20 << 30, False)


@given(st.binary(max_size=4096))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read(data)
    except BadStreamError:
        return


@given(st.integers(0, 8000), st.integers(0, 255), st.integers(0, 8000))
def test_a_stream_with_a_wrong_byte_is_read_or_refused(at: int, byte: int, cut: int) -> None:
    data = bytearray(by_tarfile(*MEMBERS[:6]))
    data[at % len(data)] = byte
    try:
        read(bytes(data), cut)
    except BadStreamError:
        return


def summed(header: bytearray) -> bytes:
    """The header with the correct checksum."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@given(
    st.lists(st.tuples(st.integers(0, 511), st.binary(min_size=1, max_size=12)), max_size=6), st.binary(max_size=2000)
)
def test_headers_of_any_content_with_a_right_checksum(patches: list[tuple[int, bytes]], rest: bytes) -> None:
    header = bytearray(member("name", b"x" * 100)[0].tobuf(tarfile.GNU_FORMAT))
    for at, data in patches:
        header[at : at + len(data)] = data
    try:
        taker, _ = read(summed(header[:512]) + rest)
    except BadStreamError:
        return
    assert all(entry.size >= 0 and 0 <= entry.mode <= 0o7777 for entry in taker.entries)


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300),
            st.binary(max_size=1500),
        ),
        max_size=5,
    ),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_what_the_standard_library_writes_is_read_back(files: list[tuple[str, bytes]], form: Form) -> None:
    members = [member(name, data) for name, data in files]
    taker, reader = read(by_tarfile(*members, form=form))
    assert reader.ended
    assert [entry.name for entry in taker.entries] == [info.name.encode() for info, _ in members]
    assert [entry.size for entry in taker.entries] == [len(data) for _, data in files]


@given(st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(max_size=200), max_size=4))
def test_pax_records_survive_any_values(values: dict[bytes, bytes]) -> None:
    kept = {key: value for key, value in values.items() if b"=" not in key}
    assert tar._pax(b"".join(record(key, value) for key, value in kept.items())) == kept


def read_by_tarfile(path: Path) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive(survey(str(path)))))) as found:
        files = {info.name: found.extractfile(info) for info in found}
        return {name: None if file is None else file.read() for name, file in files.items()}


def test_a_tree_is_read_back_by_the_standard_library(tmp_path: Path) -> None:
    long = "n" * 200
    tmp_path.joinpath("sub").mkdir()
    tmp_path.joinpath("sub", long).write_bytes(b"x" * 1000)
    tmp_path.joinpath(os.fsdecode(b"\xff")).write_bytes(b"")
    names = {"data": None, f"data/sub/{long}": b"x" * 1000, "data/sub": None, "data/\udcff": b"", "end": b""}
    assert read_by_tarfile(tmp_path) == names


def test_modes_are_permissions_only_and_owners_nobody(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    file.chmod(0o6755)
    os.utime(file, (-5, -5))
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive(survey(str(file)))))) as found:
        info = found.getmember("data")
    assert (info.mode, info.uid, info.gid, info.uname, info.mtime) == (0o755, 0, 0, "", 0)


def test_pieces_are_neither_small_nor_large(tmp_path: Path) -> None:
    for number in range(3000):
        tmp_path.joinpath(str(number)).write_bytes(b"x")
    with tmp_path.joinpath("big").open("wb") as file:
        file.truncate(5 * PIECE)
    sizes = [len(piece) for piece in archive(survey(str(tmp_path)))]
    assert max(sizes) <= 2 * PIECE
    assert min(sizes[:-1]) >= PIECE
    assert sum(sizes) % 10240 == 0


def test_what_is_there_is_counted_and_links_are_named(tmp_path: Path) -> None:
    tmp_path.joinpath("a").write_bytes(b"12")
    tmp_path.joinpath("l").symlink_to("a")
    found = survey(str(tmp_path))
    assert (found.kind, found.files, found.bytes, found.skipped.first) == ("folder", 1, 2, ["l (symlink)"])
    found = survey(str(tmp_path / "l"))
    assert (found.kind, found.name, found.files, found.bytes) == ("file", "l", 1, 2)


@pytest.mark.parametrize("name", ["nope", "file/below", "fifo"])
def test_what_is_no_source_is_refused(tmp_path: Path, name: str) -> None:
    tmp_path.joinpath("file").touch()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError):
        survey(str(tmp_path / name))


def test_a_folder_that_became_a_link_meanwhile_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, source = tmp_path / "outside", tmp_path / "source"
    outside.mkdir()
    outside.joinpath("secret").write_bytes(b"secret")
    source.mkdir()
    source.joinpath("link").symlink_to(outside)
    found = survey(str(source))
    monkeypatch.setattr(stat, "S_ISDIR", lambda mode: True)
    with pytest.raises(SourceError):
        b"".join(archive(found))
