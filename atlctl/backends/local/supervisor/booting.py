"""How a supervisor is started, by the launcher of this machine and by the one that was sent to a host.

The process, what it answers on the socket that it was given, and what it is told of the place: umask and port.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

#: Seconds in which a supervisor must have started.
START_SECONDS = 60.0
#: How long a start that has failed may take to end what it had begun.
UNDO_SECONDS = 15.0

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from supervisor.boot import main; main(sys.argv[2], int(sys.argv[3]))"
)


class Failed(Exception):
    """There is no answer. `late`: none in time; else the supervisor has ended."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


def umask() -> int:
    """This process's."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def port_is_free(port: int) -> bool:
    """Whether torch's store could listen there."""
    with socket.socket() as probe:
        # As the store does: a port that only waits out old connections is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port on which nobody listens, on any of this machine's addresses."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def begin(
    package: str, folder: str, link: int, env: Mapping[str, str] | None = None, *flags: str
) -> subprocess.Popen[bytes]:
    """The supervisor of the job in `folder`, from the program in `package`, with the socket `link`. `flags`: more of
    them for its Python. Raises OSError with the name of the file in it, where it is one."""
    log = os.open(
        f"{folder}/supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        return subprocess.Popen(
            # UTF-8 whatever the locale: commands come from clients with locales of their own.
            [sys.executable, "-I", "-S", *flags, "-X", "utf8", "-c", _PROGRAM, package, folder, str(link)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(link,),
            cwd="/",
        )
    finally:
        os.close(log)


def answer(link: socket.socket, folder: str) -> dict[str, Any]:
    """What the supervisor says, see `boot.main`. Raises Failed."""
    data = b""
    deadline = time.monotonic() + START_SECONDS
    while not data.endswith(b"\n"):
        link.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            chunk = link.recv(65536)
        except socket.timeout:  # noqa: UP041  the same as TimeoutError since Python 3.10
            raise Failed(f"the supervisor did not start within {START_SECONDS:.0f} s", late=True) from None
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            raise Failed(f"the supervisor ended at once: {_last_line(folder)}")
        data += chunk
    found = json.loads(data)
    return found if isinstance(found, dict) else {}


def _last_line(folder: str) -> str:
    with open(f"{folder}/supervisor.log", encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return lines[-1] if lines else "it said nothing"
