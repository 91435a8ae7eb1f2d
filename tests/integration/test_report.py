"""`atlctl report`, as a user runs it: for a real job or saved evidence, as a folder or an archive."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.local import Registry, problem, registry
from tests.integration.plain_ranks import SLEEP, script
from tests.support import proc
from tests.support.cli import popen_cli, run_cli
from tests.support.markup import read
from tests.support.saved import evidence, smoke_document
from tests.unit.diagnosis.samples import block, entry
from tests.unit.recording.test_read import VICTIM, interleaved

CANARY = "CANARY-4711-CANARY"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY.replace('-', 'x')}\n-----END RSA PRIVATE KEY-----"
KEY_CANARY = CANARY.replace("-", "x")


def report(*words, **options):
    return run_cli("report", *map(str, words), **options)


def everything(folder: Path) -> bytes:
    """All contents of a report's folder, including names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return b"\n".join(str(path).encode() + b"\n" + path.read_bytes() for path in files)


def same_verdict(folder: Path) -> dict[str, Any]:
    """The verdict of `errors --from` for the folder, which must equal `verdict.json`."""
    run = run_cli("errors", "--from", str(folder), "-o", "json")
    again = json.loads(run.stdout.replace(f"{folder}/".encode(), b""))["data"]
    kept: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    keys = ("verdict", "root_causes", "candidates", "cascade", "workers", "earlier", "remarks")
    assert {key: kept[key] for key in keys} == {key: again[key] for key in keys}
    return kept


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """failed: rank 3 of worker-1 fails, with an error file, and with secrets in every possible place."""
    with registry() as own:
        file = own.home / "run" / "torchelastic_x" / "none_y" / "attempt_0" / "1" / "error.json"
        file.parent.mkdir(parents=True)
        text = f"ValueError: x, hf_token='{CANARY}'"
        stack = f'Traceback (most recent call last):\n  File "train.py", line 1, in load\n    load()\n{text}\n'
        extra = {"timestamp": "1795196705", "py_callstack": stack, "api_key": CANARY}
        file.write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))
        rows = block(entry(rank=3, local=1, text=text, file=str(file)))
        culprit = [
            f"export WANDB_API_KEY={CANARY}",
            f"GET https://user:{CANARY}@proxy:3128/x",
            *KEY.split("\n"),
            "E1120 17:45:05.000000 1 torch/x.py:1] failed (exitcode: 1) local_rank: 1 (pid: 14) of",
            *rows,
        ]
        (own.home / "1").write_text("\n".join(culprit) + "\n")
        (own.home / "0").write_text("\n".join(VICTIM) + "\n")
        script = f'cat "{own.home}/$RANK"; exit 1'
        own.start(
            "failed", 2, "sh", "-c", script, "train.sh", "--api-key", CANARY, options=("--env", f"MY_TOKEN={CANARY}")
        )
        own.until("failed", "Failed")
        own.start("silent", 1, "sleep", "1000")
        yield own


@pytest.fixture
def saved(tmp_path):
    return evidence(tmp_path / "saved", 5, culprit=3)


def test_a_job_that_failed(jobs, tmp_path):
    folder = tmp_path / "report"
    run = jobs.cli("report", "failed", "--out", str(folder))
    assert run.code == 0, run
    assert run.stdout.decode().splitlines() == [
        f"{folder}/index.html",
        "root cause: rank 3 (local rank 1) on worker-1, certain",
    ]
    kept = same_verdict(folder)
    assert (kept["job"], kept["state"], kept["root_causes"][0]["worker"]) == ("failed", "Failed", "worker-1")
    (error_file,) = folder.rglob("error.json")
    assert error_file.relative_to(folder).parts[0] == "worker-1"
    assert "[redacted]" in error_file.read_text()
    page = read((folder / "index.html").read_text())
    assert page.problems == []
    assert "ValueError: x, hf_token='[redacted]'" in page.text
    assert "train.sh --api-key [redacted]" in page.text
    assert ("a", "href", "./worker-1.ts.log") in page.attributes
    assert "Consequences" in page.text


def test_no_secret_gets_into_it(jobs, tmp_path):
    """In logs, an error file, the workers' environment, and command-line arguments."""
    for name in ("folder", "archive.tar.gz"):
        run = jobs.cli("-vv", "--debug", "report", "failed", "--out", str(tmp_path / name), env={"API_TOKEN": CANARY})
        assert run.code == 0, run
        assert CANARY.encode() not in run.stdout + run.stderr
    with tarfile.open(tmp_path / "archive.tar.gz") as tar:
        tar.extractall(tmp_path / "out", filter="data")
    for folder in (tmp_path / "folder", tmp_path / "out" / "archive"):
        data = everything(folder)
        assert data.count(b"[redacted]") > 5
        for canary in (CANARY, KEY_CANARY):
            assert canary.encode() not in data


def test_everything_is_private_under_any_umask(jobs, tmp_path):
    before = os.umask(0)
    try:
        assert jobs.cli("report", "failed", "--out", str(tmp_path / "report")).code == 0
    finally:
        os.umask(before)
    modes = {
        path.is_dir(): stat.S_IMODE(path.stat().st_mode)
        for path in [tmp_path / "report", *tmp_path.rglob("report/**/*")]
    }
    assert modes == {True: 0o700, False: 0o600}


def test_a_job_without_a_failure(jobs, tmp_path):
    run = jobs.cli("report", "silent", "--out", str(tmp_path / "report"))
    assert run.code == 0, run
    assert run.stdout.decode().splitlines()[1] == "no failure in these logs"
    page = read((tmp_path / "report" / "index.html").read_text())
    assert page.problems == []
    assert "worker-0" in page.text


def test_a_hang_is_seen_and_told_where_it_comes_from(jobs, tmp_path):
    jobs.start("hangs", 2, "sh", "-c", f"echo begun; {script({2: SLEEP}, 2)}")
    assert proc.wait_until(lambda: len(jobs.running("time.sleep")) + len(jobs.running("Event")) >= 4)
    run = jobs.cli("report", "hangs", "--out", str(tmp_path / "report"))
    assert run.stdout.decode().splitlines()[1] == "root cause: rank 2 (local rank 0) on worker-1, a guess"
    text = read((tmp_path / "report" / "index.html").read_text()).text
    assert "hung in user code" in text
    for group in ("rank 2 on worker-1: hung in user code", "ranks 0-1,3 on worker-[0-1]"):
        assert group in text
    assert "atlctl stacks hangs" in text
    assert "the ranks were inspected while the job ran" in text
    kept = json.loads((tmp_path / "report" / "verdict.json").read_text())
    assert (kept["verdict"], kept["root_causes"][0]["category"]) == ("rank", "hang")


def test_an_interrupted_report_leaves_nothing(tmp_path):
    words = ("report", "--from", "-", "--out", str(tmp_path / "report"))
    with popen_cli(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdin is not None
        run.stdin.write(b"step 1\n")
        run.stdin.flush()
        assert proc.wait_until(lambda: list(tmp_path.glob(".atlctl-report-*/input.log")))
        run.send_signal(signal.SIGINT)
        assert run.wait(30) in (130, -signal.SIGINT)
    assert list(tmp_path.iterdir()) == []


def test_a_thousand_workers_give_a_page_of_bounded_size(tmp_path):
    saved = evidence(tmp_path / "saved", 1000, steps=2, words=f"ValueError: {'long ' * 500}")
    assert report("--from", saved, "--out", tmp_path / "report", timeout=100).code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert len(page) < 2_000_000
    found = read(page)
    assert found.problems == []
    assert "1000 workers in 2 lanes" in found.text
    assert "worker-999" in found.text


def test_no_such_job(jobs, tmp_path):
    run = jobs.cli("report", "nothing", "--out", str(tmp_path / "report"))
    assert run.code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_folder(saved, tmp_path):
    run = report("--from", saved, "--out", tmp_path / "report")
    assert (run.stderr, run.code) == (b"", 0)
    kept = same_verdict(tmp_path / "report")
    original = json.loads(run_cli("errors", "--from", str(saved), "-o", "json").stdout)["data"]
    assert original["root_causes"][0]["worker"] == kept["root_causes"][0]["worker"] == "worker-3"
    assert (kept["job"], kept["state"]) == ("train-7", "Failed")
    text = read((tmp_path / "report" / "index.html").read_text()).text
    for words in ("NodeNotReady", "gpu-03", "2.8.0+cu128", "lost its peer", "0 is 2026-11-20T17:46:00.250Z"):
        assert words in text


def test_a_report_is_evidence_itself(saved, tmp_path):
    assert report("--from", saved, "--out", tmp_path / "one").code == 0
    assert report("--from", tmp_path / "one", "--out", tmp_path / "two").code == 0
    assert same_verdict(tmp_path / "one")["root_causes"] == same_verdict(tmp_path / "two")["root_causes"]


def test_logs_from_standard_input(tmp_path):
    run = report("--from", "-", "--out", tmp_path / "report", stdin=interleaved().encode())
    assert run.code == 0, run
    assert same_verdict(tmp_path / "report")["root_causes"][0]["worker"] == "w-1"


def test_json_tells_where_it_is_and_what_it_says(saved, tmp_path):
    run = report("--from", saved, "--out", tmp_path / "report", "-o", "json")
    document = json.loads(run.stdout)
    data = document["data"]
    assert (document["command"], document["status"], data["verdict"]) == ("report", "success", "rank")
    assert (data["path"], data["index"]) == (str(tmp_path / "report"), str(tmp_path / "report" / "index.html"))
    assert (data["missing"], data["redacted"], data["job"]) == ([], 0, "train-7")
    assert data["bytes"] == sum(path.stat().st_size for path in (tmp_path / "report").rglob("*"))


def test_an_archive(saved, tmp_path):
    run = report("--from", saved, "--out", tmp_path / "r.tar.gz", "-o", "json")
    data = json.loads(run.stdout)["data"]
    path = tmp_path / "r.tar.gz"
    assert (data["path"], data["index"], data["bytes"]) == (str(path), None, path.stat().st_size)
    with tarfile.open(path) as tar:
        names = tar.getnames()
        tar.extractall(tmp_path / "out", filter="data")
    assert names[0] == "r"
    assert all(name == "r" or name.startswith("r/") for name in names)
    assert same_verdict(tmp_path / "out" / "r")["root_causes"][0]["worker"] == "worker-3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r.tar.gz", "saved"]


def test_the_default_name(saved, tmp_path):
    os.chdir(tmp_path)
    run = report("--from", saved)
    (made,) = tmp_path.glob("atlctl-report-saved-20*Z")
    assert run.stdout.decode().splitlines()[0] == f"{made.name}/index.html"


@pytest.mark.parametrize(
    "number", ["9" * 400, "-" + "9" * 5000, "1e400", "NaN", "-Infinity", "1e300", "9223372036854775807"]
)
def test_numbers_of_smoke_results_that_nothing_can_hold(saved, tmp_path, number):
    smoke = tmp_path / "smoke.json"
    smoke.write_text(re.sub(r"(?<=[\[ ])-?[0-9][0-9.e+-]*(?=[,}\]])", number, json.dumps(smoke_document(3))))
    assert smoke.read_text().count(number) > 10
    assert report("--from", saved, "--out", tmp_path / "report", "--smoke", smoke).code == 0


def test_smoke_results(saved, tmp_path):
    smoke = tmp_path / "smoke.json"
    smoke.write_text(json.dumps(smoke_document(5, words=f"token={CANARY}")))
    assert report("--from", saved, "--out", tmp_path / "report", "--smoke", smoke).code == 0
    text = read((tmp_path / "report" / "index.html").read_text()).text
    assert "Throughput from row to column" in text
    assert "have its network card looked at" in text
    assert CANARY.encode() not in everything(tmp_path / "report")
    # A folder with a report needs no option.
    assert report("--from", tmp_path / "report", "--out", tmp_path / "again").code == 0
    assert "Throughput from row to column" in read((tmp_path / "again" / "index.html").read_text()).text


def test_hostile_evidence(tmp_path):
    attack = "<script>alert(1)</script>\x1b[2J\u202e\"'>&"
    saved = evidence(tmp_path / "saved", 4, name="w<img src=x onerror=y>\x1b]0;{}", words=f"ValueError: {attack}")
    smoke = tmp_path / "smoke.json"
    smoke.write_text(json.dumps(smoke_document(4, name=f"{attack}{{}}", words=attack)))
    run = report("--from", saved, "--out", tmp_path / "report", "--smoke", smoke)
    assert run.code == 0, run
    assert b"\x1b" not in run.stdout + run.stderr
    page = read((tmp_path / "report" / "index.html").read_text())
    assert page.problems == []
    assert "<script>alert(1)</script>" in page.text


def test_chinese(saved, tmp_path):
    run = report("--from", saved, "--out", tmp_path / "report", env={"LC_ALL": "zh_CN.UTF-8"})
    assert "根因" in run.stdout.decode()
    page = read((tmp_path / "report" / "index.html").read_text())
    assert ("html", "lang", "zh-CN") in page.attributes
    assert "时间线" in page.headings
    assert "判断依据" in page.text
    assert page.texts.count("证据") == page.texts.count("时间线")  # the verdict has no row for the excerpts' content


@pytest.mark.parametrize("name", ["full", "file", "link"])
def test_nothing_is_overwritten(saved, tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    before = sorted(path.name for path in tmp_path.iterdir())
    run = report("--from", saved, "--out", tmp_path / name)
    assert run.code == 2
    assert "already exists" in problem(run.stderr)[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == (tmp_path / "full" / "x").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("job", "--from", "x"), 2),
        (("--no-files",), 2),
        (("--from", ".", "--from", "."), 2),
        (("--from", "nothing"), 3),
        (("--from", "."), 3),
        (("--from", ".", "--out", ""), 2),
        (("--from", ".", "--smoke", "nothing"), 3),
        (("--from", ".", "--smoke", "bad.json"), 2),
    ],
)
def test_usage(tmp_path, words, code):
    os.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{}")
    run = report(*words)
    assert run.code == code, run
    assert problem(run.stderr)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]
