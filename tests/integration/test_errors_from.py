"""`atlctl errors --from`, as a user runs it."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import termios

import pytest

from tests.integration.local import problem
from tests.support import proc
from tests.support.cli import popen_cli, run_cli
from tests.unit.diagnosis.samples import PEER_GONE
from tests.unit.recording.test_read import CULPRIT, VICTIM, interleaved, log, write


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "saved logs"
    folder.mkdir()
    write(folder / "w-1.log", CULPRIT)
    write(folder / "w-0.log", VICTIM)
    (folder / "case.json").write_text("not read")
    return folder


def errors(*words, **options):
    return run_cli("errors", *map(str, words), **options)


def values(run, label):
    """The value after a label of the panel on a pipe."""
    lines = run.stdout.decode().splitlines()
    return [line.partition(label)[2].strip() for line in lines if line.startswith(f"  {label} ")]


def test_text_names_the_sources_the_line_and_the_next_step(saved):
    run = errors("--from", saved)
    assert (run.stderr, run.code) == (b"", 0)
    lines = run.stdout.decode().splitlines()
    line = CULPRIT.index("[0]:") + 1
    assert lines[:2] == [f"2 workers from {saved} (2 logs)", "root cause: rank 3 (local rank 1) on w-1, certain"]
    assert values(run, "what") == ["ValueError: x"]
    assert values(run, "when") == ["2026-11-20T17:45:05Z"]
    assert values(run, "evidence")[0] == f"{saved}/w-1.log:{line}  ValueError: x"
    assert values(run, "next")[-1] == f"less +{line} '{saved}/w-1.log'"
    assert any("connection closed by a peer" in text and "rank 0 on w-0" in text for text in lines)


def test_json_tells_what_was_read(saved):
    run = errors("--from", saved, "-o", "json")
    document = json.loads(run.stdout)
    data = document["data"]
    assert (document["command"], document["status"], document["errors"]) == ("errors", "success", [])
    assert (data["job"], data["uid"], data["state"], data["verdict"]) == (None, None, None, "rank")
    source = data["source"]
    assert (source["paths"], source["told_apart_by"], source["error_files"]) == ([str(saved)], ["file"], 0)
    assert [worker["name"] for worker in data["workers"]] == ["w-0", "w-1"]
    assert [entry["lines"] for entry in source["logs"]] == [len(VICTIM), len(CULPRIT)]
    (cause,) = data["root_causes"]
    assert (cause["worker"], cause["rank"], cause["local_rank"], cause["exit_code"]) == ("w-1", 3, 1, 1)
    assert (cause["confidence"], data["candidates"]) == ("certain", [])
    proof = cause["evidence"][0]
    assert (proof["worker"], proof["file"]) == ("w-1", f"{saved}/w-1.log")
    assert CULPRIT[proof["line"] - 1] == "[0]:"


@pytest.mark.parametrize("form", ["{name}: {line}", "[pod/{name}/c] {line}"])
def test_standard_input(form):
    run = errors("--from", "-", stdin=interleaved(form).encode())
    lines = run.stdout.decode().splitlines()
    assert lines[0] == "2 workers from standard input (1 log)"
    assert lines[1] == "root cause: rank 3 (local rank 1) on w-1, certain"
    assert values(run, "evidence")[0].endswith(" of standard input  ValueError: x")
    assert not any(text.startswith("less ") for text in values(run, "next"))


def test_several_paths_and_a_partial_answer(saved, tmp_path):
    bad = tmp_path / "w-2.log"
    bad.write_bytes(b"BZh9")
    run = errors("--from", saved / "w-0.log", "--from", saved / "w-1.log", "--from", bad, "-o", "json")
    document = json.loads(run.stdout)
    assert (run.code, document["status"], document["errors"][0]["kind"]) == (0, "partial", "usage")
    assert run.stderr == f"warning: {bad} is not a log but bzip2 data\n".encode()
    assert document["data"]["root_causes"][0]["worker"] == "w-1"


def test_a_worker_whose_log_just_ends(saved):
    write(saved / "w-1.log", ["step 1", "step 2"])
    run = errors("--from", saved)
    assert run.stdout.decode().splitlines()[1] == "root cause: w-1, likely"
    assert values(run, "evidence")[0] == f"{saved}/w-1.log:2  step 2"


def test_consequences_only_are_candidates(saved):
    (saved / "w-1.log").unlink()
    run = errors("--from", saved, "-o", "json")
    data = json.loads(run.stdout)["data"]
    assert (data["verdict"], data["root_causes"]) == ("undecided", [])
    assert [(item["worker"], item["confidence"]) for item in data["candidates"]] == [("w-0", "guess")]


def test_exit_code(saved, tmp_path):
    assert errors("--from", saved, "--exit-code").code == 1
    quiet = write(tmp_path / "quiet.log", ["step 1"])
    run = errors("--from", quiet, "--exit-code", "-o", "json")
    assert (run.code, json.loads(run.stdout)["data"]["verdict"]) == (0, "none")


def test_restarted_attempts_are_not_called_a_success(tmp_path):
    note = CULPRIT[1]
    assert "failed (exitcode" in note
    run = errors("--from", write(tmp_path / "w.log", [note, *(f"step {n}" for n in range(9))]), "-o", "json")
    data = json.loads(run.stdout)["data"]
    assert (data["verdict"], [item["local_rank"] for item in data["earlier"]]) == ("none", [1])


def test_signatures_of_ones_own_come_first(saved, tmp_path):
    rules = tmp_path / "own.toml"
    rules.write_text(
        '[[signature]]\nid = "bad_x"\ncategory = "file_missing"\nrole = "root"\npattern = "ValueError: x"\n'
        'meaning_en = "m"\nadvice_en = "look at x"\n'
    )
    run = errors("--from", saved, "-o", "json", env={"ATLCTL_SIGNATURES": str(rules)})
    (cause,) = json.loads(run.stdout)["data"]["root_causes"]
    assert (cause["signature"], cause["category"], cause["advice"]) == ("bad_x", "file_missing", "look at x")


def test_hostile_text_stays_harmless(tmp_path):
    lines = log("w-1", 3, text="ValueError: \x1b]0;owned\x07\x9b31m\u202e x")
    path = write(tmp_path / "evil\x1b[2J.log", lines)
    for terminal in (False, True):
        run = errors("--from", path, tty=terminal, columns=200)
        assert run.code == 0
        assert b"\x1b]" not in run.stdout
        assert b"\x1b[2J" not in run.stdout
        assert "\u202e".encode() not in run.stdout


def test_chinese_in_gbk(tmp_path):
    path = tmp_path / "w-0.log"
    text = "\n".join(log("w-0", 3, text="ValueError: 数据损坏，无法读取分片文件"))
    path.write_bytes(text.encode("gbk"))
    assert "ValueError: 数据损坏，无法读取分片文件" in errors("--from", path).stdout.decode()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--from", "{saved}", "train-7"), 2, "a job and saved logs (--from) are both named"),
        (("--from", "{saved}", "-j", "train-7"), 2, "a job and saved logs (--from) are both named"),
        (("--no-files",), 2, "--no-files applies to saved logs only"),
        (("--from", ""), 2, "--from: the path is empty"),
        (("--from", "-", "--from", "-"), 2, "--from names the same path twice"),
        (("--from", "{saved}/none"), 3, "{saved}/none: No such file or directory"),
        (("--from", "{saved}/empty"), 3, "{saved}/empty: no logs in it"),
        (("--from", "{saved}/nothing.log"), 3, "{saved}/nothing.log: empty"),
        (("--from", "{saved}/junk.log"), 2, "{saved}/junk.log is not a log but binary data"),
    ],
)
def test_refusals(saved, words, code, message):
    (saved / "empty").mkdir()
    (saved / "nothing.log").touch()
    (saved / "junk.log").write_bytes(bytes(range(256)) * 20)
    run = errors(*(word.format(saved=saved) for word in words))
    assert (run.code, run.stdout) == (code, b"")
    told, hint = problem(run.stderr)
    assert told == message.format(saved=saved)
    assert hint


def test_a_refusal_speaks_json_too(saved):
    run = errors("--from", saved / "none", "-o", "json")
    document = json.loads(run.stdout)
    assert (document["status"], document["errors"][0]["exit_code"], run.code) == ("error", 3, 3)


def test_the_current_job_does_not_matter(saved):
    assert errors("--from", saved, env={"ATLCTL_JOB": "train-7"}).code == 0


def waiting_bytes(pipe):
    """The number of unread bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_an_interrupt_while_standard_input_is_silent():
    with popen_cli(
        "errors", "--from", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        run.stdin.write(b"step 1\n")
        run.stdin.flush()
        assert proc.wait_until(lambda: waiting_bytes(run.stdin) == 0)  # it reads now and will wait for more
        run.send_signal(signal.SIGINT)
        assert run.wait(30) == 130
        assert run.stdout.read() == b""


def test_a_large_log_takes_little_memory(tmp_path):
    path = tmp_path / "w-0.log"
    with path.open("w") as file:
        for step in range(400_000):
            file.write(f"2026-11-20 17:45:05,123 - INFO - rank 1 - step {step} loss=0.51 tokens/s=1234 mem=71.2GiB\r\n")
        file.write("\n".join(log("w-0", 3, text=PEER_GONE)))
    code = (
        "import sys; from atlctl.diagnosis.signatures import builtin; "
        "from atlctl.diagnosis.signatures import Matcher; from atlctl.recording.read import read_saved; "
        "read_saved(sys.argv[1:], Matcher(builtin().signatures)); "
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True)
    assert path.stat().st_size > 30_000_000
    assert int(run.stdout) < 45_000  # KiB


def test_the_platforms_word_explains_a_kill(tmp_path):
    """The log has SIGKILL, the container's state has the cause: `atlctl.json` and `events.jsonl` of the folder."""
    at = "E1120 17:45:05.757000 1 torch/distributed/elastic/multiprocessing/api.py:882]"
    killed = f"{at} failed (exitcode: -9) local_rank: 1 (pid: 15) of binary: /opt/venv/bin/python"
    write(tmp_path / "w-1.log", [killed])
    write(tmp_path / "w-0.log", VICTIM)
    workers = [
        {"name": "w-0", "state": "Failed", "exit_code": 1},
        {"name": "w-1", "state": "Failed", "node": "gpu-08", "reason": "OOMKilled", "exit_code": 137},
    ]
    (tmp_path / "atlctl.json").write_text(json.dumps({"version": 1, "workers": workers}))
    event = {"time": "2026-11-20T17:45:05Z", "worker": "w-1", "kind": "Pod", "reason": "Started", "message": "x"}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    run = errors("--from", tmp_path)
    assert (run.stderr, run.code) == (b"", 0)
    assert values(run, "kind") == ["Memory limit of the container or job reached, killed [memory_limit_kill]"]
    assert values(run, "node") == ["gpu-08"]
    assert values(run, "evidence")[1].startswith("w-1  ")
    plain = errors("--from", tmp_path / "w-0.log", "--from", tmp_path / "w-1.log")
    assert values(plain, "kind") == ["Killed (SIGKILL) [killed]"]
