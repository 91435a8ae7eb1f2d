"""The processes the supervisor starts: workers, and commands executed in them."""

from __future__ import annotations

import errno
import fcntl
import resource
import subprocess
import termios
from collections.abc import Mapping, Sequence


class StartError(Exception):
    """A command that did not start, with the exit code a shell would give: 126, 127, else 125."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.reason = reason


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def spawn(
    argv: Sequence[str],
    *,
    folder: str,
    env: Mapping[str, str],
    stdio: tuple[int, int, int],
    session: bool,
    terminal: bool = False,
    soft_limit: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` as leader of a new process group, or of a new session. Raises StartError.

    `terminal`: its stdin is a terminal and becomes the controlling one. `soft_limit`: the descriptor limit it gets.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            cwd=folder,
            env=dict(env),
            stdin=stdio[0],
            stdout=stdio[1],
            stderr=stdio[2],
            start_new_session=session or terminal,
            process_group=None if session or terminal else 0,
            preexec_fn=_take_terminal if terminal else None,
        )
    except FileNotFoundError as error:
        if error.filename == folder:
            raise StartError(125, "the worker's working folder is gone") from error
        raise StartError(127, f"{argv[0]}: command not found") from error
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise StartError(126, f"{argv[0]}: {error.strerror}") from error
    except (OSError, ValueError) as error:
        code = 126 if isinstance(error, OSError) and error.errno == errno.ENOEXEC else 125
        raise StartError(code, f"{argv[0]}: {getattr(error, 'strerror', None) or error}") from error
    if soft_limit is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        try:
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (min(soft_limit, hard), hard))
        except (ProcessLookupError, PermissionError):
            return child  # it has ended, or changed its user: nothing left to set
    return child
