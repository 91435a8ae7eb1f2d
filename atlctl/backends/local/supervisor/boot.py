"""Start of the supervisor, under a guard.

Two processes: the guard, which only waits, and its child, the supervisor. Both adopt orphans. When the
supervisor is killed, everything it had started falls to the guard, which kills it: workers never outlive
their supervisor. When the guard is killed, the supervisor stops the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from . import processes

GUARD_SECONDS = 30.0


#: What a launcher may have been told to ignore, and workers must not inherit.
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

    `ready` (a socket) is told in one JSON line whether it started, and must answer with KEEP for the job to stay.
    """
    os.chdir("/")
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        status = 1
        try:
            status = _supervise(folder, ready, guard)
        except BaseException:  # noqa: BLE001  the end of this process: what it died of goes to its log
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(ready)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: processes.send((supervisor,), number))
    # The supervisor is the only child until it ends; then its orphans are.
    os.wait()
    processes.end_all_below(guard, GUARD_SECONDS)
    os._exit(0)


def _supervise(folder: str, ready: int, guard: int) -> int:
    import socket

    from . import children, files
    from .supervisor import KILL_SECONDS, Supervisor, read_spec

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
        files.write_json(
            f"{folder}/job.json",
            {**spec, "started": time.time(), "supervisor": processes.identity(os.getpid())},
        )
        answer = {"ok": True}
    except children.StartError as error:
        answer = {"ok": False, "exit_code": error.exit_code, "message": error.reason}
    except OSError as error:
        processes.end_all_below(os.getpid(), KILL_SECONDS)
        answer = {"ok": False, "exit_code": 1, "message": f"{error.strerror}: {error.filename or folder}"}
    with contextlib.suppress(OSError):  # a launcher that has gone shows when its word is awaited
        launcher.sendall(json.dumps(answer).encode() + b"\n")
    if supervisor is None or not answer["ok"]:
        return 1
    supervisor.await_keep(launcher)
    supervisor.run()
    return 0
