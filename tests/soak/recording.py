"""`atlctl record` under load: logs of many workers that grow, connections that drop, a recorder that is killed.

Every line carries its worker and its number, so that what is lost or comes twice is counted. At the end one worker
fails, and two seconds later the pods that still run are deleted, as by the clean-up of a failed job.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from tests.apiserver.handle import Server
from tests.integration.local import Registry, registry
from tests.integration.stopping import TRAINING, Cluster
from tests.support.cli import popen_cli

JOB = "train"
LINE = 200
#: Seconds from the failure to the deletion of the other pods, and from the job's end to the verdict.
CLEAN_UP = 2.0
VERDICT = 5.0
PEAK_MB = 150.0
_NUMBERED = re.compile(rb"\S+ w(\d+) (\d{9}) x*")
FAILURE = """Traceback (most recent call last):
  File "/jobs/train.py", line 42, in <module>
    raise ValueError("shard 7 is damaged")
ValueError: shard 7 is damaged
E1122 04:00:00.000000 17 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 \
(pid: 21) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_04:00:00
  host      : train-worker-1
  rank      : 1 (local_rank: 0)
  exitcode  : 1 (pid: 21)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""


@dataclass
class Load:
    """What the workers print: `lines` each, over `seconds`. `drops`: of connections. `kill`: of the recorder, once.

    `clean_up`: seconds from the failure to the deletion of the other pods.
    """

    workers: int
    lines: int
    seconds: float
    drops: bool = True
    kill: bool = True
    clean_up: float = CLEAN_UP


@dataclass
class Figures:
    """What was measured: seconds, megabytes. `wrong` is empty where all was right."""

    verdict: float
    peak: float
    bytes: int
    wrong: list[str]


def stamp() -> bytes:
    nanoseconds = time.time_ns()
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z".encode()


class Recorder:
    """`atlctl record` as a child, and its peak memory over all its lives."""

    def __init__(self, folder: Path, out: Path, words: Sequence[str], env: dict[str, str]) -> None:
        self._folder, self._words, self._env = folder, [*words, "--out", str(out)], env
        self.peak = 0.0
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        with (self._folder / "stdout").open("wb") as out, (self._folder / f"stderr-{self.lives}").open("wb") as err:
            self.process = popen_cli(
                "record", *self._words, env=self._env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def watch(self) -> None:
        try:
            text = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return
        _, found, rest = text.partition("VmHWM:")
        self.peak = max(self.peak, int(rest.split()[0]) * 1024 / 1e6 if found else 0.0)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        return "".join((self._folder / f"stderr-{life}").read_text() for life in range(1, self.lives + 1))

    def verdict(self) -> str:
        return (self._folder / "stdout").read_text()


def in_cluster(server: Server, load: Load, folder: Path, words: Sequence[str] = ()) -> Figures:
    """A job on the test API server."""
    cluster = Cluster(server)
    cluster.pytorchjob(JOB, load.workers)
    files = [(folder / f"{index}.log").open("wb", buffering=0) for index in range(load.workers)]
    pods = [f"{JOB}-worker-{index}" for index in range(load.workers)]
    for pod, file in zip(pods, files, strict=True):
        server.log(pod, path=file.name, ended=False)
    if load.drops:
        # What a reader asks for again is up to two seconds of a log: an answer that is cut before that never ends.
        size = max(load.lines * LINE // 8, int(3 * load.lines * LINE / load.seconds))
        server.fault("drop-after", kind="log", probability=0.4, seed=1, bytes=size)
        server.fault("end-early", kind="log", probability=0.3, seed=2, bytes=size)
        server.fault("drop", kind="log", probability=0.1, seed=3)
    out = folder / "recording"
    recorder = Recorder(folder, out, [JOB, *words], {"KUBECONFIG": str(server.kubeconfig)})
    try:
        _print(load, files, recorder, out)
        for file in files[:1]:
            os.write(file.fileno(), b"".join(b"%s %s\n" % (stamp(), line.encode()) for line in FAILURE.split("\n")))
        (running,) = (server.get("Pod", pods[0]) or {})["status"]["containerStatuses"]
        ended = {"exitCode": 1, "reason": "Error", "containerID": running["containerID"]}
        main = {**running, "state": {"terminated": ended}}
        server.patch("Pod", pods[0], {"status": {"phase": "Failed", "containerStatuses": [main]}})
        server.log(pods[0], lines=[], ended=True)
        time.sleep(load.clean_up)
        for pod in pods[1:]:
            server.remove("Pod", pod)
        failed = {"type": "Failed", "status": "True", "reason": "PyTorchJobFailed"}
        server.patch("PyTorchJob", JOB, {"status": {"conditions": [failed]}}, api_version=TRAINING)
        begun = time.monotonic()
        return _ended(recorder, begun, out, load)
    finally:
        for file in files:
            file.close()
        if recorder.process.poll() is None:
            recorder.kill()


def in_registry(jobs: Registry, load: Load, folder: Path, words: Sequence[str] = ()) -> Figures:
    """A job of this machine, whose first worker fails in the end."""
    out = folder / "recording"
    script = folder / "print.py"
    script.write_text(_PRINTS)
    words_of_worker = (str(load.lines), str(load.seconds), str(LINE), FAILURE)
    jobs.start(JOB, load.workers, sys.executable, str(script), *words_of_worker)
    env = {name: value for name, value in jobs.env.items() if value is not None}
    recorder = Recorder(folder, out, [JOB, *words], env)
    try:
        until = time.monotonic() + load.seconds / 2
        while time.monotonic() < until:
            recorder.watch()
            time.sleep(0.02)
        if load.kill:
            recorder.kill()
            time.sleep(0.5)
            recorder.start()
        while "Running" in jobs.states(JOB):
            recorder.watch()
            time.sleep(0.1)
        return _ended(recorder, time.monotonic(), out, load)
    finally:
        if recorder.process.poll() is None:
            recorder.kill()


#: What a worker of this machine runs: lines, seconds, bytes of a line, last words.
_PRINTS = """
import os, sys, time
lines, seconds, size, failure = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
worker, begun, steps = int(os.environ["RANK"]), time.monotonic(), max(1, int(float(sys.argv[2]) * 10))
done = 0
for step in range(1, steps + 1):
    until = lines * step // steps
    text = "".join(f"w{worker} {number:09d} {'x' * (size - 48)}\\n" for number in range(done, until))
    sys.stdout.write(text)
    sys.stdout.flush()
    done = until
    time.sleep(max(0.0, begun + seconds * step / steps - time.monotonic()))
if worker == 0:
    print(failure, flush=True)
    sys.exit(1)
"""


def _print(load: Load, files: Sequence[BinaryIO], recorder: Recorder, out: Path) -> None:
    """All lines, evenly over the time; the recorder is killed in the middle.

    The last ones are printed once it has come near: what is measured is what a clean-up costs, not a slow machine.
    """
    steps = max(10, min(load.lines, int(load.seconds * 4)))
    _come_near(recorder, out, load, 0)
    begun = time.monotonic()
    done = 0
    for step in range(1, steps + 1):
        until = load.lines * step // steps
        if step == steps:
            _come_near(recorder, out, load, done)
        for index, file in enumerate(files):
            at = stamp()
            pad = b"x" * (LINE - len(at) - 18)
            block = b"".join(b"%s w%d %09d %s\n" % (at, index, number, pad) for number in range(done, until))
            os.write(file.fileno(), block)
        done = until
        recorder.watch()
        if load.kill and step == steps // 2:
            recorder.kill()
        if load.kill and step == steps // 2 + max(1, steps // 20):
            recorder.start()
        time.sleep(max(0.0, begun + load.seconds * step / steps - time.monotonic()))


def _come_near(recorder: Recorder, out: Path, load: Load, lines: int) -> None:
    """Waits, for two minutes at most, until all workers are followed and so many lines of each are recorded."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and recorder.process.poll() is None:
        recorder.watch()
        sizes = [sum(path.stat().st_size for path in _parts(out, index)) for index in range(load.workers)]
        if out.joinpath("atlctl.json").exists() and min(sizes) >= lines * (LINE - 4):
            return
        time.sleep(0.1)


def _ended(recorder: Recorder, begun: float, out: Path, load: Load) -> Figures:
    while recorder.process.poll() is None and time.monotonic() - begun < 120:
        recorder.watch()
        time.sleep(0.02)
    verdict = time.monotonic() - begun
    wrong = []
    if recorder.process.poll() != 0:
        wrong.append(f"exit code {recorder.process.poll()}")
    if "shard 7 is damaged" not in recorder.verdict():
        wrong.append(f"no verdict: {recorder.verdict()[:500]}")
    size = 0
    for index in range(load.workers):
        found, bytes_ = numbers(out, index)
        size += bytes_
        if found != list(range(load.lines)):
            lost = sorted(set(range(load.lines)) - set(found))
            twice = len(found) - len(set(found))
            wrong.append(f"worker-{index}: {len(lost)} lost (from {lost[:1]}), {twice} twice, of {load.lines}")
    if wrong:
        wrong.append(recorder.said()[-2000:])
    return Figures(verdict, recorder.peak, size, wrong)


def numbers(out: Path, index: int) -> tuple[list[int], int]:
    """The numbers of a worker's lines in their order, and the bytes of its files."""
    found: list[int] = []
    size = 0
    for path in _parts(out, index):
        data = path.read_bytes()
        size += len(data)
        found += [int(match[2]) for match in _NUMBERED.finditer(data) if int(match[1]) == index]
    return found, size


def _parts(out: Path, index: int) -> list[Path]:
    """The files of a worker's log, in their order."""
    first = out / f"worker-{index}.ts.log"
    more = sorted(out.glob(f"worker-{index}.part-*.ts.log"), key=lambda path: int(path.name.split(".")[1][5:]))
    return [first, *more] if first.exists() else more


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.recording", description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--mib", type=int, default=100, help="of each worker")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--local", action="store_true", help="a job of this machine")
    options = parser.parse_args()
    load = Load(options.workers, (options.mib << 20) // LINE, options.seconds, kill=not options.no_kill)
    words = ["--keep-mib", str(options.mib * 2)]
    with tempfile.TemporaryDirectory(prefix="atl-") as folder:
        os.environ["HOME"] = folder
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        if options.local:
            with registry() as jobs:
                figures = in_registry(jobs, load, Path(folder), words)
        else:
            with Server() as server:
                figures = in_cluster(server, load, Path(folder), words)
    if figures.verdict > VERDICT:
        figures.wrong.append(f"the verdict came {figures.verdict:.1f} s after the job's end")
    if figures.peak > PEAK_MB:
        figures.wrong.append(f"took {figures.peak:.0f} MB")
    sys.stderr.write(
        f"{load.workers} workers, {figures.bytes / 1e6:.0f} MB recorded, {figures.peak:.0f} MB of memory, "
        f"verdict after {figures.verdict:.1f} s, {len(figures.wrong)} wrong\n"
    )
    sys.stderr.write("".join(line + "\n" for line in figures.wrong))
    return int(bool(figures.wrong))


if __name__ == "__main__":
    sys.exit(main())
