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
