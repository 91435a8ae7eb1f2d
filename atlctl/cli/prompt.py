"""Questions to the person at the terminal."""

from __future__ import annotations

import os
import select

from atlctl.cli.runtime import asking, context
from atlctl.i18n import Message, translated
from atlctl.jobs.errors import Declined, UsageError

#: A signal that comes between two looks is noticed within this time, in seconds.
LOOK_SECONDS = 0.2


def confirm(question: str, otherwise: Message) -> None:
    """Ask on stderr, read a line from stdin; only `y`, `yes` and their Chinese equivalents agree.

    Raises Declined with `otherwise` after any other answer, UsageError (exit 2) if there is no terminal; nothing was
    written then.
    """
    if not context().streams.can_prompt:
        raise UsageError(Message("this needs a yes, and there is no terminal to ask on"), Message("add --yes"))
    answer = b""
    with asking():
        context().writer.put("stderr", translated(Message("{question} [y/N] ", question=question)).encode())
        context().writer.flush(5.0)
        while not answer.endswith(b"\n"):
            # A read would sleep through a signal that came just before it.
            if not select.select([0], [], [], LOOK_SECONDS)[0]:
                continue
            data = os.read(0, 1024)
            if not data:
                context().writer.put("stderr", b"\n")  # Ctrl-D leaves the cursor behind the question
                break
            answer += data
    if answer.strip().lower().decode(errors="replace") not in ("y", "yes", "是"):
        raise Declined(otherwise)
