"""The report for people: a line for each check, its fix below it; then how to begin, and the missing Role."""

from __future__ import annotations

from atlctl.cli.doctor.checks import Report, Status, Words
from atlctl.render.jsonout import yaml_dump
from atlctl.render.sanitize import clean
from atlctl.render.table import display_width

_COLORS = {Status.SKIPPED: "2", Status.OK: "32", Status.WARN: "33", Status.FAIL: "1;31"}
_LABELS = {status: "-" if status is Status.SKIPPED else str(status) for status in Status}
_WIDTH = max(map(len, _LABELS.values()))


def report_text(report: Report, words: Words, color: bool) -> str:
    """Ends in a newline. Hostile words are made harmless. The YAML is ready for `kubectl apply -f -`."""
    width = max((display_width(clean(check.name)) for check in report.checks), default=0)
    lines = []
    indent = " " * (_WIDTH + 2)
    for at, check in enumerate(report.checks):
        label = f"{_LABELS[check.status]:<{_WIDTH}}"
        if color:
            label = f"\x1b[{_COLORS[check.status]}m{label}\x1b[0m"
        name = clean(check.name)
        lines.append(f"{label}  {name}{' ' * (width - display_width(name))}  {clean(check.text)}")
        later = report.checks[at + 1].fix if at + 1 < len(report.checks) else None
        # Several checks may have one fix: it is told once, below the last of them.
        if check.fix is not None and check.fix != later:
            lines.append(f"{indent}{words('fix', fix=clean(check.fix))}")
    if report.first_steps:
        longest = max(len(command) for command, _ in report.first_steps)
        lines += ["", words("first")]
        lines += [f"  {command:<{longest}}  {text}" for command, text in report.first_steps]
    if report.role:
        documents = "---\n".join(yaml_dump(item) for item in report.role)
        lines += ["", f"# {words('role')}", documents.rstrip("\n")]
    return "".join(f"{line}\n" for line in lines)
