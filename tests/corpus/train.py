"""A training stand-in: gloo on the CPU, one all_reduce a step, with faults armed by the environment.

Runs in the workers only, with `runtime.py` and `reading.py` beside it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import math
import os
import signal
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # mypy would read all of torch; the others lie beside this file in the workers
    torch: Any
    dist: Any
    reading: Any
    runtime: Any
else:
    import reading
    import runtime
    import torch
    import torch.distributed as dist

LOCAL_RANK, RANK, WORKER = runtime.LOCAL_RANK, runtime.RANK, runtime.WORKER
#: Faults that belong to the loop and its collectives; all others are in `reading.read_batch`.
FAULTS_OF_STEPS = ("dump", "extra_gather", "finish", "handler", "longer", "old_code", "short", "skip", "smaller")
#: Elements of a gradient.
SIZES = {"smaller": 48, "longer": 65}

log = logging.getLogger("train")
#: The group of the steps' collectives, with its own timeout.
GROUP: Any = None


def fetch(step: int) -> str:
    """The step's data; fails, if a fault is armed here. Tracebacks show these names: they give nothing away.

    A name out of FAULTS_OF_STEPS where the step goes on, but not as those of the peers; else nothing.
    """
    plan = runtime.fault_at(step)
    if plan in FAULTS_OF_STEPS:
        return collate(plan, step)
    if plan:
        reading.read_batch(plan)
    return ""


def collate(kind: str, step: int) -> str:
    """Makes the step's batch."""
    global GROUP
    match kind:
        case "extra_gather":
            sizes = [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.all_gather(sizes, torch.ones(1), group=GROUP)
        case "dump":
            try:
                reading.decode(23, 700)
            finally:  # closes the connections, so that the peers fail before this process says a word
                GROUP = None
                dist.destroy_process_group()
                time.sleep(4)
        case "handler":
            try:
                reading.decode(52, 618)
            except ValueError:
                log.error("batch %d is unusable, waiting for the others", step)
                dist.barrier(group=GROUP)
                raise
        case "old_code":
            reading.pack_samples(step)
        case "short":
            log.info("reader: no samples left after %d steps", step)
        case "skip":
            log.warning("loss is not finite here, step %d is left out", step)
    return kind


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


def pair_group(options: argparse.Namespace) -> Any:
    """The processes with this local rank, one of each worker (of equal size)."""
    world, local = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    mine = None
    for first in range(local):
        ranks = list(range(first, world, local))
        group = dist.new_group(ranks, timeout=timedelta(seconds=options.timeout))
        if RANK in ranks:
            mine = group
            log.info("pair group of rank %d: %s", RANK, ranks)
    return mine


def average(gradient: Any, pair: Any, options: argparse.Namespace) -> None:
    """The step's collectives."""
    try:
        if options.monitored:
            dist.monitored_barrier(GROUP, timedelta(seconds=options.timeout), wait_all_ranks=True)
        if pair is not None:
            dist.all_reduce(gradient, group=pair)
        if options.sync:
            dist.all_reduce(gradient, group=GROUP)
    except RuntimeError as error:
        if options.on_error == "wrap":
            raise RuntimeError(f"step failed on rank {RANK}, see above") from error
        if options.on_error == "leave":
            sys.exit(3)
        if options.on_error == "vanish":
            os._exit(3)
        raise


def leave(number: int, _frame: object) -> None:
    """On SIGTERM: as a careful script does."""
    log.warning("signal %d: checkpoint written, leaving", number)
    sys.exit(128 + number)


def train(options: argparse.Namespace) -> None:
    """The loop."""
    global GROUP
    fetch(-1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.init_timeout))
    # In pairs, only theirs runs into the timeout.
    GROUP = dist.new_group(timeout=timedelta(seconds=options.init_timeout if options.pairs else options.timeout))
    pair = pair_group(options) if options.pairs else None
    if options.style != "bare":
        shown = os.environ["LOCAL_RANK"]
        log.info("rank %d of %d: local rank %s on %s", RANK, dist.get_world_size(), shown, WORKER)
    runtime.agree_on_a_moment(GROUP)
    weight = torch.zeros(48)
    for step in range(options.steps):
        runtime.mark(step)
        if options.watchdog:
            faulthandler.dump_traceback_later(options.watchdog, exit=True)
        if options.chatty and step == 3:
            mutter()
        change = fetch(step)
        if change == "short":
            break
        if change == "finish":
            log.info("done after %d steps", step)
            dist.destroy_process_group()
            return
        if change == "skip":
            continue
        gradient = torch.full((SIZES.get(change, 64),), 1.0 / (step + 1)) + 0.01 * RANK + 1e-6 * weight.mean() ** 2
        average(gradient, pair, options)
        weight -= options.rate * gradient[: len(weight)]
        loss = float(gradient.mean())
        if not math.isfinite(loss):
            raise FloatingPointError(f"loss is {loss} at step {step}, learning rate {options.rate:g}")
        show(options.style, step, options.steps, loss)
        time.sleep(options.pace)
    dist.barrier(group=GROUP)
    log.info("done after %d steps", options.steps)
    dist.destroy_process_group()
    fetch(options.steps)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds between two steps")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--timeout", type=float, default=40, help="seconds for one collective")
    parser.add_argument("--init-timeout", type=float, default=40, help="seconds to find the other processes")
    parser.add_argument("--style", default="plain")
    parser.add_argument("--no-sync", dest="sync", action="store_false", help="no collective in the steps")
    parser.add_argument("--pairs", action="store_true", help="a collective of one process of each worker first")
    parser.add_argument("--monitored", action="store_true", help="a monitored barrier in each step")
    parser.add_argument(
        "--on-error", choices=("raise", "wrap", "leave", "vanish"), default="raise", help="of a collective"
    )
    parser.add_argument("--careful", action="store_true", help="write a checkpoint on SIGTERM")
    parser.add_argument("--watchdog", type=float, help="seconds after which a step that hangs is ended")
    parser.add_argument("--chatty", action="store_true", help="handled errors in the log")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {WORKER} r{RANK} %(name)s: %(message)s")
    if options.careful:
        signal.signal(signal.SIGTERM, leave)
    train(options)


if __name__ == "__main__":
    if os.environ.get("CORPUS_RECORD"):
        from torch.distributed.elastic.multiprocessing.errors import record

        main = record(main)
    main()
