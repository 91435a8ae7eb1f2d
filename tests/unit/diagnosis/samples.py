"""Made-up texts in torchelastic's formats, and shortcuts to parse them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from atlctl.diagnosis.evidence import WorkerEvidence
from atlctl.diagnosis.logfacts import LogFacts, LogReader
from atlctl.diagnosis.signatures import Matcher, builtin
from atlctl.diagnosis.torchelastic import ErrorRecord, parse_error_file
from atlctl.jobs.model import State

DATA = Path(__file__).parent / "data"

HEADER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
NO_FILE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
STACK = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/x.py", line 367, in wrapper
    return f(*args, **kwargs)
  File "/jobs/train.py", line 20, in main
    step()
ValueError: bad magic in shard 3
"""
PEER_GONE = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:4242"


def entry(
    index=0, *, rank=0, local=0, code=1, pid=14, time="2026-11-20_17:45:05", signal=None, text=NO_FILE, file="<N/A>"
):
    """The rows of one entry in the format of torch 2.12 and later."""
    suffix = f" ({signal})" if signal else ""
    shown = text.replace("\n", "\n  ")
    return [
        f"[{index}]:",
        f"  time      : {time}",
        "  host      : train-worker-1",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: {pid}) {suffix}",
        f"  error_file: {file}",
        *f"  traceback : {shown}".split("\n"),
    ]


def block(root, others=(), title="train.py", width=60):
    """A summary in the format of torch 1.10 and later."""
    inner = [line for other in others for line in other] or ["  <NO_OTHER_FAILURES>"]
    return [
        HEADER,
        "=" * width,
        f"{title} FAILED",
        "-" * width,
        "Failures:",
        *inner,
        "-" * width,
        "Root Cause (first observed failure):",
        *root,
        "=" * width,
    ]


OLD_BLOCK = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
*****************************************
              train.py FAILED
=======================================
Root Cause:
[0]:
  time: 2021-09-13_22:17:30
  rank: 0 (local_rank: 0)
  exitcode: 1 (pid: 3333)
  error_file: /tmp/torchelastic_a/none_b/attempt_0/0/error.json
  msg: "{'message': 'KeyError: no such column', 'extraInfo': {'py_callstack': 'Traceback', 'timestamp': '1631542650'}}"
=======================================
Other Failures:
[1]:
  time: 2021-09-13_22:17:31
  rank: 1 (local_rank: 1)
  exitcode: -9 (pid: 3334)
  error_file: <N/A>
  msg: "Process failed with exitcode -9"
*****************************************""".splitlines()


@functools.cache
def matcher() -> Matcher:
    """The built-in signatures."""
    return Matcher(builtin().signatures)


def parse(lines) -> LogFacts:
    """The facts read from these lines (text or bytes), numbered from 1."""
    reader = LogReader(matcher())
    for number, line in enumerate(lines, 1):
        reader.feed(number, line if isinstance(line, bytes) else line.encode())
    return reader.facts()


def worker(name, lines, *, index=0, files=None, state=State.FAILED) -> WorkerEvidence:
    """A worker with these lines and error files."""
    return WorkerEvidence(name, index, log=parse(lines), error_files=files or {}, state=state)


def record(message="ValueError: x", time: int | None = 1763660699, stack: str | None = None) -> ErrorRecord:
    """The record of an error file in torch's format."""
    extra = {"py_callstack": stack or f"Traceback (most recent call last):\n{message}\n"}
    if time is not None:
        extra["timestamp"] = str(time)
    parsed, reason = parse_error_file(json.dumps({"message": {"message": message, "extraInfo": extra}}).encode())
    assert parsed is not None, reason
    return parsed
