"""Ranks that no launcher of torch has started, on made-up process tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlctl.remote.ranks import Finder, read_each, unlaunched_rank

PLATFORM = {"RANK": "1", "WORLD_SIZE": "4"}
MPI = {
    "OMPI_COMM_WORLD_RANK": "6",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}


class Table:
    """A process table below a folder."""

    def __init__(self, root: Path) -> None:
        self._proc = root / "proc"
        self.add("self", {})

    def add(
        self,
        pid: str,
        environ: dict[str, str],
        command: str = "python train.py",
        parent: int = 1,
        *,
        torch: bool = True,
        comm: str = "python",
        exe: str = "/usr/bin/python3.11",
    ) -> None:
        folder = self._proc / pid
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({comm}) S {parent} 1 1" + " 0" * 30)
        (folder / "environ").write_text("\0".join(f"{name}={value}" for name, value in environ.items()))
        (folder / "cmdline").write_text(command.replace(" ", "\0"))
        (folder / "cgroup").write_text("0::/box")
        (folder / "maps").write_text(
            "7f00-7f01 r-xp 0 0 0 /x/torch/lib/libtorch_cpu.so\n" if torch else "7f00 /lib/libc\n"
        )
        (folder / "exe").symlink_to(exe)

    def found(self) -> dict[int, int | None]:
        """Processes with their ranks; those of `ranks` must be the same."""
        finder = Finder(read_each, str(self._proc.parent))
        named = finder.processes()
        assert {one["pid"]: one["rank"] for one in finder.ranks()} == named
        return named


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_variables_that_a_launcher_would_have_set() -> None:
    def seen(**environ: str) -> dict[str, str] | None:
        return unlaunched_rank({name.encode(): value.encode() for name, value in environ.items()})

    assert seen(**PLATFORM) == {**PLATFORM, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    of_mpi = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    assert seen(**PLATFORM, **MPI) == of_mpi
    assert seen(**SLURM) == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert seen(SLURM_PROCID="0", SLURM_NTASKS="8") is None  # a batch script, not a step
    for odd in ({"RANK": "4"}, {"RANK": "-1"}, {"RANK": ""}, {"WORLD_SIZE": "1:4"}, {"WORLD_SIZE": "9" * 30}):
        assert seen(**{**PLATFORM, **odd}) is None
    assert seen(**PLATFORM, ATLCTL_EXEC="x") is None


def test_the_one_process_with_torch_has_the_platforms_rank(table: Table) -> None:
    table.add("12", PLATFORM, "sh -c train", torch=False, exe="/bin/dash", comm="sh")
    table.add("13", PLATFORM, parent=12)
    table.add("14", PLATFORM, parent=13, comm="pt_data_worker")
    table.add("15", PLATFORM, "python -m http.server", torch=False)
    table.add("16", {}, "python other.py")
    assert table.found() == {13: 1}
    assert Finder(read_each, str(table._proc.parent)).ranks()[0]["environ"] == {
        "world_size": "4",
        "local_rank": "0",
        "local_world_size": "1",
    }


def test_process_2_is_a_kernel_thread_only_on_a_machine(table: Table) -> None:
    """In a container it may be the launcher, or the rank itself."""
    table.add("2", {}, "python /opt/bin/torchrun train.py")
    table.add("12", PLATFORM, parent=2)
    assert table.found() == {12: 1}
    (table._proc / "2" / "stat").write_text("2 (kthreadd) S 0 1 1" + " 0" * 30)
    assert table.found() == {}


def test_processes_of_mpi(table: Table) -> None:
    for pid in range(3):
        table.add(f"1{pid}", {**PLATFORM, **MPI, "OMPI_COMM_WORLD_RANK": f"{pid + 4}"})
    assert table.found() == {10: 4, 11: 5, 12: 6}


def test_of_several_with_one_rank_none_is_chosen(table: Table) -> None:
    table.add("12", PLATFORM)
    table.add("13", PLATFORM)
    assert table.found() == {}


def test_a_launcher_that_has_not_started_its_ranks_is_none(table: Table) -> None:
    table.add("12", PLATFORM, "python /opt/bin/torchrun --nnodes 4 train.py")
    table.add("13", PLATFORM, "python /opt/bin/accelerate launch train.py")
    table.add("14", PLATFORM, "python -m torch.distributed.run train.py")
    assert table.found() == {}
    table.add("15", PLATFORM, parent=13)
    assert table.found() == {15: 1}


def test_ranks_that_spawn_numbers_are_unknown(table: Table) -> None:
    table.add("12", PLATFORM)
    spawned = "python -c from_multiprocessing.spawn_import_spawn_main;_spawn_main(7)"
    table.add("13", PLATFORM, spawned, parent=12)
    table.add("14", PLATFORM, spawned, parent=12)
    table.add("15", PLATFORM, parent=14)
    table.add("16", PLATFORM, spawned, parent=12, torch=False)
    assert table.found() == {13: None, 14: None}


def test_a_loader_that_is_spawned_is_no_rank(table: Table) -> None:
    table.add("12", PLATFORM)
    table.add("13", PLATFORM, "python -c spawn_main(7)", parent=12, comm="pt_data_worker")
    assert table.found() == {12: 1}


def test_a_launchers_ranks_go_first(table: Table) -> None:
    table.add("12", PLATFORM)
    table.add("13", {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}, parent=12)
    assert table.found() == {13: 2}
