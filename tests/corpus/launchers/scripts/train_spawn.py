"""Trains with torch.multiprocessing.spawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.corpus.launchers.scripts import loop

    dist: Any
    mp: Any
else:
    import loop
    import torch.distributed as dist
    import torch.multiprocessing as mp

SIZE = 4


def train(rank: int, steps: int) -> None:
    loop.begin(rank, rank, SIZE)
    dist.init_process_group("gloo", rank=rank, world_size=SIZE, timeout=loop.START)
    loop.run(steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    options = loop.read_options()
    mp.spawn(train, args=(options.steps,), nprocs=SIZE, join=True)
