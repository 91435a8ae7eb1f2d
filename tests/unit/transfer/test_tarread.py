from __future__ import annotations

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.transfer import tarread
from atlctl.transfer.tarread import BadStreamError, Entry, TarReader
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
    """Keeps all that it is given."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.files: dict[bytes, bytes] = {}
        self.ends = 0

    def begin(self, entry: Entry) -> None:
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
    monkeypatch.setattr(tarread, "MAX_PADDING", 1000)
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
    assert taker.entries == [Entry(b"other", "file", 3, 0o644, 12.5)]
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
        read(stream(pax(record(b"comment", b"x" * (tarread.MAX_EXTENSION + 1)))))
    monkeypatch.setattr(tarread, "MAX_HEADERS", 10)
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
    """The header with its right checksum."""
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
    assert tarread._pax(b"".join(record(key, value) for key, value in kept.items())) == kept
