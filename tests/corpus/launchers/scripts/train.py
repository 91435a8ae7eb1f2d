"""Trains under a launcher that only sets variables: DeepSpeed's, mpirun, srun, horovodrun."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.corpus.launchers.scripts import loop

    dist: Any
else:
    import loop
    import torch.distributed as dist

#: The variables of rank, local rank and number of ranks.
_NAMES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
)


def main() -> None:
    options = loop.read_options()
    names = next(names for names in _NAMES if names[0] in os.environ)
    rank, local_rank, size = (int(os.environ[name]) for name in names)
    loop.begin(rank, local_rank, size)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=loop.START)
    loop.run(options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
