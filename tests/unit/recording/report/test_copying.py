from __future__ import annotations

import json
import os
import pickle
import tempfile

import pytest

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.telling.data import to_data
from atlctl.diagnosis.telling.guide import Guide
from atlctl.jobs.errors import NothingMatched, UsageError
from atlctl.recording.read import read_saved
from atlctl.recording.report.copying import copy_files, copy_folder, fair, put_smoke, read_smoke
from atlctl.recording.report.folder import ReportFolder
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
    """The verdict on saved evidence, with paths that count from its folder."""
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
    with pytest.raises(UsageError, match="another log of this name"):
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
    (tmp_path / "x.gz").write_bytes(b"\x1f\x8b and so on")
    with pytest.raises(UsageError, match="gzip data") as refused:
        copy_files([str(tmp_path / "x.gz")], out)
    assert refused.value.hint == f"zcat {tmp_path}/x.gz | atlctl report --from -"


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
