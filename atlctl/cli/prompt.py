"""Questions to the person at the terminal."""

from __future__ import annotations

import os

from atlctl.cli.runtime import asking, context
from atlctl.jobs.errors import UsageError


def confirm(question: str) -> bool:
    """Ask on stderr, read a line from stdin; only `y` and `yes` agree.

    Raises UsageError (exit 2) where nobody can be asked: nothing was written then.
    """
    if not context().streams.can_prompt:
        raise UsageError("this needs a yes, and there is no terminal to ask on", "add --yes")
    context().writer.put("stderr", f"{question} [y/N] ".encode())
    context().writer.flush(5.0)
    answer = b""
    with asking():
        while not answer.endswith(b"\n"):
            data = os.read(0, 1024)
            if not data:
                break
            answer += data
    return answer.strip().lower() in (b"y", b"yes")
