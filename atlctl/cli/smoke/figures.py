"""Figures of hardware that the user has added to those of the package."""

from __future__ import annotations

from atlctl.cli.hosts import settings
from atlctl.jobs.config import read_toml
from atlctl.jobs.errors import UsageError
from atlctl.smoke.ranks.expected import BusbwRow, rows


def own_busbw() -> tuple[BusbwRow, ...]:
    """The rows of all files that `[smoke] busbw` names. Raises UsageError where a file is missing or wrong."""
    found: list[BusbwRow] = []
    for path in settings().busbw:
        try:
            tables = read_toml(path, "file of busbw figures")
        except FileNotFoundError as error:
            raise UsageError(f"{path} is not there", "it is named by [smoke] busbw, or ATLCTL_BUSBW") from error
        row = tables.pop("row", None)
        if tables or not isinstance(row, list) or not all(isinstance(table, dict) for table in row):
            raise UsageError(f"{path}: tables [[row]] are wanted, and nothing else", "see the page of smoke")
        try:
            found += rows(row)
        except ValueError as error:
            raise UsageError(f"{path}: {error}", "see the page of smoke") from error
    return tuple(found)
