"""The supervisor of a job: workers, commands executed in them, and their orderly end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import processes
from .boot import KEEP
from .control import Connection, End, Exec, Execution, Listener, Message, Stop, part
from .loop import Loop
from .processes import Snapshot
from .workers import StartError, WorkerRun, exit_code, spawn

#: Seconds between a stop's checks whether everything has ended; more if a check is slow.
LOOK_SECONDS = 0.05
#: Seconds for which a snapshot of the processes is shared.
SHARE_SECONDS = 0.02
#: Seconds from SIGKILL until a process is given up (uninterruptible sleep).
KILL_SECONDS = 5.0
#: Grace in seconds for the commands of a client that has gone.
GONE_GRACE = 1.0
#: Maximum seconds to wait for slow readers at the end; less than they wait for that end.
PARTING_SECONDS = 1.0
#: Grace in seconds if a signal ends the job.
SIGNAL_GRACE = 10.0

if TYPE_CHECKING:
    Tell = Callable[[dict[str, Any]], None]


class Supervisor:
    """Owns the job's processes: they are its children, and their orphans return to it."""

    def __init__(self, folder: str, spec: dict[str, Any], env: dict[str, str]) -> None:
        self.folder = folder
        self.spec = spec
        self._env = env
        self._loop = Loop(self._child_ended, self._after_children)
        self._workers: dict[str, WorkerRun] = {}
        self._by_pid: dict[int, WorkerRun] = {}
        self._own_env: dict[str, dict[str, str]] = {entry["name"]: entry["env"] for entry in spec["workers"]}
        #: Workers whose first process ended in the current batch of children.
        self._fallen: list[WorkerRun] = []
        self._executions: dict[int, tuple[Connection, Execution]] = {}
        self._connections: set[Connection] = set()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._soft_limit = soft
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._snapshot: Snapshot | None = None
        self._bare: set[tuple[int, int]] = set()

    # -- start and end ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all workers, or none: raises StartError or OSError after ending all of them."""
        end_all: Callable[[], None] = lambda: self.stop(self._workers, SIGNAL_GRACE)  # noqa: E731
        self._loop.install({signal.SIGTERM: end_all, signal.SIGINT: end_all, signal.SIGHUP: lambda: None})
        markers = [text.encode() for text in self.spec["failure_markers"]]
        limits = (self.spec["log_max_bytes"], self.spec["log_max_files"])
        try:
            for entry in self.spec["workers"]:
                folder = f"{self.folder}/workers/{entry.get('folder', entry['name'])}"
                place = entry.get("chdir") or f"{folder}/work"
                worker = WorkerRun(self._loop, folder, place, entry["name"], markers, limits, self._worker_done)
                if self.spec.get("screen"):
                    worker.show_on(self.spec["screen"], self.spec["attempt"])
                worker.begin(self.spec["argv"], {**self._env, **self._own_env[worker.name]}, self._soft_limit)
                self._workers[worker.name] = worker
                self._by_pid[worker.pid] = worker
            self._listener = Listener(self._loop, os.open(self.folder, os.O_PATH | os.O_CLOEXEC), self._accept)
        except (StartError, OSError):
            processes.end_all_below(os.getpid(), KILL_SECONDS)
            raise

    def await_keep(self, launcher: socket.socket) -> None:
        """Wait for the launcher's message that the job stays. If the launcher dies first, the job ends: no partial
        starts."""

        def hear() -> None:
            self._loop.forget(launcher.fileno())
            try:
                kept = launcher.recv(1) == KEEP
            except OSError:
                kept = False
            launcher.close()
            if not kept:
                if self.spec.get("attempt", 1) == 1:  # else this would forget the attempts before
                    with contextlib.suppress(OSError):
                        os.unlink(f"{self.folder}/job.json")
                self.stop(self._workers, 0.0)

        self._loop.read(launcher.fileno(), hear)

    def run(self) -> None:
        """Run until all workers have ended."""
        self._loop.run()
        # Report the commands that were killed with the last worker to their clients.
        self._loop.reap()
        part(self._connections, PARTING_SECONDS)

    def _accept(self, sock: socket.socket) -> None:
        self._connections.add(Connection(self._loop, sock, self._handle, self._connection_gone))

    # -- children --------------------------------------------------------------------------------------------------

    def _child_ended(self, pid: int, status: int) -> None:
        worker = self._by_pid.pop(pid, None)
        if worker is not None:
            worker.reaped(status)
            self._fallen.append(worker)
            return
        found = self._executions.pop(pid, None)
        if found is None:
            return  # an orphan that was reparented to this process
        connection, execution = found
        execution.exited = True
        code = exit_code(status)
        execution.child.returncode = code
        how = {"exit_code": code} if code >= 0 else {"signal": -code}
        connection.send({"id": execution.number, "event": "exited", **how})

    def _after_children(self) -> None:
        """Kill the processes that a worker left behind, as when a container's first process ends."""
        fallen, self._fallen = self._fallen, []
        if ended := [worker for worker in fallen if not worker.stopping]:
            self._kill_until_gone(ended)

    def _look(self) -> Snapshot:
        """A snapshot younger than all processes started so far; shared by simultaneous requests."""
        if self._snapshot is None or time.monotonic() - self._snapshot.taken > SHARE_SECONDS:
            self._snapshot = Snapshot(os.getpid(), self.spec["name"], self._bare)
        return self._snapshot

    def _again(self, look: Callable[[], None]) -> None:
        """Call `look` after a pause: most of the CPU time belongs to the job's output."""
        self._loop.later(max(LOOK_SECONDS, 2 * self._snapshot.cost if self._snapshot else 0.0), look)

    def _kill_until_gone(self, workers: Sequence[WorkerRun]) -> None:
        for worker in workers:
            worker.cleaning = True
        deadline = time.monotonic() + KILL_SECONDS
        self._snapshot = None

        def look() -> None:
            seen = self._look()
            left = set().union(*(seen.of_worker(worker.name, worker.pid, worker.start) for worker in workers))
            if left and time.monotonic() < deadline:
                processes.send(left, signal.SIGKILL)
                self._again(look)
                return
            for worker in workers:
                worker.conclude()

        look()

    def _worker_done(self) -> None:
        if all(worker.ended for worker in self._workers.values()):
            self._loop.stop()

    # -- stop ------------------------------------------------------------------------------------------------------

    def stop(self, names: Iterable[str], grace: float, tell: Tell = lambda _: None) -> None:
        """SIGTERM to the workers' groups and to processes that left them, and SIGKILL to the rest after `grace`
        seconds. Calls back for each worker that has ended, and finally with {"event": "stop-done"}. A second stop waits
        for the same end, with a separate grace."""
        start = time.monotonic()
        self._snapshot = None
        waiting: dict[str, int] = {}
        untold = set(names)
        asked: set[int] = set()

        def say(name: str, how: str, count: int) -> None:
            tell({"event": "stopped", "worker": name, "how": how, "processes": count})
            untold.discard(name)
            if not untold:
                tell({"event": "stop-done"})

        if not untold:
            tell({"event": "stop-done"})
        seen = self._look()
        for name in sorted(untold):
            worker = self._workers[name]
            if worker.ended or worker.cleaning:
                worker.when_ended(functools.partial(say, name, "already-ended", 0))
                continue
            waiting[name] = len(seen.of_worker(name, worker.pid, worker.start))
            if not worker.stopping:
                worker.note_stopping()
                processes.send_group(worker.pid, signal.SIGTERM)
                # A stopped process handles SIGTERM only after SIGCONT.
                processes.send_group(worker.pid, signal.SIGCONT)

        def look() -> None:
            late = time.monotonic() - start
            seen = self._look()
            for name in list(waiting):
                worker = self._workers[name]
                left = seen.of_worker(name, worker.pid, worker.start)
                # Commands executed in it (perhaps the shell that requested this stop) go last.
                if late > grace or not left - seen.executed_in(name):
                    processes.send(left, signal.SIGKILL)
                else:
                    alone = seen.on_their_own(name, worker.pid, worker.start) - asked
                    processes.send(alone, signal.SIGTERM)
                    asked.update(alone)
                if (left or not worker.exited) and late < grace + KILL_SECONDS:
                    continue
                how = "not-stopped" if left else ("killed" if late > grace else "terminated")
                worker.when_ended(functools.partial(say, name, how, waiting.pop(name)))
                worker.conclude()
            if waiting:
                self._again(look)

        if waiting:
            look()

    # -- requests --------------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        number = message.number
        if message.uid != self.spec["uid"]:
            connection.send({"id": number, "event": "wrong-job"})
            return
        wanted = message.request
        if isinstance(wanted, Exec):
            self._exec(connection, number, wanted, descriptors)
        elif isinstance(wanted, End):
            self._end(connection, number, wanted.grace)
        elif isinstance(wanted, Stop):
            names = [name for name in wanted.workers if name in self._workers]
            self.stop(names, wanted.grace, lambda told: connection.send({"id": number, **told}))
        else:
            connection.send({"id": number, "event": "unknown-request"})

    def _exec(self, connection: Connection, number: int, wanted: Exec, descriptors: list[int]) -> None:
        def refuse(exit_code: int, reason: str) -> None:
            connection.send({"id": number, "event": "failed", "exit_code": exit_code, "reason": reason})

        worker = self._workers.get(wanted.worker)
        if worker is None or worker.exited or worker.stopping:
            refuse(255, "not running")
            return
        if number in connection.executions or len(descriptors) != (1 if wanted.tty else 3):
            refuse(125, "a malformed request")
            return
        env = {**self._env, **self._own_env[worker.name], "ATLCTL_EXEC": wanted.token}
        if wanted.tty:
            descriptors = descriptors * 3
            if wanted.term:
                env["TERM"] = wanted.term
        try:
            child = spawn(
                wanted.argv,
                folder=worker.place,
                env=env,
                stdio=(descriptors[0], descriptors[1], descriptors[2]),
                session=False,
                terminal=wanted.tty,
                soft_limit=self._soft_limit,
            )
        except StartError as error:
            refuse(error.exit_code, error.reason)
            return
        self._snapshot = None
        execution = Execution(number, worker.name, child, wanted.token)
        connection.executions[number] = execution
        self._executions[child.pid] = (connection, execution)
        connection.send({"id": number, "event": "started", "pid": child.pid})

    def _end(self, connection: Connection, number: int, grace: float) -> None:
        """End a command and its remaining processes: SIGTERM, and SIGKILL after `grace` seconds. The shortest grace
        counts."""
        execution = connection.executions.get(number)
        if execution is None:
            connection.send({"id": number, "event": "ended", "proven": True})
            return
        kill_at = time.monotonic() + grace
        if execution.kill_at is not None:
            execution.kill_at = min(execution.kill_at, kill_at)
            return
        execution.kill_at = kill_at
        asked: set[int] = set()

        def look() -> None:
            left = self._look().of_run(execution.worker, execution.token, execution.pid, execution.start)
            late = time.monotonic() - (execution.kill_at or 0.0)
            if (not left and execution.exited) or late >= KILL_SECONDS:
                connection.executions.pop(number, None)
                connection.send({"id": number, "event": "ended", "proven": not left})
                return
            if late >= 0:
                processes.send(left, signal.SIGKILL)
            else:
                # Also processes started during the search.
                processes.send(left - asked, signal.SIGTERM)
                # A stopped process handles SIGTERM only after SIGCONT.
                processes.send(left - asked, signal.SIGCONT)
                asked.update(left)
            self._again(look)

        look()

    def _connection_gone(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for number, execution in list(connection.executions.items()):
            if not execution.exited:
                self._end(connection, number, GONE_GRACE)


def read_spec(folder: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The job's specification and its workers' environment, as written by the client."""
    with open(f"{folder}/spec.json", encoding="utf-8") as file:
        spec = json.load(file)
    with open(f"{folder}/env.json", encoding="utf-8") as file:
        env = json.load(file)
    return spec, env
