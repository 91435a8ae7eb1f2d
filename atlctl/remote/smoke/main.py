"""The agent's loop: one command a line on standard input, each answered by a thread; their end is its end."""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import socket
import sys
import threading

from . import children, wire

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

#: Which module answers a command, by its function of the same name: `def mesh(say, request)`. Loaded when first asked.
MODULES = {
    "facts": "facts",
    "gpus": "gpus",
    "headroom": "facts",
    "listen": "network",
    "mesh": "network",
    "connect": "network",
    "send": "network",
    "storage_write": "storage",
    "storage_look": "storage",
    "storage_clean": "storage",
    "torch": "ranks",
    "stage": "ranks",
    "stage_go": "ranks",
    "stage_kill": "ranks",
    "stage_stacks": "ranks",
}


def main(*sought: str) -> None:
    """The first line of standard input is the configuration: `index`, `token`, `seconds` to live, `torch`, `nice`.

    `sought`: "torch" if a Python that has it was looked for, "any" if not, or if this is the Python of another process.
    """
    wire.redirect()
    lines = wire.lines(0)
    config = json.loads(next(lines))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _leave)
    signal.alarm(int(config["seconds"]))
    if config.get("nice"):
        os.nice(config["nice"])
    if config.get("torch"):
        # Forked while there is no thread yet; it imports torch while this process looks at the network.
        importlib.import_module(__package__ + ".ranks").begin(config)
    wire.emit(
        {
            "ev": "hello",
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "executable": sys.executable,
            # "any" where torch was looked for: this is the Python of another process, the worker's own had none.
            "sought": sought,
        }
    )
    try:
        for line in lines:
            request = json.loads(line)
            if request["cmd"] == "bye":
                break
            threading.Thread(target=_answer, args=(request, config), daemon=True).start()
    finally:
        children.undo()
    os._exit(0)


def _answer(request: dict[str, Any], config: dict[str, Any]) -> None:
    say = wire.speaker(request["id"])
    try:
        module = importlib.import_module(__package__ + "." + MODULES[request["cmd"]])
        getattr(module, request["cmd"])(say, dict(config, **request))
    except Exception as error:  # noqa: BLE001 - the client learns of it: it has this agent alone to ask
        try:
            say(ev="problem", error=f"{type(error).__name__}: {str(error)[:400]}", end=True)
        except OSError:
            os._exit(3)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
