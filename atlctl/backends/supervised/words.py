"""Words of command lines and environments on their way to a supervisor, which reads and writes UTF-8."""

from __future__ import annotations

import os


def as_utf8(word: str) -> str:
    """The text that stands, in UTF-8 with escaped surrogates, for the bytes that `word` stands for in this locale."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")
