"""The data side of the training stand-in: what goes wrong in one process, without its peers.

Lies beside `train.py` in the workers' folder. Names and texts are seen in tracebacks, so they give nothing away.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # mypy would read all of torch
    torch: Any
    DataLoader: Any
else:
    import torch
    from torch.utils.data import DataLoader

RANK = int(os.environ["RANK"])
SCHEDULE = {"phases": {"warmup": {"lr": 1e-5}, "phase-1": {"lr": 3e-4}}}

log = logging.getLogger("train")


class ShardError(ValueError):
    """A sample that the reader cannot use."""


class Samples:
    """A data set of which one sample is too long; `fatal` where reading it ends the process."""

    def __init__(self, fatal: bool) -> None:
        self.fatal = fatal

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == 5 and self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        decode(29, 801 if index == 5 else 12)
        return index


def wait_for_lock(path: str) -> None:
    """Waits for somebody else's lock, for ever."""
    log.debug("waiting for %s", path)
    while True:
        time.sleep(1)


def decode(shard: int, tokens: int) -> None:
    """Checks one sample."""
    if tokens > 512:
        raise ShardError(f"shard {shard}: sample of {tokens} tokens, at most 512 fit")


def tokenise(part: int) -> None:
    """One of the children that prepare the next part."""
    decode(60 + part, 700 * part)


def read_settings(path: str) -> dict[str, Any]:
    """The run's settings, a JSON object."""
    with open(path, encoding="utf-8") as file:
        settings: dict[str, Any] = json.load(file)
    return settings


def reload_schedule(table: dict[str, float]) -> float:
    """The learning rate of the next phase."""
    try:
        return table["phase-2"]
    except KeyError as error:
        raise RuntimeError(
            "schedule cannot be applied\n  phases known: warmup, phase-1\n  asked for: phase-2"
        ) from error


def next_rate(phase: str) -> float:
    """The learning rate of a phase, by way of two helpers."""

    def entry() -> dict[str, float]:
        def phases() -> dict[str, dict[str, float]]:
            return SCHEDULE["phases"]

        return phases()[phase]

    return entry()["lr"]


def prefetch(batches: queue.Queue[int]) -> None:
    """The reader's thread: dies of a sample that it cannot use, and fills the queue no more."""
    decode(41, 640)
    batches.put(1)


def watch_quota() -> None:
    """Ends the process when there is nothing left to read."""
    try:
        decode(33, 590)
    except ShardError:
        log.exception("reader: giving up")
        logging.shutdown()
        os._exit(1)


def multiply() -> Any:
    """A layer whose input has another shape than its weight."""
    return torch.ones(4, 320) @ torch.ones(512, 8)


def load_weights() -> None:
    """Reads a checkpoint into a model that has another width than the one that wrote it."""
    saved = {"0.weight": torch.zeros(32, 16), "0.bias": torch.zeros(32)}
    torch.nn.Sequential(torch.nn.Linear(16, 64)).load_state_dict(saved)


def load_batches(fatal: bool) -> None:
    """Reads the data set with two children."""
    for batch in DataLoader(Samples(fatal), batch_size=4, num_workers=2):
        log.debug("batch of %d", len(batch))


def read_batch(kind: str) -> None:
    """What each fault does; those that return let the training go on."""
    match kind:
        case "sample":
            decode(17, 733)
        case "unicode":
            raise ShardError("第 12 个分片已损坏：期望 4096 条，实际 4081 条 ⚠️")
        case "memory":
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 5.25 GiB. GPU 1 has a total capacity of 79.11 GiB "
                "of which 1.02 GiB is free."
            )
        case "device":
            raise RuntimeError(
                "CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some "
                "other API call, so the stacktrace below might be incorrect."
            )
        case "disk":
            raise OSError(28, "No space left on device", "/checkpoints/step-400/optimizer.pt")
        case "storage":
            raise OSError(5, "Input/output error", "/checkpoints/shards/part-00003.bin")
        case "upload":
            raise ConnectionError("metrics service: 503 Service Unavailable after 5 attempts")
        case "nan":
            raise FloatingPointError(f"gradient norm is {math.nan} at rank {RANK}")
        case "chain":
            reload_schedule({"warmup": 1e-5, "phase-1": 3e-4})
        case "nested":
            next_rate("phase-2")
        case "shape":
            multiply()
        case "weights":
            load_weights()
        case "save":
            torch.save({"weight": torch.zeros(8)}, "/checkpoints/step-3/model.pt")
        case "settings":
            read_settings("settings/pretrain.json")
        case "import":
            __import__("fused_rotary_kernels")
        case "interface":
            os.environ["GLOO_SOCKET_IFNAME"] = "eth7"
        case "loader":
            load_batches(fatal=False)
        case "loader_killed":
            load_batches(fatal=True)
        case "spawn":
            torch.multiprocessing.spawn(tokenise, nprocs=2)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(8)
        case "terminate":
            ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()
        case "abort":
            os.abort()
        case "exit0":
            os._exit(0)
        case "exit1":
            os._exit(1)
        case "exit3":
            log.info("watchdog: the data service is gone for good, leaving")
            os._exit(3)
        case "exit7":
            sys.exit(7)
        case "sys_exit":
            sys.exit("no licence for the tokenizer left, giving up")
        case "logged":
            watch_quota()
        case "hang":
            wait_for_lock("/checkpoints/.lock")
        case "thread":
            batches: queue.Queue[int] = queue.Queue()
            threading.Thread(target=prefetch, args=(batches,), name="prefetch", daemon=True).start()
            batches.get()
        case _:
            raise AssertionError(f"no such fault: {kind}")
