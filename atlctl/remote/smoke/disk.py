"""Write and read test of one mount. It runs in a child of the agent (`children`): a dead mount blocks only the child.

When the agent ends for any reason, the child's input ends, and the files are removed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import struct
import sys
import time

from atlctl.remote import proc

from . import wire

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PAGE, BLOCK = 4096, 1 << 20
#: All workers together use at most a tenth of the free space.
_SHARE = 10
_MASK = (1 << 64) - 1
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
_NEVER_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC


def name_of(token: str, index: int, number: int) -> str:
    """The file name for worker `index` on mount `number`; the token makes it unguessable."""
    return f".atlctl-smoke-{token}-{index}-{number}"


def content(seed: str) -> Iterator[bytes]:
    """An endless series of blocks, different for each seed; all pages differ."""
    word = 0xCBF29CE484222325
    for byte in seed.encode():
        word = ((word ^ byte) * 0x100000001B3) & _MASK
    words = []
    for _ in range(PAGE // 8 - 1):
        word = (word * 6364136223846793005 + 1442695040888963407) & _MASK
        words.append(word)
    page, number = struct.pack(f"<{len(words)}Q", *words), 0
    while True:
        pages = range(number, number + BLOCK // PAGE)
        yield b"".join([struct.pack("<Q", count) + page for count in pages])
        number += BLOCK // PAGE


def say(**fields: Any) -> None:
    wire.tell(1, fields)


class Mount:
    """The tested folder and the files created in it. `argument`: `path`, `token`, `index`, `number`."""

    def __init__(self, argument: dict[str, Any]) -> None:
        self._path = argument["path"]
        self._number = argument["number"]
        self._token = argument["token"]
        self._index = argument["index"]
        self._folder = -1
        self._made: set[str] = set()

    def write(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write, fsync and rename a file. `want`: maximum bytes; `workers`: number of workers that do the same now;
        `again`: use another name and remove the file immediately."""
        _step("open")
        if self._folder < 0:
            self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _step("statfs")
        room = os.fstatvfs(self._folder)
        free = room.f_bavail * room.f_frsize
        size = min(request["want"], free // _SHARE // max(1, request["workers"]))
        size = max(PAGE, size - size % PAGE)
        told = {
            "size": size, "free": free, "total": room.f_blocks * room.f_frsize, "inodes": room.f_files,
            "free_inodes": room.f_favail, "read_only": bool(room.f_flag & os.ST_RDONLY),
        }  # fmt: skip
        name = name_of(self._token, self._index, self._number) + ("-again" if request.get("again") else "")
        begun, waited = time.monotonic(), proc.waited("self")
        _step("create")
        self._made.add(name + ".new")
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NEVER_FOLLOW
        try:
            file = os.open(name + ".new", flags, 0o600, dir_fd=self._folder)
        except FileExistsError:
            self._made.discard(name + ".new")
            raise
        try:
            self._fill(file, size)
        except OSError:
            with contextlib.suppress(OSError):
                self._remove(name + ".new")
            raise
        told["write_s"] = round(time.monotonic() - begun, 4)
        _step("rename")
        self._made.add(name)
        os.rename(name + ".new", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._made.discard(name + ".new")
        if request.get("again"):
            self._remove(name)
        told["starved_s"] = round(proc.waited_since("self", waited), 4)
        return told

    def _fill(self, file: int, size: int) -> None:
        try:
            left = size
            for block in content(f"{self._token}-{self._index}"):
                _step("write")
                wire.write(file, block[:left])
                left -= len(block)
                if left <= 0:
                    break
            _step("fsync")
            os.fsync(file)
        finally:
            os.close(file)

    def look(self, request: dict[str, Any]) -> dict[str, Any]:
        """Look for `files` (pairs of index and size); `seen`: results by index. The file `whole` is read completely."""
        seen = {}
        if self._folder < 0:
            _step("open")
            self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        waited, bytes_read = proc.waited("self"), 0
        for index, size in request["files"]:
            _step("read")
            whole = index == request.get("whole")
            started = time.monotonic()
            seen[str(index)] = self._compare(index, size, whole)
            if whole and seen[str(index)] == "same":
                bytes_read = size
                read_s = time.monotonic() - started
        told: dict[str, Any] = {"seen": seen, "starved_s": round(proc.waited_since("self", waited), 4)}
        if bytes_read:
            told.update(read_s=round(read_s, 4), read=bytes_read)
        return told

    def clean(self, request: dict[str, Any], quiet: bool = False) -> dict[str, Any]:
        """Remove this run's files, and the files of workers that cannot do it (`others`, by index); `left`: files that
        could not be removed."""
        if not quiet:
            _step("remove")
        for index in request.get("others", ()):
            name = name_of(self._token, int(index), self._number)
            self._made.update((name, name + ".new"))
        left = []
        for name in sorted(self._made):
            try:
                self._remove(name)
            except OSError as error:
                left.append(f"{name}: {error.strerror}")
        return {"left": left}

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            os.unlink(os.path.join(self._path, name))
        self._made.discard(name)

    def _compare(self, index: int, size: int, whole: bool) -> str:
        """`same`, `differs`, `size` (not the written size), `missing`, or the read error."""
        name = name_of(self._token, index, self._number)
        try:
            file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NEVER_FOLLOW, dir_fd=self._folder)
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return "size"
            if whole:  # read from the volume, not the page cache
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            left = size if whole else PAGE
            for block in content(f"{self._token}-{index}"):
                wanted = block[:left]
                if _read(file, len(wanted)) != wanted:
                    return "differs"
                left -= len(wanted)
                _step("read")
                if left <= 0:
                    return "same"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        finally:
            os.close(file)
        return "same"


def main(argument: dict[str, Any]) -> None:
    """Commands are JSON lines: `do` and its fields. Each is answered with steps and a line with `done`."""
    for number in _ENDS:
        signal.signal(number, _leave)
    signal.alarm(argument["seconds"])
    mount = Mount(argument)
    try:
        # Not `sys.stdin`: it would read ahead and block for more than one line.
        with os.fdopen(0, "rb", buffering=0) as lines:
            for line in lines:
                request = json.loads(line)
                try:
                    say(done=True, **getattr(mount, request["do"])(request))
                except OSError as error:
                    say(done=True, step=_at[0], errno=errno.errorcode.get(error.errno or 0, "?"),
                        error=error.strerror or str(error))  # fmt: skip
    except BrokenPipeError:
        sys.exit(0)  # the agent has gone
    finally:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        mount.clean({}, quiet=True)


_at = [""]


def _step(name: str) -> None:
    """Report the next step: it shows progress, and in which step a mount hangs."""
    _at[0] = name
    say(step=name)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _read(file: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = os.read(file, size - len(data))
        if not got:
            break
        data += got
    return data
