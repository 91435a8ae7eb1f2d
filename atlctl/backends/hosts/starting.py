"""Starts a job on its hosts, all of it or nothing.

Each step is taken on all hosts before the next one is: all is in place, the workers run, they stay. Up to the last one
a worker lives only as long as this side holds on: where a host fails, or this process dies, what runs is ended again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atlctl.backends.base import Argv, Executor, Exited, FailedToStart
from atlctl.backends.hosts import asking
from atlctl.backends.hosts.asking import NoAnswer, Why, request
from atlctl.backends.hosts.execution import as_utf8
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.launching import DEFAULT_PORT, LEAKING, LOG_MAX_BYTES, LOG_MAX_FILES, MAX_WORKERS, check
from atlctl.backends.hosts.looking import look
from atlctl.backends.hosts.records import Claim, Placed, Record
from atlctl.backends.hosts.registry import OTHER_NAME, occupied
from atlctl.backends.hosts.stopping import remove_folders, stop
from atlctl.i18n import Message, joined
from atlctl.jobs.errors import NO_PYTHON, AtlctlError, Unreachable, UsageError
from atlctl.jobs.fields import whole
from atlctl.jobs.naming import fold_names, safe_file_name

_log = logging.getLogger(__name__)

#: Seconds for the end of what was begun on a host.
UNDO_SECONDS = 20.0
#: Hosts whose reasons are told where a start fails on many.
TOLD = 3

#: Makes an executor for hosts by the names of their workers. It stays the caller's.
Executors = Callable[[Mapping[str, Host]], Executor]


@dataclass(frozen=True, slots=True)
class StartSpec:
    """What to start where. `hosts`: by the names of the workers, in the order of their ranks.

    `chdir`: the working folder, by default the home of the login, below which a relative one lies. `master_addr`: by
    default the first host's name as it was written. `master_port` None: 29500 where it is free on the first host, else
    another. `failure_markers`: as of local jobs.
    """

    argv: Argv
    hosts: Mapping[str, Host]
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    chdir: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    hostfile: str | None = None
    failure_markers: Sequence[str] = ()


async def start(executors: Executors, spec: StartSpec, timeout: float = 60.0) -> Record:
    """Start the job; it runs on when this returns, whoever goes. `timeout`: seconds for each step of a host.

    Raises UsageError, NotAllowed, Unreachable, CannotStartError, AtlctlError; then nothing is left, or the message
    names where something may be.
    """
    _check(spec)
    number = 1
    while True:
        claim = Claim(spec.name, number)
        try:
            if claim.old is not None:
                await _must_have_ended(executors, claim.old)
            record = await _Start(executors, spec, claim, timeout).run()
            if claim.old is not None:
                await _sweep(executors, claim.old, spec.hosts)
            return record
        except Taken:
            number = claim.number + 1
        finally:
            claim.release()


def _check(spec: StartSpec) -> None:
    if not 1 <= len(spec.hosts) <= MAX_WORKERS:
        raise UsageError(Message("a job has 1 to {most} hosts, not {count}", most=MAX_WORKERS, count=len(spec.hosts)))
    check(spec.argv, spec.name, spec.env, spec.master_port, "atlctl ssh run --hostfile FILE -- torchrun train.py")
    if spec.chdir is not None and (not spec.chdir or "\0" in spec.chdir):
        raise UsageError(Message("--chdir {path!r}: not a folder path", path=spec.chdir))


async def _must_have_ended(executors: Executors, old: Record) -> None:
    """A job gives its name away only where all of its workers are known to have ended."""
    seen = await look(executors(old.hosts), old)
    unknown = [one for one in seen.values() if one.problem is not None]
    if unknown:
        raise AtlctlError(
            Message(
                "an earlier job named {job} may still be running: {why}",
                job=old.name,
                why=unknown[0].worker.reason,
            ),
            OTHER_NAME,
        )
    if living := [name for name, one in seen.items() if one.worker.state.active]:
        raise AtlctlError(
            Message("job {job} is still running on {hosts}", job=old.name, hosts=fold_names(living)),
            occupied(old.name),
        )


async def _sweep(executors: Executors, old: Record, hosts: Mapping[str, Host]) -> None:
    """Remove what an ended job has left where the new one of its name does not run. The new one runs either way."""
    stale = [placed.name for placed in old.workers if hosts.get(placed.name) != placed.host]
    errors = await remove_folders(executors(old.hosts), old, stale)
    for error in errors.values():
        _log.debug("what is left of an ended job stays: %s", error.message)


class Taken(Exception):
    """A name that nobody chose is that of another client's job on a host."""


class _Host:
    """The dialogue with one host."""

    def __init__(self, executor: Executor, name: str, index: int, timeout: float) -> None:
        self.name, self.index, self._timeout = name, index, timeout
        self._execution = executor.run(asking.worker_of(name, index), request("start", {}))
        self._answers: asyncio.Queue[dict[str, Any] | AtlctlError] = asyncio.Queue()
        self._pump: asyncio.Task[None] | None = None
        self._heard = False
        self.kept = False
        #: Nothing of it is there, and it has said so.
        self.clean = True

    async def step(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        """Say one line and hear one. Raises AtlctlError, also where it is not the expected one."""
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
        """End what was begun there. `clean` tells whether that is proven."""
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


class _Start:
    """One start of one job."""

    def __init__(self, executors: Executors, spec: StartSpec, claim: Claim, timeout: float) -> None:
        self._executor = executors(spec.hosts)
        self._spec, self._claim = spec, claim
        self._hosts = {name: _Host(self._executor, name, index, timeout) for index, name in enumerate(spec.hosts)}
        self._uid = str(uuid.uuid4())
        self._created = time.time()
        self._record: Record | None = None

    async def run(self) -> Record:
        """Raises as `start`, and Taken."""
        try:
            ready = await self._all(lambda host: host.step(self._wanted(host), "ready"))
            record = self._placed(ready)
            self._claim.write(record)
            self._record = record
            await self._all(lambda host: host.step({"do": "go", "port": record.master_port}, "started"))
            await self._all(self._keep)
        except AtlctlError as error:
            if left := await self._undo():
                _reword(
                    error,
                    Message(
                        "{why}; what was begun on {hosts} may still run", why=error.message, hosts=fold_names(left)
                    ),
                )
                error.hint = f"atlctl stop {self._claim.name}"
            elif error.hint is None and isinstance(error, Unreachable):
                error.hint = Message(
                    "see what each host lacks: atlctl doctor --hostfile {path}",
                    path=self._spec.hostfile or "FILE",
                )
            raise
        except BaseException:
            await self._undo()
            raise
        else:
            return record
        finally:
            await asyncio.gather(*[host.close() for host in self._hosts.values()])

    async def _all(self, step: Callable[[_Host], Awaitable[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        """One step on all hosts. Raises AtlctlError that tells of those that could not take it."""
        answers = await asking.each(self._hosts, lambda name: step(self._hosts[name]))
        errors = {name: answer for name, answer in answers.items() if isinstance(answer, AtlctlError)}
        if errors:
            raise _together(errors)
        return {name: answer for name, answer in answers.items() if not isinstance(answer, AtlctlError)}

    async def _keep(self, host: _Host) -> dict[str, Any]:
        told = await host.step({"do": "keep"}, "kept")
        host.kept = True
        return told

    def _wanted(self, host: _Host) -> dict[str, Any]:
        spec = self._spec
        contract = {
            "WORLD_SIZE": str(len(spec.hosts)),
            "RANK": str(host.index),
            "ATLCTL_JOB": self._claim.name,
            "ATLCTL_WORKER": host.name,
        }
        return {
            "name": self._claim.name,
            "uid": self._uid,
            "created": self._created,
            "argv": [as_utf8(word) for word in spec.argv.words],
            "env": {**_picked(spec.hosts[host.name]), **{as_utf8(k): as_utf8(v) for k, v in spec.env.items()}},
            "leaking": LEAKING.pattern,
            "contract": contract,
            "master_addr": self._master_addr,
            "chdir": None if spec.chdir is None else as_utf8(spec.chdir),
            "chooses_port": host.index == 0,
            "port": spec.master_port,
            "default_port": DEFAULT_PORT,
            "worker": host.name,
            "own": safe_file_name(host.name),
            "gives_way": spec.name is not None,
            "failure_markers": list(spec.failure_markers),
            "log_max_bytes": LOG_MAX_BYTES,
            "log_max_files": LOG_MAX_FILES,
        }

    @property
    def _master_addr(self) -> str:
        return self._spec.master_addr or next(iter(self._spec.hosts.values())).name

    def _placed(self, ready: Mapping[str, Mapping[str, Any]]) -> Record:
        """The record, from what the hosts have answered. Raises AtlctlError for what is no answer."""
        spec = self._spec
        workers = []
        for name, host in spec.hosts.items():
            folder = ready[name].get("folder")  # as it is: the bytes of a path may travel as lone surrogates
            if not isinstance(folder, str) or not folder.startswith("/"):
                raise asking.unclear().at(name)
            workers.append(Placed(name, host, folder))
        port = whole(ready[workers[0].name].get("port"))
        if port is None or not 0 < port < 65536:
            raise asking.unclear().at(workers[0].name)
        return Record(
            name=self._claim.name,
            uid=self._uid,
            created=self._created,
            argv=tuple(as_utf8(word) for word in spec.argv.words),
            hostfile=spec.hostfile,
            chdir=spec.chdir,
            master_addr=self._master_addr,
            master_port=port,
            workers=tuple(workers),
        )

    async def _undo(self) -> list[str]:
        """End what was begun everywhere; the workers of which that is not proven. Their record stays."""
        hosts = self._hosts
        await asyncio.gather(*[host.undo() for host in hosts.values()])
        if self._record is None:
            return []
        kept = [name for name, host in hosts.items() if host.kept]
        if kept:
            results = await stop(self._executor, self._record, kept, 0.0)
            for result in results:
                hosts[result.worker].clean = result.how != "not-stopped"
            await remove_folders(self._executor, self._record, kept)
        left = [name for name, host in hosts.items() if not host.clean]
        if not left:
            self._claim.withdraw()
        return left


def _together(errors: Mapping[str, AtlctlError]) -> Exception:
    """One error for all hosts that could not take a step: that of the first one, with a word on the others."""
    if any(isinstance(error, NoAnswer) and error.why is Why.TAKEN for error in errors.values()):
        return Taken()
    shown = [asking.for_user(name, error) for name, error in list(errors.items())[:TOLD]]
    first = shown[0]
    message = joined(error.message for error in shown)
    if len(errors) > TOLD:
        message = Message("{why}; and {count} more hosts cannot either", why=message, count=len(errors) - TOLD)
    return _reword(first, message)


def _reword(error: AtlctlError, message: str) -> AtlctlError:
    error.args, error.message = (message,), message
    return error


def _picked(host: Host) -> dict[str, str]:
    """Where some of a host's slots were picked, its worker sees these GPUs alone, as under deepspeed."""
    return {} if host.devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, host.devices))}
