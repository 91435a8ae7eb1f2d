"""Figures of hardware that the user has added to those of the package."""

from __future__ import annotations

from atlctl.cli.hosts import settings
from atlctl.i18n import Message
from atlctl.jobs.config import read_toml
from atlctl.jobs.errors import UsageError
from atlctl.smoke.ranks.expected import BusbwRow, rows

_SEE = Message("see the page of smoke")


def own_busbw() -> tuple[BusbwRow, ...]:
    """The rows of all files that `[smoke] busbw` names. Raises UsageError where a file is missing or wrong."""
    found: list[BusbwRow] = []
    for path in settings().busbw:
        try:
            tables = read_toml(path, Message("file of busbw figures"))
        except FileNotFoundError as error:
            raise UsageError(
                Message("{path} is not there", path=path), Message("it is named by [smoke] busbw, or ATLCTL_BUSBW")
            ) from error
        row = tables.pop("row", None)
        if tables or not isinstance(row, list) or not all(isinstance(table, dict) for table in row):
            raise UsageError(Message("{path}: tables [[row]] are wanted, and nothing else", path=path), _SEE)
        try:
            found += rows(row)
        except ValueError as error:
            raise UsageError(Message("{path}: {why}", path=path, why=error.args[0]), _SEE) from error
    return tuple(found)
