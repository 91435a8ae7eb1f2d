"""Start a job on this machine: its folder, its environment contract, its supervisor; what every start keeps to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atlctl.backends.base import Argv
from atlctl.backends.hosts import registry
from atlctl.backends.hosts.asking import CannotStartError
from atlctl.backends.hosts.execution import as_utf8
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, ExitCode, NothingMatched, UsageError
from atlctl.jobs.naming import check_job_name
from atlctl.jobs.statedir import ensure_dir, file_error, state_dir, write_atomic
from atlctl.remote.supervisor import boot

MAX_WORKERS = 4096
#: torchrun's and the platform's port.
DEFAULT_PORT = 29500

#: A worker's log is rotated at this size and this many files are kept (the kubelet keeps 5 of 10 MiB).
LOG_MAX_BYTES = 64 * 1024 * 1024
LOG_MAX_FILES = 5

#: Variables of a torchrun or platform around a start. Inherited, they would hijack the job's own torchrun.
LEAKING = re.compile(
    r"PET_\w+|TORCHELASTIC_\w+|MASTER_(ADDR|PORT)|WORLD_SIZE|RANK|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE|NAME)"
    r"|ATLCTL_(JOB|WORKER|EXEC|STATE_DIR)"
)
_CONTRACT = ("RANK", "WORLD_SIZE", "MASTER_PORT", "ATLCTL_JOB", "ATLCTL_WORKER", "ATLCTL_STATE_DIR", "ATLCTL_EXEC")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to start. `master_port` None: 29500 if it is free, else another. `failure_markers`: byte strings, as text,
    whose presence in a worker's log says that its trainer has failed."""

    argv: Argv
    workers: int
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    master_port: int | None = None
    failure_markers: Sequence[str] = ()


def launch(spec: LaunchSpec) -> str:
    """Start the job and return its name as soon as all its workers run.

    Raises UsageError, CannotStartError, AtlctlError for a full disk or a living job of that name; then nothing is left.
    """
    if not 1 <= spec.workers <= MAX_WORKERS:
        raise _out_of_range("--workers", MAX_WORKERS, spec.workers)
    check(spec.argv, spec.name, spec.env, spec.master_port, "atlctl local run --workers 4 -- python train.py")
    with registry.locked() as root:
        registry.sweep(root)
        name = spec.name or _free_name(root)
        _check_free(name)
        folder = os.path.join(root, name)
        port = _port(spec.master_port)
        old = registry.set_aside(root, name)
        try:
            _write(folder, name, port, spec)
            _start_supervisor(folder, spec)
        except BaseException:
            registry.remove(folder)  # Ctrl-C included: no half-made state
            if old is not None:
                os.rename(old, folder)
            raise
        if old is not None:
            with contextlib.suppress(AtlctlError):  # the job runs; the next start removes what is left of the old one
                registry.remove(old)
    return name


def check(argv: Argv, name: str | None, env: Mapping[str, str], master_port: int | None, example: str) -> None:
    """Raise UsageError for a name, command, variable or port that cannot be. `example`: of a command line."""
    if name is not None:
        check_job_name(name)
    if not argv.words or not argv.words[0]:
        raise UsageError(Message("no command to run"), example)
    for key, value in env.items():
        if key in _CONTRACT:
            hint = (
                Message("use --master-port")
                if key == "MASTER_PORT"
                else Message("it is part of the contract with the workers")
            )
            raise UsageError(Message("--env {key}: this variable is set by atlctl", key=key), hint)
        if not key or "=" in key or "\0" in key + value:
            raise UsageError(
                Message("--env {key}={value}: not a variable", key=key, value=value), Message("write --env NAME=VALUE")
            )
    if master_port is not None and not 1 <= master_port <= 65535:
        raise _out_of_range("--master-port", 65535, master_port)


def _out_of_range(option: str, most: int, number: int) -> UsageError:
    message = Message("{option} must be from 1 to {most}, not {number}", option=option, most=most, number=number)
    return UsageError(message)


def _free_name(root: str) -> str:
    taken = set(os.listdir(root))
    return next(name for name in (f"local-{number}" for number in range(1, len(taken) + 2)) if name not in taken)


def _check_free(name: str) -> None:
    """A dead job's entry gives way to a new one of its name; a living one, or one out of sight, does not."""
    try:
        found = registry.glance(name)
    except NothingMatched:
        return
    if found.presence == "alive":
        raise registry.running(name, registry.occupied(name))
    if found.presence == "elsewhere":
        raise AtlctlError(
            Message(
                "job {job} was started on {place}: it cannot be seen from here whether it still runs",
                job=name,
                place=found.place,
            ),
            registry.OTHER_NAME,
        )


def _port(wanted: int | None) -> int:
    taken = {entry.master_port for entry in registry.load_all()[0] if entry.presence == "alive"}
    if wanted is not None:
        if not boot.port_is_free(wanted):
            raise AtlctlError(
                Message("port {port} is in use", port=wanted),
                Message("leave out --master-port to have a free one chosen"),
            )
        return wanted
    if DEFAULT_PORT not in taken and boot.port_is_free(DEFAULT_PORT):
        return DEFAULT_PORT
    while (port := boot.free_port()) in taken:
        continue
    return port


def worker_names(count: int) -> list[str]:
    """`worker-0` and so on."""
    return [f"worker-{index}" for index in range(count)]


def _write(folder: str, name: str, port: int, spec: LaunchSpec) -> None:
    workers = worker_names(spec.workers)
    env = {as_utf8(key): as_utf8(value) for key, value in os.environ.items() if not LEAKING.fullmatch(key)}
    env |= {"MASTER_ADDR": "127.0.0.1"}
    env |= {as_utf8(key): as_utf8(value) for key, value in spec.env.items()}
    env |= {"MASTER_PORT": str(port), "WORLD_SIZE": str(spec.workers)}
    env |= {"ATLCTL_JOB": name, "ATLCTL_STATE_DIR": as_utf8(state_dir())}
    env.pop("PWD", None)
    env.pop("OLDPWD", None)
    ensure_dir(folder)
    for worker in workers:
        for part in ("work", "log"):
            ensure_dir(f"{folder}/workers/{worker}/{part}")
    record = {
        "name": name,
        "uid": str(uuid.uuid4()),
        "created": time.time(),
        "argv": [as_utf8(word) for word in spec.argv.words],
        "master_port": port,
        "umask": boot.umask(),
        "workers": [
            {"name": worker, "env": {"RANK": str(index), "ATLCTL_WORKER": worker}}
            for index, worker in enumerate(workers)
        ],
        "failure_markers": list(spec.failure_markers),
        "log_max_bytes": LOG_MAX_BYTES,
        "log_max_files": LOG_MAX_FILES,
    }
    write_atomic(f"{folder}/spec.json", json.dumps(record).encode())
    write_atomic(f"{folder}/env.json", json.dumps(env).encode())


def _start_supervisor(folder: str, spec: LaunchSpec) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = _spawn(folder, theirs.fileno())
        try:
            answer = _answer(ours, folder)
            if answer.get("ok"):
                with contextlib.suppress(BrokenPipeError):  # all its workers have ended already
                    ours.sendall(boot.KEEP)
        except BaseException:
            # Without that word it ends what it has started.
            ours.close()
            _await_end(process)
            raise
    if not answer.get("ok"):
        _await_end(process)
        code = int(answer.get("exit_code", ExitCode.FAILED))
        hint = None
        if code in (ExitCode.NOT_FOUND, ExitCode.NOT_EXECUTABLE):
            hint = Message(
                "workers run in folders of their own: give a program in PATH or an absolute path{here}",
                here=_near(spec.argv),
            )
        raise CannotStartError(
            Message("the workers could not be started: {why}", why=answer.get("message")), hint, code
        )
    # It outlives this command: no zombie of ours, no warning about it.
    process.returncode = 0


def _spawn(folder: str, link: int) -> subprocess.Popen[bytes]:
    try:
        return boot.begin(str(Path(boot.__file__).absolute().parents[3]), folder, link)
    except OSError as error:
        raise file_error(error, error.filename or sys.executable) from error


def _await_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(boot.UNDO_SECONDS)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # it ends on its own, later


def _near(argv: Argv) -> str:
    here = os.path.abspath(argv.words[0])
    return Message(" (here: {path})", path=here) if os.path.isfile(here) else ""


def _answer(link: socket.socket, folder: str) -> dict[str, Any]:
    try:
        return boot.await_start(link, folder)
    except boot.Failed as failed:
        raise AtlctlError(
            str(failed), Message("try again; is the machine overloaded?") if failed.late else None
        ) from None
