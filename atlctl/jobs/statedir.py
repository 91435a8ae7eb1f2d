"""The state folder: private to this user, written atomically.

Shell completion uses this module: it imports nothing slow.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError, not_regular, too_large

#: Flags to open an untrusted file: no link is followed, and a pipe without a writer does not block.
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Bytes of a line of an untrusted file.
LINE_LIMIT = 256 * 1024
#: The hint for a state folder that cannot be used.
ELSEWHERE = Message("set ATLCTL_STATE_DIR to a folder that you own")
_ROOM = Message("free some space, or {advice}", advice=ELSEWHERE)


def state_dir(env: Mapping[str, str] = os.environ) -> str:
    """The state folder: `$ATLCTL_STATE_DIR`, else `$XDG_STATE_HOME/atlctl`, else `~/.local/state/atlctl`.

    Raises UsageError for a relative `ATLCTL_STATE_DIR`. Nothing is created or checked.
    """
    own = env.get("ATLCTL_STATE_DIR", "")
    if own:
        if not os.path.isabs(own):
            raise UsageError(
                Message("ATLCTL_STATE_DIR must be an absolute path: {own}", own=own), Message("begin it with '/'")
            )
        return os.path.normpath(own)
    return os.path.join(xdg_base("XDG_STATE_HOME", ".local/state", env), "atlctl")


def home_dir(env: Mapping[str, str] = os.environ) -> str:
    """The user's home folder, even if HOME is not set."""
    return env.get("HOME", "") or os.path.expanduser("~")


def xdg_base(variable: str, default: str, env: Mapping[str, str] = os.environ) -> str:
    """A base folder of the XDG specification, which ignores relative values. `default`: below the home folder."""
    base = env.get(variable, "")
    return base if os.path.isabs(base) else os.path.join(home_dir(env), default)


def job_names(root: str) -> list[str]:
    """Names of the jobs in the registry `root`, unordered. Raises as `check_private`, and OSError."""
    check_private(root, state_dir())
    return [name for name in os.listdir(root) if is_job(os.path.join(root, name))]


def is_job(folder: str) -> bool:
    """Whether a folder of a registry is a job. True if permission is denied, so that it is reported, not ignored."""
    if os.path.basename(folder).startswith("."):
        return False
    try:
        os.lstat(os.path.join(folder, "job.json"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def ensure_dir(path: str, top: str | None = None) -> None:
    """Create `path` and its missing parents with mode 0700 regardless of the umask; existing folders must be private.

    Raises NotAllowed as `check_private` does; without `top` only `path` itself is checked.
    """
    path = path.rstrip("/") or "/"
    try:
        _make(path)
        check_private(path, top or path)
    except OSError as error:
        raise file_error(error, path) from error


def check_private(path: str, top: str) -> None:
    """Raise NotAllowed if `top`, `path` below it or a folder between them is a link, not a folder, owned by another
    user, or writable by group or others: its content may be forged.

    Raises FileNotFoundError if one is missing, AtlctlError for other failures.
    """
    above, rest = top, os.path.relpath(path, top)
    check_folder(above, os.geteuid())
    for name in rest.split(os.sep) if rest != "." else ():
        above = os.path.join(above, name)
        check_folder(above, os.geteuid())


def check_folder(path: str, owner: int, forbidden: int = 0o022) -> None:
    """Raise NotAllowed if `path` is a link, not a folder, not owned by the user `owner`, or has rights of `forbidden`.

    Raises FileNotFoundError if it is missing, AtlctlError for other failures.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise file_error(error, path) from error
    if stat.S_ISLNK(found.st_mode):
        raise NotAllowed(
            Message("{path} is a symbolic link, a folder is needed", path=path),
            Message("remove the link, or {advice}", advice=ELSEWHERE),
        )
    if not stat.S_ISDIR(found.st_mode):
        raise NotAllowed(
            Message("{path} is not a folder", path=path), Message("move it away, or {advice}", advice=ELSEWHERE)
        )
    if found.st_uid != owner:
        raise NotAllowed(
            Message(
                "{path} belongs to user {owner}, not to you (user {user})", path=path, owner=found.st_uid, user=owner
            ),
            ELSEWHERE,
        )
    if found.st_mode & forbidden:
        raise NotAllowed(
            writable(path, found) if found.st_mode & 0o022 else readable(path, found),
            Message(
                "if you trust its contents: chmod {mode} {path}; or {advice}",
                mode="go-w" if forbidden == 0o022 else "0700",
                path=path,
                advice=ELSEWHERE,
            ),
        )


def writable(path: str, found: os.stat_result) -> Message:
    """Why the file or folder `path` is not trusted: other users can write to it."""
    return Message("{path} can be written by others (mode {mode:04o})", path=path, mode=stat.S_IMODE(found.st_mode))


def readable(path: str, found: os.stat_result) -> Message:
    """Why a private file or folder is refused."""
    return Message("{path} can be read by others (mode {mode:04o})", path=path, mode=stat.S_IMODE(found.st_mode))


def linked(path: str) -> NotAllowed:
    return NotAllowed(
        Message("{path} is a symbolic link, which is not followed", path=path), Message("remove the link")
    )


def write_atomic(path: str, data: bytes) -> None:
    """Replace the file `path` atomically, with mode 0600: readers see the old or the new content.

    Not synced to the disk: it survives a crash of the process, not a power failure. On failure the old file stays, no
    temporary file is left, and an AtlctlError gives the reason in one line.
    """
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{os.urandom(6).hex()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        renamed = False
        try:
            try:
                os.fchmod(fd, 0o600)
                write_all(fd, data)
            finally:
                os.close(fd)
            os.rename(temporary, path)
            renamed = True
        finally:
            if not renamed:
                os.unlink(temporary)
    except OSError as error:
        raise file_error(error, path) from error


def read_bytes(path: str, limit: int, *, links: bool = False) -> bytes:
    """Read the regular file `path`, at most `limit` bytes.

    Follows no link unless `links`, and never blocks. Raises FileNotFoundError if there is no file (callers handle
    that), NotAllowed for a link or anything but a regular file, AtlctlError for one that is larger or unreadable.
    """
    try:
        data = read_head(path, limit + 1, links=links)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise file_error(error, path) from error
    if data is None:
        raise NotAllowed(not_regular(path), Message("move it away"))
    if len(data) > limit:
        raise AtlctlError(too_large(path, limit), Message("it was not written by atlctl; move it away"))
    return data


def read_head(path: str, most: int, *, links: bool) -> bytes | None:
    """The first `most` bytes of a regular file; None for anything else. Never blocks. Raises OSError."""
    fd = os.open(path, READ_FLAGS & ~os.O_NOFOLLOW if links else READ_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        chunks: list[bytes] = []
        while most and (chunk := os.read(fd, min(most, 1 << 20))):
            chunks.append(chunk)
            most -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(fd)


def lines_within(file: BinaryIO) -> Iterator[bytes]:
    """Lines of an untrusted file. A line longer than `LINE_LIMIT` is cut to `LINE_LIMIT` + 1 bytes."""
    while line := file.readline(LINE_LIMIT + 1):
        yield line
        while len(line) > LINE_LIMIT and not line.endswith(b"\n"):
            line = file.readline(LINE_LIMIT + 1)


def open_below(folder: int, names: Iterable[str]) -> int:
    """Open the folder `names` below the descriptor `folder`, following no link; returns a descriptor.

    Missing folders are created with mode 0700. Names are not changed. Raises OSError.
    """
    here = os.dup(folder)
    for name in names:
        try:
            made = False
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=here)
                made = True
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            if made:
                os.fchmod(inner, 0o700)  # a umask may have removed bits that the owner needs
        finally:
            os.close(here)
        here = inner
    return here


def file_error(error: OSError, path: str) -> AtlctlError:
    """The one-line error for a failed operation on the file or folder `path`."""
    if error.errno == errno.ENOSPC:
        return AtlctlError(Message("no space left on the disk of {path}", path=path), _ROOM)
    if error.errno == errno.EDQUOT:
        return AtlctlError(Message("disk quota exceeded at {path}", path=path), _ROOM)
    if error.errno == errno.ELOOP:
        return linked(path)
    text = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotAllowed(Message("{path}: {why}", path=path, why=text), ELSEWHERE)
    return AtlctlError(Message("{path}: {why}", path=path, why=text))


def _make(path: str) -> None:
    """`mkdir -p` with mode 0700 for every folder it creates."""
    if os.path.lexists(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return  # another process created it first; the caller checks it
    if os.lstat(path).st_mode & 0o700 != 0o700:
        os.chmod(path, 0o700)  # a umask may remove bits from the owner


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`. After an OSError the written part is unknown."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
