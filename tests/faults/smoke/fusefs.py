"""A file system that hangs, is slow, or returns wrong data: FUSE without a library, over a real folder.

python fusefs.py AT FOLDER OPERATION=ACTION... -- COMMAND...

mounts it at AT (use a separate mount namespace) and runs COMMAND; the file system ends with it. ACTION is `hang` (the
request is never answered: the caller is in an uninterruptible wait), seconds to wait, or `flip` (of `read`: a wrong
byte; `once`: only the first time). Operations: opendir, statfs, create, write, fsync, read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import sys
import time

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _UNLINK, _RENAME, _OPEN, _READ, _WRITE, _STATFS = (
    1,
    2,
    3,
    4,
    10,
    12,
    14,
    15,
    16,
    17,
)
_RELEASE, _FSYNC, _FLUSH, _INIT, _OPENDIR, _RELEASEDIR, _CREATE, _INTERRUPT, _FORGETS = (
    18,
    20,
    25,
    26,
    27,
    29,
    35,
    36,
    42,
)
_RENAME2 = 45
_NAMES = {_OPENDIR: "opendir", _STATFS: "statfs", _CREATE: "create", _WRITE: "write", _FSYNC: "fsync", _READ: "read"}
_HEADER = 40


class Server:
    """One thread answers all requests in order, so a hanging request blocks the whole mount."""

    def __init__(self, device: int, folder: str, faults: dict[str, str]) -> None:
        self._device = device
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._faults = faults
        self._names: dict[int, str] = {1: "."}
        self._numbers: dict[str, int] = {".": 1}

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 21)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            if operation in (_FORGET, _FORGETS, _INTERRUPT):
                continue
            fault = self._faults.get(_NAMES.get(operation, ""), "")
            if fault == "hang":
                continue
            if fault and fault not in ("flip", "once"):
                time.sleep(float(fault))
            try:
                data, number = self._answer(operation, node, request[_HEADER:]), 0
            except OSError as error:
                data, number = b"", -(error.errno or errno.EIO)
            if fault in ("flip", "once") and data:
                data = bytes([data[0] ^ 1]) + data[1:]
                if fault == "once":
                    del self._faults[_NAMES[operation]]
            with contextlib.suppress(FileNotFoundError):
                os.write(self._device, struct.pack("<IiQ", 16 + len(data), number, unique) + data)

    def _answer(self, operation: int, node: int, body: bytes) -> bytes:
        name = self._names.get(node, ".")
        if operation == _INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 16, 12, 1 << 20, 1, 256, 0, 0)
        if operation == _GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(name)
        if operation == _SETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(name)
        if operation == _LOOKUP:
            return self._entry(_string(body))
        if operation in (_OPENDIR, _OPEN):
            handle = 0 if operation == _OPENDIR else self._open(name, os.O_RDWR)
            return struct.pack("<QII", handle, 1, 0)  # 1: bypass the page cache
        if operation == _CREATE:
            created = _string(body[16:])
            handle = self._open(created, os.O_CREAT | os.O_EXCL | os.O_RDWR)
            return self._entry(created) + struct.pack("<QII", handle, 1, 0)
        if operation == _READ:
            handle, offset, size = struct.unpack_from("<QQI", body)
            return os.pread(handle, size, offset)
        if operation == _WRITE:
            handle, offset, size = struct.unpack_from("<QQI", body)
            return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)
        if operation == _FSYNC:
            os.fsync(struct.unpack_from("<Q", body)[0])
            return b""
        if operation in (_FLUSH, _RELEASEDIR):
            return b""
        if operation == _RELEASE:
            os.close(struct.unpack_from("<Q", body)[0])
            return b""
        if operation == _UNLINK:
            os.unlink(_string(body), dir_fd=self._folder)
            return b""
        if operation in (_RENAME, _RENAME2):
            old, new = body[8 if operation == _RENAME else 16 :].split(b"\0")[:2]
            os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            number = self._numbers.pop(old.decode(), None)
            if number is not None:
                self._names[number], self._numbers[new.decode()] = new.decode(), number
            return b""
        if operation == _STATFS:
            room = os.fstatvfs(self._folder)
            return struct.pack(
                "<QQQQQIIII24x", room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree, room.f_bsize,
                255, room.f_frsize, 0,
            )  # fmt: skip
        raise OSError(errno.ENOSYS, "not here")

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags, 0o600, dir_fd=self._folder)

    def _entry(self, name: str) -> bytes:
        attributes = self._attributes(name)
        number = self._numbers.setdefault(name, len(self._names) + 1)
        self._names[number] = name
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + attributes

    def _attributes(self, name: str) -> bytes:
        found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        times = [int(found.st_atime), int(found.st_mtime), int(found.st_ctime)]
        owners = [found.st_mode, found.st_nlink, found.st_uid, found.st_gid]
        number = 1 if name == "." else self._numbers.get(name, 0)
        return struct.pack(
            "<QQQQQQIIIIIIIIII", number, found.st_size, found.st_blocks, *times, 0, 0, 0, *owners, 0, 4096, 0
        )


def _string(body: bytes) -> str:
    return body.split(b"\0")[0].decode()


def main() -> None:
    at, folder, *rest = sys.argv[1:]
    cut = rest.index("--")
    faults = dict(word.split("=") for word in rest[:cut])
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"fuse", at.encode(), b"fuse", 0, options):
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    parent = os.getpid()
    if os.fork():
        os.close(device)
        os.execvp(rest[cut + 1], rest[cut + 1 :])
    libc.prctl(1, signal.SIGKILL)  # ends with the command
    if os.getppid() != parent:
        os._exit(0)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    os.setsid()
    Server(device, folder, faults).serve()


if __name__ == "__main__":
    main()
