"""Files that may never be read to their end: a child reads them, and is left behind where it hangs."""

from __future__ import annotations

import os
import select
import signal
import time

from .procfs import stat, text

#: Seconds in which one file must be read, how many that hang are waited for, and seconds for a child without a CPU.
_FILE_SECONDS, _MAX_HANGING, _STARVED_SECONDS = 0.5, 6, 5.0


def read_all(paths: list[str], limit: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """The first `limit` bytes of each file, and why the others could not be read.

    Environment and command line of a process lie behind its memory lock, which may be held for ever where it hangs.
    """
    found: dict[str, bytes] = {}
    failed: dict[str, str] = {}
    at = hanging = 0
    while at < len(paths) and hanging < _MAX_HANGING:
        child = _Child(paths[at:], limit)
        try:
            while at < len(paths):
                answer = child.receive()
                if answer is None:
                    failed[paths[at]] = f"no answer in {_FILE_SECONDS:g} s"
                elif answer[:1] == b"+":
                    found[paths[at]] = answer[1:]
                else:
                    failed[paths[at]] = text(answer[1:])
                at += 1
                if answer is None:
                    hanging += 1
                    break
        finally:
            child.end()
    failed.update(dict.fromkeys(paths[at:], "not tried: too many others hang"))
    return found, failed


class _Child:
    """Reads files one by one, and sends each behind its length."""

    def __init__(self, paths: list[str], limit: int) -> None:
        self._pipe, theirs = os.pipe()
        self._data = b""
        self._pid = os.fork()
        if self._pid == 0:
            _serve(paths, theirs, limit)
        os.close(theirs)

    def receive(self) -> bytes | None:
        """The next answer; None where it does not come."""
        begun = time.monotonic()
        while True:
            size = int(self._data[:8]) + 8 if len(self._data) >= 8 else 8
            if len(self._data) >= size > 8:
                answer, self._data = self._data[8:size], self._data[size:]
                return answer
            waited = time.monotonic() - begun
            if not select.select([self._pipe], [], [], max(0.01, _FILE_SECONDS - waited))[0]:
                if waited < _FILE_SECONDS or (waited < _STARVED_SECONDS and self._runs()):
                    continue
                return None
            piece = os.read(self._pipe, 1 << 16)
            if not piece:
                return None
            self._data += piece

    def _runs(self) -> bool:
        """It hangs in no file, but gets no CPU."""
        found = stat(f"/proc/{self._pid}")
        return found is not None and found["state"] == "R"

    def end(self) -> None:
        os.close(self._pipe)
        os.kill(self._pid, signal.SIGKILL)
        for _ in range(20):
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return
            time.sleep(0.005)


def _serve(paths: list[str], pipe: int, limit: int) -> None:
    """The child. Holds on to none of the parent's streams."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for path in paths:
            try:
                with open(path, "rb") as file:
                    answer = b"+" + file.read(limit)
            except OSError as error:
                answer = b"-" + os.strerror(error.errno or 0).encode()
            message = b"%8d" % len(answer) + answer
            while message:
                message = message[os.write(pipe, message) :]
    finally:
        os._exit(0)
