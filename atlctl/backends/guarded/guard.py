r"""The `sh` texts that run a command in a container, show how it ended, and end it when its client is gone.

Kubernetes kills nothing when an exec's client goes away. But the end of the exec's stdin reaches the container, however
the client died, so a *watcher* reads it beside the command: at its end the command and all that it started get SIGTERM
and, a second later, SIGKILL. Only a network that is cut silently (no FIN, no RST) leaves the end of stdin to the
timeouts of API server and kubelet, which may be hours.

Texts for dash, busybox and bash as `sh`, in `remote/sh/guard/`:

- `GUARD`: the command reads /dev/null, the watcher the exec's stdin. Four processes: the shell that is the exec, one
  that waits for the command, the watcher, the command.
- `INPUT`, `TERMINAL`: the exec's stdin is the command's. The watcher is a separate exec. With `INPUT` the command
  does not start before the first line of input, which the client sends when the watcher reads: a client that dies
  before that leaves nothing.
- `WATCH`: only the watcher. It also ends processes that a command leaves behind. `LOOK`: reports if there are any.

Words for the client go to stderr behind a random mark (on a terminal: to its output), so that they cannot be taken for
the command's own output. S goes to stdout as well, since either stream may overtake the other on its way:

    S PID TIME       the command is about to be started; PID and start time (of /proc) of the exec's first process
    F CODE           it could not be: 126, 127
    X [TEXT] CODE    it ended; CODE as shells give it. TEXT is the shell's message about a signal. All stderr of the
                     command itself came before
    E                on stdout: all stdout of the command itself came before
    D                the shell that is the exec was killed, and how the command ends will not be known: it is ended
    R                the separate watcher reads
    G                nothing of the command is left
    L NUMBER         of a look: 1 if something of the command is left, 0 if not

and to the watcher on its stdin: a number (end it; tenths of a second until SIGKILL), `q` (go, and leave it alone), `?`
(D or no answer).

Who belongs to a command: every process with its mark in the environment (`ATLCTL_EXEC`, the one variable that is
added), every child of those, and every child of the shell that waits. Only processes that are younger than the exec are
looked at, so that a worker with a thousand processes is searched fast. A process that cleans its environment and loses
its parents is not found.

Shells turn a death by signal N into 128 + N. That it *was* a signal is proven by their messages: dash and busybox name
the signal of a foreground child (not SIGINT and SIGPIPE), bash in `jobs`. In the background of dash the command would
ignore SIGINT, and so it would in that of a bash with a trap on EXIT: there a file of no known format has "ended with
126", not "never run". busybox itself lets its children ignore SIGQUIT.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from atlctl.backends.base import Argv, quoted
from atlctl.remote.sending import shell

GUARD, INPUT, TERMINAL, WATCH, LOOK = (
    shell(f"guard/{name}") for name in ("guard", "input", "terminal", "watch", "look")
)


def line(text: str | None, before: Sequence[str], words: Sequence[bytes]) -> str:
    """The command line of `sh` for `words`, run by one of the texts, whose arguments `before` and they are then."""
    bare = tuple(word.decode("utf-8", "surrogateescape") for word in words)
    return quoted(Argv(bare if text is None else ("sh", "-c", text, "sh", *before, *bare))).text


def encoded(line: str) -> tuple[str, ...]:
    """The command that runs a command line of `sh`: UTF-8 words of characters that login shells leave alone between
    single quotes. Bytes of `line` that are not UTF-8 are lone surrogates."""
    before, mark, after = line.partition(_MARK)
    return ("sh", "-c", 'eval "$(printf %b "$1")"', "sh", _escaped(before) + mark + _escaped(after))


@lru_cache(8)  # up to its mark, the command is the same for all hosts
def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\0{ord(found[0]) & 0xFF:03o}", text)


#: Control characters and bytes that are not UTF-8; a backslash and a percent sign for fish, `!` and newlines for csh.
_SPECIAL = re.compile(r"[\x00-\x1f\x7f\\'%!\udc80-\udcff]")

#: The begin of every mark. Its first character is not in the rest, see `WordFilter`.
_MARK = "@atlctl-"
#: The longest line of the wrapper, in characters.
_LINE_LIMIT = 400
#: Shell messages about an end without a signal.
_BY_ITSELF = re.compile(r"\b(?:Done|Exit)\b|\([0-9]{1,3}\)")
#: The message of bash about a child that has not ended, and if it was asked too late.
_RUNS = re.compile(r"\bRunning\b")
_TOO_LATE = re.compile(r"\S{1,100}: line [0-9]{1,9}: jobs: %%: no such job")
#: Where bash begins to speak of a child.
_CHILD = re.compile(r"(?=\[[0-9]{1,3}\][+-]? )")


def new_mark() -> str:
    """A mark that no output holds by chance."""
    return _MARK + secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the command ended: its exit code as shells give it, and the signal if one is proven; or that it never ran."""

    code: int
    signal: int | None
    never_ran: bool = False


def ending(text: str) -> Ending | None:
    """Parse the text after X. None if the waiting shell was itself killed, so that the end is unknown."""
    said, _, last = text.rpartition(" ")
    if not (last.isascii() and last.isdigit() and len(last) < 4):
        return None
    code = int(last)
    if said == "F":
        return Ending(code, None, never_ran=True)
    ends = [part for part in _CHILD.split(_TOO_LATE.sub("", said)) if part.strip() and not _RUNS.search(part)]
    signalled = code > 128 and bool(ends) and not _BY_ITSELF.search(ends[-1])
    return Ending(code, code - 128 if signalled else None)


class WordFilter:
    """Takes the wrapper's words out of a stream of the command's output."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode() + b" "
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[str]]:
        """The command's own bytes, and complete messages of the wrapper. A possible beginning of one is held back."""
        if self._held:
            data, self._held = self._held + data, b""
        mark = self._mark
        at = data.find(mark)
        words: list[str] = []
        own = b""
        while at >= 0:
            end = data.find(b"\n", at, at + _LINE_LIMIT)
            if end < 0:
                if len(data) - at < _LINE_LIMIT:
                    self._held = data[at:]
                    return own + data[:at], words
                break
            words.append(data[at + len(mark) : end].decode("ascii", "replace").strip())
            own += data[:at]
            data = data[end + 1 :]
            at = data.find(mark)
        keep = self._begun(data)
        if keep:
            self._held = data[-keep:]
            data = data[:-keep]
        return (own + data if own else data), words

    def rest(self) -> bytes:
        """The bytes held back, at the end of the stream. A truncated message of the wrapper is not output."""
        held, self._held = self._held, b""
        return held if len(held) <= len(_MARK) else b""

    def _begun(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the begin of a mark."""
        at = data.rfind(self._mark[:1], max(0, len(data) - len(self._mark) + 1))
        return len(data) - at if at >= 0 and self._mark.startswith(data[at:]) else 0
