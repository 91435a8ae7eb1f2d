"""Tar streams for tests, created by the standard library or by hand."""

from __future__ import annotations

import io
import tarfile
from typing import Any, Literal

Form = Literal[0, 1, 2]


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode, info.mtime = kind, len(data), 0o644, 1_600_000_000
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def stream(*members: tuple[tarfile.TarInfo, bytes], form: Form = tarfile.GNU_FORMAT, end: bool = True) -> bytes:
    """The members as a tar stream; `end` False: without the end mark."""
    parts = [
        info.tobuf(form, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512 if info.size else 0)
        for info, data in members
    ]
    return b"".join(parts) + (bytes(1024) if end else b"")


def by_tarfile(*members: tuple[tarfile.TarInfo, bytes], form: Form = tarfile.PAX_FORMAT) -> bytes:
    """The same, written completely by the standard library."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w|", format=form, errors="surrogateescape") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def pax(records: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """A pax header with these bytes as records."""
    return member("pax", records, tarfile.XHDTYPE)


def record(key: bytes, value: bytes) -> bytes:
    """One valid record of a pax header."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    return str(length).encode() + body
