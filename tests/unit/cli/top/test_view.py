"""Marked and unmarked values."""

from __future__ import annotations

from typing import Any

import pytest

from atlctl.cli.top.view import Kind, Normal, marks, normals, seen
from atlctl.remote.gpus import Gpu
from tests.unit.cli.top.made import gpu

ALONE = Normal(None, None)
WORKING = Normal(99.0, 690.0)


def found(one: Gpu, normal: Normal = ALONE) -> list[tuple[Kind, str]]:
    return [tuple(mark) for mark in marks(seen([one]), normal)]  # type: ignore[misc]


def test_nothing_odd() -> None:
    assert found(gpu(), WORKING) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"ecc_uncorrected": 3}, (Kind.ECC, "3 uncorrected ECC")),
        ({"ecc_uncorrected": None}, None),
        ({"clock_reasons": 0x40}, (Kind.SLOWED, "slowed: heat")),
        ({"clock_reasons": 0x20 | 0x40 | 0x08}, (Kind.SLOWED, "slowed: heat")),
        ({"clock_reasons": 0x80 | 0x08}, (Kind.SLOWED, "slowed: power brake")),
        ({"clock_reasons": 0x08}, (Kind.SLOWED, "slowed: hardware")),
        ({"clock_reasons": 0x01 | 0x02 | 0x04 | 0x10 | 0x100}, None),
        ({"clock_reasons": None}, None),
        ({"utilization": 0.0}, (Kind.IDLE, "idle, holds memory")),
        ({"utilization": 0.0, "memory_used": 4.0}, (Kind.EMPTY, "empty")),
        ({"utilization": 0.0, "memory_used": None}, None),
        ({"utilization": None}, None),
        ({"temperature": 99.0}, None),
    ],
)
def test_facts(values: dict[str, Any], expected: tuple[Kind, str] | None) -> None:
    assert found(gpu(**values)) == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("values", "normal", "kinds"),
    [
        ({"power": 231.0}, WORKING, [Kind.LOW_POWER]),
        ({"power": 690 * 0.71}, WORKING, []),
        ({"power": 690.0}, Normal(99.0, 240.0), [Kind.HIGH_POWER]),
        # If the others are not waiting in a collective, more power means more work.
        ({"power": 690.0}, Normal(60.0, 240.0), []),
        ({"utilization": 60.0}, WORKING, [Kind.LOW_UTILIZATION]),
        ({"utilization": 60.0, "power": 200.0}, WORKING, [Kind.LOW_POWER, Kind.LOW_UTILIZATION]),
        ({"utilization": 75.0}, WORKING, []),
        # All are idle: no GPU is behind.
        ({"utilization": 5.0, "power": 70.0}, Normal(10.0, 300.0), []),
        # Idle: no other mark is needed.
        ({"utilization": 0.0, "power": 70.0}, WORKING, [Kind.IDLE]),
        ({"power": None, "utilization": None}, WORKING, []),
        ({"power": 10.0}, Normal(None, 690.0), []),
    ],
)
def test_hints(values: dict[str, Any], normal: Normal, kinds: list[Kind]) -> None:
    marked = marks(seen([gpu(**values)]), normal)
    assert [mark.kind for mark in marked] == kinds
    assert all("?" in mark.text for mark in marked if mark.kind in (3, 4, 5))


def test_one_look_is_not_believed() -> None:
    """The end of a step looks idle, so the median of the last samples is compared."""
    looks = [gpu(power=690.0), gpu(utilization=0.0, power=150.0), gpu(power=690.0)]
    assert marks(seen(looks), WORKING) == ()
    assert seen(looks).gpu is looks[-1]


def test_medians_need_four_of_one_model() -> None:
    same = [seen([gpu(index, power=600.0 + index)]) for index in range(4)]
    other = [seen([gpu(index + 4, name="A100", power=300.0)]) for index in range(3)]
    assert normals([*same, *other]) == {"H100": Normal(99.0, 601.5), "A100": Normal(None, None)}


def test_a_gpu_that_many_see_counts_once() -> None:
    shared = [seen([gpu(0)]) for _ in range(8)]
    assert normals(shared) == {"H100": Normal(None, None)}
    unknown = [seen([gpu(0, uuid=None)]) for _ in range(8)]
    assert normals(unknown) == {"H100": Normal(99.0, 690.0)}
