"""Supervisor start: the launcher starts it and waits for its report; then the supervisor runs under a guard.

Two processes: the guard, which only waits, and its child, the supervisor. Both adopt orphans. If the supervisor is
killed, the guard inherits everything it had started and kills it: workers never outlive their supervisor. If the guard
is killed, the supervisor stops the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

from . import processes

#: The launcher's message that it has recorded the start.
KEEP = b"k"
#: Maximum seconds for a supervisor's start.
START_SECONDS = 60.0
#: Maximum seconds for a failed start to end its processes.
UNDO_SECONDS = 15.0
#: Maximum seconds for the guard to end the processes of a killed supervisor.
GUARD_SECONDS = 30.0

_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from atlctl.remote.supervisor.boot import main; "
    "main(sys.argv[2], int(sys.argv[3]))"
)


class Failed(Exception):
    """The supervisor did not answer. `late`: timeout; else it has ended."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


def umask() -> int:
    """This process's umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def port_is_free(port: int) -> bool:
    """Whether torch's store could listen on this port."""
    with socket.socket() as probe:
        # As the store does: a port with old connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A free port on all addresses of this machine."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def choose_port(wanted: int | None, first: int, taken: Collection[int] = ()) -> int | None:
    """`wanted`, or `first` if it is free, or another free port; None if the wanted one is in use. `taken`: ports that
    are assigned but may not be in use yet."""
    if wanted is not None:
        return wanted if port_is_free(wanted) else None
    if first not in taken and port_is_free(first):
        return first
    while (port := free_port()) in taken:
        continue
    return port


def begin(
    where: str, folder: str, link: int, env: Mapping[str, str] | None = None, *flags: str
) -> subprocess.Popen[bytes]:
    """Start the supervisor of the job in `folder`, with the package in the folder `where` and the socket `link`.
    `flags`: additional options for its Python. Raises OSError with the file's name."""
    log = os.open(
        f"{folder}/supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        return subprocess.Popen(
            # UTF-8 independent of the locale: commands come from clients with different locales.
            [sys.executable, "-I", "-S", *flags, "-X", "utf8", "-c", _PROGRAM, where, folder, str(link)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(link,),
            cwd="/",
        )
    except OSError as error:
        error.filename = error.filename or sys.executable
        raise
    finally:
        os.close(log)


def await_start(link: socket.socket, folder: str) -> dict[str, Any]:
    """The supervisor's report, see `main`. Raises Failed."""
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


# Code that runs in the supervisor

#: Signals that a launcher may ignore; workers must not inherit that.
SIGNALS = (
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


def main(folder: str, ready: int) -> None:
    """Run the job in `folder`. Never returns.

    Reports in one JSON line on `ready` (a socket) whether the job started; the launcher must answer KEEP for it to
    stay.
    """
    os.chdir("/")
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        status = 1
        try:
            status = _supervise(folder, ready, guard)
        except BaseException:  # noqa: BLE001  the process ends here: the error goes to its log
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(ready)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: processes.send((supervisor,), number))
    # The supervisor is the only child until it ends; later, its orphans are.
    os.wait()
    processes.end_all_below(guard, GUARD_SECONDS)
    os._exit(0)


def _supervise(folder: str, ready: int, guard: int) -> int:
    from .folders import write_json
    from .supervisor import KILL_SECONDS, Supervisor, read_spec
    from .workers import StartError

    launcher = socket.socket(fileno=ready)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != guard:
        return 1
    os.umask(0o022)
    answer: dict[str, object]
    supervisor: Supervisor | None = None
    try:
        spec, env = read_spec(folder)
        if "umask" in spec:
            os.umask(spec["umask"])
        supervisor = Supervisor(folder, spec, env)
        supervisor.start()
        write_json(
            f"{folder}/job.json",
            {**spec, "started": time.time(), "supervisor": processes.identity(os.getpid())},
        )
        answer = {"ok": True}
    except StartError as error:
        answer = {"ok": False, "exit_code": error.exit_code, "message": error.reason}
    except OSError as error:
        processes.end_all_below(os.getpid(), KILL_SECONDS)
        answer = {"ok": False, "exit_code": 1, "message": f"{error.strerror}: {error.filename or folder}"}
    with contextlib.suppress(OSError):  # awaiting the launcher's answer will show that it has gone
        launcher.sendall(json.dumps(answer).encode() + b"\n")
    if supervisor is None or not answer["ok"]:
        return 1
    supervisor.await_keep(launcher)
    supervisor.run()
    return 0
