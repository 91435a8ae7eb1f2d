"""A real OpenSSH server on loopback, with its own keys and configuration."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support import proc

#: sshd must be started with its absolute path.
PROGRAM = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_PRIVILEGE_SEPARATION = "/run/sshd"


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", path], check=True)
    return path


class Sshd:
    """Listens on `addresses`, with the same port for all. `known`: the lines of a known_hosts file for them.

    `more` are further lines of its configuration, `around` is a command that becomes the server.
    """

    def __init__(
        self,
        folder: Path,
        authorized: Sequence[Path],
        addresses: Sequence[str] = ("127.0.0.1",),
        more: Sequence[str] = (),
        around: Sequence[str] = (),
    ) -> None:
        assert PROGRAM is not None
        self.folder = folder
        folder.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            os.makedirs(_PRIVILEGE_SEPARATION, mode=0o755, exist_ok=True)
        self.addresses = list(addresses)
        self.port = _free_port(self.addresses[0])
        self.host_key = make_key(folder / "host_key")
        keys = folder / "authorized_keys"
        keys.write_text("".join(path.with_suffix(".pub").read_text() for path in authorized))
        self.config = folder / "sshd_config"
        lines = [
            f"Port {self.port}",
            *(f"ListenAddress {address}" for address in self.addresses),
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {keys}",
            f"PidFile {folder / 'pid'}",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin yes",
            "MaxStartups 1000",
            "MaxSessions 100",
            "KexAlgorithms curve25519-sha256",
            "PrintMotd no",
            "UseDNS no",
            f"Subsystem sftp {_sftp_server()}",
            "LogLevel ERROR",
        ]
        # Of a setting that comes twice, sshd takes the first one.
        lines = [*(line for line in lines if line.split()[0] not in {one.split()[0] for one in more}), *more]
        self.config.write_text("\n".join(lines) + "\n")
        self._around = around
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def known(self) -> str:
        key = " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])
        return "".join(f"[{address}]:{self.port} {key}\n" for address in self.addresses)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._around, str(PROGRAM), "-D", "-e", "-f", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 100
        for address in self.addresses:
            while True:
                with contextlib.suppress(OSError), socket.create_connection((address, self.port), 1):
                    break
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, "the server does not listen"
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop only the server: existing connections stay open, as after a restart of the service."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(10)
            self._until_nobody_listens()

    def _until_nobody_listens(self) -> None:
        """Wait until the listening sockets are closed: children that the server has just forked keep them for a moment.
        A new server would get only some of the addresses, and connections to the others would not be accepted."""
        deadline = time.monotonic() + 100
        for address in self.addresses:
            while True:
                try:
                    socket.create_connection((address, self.port), 1).close()
                except ConnectionRefusedError:
                    break
                except OSError:
                    pass  # reset: it is being closed
                assert time.monotonic() < deadline, f"something still listens on {address}"
                time.sleep(0.02)

    def kill_all(self) -> None:
        """SIGKILL to the server and to the processes of its connections, as when a machine fails."""
        if self._process is None:
            return
        below = {self._process.pid}
        while more := {one.pid for one in proc.processes() if one.parent in below and "sshd" in one.command} - below:
            below |= more
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)
        self._until_nobody_listens()

    def close(self) -> None:
        """Stop the server with all its processes."""
        if self._process is not None and self._process.poll() is None:
            self.kill_all()


def _free_port(address: str) -> int:
    with socket.socket() as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])


def _sftp_server() -> str:
    places = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
    return next((place for place in places if os.path.exists(place)), "internal-sftp")
