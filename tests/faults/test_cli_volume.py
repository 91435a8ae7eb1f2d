"""Large output, slow readers, long lines: every byte arrives and memory stays bounded."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local import Registry, objects, registry
from tests.support.pace import within

WORKERS = 64
EACH = 4_000_000
#: The same limit as in `make bench`.
MEMORY = 150 << 20


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("many", WORKERS)
        own.start("four", 4)
        yield own


def peak(pid: int) -> int:
    """The process's peak memory in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def read_slowly(run: subprocess.Popen[bytes], seconds: float) -> Iterator[bytes]:
    """Sleep first, so that all buffers fill up, then read."""
    assert run.stdout is not None
    time.sleep(seconds)
    while chunk := os.read(run.stdout.fileno(), 1 << 20):
        yield chunk


def test_64_workers_with_a_slow_reader_stay_in_bounds_and_every_line_arrives(jobs: Registry) -> None:
    script = f'yes "$RANK this line is forty bytes long, or so" | head -c {EACH}'
    most, counted, rest = 0, Counter[bytes](), b""
    with jobs.popen("exec", "-j", "many", "--all", "--", "sh", "-c", script, stdout=-1, stderr=-1) as run:
        for number, chunk in enumerate(read_slowly(run, 1.0)):
            *lines, rest = (rest + chunk).split(b"\n")
            counted.update(lines)
            if number % 50 == 0:
                most = max(most, peak(run.pid))
        assert run.stderr is not None
        assert run.stderr.read() == b"ok: worker-[0-63] (64)\n"
    counted.update([rest])
    assert run.returncode == 0
    assert 0 < most < MEMORY
    for worker in range(WORKERS):
        line = b"%d this line is forty bytes long, or so" % worker
        whole, cut = divmod(EACH, len(line) + 1)
        assert counted[b"worker-%d: %s" % (worker, line)] == whole
        assert not cut or counted[b"worker-%d: %s" % (worker, line[:cut])] == 1


@pytest.mark.parametrize("form", [("--gather",), ("--output-dir", "out")], ids=" ".join)
def test_64_workers_stay_in_bounds_in_forms_that_hold_output(jobs: Registry, form: tuple[str, ...]) -> None:
    script = f"head -c {EACH} /dev/urandom | base64"
    most, digest, size = 0, hashlib.sha256(), 0
    with jobs.popen("exec", "-j", "many", "--all", *form, "--", "sh", "-c", script, stdout=-1, stderr=-1) as run:
        for number, chunk in enumerate(read_slowly(run, 0)):
            size += len(chunk)
            digest.update(chunk)
            if number % 100 == 0:
                most = max(most, peak(run.pid))
        assert run.stderr is not None
        stderr = run.stderr.read()
    assert (run.returncode, stderr) == (0, b"ok: worker-[0-63] (64)\n")
    if form == ("--gather",):
        assert size > WORKERS * EACH * 4 // 3
        assert 0 < most < MEMORY, most
    else:
        assert sum(path.stat().st_size for path in Path("out").iterdir()) > WORKERS * EACH * 4 // 3


def test_a_slow_reader_of_json_gets_every_line(jobs: Registry) -> None:
    rest = b""
    lines: list[bytes] = []
    with jobs.popen("exec", "-j", "four", "--all", "-o", "json", "seq", "20000", stdout=-1) as run:
        for chunk in read_slowly(run, 0.5):
            *whole, rest = (rest + chunk).split(b"\n")
            lines += whole
    assert (run.returncode, rest) == (0, b"")
    found = [json.loads(line) for line in lines]
    assert found[-1]["type"] == "summary"
    for worker in range(4):
        own = [item["data"] for item in found if item["type"] == "output" and item["worker"] == f"worker-{worker}"]
        assert own == [f"{number}\n" for number in range(1, 20001)]


def test_a_reader_that_sleeps_holds_up_neither_stderr_nor_ctrl_c(jobs: Registry) -> None:
    import signal

    script = "yes | head -c 50000000; echo late >&2"
    with jobs.popen("exec", "-j", "four", "-w", "0", "--", "sh", "-c", script, stdout=-1, stderr=-1) as run:
        while not any(process.command.startswith("head -c") for process in jobs.running("head -c 50000000")):
            time.sleep(0.05)
        time.sleep(0.3)
        begun = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert run.wait(30) == 130
        assert within(time.monotonic() - begun, 20)
    assert not jobs.running("head -c 50000000")


def test_one_stream_full_while_the_other_is_read(jobs: Registry) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' e >&2; echo; echo out; sleep 0.2; echo end"
    run = jobs.exec("four", "-w", "0", "--", "sh", "-c", script)
    assert run.stdout == b"\nout\nend\n"
    assert run.stderr == b"e" * 3_000_000


def test_stderr_after_the_end_of_stdout(jobs: Registry) -> None:
    run = jobs.exec("four", "--all", "-q", "--", "sh", "-c", "echo out; exec >&-; sleep 0.3; echo err >&2")
    assert run.stdout.count(b": out\n") == 4
    assert run.stderr.count(b": err\n") == 4


LONG = 10_000_000


@pytest.mark.parametrize("form", ["pipe", "json", "terminal"])
def test_a_line_of_ten_megabytes_stays_one_line(jobs: Registry, form: str) -> None:
    script = f"head -c {LONG} /dev/zero | tr '\\0' x; echo; echo short"
    words = ("four", "-w", "0-1", *(("-o", "json") if form == "json" else ()), "--", "sh", "-c", script)
    if form == "terminal":
        words = (*words[:2], "0", *words[3:])  # terminals are slow readers
        script = script.replace(str(LONG), str(LONG // 5))
        run = jobs.exec(*words[:-1], script, tty=True)
        assert run.stdout == b"x" * (LONG // 5) + b"\r\nshort\r\n"
        return
    run = jobs.exec(*words)
    assert run.code == 0
    if form == "json":
        data = [item["data"] for item in objects(run.stdout) if item["type"] == "output"]
        assert sorted(map(len, data)) == [6, 6, LONG + 1, LONG + 1]
    else:
        lines = run.stdout.splitlines()
        assert sorted(map(len, lines)) == [15, 15, LONG + 10, LONG + 10]
        assert all(line.startswith((b"worker-0: ", b"worker-1: ")) for line in lines)


def test_a_long_line_of_a_log_stays_one_line(jobs: Registry) -> None:
    jobs.start("long", 1, "sh", "-c", f"head -c {LONG} /dev/zero | tr '\\0' x; echo; echo short")
    jobs.until("long", "Succeeded")
    assert jobs.cli("logs", "long").stdout == b"x" * LONG + b"\nshort\n"


def test_a_child_that_keeps_the_pipe_open_holds_nobody_up(jobs: Registry) -> None:
    begun = time.monotonic()
    run = jobs.exec("four", "-w", "0", "--", "sh", "-c", "sleep 982 & echo started")
    assert (run.stdout, run.code) == (b"started\n", 0)
    assert within(time.monotonic() - begun, 20)
    assert b"later output not shown: worker-0 (1)" in run.stderr


def test_output_that_does_not_fit_on_the_disk_is_no_success(jobs: Registry) -> None:
    def full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    words = ("exec", "-j", "four", "-w", "0", "--gather", "--", "head", "-c", "70000000", "/dev/zero")
    with jobs.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=full_disk) as run:
        stdout, stderr = run.communicate(timeout=40)
    assert len(stdout) < 70_000_000
    assert b"output truncated: worker-0 (1)\n" in stderr
    assert run.returncode == 1
