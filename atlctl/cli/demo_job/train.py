"""Training script of the demo job: a small data-parallel regression on the CPU over gloo, one data shard per rank.

Run by torchrun in the demo's workers, never imported. A fault is released from outside: when the file
named by ATLCTL_DEMO_FAULT_FILE appears, the rank named by ATLCTL_DEMO_FAULT_RANK finds its shard damaged
and fails while it loads a batch; the other ranks are then waiting for it in the gradient all-reduce.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from array import array
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

MAGIC = b"SHRD"
FEATURES = 32
BATCH = 16
BATCHES_PER_SHARD = 64
ROW = FEATURES + 1  # the features and the target

LEARNING_RATE = 0.05

#: Seconds a step takes at least: keeps the demo light on a small machine.
STEP_PAUSE = 0.05
#: Seconds the faulty rank spends before it fails, so that the others are inside the collective by then.
SLOW_READ = 0.3
#: Seconds between a rank's error and its end; more than 1, since torchelastic's error files have whole seconds.
LINGER = 1.1
#: Seconds a rank waits for its peers before it gives up by itself.
PEER_TIMEOUT = 120


class Shard:
    """One rank's data: a file of a magic number and float32 rows. Read again for every batch."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(BATCHES_PER_SHARD * BATCH, FEATURES, generator=generator)
        target = features.sum(dim=1, keepdim=True) / FEATURES**0.5
        rows = torch.cat([features, target], dim=1)
        # Not by way of numpy, which PyTorch does not bring along.
        path.write_bytes(MAGIC + array("f", rows.flatten().tolist()).tobytes())

    def load_batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and targets of one step. Raises ValueError when the file is damaged."""
        size = BATCH * ROW * 4
        with self.path.open("rb") as file:
            magic = file.read(len(MAGIC))
            if magic != MAGIC:
                raise ValueError(f"{self.path.name}: bad magic {magic.hex()}, expected {MAGIC.hex()}")
            file.seek(step % BATCHES_PER_SHARD * size, os.SEEK_CUR)
            rows = torch.frombuffer(bytearray(file.read(size)), dtype=torch.float32).view(BATCH, ROW)
        return rows[:, :FEATURES], rows[:, FEATURES:]

    def damage(self) -> None:
        """Overwrite the magic number, as a broken copy of the data set would."""
        with self.path.open("r+b") as file:
            file.write(bytes(len(MAGIC)))


class Fault:
    """The fault that the demo may inject into this rank."""

    def __init__(self, rank: int) -> None:
        chosen = os.environ.get("ATLCTL_DEMO_FAULT_RANK") == str(rank)
        self.file = os.environ.get("ATLCTL_DEMO_FAULT_FILE") if chosen else None

    @property
    def released(self) -> bool:
        return self.file is not None and os.path.exists(self.file)


def say(text: str) -> None:
    # One write per line: the ranks of a worker share its standard output.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def update(model: torch.nn.Module) -> None:
    """A step of SGD with the mean of all ranks' gradients.

    DDP and torch.optim do the same, but import torch's compiler: two seconds of CPU time for each process.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            gradient = parameter.grad
            assert gradient is not None
            dist.all_reduce(gradient)
            parameter -= LEARNING_RATE / dist.get_world_size() * gradient
            parameter.grad = None


def train(rank: int, steps: int, print_every: int) -> None:
    """Train for `steps` steps, or until the launcher is gone."""
    torch.manual_seed(0)  # the same model on every rank
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    shard = Shard(Path(f"shard-{rank:04d}.bin"), seed=rank)
    fault = Fault(rank)
    launcher = os.getppid()
    for step in range(steps):
        if os.getppid() != launcher:
            raise SystemExit("the launcher is gone")
        if fault.released:
            time.sleep(SLOW_READ)
            shard.damage()
        features, target = shard.load_batch(step)
        loss = torch.nn.functional.mse_loss(model(features), target)
        loss.backward()  # type: ignore[no-untyped-call]
        update(model)
        if step % print_every == 0:
            say(f"step {step} loss {loss.item():.4f} rank {rank}")
        time.sleep(STEP_PAUSE)


@record
def main() -> None:
    parser = argparse.ArgumentParser(description="train a small model with DDP on the CPU")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--print-every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=PEER_TIMEOUT))
    rank, world = dist.get_rank(), dist.get_world_size()
    say(f"joined: rank={rank} world={world} local_rank={os.environ.get('LOCAL_RANK', 0)}")
    train(rank, options.steps, options.print_every)
    dist.destroy_process_group()
    say(f"done: rank={rank}")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001
        # The error is on record, by @record. The rank keeps its connections for a moment more, so that no peer's
        # complaint is as old as the cause. Then it leaves without the interpreter's clean-up, in which gloo's threads
        # sometimes crash the process: that SIGSEGV would look like another cause.
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        time.sleep(LINGER)
        os._exit(1)
