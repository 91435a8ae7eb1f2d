"""Whether a host is the one it says: known_hosts files, parsed once, and what is wrong where none matches."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from atlctl.jobs.errors import NotAllowed, UsageError

#: Where they lie when the configuration of ssh names no others.
USER_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_FILES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True, slots=True)
class Entries:
    """What some files say. Revoked keys stand apart: asyncssh forgets them where a host has no other entry."""

    known: Any
    revoked: Any

    def trusted(self, place: str, port: int) -> bool:
        """Whether the place has an entry of any kind that could vouch for it."""
        host_keys, authorities, *_ = self.known.match(place, "", port)
        return bool(host_keys or authorities)

    def is_revoked(self, place: str, port: int, key: asyncssh.SSHKey | None) -> bool:
        return key is not None and key in self.revoked.match(place, "", port)[0]


class KnownHosts:
    """The files of one run. `accept_new`: a host that is in none of them is added to the first one."""

    def __init__(self, *, accept_new: bool = False) -> None:
        self.accept_new = accept_new
        self._parsed: dict[tuple[str, ...], Entries] = {}

    def of(self, files: Sequence[str]) -> Entries:
        """The entries of these files. Raises UsageError for one that cannot be read or understood."""
        paths = tuple(os.path.expanduser(file) for file in files)
        if paths not in self._parsed:
            there = [path for path in paths if os.path.isfile(path)]
            try:
                lines = [line for path in there for line in Path(path).read_text(encoding="utf-8").splitlines()]
                revoked = [line.split(None, 1)[1] for line in lines if line.startswith("@revoked ")]
                self._parsed[paths] = Entries(
                    asyncssh.import_known_hosts("\n".join(lines)), asyncssh.import_known_hosts("\n".join(revoked))
                )
            except (OSError, ValueError, asyncssh.KeyImportError) as error:
                raise UsageError(
                    f"{' or '.join(there)} cannot be read: {error}", "mend the line, or remove it"
                ) from error
        return self._parsed[paths]

    def add(self, files: Sequence[str], host: str, port: int, key: asyncssh.SSHKey) -> None:
        """Notes the key of a new host, as ssh does with `StrictHostKeyChecking accept-new`."""
        path = os.path.expanduser(files[0])
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        line = f"{entry(host, port)} {key.export_public_key().decode().strip()}\n"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)
        for entries in self._parsed.values():
            with contextlib.suppress(ValueError):
                entries.known.load(line)


def entry(host: str, port: int) -> str:
    """How a known_hosts file names a place."""
    return host if port == 22 else f"[{host}]:{port}"


def refusal(place: str, port: int, entries: Entries, offered: asyncssh.SSHKey | None, path: str) -> NotAllowed:
    """Why a host's key is not taken, and the command that mends it once its owner has said that it is right."""
    name = entry(place, port)
    shown = f" ({offered.get_algorithm()} {offered.get_fingerprint()})" if offered is not None else ""
    if entries.is_revoked(place, port, offered):
        return NotAllowed(f"the key of {name} was revoked{shown}: it is not that host any more", "ask its owner")
    if entries.trusted(place, port):
        hint = f"if its owner says that this is right: ssh-keygen -f {shlex.quote(path)} -R {shlex.quote(name)}"
        return NotAllowed(f"the key of {name} has changed{shown}: it may be another machine", hint)
    scan = f"ssh-keyscan {f'-p {port} ' if port != 22 else ''}{shlex.quote(place)} >> {shlex.quote(path)}"
    hint = f"compare the fingerprint with the host's, then: {scan}"
    return NotAllowed(f"the key of {name} is not known{shown}", hint)
