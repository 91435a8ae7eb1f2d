"""The agent's interface to the zygote, a process that imports torch once and forks the ranks.

It is forked before this process has a thread, and gets lines of JSON over a pipe. It ends when the pipe is closed or
this process ends for any reason.
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

#: Seconds for the zygote to end its ranks by itself, and to end after SIGKILL.
_LEAVING, _KILLED = 0.5, 0.2
_lock = threading.Lock()
_calls: dict[int, Say] = {}


class _Zygote:
    """The state of the zygote. `torch`: its report about torch; `gone`: the reason why it has ended."""

    pid = 0
    commands = -1
    torch: dict[str, Any] | None = None
    gone: str = Sentence("torch was not asked for")
    asked: list[Say]  # unanswered calls of `torch`
    busy = False


_zygote = _Zygote()
_zygote.asked = []


def begin(config: dict[str, Any]) -> None:
    """Fork the zygote. Must be called while the agent has only one thread."""
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
    """The command `torch`: versions of torch and its libraries after the import, or the reason why it failed."""
    with _lock:
        if _zygote.torch is None and not _zygote.gone:
            _zygote.asked.append(say)
            wire.tell(_zygote.commands, {"cmd": "begin"})
            return
    _tell(say)


def stage(say: Say, request: dict[str, Any]) -> None:
    """The command `stage`: start one process for each of `ranks`, and forward their events until all have ended."""
    _post(say, request)


def stage_go(say: Say, request: dict[str, Any]) -> None:
    """The command `stage_go`: forward `orders` to ranks of `group`, by their ids."""
    _post(say, request)


def stage_stacks(say: Say, request: dict[str, Any]) -> None:
    """The command `stage_stacks`: report the stacks and states of ranks of `group`."""
    _post(say, request)


def stage_kill(say: Say, request: dict[str, Any]) -> None:
    """The command `stage_kill`: kill the ranks of `group` in `ids`, or all."""
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
    """Forward the zygote's reports; when it ends, answer all waiting commands."""
    try:
        for line in wire.lines(reports):
            _pass_on(json.loads(line))
        _bury()
    except OSError:
        os._exit(3)  # the client has gone


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
    """Let the zygote kill its ranks first; during the import of torch it has none and does not respond."""
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
            return  # it is in an uninterruptible wait, and will end later
        time.sleep(0.005)
