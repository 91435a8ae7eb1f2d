"""The parts of the probe of `slow`, on real processes, files and made-up programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlctl.diagnosis.rankreport import _stacks
from atlctl.remote.stacks import dumping, slow
from tests.support import proc

#: Threads named as gloo names them wait without a time limit, the last of `busy` with one; the main thread waits, or
#: sleeps as Python 3.8 does.
RANK = """
import select, sys, threading
lock = threading.Lock()
lock.acquire()
for number in range(10):
    seconds = 4000 if sys.argv[1] != "idle" and number == 9 else -1
    thread = threading.Thread(target=lock.acquire, kwargs={"timeout": seconds}, daemon=True)
    thread.start()
    open(f"/proc/self/task/{thread.native_id}/comm", "w").write("pt_gloo_runloop")
if sys.argv[1] == "asleep":
    select.select([], [], [], 4000)
lock.acquire()
"""


def _started(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RANK, *words])


@pytest.fixture
def ranks() -> Iterator[dict[str, int]]:
    running = {word: _started(word) for word in ("busy", "idle", "asleep")}
    try:
        yield {word: one.pid for word, one in running.items()}
    finally:
        for one in running.values():
            one.kill()
            one.wait()


def test_sample_shows_a_sleep_and_a_collective_of_one_of_many_groups_of_gloo(ranks: dict[str, int]) -> None:
    def sampled(word: str) -> tuple[Any, Any] | None:
        found = slow._sample(ranks[word], slow._gloo_threads(ranks[word]))
        return None if found is None else (found[2], found[6])

    expected = {"busy": ("futex", True), "idle": ("futex", False), "asleep": ("nanosleep", False)}
    assert proc.wait_until(lambda: {word: sampled(word) for word in ranks} == expected)
    assert slow._sample(1 << 22, []) is None


def test_kinds_are_counted_with_their_mounts() -> None:
    table = [{"path": "/data", "fs": "nfs"}, {"path": "/", "fs": "ext4"}]
    found: dict[Any, int] = {}
    for target in ("/data/x", "/data/x", "pipe:[7]", None):
        slow._count(found, ("python", "S", "read", None, None, target, True))
    slow._count(found, None)
    assert slow._kinds(found, table) == [
        ["python", "S", "read", None, None, "/data/x", True, "/data (nfs)", 2],
        ["python", "S", "read", None, None, "pipe:[7]", True, None, 1],
        ["python", "S", "read", None, None, None, True, None, 1],
    ]


def test_grown_is_the_difference_of_what_both_have() -> None:
    before = {"a": 1, "b": None, "c": {"x": 5}, "d": 3}
    after = {"a": 4, "b": 2, "c": {"x": 6, "y": 1}, "e": {"z": 1}, "d": None}
    assert slow._grown(before, after) == {"a": 3, "c": {"x": 1}, "e": {}}


def test_others_are_the_processes_beside_the_ranks() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = slow._ticks()
        assert proc.wait_until(lambda: any(pid == busy.pid for pid, _, _ in slow._others(before, set())), 30)
        assert all(pid != busy.pid for pid, _, _ in slow._others(before, {busy.pid}))
    finally:
        busy.kill()
        busy.wait()


def test_lines_are_those_that_collect_garbage_or_wait_for_a_gpu(tmp_path: Path) -> None:
    code = tmp_path / "train.py"
    code.write_text("import gc\n\ngc.collect()\nx = loss.item()\ny = f(out.to('cpu'))\nz = items(x)\n")
    os.mkfifo(tmp_path / "fifo")
    stack = {"counted": [
        [f"main ({code}:9);step ({code}:3)", 7], [f"main ({code}:3);step ({code}:4)", 5], ["odd", 3],
        [f"main ({code}:300)", 2], [f"main ({tmp_path}/fifo:1)", 2], [f"main ({tmp_path}/none:1)", 2],
        [f"main ({code}:5)", 2], [f"main ({code}:6)", 2],
    ]}  # fmt: skip
    syncs = [[str(code), 4], [str(code), 5]]
    assert slow._lines(os.getpid(), stack) == {"collects": [[str(code), 3]], "syncs": syncs}
    assert slow._lines(os.getpid(), None) == {"collects": [], "syncs": []}


SPY = """#!/bin/sh
pid= out=
while [ $# -gt 0 ]; do case $1 in --pid) pid=$2;; -o) out=$2;; esac; shift; done
echo progress; echo more >&2
[ -e {folder}/fails ] && { echo "Permission Denied: Try running again" >&2; exit 1; }
printf 'thread (%s): MainThread;main (/job/a;b.py:3);step (/job/x.py:7) 8\\n' $pid >$out
printf 'thread (9): other;x (/y:1) 80\\njunk\\n' >>$out
""".replace("{folder}", "$(dirname $0)")


def test_watch_counts_the_stacks_of_main_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(SPY)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found: list[dict[str, Any]] = [{"pid": pid, "command": "python", "stack": None} for pid in range(100, 106)]
    dumping.Dumps(None, time.monotonic() + 30).watch(found, {}, 1.0)
    for rank in found:
        (counted,) = rank["stack"]["counted"]
        assert counted[1] == 8
        assert rank["problems"] == []
        ((frames, count),) = _stacks(json.loads(json.dumps(rank["stack"])))
        assert (count, frames[0].function, frames[0].path, frames[0].line) == (8, "step", "/job/x.py", 7)
    (tmp_path / "fails").touch()
    dumping.Dumps(None, time.monotonic() + 30).watch(found[:1], {}, 1.0)
    assert found[0]["stack"] is None
    assert "py-spy may not read it" in found[0]["problems"][0]
    assert threading.active_count() < 50


def test_watch_without_py_spy_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found: list[dict[str, Any]] = [{"pid": 1 << 22, "command": "sh", "stack": None}]
    dumping.Dumps(None, time.monotonic() + 5).watch(found, {}, 0.1)
    assert found[0]["problems"] == ["there is no py-spy in the worker"]
    dumping.Dumps(None, time.monotonic() + 5, allowed=False).watch(found, {}, 0.1)
    assert found[0]["problems"] == []
