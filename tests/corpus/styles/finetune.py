"""Fine-tuning with structured logs (loguru's form, JSON lines, rich) and its own manner of reporting errors.

`--flaky` and `--report` make healthy ranks print tracebacks, `--guard loud` lets every victim claim to be the cause.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # mypy would read all of torch
    torch: Any
    dist: Any
    runtime: Any
else:
    import runtime
    import torch
    import torch.distributed as dist

RANK = int(os.environ["RANK"])


class Log:
    """A logger in loguru's form or in JSON lines, neither of which torchelastic or Python writes by itself."""

    style = "json"

    def emit(self, level, message, exc=None):
        now = time.time()
        if self.style == "json":
            record = {
                "timestamp": round(now, 6),
                "severity": level,
                "rank": RANK,
                "logger": "finetune",
                "message": message,
            }
            if exc is not None:
                record["exc_info"] = "".join(traceback.format_exception(exc))
            print(json.dumps(record), file=sys.stderr, flush=True)
        else:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
            frame = sys._getframe(2)
            print(
                f"{stamp} | {level:<8} | {__name__}:{frame.f_code.co_name}:{frame.f_lineno} - {message}",
                file=sys.stderr,
                flush=True,
            )
            if exc is not None:
                print("".join(traceback.format_exception(exc)), file=sys.stderr, flush=True)

    def info(self, message):
        self.emit("INFO", message)

    def error(self, message, exc=None):
        self.emit("ERROR", message, exc)

    def critical(self, message, exc=None):
        self.emit("CRITICAL", message, exc)


log = Log()


def hook(kind, value, trace):
    """In place of `sys.excepthook`: the traceback becomes a record of the log."""
    log.critical(f"uncaught exception: {value}", value.with_traceback(trace))


def download(shard, broken):
    if broken:
        raise ConnectionResetError(104, "Connection reset by peer")
    return torch.full((32,), 1.0 + shard)


def fetch(step, flaky):
    """One batch; the object store is not always there."""
    for attempt in range(1, 4):
        try:
            return download(step, flaky and step == 1 and attempt < 3)
        except OSError as error:
            log.error(f"RuntimeError: shard {step} cannot be read, attempt {attempt}/3 failed, will retry", error)
            time.sleep(0.3)
    raise AssertionError("the third attempt returns")


def unpack(batch, step):
    """The batch's tensors; all faults are here."""
    change = runtime.fault_at(step, "batch")
    if change == "code":
        raise SystemExit(f"tokenizer.json does not match the shards (step {step})")
    if change == "exit0":
        os._exit(0)
    if change == "leave0":
        sys.exit(0)
    if change == "leave4":
        sys.exit(4)
    if change == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if change == "wait":
        while not Path("shards/.ready").exists():
            time.sleep(0.5)
    if change == "decode":
        return b"\x80caption".decode("utf-8")
    if change == "quiet":
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        raise ValueError("image has 5 channels")
    if change == "shard":
        Path(f"shards/{step:05d}-of-00128.tar").read_bytes()
    if change == "recursion":
        return flatten([[]])
    if change == "grow":
        hoard = []
        while True:
            hoard.append(torch.ones(8 * 2**20))
            time.sleep(0.05)
    return batch


def flatten(tree):
    """Never comes to an end."""
    return flatten([tree])


def report():
    """In a thread; its failure changes nothing."""
    time.sleep(0.4)
    raise TimeoutError("metrics endpoint 10.9.8.7:4317 did not answer within 0.4 s")


def close_wandb():
    """At the end of the process; its failure changes nothing."""
    raise BrokenPipeError(32, "Broken pipe")


def train(args):
    """The loop."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    log.info(f"initialised, world size {dist.get_world_size()}, host {os.uname()[1]}")
    config: list[Any] = [{"lr": 1e-4, "epochs": 3} if RANK == 0 else None]
    dist.broadcast_object_list(config, 0)
    runtime.agree_on_a_moment()
    if str(RANK) in args.report.split(","):
        threading.Thread(target=report, name="metrics", daemon=True).start()
        atexit.register(close_wandb)
    flaky = str(RANK) in args.flaky.split(",")
    for step in range(args.steps):
        runtime.mark(step)
        batch = unpack(fetch(step, flaky), step)
        if args.sync_every and step % args.sync_every == 0:
            dist.all_reduce(batch)
        log.info(f"step={step} loss={float(batch.mean()):.4f} lr={config[0]['lr']}")
        time.sleep(args.pace)
    dist.barrier()
    log.info("finished")
    dist.destroy_process_group()


def main():
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=40)
    parser.add_argument("--pace", type=float, default=0.15)
    parser.add_argument("--flaky", default="", help="ranks whose downloads fail twice")
    parser.add_argument("--format", choices=("json", "loguru", "rich"), default="json")
    parser.add_argument("--guard", choices=("none", "exit1", "exit3", "loud"), default="none")
    parser.add_argument("--sync-every", type=int, default=1)
    parser.add_argument("--report", default="", help="ranks that send metrics")
    parser.add_argument("--hook", action="store_true")
    args = parser.parse_args()
    faulthandler.enable()
    Log.style = args.format
    if args.hook:
        sys.excepthook = hook
    if args.format == "rich":
        Log.style = "loguru"
        from rich.traceback import install

        install(width=110)
    if args.guard == "none":
        train(args)
        return
    try:
        train(args)
    except Exception as error:  # noqa: BLE001
        log.error(f"FATAL: training failed on rank {RANK}: {error!r}", error)
        if args.guard == "loud":
            for line in (
                "!" * 60,
                "ROOT CAUSE: this rank died first, see the traceback above",
                "Segmentation fault? OOM? please check dmesg",
                "!" * 60,
            ):
                log.critical(line)
        if args.guard == "exit3":
            os._exit(3)
        sys.exit(1)


if __name__ == "__main__":
    if os.environ.get("CORPUS_RECORD"):
        from torch.distributed.elastic.multiprocessing.errors import record

        main = record(main)
    main()
