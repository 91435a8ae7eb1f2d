"""Where a report is made, and how it gets to its place: as a folder, or as one `.tar.gz`.

The same files give the same archive. A report that is not whole never has its name.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import mkdtemp

from atlctl.jobs.errors import NotAllowed, UsageError

SUFFIXES = (".tar.gz", ".tgz")
_ELSEWHERE = "name a new folder, or a new file that ends in .tar.gz, with --out"


def is_archive(path: str) -> bool:
    """Whether a report goes into an archive, by its name."""
    return path.endswith(SUFFIXES)


@contextmanager
def staged(path: str) -> Iterator[str]:
    """A folder of its own, 0700, beside `path`, where the report is to be in the end; what is left of it goes.

    Raises UsageError where something is at `path`, or there is no place for it; NotAllowed where it may not be made.
    """
    path = path.rstrip("/")
    if not path or (os.path.lexists(path) and not (_empty(path) and not is_archive(path))):
        raise UsageError(f"{path or '/'} is there already", _ELSEWHERE)
    parent = os.path.dirname(path) or "."
    try:
        folder = mkdtemp(prefix=".atlctl-report-", dir=parent)
    except PermissionError as error:
        raise NotAllowed(f"cannot write to {parent}: {error.strerror}", _ELSEWHERE) from error
    except OSError as error:
        raise UsageError(f"cannot write to {parent}: {error.strerror}", _ELSEWHERE) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _empty(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)


def move(folder: str, path: str) -> None:
    """Give the finished folder its name. Raises UsageError where something has it by now."""
    try:
        os.rename(folder, path.rstrip("/"))
    except OSError as error:
        raise UsageError(f"cannot make {path}: {error.strerror}", _ELSEWHERE) from error


def pack(folder: str, path: str, now: float) -> int:
    """Write the files of `folder` into the new archive `path` (0600), below a folder of the archive's name.

    `now`: the time of all members, seconds since the epoch. Returns its size in bytes. Raises UsageError where `path`
    exists by now, OSError; nothing is left of an archive that is not whole.
    """
    top = os.path.basename(path)
    top = next(top.removesuffix(suffix) for suffix in SUFFIXES if top.endswith(suffix)) or "report"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already", _ELSEWHERE) from error
    whole = False
    try:
        with open(fd, "wb") as out:
            os.fchmod(fd, 0o600)
            # The name and the time of the compressed file would differ from one run to the next.
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=out, mtime=0) as packed:
                with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
                    _add(tar, folder, top, int(now))
            out.flush()
            size = os.fstat(fd).st_size
        whole = True
        return size
    finally:
        if not whole:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _add(tar: tarfile.TarFile, folder: str, top: str, now: int) -> None:
    for path, folders, files in os.walk(folder):
        folders.sort()
        below = os.path.relpath(path, folder)
        inside = top if below == "." else f"{top}/{below}"
        tar.addfile(_member(inside, tarfile.DIRTYPE, 0o700, now))
        for name in sorted(files):
            with open(os.path.join(path, name), "rb") as file:
                member = _member(f"{inside}/{name}", tarfile.REGTYPE, 0o600, now)
                member.size = os.fstat(file.fileno()).st_size
                tar.addfile(member, file)


def _member(name: str, kind: bytes, mode: int, now: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = kind, mode, now
    return member
