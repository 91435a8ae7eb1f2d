"""The table of `top`: order, folding, what fits on a screen, and hostile names."""

from __future__ import annotations

import pytest

from atlctl.cli.top.table import page, whole
from atlctl.cli.top.view import View, judge, to_data
from atlctl.jobs.model import Processes, State
from atlctl.remote.gpus import Gpu
from atlctl.render.screen import Screen
from tests.unit.cli.top.made import gpu, view


def eight(worker: int, **odd: Gpu) -> View:
    """A worker with eight GPUs; `g3=...` replaces one of them."""
    own = [gpu(index, uuid=f"GPU-{worker}-{index}") for index in range(8)]
    for name, one in odd.items():
        own[int(name[1:])] = one
    return view(worker, *own)


def screen(*views: View, columns: int = 200, rows: int = 60, order: str = "odd", now: float = 2.0) -> list[str]:
    return page("train", views, now, 10.0, order, (columns, rows))[0]


def firsts(lines: list[str]) -> list[str]:
    """The first two words of each row."""
    return [" ".join(line.split()[:2]) for line in lines]


def test_a_row_for_each_gpu() -> None:
    lines = screen(view(0, gpu(0), gpu(1, ecc_uncorrected=2)))
    assert lines[1:] == [
        "CPU (cores in use/allowed) and RAM of the worker's container (its cgroup)",
        "WORKER    GPU  UTIL %   MEMORY MiB  POWER W  TEMP C  ECC     CPU  RAM GiB  MARKS",
        "worker-0    0      99  70000/81559      690      64    0  1.5/32      0/0",
        "worker-0    1      99  70000/81559      690      64    2                   2 uncorrected ECC",
    ]
    assert lines[0].startswith("train  ")
    assert lines[0].endswith("1 worker, 2 GPUs (H100), 1 GPU with marks")


def test_the_odd_ones_are_first() -> None:
    idle = gpu(3, uuid="GPU-x", utilization=0.0)
    ecc = gpu(5, uuid="GPU-y", ecc_uncorrected=1)
    lost, done, failed = view(4, gpu(uuid="a")), view(5, state=State.SUCCEEDED), view(6, state=State.FAILED)
    lost.turn("lost", 1.0, "gone")
    done.turn("ended", 1.0, "not running (Succeeded)")
    failed.turn("ended", 1.0, "not running (Failed)")
    lines = screen(eight(0), eight(1, g3=idle), eight(2, g5=ecc), eight(3), lost, done, failed)
    order = list(dict.fromkeys(line.split()[0] for line in lines[3:]))
    assert order == [f"worker-{number}" for number in (4, 6, 2, 1, 0, 3, 5)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("worker", [0, 1, 2]),
        ("util", [1, 0, 2]),
        ("power", [0, 2, 1]),
        ("memory", [2, 0, 1]),
        ("temp", [1, 0, 2]),
        ("cpu", [1, 2, 0]),
    ],
)
def test_orders(order: str, expected: list[int]) -> None:
    lines = screen(
        view(0, gpu(uuid="a", power=100.0, memory_used=500.0), cores=1.0),
        view(1, gpu(uuid="b", utilization=20.0, memory_used=None, temperature=90.0), cores=5.0),
        view(2, gpu(uuid="c", power=300.0, temperature=None), cores=2.0),
        order=order,
    )
    assert [line.split()[0] for line in lines[3:]] == [f"worker-{number}" for number in expected]


def test_what_is_alike_is_folded_where_it_does_not_fit() -> None:
    odd = gpu(3, uuid="GPU-x", power=200.0)
    views = [eight(0), eight(1, g3=odd)]
    assert len(screen(*views, rows=20)) == 3 + 16
    lines = screen(*views, rows=19)
    assert firsts(lines[3:]) == ["worker-1 3", "worker-1 0-2,4-7", "worker-0 0-7"]
    assert "690" in lines[4]
    assert "low power? 29% of median" in lines[3]


def test_what_does_not_fit_is_counted() -> None:
    views = [eight(number) for number in range(40)]
    views[20] = eight(20, g0=gpu(0, uuid="GPU-z", ecc_uncorrected=1))
    lines = screen(*views, rows=12)
    assert len(lines) <= 11
    assert firsts(lines[3:5]) == ["worker-20 0", "worker-20 1-7"]
    assert lines[-1] == "… 34 more workers with 272 GPUs, nothing odd about them"
    by_worker = screen(*views, rows=12, order="worker")
    assert by_worker[-1] == "… 33 more workers with 264 GPUs, 1 GPU with marks"


@pytest.mark.parametrize("columns", [1, 20, 50, 80, 200])
def test_every_size_of_a_terminal(columns: int) -> None:
    views = [eight(number) for number in range(6)]
    for rows in range(1, 60):
        lines = screen(*views, rows=rows, columns=columns)
        # All about the job, the table's heading, one row, and what is not shown.
        assert len(lines) <= max(4, rows - 1)


def test_columns_go_where_it_is_narrow() -> None:
    lines = screen(view(0, gpu(0, ecc_uncorrected=2)), columns=60)
    assert lines[-1] == "too narrow for TEMP C, ECC, RAM GiB, CPU, POWER W"
    assert lines[2] == "WORKER    GPU  UTIL %   MEMORY MiB  MARKS"


def test_workers_without_gpus() -> None:
    lines = screen(view(0), view(1))
    assert lines[2:] == ["WORKER       CPU  RAM GiB  MARKS", "worker-0  1.5/32      0/0", "worker-1  1.5/32      0/0"]


def test_gpus_that_several_workers_see_are_shown_once() -> None:
    lines = screen(view(0, gpu(0), gpu(1)), view(1, gpu(0), gpu(1)))
    assert firsts(lines[3:]) == ["worker-0 shared", "worker-1 shared", "worker-[0-1] 0", "worker-[0-1] 1"]
    assert "2 workers, 2 GPUs" in lines[0]


def test_a_silent_driver_and_a_silent_worker() -> None:
    hung, silent = view(0, gpu(uuid="a")), view(1, gpu(uuid="b"))
    hung.heard = 40.0
    lines = screen(hung, silent, now=40.0)
    assert lines[3].endswith("nvidia-smi silent 38s")
    assert lines[4].endswith("silent 38s; nvidia-smi silent 38s")


def test_several_models_and_scopes_have_columns() -> None:
    local = view(1, gpu(1, name="A100"))
    local.take(Processes(5.0, 3 << 30), 1.0)
    local.take(Processes(9.0, 3 << 30), 3.0)
    lines = screen(view(0, gpu(0)), local)
    assert "by container: of the worker's container (its cgroup); processes: of the worker's processes" in lines[1]
    assert lines[2].split()[:3] == ["WORKER", "GPU", "NAME"]
    assert "2/32" in lines[4]
    assert "processes" in lines[4]


def test_one_table_has_all_columns_and_no_silent_workers() -> None:
    lines = whole([view(0, gpu(0)), View(view(1).worker)], "odd")
    heading = "WORKER GPU NAME UTIL % MEMORY MiB POWER W TEMP C ECC CPU RAM GiB SCOPE MARKS"
    assert " ".join(lines[0].split()) == heading
    assert len(lines) == 2
    assert whole([], "odd") == []


def test_hostile_names() -> None:
    views = [view(0, gpu(0, name="\x1b[2J")), view(1, gpu(1, name="\x9b2J"))]
    views[1].turn("lost", 1.0, "gone\nworker-9  forged")
    for shown in (views, views[:1]):
        lines = screen(*shown)
        drawn = Screen(plain=True, color=False).draw(lines, 200, 60)
        assert drawn.count("\n") == len(lines) + 1
        assert not any(char in drawn for char in "\x1b\x9b")


def test_data() -> None:
    one = view(0, gpu(0, utilization=0.0))
    data = to_data(one, judge([one])["worker-0"])
    assert data["gpus"][0]["marks"] == ["idle"]
    assert (data["scope"], data["cpu_cores"], data["cpu_cores_limit"]) == ("container", 1.5, 32.0)
    bare = view(1)
    assert to_data(bare, [])["gpus"] is None
