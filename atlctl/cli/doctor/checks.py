"""What a check found, and the words for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from atlctl.cli.catalogue import Language
from atlctl.jobs.errors import AtlctlError, ExitCode


class Status(StrEnum):
    """`warn`: something cannot be done. `fail`: jobs cannot be looked at. `skipped`: there was nothing to look at, or
    it was left alone; no fault."""

    SKIPPED = "skipped"
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `text` and `fix` may hold hostile words; `fix` is a command or a sentence."""

    name: str
    status: Status
    text: str
    fix: str | None = None


@dataclass(slots=True)
class Report:
    """All checks in their order, and what they found as data for `-o json`."""

    checks: list[Check] = field(default_factory=list)
    #: The server does not know who asks.
    unauthenticated: bool = False
    #: The Role and RoleBinding that give what is missing.
    role: list[dict[str, Any]] = field(default_factory=list)
    #: Where nothing is set up yet: a command and what it does, for each way to begin.
    first_steps: list[tuple[str, str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def ok(self, name: str, text: str) -> None:
        self.checks.append(Check(name, Status.OK, text))

    def skip(self, name: str, text: str, fix: str | None = None) -> None:
        self.checks.append(Check(name, Status.SKIPPED, text, fix))

    def warn(self, name: str, text: str, fix: str | None = None) -> None:
        self.checks.append(Check(name, Status.WARN, text, fix))

    def fail(self, name: str, text: str, fix: str | None = None) -> None:
        self.checks.append(Check(name, Status.FAIL, text, fix))

    def refused(self, name: str, error: AtlctlError) -> None:
        """The check that shows that nobody is logged in."""
        self.unauthenticated = True
        self.fail(name, error.message, error.hint)

    @property
    def verdict(self) -> Status:
        """The worst of all checks that were made."""
        return worst(check.status for check in self.checks)

    @property
    def exit_code(self) -> int:
        if self.unauthenticated:
            return int(ExitCode.NOT_ALLOWED)
        return int(ExitCode.FAILED if self.verdict is Status.FAIL else ExitCode.OK)


def worst(found: Iterable[Status]) -> Status:
    order = list(Status)
    return max([Status.OK, *found], key=order.index)


class Words:
    """The texts of the checks in one language."""

    def __init__(self, lang: Language) -> None:
        if lang == "zh":
            from atlctl.cli.catalogue.doctor_zh import TEXTS
        else:
            from atlctl.cli.catalogue.doctor_en import TEXTS
        self._texts = TEXTS

    def __call__(self, key: str, **values: object) -> str:
        return self._texts[key].format(**values)
