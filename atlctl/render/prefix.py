"""The coloured `NAME: ` in front of a worker's lines."""

from __future__ import annotations

import zlib

from atlctl.render.sanitize import clean

#: Colours of the 256-colour palette with a contrast (WCAG) of at least 3.6 on black and on white; no red.
PALETTE = (28, 30, 32, 63, 94, 99, 100, 130, 132, 134, 163, 166)


def color_of(name: str) -> int:
    """A colour for `name`, the same in every run and on every machine."""
    return PALETTE[zlib.crc32(name.encode("utf-8", "surrogatepass")) % len(PALETTE)]


def prefix_for(name: str, color: bool) -> bytes:
    """`NAME: `, the name cleaned, and coloured when `color`."""
    shown = clean(name)
    return (f"\x1b[38;5;{color_of(name)}m{shown}:\x1b[0m " if color else f"{shown}: ").encode()
