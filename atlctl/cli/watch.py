"""`--watch`: a listing again whenever it changes, over connections that are lost and come back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from atlctl.cli import say
from atlctl.cli.runtime import context
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched, Replaced, UsageError

if TYPE_CHECKING:
    from atlctl.backends.base import Backend

_SECONDS = 1.0
#: The same for a server that others use as well.
_REMOTE_SECONDS = 5.0
_HOME, _REST_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


async def show(look: Callable[[], Awaitable[tuple[str, bool]]], source: Backend, output: str, *, watch: bool) -> None:
    """What `look` returns, on stdout; with `watch` again when it changed, until it returns that nothing will change.

    Errors of the first look are the command's. After that, a server that is not there is waited for.
    """
    shown, over = await look()
    if not watch:
        say.out(shown)
        return
    # A terminal without escapes gets each one below the last.
    screen = context().streams.stdout_tty and output in ("table", "wide") and os.environ.get("TERM") != "dumb"
    said, waits = "", False
    while True:
        if shown != said:
            # Drawn over the last one: an empty screen in between would flicker.
            said = shown
            text = shown.removesuffix("\n").replace("\n", f"{_REST_OF_LINE}\n")
            say.out(f"{_HOME}{text}{_BELOW}\n" if screen else shown)
            await context().writer.drain()
        try:
            shown, over = await look()
        except (NothingMatched, NotAllowed, Replaced, UsageError):
            raise
        except AtlctlError as error:
            if not waits:
                say.note(say.waiting(error.message))
            waits = True
        else:
            if waits:
                say.note(Message("connected again"))
                said = "" if screen else said  # notes are on it
            waits = False
            if shown == said and over:
                return
        with say.doing(Message("watching; Ctrl-C ends this")):
            await asyncio.sleep(_SECONDS if source.name == "local" else _REMOTE_SECONDS)
