"""A small training loop on gloo, and every fault that a case may plan."""

from __future__ import annotations

import argparse
import ctypes
import datetime as dt
import faulthandler
import json
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:  # mypy would read all of torch
    from tests.corpus.launchers.scripts import witness

    torch: Any
    dist: Any
else:
    import torch
    import torch.distributed as dist
    import witness

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
#: How long a rank waits for the others: at the start, when a busy machine imports slowly, and in a collective.
START = dt.timedelta(seconds=120)
TIMEOUT = dt.timedelta(seconds=15)
STEP_SECONDS = 0.2
log = logging.getLogger("train")


class 样本校验失败(Exception):  # noqa: N801
    """A sample that cannot be used; an exception class as Chinese teams name them."""


class ShardError(Exception):
    """A shard that cannot be decoded."""


class Parser(argparse.ArgumentParser):
    """Reports an unknown argument as any script does."""

    def error(self, message: str) -> NoReturn:
        witness.record()
        super().error(message)


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of every script."""
    parser = Parser(description="train a small model")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--local_rank", type=int, default=-1, help="set by some launchers")
    return parser.parse_args(words)


def begin(rank: int, local_rank: int, size: int) -> None:
    """Before the process group exists: logging, settings, optional packages."""
    witness.place(rank, local_rank, size)
    form = witness.PLAN["format"].replace("{rank}", str(rank)).replace("{local_rank}", str(local_rank))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, force=True)
    faulthandler.enable()
    settings = read_settings()
    log.info("learning rate %s, %s steps of warm-up", settings["optimizer"]["lr"], settings["optimizer"]["warmup"])
    if witness.armed("import_error_all"):
        load_kernels()


def read_settings() -> dict[str, Any]:
    """The settings of the optimizer; a team renamed a key in one place only."""
    settings = {"optimizer": {"lr": 0.1, "warmup": 2}}
    if witness.armed("key_error_all"):
        witness.record()
        settings["optim"] = settings.pop("optimizer")
    return {"optimizer": settings["optimizer"]}


def load_kernels() -> None:
    """A package that the image does not have."""
    witness.record()
    import fused_rotary_kernels  # type: ignore[import-not-found]

    fused_rotary_kernels.register()


class Samples:
    """A data set. Faults of loader processes happen in it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.me = (witness.Me.rank, witness.Me.local_rank, witness.Me.size)

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> Any:
        if index == witness.STEP:
            witness.place(*self.me)
            if witness.armed("loader_killed"):
                witness.record()
                os.kill(os.getpid(), signal.SIGKILL)
            if witness.armed("loader_exception"):
                witness.record()
                raise ShardError(f"sample {index} of shard-00017.tar: unexpected end of data after 4096 bytes")
        return torch.full((4,), float(index + 1))


def loader(steps: int) -> Any:
    """Batches; by a process of the loader if a fault of it is planned."""
    children = 1 if witness.PLAN["fault"].startswith("loader_") else 0
    return torch.utils.data.DataLoader(Samples(steps), batch_size=None, num_workers=children)


def limit_waiting() -> None:
    """From now on collectives have the short timeout."""
    dist.distributed_c10d._set_pg_timeout(TIMEOUT, dist.group.WORLD)


def run(steps: int) -> None:
    """Trains; the process group exists already."""
    limit_waiting()
    log.info("rank %d of %d: local rank %d", witness.Me.rank, witness.Me.size, witness.Me.local_rank)
    weight = torch.zeros(4)
    for step, batch in enumerate(loader(steps)):
        loss = train_step(step, batch, weight)
        log.info("step %d/%d loss %.4f", step, steps, loss)
    dist.barrier()
    log.info("finished after %d steps", steps)


def train_step(step: int, batch: Any, weight: Any) -> float:
    """One step: a little work, then the gradients of all ranks are added."""
    before_step(step)
    time.sleep(STEP_SECONDS)
    loss = compute_loss(step, weight, batch)
    gradient = batch - weight
    if step == witness.STEP and witness.armed("size_mismatch"):
        witness.record()
        gradient = torch.cat([gradient, gradient])
    dist.all_reduce(gradient)
    weight += 0.1 * gradient[:4] / witness.Me.size
    return loss


def compute_loss(step: int, weight: Any, batch: Any) -> float:
    """The loss of this rank; training stops if it is not a number."""
    loss = float(((batch - weight) ** 2).mean())
    if step == witness.STEP and witness.armed("nan"):
        loss = math.nan
        witness.record()
    if not math.isfinite(loss):
        raise FloatingPointError(f"loss is {loss} at step {step}, stopping")
    return loss


def before_step(step: int) -> None:
    """Faults of this step."""
    if step in (1, 2, 4) and witness.PLAN["handled"] and witness.Me.rank in witness.PLAN["handled"]:
        read_with_retry(step)
    if step != witness.STEP:
        return
    if witness.PLAN["together"]:
        dist.barrier()
    witness.record("reached")
    for name, fault in FAULTS.items():
        if witness.armed(name):
            witness.record()
            fault(step)


def read_with_retry(step: int) -> None:
    """A read that fails at first: the traceback is logged, training goes on."""
    for attempt in (1, 2):
        try:
            if attempt == 1:
                read_remote(step)
        except ConnectionResetError:
            log.exception("shard %d: attempt %d failed, trying again", step, attempt)


def read_remote(step: int) -> None:
    raise ConnectionResetError(104, f"Connection reset by peer while reading shard-{step:05}.tar")


def check_tokens(step: int) -> None:
    raise ValueError(f"token id 50431 at position 17 of step {step} is outside the vocabulary of 50304")


def check_sample(step: int) -> None:
    raise 样本校验失败(f"第 {step} 步的样本缺少字段“标签”,无法继续训练")


def decode_shard(step: int) -> None:
    try:
        json.loads('{"text": "cut off')
    except json.JSONDecodeError as error:
        raise ShardError(f"shard {step} is not valid JSON lines") from error


def allocate(_step: int) -> None:
    raise torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate 1.50 GiB. GPU {witness.Me.local_rank} has a total capacity of "
        "79.10 GiB of which 312.19 MiB is free. Process 4127 has 78.78 GiB memory in use. Of the allocated memory "
        "75.02 GiB is allocated by PyTorch, and 2.91 GiB is reserved by PyTorch but unallocated."
    )


def check_quota(_step: int) -> None:
    print("quota of the checkpoint bucket is used up, giving up", flush=True)
    sys.exit(3)


def leave(_step: int) -> None:
    os._exit(7)


def read_pointer(_step: int) -> None:
    ctypes.string_at(0)


def abort(_step: int) -> None:
    os.abort()


def read_statistics(_step: int) -> None:
    (Path(__file__).parent / "stats" / "mean_std.json").read_text()


def sleep_for_ever(_step: int) -> None:
    time.sleep(3600)


def prefetch(step: int) -> None:
    """A thread reads ahead; when it dies, the main thread waits for its queue for ever."""
    ready: queue.Queue[int] = queue.Queue()
    threading.Thread(target=_read_ahead, args=(ready, step), name="prefetch", daemon=True).start()
    ready.get()


def _read_ahead(ready: queue.Queue[int], step: int) -> None:
    for index in shards(step):
        ready.put(index)


def shards(step: int) -> Iterator[int]:
    yield from ()
    raise IndexError(f"shard {step + 37} of 40 is out of range")


def check_labels(step: int) -> None:
    if witness.Me.rank % 2:
        raise RuntimeError(f"label file of step {step} has 511 rows, expected 512")
    raise AssertionError(f"attention mask of step {step} has shape (8, 1023), expected (8, 1024)")


#: Faults at the start of a step; the others are at their places above.
FAULTS = {
    "exception": check_tokens,
    "chinese_exception": check_sample,
    "chained": decode_shard,
    "cuda_oom": allocate,
    "exit_three": check_quota,
    "exit_silent": leave,
    "segfault": read_pointer,
    "abort": abort,
    "missing_file": read_statistics,
    "hang": sleep_for_ever,
    "thread_dies": prefetch,
    "two_fail": check_labels,
}
