"""The agent's main loop: one command per line of standard input, each answered by a thread; ends with its input."""

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

#: The module for each command; it has a function of that name: `def mesh(say, request)`. Loaded at the first use.
MODULES = {
    "facts": "facts",
    "gpus": "gpus",
    "links": "facts",
    "headroom": "facts",
    "listen": "network",
    "mesh": "network",
    "connect": "network",
    "meet": "network",
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


def main(*words: str) -> None:
    """Run the agent. The first input line is its configuration: `index`, `token`, `seconds` to live, `torch`, `nice`.

    The last of `words`: "torch" if a Python with torch was searched; "any" if not, or if this Python belongs to another
    process. The one before is that of `seek`.
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
        # Fork now, before the first thread; it imports torch while this process tests the network.
        importlib.import_module(__package__ + ".ranks").begin(config)
    wire.emit(
        {
            "ev": "hello",
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "executable": sys.executable,
            # "any" after a search for torch: this is another process's Python, because the worker's has no torch.
            "sought": words[-1:],
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
    except Exception as error:  # noqa: BLE001 - reported to the client, which depends on this agent
        try:
            say(ev="problem", error=f"{type(error).__name__}: {str(error)[:400]}", end=True)
        except OSError:
            os._exit(3)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
