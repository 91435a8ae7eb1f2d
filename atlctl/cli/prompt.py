"""Questions to the person at the terminal."""

from __future__ import annotations

import os
import select
import termios

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
    with asking():
        answer = _line(Message("{question} [y/N] ", question=question))
    if answer.strip().lower().decode(errors="replace") not in ("y", "yes", "是"):
        raise Declined(otherwise)


def secret(question: Message) -> str | None:
    """Ask on stderr, and read a line from the terminal without showing it, in any mode of the terminal. None without a
    terminal, or for an empty line."""
    if not context().streams.can_prompt:
        return None
    before, mode = termios.tcgetattr(0), termios.tcgetattr(0)
    mode[0] |= termios.ICRNL
    mode[1] |= termios.OPOST
    mode[3] = (mode[3] | termios.ICANON | termios.ISIG) & ~termios.ECHO
    with asking():
        termios.tcsetattr(0, termios.TCSAFLUSH, mode)
        try:
            answer = _line(question)
            if answer.endswith(b"\n"):
                context().writer.put("stderr", b"\n")
            context().writer.flush(5.0)
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
    return answer.decode(errors="surrogateescape").rstrip("\r\n") or None


def _line(question: Message) -> bytes:
    context().writer.put("stderr", translated(question).encode())
    context().writer.flush(5.0)
    answer = b""
    while not answer.endswith(b"\n"):
        # A read would sleep through a signal that came just before it.
        if not select.select([0], [], [], LOOK_SECONDS)[0]:
            continue
        data = os.read(0, 1024)
        if not data:
            context().writer.put("stderr", b"\n")  # Ctrl-D leaves the cursor behind the question
            break
        answer += data
    return answer
