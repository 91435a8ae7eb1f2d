"""Private keys, each loaded once for a run: reading an RSA key takes a hundred times as long as using it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import Any

import asyncssh

from atlctl.jobs.errors import NotAllowed

#: What ssh looks for where nothing else is configured.
DEFAULTS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa", "~/.ssh/id_ed25519_sk", "~/.ssh/id_ecdsa_sk")
_TRIES = 3


class Keys:
    """Keys by path. `ask` prompts for the passphrase of a path, None where nobody can be asked."""

    def __init__(self, ask: Callable[[str], str | None]) -> None:
        self._ask = ask
        self._loaded: dict[str, Sequence[Any]] = {}
        #: Why a key could not be used, by its path.
        self.problems: dict[str, str] = {}

    def load(self, paths: Sequence[str]) -> list[Any]:
        """Those of the keys that are there and can be used, with their certificates."""
        found: list[Any] = []
        for path in paths:
            whole = os.path.expanduser(path)
            if whole not in self._loaded:
                self._loaded[whole] = self._one(whole)
            found += self._loaded[whole]
        return found

    def _one(self, path: str) -> Sequence[Any]:
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return ()
        if stat.S_IMODE(mode) & 0o077:
            self.problems[path] = f"others may read {path}; chmod 600 it"
            return ()
        passphrase: str | None = None
        for _ in range(_TRIES):
            try:
                return asyncssh.load_keypairs([path], passphrase)
            except asyncssh.KeyEncryptionError:
                wrong = True
            except asyncssh.KeyImportError as error:
                wrong = "assphrase" in str(error)
                if not wrong:
                    self.problems[path] = f"{path} cannot be read: {error}"
                    return ()
            except OSError as error:
                self.problems[path] = f"{path} cannot be read: {error.strerror or error}"
                return ()
            passphrase = self._ask(path)
            if passphrase is None:
                break
        self.problems[path] = f"{path} is encrypted, and its passphrase was not given; ssh-add it to an agent"
        return ()


def none_accepted(user: str, host: str, keys: Keys) -> NotAllowed:
    """What a refused login means."""
    why = "; ".join(keys.problems.values())
    return NotAllowed(
        f"{host} let {user} not in: no key was accepted{f' ({why})' if why else ''}",
        f"try: ssh {user}@{host} true; keys come from an agent, ~/.ssh/id_* and IdentityFile in ~/.ssh/config",
    )
