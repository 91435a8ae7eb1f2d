"""The processes the supervisor starts: workers, and commands executed in them."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import resource
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence


class StartError(Exception):
    """A command that did not start, with the exit code a shell would give: 126, 127, else 125."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.reason = reason


def exit_code(status: int) -> int:
    """A wait status as `Popen.returncode` has it: the exit code, or the signal below zero."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _preparation(terminal: bool, group: bool, soft_limit: int) -> Callable[[], None] | None:
    """What the new process does before it becomes the command, None for nothing."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limited = soft_limit != hard
    if not (terminal or group or limited):
        return None

    def prepare() -> None:
        if group:
            os.setpgid(0, 0)
        if limited:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard))
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return prepare


def spawn(
    argv: Sequence[str],
    *,
    folder: str,
    env: Mapping[str, str],
    stdio: tuple[int, int, int],
    session: bool,
    soft_limit: int,
    terminal: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `argv` as leader of a new process group, or of a new session. Raises StartError.

    `terminal`: its stdin is a terminal and becomes the controlling one. `soft_limit`: the descriptor limit it gets.
    """
    own_group = not (session or terminal)
    # As an option it is younger than Python 3.8, and cheaper than a preparation.
    by_option = own_group and sys.version_info >= (3, 11)
    start: type[subprocess.Popen[bytes]] | functools.partial[subprocess.Popen[bytes]] = subprocess.Popen
    if by_option:
        start = functools.partial(subprocess.Popen, process_group=0)
    try:
        return start(
            list(argv),
            cwd=folder,
            env=dict(env),
            stdin=stdio[0],
            stdout=stdio[1],
            stderr=stdio[2],
            start_new_session=session or terminal,
            preexec_fn=_preparation(terminal, own_group and not by_option, soft_limit),
        )
    except OSError as error:
        raise _explained(error, argv[0], folder) from error
    except (ValueError, subprocess.SubprocessError) as error:
        raise StartError(125, f"{argv[0]}: {error}") from error


def _explained(error: OSError, program: str, folder: str) -> StartError:
    if error.filename == folder:
        return StartError(125, f"the worker's working folder cannot be entered: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return StartError(127, f"{program}: command not found")
    cannot_run = isinstance(error, (PermissionError, NotADirectoryError)) or error.errno == errno.ENOEXEC
    return StartError(126 if cannot_run else 125, f"{program}: {error.strerror or error}")
