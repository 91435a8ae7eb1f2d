"""The supervisor of one job: workers, the commands executed in them, and their orderly end."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import children, processes
from .control import Connection, Execution, Listener
from .loop import Loop
from .snapshot import Snapshot
from .workers import WorkerRun

#: How often a stop looks whether everything has ended, seconds.
LOOK_SECONDS = 0.05
#: Those who look at the processes within this time share one look, seconds.
SHARE_SECONDS = 0.02
#: After SIGKILL, seconds until a process that will not go is given up on (uninterruptible sleep).
KILL_SECONDS = 5.0
#: Grace for the commands of a client that has gone, seconds.
GONE_GRACE = 1.0


class Supervisor:
    """Owns the job's processes. Everything it starts is its child, and orphans of those come back to it."""

    def __init__(self, folder: str, spec: dict[str, Any], env: dict[str, str]) -> None:
        self.folder = folder
        self.spec = spec
        self._env = env
        self._loop = Loop(self._child_ended, self._after_children)
        self._workers: dict[str, WorkerRun] = {}
        self._by_pid: dict[int, WorkerRun] = {}
        self._executions: dict[int, tuple[Connection, Execution]] = {}
        self._connections: set[Connection] = set()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._soft_limit = soft
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._snapshot: Snapshot | None = None
        self._snapshot_at = 0.0

    # -- start and end ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all workers, or none: raises StartError or OSError with everything ended again."""
        end_all: Callable[[], None] = lambda: self.stop(list(self._workers), 10.0, None)  # noqa: E731
        self._loop.install({signal.SIGTERM: end_all, signal.SIGINT: end_all, signal.SIGHUP: lambda: None})
        markers = [text.encode() for text in self.spec["failure_markers"]]
        limits = (self.spec["log_max_bytes"], self.spec["log_max_files"])
        try:
            for entry in self.spec["workers"]:
                worker = WorkerRun(self._loop, f"{self.folder}/workers/{entry['name']}", entry["name"], markers, limits)
                worker.begin(self.spec["argv"], {**self._env, **entry["env"]}, self._soft_limit)
                self._workers[worker.name] = worker
                self._by_pid[worker.pid] = worker
        except (children.StartError, OSError):
            processes.end_all_below(os.getpid(), KILL_SECONDS)
            raise
        folder = os.open(self.folder, os.O_PATH | os.O_CLOEXEC)
        self._listener = Listener(self._loop, folder, self._accept)

    def run(self) -> None:
        """Until every worker has ended."""
        self._loop.run()

    def _accept(self, sock: socket.socket) -> None:
        self._connections.add(Connection(self._loop, sock, self._handle, self._connection_gone))

    # -- children --------------------------------------------------------------------------------------------------

    def _child_ended(self, pid: int, status: int) -> None:
        worker = self._by_pid.pop(pid, None)
        if worker is not None:
            worker.reaped(status)
            return
        found = self._executions.pop(pid, None)
        if found is None:
            return  # an orphan that had come back to us
        connection, execution = found
        execution.exited = True
        code = os.waitstatus_to_exitcode(status)
        execution.child.returncode = code
        if not execution.ending:
            connection.executions.pop(execution.number, None)
        how = {"exit_code": code} if code >= 0 else {"signal": -code}
        connection.send({"id": execution.number, "event": "exited", **how})

    def _after_children(self) -> None:
        """As when a container's first process ends: what a worker left behind is killed with it."""
        ended = [w for w in self._workers.values() if w.exited and not w.ended and not w.stopping and not w.concluding]
        if not ended:
            return
        for worker in ended:
            worker.concluding = True
        self._kill_until_gone([worker.name for worker in ended], lambda: self._conclude(ended))

    def _look(self) -> Snapshot:
        """A snapshot younger than every process started so far; shared by all who look in the same moment."""
        now = time.monotonic()
        if self._snapshot is None or now - self._snapshot_at > SHARE_SECONDS:
            self._snapshot, self._snapshot_at = Snapshot(os.getpid()), now
        return self._snapshot

    def _members(self, name: str) -> set[int]:
        worker = self._workers[name]
        return self._look().of_worker(name, worker.pid, worker.start)

    def _kill_until_gone(self, names: list[str], done: Callable[[], None]) -> None:
        deadline = time.monotonic() + KILL_SECONDS
        self._snapshot = None

        def look() -> None:
            left = set().union(*(self._members(name) for name in names))
            if left and time.monotonic() < deadline:
                processes.send(left, signal.SIGKILL)
                self._loop.later(LOOK_SECONDS, look)
            else:
                done()

        look()

    def _conclude(self, workers: Iterable[WorkerRun]) -> None:
        for worker in workers:
            worker.conclude(self._worker_done)

    def _worker_done(self) -> None:
        if all(worker.ended for worker in self._workers.values()):
            self._loop.stop()

    # -- stop ------------------------------------------------------------------------------------------------------

    def stop(self, names: list[str], grace: float, tell: Callable[[dict[str, Any]], None] | None) -> None:
        """SIGTERM to the workers' groups, after `grace` seconds SIGKILL to all that is left of them.

        `tell` hears of each worker that has ended, and at last {"event": "stop-done"}.
        """
        say = tell or (lambda _: None)
        waiting = {}
        self._snapshot = None
        for name in names:
            worker = self._workers[name]
            if worker.exited or worker.stopping:
                say({"event": "stopped", "worker": name, "how": "already-ended", "processes": 0})
                continue
            worker.note_stopping()
            waiting[name] = len(self._members(name))
            processes.send_group(worker.pid, signal.SIGTERM)
        start = time.monotonic()

        def look() -> None:
            late = time.monotonic() - start
            for name in list(waiting):
                worker, left = self._workers[name], self._members(name)
                # Commands executed in it (perhaps the very shell that asked for this stop) go last.
                if late > grace or not left - self._look().executed_in(name):
                    processes.send(left, signal.SIGKILL)
                if (left or not worker.exited) and late < grace + KILL_SECONDS:
                    continue
                how = "not-stopped" if left else ("killed" if late > grace else "terminated")
                say({"event": "stopped", "worker": name, "how": how, "processes": waiting.pop(name)})
                worker.conclude(self._worker_done)
            if waiting:
                self._loop.later(LOOK_SECONDS, look)
            else:
                say({"event": "stop-done"})

        look()

    # -- requests --------------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection, message: dict[str, Any], descriptors: list[int]) -> None:
        if message.get("uid") != self.spec["uid"]:
            connection.send({"id": message.get("id"), "event": "wrong-job"})
            return
        match message.get("op"):
            case "exec":
                self._exec(connection, message, descriptors)
            case "end":
                self._end(connection, int(message["id"]), float(message["grace"]))
            case "stop":
                names = [name for name in message["workers"] if name in self._workers]
                number = message.get("id")
                self.stop(names, float(message["grace"]), lambda told: connection.send({"id": number, **told}))
            case _:
                connection.send({"id": message.get("id"), "event": "unknown-request"})

    def _exec(self, connection: Connection, message: dict[str, Any], descriptors: list[int]) -> None:
        number = int(message["id"])
        worker = self._workers.get(message["worker"])
        if worker is None or worker.exited or worker.stopping:
            connection.send({"id": number, "event": "failed", "exit_code": 255, "reason": "not running"})
            return
        entry = next(e for e in self.spec["workers"] if e["name"] == worker.name)
        env = {**self._env, **entry["env"], "ATLCTL_EXEC": message["token"]}
        terminal = bool(message.get("tty"))
        if terminal and message.get("term"):
            env["TERM"] = message["term"]
        stdio = (
            (descriptors[0], descriptors[0], descriptors[0])
            if terminal
            else (
                descriptors[0],
                descriptors[1],
                descriptors[2],
            )
        )
        try:
            child = children.spawn(
                message["argv"],
                folder=f"{worker.folder}/work",
                env=env,
                stdio=stdio,
                session=False,
                terminal=terminal,
                soft_limit=self._soft_limit,
            )
        except children.StartError as error:
            connection.send({"id": number, "event": "failed", "exit_code": error.exit_code, "reason": error.reason})
            return
        self._snapshot = None
        execution = Execution(number, worker.name, child, message["token"])
        connection.executions[number] = execution
        self._executions[child.pid] = (connection, execution)
        connection.send({"id": number, "event": "started", "pid": child.pid})

    def _end(self, connection: Connection, number: int, grace: float) -> None:
        execution = connection.executions.get(number)
        if execution is None:
            connection.send({"id": number, "event": "ended", "proven": True})
            return
        if execution.ending:
            return
        execution.ending = True
        start = time.monotonic()

        def left() -> set[int]:
            return self._look().of_run(execution.worker, execution.token, execution.pid, execution.start)

        processes.send(left(), signal.SIGTERM)
        # A stopped process takes SIGTERM only when it goes on.
        processes.send_group(execution.pid, signal.SIGCONT)

        def look() -> None:
            remaining = left()
            late = time.monotonic() - start
            if remaining and late < grace + KILL_SECONDS:
                if late >= grace:
                    processes.send(remaining, signal.SIGKILL)
                self._loop.later(LOOK_SECONDS, look)
                return
            connection.executions.pop(number, None)
            connection.send({"id": number, "event": "ended", "proven": not remaining})

        self._loop.later(0.01, look)

    def _connection_gone(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for number in list(connection.executions):
            self._end(connection, number, GONE_GRACE)


def read_spec(folder: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The job's specification and the environment of its workers, as the client wrote them."""
    with open(f"{folder}/spec.json", encoding="utf-8") as file:
        spec = json.load(file)
    with open(f"{folder}/env.json", encoding="utf-8") as file:
        env = json.load(file)
    return spec, env
