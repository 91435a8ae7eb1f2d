"""Answers one request of a remote client; name and details are arguments.

State of a worker (`look`), its log, the beginning of a file, a stop through its supervisor, and the removal of its
folder. A start is a dialogue, see `starting`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from atlctl.remote.proc import Stat, below, children_of

from . import folders, processes
from .logs import attempts, log
from .telling import Refused, explained, say, write

#: Exit code if the answer on standard output is a refusal.
REFUSED = 96
#: Maximum number of programs to report.
MAX_PROGRAMS = 50
#: Seconds for the supervisor beyond the grace: SIGKILL takes 5 s, pipes 2 s, and the machine may be busy.
MARGIN_SECONDS = 12.0
#: Seconds that a supervisor may keep running after it has closed its socket.
GOING_SECONDS = 2.0
#: The exit reason of a worker whose supervisor was killed.
KILLED = "its supervisor was killed while it was stopped"


def main(question: str, details: str) -> None:
    """Entry point. `details` is JSON. Never returns."""
    if question in ("log", "read"):
        answer({"log": log, "read": read}[question], details)
    answer(lambda wanted: say({"look": look, "stop": stop, "remove": remove}[question](wanted)), details)


def answer(give: Callable[[dict[str, Any]], object], details: str) -> NoReturn:
    """Answer a request and exit."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    wanted = json.loads(details)
    try:
        give(wanted)
    except Refused as refused:
        say(refused.told)
        sys.exit(REFUSED)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        say(explained(error, wanted.get("folder", "")).told)
        sys.exit(REFUSED)
    sys.exit(0)


# How a worker is


def look(wanted: dict[str, Any]) -> dict[str, Any]:
    """The state of a worker and the load of its machine. Raises Refused."""
    folder = wanted["folder"]
    record = folders.record(folder, wanted["uid"])
    # The order matters: a worker that ends meanwhile has written its exit by now, or counts as running.
    presence, place = folders.presence(record)
    found = {
        **seen(f"{folder}/workers/{wanted['worker']}", presence, place),
        "host": os.uname().nodename,
        "load": list(os.getloadavg()),
        "cpus": os.cpu_count(),
        "processes": 0,
        "ranks": [],
    }
    if presence == "alive":
        family = below(children_of(processes.everything()), (record["supervisor"]["pid"],))
        found["processes"] = len(family)
        found["ranks"] = sorted(ranks(family, record["name"]))
    return found


def seen(
    own: str, presence: str, place: str, table: Callable[[], dict[int, Stat]] = processes.everything
) -> dict[str, Any]:
    """The state of the worker in the folder `own`. Raises Refused.

    `presence`, `place`: of its supervisor. `table`: returns all processes; called only if the worker may be Held.
    """
    process = folders.read_json(f"{own}/proc.json") or {}
    # The order matters: a worker that ends meanwhile has written its exit by now, or counts as running.
    found: dict[str, Any] = {
        "event": "seen",
        "presence": presence,
        "place": place,
        "process": process,
        "exit": folders.read_json(f"{own}/exit.json"),
        "trainer_failed": os.path.exists(f"{own}/trainer.json"),
        "stopping": os.path.exists(f"{own}/stopping"),
        "held": folders.read_json(f"{own}/held.json"),
        "programs": [],
        "attempt": max([0, *attempts(own)]),
    }
    if found["trainer_failed"] and presence == "alive" and not found["exit"]:
        found["programs"] = _programs(table(), process.get("pid"))
    return found


def _programs(table: dict[int, Stat], first: object) -> list[str]:
    """Names of the programs that run below the worker's first process, `first`."""
    family = {first, *below(children_of(table), (first,))} if isinstance(first, int) else set()
    return sorted({table[pid].comm for pid in family if pid in table})[:MAX_PROGRAMS]


def ranks(pids: Iterable[int], job: str) -> dict[int, str]:
    """Global ranks of torchrun's children among `pids` that belong to `job`, and their workers.

    In such a process torch sets `RANK`, which counts processes; elsewhere the platform does, and it counts workers. A
    job started inside this one has separate ranks.
    """
    found = {}
    for pid in pids:
        env = processes.environment(pid)
        rank = env.get(b"RANK", b"")
        if (
            env.get(b"ATLCTL_JOB") == job.encode()
            and b"TORCHELASTIC_RUN_ID" in env
            and env.get(b"LOCAL_RANK", b"").isdigit()
            and rank.isdigit()
            and len(rank) < 10
        ):
            found[int(rank)] = env.get(b"ATLCTL_WORKER", b"").decode("utf-8", "replace")
    return found


# The beginning of a file


def read(wanted: dict[str, Any]) -> None:
    """One line of JSON, then the file's bytes. Relative paths start in the worker's working folder. Raises Refused."""
    record = folders.record(wanted["folder"], wanted["uid"])
    base = record["workers"][0].get("chdir", "/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(os.path.join(base, wanted["path"]), flags)
    except (OSError, ValueError):
        say({"event": "none"})
        return
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        say({"event": "none"})
        return
    with open(descriptor, "rb") as file:
        say({"event": "file"})
        left = wanted["limit"]
        while left > 0:
            data = file.read(min(left, 1 << 18))
            if not data:
                return
            write(data)
            left -= len(data)


# The end


def stop(wanted: dict[str, Any]) -> dict[str, Any]:
    """Stop a worker: SIGTERM, and SIGKILL after `grace` seconds. Raises Refused."""
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
    return {**_told("killed"), "reason": KILLED}


def _told(how: str, processes: int = 0) -> dict[str, Any]:
    return {"event": "stopped", "how": how, "processes": processes, "reason": ""}


def _ask(folder: str, record: dict[str, Any], grace: float) -> dict[str, Any] | None:
    """The supervisor's answer; None if it exited without one."""
    names = [entry["name"] for entry in record["workers"]]
    body = {"id": 1, "uid": record["uid"], "fds": 0, "op": "stop", "workers": names, "grace": grace}
    # Through a descriptor, because socket addresses are shorter than some paths.
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
                        raise folders.replaced()
    finally:
        os.close(here)
    return None


def remove(wanted: dict[str, Any]) -> dict[str, Any]:
    """Delete the folder of an ended worker. Raises Refused."""
    folder = wanted["folder"]
    folders.trusted(folder)
    if not os.path.isdir(folder):
        return {"event": "removed"}
    lock = folders.Lock(folder)
    try:
        found = folders.read_json(f"{folder}/job.json")
        if found is not None and found.get("uid") != wanted["uid"]:
            return {"event": "removed"}  # removed before, and another job is there
        if found is not None:
            folders.must_have_ended(found)
        folders.delete(folder)
        return {"event": "removed"}
    finally:
        lock.release()
