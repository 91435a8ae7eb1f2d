"""Bytes through descriptors: written whole, and read by lines, each of which is one value of JSON."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def write(descriptor: int, data: bytes) -> None:
    """All of it, however little of it is taken at once."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def tell(descriptor: int, value: Any) -> None:
    """One line. Not for several threads at once: a long line goes in parts."""
    write(descriptor, line(value))


def line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def cut(held: bytearray) -> list[bytes]:
    """Takes the whole lines out of `held`; the beginning of the next one stays."""
    whole, end, _ = held.rpartition(b"\n")
    del held[: len(whole) + len(end)]
    return [bytes(one) for one in whole.split(b"\n") if one]


def lines(descriptor: int) -> Iterator[bytes]:
    """Until its end."""
    held = bytearray()
    while True:
        data = os.read(descriptor, 1 << 16)
        if not data:
            return
        held += data
        yield from cut(held)
