"""Logs that are compressed: read as they are, cut ones as far as they go, bombs not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from atlctl.cli.report.making import making
from atlctl.diagnosis.result import Confidence
from atlctl.jobs.errors import AtlctlError, UsageError
from atlctl.recording import packed
from atlctl.recording.packed import PlainBytes, unpacked_name
from atlctl.recording.read import Ends, Saved
from atlctl.recording.redacted import ReportFolder, copy_files, copy_folder
from tests.unit.recording.test_read import CULPRIT, VICTIM, answer, culprits, read_saved, write

Pack = Callable[[bytes], bytes]
#: With a checksum, as the program zstd writes it.
PACKS: dict[str, Pack] = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}
HALVES = (b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"\x1f\x8b and so on", b"\x28\xb5\x2f\xfd and")
each_format = pytest.mark.parametrize("ending", PACKS)
SKIPPED = struct.pack("<II", 0x184D2A50, 4) + b"abcd"  # a frame that zstd programs skip
CANARY = "CANARY-4711-CANARY"


def text(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def noise(size: int) -> bytes:
    """Lines that compress badly, always the same."""
    return b"".join(b"%x\n" % random.Random(number).getrandbits(400) for number in range(size // 100))


def unpacked(data: bytes, piece: int = 1 << 20) -> tuple[bytes, packed.Unpacking | None]:
    file = io.BytesIO(data)
    plain = PlainBytes(lambda limit: file.read(min(limit, piece)), "x", "x", "errors")
    found = b"".join(iter(lambda: plain.read(1000), b""))
    return found, plain.unpacking


def saved(folder: Path, ending: str, *, cut: int = 0) -> str:
    """Two workers; of the culprit's log the last `cut` bytes are missing."""
    folder.mkdir()
    (folder / f"w-0.log{ending}").write_bytes(PACKS[ending](text(VICTIM)))
    data = PACKS[ending](text(CULPRIT) + noise(300_000))
    (folder / f"w-1.log{ending}").write_bytes(data[: len(data) - cut])
    return str(folder)


def unlike(found: Saved) -> list[str]:
    return [problem.message for problem in found.problems]


@each_format
def test_a_folder_of_compressed_logs(tmp_path: Path, ending: str) -> None:
    found = read_saved([saved(tmp_path / "saved", ending)])
    assert culprits(found) == [("w-1", 3)]
    assert answer(found).root_causes[0].confidence is Confidence.CERTAIN
    assert found.logs[0].bytes == (tmp_path / "saved" / f"w-0.log{ending}").stat().st_size
    assert (found.logs[0].lines, found.problems) == (len(VICTIM), ())
    proof = answer(found).root_causes[0].proofs[0]
    assert proof.line_no is not None
    path, line = found.place(proof.line_no)
    assert (path, CULPRIT[line - 1]) == (f"{tmp_path}/saved/w-1.log{ending}", "[0]:")


@each_format
def test_single_files_and_a_pipe(tmp_path: Path, ending: str) -> None:
    folder = saved(tmp_path / "saved", ending)
    logs = [f"{folder}/w-{number}.log{ending}" for number in (0, 1)]
    found = read_saved(logs)
    assert [worker.worker for worker in found.job.workers] == ["w-0", "w-1"]
    assert culprits(found) == [("w-1", 3)]
    with open(logs[1], "rb") as file:
        assert culprits(read_saved(["-"], stdin=file.fileno())) == [("w-1", 3)]


def test_the_log_itself_is_preferred_to_its_compressed_copy(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", ".gz")
    write(tmp_path / "saved" / "w-0.log", VICTIM)
    assert [log.path for log in read_saved([folder]).logs] == [f"{folder}/w-0.log", f"{folder}/w-1.log.gz"]
    paths = [f"{folder}/w-1.log.gz", f"{folder}/w-0.log.gz", f"{folder}/w-0.log"]
    assert sorted(log.path for log in read_saved(paths).logs) == sorted(paths)


@each_format
def test_a_cut_log_is_read_as_far_as_it_goes_and_the_answer_is_less_sure(tmp_path: Path, ending: str) -> None:
    found = read_saved([saved(tmp_path / "saved", ending, cut=50_000)])
    assert culprits(found) == [("w-1", 3)]
    assert answer(found).root_causes[0].confidence is not Confidence.CERTAIN
    [problem] = unlike(found)
    assert problem.startswith(f"{tmp_path}/saved/w-1.log{ending} is cut off: ")
    assert len(CULPRIT) < found.logs[1].lines < len(CULPRIT) + 3000


@each_format
def test_a_cut_stream_of_several_workers_makes_each_less_sure(tmp_path: Path, ending: str) -> None:
    lines = [f"w-{number}: {line}" for number, log in enumerate((VICTIM, CULPRIT)) for line in log]
    path = tmp_path / f"all{ending}"
    for cut, sure in ((0, True), (20, False)):
        data = PACKS[ending](text(lines)) + PACKS[ending](noise(3_000_000).replace(b"\n", b"\nw-0: "))
        path.write_bytes(data[: len(data) - cut])
        found = read_saved([str(path)])
        assert culprits(found) == [("w-1", 3)]
        assert [worker.log.cut for worker in found.job.workers if worker.log] == [not sure] * 2


@each_format
def test_a_damaged_log(tmp_path: Path, ending: str) -> None:
    folder = saved(tmp_path / "saved", ending)
    path = tmp_path / "saved" / f"w-1.log{ending}"
    data = bytearray(path.read_bytes())
    data[-60_000:-59_000] = os.urandom(1000)
    path.write_bytes(data)
    found = read_saved([folder])
    assert culprits(found) == [("w-1", 3)]
    [problem] = unlike(found)
    assert " has damaged " in problem or " is cut off: " in problem
    assert answer(found).root_causes[0].confidence is not Confidence.CERTAIN


@each_format
@pytest.mark.parametrize(
    "rest", [b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"\x1f\x8b and so on", b"\x28\xb5\x2f\xfd and"]
)
def test_a_file_without_a_line_is_no_log(tmp_path: Path, ending: str, rest: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(rest)
    with pytest.raises(UsageError, match=r"is cut off|has damaged") as caught:
        read_saved([str(path)])
    assert caught.value.hint


def test_everything_before_the_damage_is_unpacked() -> None:
    plain = noise(500_000)
    data = bytearray(gzip.compress(plain))
    data[len(data) // 2] ^= 255
    found, unpacking = unpacked(bytes(data))
    same = next(at for at, pair in enumerate(zip(found, plain, strict=False)) if len(set(pair)) > 1)
    assert same > 0.49 * len(plain)
    assert unpacking is not None
    assert unpacking.wrong is not None


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=8), st.integers(1, 400), st.integers(0, 40))
def test_any_members_in_any_pieces(parts: list[bytes], piece: int, zeros: int) -> None:
    whole = b"".join(parts)
    for data in (
        b"".join(map(gzip.compress, parts)) + bytes(zeros),
        SKIPPED + b"".join(zstandard.compress(part) + SKIPPED for part in parts),
    ):
        found, unpacking = unpacked(data, piece)
        assert unpacking is not None
        assert (found, unpacking.wrong) == (whole, None)


@given(st.binary(min_size=1, max_size=2000), st.integers(1, 300), st.sampled_from([*PACKS]))
def test_any_cut_is_said(plain: bytes, cut: int, ending: str) -> None:
    data = PACKS[ending](plain)
    left = data[: max(4, len(data) - cut)]
    found, unpacking = unpacked(left)
    assert unpacking is not None
    assert unpacking.wrong is not None
    assert plain.startswith(found)


@given(st.binary(max_size=200))
def test_text_is_unchanged_and_hostile_data_raises_nothing(rest: bytes) -> None:
    assert unpacked(b"x" + rest) == (b"x" + rest, None)
    for magic in (b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", SKIPPED):
        unpacked(magic + rest)


def bomb(ending: str, size: int) -> bytes:
    """`size` bytes of newlines, compressed as well as it goes."""
    if ending == ".zst":
        return zstandard.compress(b"\n" * size, 19)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(b"\n" * (1 << 20)) for _ in range(size >> 20)) + packer.flush()


@each_format
def test_a_bomb_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"w-2.log{ending}"
    path.write_bytes(bomb(ending, 64 << 20))
    with pytest.raises(AtlctlError, match="unpacks to more than 1000 times its size or 64 GiB: it was not read"):
        read_saved([str(path)])
    with pytest.raises(AtlctlError, match="unpacks to more than 1000 times its size"):
        copied(tmp_path / "out", path)
    folder = saved(tmp_path / "saved", ending)
    os.rename(path, f"{folder}/w-2.log{ending}")
    found = read_saved([folder])
    assert culprits(found) == [("w-1", 3)]
    assert found.job.workers[2].log is None
    assert [" unpacks to more than " in problem for problem in unlike(found)] == [True]


@each_format
def test_what_unpacks_to_little_may_have_any_ratio(ending: str) -> None:
    found, unpacking = unpacked(bomb(ending, 8 << 20))
    assert unpacking is not None
    assert (len(found), unpacking.wrong) == (8 << 20, None)


def test_a_size_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MOST", 100_000)
    found, unpacking = unpacked(gzip.compress(noise(200_000)))
    assert unpacking is not None
    assert (unpacking.refused, len(found) <= 100_000) == (True, True)


def test_zstd_data_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "saved", ".zst")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = f"{folder}/w-1.log.zst"
    for read, command in (
        (lambda: read_saved([path]), "errors"),
        (lambda: copied(tmp_path / "out", Path(path)), "report"),
    ):
        with pytest.raises(UsageError) as caught:
            read()
        assert caught.value.message == f"{path} is zstd data, and the package zstandard is not installed"
        assert caught.value.hint == f"pip install 'atlctl[zstd]', or: zstdcat {path} | atlctl {command} --from -"


def copied(out: Path, *paths: Path, limit: int = 1 << 30) -> Path:
    """A report's copy of files, or of one folder."""
    folder = ReportFolder(str(out))
    try:
        if len(paths) == 1 and paths[0].is_dir():
            copy_folder(str(paths[0]), folder, limit=limit)
        else:
            copy_files([*map(str, paths)], folder, limit=limit)
    finally:
        folder.close()
    return out


@each_format
def test_a_report_of_compressed_logs_hides_their_secrets(tmp_path: Path, ending: str) -> None:
    secret = text(["step 1", f"api_key={CANARY}"])
    source = Path(saved(tmp_path / "saved", ending))
    (source / f"w-0.log{ending}").write_bytes(PACKS[ending](secret + text(VICTIM)))
    out = copied(tmp_path / "report", source)
    assert sorted(path.name for path in out.iterdir()) == ["w-0.log", "w-1.log"]
    assert (out / "w-0.log").read_text().startswith("step 1\napi_key=[redacted]\n")
    assert culprits(read_saved([str(out)])) == [("w-1", 3)]
    assert answer(read_saved([str(out)])).root_causes[0].confidence is Confidence.CERTAIN
    single = copied(tmp_path / "single", source / f"w-0.log{ending}")
    assert CANARY not in (single / "input.log").read_text()


@pytest.mark.parametrize("form", ["utf-16-le", "utf-16-be"])
def test_a_report_of_utf_16_hides_secrets(tmp_path: Path, form: str) -> None:
    source = tmp_path / "saved"
    source.mkdir()
    lines = [f"api_key={CANARY}", "内存不足", *CULPRIT]
    (source / "w-1.log").write_bytes("\ufeff".encode(form) + "\n".join(lines).encode(form))
    out = copied(tmp_path / "report", source)
    assert (out / "w-1.log").read_text().splitlines()[:3] == ["api_key=[redacted]", "内存不足", CULPRIT[0]]
    single = copied(tmp_path / "single", source / "w-1.log")
    assert (single / "input.log").read_bytes() == (out / "w-1.log").read_bytes()
    small = copied(tmp_path / "small", source, limit=100)
    assert (small / "w-1.log").read_bytes() == b"\n".join((out / "w-1.log").read_bytes()[-100:].split(b"\n")[1:])


@each_format
def test_of_a_large_compressed_log_the_end_is_kept(tmp_path: Path, ending: str) -> None:
    source = tmp_path / "saved"
    source.mkdir()
    plain = noise(200_000)
    (source / f"w-0.log{ending}").write_bytes(PACKS[ending](plain))
    for out in (
        copied(tmp_path / "a", source, limit=5_000),
        copied(tmp_path / "b", source / f"w-0.log{ending}", limit=5_000),
    ):
        [kept] = [path.read_bytes() for path in out.glob("*.log")]
        assert plain.endswith(kept.split(b"\n", 1)[1])
        assert 4_000 < len(kept) < 6_000


@each_format
def test_a_report_of_a_cut_log_is_not_surer_than_the_log(tmp_path: Path, ending: str) -> None:
    source = saved(tmp_path / "saved", ending, cut=50_000)
    with making(str(tmp_path / "made"), "x", None) as made:
        made.copy([source], error_files=True)
        report = made.finish(*made.diagnose())
    assert [cause["confidence"] for cause in report.data["root_causes"]] == ["likely"]
    assert next(why for what, why in report.missing if what.endswith(f"w-1.log{ending}")).startswith("is cut off: ")
    manifest = json.loads((tmp_path / "made" / "atlctl.json").read_text())
    assert manifest == {"version": 1, "workers": [], "cut": ["w-1.log"]}
    again = read_saved([str(tmp_path / "made")])
    assert answer(again).root_causes[0].confidence is Confidence.LIKELY
    assert unlike(again) == [f"{tmp_path}/made/w-1.log lacks lines: it is the copy of a file that was cut or damaged"]


def test_names() -> None:
    names = ["w.log.gz", "w.log.zst", "w.log", "w.gz.log", ".gz"]
    assert [unpacked_name(name) for name in names] == ["w.log", "w.log", "w.log", "w.gz.log", ""]


def test_of_a_compressed_part_of_a_log_all_is_read(tmp_path: Path) -> None:
    """Its size does not tell how long the text is."""
    source = tmp_path / "saved"
    source.mkdir()
    (source / "w-0.ts.log.gz").write_bytes(gzip.compress(text(VICTIM)))
    write(source / "w-0.part-2.ts.log", [f"line {number}" for number in range(9_000)])
    assert [log.lines for log in read_saved([str(source)], ends=Ends(1 << 20)).logs] == [len(VICTIM), 9_000]
    (source / "w-0.part-3.ts.log.gz").write_bytes(gzip.compress(text(CULPRIT)))
    found = read_saved([str(source)], ends=Ends(1_000))
    assert [(log.lines, log.skipped > 0) for log in found.logs] == [(100, True), (len(CULPRIT), False)]
    assert found.cut == {"w-0"}
