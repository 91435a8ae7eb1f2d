"""Start a job completely or not at all: on this machine (`start_here`) or on hosts (`start`).

Both send one description to `remote.supervisor.starting`, as a call or over a session. Each step is taken on all hosts
before the next one: prepare, start the workers, confirm. Until the last step a worker runs only while this process is
connected: if a host fails or this process dies, the workers are ended again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
import uuid
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from atlctl.backends.base import Argv, Executor, Exited, FailedToStart
from atlctl.backends.hosts import asking, registry
from atlctl.backends.hosts.asking import CannotStartError, NoAnswer, Why, request
from atlctl.backends.hosts.execution import as_utf8
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.looking import look
from atlctl.backends.hosts.records import Claim, Placed, Record
from atlctl.backends.hosts.stopping import remove_folders, stop
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import NO_PYTHON, AtlctlError, ExitCode, NothingMatched, Replaced, Unreachable, UsageError
from atlctl.jobs.fields import whole
from atlctl.jobs.model import Job, Worker
from atlctl.jobs.naming import check_job_name, fold_names, safe_file_name
from atlctl.jobs.statedir import ensure_dir, file_error, state_dir
from atlctl.remote.supervisor import boot
from atlctl.remote.supervisor.starting import NextAttempt, Start, environment
from atlctl.remote.supervisor.telling import Refused

_log = logging.getLogger(__name__)

MAX_WORKERS = 4096
#: torchrun's and the platform's port.
DEFAULT_PORT = 29500

#: A worker's log is rotated at this size and this many files are kept (the kubelet keeps 5 of 10 MiB).
LOG_MAX_BYTES = 64 * 1024 * 1024
LOG_MAX_FILES = 5

#: Variables of a torchrun or platform around a start. Inherited, they would hijack the job's own torchrun.
LEAKING = re.compile(
    r"PET_\w+|TORCHELASTIC_\w+|MASTER_(ADDR|PORT)|WORLD_SIZE|RANK|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE|NAME)"
    r"|ATLCTL_(JOB|WORKER|EXEC|STATE_DIR)"
)
_CONTRACT = ("RANK", "WORLD_SIZE", "MASTER_PORT", "ATLCTL_JOB", "ATLCTL_WORKER", "ATLCTL_STATE_DIR", "ATLCTL_EXEC")

#: Seconds for the end of what was begun on a host.
UNDO_SECONDS = 20.0
#: The number of hosts whose reasons are shown if a start fails on many.
TOLD = 3


@dataclass(frozen=True, slots=True)
class StartSpec:
    """What to start, wherever. `master_port` None: 29500 if it is free (on the first host), else another.
    `failure_markers`: byte strings, as text, whose presence in a worker's log says that its trainer has failed.

    `chdir`: the working folder of all workers. By default, here: one for each worker; on hosts: the home folder, which
    a relative one is below. `master_addr`, of a job on hosts: by default the first host's name as it was written.
    """

    argv: Argv
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    master_port: int | None = None
    failure_markers: Sequence[str] = ()
    chdir: str | None = None
    master_addr: str | None = None
    hostfile: str | None = None

    def check(self, example: str) -> None:
        """Raise UsageError for a name, command, variable or port that cannot be. `example`: of a command line."""
        if self.name is not None:
            check_job_name(self.name)
        if not self.argv.words or not self.argv.words[0]:
            raise UsageError(Message("no command to run"), example)
        for key, value in self.env.items():
            if key in _CONTRACT:
                hint = Message("omit it: workers need the value that atlctl sets")
                if key == "MASTER_PORT":
                    hint = Message("use --master-port")
                raise UsageError(Message("--env {key}: this variable is set by atlctl", key=key), hint)
            if not key or "=" in key or "\0" in key + value:
                raise UsageError(
                    Message("--env {key}={value}: not a valid variable", key=key, value=value),
                    Message("write --env NAME=VALUE"),
                )
        if self.chdir is not None and (not self.chdir or "\0" in self.chdir):
            raise UsageError(Message("--chdir {path!r}: not a folder path", path=self.chdir))
        if self.master_port is not None and not 1 <= self.master_port <= 65535:
            raise _out_of_range("--master-port", 65535, self.master_port)

    def described(self, name: str, master_addr: str, size: int) -> dict[str, Any]:
        """The job as `remote.supervisor.starting` takes it, without its workers."""
        return {
            "name": name,
            "uid": str(uuid.uuid4()),
            "created": time.time(),
            "argv": [as_utf8(word) for word in self.argv.words],
            "env": {as_utf8(key): as_utf8(value) for key, value in self.env.items()},
            "leaking": LEAKING.pattern,
            "contract": {"WORLD_SIZE": str(size), "ATLCTL_JOB": name},
            "master_addr": master_addr,
            "failure_markers": list(self.failure_markers),
            "log_max_bytes": LOG_MAX_BYTES,
            "log_max_files": LOG_MAX_FILES,
        }


def _worker(name: str, index: int) -> dict[str, Any]:
    return {"name": name, "env": {"RANK": str(index), "ATLCTL_WORKER": name}}


def _out_of_range(option: str, most: int, number: int) -> UsageError:
    return UsageError(
        Message("{option} must be from 1 to {most}, not {number}", option=option, most=most, number=number)
    )


# On this machine


class StartedHere(NamedTuple):
    """The name of a job, and that of the ended job whose name it has taken, None if there was none."""

    name: str
    before: str | None


def start_here(spec: StartSpec, workers: int) -> StartedHere:
    """Start the job on this machine; returns as soon as all its workers run.

    Raises UsageError, CannotStartError, AtlctlError for a full disk or a living job of that name; then nothing is left.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise _out_of_range("--workers", MAX_WORKERS, workers)
    spec.check("atlctl local run --workers 4 -- python train.py")
    with registry.locked() as root:
        registry.sweep(root)
        name = spec.name or _free_name(root)
        _check_free(name)
        port = _port(spec.master_port, DEFAULT_PORT)
        old = registry.set_aside(root, name)
        begun = Start(os.path.join(root, name))
        try:
            _begin(begun, name, workers, port, spec)
            begun.keep()
        except BaseException:
            begun.end()
            registry.remove(begun.folder)  # Ctrl-C included: no half-made state
            if old is not None:
                os.rename(old, begun.folder)
            raise
        return StartedHere(name, None if old is None else registry.keep(root, name))


def _free_name(root: str) -> str:
    taken = set(os.listdir(root))
    return next(name for name in (f"local-{number}" for number in range(1, len(taken) + 2)) if name not in taken)


def _check_free(name: str) -> None:
    """A dead job gives its name to a new one; a living one, or one out of sight, does not."""
    try:
        found = registry.glance(name)
    except NothingMatched:
        return
    if found.presence == "alive":
        raise registry.running(name, registry.occupied(name))
    if found.presence == "elsewhere":
        raise AtlctlError(
            Message(
                "job {job} was started on {place}; whether it still runs cannot be checked from here",
                job=name,
                place=found.place,
            ),
            registry.OTHER_NAME,
        )


def _port(wanted: int | None, first: int) -> int:
    taken = {entry.master_port or 0 for entry in registry.load_all()[0] if entry.presence == "alive"}
    port = boot.choose_port(wanted, first, taken)
    if port is None:
        raise AtlctlError(
            Message("port {port} is in use", port=wanted), Message("omit --master-port, and a free port is chosen")
        )
    return port


def _begin(begun: Start, name: str, count: int, port: int, spec: StartSpec) -> None:
    """Start the supervisor and its workers; they end with `begun` unless it is kept. Raises as `start_here`."""
    workers = [_worker(f"worker-{index}", index) for index in range(count)]
    if spec.chdir is not None:
        place = as_utf8(os.path.abspath(spec.chdir))
        workers = [{**worker, "chdir": place} for worker in workers]
    wanted = {**spec.described(name, "127.0.0.1", count), "workers": workers}
    inherited = {as_utf8(key): as_utf8(value) for key, value in os.environ.items()}
    ensure_dir(begun.folder)
    for worker in workers:
        for part in ("work", "log"):
            ensure_dir(f"{begun.folder}/workers/{worker['name']}/{part}")
    with _errors_here(begun.folder, spec.argv.words[0] if spec.chdir is None else None):
        env = environment(wanted, inherited, as_utf8(state_dir()))
        begun.go(wanted, env, port, partial(_supervisor, begun.folder))


def _supervisor(folder: str, link: int) -> int:
    process = boot.begin(str(Path(boot.__file__).absolute().parents[3]), folder, link)
    process.returncode = 0  # it outlives this command: no zombie of ours, no warning about it
    return process.pid


@contextlib.contextmanager
def _errors_here(folder: str, program: str | None) -> Iterator[None]:
    """The errors of a start on this machine, for the user. `program`: the command's, if each worker has its own working
    folder."""
    try:
        yield
    except OSError as error:
        raise file_error(error, error.filename or folder) from error
    except boot.Failed as failed:
        hint = Message("try again; is the machine overloaded?") if failed.late else None
        raise AtlctlError(str(failed), hint) from None
    except Refused as refused:
        why = Message("the workers could not be started: {why}", why=str(refused))
        code = refused.told.get("code")
        if code is None:
            raise AtlctlError(why) from None
        near = None
        if code in (ExitCode.NOT_FOUND, ExitCode.NOT_EXECUTABLE) and program is not None:
            path = os.path.abspath(program)
            here = Message(" (here: {path})", path=path) if os.path.isfile(path) else ""
            near = Message("each worker runs in its own folder: use a program in PATH or an absolute path{here}")
            near = near.filled(here=here)
        raise CannotStartError(why, near, code) from None


def rerun_here(name: str, uid: str, argv: Argv | None, *, dry_run: bool) -> dict[str, Any]:
    """Start the next attempt of an ended job of this machine: its command, or `argv`. Returns what it starts.
    `dry_run`: only that. Raises as `start_here`; then the job is as it was."""
    with registry.locked() as root:
        registry.sweep(root)
        folder, record = registry.LOCAL.load(name, lambda folder, record: (folder, record))
        if record["uid"] != uid:
            raise Replaced(name)
        with _errors_here(folder, None):
            following = NextAttempt(folder, record)
            ready = following.ready(_words(argv))
            if dry_run:
                return ready
            try:
                port = _port(None, ready["port"])
                following.go(ready["argv"], ready["attempt"], port, partial(_supervisor, folder))
                following.keep()
            except BaseException:
                following.undo()
                raise
            return ready


def _words(argv: Argv | None) -> list[str] | None:
    return None if argv is None else [as_utf8(word) for word in argv.words]


# On hosts

#: Makes an executor for hosts by the names of their workers. It stays the caller's.
Executors = Callable[[Mapping[str, Host]], Executor]


async def start(executors: Executors, spec: StartSpec, hosts: Mapping[str, Host], timeout: float = 60.0) -> Record:
    """Start the job, which outlives its client. `hosts`: by the names of the workers, in the order of
    their ranks. `timeout`: seconds for each step of a host.

    Raises UsageError, NotAllowed, Unreachable, CannotStartError, AtlctlError; then nothing is left, or the message
    names where something may be.
    """
    if not 1 <= len(hosts) <= MAX_WORKERS:
        raise UsageError(Message("a job has 1 to {most} hosts, not {count}", most=MAX_WORKERS, count=len(hosts)))
    spec.check("atlctl ssh run --hostfile FILE -- torchrun train.py")
    number = 1
    while True:
        claim = Claim(spec.name, number)
        try:
            if claim.old is not None:
                await _must_have_ended(executors, claim.old)
            begun = _StartOnHosts(executors, spec, hosts, claim, timeout)
            await begun.run()
            assert begun.record is not None
            if claim.old is not None:
                await _sweep(executors, claim.old, hosts)
            return begun.record
        except Taken:
            number = claim.number + 1
        finally:
            claim.release()


async def _must_have_ended(executors: Executors, old: Record) -> None:
    """Check that all workers of a job have ended before its name is reused."""
    seen = await look(executors(old.hosts), old)
    unknown = [one for one in seen.values() if one.problem is not None]
    if unknown:
        why = unknown[0].worker.reason
        text = Message("an earlier job named {job} may still be running: {why}", job=old.name, why=why)
        raise AtlctlError(text, registry.OTHER_NAME)
    if living := [name for name, one in seen.items() if one.worker.state.active]:
        raise AtlctlError(
            Message("job {job} is still running on {hosts}", job=old.name, hosts=fold_names(living)),
            registry.occupied(old.name),
        )


async def _sweep(executors: Executors, old: Record, hosts: Mapping[str, Host]) -> None:
    """Remove what an ended job has left where the new one of its name does not run. The new one runs either way."""
    stale = [placed.name for placed in old.workers if hosts.get(placed.name) != placed.host]
    errors = await remove_folders(executors(old.hosts), old, stale)
    for error in errors.values():
        _log.debug("what is left of an ended job stays: %s", error.message)


class Taken(Exception):
    """A generated name is already used by another client's job on a host."""


class _Host:
    """The dialogue with one host."""

    def __init__(self, executor: Executor, worker: Worker, question: str, timeout: float) -> None:
        self.name, self.index, self._timeout = worker.name, worker.index, timeout
        self._execution = executor.run(worker, request(question, {}))
        self._answers: asyncio.Queue[dict[str, Any] | AtlctlError] = asyncio.Queue()
        self._pump: asyncio.Task[None] | None = None
        self._heard = False
        self.kept = False
        #: Nothing of it is there, and it has said so.
        self.clean = True

    async def step(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        """Send one line and receive one. Raises AtlctlError, also if the answer is not `expected`."""
        if self._pump is None:
            self._pump = asyncio.create_task(self._listen())
        self.clean = False
        try:
            async with asyncio.timeout(self._timeout):
                await self._execution.write(asking.encoded(message))
                told = await self._answers.get()
        except TimeoutError:
            raise asking.silent(self.name, self._timeout) from None
        if isinstance(told, AtlctlError):
            raise told
        self._heard = True
        if told.get("event") != expected:
            raise asking.unclear()
        return told

    async def _listen(self) -> None:
        lines = asking.Lines(self._execution)
        while (line := await lines.next()) is not None:
            told = asking.parsed(line)
            if told is None or "event" not in told:
                continue  # the login's shell may print something
            if told["event"] == "failed":
                break
            self._answers.put_nowait(told)
        else:
            told = None
        error = asking.failure(lines.last, told, bytes(lines.said))
        never = isinstance(lines.last, FailedToStart) or lines.last == Exited(exit_code=NO_PYTHON)
        self.clean = self.clean or never or error.refused
        self._answers.put_nowait(error)

    async def undo(self) -> None:
        """End everything that was started there. `clean`: whether that is confirmed."""
        # One that has never spoken hears nothing either: it ends with its connection.
        if self.clean or self.kept or not self._heard or self._pump is None or self._pump.done():
            return
        try:
            async with asyncio.timeout(UNDO_SECONDS):
                await self._execution.write(asking.encoded({"do": "undo"}))
                # The answer to a step that was given up on may come first.
                while not (self.clean or self.kept):
                    told = await self._answers.get()
                    if isinstance(told, AtlctlError):
                        break
                    self.clean, self.kept = told["event"] == "undone", told["event"] == "kept"
        except TimeoutError:
            _log.debug("%s: a start was not undone within %g s", self.name, UNDO_SECONDS)

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
        await self._execution.aclose()


class _Dialogue:
    """The steps of one start with all hosts."""

    #: The hint if a host cannot be reached.
    _unreached: str | None = None
    #: Whether a process may have been started.
    _ordered = False
    #: Whether it is the next attempt of a job.
    _again = False

    def __init__(
        self, executor: Executor, workers: Sequence[Worker], timeout: float, question: str, stop_hint: str
    ) -> None:
        """`stop_hint`: the command that ends the rest of it."""
        self._executor, self._stop_hint = executor, stop_hint
        self._hosts = {worker.name: _Host(executor, worker, question, timeout) for worker in workers}

    @abstractmethod
    def _wanted(self, host: _Host) -> dict[str, Any]:
        """The first line for a host."""

    @abstractmethod
    def _order(self, ready: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The details of the order to go, from the answers of the hosts. Raises AtlctlError for a malformed one."""

    async def ready(self) -> dict[str, dict[str, Any]]:
        """The answers of the hosts to the first step. Nothing is started."""
        try:
            return await self._all(lambda host: host.step(self._wanted(host), "ready"))
        finally:
            await self._undo()  # the hosts give up their locks
            await self._close()

    async def run(self) -> None:
        """Raises as `start`, and Taken."""
        try:
            ready = await self._all(lambda host: host.step(self._wanted(host), "ready"))
            order = {"do": "go", **self._order(ready)}
            self._ordered = True
            await self._all(lambda host: host.step(order, "started"))
            await self._all(self._keep)
        except AtlctlError as error:
            if left := await self._undo():
                text = Message("{why}; processes already started on {hosts} may still run")
                _reword(error, text.filled(why=error.message, hosts=fold_names(left)))
                error.hint = self._stop_hint
            elif error.hint is None and isinstance(error, Unreachable):
                error.hint = self._unreached
            raise
        except BaseException:
            await self._undo()
            raise
        finally:
            await self._close()

    async def _close(self) -> None:
        await asyncio.gather(*[host.close() for host in self._hosts.values()])

    async def _all(self, step: Callable[[_Host], Awaitable[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        """Take one step on all hosts. Raises AtlctlError that names the hosts on which it failed."""
        answers = await asking.each(self._hosts, lambda name: step(self._hosts[name]))
        errors = {name: answer for name, answer in answers.items() if isinstance(answer, AtlctlError)}
        if errors:
            error = _together(errors)
            if self._again and any(isinstance(one, NoAnswer) and one.why is Why.RUNNING for one in errors.values()):
                error.hint = error.hint or self._stop_hint
            raise error
        return {name: answer for name, answer in answers.items() if not isinstance(answer, AtlctlError)}

    async def _keep(self, host: _Host) -> dict[str, Any]:
        told = await host.step({"do": "keep"}, "kept")
        host.kept = True
        return told

    async def _undo(self) -> list[str]:
        """End what was begun everywhere; the workers of which that is not proven."""
        await asyncio.gather(*[host.undo() for host in self._hosts.values()])
        return [name for name, host in self._hosts.items() if not host.clean] if self._ordered else []


class _Recorded(_Dialogue):
    """The start of a job that this client records."""

    #: Whether the folders on the hosts are made by this start.
    _makes_folders = True

    def __init__(
        self, executors: Executors, where: Mapping[str, Host], claim: Claim, timeout: float, hostfile: str | None
    ) -> None:
        workers = [asking.worker_of(name, index) for index, name in enumerate(where)]
        super().__init__(executors(where), workers, timeout, "start", f"atlctl stop {claim.name}")
        self._where, self._claim = where, claim
        self._unreached = Message("check the hosts: atlctl doctor --hostfile {path}", path=hostfile or "FILE")
        self.record: Record | None = None

    @abstractmethod
    def _placed(self, ready: Mapping[str, Mapping[str, Any]]) -> tuple[Record, dict[str, Any]]:
        """The job's record, and the details of the order to go, as `_order`."""

    def _order(self, ready: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        record, order = self._placed(ready)
        self._claim.write(record)
        self.record = record
        return {"port": record.master_port, **order}

    async def _undo(self) -> list[str]:
        """The record stays if something may be left."""
        left = await super()._undo()
        if self.record is None:
            return []
        if kept := [name for name, host in self._hosts.items() if host.kept]:
            results = await stop(self._executor, self.record, kept, 0.0)
            ended = {result.worker for result in results if result.how != "not-stopped"}
            if self._makes_folders:
                await remove_folders(self._executor, self.record, kept)
            left = [name for name in left if name not in ended]
        if not left:
            self._claim.withdraw()
        return left


class _StartOnHosts(_Recorded):
    """One start of one job."""

    def __init__(
        self, executors: Executors, spec: StartSpec, where: Mapping[str, Host], claim: Claim, timeout: float
    ) -> None:
        super().__init__(executors, where, claim, timeout, spec.hostfile)
        self._spec = spec
        master_addr = spec.master_addr or next(iter(where.values())).name
        self._described = spec.described(claim.name, master_addr, len(where))

    def _wanted(self, host: _Host) -> dict[str, Any]:
        spec = self._spec
        return {
            **self._described,
            "env": {**_picked(self._where[host.name]), **self._described["env"]},
            "chdir": None if spec.chdir is None else as_utf8(spec.chdir),
            "chooses_port": host.index == 0,
            "port": spec.master_port,
            "default_port": DEFAULT_PORT,
            "own": safe_file_name(host.name),
            "gives_way": spec.name is not None,
            "workers": [_worker(host.name, host.index)],
        }

    def _placed(self, ready: Mapping[str, Mapping[str, Any]]) -> tuple[Record, dict[str, Any]]:
        spec = self._spec
        workers = []
        for name, host in self._where.items():
            folder = ready[name].get("folder")  # as it is: the bytes of a path may travel as lone surrogates
            if not isinstance(folder, str) or not folder.startswith("/"):
                raise asking.unclear().at(name)
            workers.append(Placed(name, host, folder))
        record = Record(
            name=self._claim.name,
            uid=self._described["uid"],
            created=self._described["created"],
            argv=tuple(self._described["argv"]),
            hostfile=spec.hostfile,
            chdir=spec.chdir,
            master_addr=self._described["master_addr"],
            master_port=_port_of(workers[0].name, ready),
            workers=tuple(workers),
        )
        return record, {}


class _RerunOnHosts(_Recorded):
    """The next attempt of an ended job: its command, or `argv`."""

    _makes_folders = False
    _again = True

    def __init__(self, executors: Executors, record: Record, argv: Argv | None, claim: Claim, timeout: float) -> None:
        super().__init__(executors, record.hosts, claim, timeout, record.hostfile)
        self._old, self._argv = record, _words(argv)

    def _wanted(self, host: _Host) -> dict[str, Any]:
        return {**self._old.details(host.name), "again": self._argv, "chooses_port": host.index == 0}

    def _placed(self, ready: Mapping[str, Mapping[str, Any]]) -> tuple[Record, dict[str, Any]]:
        port = _port_of(self._old.workers[0].name, ready)
        argv = self._old.argv if self._argv is None else tuple(self._argv)
        numbers = [whole(told.get("attempt")) or 0 for told in ready.values()]
        return replace(self._old, argv=argv, master_port=port), {"attempt": max(numbers)}


def _port_of(name: str, ready: Mapping[str, Mapping[str, Any]]) -> int:
    """The MASTER_PORT that the host of worker `name` has chosen. Raises AtlctlError."""
    port = whole(ready[name].get("port"))
    if port is None or not 0 < port < 65536:
        raise asking.unclear().at(name)
    return port


async def rerun(
    executors: Executors, record: Record, argv: Argv | None, *, dry_run: bool, timeout: float = 60.0
) -> dict[str, dict[str, Any]]:
    """Start the next attempt of an ended job on hosts: its command, or `argv`. `dry_run`: nothing is started; returns
    what each worker would start. Raises as `start`; then the job is as it was."""
    claim = Claim(record.name)
    try:
        if claim.old is None or claim.old.uid != record.uid:
            raise Replaced(record.name)
        dialogue = _RerunOnHosts(executors, record, argv, claim, timeout)
        if dry_run:
            return await dialogue.ready()
        await dialogue.run()
        return {}
    finally:
        claim.release()


class _RerunInPlace(_Dialogue):
    """The next attempt in containers that something else has started."""

    _again = True

    def __init__(
        self, executor: Executor, job: Job, own: Mapping[str, str], argv: Argv | None, timeout: float, asked: Ready
    ) -> None:
        super().__init__(executor, job.workers, timeout, "in_place", f"atlctl stop --keep {job.name}")
        self._own, self._asked = own, asked
        self._described = StartSpec(argv or Argv(())).described(job.name, "", len(own))
        self._described.update(again=_words(argv), gives_way=True)

    def _wanted(self, host: _Host) -> dict[str, Any]:
        container = self._asked.get(host.name, {}).get("container")
        return {**self._described, "own": safe_file_name(self._own[host.name]), "container": container}

    def _order(self, ready: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"attempt": max(whole(told.get("attempt")) or 0 for told in ready.values())}


#: The next attempt of each worker.
Ready = Mapping[str, Mapping[str, Any]]


async def rerun_in_place(
    executor: Executor, job: Job, own: Mapping[str, str], argv: Argv | None, asked: Ready | None, timeout: float = 60.0
) -> dict[str, dict[str, Any]]:
    """Start the command of a job's containers again, or `argv`, on all of them or on none: see
    `remote.supervisor.inplace`. `own`: names for the workers' folders. `asked`: the answer of a first call, which
    starts nothing. Raises as `start`."""
    dialogue = _RerunInPlace(executor, job, own, argv, timeout, asked or {})
    if asked is None:
        return await dialogue.ready()
    await dialogue.run()
    return {}


def _together(errors: Mapping[str, AtlctlError]) -> AtlctlError:
    """One error for all hosts that could not take a step: that of the first one, with a word on the others. Raises
    Taken."""
    if any(isinstance(error, NoAnswer) and error.why is Why.TAKEN for error in errors.values()):
        raise Taken
    alike: dict[str, list[str]] = {}
    for name, error in errors.items():
        alike.setdefault(error.message, []).append(name)
    groups = list(alike.values())
    shown = [asking.for_user(fold_names(names), errors[names[0]]) for names in groups[:TOLD]]
    message = joined(error.message for error in shown)
    if more := sum(map(len, groups[TOLD:])):
        message = Message("{why}; and {count} more hosts failed", why=message, count=more)
    return _reword(shown[0], message)


def _reword(error: AtlctlError, message: str) -> AtlctlError:
    error.args, error.message = (message,), message
    return error


def _picked(host: Host) -> dict[str, str]:
    """If some slots of a host were selected, its worker sees only those GPUs, as with deepspeed."""
    return {} if host.devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, host.devices))}
