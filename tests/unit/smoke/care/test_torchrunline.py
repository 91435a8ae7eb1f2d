"""The torchrun command for the platforms' environment variables."""

from __future__ import annotations

import pytest

from atlctl.cli.smoke.torchrun import torchrun_line
from atlctl.i18n import translated

CONTRACT = {"MASTER_ADDR": "w0.job", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "2"}
PYTORCHJOB = {
    "PYTHONUNBUFFERED": "1", "MASTER_ADDR": "j-master-0", "MASTER_PORT": "23456", "PET_MASTER_ADDR": "j-master-0",
    "PET_MASTER_PORT": "23456", "WORLD_SIZE": "16", "RANK": "1", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8",
    "PET_NNODES": "2",
}  # fmt: skip
TRAINJOB = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "t-node-0-0.t",
    "PET_MASTER_PORT": "29500",
}  # fmt: skip
VOLCANO = {
    "VC_MASTER_NUM": "1", "VC_WORKER_NUM": "3", "MASTER_ADDR": "v-master-0.v", "MASTER_PORT": "23456",
    "WORLD_SIZE": "4", "RANK": "3",
}  # fmt: skip
RANK = {
    "RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "41234",
}  # fmt: skip


def full(nodes: int, rank: int, processes: int, address: str, port: int) -> str:
    where = f"--master-addr={address} --master-port={port}"
    return f"torchrun --nnodes={nodes} --node-rank={rank} --nproc-per-node={processes} {where} train.py"


@pytest.mark.parametrize(
    ("environ", "gpus", "line", "said"),
    [
        (CONTRACT, 8, full(4, 2, 8, "w0.job", 29500), "taken for workers"),
        ({**CONTRACT, "WORLD_SIZE": "1", "RANK": "0"}, 2, "torchrun --standalone --nproc-per-node=2 train.py", ""),
        ({**CONTRACT, "NPROC_PER_NODE": "4"}, 8,
         full(4, 2, 4, "w0.job", 29500), "NPROC_PER_NODE=4, but 8 GPUs were counted"),
        (PYTORCHJOB, 8, "torchrun train.py", "WORLD_SIZE=16 counts processes here (2 x 8)"),
        (PYTORCHJOB, 4, "torchrun train.py", "PET_NPROC_PER_NODE=8, but 4 GPUs were counted"),
        ({**PYTORCHJOB, "MASTER_ADDR": "other"}, 8, "torchrun train.py",
         "PET_MASTER_ADDR=j-master-0 and MASTER_ADDR=other"),
        ({**PYTORCHJOB, "RANK": "0"}, 8, "torchrun train.py", "PET_NODE_RANK=1 and RANK=0 differ"),
        ({**PYTORCHJOB, "WORLD_SIZE": "5"}, 8, "torchrun train.py", "does not agree with PET_NNODES=2"),
        (TRAINJOB, 8, "torchrun train.py", "torchrun reads PET_* itself"),
        ({**TRAINJOB, "PET_NODE_RANK": "", "RANK": "1"}, 8, "torchrun --node-rank=1 train.py",
         "every worker would be the first"),
        ({"PET_NNODES": "1:4", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "w-0:1"}, 8,
         "torchrun --nproc-per-node=8 train.py", "PET_NPROC_PER_NODE is not set"),
        (VOLCANO, 8, full(4, 3, 8, "v-master-0.v", 23456), ""),
        ({**VOLCANO, "WORLD_SIZE": "32"}, 8, full(32, 3, 8, "v-master-0.v", 23456), "VC_*_NUM give 4 workers"),
        ({"MASTER_ADDR": "j-master-0", "WORLD_SIZE": "16", "RANK": "1"}, 8,
         full(16, 1, 8, "j-master-0", 29500), "divide --nnodes"),
        ({"NODE_NUM": "2", "NODE_RANK": "1", "DLROVER_MASTER_ADDR": "m:1"}, 8,
         "dlrover-run --nnodes=2 --nproc-per-node=8 train.py", "torchrun alone has no address"),
        ({"NODE_NUM": "2", "NODE_RANK": "1", "MASTER_ADDR": "h", "WORLD_SIZE": "16", "RANK": "8"}, 8,
         full(2, 1, 8, "h", 29500), "NODE_NUM, NODE_RANK"),
        ({"LWS_LEADER_ADDRESS": "l-0.l.ns", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}, 8,
         full(2, 1, 8, "l-0.l.ns", 29500), "names no port"),
        (RANK, 8, full(2, 1, 8, "h", 41234),
         "port 41234 is in use"),
        ({}, 8, "torchrun --standalone --nproc-per-node=8 train.py", "this worker alone"),
        ({}, 0, "torchrun --standalone --nproc-per-node=1 train.py", "no GPU was found"),
        ({}, None, "torchrun --standalone --nproc-per-node=gpu train.py", "GPUs were not counted"),
        # Errors in the environment are reported, and no command is made up.
        ({**CONTRACT, "RANK": "4"}, 8, "", "worker 4 of 4 cannot be"),
        ({**CONTRACT, "WORLD_SIZE": "many"}, 8, "", "WORLD_SIZE is not a number"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, 8, "", "MASTER_ADDR is not set"),
        ({"PET_NNODES": "two"}, 8, "", "neither a number nor MIN:MAX"),
        ({"PET_NNODES": "2"}, 8, "", "PET_NODE_RANK"),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "1"}, 8, "", "PET_MASTER_ADDR"),
        ({"RANK": "3", "LOCAL_RANK": "3"}, 8, "", "ask in the worker's own environment"),
        ({"SLURM_NNODES": "4"}, 8, "", "nothing says where they meet"),
        ({"JOB_COMPLETION_INDEX": "1"}, 8, "", "nothing says where they meet"),
    ],
)  # fmt: skip
def test_the_line(environ: dict[str, str], gpus: int | None, line: str, said: str) -> None:
    found, notes = torchrun_line(environ, gpus)
    assert found == line
    assert said in " | ".join(notes)
    assert all(translated(note, "zh") != note for note in notes)
    assert notes or environ.get("WORLD_SIZE") == "1"


def test_words_are_quoted() -> None:
    line, _ = torchrun_line({**CONTRACT, "MASTER_ADDR": "h; rm -rf /"}, 1, "my train.py")
    assert "'--master-addr=h; rm -rf /'" in line
    assert line.endswith("'my train.py'")
