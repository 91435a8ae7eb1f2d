"""One connection to each host of a run, shared by all that is done there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.config import SSHClientConfig, SSHConfig

from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.hostkeys import GLOBAL_FILES, USER_FILES, Entries, KnownHosts, refusal
from atlctl.backends.hosts.jobkeys import JOB_USER, JobAccess
from atlctl.backends.hosts.keys import DEFAULTS, TRIES, Keys, LoginRefused, none_accepted
from atlctl.i18n import Message, specific
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
#: Connections that are kept for the next command: asyncssh takes 50 KB for each.
IDLE_KEPT = 256
#: Ways to log in with a password.
_BY_PASSWORD = ("keyboard-interactive", "password")
# asyncssh leaves this option out.
SSHClientConfig._handlers["stricthostkeychecking"] = ("StrictHostKeyChecking", SSHConfig._set_string)
_NOBODY = Message("no sshd listens there: check the port")
_CLOSED = Message("too many logins at once (MaxStartups), or not an sshd: check the port")
_WHY = {
    errno.ECONNREFUSED: (Message("connection refused"), _NOBODY),
    errno.ECONNRESET: (Message("connection reset by peer"), _CLOSED),
    errno.EHOSTUNREACH: (Message("no route to host"), None),
}
_EXCHANGE = Message("allow curve25519-sha256 there (KexAlgorithms); sntrup761 and mlkem768 need liboqs on this machine")
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
    #: Only the keys that are named, of files or of an agent.
    only: bool
    #: The socket of the agent, empty for none.
    agent: str
    #: `StrictHostKeyChecking accept-new`: the key of a host that is not known is stored. `no` and `off` count as `yes`.
    accept_new: bool

    @property
    def known_as(self) -> tuple[str, int]:
        """The name and port in known_hosts: an alias is listed without a port."""
        return (self.host, self.port) if self.key_alias is None else (self.key_alias, 22)


@dataclass(frozen=True, slots=True)
class _Said:
    """The settings of the ssh configuration for a host, or for all hosts that it treats alike."""

    options: Any
    #: Its `host` is that of one of them.
    target: Target
    #: Whether asyncssh must read the configuration once more: for hosts on the way, or since the name is not final.
    again: bool


@dataclass(frozen=True, slots=True)
class _Way:
    """The connection options for asyncssh, made once for all hosts with the same settings."""

    given: dict[str, Any]
    known: Entries


class Connections:
    """All connections of a run. Each `get` is followed by a `rest`; `aclose` at the end."""

    def __init__(
        self,
        keys: Keys,
        known: KnownHosts,
        config: str | None,
        ask: Callable[[str, str], str | None] | None = None,
    ) -> None:
        """`config`: the path of a configuration of ssh, None for none. `ask` prompts for the password of a user on a
        host that is trusted and accepts no key; None if it must not be asked for."""
        self._keys, self._known, self._config, self._ask = keys, known, config, ask
        self._open: dict[Host, asyncio.Task[asyncssh.SSHClientConnection]] = {}
        #: Hosts that are workers of `atlctl run`: the way in, and the worker's index.
        self._workers: dict[Host, tuple[JobAccess, int]] = {}
        #: Connections to hosts that were trusted in another way when they were made.
        self._former: list[asyncio.Task[asyncssh.SSHClientConnection]] = []
        #: Users of each connection that is in use.
        self._users: Counter[Host] = Counter()
        self._group = _grouping(config) if config is not None else lambda _: None
        #: Those in the making, also between two tries.
        self._clients: dict[Host, _Client] = {}
        self._said: dict[object, _Said] = {}
        self._ways: dict[object, _Way] = {}

    def trust(self, host: Host, access: JobAccess, index: int) -> None:
        """From now on `host` is the worker `index` of `access`: only its keys count, neither files nor agents nor the
        configuration of ssh."""
        if self._workers.get(host) != (access, index):
            self._workers[host] = access, index
            if host in self._open:
                self._former.append(self._open.pop(host))

    async def get(self, host: Host) -> asyncssh.SSHClientConnection:
        """The connection to a host, made now if there is none. Raises AtlctlError, and then wants no `rest`."""
        task = self._open.get(host)
        if task is not None and task.done() and (task.cancelled() or task.exception() or task.result().is_closed()):
            task = None
        if task is None:
            task = self._open[host] = asyncio.create_task(self._connect(host))
            task.add_done_callback(lambda _: self._clients.pop(host, None))
        self._users[host] += 1
        try:
            return await asyncio.shield(task)
        except BaseException:
            self.rest(host)
            raise

    def rest(self, host: Host) -> None:
        """Release a connection. An unused connection is kept for the next command, unless there are many."""
        self._users[host] -= 1
        if self._users[host] > 0:
            return
        del self._users[host]
        task = self._open.get(host)
        if task is None or not task.done():
            return
        failed = task.cancelled() or task.exception() is not None
        if failed or len(self._open) - len(self._users) > IDLE_KEPT:
            del self._open[host]
            if not failed:
                task.result().abort()

    def stage(self, host: Host) -> Message:
        """The stage of a connection in the making."""
        made = self._clients[host].connection if host in self._clients else None
        if made is None:
            return Message("no connection")
        if made.get_extra_info("server_version"):
            return Message("connected, but the login is not done")
        return Message("connected, but sshd has not answered")

    async def aclose(self) -> None:
        tasks = [*self._open.values(), *self._former]
        self._open.clear()
        self._former.clear()
        for task in tasks:
            if not task.done():
                task.cancel()
        for made in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(made, BaseException):
                made.abort()
        await self._keys.aclose()

    def target(self, host: Host) -> Target:
        """Apply the configuration to a host. Raises UsageError."""
        said = self._of(host)
        return replace(said.target, host=str(said.options.config.get("Hostname", host.name)))

    def _key(self, host: Host) -> object:
        """The same key for hosts with the same settings."""
        if host in self._workers:
            return host.port, self._workers[host][0]
        return host.user, host.port, self._group(host.name)

    def _of(self, host: Host) -> _Said:
        """Raises UsageError."""
        key = self._key(host)
        if key not in self._said:
            self._said[key] = self._read(host)
        return self._said[key]

    def _read(self, host: Host) -> _Said:
        worker = host in self._workers
        try:
            options = asyncssh.SSHClientConnectionOptions(
                config=[] if self._config is None or worker else [self._config],
                host=host.name,
                port=host.port or (),
                username=host.user or (JOB_USER if worker else ()),
                client_keys=None,
                known_hosts=b"",
            )
            if options.config.has_match_final():
                options.update(host=host.name, reload=True, final=True)
        except (ValueError, OSError, asyncssh.Error) as error:
            raise UsageError(
                Message("{path}: {why}", path=self._config or "ssh", why=error),
                Message("see how ssh reads it: ssh -G HOST"),
            ) from error
        said = options.config.get
        user_files = said("UserKnownHostsFile", None)
        # `none` would end all checks: then nothing is known, and nothing is trusted.
        own = map(str, user_files) if isinstance(user_files, list) and user_files else USER_FILES
        more = said("GlobalKnownHostsFile", None)
        files = (*own, *(map(str, more) if isinstance(more, list) else GLOBAL_FILES))
        named = said("IdentityFile", None)
        alias = said("HostKeyAlias", None)
        target = Target(
            str(options.host),
            int(options.port or 22),
            options.username,
            None if alias is None else str(alias),
            files,
            tuple(map(str, named)) if isinstance(named, list) and named else DEFAULTS,
            bool(said("IdentitiesOnly", False)),
            _agent(said("IdentityAgent", ())),
            str(said("StrictHostKeyChecking", "")).lower() == "accept-new",
        )
        again = options.tunnel or options.proxy_command or options.canonicalize_hostname
        return _Said(options, target, again=bool(again))

    def _way(self, host: Host) -> _Way:
        """Raises UsageError."""
        key = self._key(host)
        if key not in self._ways:
            self._ways[key] = self._made(self._of(host), self._workers.get(host))
        return self._ways[key]

    def _made(self, said: _Said, worker: tuple[JobAccess, int] | None) -> _Way:
        target = said.target
        if worker is not None:
            known, keys = Entries({}), [worker[0].client_key()]  # its host key is that of one host: see `_Client`
        else:
            known = self._known.of(target.known_files)
            keys = self._keys.load(target.identities, target.agent, only=target.only)
        given: dict[str, Any] = {
            "username": target.user,
            "client_keys": keys or None,
            "agent_path": None,
            # By its name alone, as ssh does: another one's address may have been this one's.
            "known_hosts": lambda name, _, port: known.known.match(name, "", port),
            "encryption_algs": CIPHERS,
            "compression_algs": ("none",),
            "keepalive_interval": ALIVE_SECONDS,
            "keepalive_count_max": ALIVE_COUNT,
            "connect_timeout": CONNECT_SECONDS,
            "login_timeout": CONNECT_SECONDS,
            "gss_auth": False,
            "gss_kex": False,
            "preferred_auth": ("publickey",) if self._ask is None else ("publickey", *_BY_PASSWORD),
            "x509_trusted_certs": None,
            "x509_trusted_cert_paths": None,
        }
        if target.key_alias is not None:
            given["host_key_alias"] = target.key_alias
        if said.again:
            return _Way({**given, "config": [self._config]}, known)
        options = asyncssh.SSHClientConnectionOptions(said.options, config=None, **given)
        direct = Direct(options.family, options.local_addr)
        return _Way({"options": options, "config": None, "tunnel": direct}, known)

    async def _connect(self, host: Host) -> asyncssh.SSHClientConnection:
        try:
            return await self._by_key(host)
        except LoginRefused as error:
            if not error.takes_password or self._ask is None:
                raise
            user = self.target(host).user
            for _ in range(TRIES):
                password = self._ask(user, host.name)
                if password is None:
                    raise
                with contextlib.suppress(LoginRefused):
                    return await self._once(host, self._way(host), password=password)
            text = Message("{host} refused {user}: neither a key nor the password was accepted")
            raise NotAllowed(text.filled(host=host.name, user=user)) from error

    async def _by_key(self, host: Host) -> asyncssh.SSHClientConnection:
        if host not in self._workers:
            await self._keys.ask_agent(self._of(host).target.agent)
        way = self._way(host)
        try:
            return await self._once(host, way)
        except _LoginTimedOut:
            pass
        except Unreachable as error:
            if not _worth_another(error.__cause__):
                raise
        await asyncio.sleep(AGAIN_SECONDS)
        # Its key may be of another kind by now, and then there was nothing in common.
        kinds = way.known.algorithms(*self.target(host).known_as)
        return await self._once(host, way, **({"server_host_key_algs": kinds} if kinds else {}))

    async def _once(self, host: Host, way: _Way, **more: Any) -> asyncssh.SSHClientConnection:
        target = self.target(host)
        worker = self._workers.get(host)
        client = self._clients[host] = _Client(self._known, target, worker and worker[0].host_key(worker[1]))
        try:
            given = {**way.given, **more}
            return await asyncssh.connect(host.name, host.port or (), client_factory=lambda: client, **given)
        except (OSError, asyncssh.Error, ValueError) as error:
            raise self._mapped(error, host, target, way.known, client) from error

    def _mapped(self, error: Exception, host: Host, target: Target, known: Entries, client: _Client) -> AtlctlError:
        place = f"{target.host}:{target.port}"
        if client.only is not None and isinstance(error, asyncssh.HostKeyNotVerifiable):
            cause = Message("its host key does not belong to this start of the job")
            return NotAllowed(specific(Message("{host} is not this worker: {why}", host=place, why=cause), cause))
        if client.only is not None and isinstance(error, asyncssh.PermissionDenied):
            cause = Message("another job, or an earlier start of it")
            said = Message("{host} does not accept this job's key: {why}", host=place, why=cause)
            return NotAllowed(specific(said, cause))
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            return refusal(*target.known_as, known, client.offered, os.path.expanduser(target.known_files[0]))
        if isinstance(error, asyncssh.PermissionDenied):
            asks = client.takes_password
            return none_accepted(target.user, host.name, self._keys, target.identities, takes_password=asks)
        if isinstance(error, TimeoutError):
            limit = CONNECT_SECONDS
            if client.connection is None:
                text = Message("no connection within {seconds:g} s", seconds=limit)
                return TimedOut(at(place, text), Message("the host is down, or a firewall is dropping packets"))
            text = (
                Message("the login was not done, twice within {seconds:g} s", seconds=limit)
                if client.connection.get_extra_info("server_version")
                else Message("accepts connections, but sent nothing, twice within {seconds:g} s", seconds=limit)
            )
            return _LoginTimedOut(at(place, text), Message("sshd there is overloaded or stopped, or it is not an sshd"))
        if isinstance(error, socket.gaierror):
            return NameUnknown(target.host, str(error.strerror))
        if isinstance(error, OSError):
            plain = (os.strerror(error.errno) if error.errno else str(error)).lower()
            why, hint = _WHY.get(error.errno or 0, (plain, None))
            return Unreachable(at(place, why), hint)
        if isinstance(error, asyncssh.ConnectionLost):
            return Unreachable(at(place, Message("closed the connection before the login")), _CLOSED)
        if isinstance(error, asyncssh.KeyExchangeFailed | asyncssh.CompressionError):
            return Unreachable(at(place, Message("no common cipher or key exchange ({why})", why=error)), _EXCHANGE)
        if isinstance(error, asyncssh.Error):
            return Unreachable(at(place, str(error)[:200]))
        return NotAllowed(at(place, str(error)))


def at(place: str, why: str) -> Message:
    """A reason with the place that it is about."""
    return specific(Message("{host}: {why}", host=place, why=why), why)


class _LoginTimedOut(TimedOut):
    """The host accepted the connection, and did not let it in within the time."""


class NameUnknown(Unreachable):
    """The name `host` has no address."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(
            specific(Message("cannot resolve {host}: {why}", host=host, why=why), Message("the name is not known")),
            Message("check its name, or ~/.ssh/config"),
        )
        self.host = host


class _Client(asyncssh.SSHClient):
    """Sees the connection as soon as there is one, and the key of a host that is not trusted."""

    def __init__(self, known: KnownHosts, target: Target, only: asyncssh.SSHKey | None) -> None:
        """`only`: the one key that the host may have, in place of known_hosts."""
        self._known, self._target, self.only = known, target, only
        self.offered: asyncssh.SSHKey | None = None
        self.connection: asyncssh.SSHClientConnection | None = None
        self.takes_password = False

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.connection = conn

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        self.offered = key
        if self.only is not None:
            return key.public_data == self.only.public_data
        if not (self._known.accept_new or (self._known.stores and self._target.accept_new)):
            return False
        place = self._target.known_as
        entries = self._known.of(self._target.known_files)
        if entries.trusted(*place) or entries.is_revoked(*place, key):
            return False
        self._known.add(self._target.known_files, *place, key)
        return True

    def password_auth_requested(self) -> None:
        """The question comes later: a host waits only for a short time."""
        self.takes_password = True

    def kbdint_auth_requested(self) -> Any:
        self.takes_password = True
        return NotImplemented  # a password that is given is the answer


def _agent(said: object) -> str:
    """The socket that `IdentityAgent` names, else that of the environment; empty for `none`, which comes as None."""
    if said is None:
        return ""
    return os.path.expanduser(os.environ.get("SSH_AUTH_SOCK", "") if said in ((), "SSH_AUTH_SOCK") else str(said))


def _worth_another(cause: BaseException | None) -> bool:
    """Whether what went wrong may go right at the second time."""
    if isinstance(cause, OSError):
        return cause.errno in _TRANSIENT
    return isinstance(cause, asyncssh.ConnectionLost | asyncssh.KeyExchangeFailed)


def _grouping(config: str) -> Callable[[str], object]:
    """A function that returns the same key for hosts of which a configuration says the same. One that cannot be read,
    or whose answer depends on more than the patterns of `Host`, is asked for each."""
    plain: defaultdict[str, list[int]] = defaultdict(list)
    wild: list[tuple[str, int]] = []
    naming: set[int] = set()
    section = 0
    try:
        lines = Path(config).read_text().splitlines()
    except (OSError, ValueError):
        return str
    for line in lines:
        name, *values = line.replace("=", " ").split() or [""]
        name = name.lower()
        if name.startswith("#") or name == "controlpath":
            continue
        matches_all = name == "match" and [value.lower() for value in values] == ["all"]
        if any(character in line for character in "%\"'\\!,[") or (name in ("include", "match") and not matches_all):
            return str
        if name == "hostname":
            naming.add(section)
        elif name == "host" or matches_all:
            section += 1
            for value in ["*"] if matches_all else values:
                if "*" in value or "?" in value:
                    wild.append((value, section))
                else:
                    plain[value].append(section)

    def group(name: str) -> object:
        found = {0, *plain.get(name, ()), *(number for pattern, number in wild if fnmatchcase(name, pattern))}
        return name if found & naming else frozenset(found)

    return group


def user_config() -> str | None:
    """The path of the user's ssh configuration, if it exists."""
    path = Path("~/.ssh/config").expanduser()
    return str(path) if os.access(path, os.R_OK) else None


class Direct:
    """A way to a host, in the form that asyncssh takes for `tunnel`: straight, with its writes collected.

    asyncssh hands every packet to the kernel by itself, and puts an empty one before each: two calls to the kernel for
    one message, each of which wakes the other side. On a fan-out those calls are what costs most.
    """

    def __init__(self, family: int, local: Any) -> None:
        """`family` of addresses, and the `local` address, as the configuration has them."""
        self._family, self._local = family, local

    async def create_connection(
        self, factory: Callable[[], Any], remote_host: str, remote_port: int
    ) -> tuple[asyncio.BaseTransport, Any]:
        """Raises OSError."""
        protocol = factory()
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: _Introduction(protocol), remote_host, remote_port, family=self._family, local_addr=self._local
        )
        return transport, protocol

    def close(self) -> None:
        """There is nothing between here and the host."""


class _Introduction(asyncio.Protocol):
    """Makes a protocol and its transport known to each other, and leaves."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(Corked(transport))


class Corked(asyncio.Transport):
    """Collects the writes of one iteration of the event loop, and sends them together."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._held: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(bytes(data))

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._held.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
