"""Ends a worker by way of its supervisor, and what is left of a job on this machine."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from . import folders, processes
from .telling import Refused

#: Seconds that the supervisor may take beyond the grace: SIGKILL has 5 s, pipes 2 s, and the machine is busy.
MARGIN_SECONDS = 12.0
#: How long a supervisor may live on after it has closed its socket, seconds.
GOING_SECONDS = 2.0


def stop(wanted: dict[str, Any]) -> dict[str, Any]:
    """SIGTERM, `grace` seconds, SIGKILL. Raises Refused."""
    folder = wanted["folder"]
    record = folders.record(folder, wanted["uid"])
    presence, place = folders.presence(record)
    if presence == "elsewhere":
        raise Refused("elsewhere", f"it runs on {place}: it can only be stopped there")
    if presence == "gone":
        return _told("already-ended")
    try:
        answer = _ask(folder, record, wanted["grace"])
    except socket.timeout:  # noqa: UP041  the same as TimeoutError since Python 3.10
        raise Refused(
            "failed", f"its supervisor does not answer within {wanted['grace'] + MARGIN_SECONDS:g} s"
        ) from None
    except OSError:
        answer = None
    if answer is not None:
        return answer
    identity = record["supervisor"]
    deadline = time.monotonic() + GOING_SECONDS
    while processes.alive(identity["pid"], identity["start"]):
        if time.monotonic() > deadline:
            raise Refused("failed", "its supervisor cannot be reached")
        time.sleep(0.02)
    if os.path.exists(f"{folder}/workers/{wanted['worker']}/exit.json"):
        return _told("already-ended")
    return {**_told("killed"), "reason": "its supervisor was killed while it was stopped"}


def _told(how: str, processes: int = 0) -> dict[str, Any]:
    return {"event": "stopped", "how": how, "processes": processes, "reason": ""}


def _ask(folder: str, record: dict[str, Any], grace: float) -> dict[str, Any] | None:
    """What the supervisor says; None where it went away without a word."""
    names = [entry["name"] for entry in record["workers"]]
    body = {"id": 1, "uid": record["uid"], "fds": 0, "op": "stop", "workers": names, "grace": grace}
    # By way of a descriptor, since socket addresses are shorter than paths may be.
    here = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(grace + MARGIN_SECONDS)
            sock.connect(f"/proc/self/fd/{here}/control.sock")
            if not processes.peer_is_me(sock):
                raise Refused("not_allowed", "its supervisor runs as another user there")
            sock.sendall(json.dumps(body).encode() + b"\n")
            with sock.makefile("rb") as answers:
                for line in answers:
                    told = json.loads(line)
                    if told.get("event") == "stopped":
                        return _told(told["how"], told["processes"])
                    if told.get("event") == "wrong-job":
                        raise Refused("replaced", "another job of that name has taken its place on this host")
    finally:
        os.close(here)
    return None


def remove(wanted: dict[str, Any]) -> dict[str, Any]:
    """Delete the folder of a worker that has ended. Raises Refused."""
    folder = wanted["folder"]
    folders.trusted(folder)
    if not os.path.isdir(folder):
        return {"event": "removed"}
    lock = folders.Lock(folder)
    try:
        found = folders.read_json(f"{folder}/job.json")
        if found is not None and found.get("uid") != wanted["uid"]:
            return {"event": "removed"}  # long since, and another job is there
        if found is not None:
            presence, place = folders.presence(found)
            if presence == "alive":
                raise Refused("running", "it still runs")
            if presence == "elsewhere":
                raise Refused("elsewhere", f"it may still run on {place}")
        folders.delete(folder)
        return {"event": "removed"}
    finally:
        lock.release()
