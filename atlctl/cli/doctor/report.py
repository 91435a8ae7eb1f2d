"""The results of the checks of `doctor`: exit code and text."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from atlctl.i18n import Language, Message, about, translated
from atlctl.jobs.errors import AtlctlError, ExitCode
from atlctl.render.jsonout import yaml_dump
from atlctl.render.palette import Tone, painted_head
from atlctl.render.sanitize import clean
from atlctl.render.streams import Streams
from atlctl.render.width import display_width, padded, wrapped


class Status(StrEnum):
    """`warn`: something cannot be done. `fail`: jobs cannot be looked at. `skipped`: there was nothing to look at, or
    it was left alone; no fault."""

    SKIPPED = "skipped"
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One line of the report. `text` and `fix` may hold hostile words; `fix` is a command or a sentence."""

    name: str
    status: Status
    text: str
    fix: str | None = None


@dataclass(slots=True)
class DoctorReport:
    """All checks in their order, and what they found as data for `-o json`."""

    checks: list[DoctorCheck] = field(default_factory=list)
    #: The server did not authenticate the user.
    unauthenticated: bool = False
    #: The Role and RoleBinding that grant the missing permissions.
    role: list[dict[str, Any]] = field(default_factory=list)
    #: Where nothing is set up yet: a command and what it does, for each way to begin.
    first_steps: list[tuple[str, str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def ok(self, name: str, text: str) -> None:
        self.checks.append(DoctorCheck(name, Status.OK, text))

    def skip(self, name: str, text: str, fix: str | None = None) -> None:
        self.checks.append(DoctorCheck(name, Status.SKIPPED, text, fix))

    def warn(self, name: str, text: str, fix: str | None = None) -> None:
        self.checks.append(DoctorCheck(name, Status.WARN, text, fix))

    def fail(self, name: str, text: str, fix: str | None = None) -> None:
        self.checks.append(DoctorCheck(name, Status.FAIL, text, fix))

    def refused(self, name: str, error: AtlctlError) -> None:
        """Add the check for a refused login."""
        self.unauthenticated = True
        self.fail(name, error.message, error.hint)

    @property
    def verdict(self) -> Status:
        """The worst of all checks that were made."""
        return max([Status.OK, *(check.status for check in self.checks)], key=list(Status).index)

    @property
    def exit_code(self) -> int:
        if self.unauthenticated:
            return int(ExitCode.NOT_ALLOWED)
        return int(ExitCode.FAILED if self.verdict is Status.FAIL else ExitCode.OK)


_TONES = {Status.SKIPPED: Tone.DIM, Status.OK: Tone.OK, Status.WARN: Tone.WARN, Status.FAIL: Tone.FAIL}
#: Narrower terminals get texts below the names of their checks.
_NARROW = 70
_LABELS = {
    Status.SKIPPED: "-",
    Status.OK: about("doctor", "ok"),
    Status.WARN: Message("warn"),
    Status.FAIL: Message("fail"),
}


def report_text(report: DoctorReport, streams: Streams, lang: Language | None = None) -> str:
    """In the reader's language, or in `lang`. Ends in a newline. Hostile words are made harmless. The YAML is ready for
    `kubectl apply -f -`."""
    say = functools.partial(translated, lang=lang)
    width = max((display_width(clean(check.name)) for check in report.checks), default=0)
    labels = {status: say(label) for status, label in _LABELS.items()}
    room = max(map(display_width, labels.values()))
    hang = room + width + 4 if streams.width >= _NARROW else room + 2
    lines: list[str] = []

    def add(text: str, hang: int) -> list[str]:
        """On a terminal it wraps at words."""
        return wrapped(text, streams.width, hang) if streams.stdout_tty else [text]

    for at, check in enumerate(report.checks):
        label, name = padded(labels[check.status], room), padded(clean(check.name), width)
        first, *rest = add(f"{label}  {name}  {clean(say(check.text))}", hang)
        lines += [painted_head(first, label, _TONES[check.status], streams.stdout_color), *rest]
        later = report.checks[at + 1].fix if at + 1 < len(report.checks) else None
        # If several checks have the same fix, it is shown once, below the last of them.
        if check.fix is not None and check.fix != later:
            fix = Message("fix: {fix}", fix=check.fix)
            head, text = (" " * (room + 2) + clean(say(one)) for one in (fix.filled(fix=""), fix))
            # A command is to be copied: only a sentence wraps.
            first, *rest = add(text, room + 4) if isinstance(check.fix, Message) else [text]
            lines += [painted_head(first, head.rstrip(" "), Tone.NOTE, streams.stdout_color), *rest]
    if report.first_steps:
        longest = max(len(command) for command, _ in report.first_steps)
        lines += ["", say(Message("Nothing is set up yet. To begin, one of these:"))]
        for command, text in report.first_steps:
            first, *rest = add(f"  {command:<{longest}}  {say(text)}", longest + 4)
            lines += [painted_head(first, f"  {command}", Tone.NOTE, streams.stdout_color), *rest]
    if report.role:
        documents = "---\n".join(yaml_dump(item) for item in report.role)
        missing = Message(
            "Missing permissions, for an administrator: kubectl apply -f FILE. Rules with only 'delete' are for "
            "stop --delete."
        )
        lines += ["", f"# {say(missing)}", documents.rstrip("\n")]
    return "".join(f"{line}\n" for line in lines)
