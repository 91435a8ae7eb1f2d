"""Says of a stretch of bytes whether it holds any of many literals: the inner loop of the scanner.

Nothing in the standard library does this fast: `in` needs one pass for each literal, `re` tries its
alternatives one by one. The regex engine of pydantic (which typer brings along) searches up to 64
literals in one pass with vector instructions. It tells yes or no, not where; the scanner halves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise

#: True where the bytes hold one of the literals.
Sieve = Callable[[bytes], bool]

#: More than these in one pattern, and the engine takes an automaton at a third of the speed.
GROUP = 64
#: More passes than these are slower than the automaton, whose speed hardly depends on the number of literals.
MOST_GROUPS = 6
#: A literal's bytes at most.
LONGEST = 1_000

#: Frequent in logs, so that a search should not stop at each of them; the most frequent first.
_FREQUENT = b" 0123456789etaonirsl.:,=|-_/'\"()dcumphgfEbIT"


@lru_cache(maxsize=8)
def sieve_for(literals: frozenset[bytes]) -> Sieve:
    """The fastest sieve that is here.

    Raises ValueError for a literal that is empty, not UTF-8, longer than `LONGEST` or holds a newline.
    """
    for literal in literals:
        if not 0 < len(literal) <= LONGEST or not _is_utf8(literal) or b"\n" in literal:
            raise ValueError(f"not a literal that can be looked for: {literal[:60]!r}")
    if not literals:
        return lambda _: False
    try:
        return vector_sieve(literals)
    except ImportError:
        return plain_sieve(literals)


def vector_sieve(literals: Iterable[bytes]) -> Sieve:
    """By the regex engine in pydantic's compiled core. Raises ImportError where that is not installed."""
    from pydantic_core import SchemaValidator, ValidationError, core_schema

    found = _needed(literals)
    groups = -(-len(found) // GROUP) if len(found) <= MOST_GROUPS * GROUP else 1
    # Neighbours in the alphabet share their first bytes, which the engine's first step looks at.
    cuts = [len(found) * number // groups for number in range(groups + 1)]
    searches = [
        SchemaValidator(
            core_schema.str_schema(pattern="|".join(map(_hex, found[start:end])), regex_engine="rust-regex")
        )
        for start, end in pairwise(cuts)
    ]

    def holds(data: bytes) -> bool:
        # It reads UTF-8 only, and says no to anything else: a no counts where the bytes are known to be UTF-8.
        readable = data.isascii()
        for search in searches:
            if readable:
                if search.isinstance_python(data):
                    return True
                continue
            try:
                search.validate_python(data)
            except ValidationError as error:
                [problem] = error.errors(include_url=False, include_context=False)
                if problem["type"] != "string_pattern_mismatch":
                    return holds(data.decode("utf-8", "replace").encode())
                readable = True
            else:
                return True
        return False

    return holds


def plain_sieve(literals: Iterable[bytes]) -> Sieve:
    """By `re`, several times slower. It stops only at bytes that are rare in logs and looks around from there."""
    found = _needed(literals)
    rare = _stops(found)
    around: dict[int, dict[bytes, list[bytes]]] = {}
    for literal in found:
        stop = min(rare.intersection(literal), key=_frequency)
        before, after = literal[: literal.index(stop)], literal[literal.index(stop) + 1 :]
        branch = re.escape(after[1:]) + (b"(?<=%s)" % re.escape(literal) if before else b"")
        around.setdefault(stop, {}).setdefault(after[:1], []).append(branch)
    search = re.compile(
        b"|".join(
            re.escape(bytes([stop])) + b"(?:%s)" % b"|".join(_one_of(*branch) for branch in branches.items())
            for stop, branches in around.items()
        )
    ).search
    return lambda data: search(data) is not None


def _needed(literals: Iterable[bytes]) -> list[bytes]:
    """In order, without those that hold another one."""
    unique = set(literals)
    return sorted(one for one in unique if not any(other in one for other in unique if other != one))


def _is_utf8(literal: bytes) -> bool:
    try:
        literal.decode()
    except UnicodeDecodeError:
        return False
    return True


def _hex(literal: bytes) -> str:
    """As a pattern of the engine in pydantic."""
    return "".join(char if char.isalnum() else f"\\u{{{ord(char):x}}}" for char in literal.decode())


def _one_of(first: bytes, rests: list[bytes]) -> bytes:
    return re.escape(first) + b"(?:%s)" % b"|".join(rests)


def _frequency(byte: int) -> float:
    """How often a byte is met in logs, roughly: a guess from a table, which decides on speed alone."""
    place = _FREQUENT.find(byte)
    return 0.001 if place < 0 else 0.05 * 0.93**place


def _stops(literals: list[bytes]) -> set[int]:
    """Bytes of which each literal holds at least one, together as rare as a greedy choice makes them."""
    left, chosen = set(literals), set[int]()
    while left:
        best = max(sorted(set(b"".join(left))), key=lambda byte: sum(byte in one for one in left) / _frequency(byte))
        chosen.add(best)
        left = {one for one in left if best not in one}
    return chosen
