"""How a finding is told, whatever it was made from: the document or the lines, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.jobs.errors import ExitCode

if TYPE_CHECKING:
    from atlctl.diagnosis.finding import Finding


def tell(
    finding: Finding,
    source: dict[str, Any],
    lines: Sequence[str],
    problems: Sequence[object],
    *,
    exit_code: bool,
    output: str,
) -> int:
    """Prints `source` and the finding as a document, else `lines`, cleaned; returns the command's exit code.

    `problems` are what could not be read, JSON-ready. With `exit_code` every verdict but `none` is 1.
    """
    from atlctl.diagnosis.report import to_data, verdict
    from atlctl.render.sanitize import clean

    if output in ("json", "yaml"):
        say.document({**source, **to_data(finding)}, problems)
    else:
        say.out("".join(f"{clean(line)}\n" for line in lines))
    return int(ExitCode.FAILED) if exit_code and verdict(finding) != "none" else int(ExitCode.OK)
