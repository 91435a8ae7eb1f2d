from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.recording.feed import LEARNED, Overwritten
from atlctl.recording.lines import LineReader
from tests.support.pace import within

OVER = ": several processes wrote over each other in it, lines may be missing"


class Tees:
    """Several simultaneous `tee` processes on one file, each with its own offset, as with one in each worker."""

    def __init__(self, path, options=()):
        self.path = str(path)
        self._options = options
        self._running = []
        self._written = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for tee in self._running:
            tee.stdin.close()
            assert tee.wait(30) == 0

    def start(self):
        """Start another one, which truncates the file (without -a). Returns after that."""
        tee = subprocess.Popen(["tee", *self._options, self.path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        fds = f"/proc/{tee.pid}/fd"
        self._wait(lambda: any(self._opened(f"{fds}/{fd}") for fd in os.listdir(fds)))
        self._running.append(tee)
        self._written.append(0)
        return len(self._running) - 1

    def write(self, which, text):
        """Returns when the text is in the file, so a test controls the order."""
        data = text.encode()
        before = self._written[which]
        self._running[which].stdin.write(data)
        self._running[which].stdin.flush()
        self._written[which] += len(data)
        if "-a" in self._options:
            self._wait(lambda: os.path.getsize(self.path) == sum(self._written))
        else:
            self._wait(lambda: self.read()[before : before + len(data)] == data)

    def read(self):
        with open(self.path, "rb") as file:
            return file.read()

    def _opened(self, fd):
        try:
            return os.readlink(fd) == self.path
        except OSError:
            return False

    def _wait(self, reached):
        end = time.monotonic() + 10
        while not reached():
            assert time.monotonic() < end
            time.sleep(0.001)


def verdict(data, alone=True):
    reader = LineReader()
    found = Overwritten(alone=alone)
    for line in reader.feed(data) + reader.finish():
        found.feed_line(line)
    return found.verdict(reader.holes)


def step(number, rank, loss="0.25"):
    return f"step {number} rank {rank} learning rate 0.001 loss {loss}\n"


def summary(host, rank=0):
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n  <NO_OTHER_FAILURES>\n{'-' * 60}\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_17:45:05\n  host      : {host}\n"
        f"  rank      : {rank} (local_rank: 0)\n  exitcode  : 1 (pid: 12)\n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
        f"{'=' * 60}\n"
    )


def test_writers_that_overtake_each_other(tmp_path):
    with Tees(tmp_path / "train.log") as tees:
        first, second = tees.start(), tees.start()
        tees.write(second, "worker 1 is starting\n")  # so its lines start within lines of the other
        for block in range(6):
            for which in (first, second) if block % 2 else (second, first):
                tees.write(which, "".join(step(3 * block + number, which) for number in range(3)))
        found = verdict(tees.read())
    assert found is not None
    assert found.endswith(f" lines cut in the middle of a word{OVER}")


def test_the_rest_of_a_longer_log_behind_a_summary(tmp_path):
    """The most common case: worker 0 prints most, and a short log of another worker covers its beginning."""
    with Tees(tmp_path / "train.log") as tees:
        longer, shorter = tees.start(), tees.start()
        long = "".join(step(number, 0) for number in range(40))
        short = step(0, 4) + summary("worker-1", 4)
        ends = long.index("ning rate", long.index("step 30"))
        tees.write(longer, long)
        tees.write(shorter, "." * (ends - len(short) - 1) + "\n" + short)
        data = tees.read()
    assert b"=\nning rate 0.001 loss 0.25\nstep 31" in data
    assert verdict(data) == f"has 1 line cut in the middle of a word{OVER}"


def test_a_summary_torn_in_its_middle(tmp_path):
    with Tees(tmp_path / "train.log") as tees:
        longer, shorter = tees.start(), tees.start()
        tees.write(longer, "x" * 200 + "\n" + summary("worker-0"))
        tees.write(shorter, "y" * 40 + "\n" + summary("worker-1", 4))
        found = verdict(tees.read())
    assert found is not None
    assert found.endswith(OVER)


def test_summaries_of_two_hosts_in_one_workers_log(tmp_path):
    with Tees(tmp_path / "train.log", ["-a"]) as tees:
        first, second = tees.start(), tees.start()
        tees.write(first, step(1, 0) + summary("worker-0.train.ml.svc.cluster.local"))
        tees.write(second, step(1, 4) + summary("worker-1", 4))
        tees.write(first, summary("worker-0"))
        data = tees.read()
    assert verdict(data) == "has summaries of 2 hosts (worker-0, worker-1): several workers wrote into it"
    assert verdict(data, alone=False) is None  # a complete log of several workers


def test_tracebacks_over_tracebacks(tmp_path):
    def traceback(rank):
        where = "".join(f'[rank{rank}]:   File "/workspace/layer{n}.py", line {n}, in forward\n' for n in range(6))
        return f"[rank{rank}]: Traceback (most recent call last):\n{where}[rank{rank}]: RuntimeError: closed\n"

    agent = "E1120 17:45:05.757000 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed\n"
    with Tees(tmp_path / "train.log") as tees:
        first, second = tees.start(), tees.start()
        tees.write(second, "." * 99 + "\n")
        tees.write(first, traceback(0))
        tees.write(second, traceback(8))
        tees.write(first, agent * 2)
        data = tees.read()
    assert b"in forwa[rank8]: Traceback" in data
    assert verdict(data) == f"has 2 lines cut in the middle of a word{OVER}"


def test_a_late_writer_leaves_a_hole(tmp_path):
    with Tees(tmp_path / "train.log") as tees:
        first = tees.start()
        tees.write(first, step(1, 0) * 200)
        late = tees.start()
        tees.write(late, step(1, 4))
        tees.write(first, step(2, 0))
        data = tees.read()
    assert b"\0" * 1_000 in data
    assert verdict(data) == f"has 1 hole{OVER}"


@pytest.mark.parametrize(
    "cut",
    [
        "[rank1]: RuntimeError: [/src/gloo/transport/tcp/pair.cc:553] [rank2]: Traceback (most recent call last):",
        "Traceback (most recent call last[rank0]: Traceback (most recent call last):",
        "W1120 17:45:05.757000 1 torch/distributed/run.py:874] no erTraceback (most recent call last):",
        "[W1120 17:44:40.665371319 socket.cpp:207] [c10d] The hostn[W1120 17:44:40.665371319 socket.cpp:207] [c10d] x",
        "2026-11-20 18:04:24,386 - INFO - host=train2026-11-20 18:04:24,386 - INFO - rank 3",
        "2026-11-20 18:04:2026-11-20 18:04:24,386 - INFO - rank 3 - step 2",
        '  File "/opt/venv/lib/python3.11/site-packages/tor[W1120 17:56:28.356110624 socket.cpp:469] [c10d] wait',
        "  rank      : 1 (local_rank: 0)",
    ],
)
def test_one_cut_line_is_not_enough_but_two_are(cut):
    between = "a line like any other\n"
    assert verdict((between + cut + "\n" + between).encode()) is None
    two = between + cut + "\n" + between + cut.replace("rank1", "rank6") + "\n" + between
    assert verdict(two.encode()) is not None


ORDINARY = [
    "\r 10%|#         | 1/10 [00:01<00:09, 1.02it/s][rank7]: Traceback (most recent call last):",
    "stepstep 3 rank 1 learning rate 0.001 loss 0.5 4 rank 0 learning rate 0.001 loss 0.25",
    "learning ratestep 5 rank 1 learning rate 0.001 loss 0.5",
    "step 7 rank 0 learning rate2026-11-20 18:04:24,386 - INFO - rank 3 - step 2",
    "[rank1]: [rank1]: Traceback (most recent call last):",
    "[rank3]:[E1120 17:45:05.123456789 ProcessGroupNCCL.cpp:683] [Rank 3] Watchdog caught collective operation timeout",
    '[rank5]: RuntimeError: On WorkerInfo(id=1): ValueError("x\\nTraceback (most recent call last):\\n  File")',
    '[rank6]: RuntimeError: On WorkerInfo(id=2): ValueError("x\\nTraceback (most recent call last):\\n  File")',
    "[rank0]:     The above came from Traceback (most recent call last):",
    "2026-11-20 18:04:24,386 - INFO - resumed from run_2026-11-20 17:00:00,000 and (2026-11-20 17:00:00,000)",
    "ERROR: Traceback (most recent call last):",
    "a line of text without its end and [rank2]: RuntimeError: x",
    "训练开始 第 3 步",
]


@pytest.mark.parametrize("alone", [True, False])
def test_lines_that_run_together_are_ordinary(alone):
    steps = [step(number, rank).rstrip() for number in range(20) for rank in range(4)]
    mixed = [line for pair in zip(steps, ORDINARY * 6, strict=False) for line in pair]
    assert verdict("\n".join([*mixed, summary("worker-0"), *mixed]).encode(), alone) is None


def test_lines_that_often_run_together_are_no_measure():
    often = ["stepstep 3 rank 1 learning rate 0.001", "step 3 rank 1 learning rate 0.001", "epoch 1 begins now"] * 5
    assert verdict("\n".join([*often, "stepepoch 2 begins now", "stepepoch 2 begins anew"]).encode()) is None


def test_a_line_like_the_end_of_another_may_follow_a_summary():
    often = "reloading\nloading\n" * 5
    assert verdict((often + summary("worker-0") + "loading\n").encode()) is None
    assert verdict((often + summary("worker-0") + "oading\n").encode()) is not None


def test_summaries_of_several_workers_may_be_mixed():
    rows = [line for pair in zip(*(summary(f"worker-{n}").split("\n") for n in (0, 1)), strict=True) for line in pair]
    mixed = "\n".join(["a line", *rows]).encode()
    assert verdict(mixed, alone=False) is None
    assert verdict(mixed, alone=True) is not None


def test_a_full_pipe_cuts_a_rank_in_two_and_loses_nothing():
    halves = [
        "[rank1]:     return forward_ca[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/workspace/train.py", line 3, in fll(*args)',
        "[rank1]: RuntimeError: closed",
        "[rank2]:     return forwa[rank4]: Traceback (most recent call last):",
        "rd_call(*args)",
        "[rank2]: RuntimeError: closed",
    ]
    assert verdict("\n".join(halves).encode()) is None


def test_characters_that_are_cut():
    whole = "训练 第三步 完成"
    torn = whole.encode()[1:]
    assert verdict(b"start\n" + (whole.encode() + b"\n" + torn + b"\n") * 3) is not None
    assert verdict(b"start\n" + "训练失败 内存不足\n啊 1\n".encode("gbk") * 50) is None


def test_a_log_that_begins_in_the_middle_is_ordinary():
    """The container's log was rotated, or only the end was saved."""
    assert verdict(summary("worker-0").partition("  exitcode")[2].encode()) is None
    assert verdict(b"ng rate 0.001 loss 0.25\n" + "".join(step(n, 0) for n in range(20)).encode()) is None


def test_enough_is_learned_from_the_beginning():
    found = Overwritten(alone=True)
    for number in range(LEARNED):
        assert not found.full
        found.feed_line(step(number, 0).encode())
    assert found.full
    for line in ("rning rate 0.001 loss 0.5", "step 3 rank 1 learnstep 3 rank 0 learning rate 0.001 loss 0.25") * 5:
        found.feed_line(line.encode())
    assert found.verdict() is None  # no longer checked
    for line in (summary("worker-0") + "rning rate 0.001 loss 0.5").splitlines():
        found.feed_line(line.encode())
    assert found.verdict() is not None


@given(st.lists(st.binary(max_size=80)), st.booleans(), st.integers(0, 3))
def test_any_bytes_can_be_fed(lines, alone, holes):
    found = Overwritten(alone=alone)
    for line in lines:
        found.feed_line(line)
    assert (found.verdict(holes) is not None) >= (holes > 0)


def test_hostile_lines_take_no_time_and_no_memory():
    found = Overwritten(alone=True)
    start = time.process_time()
    for line in (b"[rank" + b"9" * 100_000, b"20" * 50_000, b"W1120 17:45:05.757000 " * 5_000, b"=" * 100_000) * 50:
        found.feed_line(line)
    for number in range(5_000):
        found.feed_line(b"  host      : h%d" % number)
        found.feed_line(b"[rank%d]: textE1120 17:45:05.757000 1" % number)
    text = found.verdict()
    assert within(time.process_time() - start, 2)
    assert text is not None
    assert len(text) < 500


def test_the_fixture_is_closed(tmp_path):
    with ExitStack() as stack:
        tees = stack.enter_context(Tees(tmp_path / "x"))
        tees.write(tees.start(), "a\n")
    assert tees.read() == b"a\n"
