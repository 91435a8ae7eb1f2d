"""Reading a sampler's output, whatever it contains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.cli.top.reading import Compute, ComputeReader, GpuReader, LineBuffer

ROW = b"0, GPU-a, H100, 97, 70123, 81559, 690.1, 64, 0, 0x0000000000000004\n"


def compute(*samples: str, head: str = "A 0-7 8") -> Compute | None:
    reader = ComputeReader()
    reader.feed("\n".join([head, *samples, ""]).encode())
    return reader.latest


def test_a_machine() -> None:
    """user, nice, system, idle, iowait, irq, softirq, steal, guest: idle and waiting times do not count as CPU use."""
    before = "T 10 5\nS 100 0 100 1000 0 0 0 0 50 0\nM 1000\nF 400\n."
    after = "T 11 5\nS 250 0 150 1500 100 0 0 0 99 0\nM 1000\nF 300\n."
    assert compute(before) == Compute("machine", None, 8.0, 600 * 1024, 1000 * 1024)
    assert compute(before, after) == Compute("machine", 8 * 200 / 800, 8.0, 700 * 1024, 1000 * 1024)


def container(second: float, spent: int, *, version: int = 2, limit: str = "4096", quota: str = "400 100") -> str:
    return f"T {second} 0\nM 1000\nF 1\nV {version}\nU 3000\nL {limit}\nI 1000\nP {spent}\nQ {quota}\n."


def test_a_container() -> None:
    samples = container(10, 1_000_000), container(12, 6_000_000)
    assert compute(*samples) == Compute("container", 2.5, 4.0, 2000.0, 4096.0)
    old = container(10, 0, version=1), container(12, 5_000_000_000, version=1)
    assert compute(*old) == Compute("container", 2.5, 4.0, 2000.0, 4096.0)


@pytest.mark.parametrize(("limit", "quota"), [("max", "max 100"), ("9223372036854771712", "-1 100")])
def test_no_limit_is_the_machines(limit: str, quota: str) -> None:
    """With version 1, it may be the machine itself."""
    assert compute(container(1, 1, limit=limit, quota=quota)) == Compute("container", None, 8.0, 2000.0, 1000 * 1024)
    found = compute(container(1, 1, limit=limit, quota=quota, version=1))
    assert found is not None
    assert found.scope == "machine"


def test_a_counter_that_goes_back_gives_no_use() -> None:
    found = compute(container(10, 5), container(12, 4))
    assert found is not None
    assert found.cpu is None
    assert compute(container(10, 5), container(10, 9)) == compute(container(10, 9), container(10, 5))


@pytest.mark.parametrize(
    "sample",
    ["T x\n.", ".", "T 1\nS 1\nM\nF\n.", "T 1\nV 7\nU 1\n.", "T 1\nM 5\nF 9\n.", "T -3\n.", "T 1\nS a b c d e f g\n."],
)
def test_odd_samples_are_no_numbers(sample: str) -> None:
    found = compute(sample, head="A 9-3 x")
    assert found is None or (found.cpu, found.memory) == (None, None)


def test_a_line_is_bounded() -> None:
    lines = LineBuffer()
    assert lines.feed(b"x" * 5000) == []
    assert lines.feed(b"y" * 5000 + b"\nz\n" + b"w" * 5000) == [b"x" * 1024, b"z"]
    assert lines.feed(b"\n") == [b"w" * 1024]


def test_a_look_at_gpus() -> None:
    reader = GpuReader()
    reader.feed(b"G 0\n" + ROW[:20])
    assert (reader.asked, reader.latest) == (True, None)
    reader.feed(ROW[20:] + b"\nE 0\n")
    assert reader.latest is not None
    assert [gpu.clock_reasons for gpu in reader.latest.readout.gpus] == [4]


@pytest.mark.parametrize(
    ("said", "code", "trouble"),
    [
        (b"boom\n", 9, "nvidia-smi ended with 9: boom"),
        (b"", 137, "nvidia-smi ended with signal 9"),
        (b"words\n", 0, "nvidia-smi printed no GPU: words"),
        (b"", 0, "nvidia-smi said nothing"),
        (b"No devices were found\n", 6, ""),
        (ROW + b"Unable to determine the device handle\n", 255, ""),
    ],
)
def test_trouble(said: bytes, code: int, trouble: str) -> None:
    reader = GpuReader()
    reader.feed(b"G 0\n" + said + b"\nE %d\n" % code)
    assert reader.latest is not None
    assert reader.latest.trouble == trouble


def test_a_query_that_is_refused_is_no_look() -> None:
    reader = GpuReader()
    reader.feed(b"G 0\nnot a valid field\n\nE 2\n")
    assert (reader.count, reader.latest) == (0, None)


def test_without_end_it_keeps_little() -> None:
    reader = GpuReader()
    reader.feed(b"early\n" * 1000 + b"G 0\n")
    for _ in range(100):
        reader.feed(ROW * 1000)
    held = sum(map(len, reader._said)) + sum(map(len, reader._early))
    assert held < 300_000
    reader.feed(b"E 0\n")
    assert reader.count == 1


@given(st.lists(st.binary(max_size=200)))
def test_bytes_never_break_it(chunks: list[bytes]) -> None:
    compute, gpus = ComputeReader(), GpuReader()
    for chunk in chunks:
        compute.feed(chunk)
        gpus.feed(chunk)


_WORDS = st.sampled_from(
    (
        "A",
        "T",
        "S",
        "M",
        "F",
        "V",
        "U",
        "L",
        "I",
        "P",
        "Q",
        ".",
        "G",
        "E",
        "N",
        " ",
        "\n",
        "0",
        "2",
        "-1",
        "max",
        "99",
        "1.5",
        "-",
    )
)


@given(st.lists(_WORDS, max_size=60), st.integers(1, 7))
def test_words_never_break_it_and_cuts_change_nothing(words: list[str], size: int) -> None:
    data = "".join(words).encode()
    whole, cut = ComputeReader(), ComputeReader()
    whole_gpus, cut_gpus = GpuReader(), GpuReader()
    whole.feed(data)
    whole_gpus.feed(data)
    for start in range(0, len(data), size):
        cut.feed(data[start : start + size])
        cut_gpus.feed(data[start : start + size])
    assert (whole.latest, whole.count) == (cut.latest, cut.count)
    assert (whole_gpus.latest, whole_gpus.absent) == (cut_gpus.latest, cut_gpus.absent)
