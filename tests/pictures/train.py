"""A training for pictures: `train.py FAULT RANK`, in which that rank fails or hangs while it loads a batch."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def read_shard(name, step):
    if step < 20 or int(sys.argv[2]) != dist.get_rank():
        return torch.ones(64)
    if sys.argv[1] == "hang":
        time.sleep(10_000)
    time.sleep(0.5)
    raise ValueError(f"{name}: bad magic 00000000, expected 53485244")


def load_batch(step):
    return read_shard(f"shard-{dist.get_rank():04d}.bin", step)


def train(steps):
    for step in range(steps):
        batch = load_batch(step)
        dist.all_reduce(batch)
        if step % 10 == 0:
            print(f"step {step} loss {2.5 - step / 100:.3f}", flush=True)
        time.sleep(0.02)


@record
def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    train(100_000)


if __name__ == "__main__":
    # An agent that notices the failure first would end a rank before its report.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        main()
    except Exception as error:  # noqa: BLE001
        # A cause is older than its consequences: the connections to the peers stay for a moment.
        sys.excepthook(type(error), error, error.__traceback__)
        time.sleep(1.2)
        os._exit(1)
