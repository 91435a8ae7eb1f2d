"""Entries that a client keeps of jobs under a supervisor, one for each name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from atlctl.jobs.errors import AtlctlError, NothingMatched

T = TypeVar("T")


def load_each(names: Iterable[str], load: Callable[[str], T]) -> tuple[list[T], list[AtlctlError]]:
    """All entries that can be read, and an error for each one that cannot."""
    entries, errors = [], []
    for name in names:
        try:
            entries.append(load(name))
        except NothingMatched:
            continue  # removed between the listing and the look
        except AtlctlError as error:
            errors.append(error)
    return entries, errors
