"""The ssh configuration's effect on hosts, reused connections, and combined writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from atlctl.backends.hosts import connect
from atlctl.backends.hosts.connect import Connections, Direct
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.hostkeys import KnownHosts
from atlctl.backends.hosts.jobkeys import JobAccess
from atlctl.backends.hosts.keys import Keys


def connections(config: str | None) -> Connections:
    return Connections(Keys(lambda _: None), KnownHosts(), config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Port 2222", [("a", 2222), ("b", 2222)]),
        ("Host *\n  Port=2222\n# Host a\nMatch all\n  User x", [("a", 2222), ("b", 2222)]),
        ("Host a\n  Port 2222\n  HostName a.example", [("a.example", 2222), ("b", 22)]),
        ("Host a* !ab\n  Port 2222\nHost *\n  HostName %h.example", [("a.example", 2222), ("b.example", 22)]),
        ("Host * !b\n  Port 2222", [("a", 2222), ("b", 22)]),
        ("Match host b\n  Port 2222", [("a", 22), ("b", 2222)]),
        ('"Host" a\n  Port 2222', [("a", 2222), ("b", 22)]),
        ("Port 7\nHost c b\n  Port 2222\nHost a\n  User x", [("a", 7), ("b", 7)]),
        ("Host c b\n  Port 2222\nHost ?\n  Port 7", [("a", 7), ("b", 2222)]),
        ("Host B\n  Port 2222\n  ControlPath ~/%h\nHost *\n  Port 7", [("a", 7), ("b", 7)]),
        ("Include more", [("a", 22), ("b", 2222)]),
    ],
)
def test_what_is_said_of_one_host_is_not_taken_for_another(
    tmp_path: Path, text: str, expected: list[tuple[str, int]]
) -> None:
    config = tmp_path / "config"
    config.write_text(text.replace("more", str(tmp_path / "more")))
    (tmp_path / "more").write_text("Host b\n  Port 2222\n")
    made = connections(str(config))
    found = [made.target(Host(name)) for name in ("a", "b")]
    assert [(target.host, target.port) for target in found] == expected


def test_user_and_port_of_a_list_come_before_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  Port 2222\n  User x\n")
    made = connections(str(config))
    hosts = (Host("a"), Host("a", user="y"), Host("a", port=7), Host("b"))
    found = [(target.user, target.port) for target in map(made.target, hosts)]
    assert found == [("x", 2222), ("y", 2222), ("x", 7), ("x", 2222)]


def test_a_final_match_decides_as_for_ssh(tmp_path: Path) -> None:
    """It is read in a second pass, for the name found in the first; earlier values have priority."""
    config = tmp_path / "config"
    config.write_text(
        "Host a\n  HostName a.example\nMatch final host *.example\n  User last\n  Port 2222\nHost b\n  User b\n"
    )
    made = connections(str(config))
    found = [made.target(host) for host in (Host("a"), Host("a", user="y"), Host("b"))]
    assert [(target.host, target.user, target.port) for target in found] == [
        ("a.example", "last", 2222),
        ("a.example", "y", 2222),
        ("b", "b", 22),
    ]


class Made:
    """Stands in for a connection."""

    closed = False

    def is_closed(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def test_idle_connections_are_kept_up_to_a_number_and_those_in_use_always(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made = connections(None)

        async def begin(_: Host) -> Any:
            return Made()

        monkeypatch.setattr(made, "_connect", begin)
        monkeypatch.setattr(connect, "IDLE_KEPT", 2)
        hosts = [Host(f"h{index}") for index in range(5)]
        open_ = [cast(Made, await made.get(host)) for host in hosts]
        assert cast(Any, await made.get(hosts[4])) is open_[4]
        for host in hosts:
            made.rest(host)
        assert [one.closed for one in open_] == [False, False, True, True, False]
        assert cast(Any, await made.get(hosts[0])) is open_[0]
        assert cast(Any, await made.get(hosts[2])) is not open_[2]
        await made.aclose()

    asyncio.run(main())


def test_a_connection_made_with_other_trust_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made = connections(None)

        async def begin(_: Host) -> Any:
            return Made()

        monkeypatch.setattr(made, "_connect", begin)
        host, access = Host("h", port=7), JobAccess(bytes(32), "1")
        found = []
        for given, index in ((None, 0), (access, 0), (access, 0), (access, 1), (JobAccess(bytes(32), "2"), 1)):
            if given is not None:
                made.trust(host, given, index)
            found.append(cast(Made, await made.get(host)))
        assert [found.index(one) for one in found] == [0, 1, 1, 3, 4]
        assert not any(one.closed for one in found), "they may be in use"
        await made.aclose()
        assert all(one.closed for one in found)

    asyncio.run(main())


def test_a_worker_of_a_job_has_no_settings_of_the_user(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  HostName other\n  User x\n  IdentityAgent /run/any\n")
    made = connections(str(config))
    worker = Host("10.0.0.1", port=4000)
    made.trust(worker, JobAccess(bytes(32), "1"), 0)
    found = [made.target(host) for host in (worker, Host("10.0.0.1", port=4001), Host("10.0.0.1"))]
    assert [(target.host, target.user) for target in found] == [("10.0.0.1", "atlctl"), ("other", "x"), ("other", "x")]


def test_what_is_written_at_one_time_arrives_at_once() -> None:
    arrived: list[bytes] = []

    class Protocol(asyncio.Protocol):
        transport: asyncio.Transport

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)
            self.transport.write(b"one ")
            self.transport.write(b"two")

        def data_received(self, data: bytes) -> None:
            self.transport.write(data + b" is echoed")
            self.transport.close()

    async def main() -> None:
        over = asyncio.Event()

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.append(await reader.read(100))
            writer.write(b"this")
            arrived.append(await reader.read(100))
            arrived.append(await reader.read(100))
            writer.close()
            over.set()

        server = await asyncio.start_server(served, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            _, protocol = await Direct(0, None).create_connection(Protocol, "127.0.0.1", port)
            assert protocol.transport.get_extra_info("peername")[1] == port
            await over.wait()
            assert protocol.transport.is_closing()

    asyncio.run(asyncio.wait_for(main(), 100))
    assert arrived == [b"one two", b"this is echoed", b""]
