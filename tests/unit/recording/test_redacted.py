from __future__ import annotations

import json
import os
import pickle
import stat
import tarfile
import tempfile
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.telling.data import to_data
from atlctl.diagnosis.telling.guide import Guide
from atlctl.jobs.errors import NotAllowed, NothingMatched, UsageError
from atlctl.recording import redacted as module
from atlctl.recording.read import read_saved
from atlctl.recording.redacted import (
    ReportFolder,
    copy_files,
    copy_folder,
    fair,
    hidden,
    is_archive,
    kept_name,
    move,
    pack,
    put_smoke,
    read_smoke,
    staged,
)
from tests.support.saved import evidence, smoke_document
from tests.unit.diagnosis.samples import matcher
from tests.unit.recording.test_read import CULPRIT, VICTIM, interleaved, write

CANARY = "CANARY-4711-CANARY"


@pytest.fixture
def out(tmp_path):
    folder = ReportFolder(str(tmp_path / "report"))
    yield folder
    folder.close()


def told(paths, **options):
    """The verdict on saved evidence, with paths relative to its folder."""
    known = matcher()
    data = json.dumps(to_data(diagnose(read_saved(paths, known, **options).job, known), Guide.builtin()))
    return json.loads(data.replace(f"{paths[0]}/", ""))


def test_a_folder_gives_the_same_verdict(out, tmp_path):
    source = evidence(tmp_path / "saved", 5, culprit=3, words=f"ValueError: api_key={CANARY}")
    (source / "worker-3").mkdir()
    record = {"message": {"message": f"ValueError: {CANARY}", "extraInfo": {"timestamp": "1", "password": CANARY}}}
    (source / "worker-3" / "error.json").write_text(json.dumps(record).replace(f": {CANARY}", f": token={CANARY}"))
    (source / "smoke.json").write_text(json.dumps(smoke_document(2, words=f"token={CANARY}")))
    (source / "other.txt").write_text("not evidence")
    done = copy_folder(str(source), out)
    assert (done.logs, done.missing) == (5, [])
    before, after = told([str(source)]), told([out.path])
    assert json.loads(json.dumps(before).replace(CANARY, "[redacted]")) == after
    assert [name for name, _ in out.files()] == [
        "atlctl.json",
        "events.jsonl",
        "smoke.json",
        "states.jsonl",
        "worker-0.ts.log",
        "worker-1.ts.log",
        "worker-2.ts.log",
        "worker-3.ts.log",
        "worker-3/error.json",
        "worker-4.ts.log",
    ]
    for path in (tmp_path / "report").rglob("*.*"):
        assert CANARY not in path.read_text(), path


def test_logs_only(out, tmp_path):
    source = evidence(tmp_path / "saved", 2)
    copy_folder(str(source), out, error_files=False)
    assert [name for name, _ in out.files()] == ["worker-0.ts.log", "worker-1.ts.log"]


def test_links_are_left_out_and_named(out, tmp_path):
    source = evidence(tmp_path / "saved", 2)
    (tmp_path / "secret").write_text("mine")
    (source / "worker-9.log").symlink_to(tmp_path / "secret")
    (source / "smoke.json").symlink_to(tmp_path / "secret")
    (source / "atlctl.json").unlink()
    (source / "atlctl.json").symlink_to(tmp_path / "secret")
    missing = dict(copy_folder(str(source), out).missing)
    assert {os.path.basename(name) for name in missing} == {"worker-9.log", "smoke.json", "atlctl.json"}
    assert not any("mine" in path.read_text() for path in (tmp_path / "report").iterdir())


def test_hostile_names_keep_worker_and_description_together(out, tmp_path):
    source = evidence(tmp_path / "saved", 3, name="w\x1b[2J{}")
    copy_folder(str(source), out)
    names = [name for name, _ in out.files() if name.endswith(".log")]
    assert names == ["w%1B%5B2J0.ts.log", "w%1B%5B2J1.ts.log", "w%1B%5B2J2.ts.log"]
    (cause,) = told([out.path])["root_causes"]
    assert (cause["worker"], cause["node"]) == ("w%1B%5B2J1", "gpu-01")


@pytest.mark.parametrize("form", ["{name}: {line}", "[pod/{name}/c] {line}"])
def test_a_merged_log_is_told_apart_in_the_copy_too(out, tmp_path, form):
    path = tmp_path / "all.txt"
    path.write_text(interleaved(form))
    copy_files([str(path)], out)
    before, after = told([str(path)]), told([out.path])
    assert [cause["worker"] for cause in after["root_causes"]] == ["w-1"]
    assert after == before


def test_standard_input(out):
    with tempfile.TemporaryFile() as file:
        file.write(interleaved().encode())
        file.seek(0)
        copy_files(["-"], out, stdin=file.fileno())
    (cause,) = told([out.path])["root_causes"]
    assert cause["worker"] == "w-1"


def test_several_logs(out, tmp_path):
    paths = [write(tmp_path / "w-1.log", CULPRIT), write(tmp_path / "w-0.txt", VICTIM)]
    copy_files(paths, out)
    after = told([out.path])
    assert [worker["name"] for worker in after["workers"]] == ["w-0.txt", "w-1"]
    assert after["root_causes"][0]["worker"] == "w-1"


def test_two_logs_of_one_name_are_refused(out, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = [write(tmp_path / name / "w.log", CULPRIT) for name in "ab"]
    with pytest.raises(UsageError, match="two logs have this name"):
        copy_files(paths, out)


def test_nothing_to_copy(out, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingMatched, match="no logs"):
        copy_folder(str(tmp_path / "empty"), out)


def test_large_logs_give_their_ends(out, tmp_path):
    source = tmp_path / "saved"
    source.mkdir()
    (source / "small.log").write_text("kept\n")
    (source / "large.log").write_text("".join(f"line {number:04}\n" for number in range(1000)))
    missing = dict(copy_folder(str(source), out, limit=2000).missing)
    large = (tmp_path / "report" / "large.log").read_text()
    assert (tmp_path / "report" / "small.log").read_text() == "kept\n"
    assert large.endswith("line 0999\n")
    assert large.startswith("line ")
    assert 1980 <= len(large) <= 2000
    assert "only its last" in missing[str(source / "large.log")]


def test_of_a_recording_the_last_parts_stay(out, tmp_path):
    source = tmp_path / "saved"
    source.mkdir()
    for number in (1, 2, 3, 4):
        part = "" if number == 1 else f".part-{number}"
        (source / f"w{part}.ts.log").write_text(f"part {number}\n" * 100)
    missing = dict(copy_folder(str(source), out, limit=1500).missing)
    assert [name for name, _ in out.files()] == ["w.part-2.ts.log", "w.part-3.ts.log", "w.part-4.ts.log"]
    assert {os.path.basename(name): "only its last" in why for name, why in missing.items()} == {
        "w.ts.log": False,
        "w.part-2.ts.log": True,
    }


@pytest.mark.parametrize("limit", [1 << 30, 3000])
def test_pipes_and_links_that_the_user_names(out, tmp_path, limit):
    text = "".join(f"line {number:04}\n" for number in range(1000))
    (tmp_path / "file").write_text(text)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    done = copy_files([str(tmp_path / "link")], out, limit=limit)
    kept = (tmp_path / "report" / "input.log").read_text()
    assert kept.endswith("line 0999\n")
    assert (len(kept) == len(text), not done.missing) == (limit > 3000, limit > 3000)
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        file.write(text)
    pipe = ReportFolder(str(tmp_path / "pipe"))
    copy_files([f"/dev/fd/{reader}"], pipe, limit=limit)
    pipe.close()
    os.close(reader)
    assert (tmp_path / "pipe" / "input.log").read_text() == text[:limit]


def test_what_is_no_log(out, tmp_path):
    (tmp_path / "x.bz2").write_bytes(b"BZh and so on")
    with pytest.raises(UsageError, match="bzip2 data") as refused:
        copy_files([str(tmp_path / "x.bz2")], out)
    assert refused.value.hint == f"bzcat < {tmp_path}/x.bz2 | atlctl report --from -"


def test_files_that_are_missing(out, tmp_path):
    log = write(tmp_path / "w-1.log", CULPRIT)
    done = copy_files([log, str(tmp_path / "nothing.log")], out)
    assert (done.logs, [os.path.basename(name) for name, _ in done.missing]) == (1, ["nothing.log"])
    none = ReportFolder(str(tmp_path / "none"))
    with pytest.raises(NothingMatched, match=r"nothing\.log: No such file"):
        copy_files([str(tmp_path / "nothing.log")], none)
    none.close()


def test_shares_are_fair():
    assert [fair(sizes, 100) for sizes in ([], [10, 20], [10, 200], [60, 60], [10, 80, 90])] == [100, 100, 90, 50, 45]


def test_a_pickle_with_a_secret_is_left_out(out, tmp_path):
    source = evidence(tmp_path / "saved", 2)
    (source / "worker-0").mkdir()
    (source / "worker-0" / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": []}))
    (source / "worker-0" / "nccl_trace_rank_1").write_bytes(pickle.dumps({"x": f"HF_TOKEN={CANARY}"}))
    (source / "worker-0" / "nccl_trace_rank_2.json").write_text(json.dumps({"password": CANARY}))
    missing = dict(copy_folder(str(source), out).missing)
    assert [os.path.basename(name) for name in missing] == ["nccl_trace_rank_1"]
    assert (tmp_path / "report" / "worker-0" / "nccl_trace_rank_0").read_bytes() == pickle.dumps({"entries": []})
    assert CANARY not in (tmp_path / "report" / "worker-0" / "nccl_trace_rank_2.json").read_text()


def test_smoke_documents(out, tmp_path):
    path = tmp_path / "smoke.json"
    path.write_text(json.dumps(smoke_document(2)))
    data = read_smoke(str(path))
    put_smoke(out, data)
    assert read_smoke(os.path.join(out.path, "smoke.json")) == data
    for text in ("", "[]", "{}", '{"data": 1}', '{"data": {"checks": 1, "tier": "x"}}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(UsageError, match="is no"):
            read_smoke(str(path))


SECRET = b"HF_TOKEN=CANARY-CANARY"


@pytest.fixture
def made(tmp_path):
    before = os.umask(0)
    folder = ReportFolder(str(tmp_path / "report"))
    yield folder
    folder.close()
    os.umask(before)


def put_log(made, tmp_path, data: bytes, skip: int = 0) -> bytes:
    source = tmp_path / "source.log"
    source.write_bytes(data)
    fd = os.open(source, os.O_RDONLY)
    try:
        made.put_log(["out.log"], module.LogText(fd, str(source)).chunks(skip))
    finally:
        os.close(fd)
    written: bytes = (tmp_path / "report" / "out.log").read_bytes()
    return written


def test_modes_are_private_under_any_umask(made, tmp_path):
    made.put(["worker-0", "tmp", "error.json"], b"{}")
    made.put(["index.html"], b"")
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in [tmp_path / "report", *(tmp_path / "report").rglob("*")]
    }
    assert modes == {
        "report": 0o700,
        "report/worker-0": 0o700,
        "report/worker-0/tmp": 0o700,
        "report/worker-0/tmp/error.json": 0o600,
        "report/index.html": 0o600,
    }
    assert made.files() == [("index.html", 0), ("worker-0/tmp/error.json", 2)]


def test_nothing_is_overwritten_and_no_link_is_followed(made, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "report" / "link").symlink_to(outside)
    (tmp_path / "report" / "file").write_text("mine")
    for parts in (["link", "x"], ["file"], ["file", "x"]):
        with pytest.raises(OSError, match=r"link|file"):
            made.put(parts, b"other")
    assert ((tmp_path / "report" / "file").read_text(), list(outside.iterdir())) == ("mine", [])


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "-x", "~x", "a\nb", "a\x1bb", "\u202ex", "x" * 300, "a\\b", "", " x", "\udcff"]
)
def test_names_that_do_harm_are_written_in_another_way(made, name):
    assert kept_name(name) != name
    made.put([name], b"x")
    ((found, _),) = made.files()
    assert "/" not in found
    assert found.isprintable()


@pytest.mark.parametrize("name", ["worker-0", "train 7.ts.log", "训练-0", "a.b_c@d", "attempt_0"])
def test_other_names_stay(name):
    assert kept_name(name) == name


def test_a_log_keeps_its_lines(made, tmp_path):
    data = b"one\r\ntwo\rthree\n" + SECRET + b"\n\n\x00\xff last"
    assert put_log(made, tmp_path, data) == data.replace(b"CANARY-CANARY", b"[redacted]")
    assert made.places() == 1


def test_only_the_end_of_a_log(made, tmp_path):
    assert put_log(made, tmp_path, b"1234\n5678\n90\n", skip=5) == b"5678\n90\n"
    assert put_log_again(made, tmp_path) == b"90\n"


def put_log_again(made, tmp_path) -> bytes:
    os.unlink(tmp_path / "report" / "out.log")
    return put_log(made, tmp_path, b"1234\n5678\n90\n", skip=6)


@given(
    st.lists(st.sampled_from([b"step 1\n", SECRET + b"\n", SECRET, b" ", b"x" * 40, b"\n"]), max_size=30),
    st.integers(1, 60),
)
def test_where_chunks_are_cut_does_not_matter(pieces, size):
    data = b"".join(pieces)
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    assert b"".join(hidden(chunks, Counter())) == b"".join(hidden(iter([data]), Counter()))


def test_a_line_without_an_end_takes_little_memory(monkeypatch):
    monkeypatch.setattr(module, "_LINE", 1_000)
    data = (b"y" * 90 + b" " + SECRET + b" ") * 50
    held = [len(piece) for piece in hidden((data[at : at + 100] for at in range(0, len(data), 100)), Counter())]
    assert max(held) < 2_000
    assert b"CANARY" not in b"".join(hidden((data[at : at + 100] for at in range(0, len(data), 100)), Counter()))


def test_places_are_counted_over_the_edges_of_reads(made, monkeypatch):
    made.put(["a"], b"x[redacted][redacted]y" * 20)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert made.places() == 40


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError, match="not empty") as refused:
        ReportFolder(str(tmp_path))
    assert "--no-save" not in str(refused.value.hint)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "made"
    (made / "b" / "deep").mkdir(parents=True)
    (made / "b" / "deep" / "x").write_bytes(b"\x00\xff")
    (made / "a 训").write_text("text")
    (made / "c").write_text("")
    return made


def test_members(folder, tmp_path):
    path = str(tmp_path / "report.tar.gz")
    size = pack(str(folder), path, 1_700_000_000.9)
    assert (os.stat(path).st_size, stat.S_IMODE(os.stat(path).st_mode)) == (size, 0o600)
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        told = [
            (member.name, member.mode, member.isdir(), member.uid, member.gname, member.mtime) for member in members
        ]
        deep = tar.extractfile("report/b/deep/x")
        assert deep is not None
        assert deep.read() == b"\x00\xff"
    names = ["report", "report/a 训", "report/c", "report/b", "report/b/deep", "report/b/deep/x"]
    folders = ("report", "report/b", "report/b/deep")
    assert told == [
        (name, 0o700 if name in folders else 0o600, name in folders, 0, "", 1_700_000_000) for name in names
    ]


def test_the_same_files_give_the_same_bytes(folder, tmp_path):
    for name in ("1.tar.gz", "2.tar.gz"):
        (tmp_path / name[0]).mkdir()
        pack(str(folder), str(tmp_path / name[0] / "r.tar.gz"), 5)
    assert (tmp_path / "1" / "r.tar.gz").read_bytes() == (tmp_path / "2" / "r.tar.gz").read_bytes()


def test_what_is_there_stays(folder, tmp_path):
    there = tmp_path / "r.tar.gz"
    there.write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        pack(str(folder), str(there), 0)
    with pytest.raises(UsageError, match="already exists"), staged(str(there)):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("full", "link", "full/x"):
        with pytest.raises(UsageError, match="already exists"), staged(str(tmp_path / name)):
            pass
        with pytest.raises(UsageError, match="cannot make"):
            move(str(folder), str(tmp_path / name))
    assert there.read_text() == (tmp_path / "full" / "x").read_text() == "mine"


def test_nothing_is_left_of_what_fails(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tarfile.TarFile, "addfile", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(OSError, match="no space"):
        pack(str(folder), str(tmp_path / "r.tar.gz"), 0)
    with pytest.raises(UsageError, match="cannot make"), staged(str(tmp_path / "new")) as place:
        move(str(folder), f"{place}/nowhere/deep")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]


def test_a_staged_folder_is_private_and_gets_its_name(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty/"):
        with staged(str(tmp_path / name)) as place:
            assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
            (tmp_path / os.path.basename(place) / "x").write_text("")
            move(place, str(tmp_path / name))
        assert os.listdir(tmp_path / name) == ["x"]


def test_no_place_for_it(tmp_path):
    with pytest.raises(UsageError, match="cannot write"), staged(str(tmp_path / "nowhere" / "new")):
        pass
    with pytest.raises((UsageError, NotAllowed), match="cannot write"), staged("/proc/new"):
        pass
    with pytest.raises(UsageError, match="already exists"), staged("/"):
        pass


def test_names_of_archives():
    assert [is_archive(name) for name in ("a.tar.gz", "a.tgz", "a.tar", "a")] == [True, True, False, False]
