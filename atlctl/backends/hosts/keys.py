"""Private keys, each loaded once for a run: reading an RSA key takes a hundred times as long as using it."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import asyncssh
from asyncssh.public_key import CERT_TYPE_USER, SSHOpenSSHCertificate

from atlctl.i18n import Message, joined, specific
from atlctl.jobs.errors import NotAllowed, unreadable

#: The default key files of ssh.
DEFAULTS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa", "~/.ssh/id_ed25519_sk", "~/.ssh/id_ecdsa_sk")
TRIES = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """Why a key cannot be used. `open`: others may read its file."""

    why: Literal["open", "encrypted", "unreadable"]
    text: str


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The result for one key file: it was read, the agent holds the key, it does not exist, or has a problem."""

    path: str
    status: Literal["read", "agent", "absent", "open", "encrypted", "unreadable"]
    algorithm: str = ""
    text: str = ""


class Keys:
    """Keys by path. `ask` prompts for the passphrase of a path; None if there is no terminal."""

    def __init__(self, ask: Callable[[str], str | None]) -> None:
        self._ask = ask
        self._loaded: dict[str, Sequence[Any]] = {}
        #: Keys of each agent that was asked, by their public parts.
        self._agents: dict[str, dict[bytes, Any]] = {}
        #: Agents that did not answer.
        self._silent: set[str] = set()
        self._clients: list[asyncssh.SSHAgentClient] = []
        self._asking = asyncio.Lock()
        #: Why a key could not be used, by its path.
        self.problems: dict[str, KeyProblem] = {}

    async def ask_agent(self, socket: str) -> None:
        """Hear which keys the agent at `socket` has, once. Empty: none is asked."""
        async with self._asking:
            if not socket or socket in self._agents:
                return
            client = asyncssh.SSHAgentClient(socket)
            try:
                held = await client.get_keys()
            except (ValueError, OSError, asyncssh.Error) as error:
                _log.debug("the agent at %s does not answer: %r", socket, error)
                held = ()
                self._silent.add(socket)
            self._agents[socket] = {pair.public_data: pair for pair in held}
            self._clients.append(client)

    def held(self, socket: str) -> int | None:
        """The number of keys of the agent at `socket`; None if it did not answer."""
        return None if socket in self._silent else len(self._agents.get(socket, ()))

    def files(self, paths: Sequence[str], agent: str) -> list[KeyFile]:
        """The results for the keys at `paths`, after they were loaded together with those of `agent`."""
        held = self._agents.get(agent, {})
        found = []
        for path in map(os.path.expanduser, paths):
            inside = held.get(_public(path) or b"") if held else None
            if inside is not None:
                found.append(KeyFile(path, "agent", inside.get_algorithm()))
            elif (problem := self.problems.get(path)) is not None:
                found.append(KeyFile(path, problem.why, text=problem.text))
            elif pairs := self._loaded.get(path):
                found.append(KeyFile(path, "read", pairs[0].get_algorithm()))
            else:
                found.append(KeyFile(path, "absent"))
        return found

    async def aclose(self) -> None:
        """End the connections to agents."""
        for client in self._clients:
            client.close()
            await client.wait_closed()
        self._clients.clear()

    def load(self, paths: Sequence[str], agent: str = "", *, only: bool = False) -> list[Any]:
        """The keys at `paths` that are there and can be used, with their certificates; then, without `only`, the other
        keys of the agent that was asked at `agent`. A key that the agent holds is not read.

        Keys that are named come first: a server lets a client try six or so, and an agent may hold more."""
        held = self._agents.get(agent, {})
        named: list[Any] = []
        for whole in map(os.path.expanduser, paths):
            inside = held.get(_public(whole) or b"") if held else None
            if inside is not None:
                named.append(inside)
                continue
            if whole not in self._loaded:
                self._loaded[whole] = self._one(whole)
            named += self._loaded[whole]
        return named if only else [*named, *(pair for pair in held.values() if pair not in named)]

    def _one(self, path: str) -> Sequence[Any]:
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return ()
        if path.endswith(".pub"):
            text = Message("{path} is a public key, and no agent has the private one", path=path)
            self.problems[path] = KeyProblem("unreadable", text)
            return ()
        if stat.S_IMODE(mode) & 0o077:
            text = Message("other users can read {path}: chmod 600 {path}", path=path)
            self.problems[path] = KeyProblem("open", text)
            return ()
        passphrase: str | None = None
        for _ in range(TRIES):
            try:
                return asyncssh.load_keypairs([path], passphrase)
            except asyncssh.KeyEncryptionError:
                pass  # asked for again
            except asyncssh.KeyImportError as error:
                if "assphrase" not in str(error):
                    self.problems[path] = KeyProblem("unreadable", unreadable(path, error))
                    return ()
            except OSError as error:
                self.problems[path] = KeyProblem("unreadable", unreadable(path, error.strerror or error))
                return ()
            passphrase = self._ask(path)
            if passphrase is None:
                break
        text = Message("{path} is encrypted, and its passphrase was not given; ssh-add it to an agent", path=path)
        self.problems[path] = KeyProblem("encrypted", text)
        return ()


def _public(path: str) -> bytes | None:
    """The public part of a key: beside it, or the file itself, since `IdentityFile` may name a public key whose private
    one is in the agent. None if there is none."""
    for file in (f"{path}.pub", path):
        try:
            return asyncssh.read_public_key(file).public_data
        except (OSError, ValueError, asyncssh.Error):
            continue
    return None


class LoginRefused(NotAllowed):
    """`host` accepted none of the keys. `takes_password`: it would accept a password."""

    def __init__(self, user: str, host: str, why: str, takes_password: bool) -> None:
        more = Message(" ({why})", why=why) if why else ""
        said = Message("{host} refused {user}: no key was accepted{why}", host=host, user=user, why=more)
        advice = Message(
            "try: ssh {user}@{host} true; keys come from an agent, ~/.ssh/id_* and IdentityFile in ~/.ssh/config"
        )
        super().__init__(
            specific(said, Message("no key was accepted")),
            specific(advice.filled(user=user, host=host), advice.filled(user=user, host="HOST")),
        )
        self.host, self.takes_password = host, takes_password


def none_accepted(
    user: str, host: str, keys: Keys, paths: Sequence[str] | None = None, *, takes_password: bool = False
) -> LoginRefused:
    """The error for a refused login. `paths`: the keys configured for it, None for all."""
    own = None if paths is None else {os.path.expanduser(path) for path in paths}
    texts = [problem.text for path, problem in keys.problems.items() if own is None or path in own]
    wrong = (_wrong_certificate(f"{path}-cert.pub", user) for path in map(os.path.expanduser, paths or ()))
    asked = (Message("a password is asked for only on a terminal, for one selected worker"),) if takes_password else ()
    return LoginRefused(user, host, joined([*texts, *filter(None, wrong), *asked]), takes_password)


def _wrong_certificate(path: str, user: str) -> str:
    """The reason why a certificate does not let `user` in; empty if there is none."""
    try:
        certificate = asyncssh.read_certificate(path)
        if not isinstance(certificate, SSHOpenSSHCertificate):
            return ""
        certificate.validate(CERT_TYPE_USER, None)
    except OSError:
        return ""
    except ValueError as error:
        return Message("{path}: {why}", path=path, why=str(error))
    names = certificate.principals
    if not names or user in names:
        return ""
    return Message("{path} is for {names}, not for {user}", path=path, names=", ".join(sorted(names)), user=user)
