"""GPT pretraining in Megatron-LM's manner: tensor x data parallel groups, a sharded optimizer, one line a step.

Only the first and the last rank print, and each collective concerns a part of the ranks.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import time
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

_TP = None
_DP = None
WIDTH = 16


def print_rank_0(message):
    if dist.get_rank() == 0:
        print(message, flush=True)


def print_rank_last(message):
    if dist.get_rank() == dist.get_world_size() - 1:
        print(message, flush=True)


class Layout:
    """What a kernel assumes of its input; another number of rows makes a gradient of a wrong shape."""

    rows = WIDTH


class ColumnParallelLinear(torch.autograd.Function):  # type: ignore[misc]
    """A layer with its own backward, which has a collective of the tensor parallel group in it."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        total = grad @ weight.t()
        dist.all_reduce(total, group=_TP)
        return total, x[:, : Layout.rows].t() @ grad


def initialize_model_parallel(tp, dp, timeout):
    """The groups that this process is in, as Megatron-LM makes them: neighbours in one tensor parallel group."""
    global _TP, _DP
    world = dist.get_world_size()
    assert world == tp * dp, (
        f"world size ({world}) is not divisible by tensor_model_parallel_size ({tp}) x data_parallel_size ({dp})"
    )
    for i in range(dp):
        ranks = list(range(i * tp, (i + 1) * tp))
        group = dist.new_group(ranks, timeout=timeout)
        if dist.get_rank() in ranks:
            _TP = group
    for i in range(tp):
        ranks = list(range(i, world, tp))
        group = dist.new_group(ranks, timeout=timeout)
        if dist.get_rank() in ranks:
            _DP = group


class IndexedDataset:
    """Tokens in a memory-mapped file."""

    def __init__(self, folder):
        self.path = Path(folder, f"c4_text_document_{os.environ['LOCAL_RANK']}.bin")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self.path.write_bytes(bytes(range(256)) * 512)
        with self.path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)

    def get(self, index, length):
        begin = 4096 * (index + 1)
        return self.map[begin : begin + length]


def get_batch(dataset, step, args):
    """One batch; most faults are here."""
    length = args.seq_length
    change = runtime.fault_at(step, "batch")
    if change == "bus":
        os.truncate(dataset.path, 0)
    if change == "long":
        length *= 2**10
    if change == "stuck":
        index_lock = dataset.path.with_suffix(".lock")
        index_lock.touch()
        while index_lock.exists():
            time.sleep(0.5)
    if change == "slow":
        time.sleep(6)
    tokens = dataset.get(step, args.seq_length)
    x = torch.frombuffer(bytearray(tokens), dtype=torch.uint8).float().reshape(-1, WIDTH) / 255
    mask = torch.ones(length, length) if length > args.seq_length else torch.ones(1)
    if change == "nan":
        x[2, 3] = float("nan")
    if change == "rows":
        Layout.rows = WIDTH - 3
    return x * mask[0]


def check_local_grad(grad):
    """Megatron-LM's check, in its words."""
    norm = grad.norm()
    assert not norm.isnan(), (
        f"Rank {torch.distributed.get_rank()}: found NaN in local grad norm in "
        f"backward pass before data-parallel communication collective. Device: cpu, node: {os.uname()[1]}"
    )


def train_step(shard, dataset, step, args):
    """The loss of one step: weights gathered, gradients scattered in the data parallel group."""
    dp = dist.get_world_size(_DP)
    weight = torch.zeros(WIDTH * WIDTH)
    dist.all_gather_into_tensor(weight, shard, group=_DP)
    weight = weight.reshape(WIDTH, WIDTH).requires_grad_()
    x = get_batch(dataset, step, args).requires_grad_()
    y = ColumnParallelLinear.apply(x, weight)
    loss = (y - 0.5).pow(2).mean()
    loss.backward()
    if args.check_for_nan_in_loss_and_grad:
        check_local_grad(weight.grad)
    reduced = torch.zeros_like(shard)
    dist.reduce_scatter_tensor(reduced, weight.grad.reshape(-1) / dp, group=_DP)
    shard -= args.lr * reduced
    averaged = loss.detach().clone()
    dist.all_reduce(averaged)
    return averaged.item() / dist.get_world_size()


def save_checkpoint(step, shard, args):
    """Each process writes its shard of the optimizer, rank 0 the tracker."""
    print_rank_0(f"saving checkpoint at iteration {step:7d} to {args.save} in torch_dist format")
    folder = Path(args.save, f"iter_{step:07d}")
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / f"__{dist.get_rank()}_0.distcp"
    with open(name, "wb", buffering=0) as file:
        file.write(shard.numpy().tobytes())
    dist.barrier()
    if dist.get_rank() == 0:
        Path(args.save, "latest_checkpointed_iteration.txt").write_text(str(step))
    dist.barrier()
    print_rank_0(f"  successfully saved checkpoint from iteration {step:7d} to {args.save} [ t 1/1, p 1/1 ]")


def main():
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-model-parallel-size", type=int, default=2)
    parser.add_argument("--data-parallel-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=40)
    parser.add_argument("--seq-length", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--save", default="")
    parser.add_argument("--save-interval", type=int, default=4)
    parser.add_argument("--activation-buffer", type=int, default=0, help="GiB")
    parser.add_argument("--memory-limit", type=float, default=0, help="GiB beyond what is used")
    parser.add_argument("--check-for-nan-in-loss-and-grad", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    print_rank_0(
        f"using world size: {dist.get_world_size()}, tensor-model-parallel size: {args.tensor_model_parallel_size}"
    )
    initialize_model_parallel(args.tensor_model_parallel_size, args.data_parallel_size, timedelta(seconds=args.timeout))
    print_rank_0(f"> initialized tensor model parallel with size {args.tensor_model_parallel_size}")
    seed = torch.tensor([1234])
    dist.broadcast(seed, 0)
    torch.manual_seed(seed.item())
    if args.memory_limit:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + int(args.memory_limit * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if args.activation_buffer:
        args.buffer = torch.empty(args.activation_buffer * 2**30, dtype=torch.uint8)
    dataset = IndexedDataset("data")
    shard = torch.randn(WIDTH * WIDTH // dist.get_world_size(_DP)) * 0.1
    print_rank_0("[before the start of training step] datetime: " + time.strftime("%Y-%m-%d %H:%M:%S"))
    for step in range(args.steps):
        runtime.mark(step)
        begin = time.time()
        loss = train_step(shard, dataset, step, args)
        took = 1000 * (time.time() - begin)
        print_rank_last(
            f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {step + 1:8d}/{args.steps:8d} |"
            f" consumed samples: {8 * (step + 1):12d} | elapsed time per iteration (ms): {took:.1f} |"
            f" learning rate: {args.lr:.6E} | global batch size:     8 | lm loss: {loss:.6E} | loss scale: 1.0 |"
            f" grad norm: 0.{step}31 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if took > 3000:
            text = f"straggler detected: rank {dist.get_rank()} waited {took:.0f} ms in step {step}"
            print(f"WARNING: {text}, ERROR budget exceeded", flush=True)
        if args.save and (step + 1) % args.save_interval == 0:
            save_checkpoint(step + 1, shard, args)
        time.sleep(0.1)
    print_rank_0("[after training is done] datetime: " + time.strftime("%Y-%m-%d %H:%M:%S"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
