"""One connection to each host of a run, shared by all that is done there."""

from __future__ import annotations

import asyncio
import errno
import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from atlctl.backends.ssh.hostfile import Host
from atlctl.backends.ssh.hostkeys import GLOBAL_FILES, USER_FILES, Entries, KnownHosts, refusal
from atlctl.backends.ssh.keys import DEFAULTS, Keys, none_accepted
from atlctl.jobs.errors import AtlctlError, NotAllowed, TimedOut, Unreachable, UsageError

#: Seconds for a host to let a connection in, and between two signs of life of a silent one.
CONNECT_SECONDS = 15.0
ALIVE_SECONDS = 15.0
#: Signs of life that may be missed.
ALIVE_COUNT = 3
#: Seconds until a refused or reset connection is tried again, once: a full backlog, a daemon that restarts.
AGAIN_SECONDS = 0.5
#: Bytes of output of one command that may be under way. More is faster only far away.
WINDOW = 512 * 1024
#: The cheapest first: the client's processor is what bounds a fan-out.
CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes256-ctr",
)
_TRANSIENT = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


@dataclass(frozen=True, slots=True)
class Target:
    """A host as ~/.ssh/config has it."""

    host: str
    port: int
    user: str
    key_alias: str | None
    known_files: tuple[str, ...]
    identities: tuple[str, ...]
    #: Only the keys that are named, and none of an agent besides.
    only: bool


class Connections:
    """All connections of a run. Use `get`, then `aclose`."""

    def __init__(self, keys: Keys, known: KnownHosts, config: str | None) -> None:
        """`config`: the path of a configuration of ssh, None for none."""
        self._keys, self._known, self._config = keys, known, config
        self._open: dict[Host, asyncio.Task[asyncssh.SSHClientConnection]] = {}

    async def get(self, host: Host) -> asyncssh.SSHClientConnection:
        """The connection to a host, made now if there is none. Raises AtlctlError."""
        task = self._open.get(host)
        if task is not None and task.done() and (task.cancelled() or task.exception() or task.result().is_closed()):
            task = None
        if task is None:
            task = self._open[host] = asyncio.create_task(self._connect(host))
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        tasks = list(self._open.values())
        self._open.clear()
        for task in tasks:
            if not task.done():
                task.cancel()
        for made in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(made, BaseException):
                made.abort()

    def target(self, host: Host) -> Target:
        """What the configuration makes of a host. Raises UsageError."""
        user, port = host.user or (), host.port or ()
        if self._config is None:
            defaults = (*USER_FILES, *GLOBAL_FILES)
            return Target(
                host.name, host.port or 22, host.user or getpass.getuser(), None, defaults, DEFAULTS, only=False
            )
        try:
            options = asyncssh.SSHClientConnectionOptions(
                host=host.name, port=port, username=user, config=[self._config], client_keys=None, known_hosts=b""
            )
        except (ValueError, OSError, asyncssh.Error) as error:
            raise UsageError(f"{self._config}: {error}", "ssh -G HOST shows what ssh makes of it") from error
        said = options.config.get
        user_files = said("UserKnownHostsFile", None)
        # `none` would end all checks: then nothing is known, and nothing is trusted.
        own = map(str, user_files) if isinstance(user_files, list) and user_files else USER_FILES
        more = said("GlobalKnownHostsFile", None)
        files = (*own, *(map(str, more) if isinstance(more, list) else GLOBAL_FILES))
        named = said("IdentityFile", None)
        alias = said("HostKeyAlias", None)
        return Target(
            str(options.host),
            int(options.port or 22),
            options.username,
            None if alias is None else str(alias),
            files,
            tuple(map(str, named)) if isinstance(named, list) and named else DEFAULTS,
            bool(said("IdentitiesOnly", False)),
        )

    async def _connect(self, host: Host) -> asyncssh.SSHClientConnection:
        target = self.target(host)
        known = self._known.of(target.known_files)
        try:
            return await self._once(host, target, known)
        except Unreachable as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno in _TRANSIENT):
                raise
        await asyncio.sleep(AGAIN_SECONDS)
        return await self._once(host, target, known)

    async def _once(self, host: Host, target: Target, known: Entries) -> asyncssh.SSHClientConnection:
        client = _Client(self._known, target)
        options: dict[str, Any] = {
            "config": [] if self._config is None else [self._config],
            "username": target.user,
            "client_factory": lambda: client,
            "client_keys": self._keys.load(target.identities) or None,
            "known_hosts": lambda name, addr, port: known.known.match(name, addr, port),
            "encryption_algs": CIPHERS,
            "compression_algs": ("none",),
            "keepalive_interval": ALIVE_SECONDS,
            "keepalive_count_max": ALIVE_COUNT,
            "connect_timeout": CONNECT_SECONDS,
            "login_timeout": CONNECT_SECONDS,
            "gss_auth": False,
            "gss_kex": False,
            "preferred_auth": ("publickey",),
            "x509_trusted_certs": None,
            "x509_trusted_cert_paths": None,
        }
        if target.only:
            options["agent_path"] = None
        if target.key_alias is not None:
            options["host_key_alias"] = target.key_alias
        try:
            return await asyncssh.connect(host.name, host.port or (), **options)
        except (OSError, asyncssh.Error, ValueError) as error:
            raise self._mapped(error, host, target, known, client) from error

    def _mapped(self, error: Exception, host: Host, target: Target, known: Entries, client: _Client) -> AtlctlError:
        place = f"{target.host}:{target.port}"
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            name = target.key_alias or target.host
            return refusal(name, target.port, known, client.offered, os.path.expanduser(target.known_files[0]))
        if isinstance(error, asyncssh.PermissionDenied):
            return none_accepted(target.user, host.name, self._keys)
        if isinstance(error, TimeoutError):
            return TimedOut(
                f"{place} does not answer within {CONNECT_SECONDS:g} s", "a firewall drops packets silently"
            )
        if isinstance(error, socket.gaierror):
            return Unreachable(f"{target.host} is not known: {error.strerror}", "check its name, or ~/.ssh/config")
        if isinstance(error, OSError):
            return Unreachable(f"{place}: {(os.strerror(error.errno) if error.errno else str(error)).lower()}")
        if isinstance(error, asyncssh.KeyExchangeFailed | asyncssh.CompressionError):
            return Unreachable(f"{place}: no common cipher or key exchange ({error})")
        if isinstance(error, asyncssh.Error):
            return Unreachable(f"{place}: {str(error)[:200]}")
        return NotAllowed(f"{place}: {error}")


class _Client(asyncssh.SSHClient):
    """Sees the key of a host that is not trusted."""

    def __init__(self, known: KnownHosts, target: Target) -> None:
        self._known, self._target = known, target
        self.offered: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        self.offered = key
        if not self._known.accept_new:
            return False
        name = self._target.key_alias or self._target.host
        entries = self._known.of(self._target.known_files)
        if entries.trusted(name, self._target.port) or entries.is_revoked(name, self._target.port, key):
            return False
        self._known.add(self._target.known_files, name, self._target.port, key)
        return True


def user_config() -> str | None:
    """The user's configuration of ssh, where there is one."""
    path = Path("~/.ssh/config").expanduser()
    return str(path) if os.access(path, os.R_OK) else None
