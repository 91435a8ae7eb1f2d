"""The probe's parts, each on real files and processes."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atlctl.diagnosis.rankreport import parse_report
from atlctl.i18n import translated
from atlctl.remote.ranks import Finder
from atlctl.remote.sentences import plain
from atlctl.remote.stacks import dumping, main
from atlctl.remote.stacks.main import look_at
from tests.support import proc

SLEEP = "import time; time.sleep(4000)"
#: A value that no other process on this machine has.
#: The job's name differs from that of tests that run beside these.
MARKS = {"ATLCTL_STATE_DIR": "/nowhere", "ATLCTL_JOB": f"probe-{os.getpid()}", "ATLCTL_WORKER": "worker-0"}


def _process(**env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SLEEP], env={**os.environ, **MARKS, **env})


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Rank 3, the platform's RANK 1 (which counts workers), and rank 4 of another worker."""
    started = [
        _process(RANK="3", LOCAL_RANK="1", WORLD_SIZE="4"),
        _process(RANK="1"),
        _process(RANK="4", LOCAL_RANK="0", WORLD_SIZE="4", ATLCTL_WORKER="worker-1"),
    ]
    yield started
    for one in started:
        one.kill()
        one.wait()


def _finder(monkeypatch: pytest.MonkeyPatch) -> Finder:
    """A finder, as if this process had been started in the worker."""
    made = Finder()
    monkeypatch.setattr(made, "_own", {name.encode(): value.encode() for name, value in MARKS.items()})
    return made


def test_ranks_of_this_worker_alone(ranks: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    found = _finder(monkeypatch).ranks()
    assert [(one["rank"], one["pid"]) for one in found] == [(3, ranks[0].pid)]
    assert found[0]["environ"]["world_size"] == "4"
    assert found[0]["command"].endswith(SLEEP)


def test_of_two_with_one_rank_the_younger_counts(
    ranks: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(0.05)
    ranks.append(_process(RANK="3", LOCAL_RANK="1", WORLD_SIZE="4"))
    assert proc.wait_until(lambda: [one["pid"] for one in _finder(monkeypatch).ranks()] == [ranks[-1].pid])


def test_the_trainer_below_a_launcher_is_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = subprocess.Popen(
        ["sh", "-c", f"{sys.executable} -c '{SLEEP}'; true"],
        env={**os.environ, **MARKS, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
        start_new_session=True,
    )
    try:

        def found() -> list[int]:
            return [one["pid"] for one in _finder(monkeypatch).ranks()]

        assert proc.wait_until(lambda: found() not in ([], [shell.pid]))
        (pid,) = found()
        process = proc.read(pid)
        assert process is not None
        assert process.parent == shell.pid
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_one_look_shows_where_a_thread_waits(ranks: list[subprocess.Popen[bytes]]) -> None:
    assert proc.wait_until(lambda: look_at(ranks[0].pid)["main"]["syscall"] in ("clock_nanosleep", "230"))
    os.kill(ranks[0].pid, signal.SIGSTOP)
    assert proc.wait_until(lambda: look_at(ranks[0].pid)["main"]["state"] == "T")
    assert look_at(1 << 22) == {}


def test_without_headroom_no_stack_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("asked")

    monkeypatch.setattr(main, "Dumps", never)
    low = {"headroom": 5 << 20, "of": "cgroup", "needed": main.HEADROOM}
    monkeypatch.setattr(main, "_headroom", lambda: low)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"2")))
    main.main("0.01", "5", "0")
    report = parse_report(capsys.readouterr().out.encode())
    assert report is not None
    said = main._lack(low)
    assert said is not None
    assert report.problem == said
    assert said.startswith("only 5 MiB of memory are free, and 128 are needed")
    assert _shown(said) == "仅剩 5 MiB 可用内存，而读取调用栈需要 128 MiB：只读取了 /proc"


def _shown(problem: str) -> str:
    """A problem in Chinese, as received by the client."""
    report = parse_report(json.dumps(plain({"atlctl_stacks": 1, "problem": problem})).encode())
    assert report is not None
    assert report.problem == problem
    return translated(report.problem, "zh")


def test_a_py_spy_for_another_machine_is_refused_and_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    foreign = b"\x7fELF" + b"\0" * 14 + b"\xff\xff" + b"\0" * 100
    assert dumping.Dumps(foreign, 0.0).problem == "the py-spy brought along is for another kind of machine"
    own = Path(os.path.realpath(sys.executable)).read_bytes()[:4096]
    dumps = dumping.Dumps(own, time.monotonic() + 5)
    assert dumps.problem is None
    assert list(tmp_path.iterdir()) == []
    stack, why = dumps._spy_on({"pid": os.getpid(), "command": "python"})
    assert stack is None
    assert why.startswith("py-spy: ")
    assert _shown(why).startswith("py-spy：")
    dumps.close()


#: Like torch's worker server: a listening socket, `POST /handler/NAME`.
SERVER = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(os.environ["TORCH_WORKER_SERVER_SOCKET"] + "7")
server.listen()
while True:
    connection, _ = server.accept()
    asked = connection.recv(4096).split()[1]
    body = {b"/handler/dump_traceback": b"Thread 0x1 (most recent call first):\\n", b"/handler/fr_trace_json":
            b'{"entries": [' + b", ".join(b'{"record_id": %d}' % n for n in range(300)) + b"]}"}[asked]
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    connection.close()
"""


def test_torchs_worker_server_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's real socket is used: its script has appended the rank to the configured name."""
    env = {
        **os.environ,
        **MARKS,
        "RANK": "7",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "8",
        "TORCH_WORKER_SERVER_SOCKET": f"{tmp_path}/s",
    }
    process = subprocess.Popen([sys.executable, "-c", SERVER], env=env)
    try:
        assert proc.wait_until((tmp_path / "s7").exists)
        finder = _finder(monkeypatch)
        found = finder.ranks()
        dumping.Dumps(None, time.monotonic() + 5).ask(found, finder.environs)
        assert found[0]["stack"] == {"source": "torch", "text": "Thread 0x1 (most recent call first):\n"}
        assert [one["record_id"] for one in found[0]["recorder"]["json"]["entries"]] == list(range(44, 300))
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(dumping, "_SERVER_SECONDS", 0.2)
        dumping.Dumps(None, time.monotonic() + 1).ask(found, finder.environs)
        assert found[0]["problems"][0] == "torch's worker server: timed out"
        with pytest.raises(OSError, match="does not listen on /nowhere") as raised:
            dumping._server_of(process.pid, "/nowhere")
        assert _shown(dumping._why(raised.value)) == "该进程没有监听 /nowhere"
    finally:
        process.kill()
        process.wait()


#: As torch with NCCL does, but for rank 8, which hangs. Rank 9 has a pipe that another process has made.
PIPE = """
import os, time
number = os.environ["RANK"]
path = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + number + ".pipe"
os.mkfifo(path)
pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if number != "9" else -1
open(path + ".ready", "w").close()
while True:
    try:
        asked = number == "7" and os.read(pipe, 128)
    except BlockingIOError:  # a writer has opened the pipe and not yet written
        asked = False
    if asked:
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + number, "wb") as file:
            file.write(b"\\x80 a new dump")
    time.sleep(0.02)
"""


def test_torch_is_asked_for_a_dump_of_its_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace_7").write_bytes(b"\x80 an old dump")
    files = {
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
        "WORLD_SIZE": "12",
        "LOCAL_RANK": "0",
    }
    envs = [{**files, "RANK": "7"}, {**files, "RANK": "8"}, {**files, "RANK": "9"}]
    processes = [subprocess.Popen([sys.executable, "-c", PIPE], env={**os.environ, **MARKS, **env}) for env in envs]
    processes.append(_process(RANK="10", LOCAL_RANK="0", WORLD_SIZE="12", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/trace_"))
    monkeypatch.setattr(dumping, "_WRITE_SECONDS", 1.0)
    try:
        assert proc.wait_until(lambda: len(list(tmp_path.glob("pipe_*.ready"))) == 3)
        finder = _finder(monkeypatch)
        found = sorted(finder.ranks(), key=lambda rank: rank["rank"])
        dumping.Dumps(None, time.monotonic() + 20, allowed=False).ask(found, finder.environs, write=True)
        assert zlib.decompress(base64.b64decode(found[0]["recorder"]["zlib"])) == b"\x80 a new dump"
        assert [list(map(str, rank["problems"])) for rank in found] == [
            [],
            ["flight recorder: torch wrote no dump within 1 s"],
            [f"flight recorder: [Errno 6] No such device or address: '{tmp_path}/pipe_9.pipe'"],
            ["flight recorder: TORCH_NCCL_DEBUG_INFO_PIPE_FILE is not set"],
        ]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_dump_of_the_recorder_is_taken_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace_7").write_bytes(b"\x80 a dump")
    process = _process(RANK="7", LOCAL_RANK="0", WORLD_SIZE="8", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/trace_")
    try:
        assert proc.wait_until(lambda: Finder().environs.get(process.pid, {}).get(b"RANK") == b"7")
        finder = _finder(monkeypatch)
        found = finder.ranks()
        dumping.Dumps(None, time.monotonic() + 5).ask(found, finder.environs)
        assert zlib.decompress(base64.b64decode(found[0]["recorder"]["zlib"])) == b"\x80 a dump"
    finally:
        process.kill()
        process.wait()
