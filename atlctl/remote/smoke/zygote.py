"""The zygote: imports torch once on a worker and forks the ranks of every stage. It never uses a GPU itself, because
CUDA does not work in a process whose parent has used it.

A rank has four pipes: events and commands (lines of JSON), its output, and stacks. Complete event lines are forwarded.
A rank ends with this process, or at its deadline.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback

from atlctl.remote import proc
from atlctl.remote.sentences import Sentence

from . import wire

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

#: Environment variables of a platform or launcher that would affect the test.
_STRIPPED = ("RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "NPROC_PER_NODE", "OMP_NUM_THREADS")
_STRIPPED_FROM = ("LOCAL_", "GROUP_", "ROLE_", "MASTER_", "PET_", "TORCHELASTIC_", "TORCH_DISTRIBUTED_", "NCCL_DEBUG")
#: Maximum bytes kept of a rank's output, of its stack, and of one event.
_WORDS, _STACK, _LINE = 4 << 10, 16 << 10, 1 << 20
#: Seconds between requesting and reading stacks, and between checks for ended ranks.
_STACKS_AFTER, _LOOK = 0.2, 0.02
_PR_SET_PDEATHSIG = 1
#: Maximum bytes read from NCCL's log, and number of its warnings to forward.
_LOG, _WARNINGS = 4 << 20, 5
_USING = re.compile(r"NCCL INFO (?:Using network |NET/(?=\w+ : Using ))([\w-]+)")
_VIA = re.compile(r" via ((?:NET/[\w-]+|[A-Za-z0-9]+))")
_TICKS = os.sysconf("SC_CLK_TCK")


class _Rank:
    """A rank process, as known to the zygote."""

    def __init__(self, key: int, group: str, number: int, deadline: float) -> None:
        self.key, self.group, self.number, self.deadline = key, group, number, deadline
        self.pid = 0
        self.late = False
        self.events, self.words, self.stacks, self.orders = -1, -1, -1, -1
        self.held, self.said, self.stack = bytearray(), bytearray(), bytearray()
        self.log = None  # type: int | None

    def close(self) -> None:
        for descriptor in (self.events, self.words, self.stacks, self.orders, self.log):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)


def run(agent: int, commands: int, reports: int, config: dict[str, Any]) -> None:
    """Main function of the process. `commands` and `reports` are the pipes to the agent."""
    _die_with(agent)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # A newly forked rank must not be killed by a request for its stack.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    for name in list(os.environ):
        if name in _STRIPPED or name.startswith(_STRIPPED_FROM):
            del os.environ[name]
    # Lookups at a dead name server end soon; one thread per rank; GPU numbers as in nvidia-smi; checks for GPUs during
    # an import must not initialise CUDA.
    os.environ.update(
        RES_OPTIONS="timeout:1 attempts:1",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
    )
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    Zygote(commands, reports).run(config)


class Zygote:
    """The event loop for commands of the agent and output of the ranks."""

    def __init__(self, commands: int, reports: int) -> None:
        self._commands, self._reports = commands, reports
        self._ranks = {}  # type: dict[int, _Rank]
        self._left = {}  # type: dict[int, int]
        self._looks = []  # type: list[tuple[float, int, list[int]]]
        self._poll = select.poll()
        self._probe = None  # type: Any

    def run(self, config: dict[str, Any]) -> None:
        # Load nothing before the client has checked for a running training and free memory.
        held = bytearray(os.read(self._commands, 1 << 16))
        if not held:
            return
        begun = time.monotonic()
        gc.disable()  # a sixth of the CPU time of `import torch`: nothing is garbage yet
        try:
            self._probe = probe = importlib.import_module(__package__ + ".probe")
            # Import everything that the stages need now: ranks that start slowly look dead.
            for name in config.get("stages", ("ddp",)):
                self._prepare(str(name))
            gc.freeze()  # nor in the ranks, which share these objects
            gc.enable()
            self._report(dict(probe.versions(), ev="torch", ok=True, seconds=round(time.monotonic() - begun, 3)))
        except Exception as error:  # noqa: BLE001 - a library that cannot be loaded may raise anything
            absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
            told = f"{type(error).__name__}: {str(error)[:300]}"
            self._report({"ev": "torch", "ok": False, "absent": absent, "error": told})
            return
        self._poll.register(self._commands, select.POLLIN)
        while True:
            for line in wire.cut(held):
                self._obey(json.loads(line))
            busy = self._ranks or self._looks
            ready = dict(self._poll.poll(_LOOK * 1000 if busy else None))
            if self._commands in ready:
                data = os.read(self._commands, 1 << 16)
                if not data:
                    break
                held += data
            self._hear(ready)
            self._look()
        for rank in self._ranks.values():
            _kill(rank.pid, signal.SIGKILL)
        for rank in self._ranks.values():
            os.waitpid(rank.pid, 0)
        os._exit(0)

    def _report(self, fields: dict[str, Any]) -> None:
        wire.tell(self._reports, fields)

    # Commands of the agent

    def _obey(self, order: dict[str, Any]) -> None:
        if order["cmd"] == "begin":
            return
        key, group, known = order["id"], str(order["group"]), order.get("ids")
        ranks = [r for r in self._ranks.values() if r.group == group and (known is None or r.number in known)]
        if order["cmd"] == "stage":
            self._stage(key, group, order)
        elif order["cmd"] == "stage_kill":
            for rank in ranks:
                _kill(rank.pid, signal.SIGKILL)
            self._report({"key": key, "ev": "killed", "end": True})
        elif order["cmd"] == "stage_stacks":
            for rank in ranks:
                _kill(rank.pid, signal.SIGUSR1)
            self._looks.append((time.monotonic() + _STACKS_AFTER, key, [rank.pid for rank in ranks]))
        elif order["cmd"] == "stage_go":
            for rank in ranks:
                text = wire.line(order["orders"].get(str(rank.number)))
                try:
                    os.write(rank.orders, text)
                except OSError:
                    continue  # it has ended, and the loop will report that
            self._report({"key": key, "ev": "gone", "end": True})

    def _stage(self, key: int, group: str, order: dict[str, Any]) -> None:
        self._prepare(str(order["stage"]))
        self._left[key] = len(order["ranks"])
        for spec in order["ranks"]:
            rank = _Rank(key, group, int(spec["id"]), time.monotonic() + float(order["limit"]))
            try:
                self._fork(rank, dict(spec, stage=order["stage"], limit=order["limit"]))
            except OSError as error:
                self._over(rank, {"started": False, "error": error.strerror or str(error)})
        self._end(key)

    def _fork(self, rank: _Rank, spec: dict[str, Any]) -> None:
        pipes = []  # type: list[tuple[int, int]]
        own = os.getpid()
        try:
            pipes.extend(os.pipe() for _ in range(4))
            if spec.get("gpu") is not None:
                rank.log = _anonymous()
            pid = os.fork()
        except OSError:
            for pipe in pipes:
                os.close(pipe[0])
                os.close(pipe[1])
            if rank.log is not None:
                os.close(rank.log)
            raise
        (orders, rank.orders), (rank.events, events), (rank.words, words), (rank.stacks, stacks) = pipes
        if pid == 0:
            code = 1
            try:
                _die_with(own)
                for other in self._ranks.values():
                    other.close()
                for descriptor in (self._commands, self._reports, *_near(rank)):
                    os.close(descriptor)
                os.dup2(words, 1)
                os.dup2(words, 2)
                code = _be(self._probe, spec, events, orders, stacks, rank.log)
            finally:
                os._exit(code)
        rank.pid = pid
        for descriptor in (orders, events, words, stacks):
            os.close(descriptor)
        for descriptor in (rank.events, rank.words, rank.stacks, rank.orders):
            os.set_blocking(descriptor, False)
        for descriptor in (rank.events, rank.words, rank.stacks):
            self._poll.register(descriptor, select.POLLIN)
        self._ranks[pid] = rank
        self._report({"key": rank.key, "ev": "forked", "rank": rank.number, "pid": pid})

    def _prepare(self, stage: str) -> None:
        try:
            self._probe.prepare(stage)
        except Exception as error:  # noqa: BLE001 - the ranks report missing modules themselves
            sys.stderr.write(f"{stage} cannot be prepared: {str(error)[:300]}\n")

    # Ranks

    def _hear(self, ready: dict[int, int]) -> None:
        for rank in self._ranks.values():
            if rank.events in ready:
                self._events(rank)
            if rank.words in ready:
                self._read(rank.words, rank.said, _WORDS)
            if rank.stacks in ready:
                self._read(rank.stacks, rank.stack, _STACK)

    def _events(self, rank: _Rank) -> None:
        self._read(rank.events, rank.held, _LINE)
        for line in wire.cut(rank.held):
            try:
                event = json.loads(line)
            except ValueError:
                continue  # truncated by the limit
            self._report(dict(event, key=rank.key, rank=rank.number, end=False))

    def _read(self, descriptor: int, into: bytearray, limit: int) -> None:
        """Read all available data and keep the last `limit` bytes. A pipe at its end is not polled again."""
        while True:
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                try:
                    self._poll.unregister(descriptor)
                except KeyError:
                    return
                return
            into += data
            del into[:-limit]

    def _look(self) -> None:
        """Handle ended ranks, ranks past their deadline, and due stacks."""
        now = time.monotonic()
        for pid, rank in list(self._ranks.items()):
            if now > rank.deadline and not rank.late:
                rank.late = True
                _kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._events(rank)
                self._read(rank.words, rank.said, _WORDS)
                self._read(rank.stacks, rank.stack, _STACK)
                del self._ranks[pid]
                self._over(rank, dict(_how(status), late=rank.late))
                for descriptor in (rank.events, rank.words, rank.stacks):
                    self._read_no_more(descriptor)
                rank.close()
                self._end(rank.key)
        for look in [look for look in self._looks if look[0] <= now]:
            self._looks.remove(look)
            found = [
                dict(_state(pid), rank=self._ranks[pid].number, stack=_text(self._ranks[pid].stack))
                for pid in look[2]
                if pid in self._ranks
            ]
            self._report({"key": look[1], "ev": "stacks", "ranks": found, "end": True})

    def _read_no_more(self, descriptor: int) -> None:
        try:
            self._poll.unregister(descriptor)
        except KeyError:
            return  # it was at its end already

    def _over(self, rank: _Rank, how: dict[str, Any]) -> None:
        self._left[rank.key] -= 1
        log = transports(rank.log) if rank.log is not None else None
        fields = {"words": _text(rank.said), "stack": _text(rank.stack), "nccl": log}
        self._report(dict(how, key=rank.key, ev="exit", rank=rank.number, **fields))

    def _end(self, key: int) -> None:
        if self._left.get(key) == 0:
            del self._left[key]
            self._report({"key": key, "ev": "ended", "end": True})


def _near(rank: _Rank) -> tuple[int, ...]:
    return rank.events, rank.words, rank.stacks, rank.orders


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "backslashreplace")


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _be(probe: Any, spec: dict[str, Any], events: int, orders: int, stacks: int, log: int | None) -> int:
    """Main function of a rank in the forked process; returns the exit code."""
    faulthandler.enable(file=stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    # End at the deadline even if the parent is stopped or the interpreter's lock is held.
    faulthandler.dump_traceback_later(float(spec["limit"]) + 1, exit=True, file=stacks)
    if log is not None:
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=f"/proc/self/fd/{log}")

    def say(**fields: Any) -> None:
        wire.tell(events, fields)

    reading = os.fdopen(orders, "rb")

    def wait() -> Any:
        line = reading.readline()
        if not line:
            os._exit(0)  # the zygote has gone
        return json.loads(line)

    try:
        probe.rank(spec, say, wait)
    except Exception as error:  # noqa: BLE001 - any error is reported to the client
        traceback.print_exc()
        sys.stderr.flush()
        if isinstance(error, probe.RankError):
            why = Sentence(error.template, **error.values)
            say(ev="error", kind=error.kind, error=Sentence("{what}: {why}", what="RuntimeError", why=why))
        else:
            say(ev="error", error=f"{type(error).__name__}: {str(error)[:600]}")
        return 1
    sys.stdout.flush()
    sys.stderr.flush()
    return 0


# Process data from the kernel and NCCL; ending with the parent


def _die_with(parent: int) -> None:
    """Get SIGKILL when `parent` ends for any reason. If this is not supported, the end of the pipe has to suffice."""
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(0)  # it ended before the call


def _how(status: int) -> dict[str, Any]:
    """The result of an ended process, from its wait status."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return {"started": True, "code": None if number else os.WEXITSTATUS(status), "signal": number}


def _state(pid: int) -> dict[str, Any]:
    """The process state (as in ps), CPU seconds, and seconds waiting for a CPU (None: unknown)."""
    found = proc.stat(f"/proc/{pid}")
    if found is None:
        return {"state": "?", "cpu": None, "starved": None}
    return {"state": found.state, "cpu": found.ticks / _TICKS, "starved": proc.waited(pid)}


def _anonymous() -> int | None:
    """An unnamed file for NCCL's log: it leaves nothing behind."""
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create("nccl")
        return os.dup(tempfile.TemporaryFile().fileno())
    except OSError:
        return None


def transports(log: int) -> dict[str, Any]:
    """The network that NCCL chose, the number of connections by transport, and the last warnings."""
    text = os.pread(log, _LOG, 0).decode("utf-8", "replace")
    via: dict[str, int] = {}
    nets: list[str] = []
    warnings: list[str] = []
    for line in text.splitlines():
        if "NCCL WARN" in line:
            warnings.append(line[:300])
        found = _VIA.search(line)
        if found:
            via[found.group(1)] = via.get(found.group(1), 0) + 1
        found = _USING.search(line)
        if found and found.group(1) not in nets and len(nets) < 16:
            nets.append(found.group(1))
    return {"nets": nets, "via": via, "warnings": warnings[-_WARNINGS:], "said": bool(text)}
