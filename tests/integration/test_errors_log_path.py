"""`atlctl errors --log-path`, as a user runs it on a local job."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.local import Registry, problem, registry
from tests.support import proc
from tests.unit.diagnosis.samples import PEER_GONE, STACK, block, entry

FAILED = "E1120 17:45:05.000000 1 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) "


def output(rank: int, words: str) -> str:
    """The output of a worker with one process that ends with this text."""
    said = "".join(f"[rank{rank}]: {line}\n" for line in words.splitlines())
    note = FAILED + f"local_rank: 0 (pid: {14 + rank}) of binary: /opt/venv/bin/python\n"
    return said + note + "\n".join(block(entry(rank=rank, local=0, pid=14 + rank))) + "\n"


CULPRIT = output(1, STACK)
VICTIM = output(0, "Traceback (most recent call last):\n" + PEER_GONE)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.home.joinpath("0.txt").write_text(VICTIM)
        own.home.joinpath("1.txt").write_text(CULPRIT)
        yield own


def start(jobs: Registry, name: str, script: str, *options: str) -> str:
    """Start a job of two workers that run until the test ends; returns after both have finished their script."""
    text = f"{script}; echo > done; exec sleep 1000".replace("HOME", str(jobs.home))
    jobs.start(name, 2, "sh", "-c", text, options=options)

    def done() -> bool:
        return len(jobs.exec(name, "--all", "--no-prefix", "--", "sh", "-c", "cat done").stdout) == 2

    assert proc.wait_until(done)
    return name


def found(jobs: Registry, *words: str) -> dict[str, Any]:
    data: dict[str, Any] = jobs.data("errors", *words)
    return data


def test_output_that_a_worker_also_writes_into_a_file_counts_once(jobs: Registry) -> None:
    name = start(jobs, "tee", "cat HOME/$RANK.txt 2>&1 | tee train.log")
    without, with_files = found(jobs, name), found(jobs, name, "--log-path", "*.log")
    assert without["verdict"] == "rank"
    assert (without["root_causes"][0]["worker"], without["root_causes"][0]["rank"]) == ("worker-1", 1)
    assert with_files == without


def test_output_that_is_only_in_a_file_is_found_there(jobs: Registry) -> None:
    name = start(jobs, "file", "mkdir logs; { echo started; cat HOME/$RANK.txt; } > 'logs/of it.log'; echo went on")
    assert found(jobs, name)["verdict"] == "none"
    data = found(jobs, name, "--log-path", "logs/*")
    [cause] = data["root_causes"]
    assert (data["verdict"], cause["worker"], cause["exception"]) == ("rank", "worker-1", "ValueError")
    proof = cause["evidence"][0]
    assert proof["file"] == "logs/of it.log"
    assert ("started\n" + CULPRIT).splitlines()[proof["line"] - 1].endswith("ValueError: bad magic in shard 3")
    text = jobs.cli("errors", name, "--log-path", "logs/*", "--exit-code")
    assert (text.code, text.stderr) == (1, b"")
    lines = text.stdout.decode()
    assert f"worker-1, logs/of it.log line {proof['line']}" in lines
    [command] = [line.partition("next")[2].strip() for line in lines.splitlines() if "atlctl exec" in line]
    run = jobs.cli(*shlex.split(command)[1:])
    assert "ValueError: bad magic in shard 3" in run.stdout.decode()


def test_no_match_is_no_error(jobs: Registry) -> None:
    name = start(jobs, "none", "cat HOME/$RANK.txt")
    run = jobs.cli("errors", name, "--log-path", "/nowhere/$(touch HOME/pwned)*.log")
    assert run.code == 0
    assert run.stderr == b"note: worker-[0-1]: no file matches /nowhere/$(touch HOME/pwned)*.log\n"
    assert b"root cause: rank 1 (local rank 0) on worker-1" in run.stdout


def test_names_and_contents_of_files_do_not_reach_the_terminal_as_they_are(jobs: Registry) -> None:
    evil = "printf 'a\\033]0;x\\007\\nb.log'"
    script = f"""cat HOME/$RANK.txt > "$({evil})"; mkfifo pipe.log; head -c 3000 /dev/urandom > "$({evil}).log" """
    name = start(jobs, "evil", script)
    run = jobs.cli("errors", name, "--log-path", "*.log", tty=True, columns=200)
    assert b"\x1b]" not in run.stdout
    assert b"\x07" not in run.stdout
    shown = run.stdout.decode()
    assert "a^[]0;x^G^Jb.log line 6" in shown
    assert " worker-[0-1]: pipe.log is not a regular file and was not opened" in shown
    assert " worker-[0-1]: a^[]0;x^G^Jb.log.log is not a log but binary data; it was not read" in shown


def test_a_file_that_all_workers_overwrote_is_recognised_and_changes_nothing(jobs: Registry, tmp_path: Path) -> None:
    name = start(jobs, "torn", "cat HOME/$RANK.txt")
    torn = tmp_path / "all.log"
    torn.write_bytes(b"\0" * 900 + CULPRIT.encode()[300:] + b"\n" + b"\0" * 80 + VICTIM.encode()[40:])
    run = jobs.cli("errors", name, "-o", "json", "--log-path", str(torn))
    shared, wrong = run.stderr.decode().splitlines()
    assert shared.startswith(f"note: worker-[0-1]: 2 workers share {torn};")
    assert wrong.startswith(f"note: worker-0: {torn} has ")
    assert "several processes wrote over each other in it" in wrong
    assert json.loads(run.stdout)["data"] == found(jobs, name)


def test_a_worker_that_has_ended_is_said(jobs: Registry) -> None:
    jobs.start("over", 2, "sh", "-c", f"cat {jobs.home}/$RANK.txt; exit 1")
    jobs.until("over", "Failed")
    run = jobs.cli("errors", "over", "--log-path", "*.log")
    assert run.code == 0
    assert run.stderr == b"note: worker-[0-1]: not running, so no files could be read there (--log-path)\n"
    assert b"root cause: rank 1 (local rank 0) on worker-1" in run.stdout


def test_what_cannot_be_read_makes_the_result_partial(jobs: Registry) -> None:
    tools = jobs.home / "few"
    tools.mkdir()
    for tool in ("sh", "cat", "sleep", "head", "wc", "cksum"):  # without a tail
        tools.joinpath(tool).symlink_to(str(shutil.which(tool)))
    name = start(jobs, "few", "cat HOME/$RANK.txt; echo x > a.log", "--env", f"PATH={tools}")
    run = jobs.cli("errors", name, "-o", "json", "--log-path", "a.log")
    document = json.loads(run.stdout)
    assert (run.code, document["status"]) == (0, "partial")
    assert document["data"] == found(jobs, name)
    assert sorted(item["worker"] for item in document["errors"]) == ["worker-0", "worker-1"]
    for item in document["errors"]:
        assert item["kind"] == "failed"
        assert item["message"].startswith("a.log could not be read: ")
        assert f"warning: {item['worker']}: {item['message']}" in run.stderr.decode()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "saved", "--log-path", "*.log"), "--log-path reads files inside a job's workers, and --from names"),
        (("none", "--log-path", ""), "--log-path: the pattern is empty"),
    ],
)
def test_usage(jobs: Registry, words: tuple[str, ...], message: str) -> None:
    run = jobs.cli("errors", *words)
    said, hint = problem(run.stderr)
    assert (run.code, run.stdout, said.startswith(message), bool(hint)) == (2, b"", True, True)
