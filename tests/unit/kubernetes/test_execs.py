"""The channel protocol: server messages never raise, and never count as a success by mistake."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.base import Exited, FailedToStart, Lost, Output, TerminalSize
from atlctl.backends.guarded.execution import Ended
from atlctl.backends.kubernetes import execs
from atlctl.backends.kubernetes.execs import decode, outcome
from tests.support.recordings import load, needs_recordings

NOT_STARTED = (
    'Internal error occurred: error executing command in container: failed to exec in container: failed to start \
exec "0a": OCI runtime exec failed: exec failed: unable to start container process: exec: "tool": '
)


def failure(message: str, reason: str = "InternalError", causes: object = None) -> bytes:
    details = {} if causes is None else {"details": {"causes": causes}}
    return json.dumps({"status": "Failure", "message": message, "reason": reason, **details}).encode()


def exit_code(text: object) -> bytes:
    return failure("command terminated", "NonZeroExitCode", [{"reason": "ExitCode", "message": text}])


def test_output_keeps_its_bytes() -> None:
    assert decode(b"\1out\xff\0") == Output("stdout", b"out\xff\0")
    assert decode(b"\2err") == Output("stderr", b"err")


@pytest.mark.parametrize("message", [b"", b"\1", b"\2", b"\3", b"\0in", b"\4{}", b"\5x", b"\xff\0", b"1text"])
def test_what_says_nothing(message: bytes) -> None:
    assert decode(message) is None


@pytest.mark.parametrize("code", [1, 7, 126, 127, 137, 255])
def test_exit_codes_are_as_given(code: int) -> None:
    assert decode(b"\3" + exit_code(str(code))) == Ended(Exited(exit_code=code))


def test_success() -> None:
    assert outcome(b'{"metadata":{},"status":"Success"}') == Exited(exit_code=0)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("executable file not found in $PATH", 127),
        ("stat /bin/tool: no such file or directory", 127),
        ("permission denied", 126),
        ("exec format error", 126),
        ("something new", 125),
    ],
)
def test_failures_to_start(words: str, code: int) -> None:
    found = outcome(failure(NOT_STARTED + words, causes=[{"message": NOT_STARTED + words}]))
    assert found == FailedToStart(code, f'"tool": {words}')


@pytest.mark.parametrize(
    "status",
    [
        b"",
        b"command terminated with exit code 0",
        b"{",
        b"[]",
        b"null",
        b"0",
        b'"Success"',
        b"\xff\xfe",
        b"[" * 20_000,
        b'{"status": "success"}',
        b'{"status": true}',
        b'{"status": "Success"}' + b" " * 70_000,
        exit_code("0"),
        exit_code("-1"),
        exit_code("256"),
        exit_code("1e2"),
        exit_code("٣"),
        exit_code("7" * 5000),
        exit_code(7),
        exit_code(None),
        failure("x", "NonZeroExitCode"),
        failure("x", "NonZeroExitCode", {"ExitCode": 0}),
        failure("x", "NonZeroExitCode", [None, 3, {}]),
        failure("container is gone, connection reset by peer"),
        failure("permission denied"),
        b'{"status": "Failure"}',
        b'{"status": "Failure", "message": 5, "details": 5}',
    ],
)
def test_what_cannot_be_read_is_lost(status: bytes) -> None:
    found = outcome(status)
    assert isinstance(found, Lost)
    assert 0 < len(found.reason) < 700


@given(st.binary(max_size=300))
def test_any_bytes(message: bytes) -> None:
    said = decode(message)
    if isinstance(said, Ended) and said.outcome == Exited(exit_code=0):
        assert json.loads(message[1:])["status"] == "Success"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["Success", "Failure", "ExitCode"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "reason", "details", "causes", "message", "code"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json(found: object) -> None:
    said = outcome(json.dumps(found).encode())
    if said == Exited(exit_code=0):
        assert isinstance(found, dict)
        assert found["status"] == "Success"


@given(st.binary(max_size=200_000))
def test_input_is_cut_and_whole(data: bytes) -> None:
    messages = list(execs.stdin_messages(data))
    assert b"".join(message[1:] for message in messages) == data
    assert all(message[0] == 0 and 1 < len(message) <= execs.CHUNK + 1 for message in messages)


def test_the_end_of_input_and_sizes() -> None:
    assert execs.close_stdin(execs.V5) == b"\xff\0"
    assert execs.close_stdin(execs.V4) is None
    assert execs.close_stdin(None) is None
    message = execs.resize(TerminalSize(columns=132, rows=43))
    assert (message[0], json.loads(message[1:])) == (4, {"Width": 132, "Height": 43})


# Recorded exchanges

EXPECTED: dict[str, Exited | type] = {
    "exit-7.v4": Exited(exit_code=7),
    "exit-7.v5": Exited(exit_code=7),
    "exit-255": Exited(exit_code=255),
    "success.v4": Exited(exit_code=0),
    "success.v5": Exited(exit_code=0),
    "killed-by-signal.v5": Exited(exit_code=137),
    "missing-binary.v4": FailedToStart,
    "missing-binary.v5": FailedToStart,
    "not-executable": FailedToStart,
    "no-command": FailedToStart,
    "no-shell": FailedToStart,
    "pod-deleted.grace": Exited(exit_code=137),
    "proto-v1": Lost,
}


@needs_recordings
@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_ends(name: str) -> None:
    incoming = [frame for frame in load(f"exec/{name}")["frames"] if frame["dir"] == "in" and frame["opcode"] == 2]
    said = [decode(base64.b64decode(frame["base64"])) for frame in incoming]
    ends = [one.outcome for one in said if isinstance(one, Ended)]
    wanted = EXPECTED[name]
    assert len(ends) == 1
    assert isinstance(ends[0], wanted) if isinstance(wanted, type) else ends == [wanted]
    if name == "no-command":
        assert ends[0] == FailedToStart(125, "args must not be empty")


def test_a_container_that_could_not_be_entered_is_told_in_plain_words() -> None:
    layers = "failed to exec in container: failed to start exec: OCI runtime exec failed: exec failed: "
    text = f"Internal error occurred: {layers}unable to start container process: error executing setns process: exit 1"
    status = json.dumps({"status": "Failure", "reason": "InternalError", "code": 500, "message": text})
    found = outcome(status.encode())
    assert isinstance(found, FailedToStart)
    assert found.exit_code == 125
    assert found.reason.startswith("cannot enter the container: ")
    assert "setns" not in found.reason
