"""The kernel's messages, if this user may read them: from /dev/kmsg, else by the system call of `dmesg`."""

from __future__ import annotations

import ctypes
import os
import re

#: Bytes of one record, and of all messages for the system call.
_RECORD, _ALL = 8192, 4 << 20
#: Reads all messages and keeps them.
_SYSLOG_ACTION_READ_ALL = 3
_CALLED = re.compile(r"<\d+>\[ *(\d+\.\d+)\] (.*)")


def messages(path: str = "/dev/kmsg") -> list[tuple[float, str]]:
    """The messages in their order, each with its time in seconds since the machine started, of a clock that is not
    corrected. Those of the whole machine, other containers included. Raises OSError."""
    try:
        lines = _records(path)
    except OSError:
        return [(float(match[1]), match[2]) for match in map(_CALLED.match, _called()) if match]
    found = []
    for line in lines:
        head, _, text = line.partition(";")
        stamps = head.split(",")
        if len(stamps) > 2 and stamps[2].isdigit():  # else it continues a record
            found.append((int(stamps[2]) / 1e6, text))
    return found


def _records(path: str) -> list[str]:
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    data = []
    try:
        while True:
            try:
                record = os.read(log, _RECORD)
            except BrokenPipeError:
                continue  # overwritten while it was read
            except BlockingIOError:
                break  # the end
            if not record:
                break
            data.append(record)
    finally:
        os.close(log)
    return b"".join(data).decode("utf-8", "backslashreplace").splitlines()


def _called() -> list[str]:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_ALL)
    size = libc.klogctl(_SYSLOG_ACTION_READ_ALL, buffer, _ALL)
    if size < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return buffer.raw[:size].decode("utf-8", "backslashreplace").splitlines()
