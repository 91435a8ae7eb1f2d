"""The place of a wrapper: its job, number and address from the variables of platforms."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.backends.hosts.hostfile import parse
from atlctl.backends.hosts.peers import Found
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
        ({"PET_NODE_RANK": "2", "PET_NNODES": "2:4", "PET_RDZV_ID": "my run/1"}, "my-run-1", 2, 4),
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


def test_place_in_a_worker_of_another_job() -> None:
    here = place({"ATLCTL_JOB": "train", "ATLCTL_WORKER": "gpu2", "RANK": "1", "WORLD_SIZE": "2"}, "mine")
    assert (here.job, here.name, here.marks) == ("mine", "worker-1", ("train", "gpu2"))
    same = place({"ATLCTL_JOB": "train", "ATLCTL_WORKER": "gpu2", "JOB_NAME": "train"})
    assert (same.job, same.marks) == ("train-run", ("train", "gpu2"))
    named = place({"ATLCTL_JOB": "train"}, "train")  # by a user, for the commands that follow
    assert (named.job, named.marks) == ("train", ("train", "worker-0"))


def test_place_contradiction() -> None:
    found = place({"RANK": "2", "WORLD_SIZE": "2"})
    assert (found.index, found.count, str(found.odd)) == (0, 1, "RANK is 2, but WORLD_SIZE is 2")


@pytest.mark.parametrize(
    ("environ", "index", "count", "local", "beside", "rank"),
    [
        (
            {
                "SLURM_NODEID": "2",
                "SLURM_NNODES": "3",
                "SLURM_LOCALID": "1",
                "SLURM_PROCID": "9",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2),2",
            },
            *(2, 3, 1, 2, 9),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "13",
                "OMPI_COMM_WORLD_SIZE": "16",
                "OMPI_COMM_WORLD_LOCAL_RANK": "5",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
            },
            *(1, 2, 5, 8, 13),
        ),
        (
            {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            *(1, 2, 1, 2, 3),
        ),
        (
            {
                "RANK": "12",
                "WORLD_SIZE": "16",
                "LOCAL_RANK": "4",
                "LOCAL_WORLD_SIZE": "8",
                "GROUP_RANK": "1",
                "GROUP_WORLD_SIZE": "2",
            },
            *(1, 2, 4, 8, 12),
        ),
        ({"SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_LOCALID": "0", "SLURM_PROCID": "0"}, 0, 1, 0, 1, 0),
        ({"SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_LOCALID": "1", "SLURM_PROCID": "1"}, 0, 1, 1, 1, 1),
        (  # torchrun in a task of Slurm
            {
                "SLURM_NODEID": "0",
                "SLURM_NNODES": "2",
                "SLURM_LOCALID": "0",
                "SLURM_PROCID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
                "RANK": "6",
                "WORLD_SIZE": "8",
                "LOCAL_RANK": "2",
                "LOCAL_WORLD_SIZE": "4",
                "GROUP_RANK": "1",
                "GROUP_WORLD_SIZE": "2",
            },
            *(1, 2, 2, 4, 6),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 1, 2, 0, 1, None),
    ],
)
def test_place_of_one_of_several_processes_of_a_host(
    environ: dict[str, str], index: int, count: int, local: int, beside: int, rank: int | None
) -> None:
    found = place({"JOB_NAME": "x", **environ})
    assert (found.index, found.count, found.local, found.beside, found.rank) == (index, count, local, beside, rank)
    assert found.label == (b"[rank%d]: " % (rank or 0) if beside > 1 else b"")


def test_place_by_the_hostfile_of_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --map-by node ranks go round: 1 is the first process of the second host."""
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu1\ngpu2\ngpu3\n")
    monkeypatch.setattr("atlctl.run.place.find", lambda _: Found(parse(hosts.read_text(), "hosts").hosts, 1, "here"))
    variables = {"RANK": "1", "SIZE": "6", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}
    found = place({f"OMPI_COMM_WORLD_{name}": value for name, value in variables.items()}, "x")
    assert (found.index, found.count) == (1, 3)


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
