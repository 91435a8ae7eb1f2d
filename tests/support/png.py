"""Reads pictures from browsers: PNG with 8 bits, RGB or RGBA, not interlaced."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Picture:
    """`rows` of `width` pixels with `depth` bytes each."""

    width: int
    height: int
    depth: int
    rows: list[bytes]

    def pixel(self, x: int, y: int) -> tuple[int, ...]:
        return tuple(self.rows[y][x * self.depth : x * self.depth + 3])

    def colours(self, step: int = 3) -> set[bytes]:
        """The colours of each `step`th pixel."""
        return {row[at : at + 3] for row in self.rows[::step] for at in range(0, len(row), self.depth * step)}


def read(path: Path) -> Picture:
    """Raises ValueError for any other format."""
    data, at, packed = path.read_bytes(), 8, b""
    width = height = depth = 0
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            if bits != 8 or colour not in (2, 6) or interlaced:
                raise ValueError("another form of PNG")
            depth = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += size + 12
    raw, length = zlib.decompress(packed), width * depth
    rows: list[bytes] = []
    before = bytes(length)
    for y in range(height):
        start = y * (length + 1)
        before = _unfiltered(raw[start], raw[start + 1 : start + 1 + length], before, depth)
        rows.append(before)
    return Picture(width, height, depth, rows)


def _unfiltered(kind: int, line: bytes, above: bytes, depth: int) -> bytes:
    if kind == 0:
        return line
    made = bytearray(line)
    if kind == 2:
        return bytes((one + other) & 255 for one, other in zip(line, above, strict=True))
    for at in range(len(made)):
        left = made[at - depth] if at >= depth else 0
        up = above[at]
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            corner = above[at - depth] if at >= depth else 0
            middle = left + up - corner
            guess = min((left, up, corner), key=lambda value: abs(middle - value))
        made[at] = (made[at] + guess) & 255
    return bytes(made)
