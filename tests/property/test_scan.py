"""The scanner against a simple one that has the whole stream: any cut into chunks, any bytes, both sieves."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atlctl.diagnosis import scanner
from atlctl.diagnosis.scanner import Scanner, Sieve, plain_sieve, vector_sieve

LITERALS = (b"Error", b"[rank", b"closing signal", b"CUDA error", b"rn", b"a.b*c")
PIECES = [
    *LITERALS, b"Err", b"or", b"[ran", b"k", b"closing ", b"signal", b"CUDA", b" e", b"+", b"+more",
    b"\n", b"\n", b"\n", b"\n\n", b"\r", b"\r\n", b"\0", b"\x1b[31m", b"x" * 7, b"loss 2.3 " * 4, b"y" * 90,
    "█".encode(), b"\xe2\x96", b"\x88", b"\xff\xfe", b"\xed\xa0\x80", "训练".encode("gbk"), b"aXb",
]  # fmt: skip
streams = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=3)), max_size=40).map(b"".join)
edges = st.sampled_from([0, 1, 2, 9, 30, 200])
MAKERS = [vector_sieve, plain_sieve]
LIMIT = 24

Calls = list[tuple[int, bytes]]
Maker = Callable[[tuple[bytes, ...]], Sieve]


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Blocks and limits so small that short streams reach every border."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"LINE_LIMIT": LIMIT, "_FIRST": 10, "_LAST": 7, "_BLOCK": 16, "_WIDEST": 32}
        for name, size in sizes.items():
            patch.setattr(scanner, name, size)
        yield


def wants_more(line: bytes) -> bool:
    return b"+" in line[:10]


def scan(data: bytes, cuts: list[int], head: int, tail: int, maker: Maker) -> tuple[Calls, int]:
    calls: Calls = []

    def take(number: int, line: bytes) -> bool:
        calls.append((number, line))
        return wants_more(line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "sieve_for", lambda literals: maker(tuple(literals)))
        scanning = Scanner(LITERALS, take, head=head, tail=tail)
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(borders):
        scanning.feed(data[start:end])
    return calls, scanning.finish()


def simple(data: bytes, head: int, tail: int) -> tuple[Calls, int]:
    """The same by the letter of the description, with everything in memory."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    calls: Calls = []
    start, follow = 0, False
    for number, line in enumerate(lines, 1):
        end = min(start + len(line) + 1, len(data))
        if follow or start < head or end > len(data) - tail or any(literal in line for literal in LITERALS):
            shown = line if len(line) <= LIMIT else line[:10] + b" [...] " + line[-7:]
            calls.append((number, shown))
            follow = wants_more(shown)
        start = end
    return calls, len(lines)


@pytest.mark.parametrize("maker", MAKERS)
@settings(deadline=None, max_examples=400)
@given(streams, st.lists(st.integers(0, 2000), max_size=12), edges, edges)
@example(b"y" * 300 + b"Err" + b"or" + b"y" * 300 + b"\nz\n" * 30, [303], 0, 0)
@example(b"ok\n" * 50 + b"+Error\nthe end", [], 0, 0)
@example(b"ok\n" * 50 + b"+Error\n" + b"y" * 300 + b"\n" + b"ok\n" * 50, [170, 200], 0, 0)
@example(b"ok\n" * 50 + b"\xffError\nok\n" + "█\nError\n".encode() + b"ok\n" * 50, [], 0, 9)
def test_any_cut_gives_the_lines_of_the_simple_way(
    maker: Maker, data: bytes, cuts: list[int], head: int, tail: int
) -> None:
    expected = simple(data, head, tail)
    assert scan(data, cuts, head, tail, maker) == expected
    assert scan(data, list(range(len(data))), head, tail, maker) == expected


@pytest.mark.parametrize("maker", MAKERS)
@settings(deadline=None, max_examples=400)
@given(
    streams,
    st.sets(st.sampled_from([*LITERALS, "训".encode(), b"x", b"\r", b"xx", b"^$", b"(?i)", b"signal"]), min_size=1),
)
def test_a_sieve_says_what_a_search_for_each_literal_says(maker: Maker, data: bytes, literals: set[bytes]) -> None:
    assert maker(tuple(literals))(data) == any(literal in data for literal in literals)
