"""The server of `atlctl run`: commands, terminals and questions over it, and attacks on it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import asyncssh
import pytest

from atlctl.backends.base import Argv, ExecRequest, Output
from atlctl.backends.hosts import wrappers
from atlctl.backends.hosts.asking import NoAnswer, Why, worker_of
from atlctl.backends.hosts.connect import Connections
from atlctl.backends.hosts.hostfile import Host
from atlctl.backends.hosts.hostkeys import KnownHosts
from atlctl.backends.hosts.jobkeys import JobAccess
from atlctl.backends.hosts.keys import Keys
from atlctl.backends.hosts.stream import SshExecutor
from atlctl.jobs.errors import NotAllowed
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.wrapper import Wrappers

ADDRESSES = ["127.0.9.1", "127.0.9.2"]
MEBIBYTE = 1 << 20
#: Resident memory of a server, in KB, whatever is done to it.
MOST_MEMORY = 60_000

T = TypeVar("T")
Connection = asyncssh.SSHClientConnection


def run(work: Coroutine[Any, Any, T], seconds: float = 120.0) -> T:
    return asyncio.run(asyncio.wait_for(work, seconds))


class Served:
    """Two workers of one job."""

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.wrappers = Wrappers(folder, ADDRESSES, [{proc.MARK: self.mark, "PS1": "ready> "}] * len(ADDRESSES))
        self.access = self.wrappers.access

    def host(self, index: int = 0) -> Host:
        return Host(ADDRESSES[index], port=self.wrappers.port)

    def processes(self, text: str = "") -> list[str]:
        """The commands in the workers, with `text` in them."""
        return [one.command for one in proc.marked(self.mark) if text in one.command]

    def memory(self) -> int:
        assert self.wrappers.process is not None
        text = Path(f"/proc/{self.wrappers.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def close(self) -> None:
        self.wrappers.close()
        for one in proc.marked(self.mark):
            proc.kill(one)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with closing(Served(tmp_path_factory.mktemp("served"))) as made:
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A server for one test, which may end it."""
    with closing(Served(tmp_path / "own")) as made:
        yield made


@contextlib.asynccontextmanager
async def trusting(
    host: Host, access: JobAccess, index: int = 0, config: str | None = None
) -> AsyncIterator[Connections]:
    connections = Connections(Keys(lambda _: None), KnownHosts(), config)
    connections.trust(host, access, index)
    try:
        yield connections
    finally:
        await connections.aclose()


@contextlib.asynccontextmanager
async def connected(served: Served) -> AsyncIterator[Connection]:
    async with trusting(served.host(), served.access) as connections:
        yield await connections.get(served.host())


class Done(NamedTuple):
    out: bytes
    err: bytes
    code: int | None
    signal: str | None


def command(served: Served, text: str, data: bytes = b"") -> Done:
    """Run one command, without a guard."""

    async def main() -> Done:
        async with connected(served) as connection:
            return await finished(connection, text, data)

    return run(main())


async def finished(connection: Connection, text: str, data: bytes = b"") -> Done:
    done = await connection.run(text, input=data, encoding=None)
    assert isinstance(done.stdout, bytes)
    assert isinstance(done.stderr, bytes)
    return Done(done.stdout, done.stderr, done.exit_status, done.exit_signal[0] if done.exit_signal else None)


# Commands


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_and_both_streams_arrive(served: Served, code: int) -> None:
    done = command(served, f"echo out; echo err >&2; exit {code}")
    assert done == Done(b"out\n", b"err\n", code, None)


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "BUS"])
def test_a_signal_is_named(served: Served, name: str) -> None:
    assert command(served, f"kill -{name} $$").signal == name


def test_commands_run_in_the_wrappers_folder_and_environment(served: Served) -> None:
    done = command(served, 'pwd; echo "$PS1"; env | grep -c SSH_; ps -o sid= -p $$ | tr -d " "; echo $$')
    folder, prompt, ssh, session, pid = done.out.decode().splitlines()
    assert (folder, prompt, ssh) == (str(served.wrappers.folder), "ready> ", "0")
    assert session == pid


def test_a_command_that_cannot_be_started_says_why(own: Served) -> None:
    (own.wrappers.folder / "log").unlink()
    own.wrappers.folder.rmdir()
    done = command(own, "true")
    assert done.code == 126
    assert str(own.wrappers.folder).encode() in done.err


@pytest.mark.parametrize(("size", "window"), [(60_000, 16_384), (5_000_000, 65_536)])
def test_the_status_comes_after_all_output_to_a_client_that_reads_slowly(
    served: Served, size: int, window: int
) -> None:
    """The shorter output waits in the channel when the command ends, the longer one in the command's pipe."""

    async def main() -> None:
        async with connected(served) as connection:
            line = f"head -c {size} /dev/zero; exit 7"
            process = await connection.create_process(line, encoding=None, window=window)
            await asyncio.sleep(0.5)
            assert process.returncode is None, "not all was read yet"
            found = 0
            while piece := await process.stdout.read(65536):
                found += len(piece)
            await process.wait()
            assert (found, process.exit_status) == (size, 7)

    run(main())


def test_a_child_that_holds_the_output_open_is_heard(served: Served) -> None:
    done = command(served, "(sleep 0.5; echo late) & echo early; exit 3")
    assert (done.out, done.code) == (b"early\nlate\n", 3)


def test_50_megabytes_of_input(served: Served) -> None:
    data = os.urandom(MEBIBYTE) * 50
    assert command(served, "sha256sum", data).out.split()[0] == hashed(data)


def hashed(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def test_inputs_that_are_read_late_arrive_whole(served: Served) -> None:
    data = os.urandom(300_000)

    async def main() -> None:
        async with connected(served) as connection:
            runs = (finished(connection, "sleep 0.3; sha256sum", data) for _ in range(40))
            for done in await asyncio.gather(*runs):
                assert done.out.split()[0] == hashed(data)

    for _ in range(3):
        run(main())


def test_input_that_a_command_does_not_read_is_dropped(served: Served) -> None:
    assert command(served, "exec <&-; sleep 0.3; exit 4", bytes(5 * MEBIBYTE)).code == 4


def test_64_sessions_on_one_connection_and_64_connections(served: Served) -> None:
    async def main() -> None:
        async with connected(served) as connection:
            runs = [connection.run(f"sleep 0.2; echo {number}") for number in range(64)]
            assert [done.stdout for done in await asyncio.gather(*runs)] == [f"{number}\n" for number in range(64)]

        async def alone(number: int) -> str:
            async with connected(served) as connection:
                return str((await connection.run(f"echo {number}")).stdout)

        assert await asyncio.gather(*map(alone, range(64))) == [f"{number}\n" for number in range(64)]

    run(main())


# The end of commands


@pytest.mark.parametrize("how", ["channel", "connection", "signal"])
def test_a_command_without_a_guard_ends_with_its_client(served: Served, how: str) -> None:
    """Also if it never reads its input, of which the channel is full."""

    async def main() -> None:
        async with connected(served) as connection:
            process = await connection.create_process("sleep 4201 & sleep 4202", encoding=None)
            process.stdin.write(bytes(4 * MEBIBYTE))
            assert await asyncio.to_thread(proc.wait_until, lambda: len(served.processes("sleep 420")) > 2)
            if how == "channel":
                process.channel.abort()
            elif how == "connection":
                connection.abort()
            else:
                process.send_signal("TERM")
            assert await asyncio.to_thread(proc.wait_until, lambda: not served.processes("sleep 420"))

    run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_guarded_commands_end_with_the_server(own: Served, number: int) -> None:
    async def main() -> None:
        async with trusting(own.host(), own.access) as connections:
            executor = SshExecutor(connections, {"w": own.host()})
            execution = executor.run(
                worker_of("w"), ExecRequest(Argv(("sh", "-c", "setsid sleep 4203 & echo a; wait")))
            )
            async for event in execution:
                if isinstance(event, Output):
                    break
            assert own.processes("sleep 4203")
            if number == signal.SIGKILL:
                await asyncio.to_thread(own.wrappers.kill_all)
            else:
                await asyncio.to_thread(own.wrappers.stop)
            assert await asyncio.to_thread(proc.wait_until, lambda: not own.processes())
            await execution.aclose()
            await executor.aclose()

    run(main())


def test_the_server_kills_commands_that_ignore_signals_when_it_ends(own: Served) -> None:
    async def main() -> None:
        async with connected(own) as connection:
            process = await connection.create_process("trap '' TERM HUP; echo a; sleep 4204; sleep 4205")
            assert await process.stdout.readline() == "a\n"
            await asyncio.to_thread(own.wrappers.stop)
            assert await asyncio.to_thread(proc.wait_until, lambda: not own.processes())

    run(main())


# Terminals


def test_a_shell_on_a_terminal(served: Served, tmp_path: Path) -> None:
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    served.wrappers.key(folder / "id_ed25519")
    (folder / "known_hosts").write_text(served.wrappers.known)
    (folder / "config").write_text(f"Host *\n  Port {served.wrappers.port}\n")
    (tmp_path / "hosts").write_text(f"{ADDRESSES[0]}\n")
    words = ("shell", "--hostfile", str(tmp_path / "hosts"), ADDRESSES[0])
    with Terminal(*words, env={"HOME": str(tmp_path), "TERM": "vt220"}, columns=97, rows=31) as terminal:
        terminal.wait_for(b"ready> ")
        for line, answer in ((b"stty size", b"31 97"), (b"echo $TERM", b"vt220"), (b"echo yes > /dev/tty", b"yes")):
            terminal.type(line + b"\r")
            terminal.wait_for(answer + b"\r\n")  # a prompt may come between the echo and the answer
        terminal.resize(61, 17)
        terminal.type(b"sleep 0.3; stty size\r")
        terminal.wait_for(b"17 61\r\n")
        terminal.type(b"sleep 4206\r")
        assert proc.wait_until(lambda: served.processes("sleep 4206"))
        terminal.type(b"\x03")
        assert proc.wait_until(lambda: not served.processes("sleep 4206"))
        terminal.type(b"exit 23\r")
        assert terminal.code() == 23


def test_a_shell_request_starts_the_workers_shell(served: Served) -> None:
    async def main() -> None:
        async with connected(served) as connection:
            process = await connection.create_process(term_type="vt100", term_size=(80, 24))
            process.stdin.write("echo $((40 + 2)); exit 5\n")
            assert "42\r\n" in await process.stdout.read()
            await process.wait()
            assert process.exit_status == 5

    run(main())


def test_a_terminal_hangs_up_with_its_channel(served: Served) -> None:
    async def main() -> None:
        async with connected(served) as connection:
            process = await connection.create_process("sleep 4207 & sleep 4208", term_type="vt100")
            assert await asyncio.to_thread(proc.wait_until, lambda: len(served.processes("sleep 420")) > 2)
            process.close()
            assert await asyncio.to_thread(proc.wait_until, lambda: not served.processes("sleep 420"))

    run(main())


def test_a_child_does_not_keep_a_terminal(served: Served) -> None:
    async def main() -> None:
        async with connected(served) as connection:
            done = await connection.run("trap '' HUP; sleep 4209 & seq 9999; exit 3", term_type="vt100")
            assert (str(done.stdout).splitlines()[-1], done.exit_status) == ("9999", 3)
            assert served.processes("sleep 4209") == ["sleep 4209"]

    run(main())
    for one in proc.marked(served.mark):
        proc.kill(one)


# Questions


async def asked(served: Served, question: str, seconds: float = 30.0, **details: object) -> dict[str, Any]:
    async with trusting(served.host(), served.access) as connections:
        return await wrappers.ask(connections, served.host(), question, details, seconds)


def test_a_question_is_answered_by_the_wrapper_itself(served: Served) -> None:
    answer = run(asked(served, "status of all", a=[1], text="x" * 300_000))
    assert served.wrappers.process is not None
    assert answer["pid"] == served.wrappers.process.pid
    assert (answer["question"], answer["details"]["a"], len(answer["details"]["text"])) == (
        "status of all",
        [1],
        300_000,
    )


@pytest.mark.parametrize(
    ("question", "why", "said"),
    [
        ("refuse", Why.FAILED, "not now"),
        ("long", Why.BROKEN, "its answer is malformed"),
        ("sleep", Why.SILENT, f"{ADDRESSES[0]} did not answer within 3 s"),
    ],
)
def test_a_question_without_an_answer(served: Served, question: str, why: Why, said: str) -> None:
    with pytest.raises(NoAnswer) as caught:
        run(asked(served, question, 3.0))
    assert (caught.value.why, caught.value.message) == (why, said)


def test_a_question_to_a_wrapper_that_has_gone(own: Served) -> None:
    own.wrappers.kill_all()
    with pytest.raises(NoAnswer) as caught:
        run(asked(own, "status"))
    assert caught.value.why == Why.UNREACHABLE
    assert "connection refused" in caught.value.message


@pytest.mark.parametrize("details", [b"\n", b"[]", b"{", b"\xff"])
def test_a_question_with_other_details_is_refused(served: Served, details: bytes) -> None:
    done = command(served, "atlctl-run status", details)
    assert done.code == 96
    assert b"the question is malformed" in done.out


# Attacks


class Thief(JobAccess):
    """Knows the host keys of a job, and has the client key of another."""

    def client_key(self) -> asyncssh.SSHKey:
        return JobAccess(os.urandom(32), self.start).client_key()


class Latecomer(JobAccess):
    """Has the client key of an earlier start."""

    def client_key(self) -> asyncssh.SSHKey:
        return JobAccess(self.secret, "start-0").client_key()


@pytest.mark.parametrize("kind", [Thief, Latecomer])
def test_another_key_is_not_let_in(served: Served, kind: type[JobAccess]) -> None:
    async def main() -> None:
        async with trusting(served.host(), kind(served.access.secret, served.access.start)) as connections:
            await connections.get(served.host())

    with pytest.raises(NotAllowed, match="does not accept this job's key: another job, or an earlier start of it"):
        run(main())


@pytest.mark.parametrize("case", ["another job", "an earlier start", "another worker"])
def test_another_server_than_the_worker_is_not_trusted(served: Served, case: str) -> None:
    access, index = served.access, 0
    if case == "another job":
        access = JobAccess(os.urandom(32), access.start)
    elif case == "an earlier start":
        access = JobAccess(access.secret, "start-0")
    else:
        index = 1

    async def main() -> None:
        async with trusting(served.host(), access, index) as connections:
            await connections.get(served.host())

    with pytest.raises(NotAllowed, match="is not this worker: its host key does not belong to this start of the job"):
        run(main())


def test_a_forged_server_with_a_key_of_another_kind_is_not_trusted(served: Served) -> None:
    async def main() -> None:
        forged = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[asyncssh.generate_private_key("ecdsa-sha2-nistp256")], gss_host=None
        )
        host = Host("127.0.0.1", port=forged.get_port())
        try:
            async with trusting(host, served.access) as connections:
                await connections.get(host)
        finally:
            forged.close()

    with pytest.raises(NotAllowed, match="is not this worker"):
        run(main())


def test_the_users_configuration_has_no_say_over_a_worker(served: Served, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  ProxyCommand false\n  User other\n  Port 1\n  HostName nowhere.invalid\n")

    async def main() -> None:
        async with trusting(served.host(), served.access, config=str(config)) as connections:
            connection = await connections.get(served.host())
            assert (await connection.run("echo here")).stdout == "here\n"

    run(main())


def test_only_keys_are_asked_for(served: Served) -> None:
    async def main() -> None:
        methods = await asyncssh.get_server_auth_methods(ADDRESSES[0], served.wrappers.port, config=None)
        assert list(methods) == ["publickey"]
        with pytest.raises(asyncssh.PermissionDenied):
            await asyncssh.connect(
                ADDRESSES[0], served.wrappers.port, config=None, known_hosts=None, client_keys=None, agent_path=None,
                username="root", password="",
            )  # fmt: skip

    run(main())


def test_nothing_but_sessions_is_served(served: Served, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(served) as connection:
            port = served.wrappers.port
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.open_connection(ADDRESSES[0], port)
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.open_unix_connection("/run/any")
            with pytest.raises(asyncssh.ChannelListenError):
                await connection.forward_remote_port("127.0.0.1", 0, ADDRESSES[0], port)
            with pytest.raises(asyncssh.ChannelListenError):
                await connection.forward_remote_path(str(tmp_path / "socket"), "/run/any")
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.create_tun(lambda: asyncssh.SSHTunTapSession())
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.start_sftp_client()
            done = await connection.run("env", env={"LD_PRELOAD": "/any", "ATLCTL_X": "1"}, encoding="utf-8")
            assert "LD_PRELOAD" not in str(done.stdout)
            assert "ATLCTL_X" not in str(done.stdout)

    run(main())


def test_an_agent_is_not_forwarded(served: Served) -> None:
    async def main() -> None:
        connection = await asyncssh.connect(
            ADDRESSES[0],
            served.wrappers.port,
            config=None,
            known_hosts=([served.access.host_key(0).convert_to_public()], [], []),
            client_keys=[served.access.client_key()],
            username="any",
            agent_path="/run/any",
            agent_forwarding=True,
        )
        async with connection:
            assert (await connection.run("echo [$SSH_AUTH_SOCK]")).stdout == "[]\n"

    run(main())


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" + bytes(100_000),
        b"SSH-2.0-x\r\n" + b"\xff" * 100_000,
        b"SSH-2.0-x\r\n\x00\x03\xff\x00" + bytes(200_000),
    ],
    ids=["http", "tls", "no packet", "a long packet"],
)
def test_garbage_ends_its_connection_and_no_other(served: Served, garbage: bytes) -> None:
    with socket.create_connection((ADDRESSES[0], served.wrappers.port), 10) as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(garbage)
            while stranger.recv(65536):
                pass
    assert command(served, "echo here").out == b"here\n"


def test_200_idle_connections_do_not_keep_the_user_out(served: Served) -> None:
    """The first of them give way once they have had the time for a login, and all end after the limit."""
    with contextlib.ExitStack() as stack:
        place = ADDRESSES[0], served.wrappers.port
        strangers = [stack.enter_context(socket.create_connection(place, 10)) for _ in range(200)]

        def let_in() -> bool:
            with contextlib.suppress(Exception):
                return command(served, "echo here").out == b"here\n"
            return False

        assert proc.wait_until(let_in)
        assert any(map(is_open, strangers)), "it need not wait until all of them are timed out"
        assert served.memory() < MOST_MEMORY
        for one in strangers:
            one.settimeout(30)
            with contextlib.suppress(ConnectionError):
                while one.recv(65536):
                    pass


def is_open(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    with contextlib.suppress(ConnectionError):
        try:
            while stranger.recv(65536):
                pass
        except BlockingIOError:
            return True
    return False


def test_a_client_that_does_not_read_costs_no_memory(served: Served) -> None:
    """Its windows are of a gigabyte, so that only its socket holds the server back."""

    async def main() -> None:
        async with connected(served) as connection:
            before = served.memory()
            processes = [
                await connection.create_process("head -c 300000000 /dev/zero", encoding=None, window=1 << 30)
                for _ in range(4)
            ]
            transport = connection._transport._transport  # type: ignore[union-attr]
            transport.pause_reading()
            await asyncio.sleep(2)
            assert served.memory() - before < 20_000
            transport.resume_reading()
            for process in processes:
                process.close()

    run(main())


def test_the_server_is_small_after_all_this(served: Served) -> None:
    for _ in range(3):
        command(served, "head -c 20000000 /dev/zero")
    assert served.memory() < MOST_MEMORY
