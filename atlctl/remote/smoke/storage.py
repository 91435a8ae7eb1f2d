"""Storage test on a worker: a child (`disk`) for each mount writes a file, looks for all files, and removes its own.

The children run until `storage_clean` or the end of the agent. A child without progress is stuck: it is reported with
its wait location in the kernel, and abandoned.
"""

from __future__ import annotations

import re
import threading
import time

from atlctl.remote import cgroups

from . import children, disk

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from typing import Any

    from .wire import Say

#: Files use at most a tenth of the free memory, because a mount may be in memory.
_MEMORY_SHARE = 10
#: Seconds to remove files at the end of the agent; the client waits for two seconds.
_LAST = 1.5

_children: dict[int, children.Child] = {}
_stuck: dict[int, str] = {}
_lock = threading.Lock()


def storage_write(say: Say, request: dict[str, Any]) -> None:
    """The command `storage_write`: write a file in each of `paths` (by number). `want`, `workers`, `again`: see `disk`;
    `patience`: seconds without progress after which a mount is stuck."""
    want = request["want"]
    room = cgroups.memory()["room"]
    if room is not None:
        want = min(want, room // _MEMORY_SHARE)
    work = {"do": "write", "want": want, "workers": request["workers"], "again": request.get("again", False)}
    children.at_end("storage", _leave)
    paths = {int(number): path for number, path in request["paths"].items()}
    say(ev="storage", mounts=_all(request, paths, work), end=True)


def storage_look(say: Say, request: dict[str, Any]) -> None:
    """The command `storage_look`: look for `files` (index and size, by number); `whole`: index to read fully."""
    works = {
        int(number): {"do": "look", "files": files, "whole": request.get("whole")}
        for number, files in request["files"].items()
    }
    paths = {int(number): path for number, path in request["paths"].items() if int(number) in works}
    say(ev="storage", mounts=_all(request, paths, works), end=True)


def storage_clean(say: Say, request: dict[str, Any]) -> None:
    """The command `storage_clean`: remove all files, and those of `others` (indexes of stuck workers, by mount number).
    `still`: the mount is still stuck."""
    paths = dict.fromkeys(list(_children), "")
    others = request.get("others") or {}
    works = {number: {"do": "clean", "others": others.get(str(number), [])} for number in paths}
    mounts = _all(request, paths, works)
    for number in list(_children):
        if number not in _stuck:
            child = _children.pop(number)
            child.let_go()
            if not child.ended(1.0):
                child.kill()
            child.close()
    say(ev="storage", mounts=mounts, end=True)


def _all(request: dict[str, Any], paths: dict[int, str], works: dict[Any, Any]) -> dict[int, Any]:
    """Use all mounts at the same time; returns the results by number."""
    told: dict[int, Any] = {}

    def one(number: int, path: str) -> None:
        try:
            told[number] = _one(request, number, path, works.get(number, works))
        except OSError as error:
            told[number] = {"failed": f"{type(error).__name__}: {error}"[:300]}

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in paths.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def _one(request: dict[str, Any], number: int, path: str, work: dict[str, Any]) -> dict[str, Any]:
    patience = float(request["patience"])
    try:
        if number in _stuck:
            return _listen(number, patience, old=True)
        with _lock:
            child = _children.get(number)
            if child is None:
                token = re.sub(r"[^0-9A-Za-z]", "", str(request["token"]))[:64]
                argument = {
                    "path": path, "token": token, "index": request["index"], "number": number,
                    "seconds": int(request["seconds"]),
                }  # fmt: skip
                child = _children[number] = children.Child(disk, "main", argument)
        child.tell(**work)
        return _listen(number, patience)
    except children.Gone as gone:
        _children.pop(number, None)
        return {"failed": gone.args[0]}


def _listen(number: int, patience: float, old: bool = False) -> dict[str, Any]:
    """Wait for the result. Stuck: no step for `patience` seconds (four times that if it only waits for a CPU)."""
    child, step = _children[number], _stuck.get(number, "start")
    last = time.monotonic()
    while True:
        try:
            heard = child.hear(patience)
        except children.Silent:
            state, place = child.state()
            now = time.monotonic()
            if state == "R" and now - last < 4 * patience:
                continue
            _stuck[number] = step
            return {"stuck": step, "seconds": round(now - last, 1), "state": state, "place": place, "still": old}
        last = time.monotonic()
        if heard.get("done"):
            _stuck.pop(number, None)
            return dict(heard, late=old)
        step = str(heard.get("step", step))


def _leave() -> None:
    """Cleanup at the end of the agent: closing their input makes all children remove their files."""
    children = list(_children.values())
    for child in children:
        child.let_go()
    end = time.monotonic() + _LAST
    for child in children:
        child.ended(max(0.0, end - time.monotonic()))
