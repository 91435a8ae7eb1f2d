"""The agent's side of the ranks: a process that imports torch once (the zygote), and what is asked of it.

It is forked before this process has a thread and asked by lines of JSON over a pipe. The end of that pipe is its end,
and so is that of this process, whatever ends it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time

from atlctl.remote.sentences import Sentence

from . import children, wire, zygote

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

    from .wire import Say

#: Seconds that the zygote has to end its ranks by itself, and to be gone once it was killed.
_LEAVING, _KILLED = 0.5, 0.2
_lock = threading.Lock()
_calls: dict[int, Say] = {}


class _Zygote:
    """What is known of it. `torch`: what it told of torch; `gone`: why it is no longer there."""

    pid = 0
    commands = -1
    torch: dict[str, Any] | None = None
    gone: str = Sentence("torch was not asked for")
    asked: list[Say]  # by `torch`, and not answered yet
    busy = False


_zygote = _Zygote()
_zygote.asked = []


def begin(config: dict[str, Any]) -> None:
    """Forks the zygote. For the agent's first thread, while it has no other."""
    own = os.getpid()
    (reads, commands), (reports, writes) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(commands)
            os.close(reports)
            os.close(wire._out[0])
            zygote.run(own, reads, writes, config)
        finally:
            os._exit(1)
    os.close(reads)
    os.close(writes)
    _zygote.pid, _zygote.commands, _zygote.gone = pid, commands, ""
    children.at_end("zygote", _end)
    threading.Thread(target=_listen, args=(reports,), daemon=True).start()


def torch(say: Say, _request: dict[str, Any]) -> None:
    """Versions of torch, CUDA, NCCL and what it was built with, as soon as it is imported, or why it cannot be."""
    with _lock:
        if _zygote.torch is None and not _zygote.gone:
            _zygote.asked.append(say)
            wire.tell(_zygote.commands, {"cmd": "begin"})
            return
    _tell(say)


def stage(say: Say, request: dict[str, Any]) -> None:
    """Starts `ranks`, one process each, and passes on all that they say. The last word comes when all have ended."""
    _post(say, request)


def stage_go(say: Say, request: dict[str, Any]) -> None:
    """Passes `orders` on to ranks of `group`, by their ids."""
    _post(say, request)


def stage_stacks(say: Say, request: dict[str, Any]) -> None:
    """What the ranks of `group` are doing."""
    _post(say, request)


def stage_kill(say: Say, request: dict[str, Any]) -> None:
    """Ends those ranks of `group` that are in `ids`, or all."""
    _post(say, request)


def _post(say: Say, request: dict[str, Any]) -> None:
    with _lock:
        gone = _zygote.gone
        if not gone:
            _calls[request["id"]] = say
            _zygote.busy = True
            try:
                wire.tell(_zygote.commands, request)
            except OSError as error:
                del _calls[request["id"]]
                gone = Sentence("the process that starts ranks takes no orders: {error}", error=str(error))
    if gone:
        say(ev="problem", error=gone, end=True)


def _listen(reports: int) -> None:
    """Passes on what the zygote reports; at its end those who wait are told."""
    try:
        for line in wire.lines(reports):
            _pass_on(json.loads(line))
        _bury()
    except OSError:
        os._exit(3)  # nobody hears this agent any more


def _pass_on(event: dict[str, Any]) -> None:
    key = event.pop("key", None)
    if key is None:
        with _lock:
            _zygote.torch = event
            asked, _zygote.asked = _zygote.asked, []
        for say in asked:
            _tell(say)
        return
    with _lock:
        say_to = _calls.pop(key, None) if event.get("end") else _calls.get(key)
    if say_to is not None:
        say_to(**event)


def _tell(say: Say) -> None:
    told = _zygote.torch or {"ok": False, "error": _zygote.gone}
    say(**dict(told, ev="torch", end=True))


def _bury() -> None:
    how = _status(_zygote.pid)
    with _lock:
        told = (_zygote.torch or {}).get("error")
        _zygote.gone = Sentence("torch cannot be imported: {error}", error=told) if told else how
        _zygote.torch = _zygote.torch or {"ok": False, "error": _zygote.gone}
        waiting, asked = list(_calls.values()), _zygote.asked
        _calls.clear()
        _zygote.asked = []
    for say in waiting:
        say(ev="problem", error=_zygote.gone, end=True)
    for say in asked:
        _tell(say)


def _status(pid: int) -> Sentence:
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return Sentence("the process that starts ranks has ended")
    if os.WIFSIGNALED(status):
        return Sentence("the process that starts ranks was ended by signal {number}", number=os.WTERMSIG(status))
    return Sentence("the process that starts ranks ended with exit {code}", code=os.WEXITSTATUS(status))


def _end() -> None:
    """The zygote ends its ranks first; while it still imports torch it has none, and no ear either."""
    with _lock:
        commands, _zygote.commands = _zygote.commands, -1
        gone, _zygote.gone = _zygote.gone, _zygote.gone or Sentence("the agent leaves")
    if commands < 0:
        return
    os.close(commands)
    end, killed = time.monotonic() + (_LEAVING if _zygote.busy else 0), False
    while not gone:
        try:
            if os.waitpid(_zygote.pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        if time.monotonic() >= end and not killed:
            os.kill(_zygote.pid, signal.SIGKILL)
            killed, end = True, time.monotonic() + _KILLED
        elif time.monotonic() >= end:
            return  # it waits for a device or a disk, and goes when that answers
        time.sleep(0.005)
