"""How a diagnosis is told, whatever it was made from: the document or the panel, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from atlctl.cli import say
from atlctl.cli.catalogue import language
from atlctl.cli.runtime import context
from atlctl.jobs.errors import ExitCode

if TYPE_CHECKING:
    from atlctl.diagnosis.result import Cause, Diagnosis, Proof
    from atlctl.diagnosis.signatures.model import Signature


def tell(
    diagnosis: Diagnosis,
    source: dict[str, Any],
    head: Sequence[str],
    problems: Sequence[object],
    *,
    exit_code: bool,
    output: str,
    verbose: bool,
    next_command: Callable[[Cause], str | None],
    place: Callable[[Proof], str],
    signatures: Iterable[Signature] = (),
) -> int:
    """Prints `source` and the diagnosis as a document, else `head` and the panel; returns the command's exit code.

    `problems` are what could not be read, JSON-ready. `next_command` is what to type to look further into a cause,
    `place` where a proof stands, both for people. `signatures` are the user's own. With `exit_code` every verdict
    but `none` is 1.
    """
    from atlctl.diagnosis.result import Verdict
    from atlctl.diagnosis.telling.data import to_data
    from atlctl.diagnosis.telling.guide import Guide

    guide = Guide.builtin(signatures)
    if output in ("json", "yaml"):
        say.document({**source, **to_data(diagnosis, guide)}, problems)
    else:
        from atlctl.diagnosis.telling.people import tell_people
        from atlctl.diagnosis.telling.told import Manner
        from atlctl.render.panel import render_panel
        from atlctl.render.sanitize import clean

        manner = Manner(language(), verbose, guide, place, next_command)
        panel = render_panel(tell_people(diagnosis, manner), context().streams)
        say.out("".join(f"{clean(line)}\n" for line in head) + panel)
    return int(ExitCode.FAILED) if exit_code and diagnosis.verdict is not Verdict.NONE else int(ExitCode.OK)
