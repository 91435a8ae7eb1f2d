"""The parts of a wrapper: its options, one run of its command, the commands of atlctl that it starts on its own job,
the door by which others come to it, and work in threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from atlctl.i18n import Message
from atlctl.jobs.fields import items, mapping, text
from atlctl.run.meeting import PORT, write_json
from atlctl.run.place import bound

if TYPE_CHECKING:
    import socket

    from atlctl.backends.hosts.jobkeys import JobAccess
    from atlctl.run.output import StepsOfOutput
    from atlctl.run.serving import Answer, Server

T = TypeVar("T")

_PROGRAM = (sys.executable, "-P", "-m", "atlctl")
#: Bytes of what a command prints and reads, which a pipe holds, and seconds for it to end after that.
_LIMIT, _GIVEN, _END_SECONDS = 4 << 20, 32 << 10, 20.0
#: Seconds for a message to the user, and between two of them.
_NOTIFY_SECONDS, _PAUSE_SECONDS = 20.0, 60.0
#: The folder with the PCI buses of the GPUs that a container has. Characters of one message of the kernel, and lines.
_OWN_GPUS = "/proc/driver/nvidia/gpus"
_OF_GPU = re.compile(r"Xid \((?:PCI:)?([0-9A-Fa-f:.]{4,20})\)")
_KERNEL_LINE, _KERNEL_LINES = 500, 50
#: What --block can name beside the checks of `smoke`.
GPU, MISSING, NETWORK = "gpu", "missing", "network"
DEFAULT_BLOCK = frozenset({GPU})
#: All that is needed to be reached, and to reach others.
_HEAVY = ("atlctl.run.serving", "atlctl.backends.hosts.wrappers", "atlctl.backends.hosts.runs")
_OF_NETWORK = ("mesh", "throughput", "pairs")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `atlctl run`; times in seconds. `root`: the folder on shared storage. `key`: the job's secret if
    there is no folder. `items`: the checks, None for those of the quick tier, "none" for none. `notify`: NAME of
    `atlctl notify`. `pod`: options that name the pod of this process, if its cluster can be asked."""

    root: str | None = None
    key: bytes | None = field(default=None, repr=False)
    items: str | None = None
    budget: str | None = None
    block: frozenset[str] = DEFAULT_BLOCK
    wait: float = 120.0
    settle: float = 30.0
    hold: float = 0.0
    notify: str | None = None
    serve: bool = True
    port: int = PORT
    stops_others: bool = False
    pod: tuple[str, ...] = ()


class Refused(Exception):
    """The answer to another wrapper, or to a client, is that it is not done; `message` is for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


async def apart(work: Callable[[], T], seconds: float | None) -> T:
    """The result of `work`, done in a thread that nothing waits for at the end: storage may hang for ever. Raises
    TimeoutError after `seconds`; the thread goes on."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(give: Callable[[], None]) -> None:
        if not future.done():
            give()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  the caller gets it
            failed = error
            give = lambda: future.set_exception(failed)  # noqa: E731
        else:
            give = lambda: future.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, give)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(seconds):
        return await future


async def write_note(path: str, value: dict[str, Any]) -> None:
    """Write JSON to the evidence; after a second this goes on without being waited for."""
    with contextlib.suppress(TimeoutError):
        await apart(lambda: write_json(path, value), 1.0)


def kernel_lines(since: float | None) -> tuple[list[bytes], float]:
    """The kernel's messages after a time of its clock that may explain a failure, as lines for the log of a worker, and
    the time of the last one; without a time only that. Raises OSError if this user cannot read them."""
    from atlctl.remote import kmsg

    found = kmsg.messages()
    last = found[-1][0] if found else 0.0
    if since is None:
        return [], last
    from atlctl.diagnosis.signatures import FaultScope, builtin_matcher

    match, lines = builtin_matcher().match, []
    try:
        gpus = os.listdir(_OWN_GPUS)
    except OSError:
        gpus = []
    for when, said in found:
        known = match(said) if when > since else None
        if known is None or known.signature.scope is not FaultScope.WORKER:
            continue
        # Those of other containers' GPUs are there, too.
        bus = _OF_GPU.search(said)
        if bus is None or not gpus or any(gpu.startswith(bus[1].lower()) for gpu in gpus):
            lines.append(f"kernel: {said[:_KERNEL_LINE]}\n".encode())
    return lines[-_KERNEL_LINES:], max(since, last)


@dataclass(frozen=True, slots=True)
class CheckFault:
    """A finding of the smoke test. `grave`: a fault and no warning; `name`: what --block calls it; `about`: who and
    what."""

    grave: bool
    name: str
    about: str


@dataclass(frozen=True, slots=True)
class OwnCommands:
    """Commands of atlctl on the job `job`, in the environment `environ`."""

    job: str
    environ: Mapping[str, str]

    @property
    def of_job(self) -> list[str]:
        """The options for commands about the job."""
        return ["-j", self.job, "--backend", "ssh"]

    async def output(self, words: Sequence[str], seconds: float, given: str = "") -> str | None:
        """The output of a command; None if it does not end in time, or prints nothing. The words name the job, see
        `of_job`. `given`: its standard input."""
        environ = {name: value for name, value in self.environ.items() if name not in ("ATLCTL_JOB", "ATLCTL_WORKER")}
        child = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own would wait for children of others
            [*_PROGRAM, *words, "--color", "never"],
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        assert child.stdout is not None
        pipe = child.stdout
        said = None
        if child.stdin is not None:
            with child.stdin, contextlib.suppress(BrokenPipeError):
                child.stdin.write(given.encode()[:_GIVEN])
        try:
            said = await apart(lambda: pipe.read(_LIMIT), seconds)
        except TimeoutError:
            return None
        finally:
            if said is None or len(said) == _LIMIT:  # else it has closed its output, and ends by itself
                child.terminate()
            try:
                await apart(child.wait, _END_SECONDS)
            except TimeoutError:
                child.kill()
            pipe.close()
        return said.decode("utf-8", "replace") or None

    async def owner(self, pod: Sequence[str], seconds: float) -> str:
        """The job of a pod; empty if it has none, or may not be read."""
        said = await self.output(["ps", *pod, "--backend", "kubernetes", "-o", "json"], seconds)
        try:
            return text(mapping(mapping(mapping(json.loads(said or "")).get("data")).get("job")).get("name"), 253)
        except (ValueError, RecursionError):
            return ""

    async def smoke(self, checks: str | None, budget: str | None, seconds: float) -> list[CheckFault] | None:
        """The findings of the smoke test; None without a result."""
        words = ["smoke", *self.of_job, "-o", "json"]
        for option, value in (("--items", checks), ("--budget", budget)):
            words += [option, value] if value else []
        try:
            data = mapping(mapping(json.loads(await self.output(words, seconds) or "")).get("data"))
        except (ValueError, RecursionError):
            return None
        if "findings" not in data:
            return None
        return [found for raw in items(data["findings"]) if (found := _fault(mapping(raw))) is not None]


class Notifier:
    """Sends messages to `name` of the user's configuration, at most one a minute, and lets nothing wait for them; none
    without a name."""

    def __init__(self, name: str | None, commands: OwnCommands, shout: Callable[[str], None]) -> None:
        self._name, self._commands, self._shout = name, commands, shout
        self._last = float("-inf")
        self._sending: asyncio.Task[None] | None = None

    def send(self, title: str, body: str) -> None:
        now = time.monotonic()
        if self._name is not None and now - self._last > _PAUSE_SECONDS:
            self._last = now
            self._sending = asyncio.create_task(self._send(self._name, title, body))

    async def _send(self, name: str, title: str, body: str) -> None:
        if await self._commands.output(["notify", name, f"--title={title}"], _NOTIFY_SECONDS, body) is None:
            command = f"echo hello | atlctl notify {shlex.quote(name)}"
            self._shout(Message("the notification was not sent; try: {command}", command=command))

    async def aclose(self, *, wait: bool) -> None:
        """Let the last message be sent, or not."""
        if self._sending is not None:
            if not wait:
                self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


@dataclass(slots=True)
class Attempt:
    """One run of the command in this worker."""

    number: int
    argv: tuple[str, ...]
    child: subprocess.Popen[bytes] | None = None
    start: int = 0
    started: float = 0.0
    #: The status of this wrapper's own process, as Popen has it; None until it has ended.
    own: int | None = None
    #: When the last process of the worker has ended, and how the first one ended that failed.
    ended: float | None = None
    code: int | None = None
    signal: int | None = None
    #: Ended by `atlctl stop`.
    stopped: bool = False
    trainer_failed: bool = False
    steps: StepsOfOutput | None = None

    @property
    def running(self) -> bool:
        return self.started > 0 and self.ended is None

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal is not None else self.code or 0

    @property
    def own_code(self) -> int:
        """The exit code of this wrapper."""
        return 0 if self.own is None else self.own if self.own >= 0 else 128 - self.own

    def take(self, status: int) -> None:
        """A process of the worker has ended, with a status as of Popen."""
        if not self.exit_code:
            self.code, self.signal = (status, None) if status >= 0 else (None, -status)

    def end_own(self, status: int) -> None:
        """The process of this wrapper has ended."""
        self.own = status
        self.take(status)

    def exit(self, lost: int) -> dict[str, Any]:
        """The end, as a supervisor writes it. `lost`: bytes that are not in the log."""
        return {
            "exit_code": self.code,
            "signal": self.signal,
            "ended": self.ended,
            "stopped": self.stopped,
            "log_bytes_lost": lost,
            "attempt": self.number,
        }


class Door:
    """Others can connect at once. asyncssh, half a second of CPU and 20 MB, is loaded when one does, or by `serve`."""

    def __init__(self, index: int, environ: Mapping[str, str], cwd: str, answer: Answer) -> None:
        """As `Server`."""
        self._index, self._environ, self._cwd, self._answer = index, environ, cwd, answer
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[Server] | None = None
        self._loading: asyncio.Future[Any] | None = None
        self.port = 0

    def listen(self, access: JobAccess, address: str, port: int) -> None:
        """`port`: 0 for any free one. Raises OSError."""
        self._access = access
        self._socket = bound(address, port)
        self.port = self._socket.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._socket, self.serve)

    def serve(self) -> None:
        """Start the server, once; nothing without `listen`."""
        if self._socket is not None and self._serving is None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._serving = asyncio.ensure_future(self._served(self._socket))

    async def _served(self, listener: socket.socket) -> Server:
        await self.load()
        from atlctl.run.serving import Server

        server = Server(self._access, self._index, self._environ, self._cwd, self._answer)
        await server.start(listener)
        return server

    async def load(self) -> None:
        """Import the modules of SSH and of the job's record in a thread: output goes on meanwhile."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(apart(lambda: [import_module(name) for name in _HEAVY], None))
        await asyncio.shield(self._loading)

    async def aclose(self, linger: float = 0.0) -> None:
        """End the server, if there is one after so many seconds."""
        if self._loading is not None:  # Python cannot end in the middle of an import
            await self.load()
        if self._serving is not None:
            server = await self._serving
            await asyncio.sleep(linger)
            await server.aclose()
        elif self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
        if self._socket is not None:
            self._socket.close()
        self._socket = self._serving = None


def _fault(raw: Mapping[str, Any]) -> CheckFault | None:
    severity, name = text(raw.get("severity"), 20), text(raw.get("check"), 50)
    if severity not in ("fail", "warn", "incomplete"):
        return None
    culprit = mapping(raw.get("culprit"))
    if name == "gpus" and culprit.get("kind") == "worker":
        name = GPU  # not one GPU that is bad: one is lost, or the driver hangs
    elif name in _OF_NETWORK:
        name = NETWORK
    elif name == "roll-call":
        name = MISSING
    who, words = text(culprit.get("worker"), 100), text(raw.get("evidence"), 500)
    return CheckFault(severity == "fail", name, Message("{who}: {what}", who=who, what=words) if who else words)
