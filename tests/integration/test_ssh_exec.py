"""Commands over SSH on a real sshd: outcomes, input, keys, and leftovers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from atlctl.backends.base import (
    Argv,
    Event,
    ExecRequest,
    Exited,
    FailedToStart,
    Lost,
    Output,
    Started,
    TerminalSize,
)
from atlctl.backends.hosts.connect import Connections
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.hostkeys import KnownHosts
from atlctl.backends.hosts.keys import Keys
from atlctl.backends.hosts.stream import SshExecutor
from atlctl.jobs.model import State, Worker
from tests.support import proc
from tests.support.needs import needs
from tests.support.sshd import Sshd, make_key

pytestmark = needs("sshd")
WORKER = Worker("gpu-1", 0, State.RUNNING)


@dataclass
class Site:
    """A server, its accepted key, and an ssh configuration for both."""

    server: Sshd
    folder: Path
    key: Path

    def config(self, *lines: str, known: str | None = None, key: Path | None = None) -> str:
        """Write a new configuration for the alias gpu-1; returns its path."""
        place = self.folder / f"ssh-{time.monotonic_ns()}"
        place.mkdir()
        (place / "known").write_text(self.server.known if known is None else known)
        text = [
            "Host gpu-1",
            "HostName 127.0.0.1",
            f"Port {self.server.port}",
            f"IdentityFile {key or self.key}",
            f"UserKnownHostsFile {place / 'known'}",
            "GlobalKnownHostsFile /nonexistent",
            *lines,
        ]
        (place / "config").write_text("\n".join(text) + "\n")
        return str(place / "config")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("sshd")
    key = make_key(folder / "key")
    server = Sshd(folder / "server", [key])
    try:
        yield Site(server, folder, key)
    finally:
        server.close()


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


class Client(SshExecutor):
    """An executor with separate connections, which it closes."""

    def __init__(self, config: str, *, accept_new: bool = False, passphrase: str | None = None) -> None:
        keys = Keys(lambda _: passphrase)
        self._connections = Connections(keys, KnownHosts(accept_new=accept_new), config)
        super().__init__(self._connections, {"gpu-1": Host("gpu-1")})

    async def aclose(self) -> None:
        await super().aclose()
        await self._connections.aclose()


def run(
    config: str, words: Sequence[str], data: bytes | None = None, tty: TerminalSize | None = None, **options: object
) -> list[Event]:
    """All events of a command. `data`: its input."""

    async def main() -> list[Event]:
        made = Client(config, **options)  # type: ignore[arg-type]
        found: list[Event] = []
        try:
            execution = made.run(WORKER, ExecRequest(Argv(tuple(words)), stdin=data is not None, tty=tty))
            async for event in execution:
                found.append(event)
                if isinstance(event, Started) and data is not None:
                    await execution.write(data)
                    await execution.close_stdin()
        finally:
            await made.aclose()
        return found

    return asyncio.run(asyncio.wait_for(main(), 100))


def text(events: Sequence[Event], stream: str = "stdout") -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Output) and event.stream == stream)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (("true",), Exited(exit_code=0)),
        (("sh", "-c", "exit 7"), Exited(exit_code=7)),
        (("sh", "-c", "kill -9 $$"), Exited(signal=9)),
        (("sh", "-c", "exit 137"), Exited(exit_code=137)),
        (("/nonexistent/x",), FailedToStart(127, "/nonexistent/x: command not found")),
        (("/etc",), FailedToStart(126, "/etc: cannot be executed")),
    ],
)
def test_how_a_command_ends(site: Site, words: Sequence[str], end: Event) -> None:
    assert run(site.config(), words)[-1] == end


def test_words_are_quoted_exactly_once(site: Site) -> None:
    words = ("a b", "$HOME", "`id`", "'", '"', "\\", "*", "\n", "", "-n", "中", os.fsdecode(b"\xff\xfe"), "!x", "#")
    program = "import sys,os;os.write(1,os.fsencode('|'.join(sys.argv[1:])))"
    events = run(site.config(), (sys.executable, "-c", program, *words))
    assert text(events) == os.fsencode("|".join(words))


def test_both_streams_and_input(site: Site) -> None:
    events = run(site.config(), ("sh", "-c", "cat; echo wrong >&2"), data=b"a\0b" * 100_000)
    assert text(events) == b"a\0b" * 100_000
    assert text(events, "stderr") == b"wrong\n"
    assert events[-1] == Exited(exit_code=0)
    assert events[0] == Started(guarded=True)


def test_a_terminal_of_that_size(site: Site) -> None:
    events = run(site.config(), ("sh", "-c", "tty >/dev/null && stty size"), tty=TerminalSize(132, 43))
    assert text(events).replace(b"\r", b"") == b"43 132\n"


def test_much_output_arrives_whole(site: Site) -> None:
    events = run(site.config(), ("sh", "-c", "head -c 20000000 /dev/zero"))
    assert len(text(events)) == 20_000_000
    assert events[-1] == Exited(exit_code=0)


def test_a_command_is_ended_with_all_that_it_started(site: Site) -> None:
    mark = f"3{time.time_ns() % 10**8}"

    async def main() -> bool:
        made = Client(site.config())
        execution = made.run(WORKER, ExecRequest(Argv(("sh", "-c", f"sleep {mark} & sleep {mark}"))))
        try:
            async for event in execution:
                if isinstance(event, Started):
                    break
            return await execution.end(1.0)
        finally:
            await made.aclose()

    assert asyncio.run(asyncio.wait_for(main(), 100))
    assert not _sleeping(mark)


def test_a_key_that_is_noted_for_the_address_alone_is_not_taken(site: Site, tmp_path: Path) -> None:
    other = " ".join(make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2])
    known = f"{site.server.known}localhost {other}\n"
    events = run(site.config("HostKeyAlias localhost", known=known), ("true",))
    assert isinstance(events[-1], FailedToStart)
    assert "changed" in events[-1].reason


def test_keys_of_an_agent(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even if no file has the key, or the file is encrypted."""
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    try:
        assert proc.wait_until((tmp_path / "agent").exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        assert run(site.config(key=tmp_path / "none"), ("true",))[-1] != Exited(exit_code=0), "it has no key yet"
        subprocess.run(["ssh-add", "-q", site.key], check=True, stderr=subprocess.DEVNULL)
        assert run(site.config(key=tmp_path / "none"), ("true",))[-1] == Exited(exit_code=0)
        encrypted = tmp_path / "encrypted"
        shutil.copy(site.key, encrypted)
        shutil.copy(site.key.with_suffix(".pub"), f"{encrypted}.pub")
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", encrypted], check=True)
        # There is no passphrase prompt, even with `IdentitiesOnly`.
        for line in ("IdentitiesOnly no", "IdentitiesOnly yes"):
            assert run(site.config(line, key=encrypted), ("true",))[-1] == Exited(exit_code=0)
        # The public key is enough to select it.
        assert run(site.config("IdentitiesOnly yes", key=Path(f"{encrypted}.pub")), ("true",))[-1] == Exited(
            exit_code=0
        )
        other = make_key(tmp_path / "other")
        events = run(site.config("IdentitiesOnly yes", key=other), ("true",))
        assert isinstance(events[-1], FailedToStart), "the agent's key is not one that is named"
        assert run(site.config("IdentityAgent none", key=tmp_path / "none"), ("true",))[-1] != Exited(exit_code=0)
        # A server accepts six attempts: configured keys come first, from files and from the agent.
        subprocess.run(["ssh-add", "-q", "-D"], check=True, stderr=subprocess.DEVNULL)
        more = [make_key(tmp_path / f"more-{number}") for number in range(8)]
        subprocess.run(["ssh-add", "-q", *more], check=True, stderr=subprocess.DEVNULL)
        assert run(site.config(), ("true",))[-1] == Exited(exit_code=0)
        subprocess.run(["ssh-add", "-q", site.key], check=True, stderr=subprocess.DEVNULL)
        assert run(site.config(key=encrypted), ("true",))[-1] == Exited(exit_code=0)
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.parametrize("stdin", [False, True])
def test_a_command_dies_with_a_client_that_is_killed(site: Site, stdin: bool) -> None:
    mark = f"4{time.time_ns() % 10**8}"
    program = (
        "import asyncio,sys\nfrom tests.integration.test_ssh_exec import *\n"
        "async def main():\n made = Client(sys.argv[1])\n"
        " request = ExecRequest(Argv(('sleep', sys.argv[2])), stdin=sys.argv[3] == 'True')\n"
        " async for event in made.run(WORKER, request):\n  print(event, flush=True)\nasyncio.run(main())"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program, site.config(), mark, str(stdin)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == b"Started(guarded=True)\n"
        assert proc.wait_until(lambda: _sleeping(mark))
    finally:
        client.send_signal(signal.SIGKILL)
        client.communicate()
    assert proc.wait_until(lambda: not _sleeping(mark))


def test_a_server_that_is_killed_in_the_middle_is_a_loss(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    server = Sshd(tmp_path / "server", [key])
    site = Site(server, tmp_path, key)

    async def main() -> list[Event]:
        made = Client(site.config())
        found: list[Event] = []
        try:
            async for event in made.run(WORKER, ExecRequest(Argv(("sleep", "1000")))):
                found.append(event)
                if isinstance(event, Started):
                    server.kill_all()
        finally:
            await made.aclose()
        return found

    try:
        assert isinstance(asyncio.run(asyncio.wait_for(main(), 100))[-1], Lost)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ("", "is not known"),
        ("{place} {other}\n", "has changed"),
        ("@revoked {place} {own}\n", "was revoked"),
    ],
)
def test_a_host_that_is_not_known_is_refused(site: Site, tmp_path: Path, known: str, words: str) -> None:
    place, own = site.server.known.strip().split(" ", 1)
    other = " ".join(make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2])
    (end,) = run(site.config(known=known.format(place=place, own=own, other=other)), ("true",))
    assert isinstance(end, FailedToStart)
    assert end.exit_code == 255
    assert words in end.reason
    assert f"[127.0.0.1]:{site.server.port}" in end.reason


def test_checks_cannot_be_configured_away(site: Site) -> None:
    config = site.config("StrictHostKeyChecking no")
    lines = Path(config).read_text().splitlines()
    kept = ["UserKnownHostsFile none" if line.startswith("UserKnown") else line for line in lines]
    Path(config).write_text("\n".join(kept) + "\n")
    (end,) = run(config, ("true",))
    assert isinstance(end, FailedToStart)
    assert "is not known" in end.reason


def test_a_new_host_is_noted_where_that_was_chosen(site: Site, tmp_path: Path) -> None:
    config = site.config(known="")
    assert run(config, ("true",), accept_new=True)[-1] == Exited(exit_code=0)
    assert run(config, ("true",))[-1] == Exited(exit_code=0)
    # It was added only to that file, and a host with another key is not a new host.
    other = " ".join(make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2])
    (end,) = run(site.config(known=f"[127.0.0.1]:{site.server.port} {other}\n"), ("true",), accept_new=True)
    assert isinstance(end, FailedToStart)
    assert "has changed" in end.reason
    place, own = site.server.known.strip().split(" ", 1)
    (end,) = run(site.config(known=f"@revoked {place} {own}\n"), ("true",), accept_new=True)
    assert isinstance(end, FailedToStart)
    assert "was revoked" in end.reason


def test_a_key_that_is_not_taken(site: Site, tmp_path: Path) -> None:
    (end,) = run(site.config(key=make_key(tmp_path / "stranger")), ("true",))
    assert isinstance(end, FailedToStart)
    assert "no key was accepted" in end.reason


def test_an_encrypted_key_is_asked_for_once(site: Site, tmp_path: Path) -> None:
    key = tmp_path / "locked"
    shutil.copy(site.key, key)
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True)
    config = site.config(key=key)
    assert run(config, ("true",), passphrase="secret")[-1] == Exited(exit_code=0)
    (end,) = run(config, ("true",))
    assert isinstance(end, FailedToStart)
    assert "is encrypted" in end.reason


def test_a_key_that_others_may_read_is_not_used(site: Site, tmp_path: Path) -> None:
    key = tmp_path / "open"
    shutil.copy(site.key, key)
    key.chmod(0o644)
    (end,) = run(site.config(key=key), ("true",))
    assert isinstance(end, FailedToStart)
    assert "chmod 600" in end.reason


def test_nobody_listens(site: Site) -> None:
    config = site.config()
    Path(config).write_text(Path(config).read_text().replace(f"Port {site.server.port}", "Port 1"))
    (end,) = run(config, ("true",))
    assert isinstance(end, FailedToStart)
    assert "127.0.0.1:1: connection refused" in end.reason


def _sleeping(mark: str) -> bool:
    """Whether this `sleep` is running."""
    return any(process.command == f"sleep {mark}" for process in proc.processes())
