"""A login by password: asked for on a terminal, for one selected worker, after its host key matched; never else."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.local import Registry, registry
from tests.integration.terminal import Terminal
from tests.support.needs import needs
from tests.support.sshd import Sshd, make_key

#: In a mount namespace with a shadow file of its own, as a password of this machine must not change.
_OWN_SHADOW = 'mount --bind "$0" /etc/shadow && exec "$@"'
pytestmark = [
    needs("sshd"),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("openssl") is None, reason="only root may mount"),
]
ASKED = b"password of root@gpu1: "


class Hosts(Registry):
    """Two hosts: gpu1 takes the password `hello there` and no key, gpu2 a key."""

    def begin(self) -> None:
        ssh = self.home / ".ssh"
        ssh.mkdir(mode=0o700)
        key, other = make_key(ssh / "id_ed25519"), make_key(self.home / "other")
        made = subprocess.run(["openssl", "passwd", "-6", "hello there"], capture_output=True, text=True, check=True)
        shadow = self.home / "shadow"
        shadow.write_text(f"root:{made.stdout.strip()}:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")
        by_password = ("PasswordAuthentication yes", "LogLevel VERBOSE")
        around = ("unshare", "--mount", "sh", "-c", _OWN_SHADOW, str(shadow))
        self.hosts = [
            Sshd(self.home / "sshd1", [other], ["127.0.9.1"], by_password, around),
            Sshd(self.home / "sshd2", [key], ["127.0.9.2"]),
        ]
        (ssh / "known_hosts").write_text("".join(host.known for host in self.hosts))
        (ssh / "config").write_text(
            "".join(
                f"Host gpu{n}\n  User root\n  HostName {host.addresses[0]}\n  Port {host.port}\n"
                for n, host in enumerate([*self.hosts, self.hosts[0]], 1)
            )
            + "  PasswordAuthentication no\n"
        )
        (self.home / "no").write_text("gpu3\n")
        (self.home / "one").write_text("gpu1\n")
        (self.home / "two").write_text("gpu1\ngpu2\n")

    def terminal(self, file: str, *words: str) -> Terminal:
        return Terminal("--hostfile", str(self.home / file), *words, env=self.env)

    def tries(self) -> int:
        """How many passwords the server has seen."""
        return (self.home / "sshd1" / "log").read_text().count(" password for root")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with registry() as own:
        made = Hosts(own.home)
        made.begin()
        try:
            yield made
        finally:
            made.end()
            for host in made.hosts:
                host.close()


@pytest.mark.parametrize("file", ["one", "two"])
def test_one_selected_worker_may_have_a_password(hosts: Hosts, file: str) -> None:
    with hosts.terminal(file, "exec", "-w", "gpu1", "--", "echo", "in-$HOME") as run:
        run.wait_for(ASKED)
        run.type(b"wrong\n")
        run.wait_for(ASKED)
        run.type(b"hello there\n")
        run.wait_for(b"in-$HOME")
        assert run.code() == 0
        assert (run.mode(), b"hello there" in run.screen) == (run.before, False)


def test_in_a_shell_the_terminal_is_raw_only_later(hosts: Hosts) -> None:
    with hosts.terminal("one", "shell") as run:
        run.wait_for(ASKED)
        run.type(b"hello there\r")
        run.type(b"echo in-$((40+2)); exit 7\n")
        run.wait_for(b"in-42")
        assert run.code() == 7
        assert (run.mode(), b"hello there" in run.screen) == (run.before, False)


def test_three_wrong_ones_or_none(hosts: Hosts) -> None:
    with hosts.terminal("one", "exec", "--", "true") as run:
        for _ in range(3):
            run.wait_for(ASKED)
            run.type(b"wrong\n")
        run.wait_for(b"gpu1 refused root: neither a key nor the password was accepted")
        assert run.code() == 255
    with hosts.terminal("one", "exec", "--", "true") as run:
        run.wait_for(ASKED)
        run.type(b"\n")
        run.wait_for(b"a password is asked for only on a terminal, for one selected worker")
        assert run.code() == 255


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("two", ("exec", "--all", "--", "true")),
        ("one", ("exec", "-o", "json", "--", "true")),
        ("one", ("ps",)),
        ("one", ("doctor",)),
        ("no", ("exec", "--", "true")),
    ],
)
def test_lists_json_and_checks_never_ask(hosts: Hosts, file: str, words: tuple[str, ...]) -> None:
    before = hosts.tries()
    with hosts.terminal(file, *words) as run:
        run.code()
        assert b"password of" not in run.screen
    assert hosts.tries() == before


def test_without_a_terminal_it_is_not_asked_for(hosts: Hosts) -> None:
    run = hosts.cli("--hostfile", str(hosts.home / "one"), "exec", "--", "true", stdin=b"hello there\n")
    assert run.code == 255
    assert b"a password is asked for only on a terminal" in run.stderr


def test_a_host_that_is_not_known_gets_none(hosts: Hosts) -> None:
    known = hosts.home / ".ssh" / "known_hosts"
    text = known.read_text()
    known.write_text("")
    try:
        with hosts.terminal("one", "exec", "--", "true") as run:
            assert run.code() == 255
            assert b"password of" not in run.screen
    finally:
        known.write_text(text)
