"""Whether a host is the one it says: known_hosts files, parsed once, and what is wrong where none matches."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from atlctl.i18n import Message, specific
from atlctl.jobs.errors import NotAllowed, UsageError, unreadable

#: The default files, unless the ssh configuration names others.
USER_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_FILES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
#: Given for a name that may be none of an address: nothing is listed under it.
_NO_ADDRESS = "::"


class HostKeyRefused(NotAllowed):
    """A host's key is refused; `why` is the problem with it."""

    def __init__(self, why: Literal["unknown", "changed", "revoked"], message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.why = why


class _Known(asyncssh.SSHKnownHosts):
    """Known hosts without revoked keys. asyncssh itself ignores a revocation if a host has no entry for its port but
    one for all ports. Here a revoked key is an untrusted key like any other."""

    def __init__(self, text: str, revoked: asyncssh.SSHKnownHosts | None) -> None:
        super().__init__(text)
        self._revoked = revoked

    def match(self, host: str, addr: str, port: int | None) -> Any:
        if self._revoked is None:
            return super().match(host, addr, port)
        gone = self._revoked.match(host, addr, port)[0]
        keys, authorities, *more = super().match(host, addr, port)
        return [key for key in keys if key not in gone], [key for key in authorities if key not in gone], [], *more[1:]


class Entries:
    """The entries of known_hosts files."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """`texts`: of the files, by their paths. Raises ValueError, asyncssh.KeyImportError."""
        self._texts = texts
        lines = [line for text in texts.values() for line in text.splitlines()]
        marked = [line.split(None, 1) for line in lines if line.lstrip().startswith("@revoked")]
        self.revoked = asyncssh.import_known_hosts("\n".join(rest[0] for _, *rest in marked if rest))
        self.known = _Known("\n".join(lines), self.revoked if marked else None)

    def trusted(self, place: str, port: int) -> bool:
        """Whether the place has an entry of any kind that could vouch for it."""
        host_keys, authorities, *_ = self.known.match(place, "", port)
        return bool(host_keys or authorities)

    def is_revoked(self, place: str, port: int, key: asyncssh.SSHKey | None) -> bool:
        return key is not None and key in self.revoked.match(place, "", port)[0]

    def algorithms(self, place: str, port: int) -> Sequence[str]:
        """The key algorithms to offer: those of known keys first, then all others (otherwise a host that changed its
        kind of key would look like one without a common algorithm). Empty if no key is known."""
        host_keys, authorities, *_ = self.known.match(place, "", port)
        if not host_keys:
            return ()
        certified = get_default_certificate_algs() if authorities else []
        own = [name for key in host_keys for name in key.sig_algorithms]
        return [name.decode() for name in dict.fromkeys((*certified, *own, *get_default_public_key_algs()))]

    def source(self, place: str, port: int) -> tuple[str, str] | None:
        """The file with an entry of the place, and how it names it."""
        for name in dict.fromkeys((entry(place, port), place)):
            for path, known in self._files.items():
                if any(known.match(name, _NO_ADDRESS, None)[:2]):
                    return path, name
        return None

    @cached_property
    def _files(self) -> dict[str, Any]:
        return {path: asyncssh.import_known_hosts(text) for path, text in self._texts.items()}


class KnownHosts:
    """The files of one run. `accept_new`: a host that is in none of them is added to the first one. Without `stores`
    none is, whatever the configuration of ssh has."""

    def __init__(self, *, accept_new: bool = False, stores: bool = True) -> None:
        self.accept_new, self.stores = accept_new, stores
        self._parsed: dict[tuple[str, ...], Entries] = {}

    def of(self, files: Sequence[str]) -> Entries:
        """The entries of these files. Raises UsageError for one that cannot be read or understood."""
        paths = tuple(os.path.expanduser(file) for file in files)
        if paths not in self._parsed:
            there = [path for path in paths if os.path.isfile(path)]
            try:
                self._parsed[paths] = Entries({path: _text(Path(path).read_bytes()) for path in there})
            except (OSError, ValueError, asyncssh.KeyImportError) as error:
                raise UsageError(
                    unreadable(" or ".join(there), error), Message("fix the line, or remove it")
                ) from error
        return self._parsed[paths]

    def add(self, files: Sequence[str], host: str, port: int, key: asyncssh.SSHKey) -> None:
        """Notes the key of a new host, as ssh does with `StrictHostKeyChecking accept-new`."""
        path = os.path.expanduser(files[0])
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        line = f"{entry(host, port)} {_public(key)}\n"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)
        for entries in self._parsed.values():
            with contextlib.suppress(ValueError):
                entries.known.load(line)


def _text(data: bytes) -> str:
    """Decode a file. Anything that is not ASCII is in comments; asyncssh would skip the whole line."""
    return data.decode("ascii", "replace").replace("\ufffd", "?")


def entry(host: str, port: int) -> str:
    """How a known_hosts file names a place."""
    return host if port == 22 else f"[{host}]:{port}"


def refusal(place: str, port: int, entries: Entries, offered: asyncssh.SSHKey | None, path: str) -> HostKeyRefused:
    """Why a host's key is not taken, and the command that mends it once its owner has said that it is right."""
    name = entry(place, port)
    shown = "" if offered is None else Message(" ({why})", why=f"{offered.get_algorithm()} {offered.get_fingerprint()}")
    if entries.is_revoked(place, port, offered):
        text = Message("the key of {name} was revoked{shown}: do not trust this host", name=name, shown=shown)
        revoked = specific(text, Message("host key was revoked"))
        return HostKeyRefused("revoked", revoked, Message("ask the host's owner"))
    if entries.trusted(place, port):
        file, listed = map(shlex.quote, entries.source(place, port) or (path, name))
        text = Message("the key of {name} has changed{shown}: it may be another machine", name=name, shown=shown)
        hint = Message("if the host's owner confirms the change: ssh-keygen -f {file} -R {listed}")
        return HostKeyRefused(
            "changed",
            specific(text, Message("host key has changed")),
            specific(
                hint.filled(file=file, listed=listed),
                Message("for the commands that accept them: atlctl doctor -o json"),
            ),
        )
    unknown = specific(
        Message("the key of {name} is not known{shown}", name=name, shown=shown), Message("host key not known")
    )
    if offered is None:
        return HostKeyRefused("unknown", unknown, Message("ask the host's owner for its known_hosts line"))
    # Exactly the key that was offered: another lookup may find another host's, and finds nothing behind a jump host.
    compare = Message("compare the fingerprint with the host's, then: echo {line} >> {path}")
    compare = compare.filled(line=shlex.quote(f"{name} {_public(offered)}"), path=shlex.quote(path))
    other = Message(
        'to compare the keys: atlctl doctor -o json; to accept new hosts: host_keys = "accept-new" under [ssh]'
    )
    return HostKeyRefused("unknown", unknown, specific(compare, other))


def _public(key: asyncssh.SSHKey) -> str:
    """As a line of known_hosts has it, without a comment."""
    return " ".join(key.export_public_key().decode().split()[:2])
