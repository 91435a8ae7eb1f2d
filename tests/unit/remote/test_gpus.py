"""Reading the output of `nvidia-smi`, whatever it contains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.remote.gpus import QUERY, Gpu, complaint, parse

UUID = "GPU-5d6e8f2a-0000-4000-8000-0000000000aa"
H100 = f"0, {UUID}, NVIDIA H100 80GB HBM3, 97, 70123, 81559, 690.12, 64, 0"


def test_a_gpu() -> None:
    (gpu,) = parse(H100.encode() + b"\n").gpus
    assert gpu == Gpu(0, UUID, "NVIDIA H100 80GB HBM3", 97.0, 70123.0, 81559.0, 690.12, 64.0, 0)


def test_the_query_asks_for_as_many_fields_as_are_read() -> None:
    fields = QUERY[1].removeprefix("--query-gpu=").split(",")
    line = ", ".join(["3", UUID, "X", *(str(number) for number in range(len(fields) - 3))])
    (gpu,) = parse(line.encode()).gpus
    assert (gpu.utilization, gpu.ecc_uncorrected) == (0.0, len(fields) - 4)


def test_gpus_are_in_order_and_each_once() -> None:
    lines = [H100.replace("0, GPU", f"{index}, GPU", 1) for index in (7, 1, 0)]
    lines.append(lines[1].replace("97", "5"))
    assert [(gpu.index, gpu.utilization) for gpu in parse("\r\n".join(lines).encode()).gpus] == [
        (0, 97),
        (1, 97),
        (7, 97),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[N/A]",
        "[Not Supported]",
        "[Unknown Error]",
        "[GPU requires reset]",
        "[Insufficient Permissions]",
        "N/A",
        "ERR!",
    ],
)
def test_what_a_gpu_cannot_tell_is_none(text: str) -> None:
    """With MIG, utilisation is `[N/A]` and the memory of the whole GPU may be hidden; old boards have no ECC."""
    (gpu,) = parse(f"0, {UUID}, A100, {text}, {text}, {text}, {text}, {text}, {text}".encode()).gpus
    assert gpu == Gpu(0, UUID, "A100", None, None, None, None, None, None)
    (gpu,) = parse(f"2, {text}, {text}, 1, 2, 3, 4, 5, 6".encode()).gpus
    assert (gpu.uuid, gpu.name, gpu.ecc_uncorrected) == (None, None, 6)


@pytest.mark.parametrize(
    ("line", "name", "power"),
    [
        (f"0, {UUID}, T4, 1, 2, 3, 67,50, 5, 6", "T4", 67.5),
        (f"0,{UUID},T4,1,2,3,67.50,5,6", "T4", 67.5),
        (f"0, {UUID}, Tesla, the big one, 1, 2, 3, 4, 5, 6", "Tesla, the big one", 4.0),
        (f"0, {UUID}, 图形处理器, 1, 2, 3, 4, 5, 6", "图形处理器", 4.0),
        (f"  0 , {UUID}, T4 , 1,  2, 3, 4, 5, 6  ", "T4", 4.0),
    ],
)
def test_other_forms(line: str, name: str, power: float) -> None:
    (gpu,) = parse(line.encode()).gpus
    assert (gpu.uuid, gpu.name, gpu.power) == (UUID, name, power)


@pytest.mark.parametrize("data", [b"No devices were found\n", b"no devices were found"])
def test_no_gpu(data: bytes) -> None:
    found = parse(data)
    assert (found.gpus, found.odd, found.none) == ((), (), True)


def test_a_gpu_counts_more_than_words() -> None:
    found = parse(f"No devices were found\n{H100}\n".encode())
    assert (len(found.gpus), found.none) == (1, False)


def test_nothing_at_all_is_not_no_gpu() -> None:
    found = parse(b"\n \n")
    assert (found.gpus, found.odd, found.none) == ((), (), False)


def test_a_gpu_that_is_lost_is_told_beside_the_others() -> None:
    lost = "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error"
    found = parse(f"{H100}\n{lost}\n".encode())
    assert len(found.gpus) == 1
    assert found.odd == (lost,)


@pytest.mark.parametrize(
    "line",
    [
        H100[: H100.rindex(",")],  # truncated output
        H100.replace("97", "lots"),
        H100.replace("0, GPU", "first, GPU", 1),
        H100.replace("0, GPU", "-1, GPU", 1),
        H100.replace("97", "٩٧"),
        H100.replace("97", "9" * 13),
        H100.replace("NVIDIA", "N" * 2000),
        ", , , , , , , , ",
        "Failed to initialize NVML: Driver/library version mismatch",
        '{"gpus": [1, 2, 3, 4, 5, 6, 7, 8]}',
    ],
)
def test_what_is_no_gpu(line: str) -> None:
    found = parse(line.encode())
    assert found.gpus == ()
    assert len(found.odd) == 1
    assert len(found.odd[0]) <= 240


def test_what_is_kept_is_bounded() -> None:
    many = "\n".join(f"{index}, {UUID}, X, 1, 2, 3, 4, 5, 6" for index in range(3000))
    found = parse(many.encode() + b"\nodd" * 100)
    assert len(found.gpus) == 1024
    assert len(found.odd) == 8


@given(st.binary(max_size=400))
def test_bytes_never_break_it(data: bytes) -> None:
    parse(data)
    assert "\n" not in complaint(data)


_FIELD = st.text(alphabet="0123456789-.,[]N/A \x00\x1b\u202e\uff10é", max_size=12)


@given(st.lists(_FIELD, max_size=12), st.sampled_from((", ", ",")))
def test_fields_never_break_it(fields: list[str], separator: str) -> None:
    for gpu in parse(separator.join(fields).encode()).gpus:
        assert 0 <= gpu.index < 10_000


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\r,"), min_size=1, max_size=40))
def test_every_name_is_kept(name: str) -> None:
    (gpu,) = parse(f"0, {UUID}, {name}, 1, 2, 3, 4, 5, 6".encode()).gpus
    assert gpu.name in (name.strip(), None)
    assert gpu.utilization == 1.0


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ((b"", b"\n  NVIDIA-SMI has failed\nmore\n"), "NVIDIA-SMI has failed"),
        ((b"\xffbad\n", b"x"), "\\xffbad"),
        ((b"x" * 5000,), "x" * 240),
        ((b"", b""), ""),
    ],
)
def test_the_first_line_of_a_complaint(outputs: tuple[bytes, ...], text: str) -> None:
    assert complaint(*outputs) == text
