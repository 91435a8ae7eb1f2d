"""The last part of a recorded log, by bytes and from a time on."""

from __future__ import annotations

import json
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.diagnosis.cause.decide import diagnose
from atlctl.diagnosis.result import Diagnosis, Verdict
from atlctl.diagnosis.scanner import Scanner
from atlctl.i18n import translated
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, UsageError
from atlctl.recording import feed as feeding
from atlctl.recording import read as reading
from atlctl.recording.read import Ends, Saved
from tests.unit.diagnosis.samples import PEER_GONE, block, entry, matcher


def log(host, rank, *, text="ValueError: x", time="2026-11-20_17:45:05", local=0, pid=14):
    """One worker's log: some training, one failed rank, torchrun's summary."""
    rows = [
        row.replace("train-worker-1", host)
        for row in block(entry(rank=rank, local=local, pid=pid, text=text, time=time))
    ]
    return [
        f"step 1 of rank {rank}",
        f"E1120 17:45:05.000000 1 torch/x.py:1] failed (exitcode: 1) local_rank: {local} (pid: {pid}) of",
        *rows,
    ]


CULPRIT = log("w-1", 3, local=1)
VICTIM = log("w-0", 0, text=PEER_GONE, time="2026-11-20_17:45:04")


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def read_saved(paths, **options) -> Saved:
    return reading.read_saved(paths, matcher(), **options)


def feed(text: str | bytes) -> Saved:
    """Standard input with `text`."""
    with tempfile.TemporaryFile() as file:
        file.write(text if isinstance(text, bytes) else text.encode())
        file.seek(0)
        return read_saved(["-"], stdin=file.fileno())


def answer(saved: Saved) -> Diagnosis:
    return diagnose(saved.job, matcher())


def culprits(saved):
    return [(item.worker, item.rank) for item in answer(saved).root_causes]


def names(saved):
    return [worker.worker for worker in saved.job.workers]


def interleaved(form="{name}: {line}"):
    rows = [("w-1", line) for line in CULPRIT], [("w-0", line) for line in VICTIM]
    mixed = [pair for both in zip(*rows, strict=False) for pair in both]
    return "".join(form.format(name=name, line=line, json=json.dumps(line)) + "\n" for name, line in mixed)


def test_the_only_log_of_a_folder_is_read_as_a_file_is(tmp_path):
    """It may hold the lines of all workers; two logs are one of each worker, and a recording says what it has."""
    (tmp_path / "all.log").write_text(interleaved("[pod/{name}/pytorch] {line}"))
    assert names(read_saved([str(tmp_path)])) == ["w-0", "w-1"]
    (tmp_path / "atlctl.json").write_text('{"job": {"name": "train"}, "workers": [{"name": "all"}]}')
    assert names(read_saved([str(tmp_path)])) == ["all"]
    (tmp_path / "atlctl.json").unlink()
    write(tmp_path / "w-2.log", CULPRIT)
    assert names(read_saved([str(tmp_path)])) == ["all", "w-2"]


def test_a_folder(tmp_path):
    write(tmp_path / "w-1.log", CULPRIT)
    write(tmp_path / "w-0.log", VICTIM)
    saved = read_saved([str(tmp_path)])
    assert (names(saved), culprits(saved), saved.told) == (["w-0", "w-1"], [("w-1", 3)], ("file",))


def test_the_prefix_of_a_long_log_is_learned_from_its_end(tmp_path):
    """Until the failure nothing in it shows where a line begins."""
    lines = [f"step {step} of a long training" for step in range(40_000)]
    lines += ["Traceback (most recent call last):", '  File "/job/train.py", line 9, in <module>', *CULPRIT]
    path = write(tmp_path / "all.txt", [f"[12:00:01] {line}" for line in lines])
    log = read_saved([path]).job.workers[0].log
    assert log is not None
    assert len(log.summaries) == 1


def test_the_headers_of_tail_name_the_worker():
    text = ["==> logs/w-0.log <==", *VICTIM, "", "==> logs/w-1.out <==", *CULPRIT]
    saved = feed("\n".join(text))
    assert (names(saved), culprits(saved)) == (["w-0", "w-1"], [("w-1", 3)])


def test_evidence_has_its_own_file_and_line(tmp_path):
    paths = [
        write(tmp_path / "w-0.log", VICTIM),
        write(tmp_path / "w-1.previous.log", CULPRIT),
        write(tmp_path / "w-1.log", ["running"]),
    ]
    saved = read_saved([str(tmp_path)])
    proofs = answer(saved).root_causes[0].proofs
    found = [saved.place(proof.line_no or 0) for proof in proofs]
    assert {path for path, _ in found} == {paths[1]}
    assert [CULPRIT[line - 1] for _, line in found] == ["[0]:", CULPRIT[1]]


def test_stamped_logs_give_the_same(tmp_path):
    stamp = "2026-11-20T17:45:05.757882235Z "
    write(tmp_path / "w-1.ts.log", [stamp + line for line in CULPRIT])
    write(tmp_path / "w-1.log", ["not read"])
    write(tmp_path / "w-0.log", [f"{stamp}stderr F {line}" for line in VICTIM])
    saved = read_saved([str(tmp_path)])
    assert (names(saved), culprits(saved)) == (["w-0", "w-1"], [("w-1", 3)])
    log = saved.job.workers[1].log
    assert log is not None
    assert len(log.summaries) == 1
    assert log.first is not None
    assert log.first.absolute


@pytest.mark.parametrize(
    ("form", "how"),
    [
        ("{name}: {line}", "prefix"),
        ("[pod/{name}/pytorch] {line}", "prefix"),
        ("[pod/{name}/pytorch] 2026-11-20T17:45:05.1Z {line}", "prefix"),
        ("2026-11-20T17:45:05.1Z {name}: {line}", "prefix"),
        ('{{"labels": {{"pod": "{name}"}}, "line": {json}}}', "json"),
        ('{{"kubernetes": {{"pod_name": "{name}"}}, "log": {json}}}', "json"),
    ],
)
def test_merged_lines_are_told_apart(form, how):
    saved = feed(interleaved(form))
    assert (names(saved), culprits(saved), saved.told) == (["w-0", "w-1"], [("w-1", 3)], (how,))


def test_logs_behind_each_other_are_told_apart_by_their_summaries():
    saved = feed("\n".join([*VICTIM, *log("w-1.train.ml.svc.cluster.local", 3, local=1), ""]))
    assert (names(saved), culprits(saved), saved.told) == (["w-0", "w-1"], [("w-1", 3)], ("host",))


def test_an_agent_without_summary_is_no_other_workers():
    dead = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15"
    saved = feed("\n".join([dead, *VICTIM, *CULPRIT, ""]))
    assert names(saved) == ["input", "w-0", "w-1"]
    assert [len(worker.log.notes) for worker in saved.job.workers if worker.log] == [1, 1, 1]


def test_what_nothing_tells_apart_is_the_input():
    saved = feed("hello\nworld\n")
    assert (names(saved), saved.told, answer(saved).verdict) == (["input"], (), Verdict.NONE)


def test_several_files_are_named_after_their_files(tmp_path):
    one = write(tmp_path / "w-1.log", CULPRIT)
    other = write(tmp_path / "victim.out", VICTIM)
    saved = read_saved([one, other])
    assert (names(saved), culprits(saved)) == (["victim.out", "w-1"], [("w-1", 3)])


def test_equal_names_in_two_folders_are_two_workers(tmp_path):
    for name, lines in (("a", CULPRIT), ("b", VICTIM)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "train.log", lines)
    both = [str(tmp_path / name) for name in "ab"]
    assert len(names(read_saved(both))) == 2
    assert len(names(read_saved([f"{path}/train.log" for path in both]))) == 2


def test_error_files_are_read_unless_told_otherwise(tmp_path):
    write(tmp_path / "w-0.log", VICTIM)
    place = tmp_path / "files" / "w-1_tmp" / "run_x" / "attempt_0" / "1"
    place.mkdir(parents=True)
    extra = {"py_callstack": "Traceback (most recent call last):\nKeyError: y", "timestamp": "1"}
    (place / "error.json").write_text(json.dumps({"message": {"message": "KeyError: y", "extraInfo": extra}}))
    (place / "agent_error.json").write_text("{cut")
    saved = read_saved([str(tmp_path)])
    (cause,) = answer(saved).root_causes
    assert (cause.worker, cause.local_rank, cause.exception) == ("w-1", 1, "KeyError")
    assert (saved.error_files, len(saved.remarks)) == (1, 1)
    assert "not valid JSON" in saved.remarks[0]
    assert "不是有效的 JSON" in translated(saved.remarks[0], "zh")
    bare = read_saved([str(tmp_path)], error_files=False)
    assert (bare.error_files, names(bare)) == (0, ["w-0"])


def test_a_restarted_worker_that_prints_no_summary_succeeded():
    note = "E1120 17:45:05.000000 1 torch/x.py:1] failed (exitcode: 3) local_rank: 0 (pid: 14) of binary: python"
    found = answer(feed(f"{note}\nstep 2 of the training\nstep 3 of the training\n" + "step 4\n" * 9))
    assert (found.verdict, len(found.earlier)) == (Verdict.NONE, 1)


def test_an_unreadable_log_is_no_empty_log(tmp_path):
    """A worker with an unreadable log is unknown; an empty log means that it printed nothing."""
    write(tmp_path / "w-1.log", CULPRIT)
    (tmp_path / "w-0.log").write_bytes(os.urandom(4_000))
    (tmp_path / "w-2.log").write_text("")
    found = {worker.worker: worker.log for worker in read_saved([str(tmp_path)]).job.workers}
    assert found["w-0"] is None
    assert found["w-2"] is not None
    assert found["w-2"].last_line == 0


def test_one_bad_log_among_others_is_a_problem_not_the_end(tmp_path):
    write(tmp_path / "w-1.log", CULPRIT)
    (tmp_path / "w-0.log").write_bytes(os.urandom(4_000))
    saved = read_saved([str(tmp_path)])
    assert culprits(saved) == [("w-1", 3)]
    assert [problem.kind for problem in saved.problems] == ["usage"]


def test_holes_are_said():
    saved = feed(b"a\n" + b"\0" * 100 + b"b\n")
    assert len(saved.remarks) == 1
    assert "wrote over each other" in saved.remarks[0]


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff"), ("utf-8", b"\xef\xbb\xbf"), ("gbk", b"")],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_other_encodings_are_read_as_text(encoding, mark, newline):
    """Windows writes UTF-16 with a byte order mark; more of it than is read at once, in odd pieces."""
    lines = ["训练开始", *["第 1 步" * 9] * 9_001, *log("w-1", 3, local=1, text="数据错误: 分片 3 已损坏 第 7 行")]
    (cause,) = answer(feed(mark + newline.join(lines).encode(encoding))).root_causes
    assert (cause.worker, cause.rank, cause.message) == ("w-1", 3, "数据错误: 分片 3 已损坏 第 7 行")
    assert {lines[(proof.line_no or 0) - 1][:3] for proof in cause.proofs} == {"E11", "[0]"}


def test_a_broken_character_of_utf16_is_one_character():
    broken = "w: 分片".encode("utf-16-le") + b"\x00\xd8" + "\nValueError\n".encode("utf-16-le") + b"\x01"
    assert feed(b"\xff\xfe" + broken).logs[0].lines == 3


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: None, NothingMatched),
        (lambda path: path.mkdir(), NothingMatched),
        (lambda path: path.write_text(""), NothingMatched),
        (lambda path: path.write_bytes(os.urandom(4_000)), UsageError),
        (lambda path: path.write_bytes(b"\x1f\x8b\x08\0rest"), UsageError),
    ],
)
def test_bad_paths(tmp_path, make, error):
    path = tmp_path / "log"
    make(path)
    with pytest.raises(error) as caught:
        read_saved([str(path)])
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_log_full_of_failures_is_read_at_both_ends(tmp_path, monkeypatch):
    """The lines in between may hold other failures: the answer is less sure."""
    monkeypatch.setattr(feeding, "Scanner", partial(Scanner, keep=2_000))
    monkeypatch.setattr(feeding, "MOST", 100)
    noise = ["ValueError: bad sample"] * 90_000
    victim = write(tmp_path / "w-0.log", VICTIM)
    path = write(tmp_path / "w-1.log", [*noise, *CULPRIT])
    found = read_saved([victim, path])
    assert culprits(found) == [("w-1", 3)]
    proof = next(proof for proof in answer(found).root_causes[0].proofs if proof.line_no)
    assert proof.line_no is not None
    assert found.place(proof.line_no) == (path, len(noise) + CULPRIT.index("[0]:") + 1)
    assert [log.lines for log in found.logs] == [len(VICTIM), len(noise) + len(CULPRIT)]
    [problem] = found.problems
    first, last = map(int, re.findall(r" (\d+)(?= )", problem.message))
    assert str(problem.message).startswith(f"{path}: lines {first} to {last} were not read")
    assert 100 < first < 1_000 < last < len(noise)
    assert [worker.log.cut for worker in found.job.workers if worker.log] == [False, True]


def test_a_path_that_may_not_be_read(tmp_path, monkeypatch):
    path = write(tmp_path / "w-0.log", CULPRIT)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    for paths in ([path], [str(tmp_path)]):
        with pytest.raises(NotAllowed):
            read_saved(paths)


def test_bad_lists_of_paths(tmp_path):
    path = write(tmp_path / "a.log", ["x"])
    for paths in ([path, path], [str(tmp_path), f"{tmp_path}/"], [""]):
        with pytest.raises(UsageError):
            read_saved(paths)
    with pytest.raises(AtlctlError):
        read_saved(["-"], stdin=987)


def test_lines_that_run_backwards_are_refused():
    rows = [json.dumps({"line": "x", "timestamp": f"2026-11-20T17:45:{50 - n}Z"}) for n in range(5)]
    with pytest.raises(UsageError, match="newest lines are at the top"):
        feed("\n".join(rows))


SNIPPETS = [line.encode() for line in [*CULPRIT, *VICTIM]] + [
    b"[pod/w-1/c] ",
    b"w-1: ",
    b'{"pod": "w-2", "log": "[0]:',
    b"2026-11-20T17:45:05Z stderr P ",
    b"\0\0\0",
    b"\r\n",
    b"\xc4\xe3\xba",
]


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.one_of(st.sampled_from(SNIPPETS), st.binary(max_size=9)), max_size=60), st.sampled_from([b"\n", b""])
)
def test_whatever_it_reads_it_answers_or_refuses(parts, glue):
    try:
        saved = feed(glue.join(parts))
    except AtlctlError:
        return
    found = answer(saved)
    for item in (*found.root_causes, *found.candidates, *found.earlier):
        assert item.worker in (None, *names(saved))
        for proof in item.proofs:
            path, line = saved.place(proof.line_no or 0)
            assert path == "-"
            assert 1 <= line <= saved.logs[0].lines


BEGAN = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
SECONDS = 40_000


def line(second: int) -> bytes:
    at = f"{BEGAN + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S}.123456789Z"
    return f"{at} step {second} {'x' * (second % 70)}\n".encode()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One line per second, in three files."""
    folder = tmp_path_factory.mktemp("log")
    found = []
    for number in range(3):
        path = folder / f"w.part-{number}.ts.log"
        path.write_bytes(b"".join(line(second) for second in range(SECONDS * number, SECONDS * (number + 1))))
        found.append(str(path))
    return found


def first_second(wanted: list[tuple[str, int]]) -> int:
    """The first second from which a complete line is read."""
    path, skip = wanted[0]
    data = Path(path).read_bytes()
    at = 0 if not skip else data.index(b"\n", skip - 1) + 1
    return int(data[at:].split(b" ", 3)[2])


@pytest.mark.parametrize("second", [5, 1_000, SECONDS - 1, SECONDS, SECONDS + 1, 2 * SECONDS + 17, 3 * SECONDS - 3])
def test_from_a_moment_on(parts: list[str], second: int) -> None:
    wanted, cut = Ends(1, BEGAN.timestamp() + second).of(parts)
    read = first_second(wanted)
    assert read <= second
    assert second - read <= reading._NEAR // len(line(0)) or len(wanted) < 3
    assert [path for path, _ in wanted] == parts[3 - len(wanted) :]
    assert all(skip == 0 for _, skip in wanted[1:])
    assert cut == (read > 0)


def test_a_share_is_read_even_of_what_is_older(parts: list[str]) -> None:
    size = os.path.getsize(parts[2])
    wanted, cut = Ends(size + 100, BEGAN.timestamp() + 3 * SECONDS).of(parts)
    (path, skip), last = wanted
    assert (path, last, cut) == (parts[1], (parts[2], 0), True)
    assert 0 <= os.path.getsize(parts[1]) - 100 - skip <= reading._NEAR


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
