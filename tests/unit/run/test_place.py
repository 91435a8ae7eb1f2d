"""The place of a wrapper: its job, number and address from the variables of platforms."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.jobs.errors import UsageError
from atlctl.run.place import own_address, place


@pytest.mark.parametrize(
    ("environ", "job", "index", "count"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "train-7-master-0", "MASTER_PORT": "29500"}, "train-7", 2, 4),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "train-7-worker-0.svc"}, "train-7", 1, 2),
        (
            {"PET_NODE_RANK": "1", "PET_NNODES": "3", "PET_MASTER_ADDR": "tj-node-0-0.tj", "PET_NPROC_PER_NODE": "8"},
            "tj",
            1,
            3,
        ),
        ({"PET_NODE_RANK": "0", "PET_NNODES": "2:4", "PET_RDZV_ID": "my run/1"}, "my-run-1", 0, 2),
        ({"SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_JOB_ID": "815", "SLURM_PROCID": "1"}, "815", 1, 2),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "JOB_NAME": "mpi"}, "mpi", 3, 4),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29501"}, "10-0-0-7-29501", 0, 2),
        ({"JOB_NAME": "alone"}, "alone", 0, 1),
    ],
)
def test_place_by_platform(environ: dict[str, str], job: str, index: int, count: int) -> None:
    found = place(environ)
    assert (found.job, found.index, found.count) == (job, index, count)
    assert found.name == f"worker-{index}"


def test_place_named_job() -> None:
    assert place({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x-master-0"}, "mine").job == "mine"


def test_place_contradiction() -> None:
    with pytest.raises(UsageError, match="RANK is 2, but WORLD_SIZE is 2"):
        place({"RANK": "2", "WORLD_SIZE": "2"})


@pytest.mark.parametrize("variable", ["SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK"])
def test_place_of_a_second_process_of_a_host(variable: str) -> None:
    assert place({variable: "1", "JOB_NAME": "x"}).follows
    assert not place({variable: "0", "JOB_NAME": "x"}).follows


def test_own_address() -> None:
    several = place({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "no.such.host.invalid"})
    assert own_address(several, {"POD_IP": "10.1.2.3"}) == "10.1.2.3"
    assert own_address(place({"JOB_NAME": "x"}), {"POD_IP": "10.1.2.3"}) == "127.0.0.1"


def test_place_of_an_indexed_job(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu1\ngpu2\ngpu3\n")
    found = place(
        {"JOB_COMPLETION_INDEX": "2", "JOB_NAME": "ix", "OMPI_MCA_orte_default_hostfile": str(hosts)},
    )
    assert (found.index, found.count) == (2, 3)
