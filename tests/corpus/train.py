"""A training stand-in: gloo on the CPU, one all_reduce a step, with faults armed by the environment.

Runs in the workers only, by itself. `CORPUS_FAULTS` holds the faults as JSON (see `cases.Fault`), `CORPUS_WORKER` this
worker's name, `CORPUS_EVENTS` the folder for the truth: just before a process fails it writes there who
it is and what it is about to do. Nothing of this is ever printed: the log is what any training script leaves.
"""

from __future__ import annotations

import argparse
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
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # mypy would read all of torch
    torch: Any
    dist: Any
else:
    import torch
    import torch.distributed as dist

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
RANK = int(os.environ["RANK"])
WORKER = os.environ["CORPUS_WORKER"]
EVENTS = Path(os.environ["CORPUS_EVENTS"])

log = logging.getLogger("train")
#: Set by `agree_on_a_moment`: seconds since the epoch.
MOMENT = math.inf
#: The group of the steps' collectives, with its own timeout.
GROUP: Any = None


class ShardError(ValueError):
    """A sample that the reader cannot use."""


def count_start() -> int:
    """Which start of this local rank on this worker it is, from 0.

    torchelastic's own count is each agent's: it differs between workers in one and the same round.
    """
    path = EVENTS / f"starts.{WORKER}.{LOCAL_RANK}"
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size - 1


ROUND = count_start()
FAULTS = [
    fault
    for fault in json.loads(os.environ.get("CORPUS_FAULTS", "[]"))
    if fault["worker"] in (WORKER, None) and fault["local_rank"] in (LOCAL_RANK, None) and fault["round"] == ROUND
]


def armed(step: int) -> dict[str, Any] | None:
    """This process's fault at this step; -1 is before the process group exists."""
    return next((fault for fault in FAULTS if fault["step"] == step), None)


def tell_truth(fault: dict[str, Any]) -> None:
    """Who is about to fail, for the maker."""
    event = {
        "id": fault["id"],
        "event": fault["do"],
        "node": WORKER,
        "rank": RANK,
        "local_rank": LOCAL_RANK,
        "world_size": int(os.environ["WORLD_SIZE"]),
        "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "round": ROUND,
        "pid": os.getpid(),
        "step": fault["step"],
        "at_true": time.time(),
    }
    with (EVENTS / f"event.{WORKER}.{LOCAL_RANK}.{ROUND}.json").open("w") as file:
        json.dump(event, file)


def wait_for_lock(path: str) -> None:
    """Waits for somebody else's lock, for ever."""
    log.debug("waiting for %s", path)
    while True:
        time.sleep(1)


def decode(shard: int, tokens: int) -> None:
    """Checks one sample."""
    if tokens > 512:
        raise ShardError(f"shard {shard}: sample of {tokens} tokens, at most 512 fit")


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


def prefetch(batches: queue.Queue[int]) -> None:
    """The reader's thread: dies of a sample that it cannot use, and fills the queue no more."""
    decode(41, 640)
    batches.put(1)


def multiply() -> Any:
    """A layer whose input has another shape than its weight."""
    return torch.ones(4, 320) @ torch.ones(512, 8)


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
        case "disk":
            raise OSError(28, "No space left on device", "/checkpoints/step-400/optimizer.pt")
        case "nan":
            raise FloatingPointError(f"gradient norm is {math.nan} at rank {RANK}")
        case "chain":
            reload_schedule({"warmup": 1e-5, "phase-1": 3e-4})
        case "shape":
            multiply()
        case "settings":
            read_settings("settings/pretrain.json")
        case "import":
            __import__("fused_rotary_kernels")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(8)
        case "exit0":
            os._exit(0)
        case "exit3":
            log.info("watchdog: the data service is gone for good, leaving")
            os._exit(3)
        case "sys_exit":
            sys.exit("no licence for the tokenizer left, giving up")
        case "hang":
            wait_for_lock("/checkpoints/.lock")
        case "thread":
            batches: queue.Queue[int] = queue.Queue()
            threading.Thread(target=prefetch, args=(batches,), name="prefetch", daemon=True).start()
            batches.get()
        case "extra_gather":
            sizes = [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.all_gather(sizes, torch.ones(1), group=GROUP)
        case _:
            raise AssertionError(f"no such fault: {kind}")


def fetch(step: int) -> None:
    """The step's data; fails, if a fault is armed here. Tracebacks show these names: they give nothing away."""
    plan = armed(step)
    if plan is None:
        return
    if plan["at"] is not None:
        time.sleep(max(0.0, MOMENT + plan["at"] - time.time()))
    tell_truth(plan)
    read_batch(plan["do"])


def agree_on_a_moment() -> None:
    """A full second in the near future, the same for all ranks: faults with `at` come so much after it."""
    global MOMENT
    now = torch.tensor([time.time()], dtype=torch.float64)
    dist.all_reduce(now, op=dist.ReduceOp.MAX, group=GROUP)
    MOMENT = math.ceil(now.item()) + 1


def mutter() -> None:
    """What a good run may print: handled errors, scary words, a child that is killed."""
    try:
        socket_error = ConnectionResetError(104, "Connection reset by peer")
        raise RuntimeError("metrics not sent") from socket_error
    except RuntimeError:
        log.exception("metrics: will try again")
    log.error("CUDA out of memory while warming up with batch 64, going on with batch 32")
    log.warning("loss is nan at step 2, step skipped (scale 65536 -> 32768)")
    log.warning("Watchdog caught nothing. exitcode: 0, signal: none. Root Cause (first observed failure): none")
    child = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "30")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    log.error("data helper %d was Killed (signal 9), started anew", child)


def show(style: str, step: int, steps: int, loss: float) -> None:
    """One step's line, in one of the manners of training logs."""
    if style == "bars":
        done = step + 1
        bar = "█" * (12 * done // steps)
        end = "\n" if done == steps else ""
        sys.stderr.write(f"\rtrain: {100 * done // steps:3d}%|{bar:<12}| {done}/{steps} [loss={loss:.4f}]{end}")
        sys.stderr.flush()
        if step % 3 == 2:
            log.info("\x1b[32mcheckpoint\x1b[0m step \x1b[1m%d\x1b[0m", step)
    elif style == "json":
        record = {"ts": round(time.time(), 3), "level": "info", "rank": RANK, "step": step, "loss": round(loss, 4)}
        print(json.dumps(record), flush=True)
    elif style == "bare":
        if LOCAL_RANK == 0:
            print(f"iteration {step:4d}/{steps} | loss {loss:.3E} | lr 3.0E-04", flush=True)
    elif style == "plain":
        log.info("step %d/%d loss %.4f", step, steps, loss)
    else:
        raise ValueError(f"no such style: {style}")


def mark(step: int) -> None:
    """Tells the maker that this process has come so far."""
    if str(step) == os.environ.get("CORPUS_MARK_STEP"):
        (EVENTS / f"reached.{WORKER}.{LOCAL_RANK}").touch()


def train(options: argparse.Namespace) -> None:
    """The loop."""
    global GROUP
    fetch(-1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.init_timeout))
    GROUP = dist.new_group(timeout=timedelta(seconds=options.timeout))
    if options.style != "bare":
        log.info("rank %d of %d: local rank %d on %s", RANK, dist.get_world_size(), LOCAL_RANK, WORKER)
    agree_on_a_moment()
    weight = torch.zeros(64)
    for step in range(options.steps):
        mark(step)
        if options.chatty and step == 3:
            mutter()
        fetch(step)
        gradient = torch.full((64,), 1.0 / (step + 1)) + 0.01 * RANK
        if options.sync:
            dist.all_reduce(gradient, group=GROUP)
        weight -= 0.1 * gradient
        show(options.style, step, options.steps, float(gradient.mean()))
        time.sleep(options.pace)
    dist.barrier(group=GROUP)
    log.info("done after %d steps", options.steps)
    dist.destroy_process_group()


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds between two steps")
    parser.add_argument("--timeout", type=float, default=40, help="seconds for one collective")
    parser.add_argument("--init-timeout", type=float, default=40, help="seconds to find the other processes")
    parser.add_argument("--style", default="plain")
    parser.add_argument("--no-sync", dest="sync", action="store_false", help="no collective in the steps")
    parser.add_argument("--chatty", action="store_true", help="handled errors in the log")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {WORKER} r{RANK} %(name)s: %(message)s")
    train(options)


if __name__ == "__main__":
    if os.environ.get("CORPUS_RECORD"):
        from torch.distributed.elastic.multiprocessing.errors import record

        main = record(main)
    main()
