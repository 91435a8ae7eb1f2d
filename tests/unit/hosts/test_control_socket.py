"""The control socket refuses unknown requests, and no input ends the supervisor."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atlctl.remote.supervisor import control
from tests.contract.drive import execute
from tests.contract.world import eventually
from tests.support.proc import alive, wait_until
from tests.unit.hosts.local import Local


def answer(sock: socket.socket) -> dict[str, Any] | None:
    """The next message; None if the connection was closed."""
    data = b""
    while not data.endswith(b"\n"):
        try:
            chunk = sock.recv(1)
        except ConnectionResetError:
            return None
        if not chunk:
            return None
        data += chunk
    found: dict[str, Any] = json.loads(data)
    return found


def say(sock: socket.socket, data: bytes) -> None:
    """Send all data, or as much as the other side accepts before it closes."""
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return


@pytest.fixture
def running(local: Local) -> Iterator[Local]:
    """A job whose supervisor must be alive, working, and without new descriptors at the end of the test."""
    job = local.run()
    supervisor = local.supervisor()
    before = 0

    def settled() -> bool:
        """Whether its launcher's connection is closed."""
        nonlocal before
        last, before = before, len(os.listdir(f"/proc/{supervisor}/fd"))
        return last == before

    assert wait_until(settled, interval=0.03)
    yield local
    assert alive(supervisor)
    assert execute(local, job, ["echo", "well"]).stdout == b"well\n"
    # On a busy machine the launcher's connection may have been open at both looks, and counted.
    assert wait_until(lambda: len(os.listdir(f"/proc/{supervisor}/fd")) <= before), "descriptors were lost"
    assert len(local.inside(job)) == 1
    assert (local.folder() / "supervisor.log").read_bytes() == b""


GARBAGE = [
    b"\n",
    b"hello\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\x00\n",
    b"null\n",
    b"[]\n",
    b"3\n",
    b'"x"\n',
    b"{}\n",
    b'{"id": 1}\n',
    b'{"id": "1", "uid": "x", "fds": 0, "op": "stop"}\n',
    b'{"id": 1, "uid": "x", "fds": -1, "op": "ps"}\n',
    b'{"id": 1, "uid": "x", "fds": 1e999, "op": "ps"}\n',
    b'{"id": 1, "uid": "x", "fds": NaN, "op": "ps"}\n',
    b'{"id": 1, "uid": "x", "fds": 5, "op": "ps"}\n',
    b'{"id": true, "uid": "x", "fds": 0, "op": "ps"}\n',
    b"[" * 200_000 + b"\n",
    b'{"id": ' + b"9" * 100_000 + b"}\n",
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_closes_the_connection(running: Local, data: bytes) -> None:
    with running.connect() as sock:
        say(sock, data)
        assert answer(sock) is None


def test_a_message_without_end_is_not_kept(running: Local) -> None:
    with running.connect() as sock:
        chunk = b"x" * (1 << 20)
        for _ in range(control.MAX_MESSAGE // len(chunk) + 2):
            say(sock, chunk)
        assert answer(sock) is None


def test_half_a_message(running: Local) -> None:
    with running.connect() as sock:
        say(sock, b'{"id": 1, "uid"')


def message(local: Local, **changes: object) -> bytes:
    uid = local.load("job").uid
    whole = {
        "id": 1,
        "uid": uid,
        "fds": 0,
        "op": "exec",
        "worker": "worker-0",
        "argv": ["true"],
        "token": "t",
        "tty": False,
        "term": "",
    }
    return json.dumps(whole | changes).encode() + b"\n"


def test_another_jobs_request_is_refused(running: Local) -> None:
    with running.connect() as sock:
        say(sock, message(running, uid="another", op="stop", workers=["worker-0"], grace=0))
        assert answer(sock) == {"id": 1, "event": "wrong-job"}


def test_an_unknown_request_is_answered(running: Local) -> None:
    """Sent by a newer client: the connection stays open."""
    with running.connect() as sock:
        say(sock, message(running, op="from-the-future"))
        assert answer(sock) == {"id": 1, "event": "unknown-request"}
        say(sock, message(running, op="end", grace=1))
        assert answer(sock) == {"id": 1, "event": "ended", "proven": True}


def test_a_stop_of_unknown_workers(running: Local) -> None:
    with running.connect() as sock:
        say(sock, message(running, op="stop", workers=["worker-9", "../x"], grace=0))
        assert answer(sock) == {"id": 1, "event": "stop-done"}


@pytest.mark.parametrize(
    "changes",
    [{"fds": 1}, {"fds": 0}, {"fds": 3, "tty": True}, {"fds": 1, "tty": True}, {"fds": 3, "worker": "worker-7"}],
    ids=str,
)
def test_descriptors_that_do_not_fit(running: Local, changes: dict[str, object]) -> None:
    """Too few, too many, not a terminal: refused and closed."""
    count = changes["fds"]
    assert isinstance(count, int)
    with running.connect() as sock, open(os.devnull, "rb") as null:
        socket.send_fds(sock, [message(running, **changes)], [null.fileno()] * count)
        found = answer(sock)
    assert found is not None
    assert found["event"] == "failed"
    assert found["exit_code"] in (125, 255)


def test_a_number_that_is_in_use(running: Local) -> None:
    with running.connect() as sock, open(os.devnull, "r+b") as null:
        three = [null.fileno()] * 3
        socket.send_fds(sock, [message(running, fds=3, argv=["sleep", "4700"])], three)
        assert (answer(sock) or {})["event"] == "started"
        socket.send_fds(sock, [message(running, fds=3, argv=["sleep", "4701"])], three)
        assert (answer(sock) or {})["event"] == "failed"
    # The first command is still guarded by the connection.
    assert wait_until(lambda: len(running.inside(running.load("job"))) == 1)


def test_more_descriptors_than_are_taken(running: Local) -> None:
    with running.connect() as sock, open(os.devnull, "rb") as null:
        descriptors = array.array("i", [null.fileno()] * 253)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
        sock.sendmsg([message(running, fds=253)], ancillary)
        assert answer(sock) is None


def test_descriptors_without_a_message(running: Local) -> None:
    with running.connect() as sock, open(os.devnull, "rb") as null:
        for _ in range(5):
            socket.send_fds(sock, [b" "], [null.fileno()] * 20)


def test_many_connections(running: Local) -> None:
    socks = [running.connect() for _ in range(200)]
    for sock in socks:
        say(sock, message(running, op="ping"))
    assert all((answer(sock) or {})["event"] == "unknown-request" for sock in socks)
    for sock in socks:
        sock.close()


def test_a_client_that_does_not_listen(running: Local) -> None:
    """Its answers accumulate until it disconnects; others are served meanwhile."""
    with running.connect() as sock:
        data = message(running, op="unknown") * 200_000
        sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            sock.sendall(data)
        assert execute(running, running.load("job"), ["echo", "served"]).stdout == b"served\n"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["id", "fds", "op", "worker", "argv", "token", "tty", "term", "workers", "grace"]


@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6),
    st.sampled_from(["exec", "end", "stop"]),
)
def test_parsing_gives_a_message_or_nothing(changes: dict[str, Any], op: str) -> None:
    whole = {"id": 1, "uid": "u", "fds": 0, "op": op, "worker": "w", "argv": ["a"], "token": "t", "tty": False}
    whole |= {"term": "", "workers": ["w"], "grace": 1.0} | changes
    parsed = control.parse(json.dumps(whole).encode())
    if parsed is None:
        assert changes
        return
    assert type(parsed.number) is int
    assert type(parsed.descriptors) is int
    assert parsed.descriptors >= 0
    if isinstance(parsed.request, control.Exec):
        assert parsed.request.argv
        assert all(isinstance(word, str) for word in parsed.request.argv)
    elif parsed.request is not None:
        assert 0 <= parsed.request.grace < float("inf")


@given(st.binary(max_size=200))
def test_parsing_any_bytes(data: bytes) -> None:
    assert control.parse(data) is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), op=st.sampled_from(["exec", "end", "stop"]))
def test_any_message(local: Local, changes: dict[str, Any], op: str) -> None:
    """All messages go through one socket to the same supervisor."""
    if not local.folder().exists():
        local.run()
        eventually(local, "job", lambda job: job.ready == 1)
    pid = local.supervisor()
    with local.connect() as sock:
        say(sock, message(local, **({"op": op, "workers": [], "grace": 0.0} | changes)))
        # Answered or closed, and the next client is served.
        say(sock, message(local, id=77, op="ping"))
        while (found := answer(sock)) is not None and found["id"] != 77:
            continue
    assert alive(pid)
    with local.connect() as sock:
        say(sock, message(local, op="ping"))
        assert (answer(sock) or {})["event"] == "unknown-request"
