"""Many hosts for SSH benchmarks, all of them one sshd on loopback, and the command lines of the tools compared."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from tests.support.needs import find_program
from tests.support.sshd import Sshd, make_key

#: Connections in the making, for all tools.
FANOUT = 64
_BARE = str(Path(__file__).with_name("bare_ssh.py"))


class Site:
    """The server, a home with a key and known_hosts, and lists of hosts: each a loopback address of its own."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._ssh = folder / ".ssh"
        self._ssh.mkdir(mode=0o700)
        self._key = make_key(self._ssh / "id_ed25519")
        self._hosts = [f"127.1.{index // 250}.{index % 250 + 1}" for index in range(most)]
        self._user = getpass.getuser()
        self._server = server = Sshd(folder / "server", [self._key], ["0.0.0.0"])
        # A bash that sshd starts reads the user's startup files otherwise, which on some machines start much more.
        server.stop()
        with server.config.open("a") as file:
            file.write("SetEnv SHLVL=2\n")
        server.start()
        kind, key = server.known.split()[1:]
        lines = (f"[{host}]:{server.port} {kind} {key}\n" for host in self._hosts)
        (self._ssh / "known_hosts").write_text("".join(lines))
        # asyncssh reads it by itself, the ssh that clush, pdsh and xargs start is told of it.
        self._config = self._ssh / "config"
        self._config.write_text(
            f"Host *\n  Port {server.port}\n  User {self._user}\n  IdentityFile {self._key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self._ssh / 'known_hosts'}\n  GlobalKnownHostsFile /nonexistent\n"
            f"  KexAlgorithms curve25519-sha256\n  BatchMode yes\n"
        )

    def close(self) -> None:
        self._server.close()

    @property
    def env(self) -> dict[str, str]:
        """With compiled modules kept, as in every installation, and no agent."""
        left_out = ("PYTHONDONTWRITEBYTECODE", "SSH_AUTH_SOCK")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        return {**kept, "HOME": str(self._folder), "PDSH_SSH_ARGS_APPEND": f"-F {self._config}"}

    def names(self, size: int) -> Path:
        """A file of so many hosts."""
        path = self._folder / f"hosts-{size}"
        path.write_text("".join(f"{host}\n" for host in self._hosts[:size]))
        return path

    def ours(self, size: int, command: str, *options: str) -> list[str]:
        words = ["exec", "--hostfile", str(self.names(size)), "--all", *options, *command.split()]
        return [sys.executable, "-m", "atlctl", *words]

    def bare(self, size: int, command: str) -> list[str]:
        place = [str(self._server.port), self._user, str(self._key), str(self._ssh / "known_hosts")]
        return [sys.executable, _BARE, *place, str(self.names(size)), command]

    def peers(self, size: int, command: str) -> dict[str, list[str]]:
        """The tools of others that are installed, by their names."""
        names = self.names(size)
        all_of_them = {
            "clush": ["clush", "-f", str(FANOUT), "-o", f"-F {self._config}", f"--hostfile={names}", command],
            "pdsh": ["pdsh", "-R", "ssh", "-f", str(FANOUT), "-w", f"^{names}", command],
            "xargs ssh": ["sh", "-c", f"xargs -P {FANOUT} -I HOST ssh -F {self._config} HOST {command} < {names}"],
        }
        return {name: line for name, line in all_of_them.items() if find_program(name.split()[0]) is not None}
