"""The table of `top`: order, folding, screen size, and untrusted names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from atlctl.cli.top.table import Browsing, Picture, whole
from atlctl.cli.top.view import View, judge, to_data
from atlctl.i18n import joined, translated
from atlctl.jobs.model import Processes, State, Worker
from atlctl.remote.gpus import Gpu
from atlctl.render.screen import Screen
from atlctl.render.width import display_width
from tests.unit.cli.top.made import gpu, line, view


def eight(worker: int, **odd: Gpu) -> View:
    """A worker with eight GPUs; `g3=...` replaces one of them."""
    own = [gpu(index, uuid=f"GPU-{worker}-{index}") for index in range(8)]
    for name, one in odd.items():
        own[int(name[1:])] = one
    return view(worker, *own)


def screen(
    *views: View, columns: int = 200, rows: int = 60, order: str = "odd", now: float = 2.0, **chosen: Any
) -> list[str]:
    """A page without its footer, the blank lines above it, and trailing spaces."""
    page, _ = picture(views, now, "train").page(Browsing(order, **chosen), (columns, rows))
    lines = ["".join(translated(cell.text) for cell in line).rstrip() for line in page]
    assert len(lines) == rows
    return "\n".join(lines[:-1] if rows >= 8 else lines).rstrip().split("\n")


def picture(views: Sequence[View], now: float, job: str = "train") -> Picture:
    return Picture(job, views, {view.worker.name: joined(view.troubles(now, 10.0)) for view in views})


def firsts(lines: list[str]) -> list[str]:
    """The first two words of each row."""
    return [" ".join(line.split()[:2]) for line in lines]


def test_a_row_for_each_gpu_the_odd_one_on_top() -> None:
    lines = screen(view(0, gpu(0), gpu(1, ecc_uncorrected=2)), columns=150)
    assert lines[0].startswith("train  ")
    assert lines[0].endswith("1 worker, 2 GPUs (H100), 1 GPU with marks")
    assert lines[1:] == [
        "2 of 2 GPUs busy, median use 99 %, power 1.4 kW, memory 86 %",
        "WORKER    GPU     UTIL %    MEMORY GiB  POWER W  TEMP C  ECC     CPU  RAM GiB  MARKS",
        "worker-0    1  ━━━━━  99  ━━━━╸  68/80      690      64    2  1.5/32      0/0  2 uncorrected ECC",
        "worker-0    0  ━━━━━  99  ━━━━╸  68/80      690      64    0",
    ]


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


def test_gpus_are_sorted_by_themselves_also_for_a_pipe() -> None:
    views = [eight(0, g6=gpu(6, uuid="x", utilization=40.0)), eight(1, g2=gpu(2, uuid="y", utilization=20.0))]
    assert firsts(screen(*views, order="util")[3:6]) == ["worker-1 2", "worker-0 6", "worker-0 0"]
    assert firsts(whole(views, "util")[1:4]) == ["worker-1 2", "worker-0 6", "worker-0 0"]
    assert firsts(whole(views, "worker")[1:3]) == ["worker-0 0", "worker-0 1"]
    odd = whole([*views, eight(2, g7=gpu(7, uuid="z", ecc_uncorrected=1))], "odd")
    assert firsts(odd[1:4]) == ["worker-2 7", "worker-0 6", "worker-1 2"]
    assert len(odd) == 1 + 24


def test_what_is_alike_is_folded_where_it_does_not_fit() -> None:
    odd = gpu(3, uuid="GPU-x", power=200.0)
    views = [eight(0), eight(1, g3=odd)]
    assert len(screen(*views, rows=21)) == 3 + 16
    lines = screen(*views, rows=20)
    assert firsts(lines[3:]) == ["worker-1 3", "worker-0 0-7", "worker-1 0-2,4-7"]
    assert "690" in lines[4]
    assert "low power? 29% of median" in lines[3]


def test_a_thousand_workers_are_folded_to_what_is_odd() -> None:
    views = [eight(number) for number in range(1000)]
    views[20] = eight(20, g0=gpu(0, uuid="GPU-z", ecc_uncorrected=1))
    lines = screen(*views, rows=24)
    assert firsts(lines[3:4]) == ["worker-20 0"]
    assert lines[4:] == ["… 7,999 GPUs unremarkable: median use 99 %"]
    by_worker = screen(*views, rows=12, order="worker")
    assert firsts(by_worker[3:-1]) == [f"worker-{number} 0-7" for number in range(7)]
    assert by_worker[-1] == "… 1 GPU with marks, 7,943 GPUs unremarkable: median use 99 %"


def test_only_marks_and_a_filter() -> None:
    views = [eight(number) for number in range(4)]
    assert screen(*views, only=True)[3:] == ["no marks"]
    views[3] = eight(3, g2=gpu(2, uuid="u", ecc_uncorrected=1))
    assert firsts(screen(*views, only=True)[3:]) == ["worker-3 2"]
    assert firsts(screen(*views, needle="ECC")[3:]) == ["worker-3 2"]
    assert {line.split()[0] for line in screen(*views, needle="worker-1")[3:]} == {"worker-1"}
    assert len(screen(*views, needle="h100")) == 3 + 32
    assert screen(*views, needle="\x1b[2J")[3:] == ["nothing matches"]


def test_the_chosen_row_is_followed() -> None:
    views = [eight(number) for number in range(40)]
    choice = Browsing("worker")

    def chosen() -> str:
        lines, at = picture(views, 2.0, "train").page(choice, (120, 12))
        return lines[at][0].text.split()[0]

    assert chosen() == "worker-0"
    choice.move(7)
    assert (chosen(), choice.first, choice.room) == ("worker-7", 1, 7)
    views.reverse()
    assert chosen() == "worker-7"
    choice.order = "odd"
    views[3] = eight(99, g2=gpu(2, uuid="u", ecc_uncorrected=1))
    assert chosen() == "worker-99"
    choice.move(1 << 20)
    assert chosen() == "worker-99"
    choice.sort()
    assert (choice.order, choice.key) == ("util", None)


def test_all_of_one_worker() -> None:
    one = gpu(3, uuid="GPU-u", ecc_uncorrected=2, clock_reasons=0x48, name="\x1b[2J")
    lines = screen(eight(0), eight(1, g3=one), pane="worker", key=("worker-1", 3))
    text = "\n".join(lines)
    assert lines[2:5] == [
        "",
        "worker-1  Running",
        "CPU 1.5/32 cores, RAM 0/0 GiB of the worker's container (its cgroup)",
    ]
    assert text.count("\nGPU ") == 8
    assert (
        "memory 70000/81559 MiB  power 690 W  64 C  ECC 2  clock reasons 0x48\n  2 uncorrected ECC, slowed: heat"
        in text
    )
    narrow = screen(eight(0), pane="worker", key=("worker-0", 0), columns=40, rows=60)
    assert max(map(len, narrow[2:])) < 40
    assert "clock reasons" in " ".join(narrow)


@pytest.mark.parametrize("columns", [1, 20, 50, 80, 200])
def test_every_size_of_a_terminal(columns: int) -> None:
    views = [eight(number) for number in range(6)]
    for rows in range(1, 60):
        lines = screen(*views, rows=rows, columns=columns)
        assert len(lines) <= rows


def test_columns_go_where_it_is_narrow() -> None:
    lines = screen(view(0, gpu(0, ecc_uncorrected=2, clock_reasons=0x48)), columns=60)
    assert lines[2] == "WORKER    GPU     UTIL %  POWER W  MARKS"
    assert lines[-1] == "too narrow for MEMORY GiB, TEMP C, ECC, CPU, RAM GiB"


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_nothing_is_broken_inside_a_word(columns: int) -> None:
    odd = gpu(3, uuid="GPU-x", power=200.0, ecc_uncorrected=1, name="NVIDIA H100 80GB HBM3", clock_reasons=0x88)
    views = [eight(number) for number in range(3)] + [eight(3, g3=odd)]
    page, _ = picture(views, 2.0, "train").page(Browsing("odd"), (columns, 24))
    drawn = Screen(plain=False, color=False).draw(page, columns, 24)
    full = Screen(plain=True, color=False).draw(page, columns, 24)
    for shown in drawn.removesuffix("\x1b[J").split("\x1b[K")[1:]:
        assert display_width(shown.rstrip("\n")) < columns
        if "…" in shown:
            kept = shown.partition("…")[0].rpartition("  ")[2]
            assert re.search(re.escape(kept) + r"(?![A-Za-z0-9])", full), shown


def test_long_names_keep_their_ends() -> None:
    one = view(0, gpu(0))
    one.worker = Worker("a-very-long-name-of-a-job-and-its-worker-in-a-cluster-0", 0, State.RUNNING)
    assert screen(one, columns=80)[3].split()[0] == "a-very-…ker-in-a-cluster-0"


def test_workers_without_gpus_say_so() -> None:
    lines = screen(view(0), view(1))
    assert lines[1:] == [
        "no GPU data: nvidia-smi not found (2 workers)",
        "WORKER       CPU  RAM GiB  MARKS",
        "worker-0  1.5/32      0/0  no GPU data: nvidia-smi not found",
        "worker-1  1.5/32      0/0  no GPU data: nvidia-smi not found",
    ]


def test_a_gpu_that_vanishes() -> None:
    one = eight(0)
    looks = "".join(("G 0\n", *(f"{line(gpu(index, uuid=f'GPU-0-{index}'))}\n" for index in range(7)), "\nE 0\n"))
    one.hear("stderr", looks.encode(), 5.0)
    one.heard = 5.0
    assert screen(one, now=5.0)[3].endswith("GPU 7 vanished 3s ago")
    one.hear("stderr", b"G 0\nNo devices were found\n\nE 6\n", 8.0)
    assert "GPUs 0-7 vanished" in screen(one, now=8.0)[3]
    one.begin(9.0)
    assert one.troubles(9.0, 10.0) == []


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
        page, _ = picture(shown, 2.0, "train\n\x1b[2J").page(Browsing("odd"), (200, 60), keys=False)
        drawn = Screen(plain=True, color=False).draw(page, 200, 60)
        assert drawn.count("\n") == len(page)
        assert not any(char in drawn for char in "\x1b\x9b")


def test_data() -> None:
    one = view(0, gpu(0, utilization=0.0))
    data = to_data(one, judge([one])["worker-0"])
    assert data["gpus"][0]["marks"] == ["idle"]
    assert (data["scope"], data["cpu_cores"], data["cpu_cores_limit"]) == ("container", 1.5, 32.0)
    bare = view(1)
    assert to_data(bare, [])["gpus"] is None


def test_the_last_minute() -> None:
    one, other = view(0, gpu(0)), view(1, gpu(1, uuid="b", utilization=None))
    for second, use in ((3, 0.0), (4, 50.0)):
        for shown in (one, other):
            changed = gpu(utilization=use) if shown is one else gpu(1, uuid="b", utilization=None)
            shown.hear("stderr", f"G 0\n{line(changed)}\n\nE 0\n".encode(), second)
    lines = screen(one, other, columns=120)
    assert "LAST MINUTE" in lines[2]
    assert "   ▇▁▄  " in lines[3]
    assert not set(lines[4]) & set("▁▂▃▄▅▆▇")
    one.minute = 2
    one.hear("stderr", f"G 0\n{line(gpu(utilization=100.0))}\n\nE 0\n".encode(), 5.0)
    assert "   ▄▇  " in screen(one, other, columns=120)[3]


def test_rows_that_are_not_shown_are_told_by_kind() -> None:
    done = [view(100 + number, state=State.SUCCEEDED) for number in range(3)]
    for one in done:
        one.turn("ended", 1.0, "not running (Succeeded)")
    odd = eight(20, g0=gpu(0, uuid="z", ecc_uncorrected=1))
    lines = screen(odd, *(eight(number) for number in range(20)), view(30), *done, rows=12)
    assert lines[4:] == ["… 167 GPUs unremarkable: median use 99 %, 1 worker without GPUs, 3 ended"]
    unknown = [view(number, gpu(0, uuid=f"u{number}", utilization=None)) for number in range(20)]
    assert screen(odd, *unknown, rows=12)[-1] == "… 27 GPUs unremarkable: median use 99 %"
