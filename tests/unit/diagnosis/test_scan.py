"""The scanner and its filters: passed and rejected lines, memory and time."""

import sys
import tracemalloc
from collections.abc import Iterable

import pytest

from atlctl.diagnosis import scanner
from atlctl.diagnosis.logline import LINE_LIMIT
from atlctl.diagnosis.scanner import Scanner, plain_sieve, sieve_for, vector_sieve

LITERALS = (b"Traceback (most recent call last)", b"Error:", b"[rank", b"exitcode")
QUIET = b"step 17 loss 2.31 lr 1e-4 tokens/s 10234.5\n"


def numbers(chunks: Iterable[bytes], *, head: int = 0, tail: int = 0) -> list[int]:
    return [number for number, _ in taken(chunks, head=head, tail=tail)]


def taken(chunks: Iterable[bytes], *, head: int = 0, tail: int = 0, follow: bytes = b"\0") -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []

    def take(number: int, line: bytes) -> bool:
        found.append((number, line))
        return follow in line

    scanning = Scanner(LITERALS, take, head=head, tail=tail)
    for chunk in chunks:
        scanning.feed(chunk)
    scanning.finish()
    return found


def test_lines_that_hold_a_literal_come_with_their_numbers() -> None:
    data = QUIET * 50_000 + b"ValueError: no\r\n" + QUIET * 50_000 + b"  exitcode  : 1\n" + QUIET * 50_000
    assert taken([data]) == [(50_001, b"ValueError: no\r"), (100_002, b"  exitcode  : 1")]


def test_a_literal_and_a_newline_cut_by_chunks() -> None:
    data = QUIET * 20_000
    assert taken([data + b"Trace", b"back (most recent call last):", b"\n" + data]) == [
        (20_001, b"Traceback (most recent call last):")
    ]


def test_no_literal_reaches_over_a_newline() -> None:
    assert numbers([QUIET * 9 + b"exit\ncode\n" + QUIET]) == []


def test_lines_that_follow_until_the_reader_has_enough() -> None:
    data = QUIET * 20_000 + b"Error: >\n> two\n\nnot this\n" + QUIET * 20_000
    assert taken([data], follow=b">") == [(20_001, b"Error: >"), (20_002, b"> two"), (20_003, b"")]


def test_first_and_last_lines_are_taken_in_any_case() -> None:
    data = b"".join(b"%08d\n" % number for number in range(1, 300_001))
    assert numbers([data], head=19, tail=10) == [1, 2, 3, 299_999, 300_000]
    assert numbers([data[:-1]], head=18, tail=8) == [1, 2, 300_000]
    assert numbers([data[:36]], head=1000, tail=1000) == [1, 2, 3, 4]


@pytest.mark.parametrize(("data", "lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"\n\n", 2), (b"a\nb", 2)])
def test_number_of_lines(data: bytes, lines: int) -> None:
    scanning = Scanner(LITERALS, lambda _number, _line: False)
    scanning.feed(data)
    assert scanning.finish() == lines


def test_a_long_line_is_shown_by_its_ends_and_searched_as_a_whole() -> None:
    bars = b"\r 45%|####    | 450/1000" * 100_000
    found = taken(
        [QUIET * 100, bars, b"Traceback (most recent call last):\n", b"x" * 9_000_000, b"Error:" + bars + b"\n"]
    )
    assert [number for number, _ in found] == [101, 102]
    assert found[0][1].startswith(b"\r 45%")
    assert found[0][1].endswith(b"1000Traceback (most recent call last):")
    assert b"x [...] " in found[1][1]
    assert [len(line) for _, line in found] == [LINE_LIMIT, LINE_LIMIT]


def test_memory_is_bounded_without_a_newline() -> None:
    chunk = b"\r 45%|####    | 450/1000" * 5_000
    tracemalloc.start()
    try:
        assert numbers(chunk for _ in range(400)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000


@pytest.mark.parametrize("gap", [0, 1, 3, 10, 30, 100, 1000])
def test_each_byte_is_looked_at_a_few_times_however_dense_the_literals_are(
    gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0

    def counting(literals: frozenset[bytes]) -> scanner.Sieve:
        holds = vector_sieve(literals)

        def count(data: bytes) -> bool:
            nonlocal looked
            looked += len(data)
            return holds(data)

        return count

    monkeypatch.setattr(scanner, "sieve_for", counting)
    data = (b"[rank3]: step 17 loss 2.3\n" + QUIET * gap) * (60_000 // (gap + 1))
    assert len(numbers([data])) == 60_000 // (gap + 1)
    assert looked < 6 * len(data)


def test_a_reader_that_fails_is_heard() -> None:
    def take(_number: int, _line: bytes) -> bool:
        raise KeyError("broken")

    scanning = Scanner(LITERALS, take)
    scanning.feed(QUIET)
    with pytest.raises(KeyError):
        scanning.finish()


@pytest.mark.parametrize("literal", [b"", b"two\nlines", b"\xe9", b"x" * 1001])
def test_literals_that_cannot_be_looked_for(literal: bytes) -> None:
    with pytest.raises(ValueError, match="not a literal"):
        sieve_for(frozenset({literal, b"Error"}))


@pytest.mark.parametrize("maker", [vector_sieve, plain_sieve])
def test_a_literal_beyond_ascii_is_found_also_among_bytes_that_are_no_utf8(maker) -> None:
    holds = maker(["密码".encode(), b"Error"])
    texts = ["我的密码：".encode(), b"\xff" + "密码".encode(), b"\xe5\xaf", b"plain"]
    assert [holds(data) for data in texts] == [True, True, False, False]


@pytest.mark.parametrize("maker", [vector_sieve, plain_sieve])
@pytest.mark.parametrize("count", [1, 64, 65, 150, 500])
def test_each_of_many_literals_is_found(maker, count: int) -> None:
    literals = [b"%d%s failed" % (number, b"zero one two three".split()[number % 4]) for number in range(count)]
    holds = maker(literals)
    for before, after in ((b"", b""), (b"\xff ", b"."), ("训练 ".encode(), b"\0")):
        assert all(holds(before + literal + after) for literal in literals)
        assert not any(holds(before + literal[:-1] + after) for literal in literals)


def test_nothing_to_look_for() -> None:
    assert not sieve_for(frozenset())(b"Error")


def test_without_the_vector_engine_the_plain_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_core", None)
    sieve_for.cache_clear()
    try:
        assert numbers([QUIET * 3 + b"\xffexitcode\n"]) == [4]
    finally:
        sieve_for.cache_clear()


def enough(data: bytes, *, most: int, keep: int, chunk: int = 1 << 18, tail: int = 0) -> tuple[Scanner, list[int], int]:
    """The scanner, the numbers of the lines that it took, and the number of all lines."""
    found: list[int] = []
    lines = data.split(b"\n")

    def take(number: int, line: bytes) -> bool:
        assert line[-1000:] == lines[number - 1][-1000:]
        found.append(number)
        return False

    scanning = Scanner(LITERALS, take, head=0, tail=tail, most=most, keep=keep)
    for at in range(0, len(data), chunk):
        scanning.feed(data[at : at + chunk])
    return scanning, found, scanning.finish()


def dense(count: int) -> bytes:
    return b"".join(b"%07d Error: x\n" % number for number in range(1, count + 1))


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 18, 1 << 30])
def test_after_enough_lines_only_the_end_is_searched(chunk: int) -> None:
    scanning, found, lines = enough(dense(200_000), most=1_000, keep=64_000, chunk=chunk)
    assert (lines, found[:1_000], found[-1]) == (200_000, [*range(1, 1_001)], 200_000)
    assert scanning.skipped is not None
    first, last = scanning.skipped
    assert (first, found[1_000]) == (1_001, last + 1)
    assert found[1_000:] == [*range(last + 1, 200_001)]
    assert 200_000 - last == 64_000 // 17


def test_lines_without_a_literal_are_no_reason_to_skip_any() -> None:
    data = QUIET * 300_000 + dense(999) + QUIET * 300_000
    scanning, found, lines = enough(data, most=1_000, keep=1_000)
    assert (scanning.skipped, found, lines) == (None, [*range(300_001, 301_000)], 600_999)


@pytest.mark.parametrize("keep", [16 * 4_000, 16 * 5_000])
def test_nothing_is_skipped_if_the_rest_is_kept(keep: int) -> None:
    scanning, found, lines = enough(dense(5_000), most=1_000, keep=keep)
    assert (scanning.skipped, found, lines) == (None, [*range(1, 5_001)], 5_000)


@pytest.mark.parametrize("end", [b"", b"x", b"x" * 300_000, b"\n", b"\nError:"])
def test_any_end_behind_skipped_lines_is_counted(end: bytes) -> None:
    data = dense(100_000) + end
    scanning, found, lines = enough(data, most=10, keep=1_000, chunk=1_000, tail=5)
    assert lines == len(data.removesuffix(b"\n").split(b"\n"))
    assert scanning.skipped is not None
    assert found[:10] == [*range(1, 11)]


def test_memory_is_bounded_if_lines_are_skipped() -> None:
    block = dense(100_000)
    scanning = Scanner(LITERALS, lambda *_: False, most=1_000, keep=1 << 20)
    tracemalloc.start()
    try:
        for _ in range(100):
            for at in range(0, len(block), 1 << 18):
                scanning.feed(block[at : at + (1 << 18)])
        assert scanning.finish() == 100 * 100_000
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
