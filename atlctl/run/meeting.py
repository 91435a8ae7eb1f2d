"""The folder on shared storage in which the wrappers of a job find each other, and the files of one start of it.

    DIR/atlctl-run-UID/               0700
      JOB/current                     the id of the last start, written by worker 0 when it serves
      JOB/START/secret                0600, 32 random bytes; the keys of this start are derived from it
      JOB/START/first.json            the address of worker 0, as long as it runs
      JOB/START/came-*.json           a worker that has come, with its address
      JOB/START/table.json            the decision of worker 0 on the start, and the workers that it knows then
      JOB/START/NAME/                 the evidence of a worker, in the layout of a supervisor's folder
      JOB/START/verdict.txt, .json    the root cause, from the worker that made it

A start becomes visible as a whole, by a rename. Who can read the folder owns the job: links, other owners and rights of
others are refused. Without shared storage the folder is local, and the key and the addresses are given.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from atlctl.backends.hosts.hostfile import Host, checked
from atlctl.backends.hosts.jobkeys import JOB_USER
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.jobs.fields import mapping, text, whole
from atlctl.jobs.naming import safe_file_name
from atlctl.jobs.statedir import check_folder, file_error, read_bytes, readable, write_atomic

#: Bytes of the secret, and of the files that are read here.
SECRET_BYTES = 32
_LIMIT, _MOST_TABLE = 64 * 1024, 16 << 20
#: The port of a wrapper whose job has a key and no folder.
PORT = 29422


@dataclass(frozen=True, slots=True)
class JobStart:
    """One start of a job: its id, its folder and its secret."""

    uid: str
    folder: str
    secret: bytes

    @property
    def first(self) -> tuple[str, int] | None:
        """Address and port of worker 0, None if it has not written them."""
        told = _read(f"{self.folder}/first.json")
        address, port = text(told.get("address"), 255), whole(told.get("port"))
        return (address, port) if address and port is not None and 0 < port < 65536 else None

    def announce(self, address: str, port: int) -> None:
        """Worker 0 serves at this address: the others may come. Raises AtlctlError."""
        write_atomic(f"{self.folder}/first.json", json.dumps({"address": address, "port": port}).encode())
        write_atomic(f"{os.path.dirname(self.folder)}/current", self.uid.encode())

    def leave(self) -> None:
        """Worker 0 does not answer any more."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self.folder}/first.json")

    def come(self, entry: Mapping[str, Any]) -> str:
        """A worker has come; returns the name by which worker 0 will know that. Raises AtlctlError."""
        name = f"came-{entry['index']}-{time.time_ns():020}-{os.urandom(4).hex()}.json"
        write_atomic(f"{self.folder}/{name}", json.dumps(entry).encode())
        return name

    def came(self, known: Collection[str], count: int) -> dict[str, dict[str, Any]]:
        """The entries of workers that have come, by their names without the `known` ones, the last one of each worker
        last. Raises OSError."""
        # A client of NFS asks its server when a folder is opened, not when a name is looked up.
        names = sorted(name for name in os.listdir(self.folder) if name.startswith("came-") and name not in known)
        found = {name: entry_of(_read(f"{self.folder}/{name}"), count) for name in names}
        return {name: entry for name, entry in found.items() if entry is not None}

    def decide(self, told: Mapping[str, Any]) -> None:
        """Worker 0 has decided. Raises AtlctlError."""
        write_atomic(f"{self.folder}/table.json", json.dumps(told).encode())

    def decision(self) -> dict[str, Any] | None:
        """The decision of worker 0, None as long as there is none. Raises OSError."""
        if "table.json" not in os.listdir(self.folder):
            return None
        return _read(f"{self.folder}/table.json", _MOST_TABLE)


def _read(path: str, limit: int = _LIMIT) -> dict[str, Any]:
    """The object in a file, empty if there is none."""
    try:
        return mapping(json.loads(read_bytes(path, limit)))
    except (FileNotFoundError, AtlctlError, ValueError, RecursionError):
        return {}


def new_uid() -> str:
    """The id of a start: its time, for people, and random letters."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(4).hex()}"


class RunFolder:
    """The folder of a job in `root`. All of it may hang with the storage: callers use a thread."""

    def __init__(self, root: str, job: str) -> None:
        """Make the folders that do not exist. Raises UsageError, NotAllowed, AtlctlError."""
        if not os.path.isabs(root):
            raise UsageError(Message("the folder of a run must be an absolute path: {path}", path=root))
        top = os.path.join(root, f"atlctl-run-{os.geteuid()}")
        self.path = os.path.join(top, safe_file_name(job))
        try:
            os.makedirs(root, exist_ok=True)
            for path in (top, self.path):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o700)
            self._owner = self._own()
            for path in (top, self.path):
                self._check(path)
        except OSError as error:
            raise file_error(error, error.filename or self.path) from error

    def _own(self) -> int:
        """The owner of the files that this process makes here: on NFS root is mapped to another user."""
        probe = os.path.join(self.path, f".new-{os.urandom(6).hex()}")
        try:
            os.mkdir(probe, 0o700)
            return os.lstat(probe).st_uid
        finally:
            with contextlib.suppress(OSError):
                os.rmdir(probe)

    def _check(self, path: str) -> None:
        check_folder(path, self._owner, forbidden=0o077)

    def create(self) -> JobStart:
        """A new start, with a random secret. Raises AtlctlError."""
        uid, secret = new_uid(), os.urandom(SECRET_BYTES)
        new = os.path.join(self.path, f".new-{uid}")
        try:
            os.mkdir(new, 0o700)
            write_atomic(f"{new}/secret", secret.hex().encode())
            os.rename(new, os.path.join(self.path, uid))
        except OSError as error:
            raise file_error(error, self.path) from error
        return JobStart(uid, os.path.join(self.path, uid), secret)

    def found(self) -> tuple[JobStart | None, tuple[str, int] | None]:
        """`current`, and the address of its worker 0."""
        start = self.current()
        return start, None if start is None else start.first

    def current(self) -> JobStart | None:
        """The last start that worker 0 has announced. Raises NotAllowed if others may have forged it."""
        try:
            os.listdir(self.path)  # see `came`
            uid = read_bytes(f"{self.path}/current", _LIMIT).decode("ascii", "replace")
            folder = os.path.join(self.path, safe_file_name(uid))
            self._check(folder)
            found = os.lstat(f"{folder}/secret")
            if found.st_uid != self._owner or found.st_mode & 0o077:
                raise NotAllowed(readable(f"{folder}/secret", found))
            return JobStart(
                uid, folder, bytes.fromhex(read_bytes(f"{folder}/secret", _LIMIT).decode("ascii", "replace"))
            )
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise file_error(error, self.path) from error


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write evidence; a disk that is full or gone costs that file alone."""
    with contextlib.suppress(AtlctlError, OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_atomic(path, json.dumps(value).encode())


def entry_of(raw: object, count: int) -> dict[str, Any] | None:
    """The entry of a worker from another wrapper; None if it is not one."""
    told = mapping(raw)
    index, port = whole(told.get("index")), whole(told.get("port"))
    folder = text(told.get("folder"), 4096)
    try:
        address = checked(text(told.get("address"), 255))
    except UsageError:
        return None
    if index is None or not 0 <= index < count or port is None or not 0 < port < 65536 or not folder.startswith("/"):
        return None
    return {"index": index, "address": address, "port": port, "folder": folder}


def host_of(entry: Mapping[str, Any]) -> Host:
    """The way to the worker of an entry."""
    return Host(entry["address"], JOB_USER, entry["port"])


def keep_files(source: str, target: str) -> None:
    """Copy what torch has left to the evidence, and remove it here."""
    if os.path.isdir(source) and os.listdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True)
    shutil.rmtree(source, ignore_errors=True)


def make_room(own: str, number: int) -> None:
    """Set the log, the steps and the exit of the attempt before aside, under its number."""
    os.makedirs(own, mode=0o700, exist_ok=True)
    for name in ("log", "exit.json", "steps.jsonl") if number > 1 else ():
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{own}/{name}", f"{own}/{name}.{number - 1}")
