"""Servers and login shells that send wrong data: correct outcomes, and no control sequence on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import asyncssh
import pytest

from tests.faults import sshhosts
from tests.faults.sshhosts import HOSTILE, Fleet, Serving, closes, fleet, mark_of, outcomes, say
from tests.support import proc
from tests.support.needs import find_program, needs

pytestmark = needs("sshd")

Process = asyncssh.SSHServerProcess[bytes]


def silent_close(process: Process) -> None:
    process.close()


def absurd(process: Process) -> None:
    """An impossible exit status, of which asyncssh takes the last byte."""
    say(process, "S 1 1")
    _status(process, 2**31)


def absurd_after(process: Process) -> None:
    say(process, "S 1 1")
    say(process, "X 4")
    _status(process, 256)


def absurd_word(process: Process) -> None:
    """A message that the wrapper cannot have sent."""
    say(process, "S 1 1")
    say(process, f"X {10**40}")
    process.exit(3)


def signalled(process: Process) -> None:
    say(process, "S 1 1")
    process.exit_with_signal("TERM", msg=HOSTILE)


def failing(process: Process) -> None:
    process.stderr.write(HOSTILE.encode() + b"\xff\x00")
    process.exit(3)


def hostile(process: Process) -> None:
    for word in ("S -1 /../x", "S", "F 3333", "Z \x1b[0m", "S 1 1"):
        say(process, word)
    process.stdout.write(HOSTILE.encode() + b"\xff\xfe\x00")
    process.stderr.write(mark_of(process)[:-1] + b"? X 0\n" + HOSTILE.encode())
    say(process, "X 0")
    process.exit(0)


def long_error(process: Process) -> None:
    """Output before the wrapper's first message."""
    process.stderr.write(b"motd " * 60_000)
    process.exit(9)


#: Handler of a host -> outcome, exit code, signal, part of the reason.
LIES: dict[Callable[[Process], None], tuple[str, int | None, int | None, str]] = {
    closes: ("lost", None, None, "before the exit status arrived"),
    silent_close: ("lost", None, None, "before the exit status arrived"),
    absurd: ("lost", None, None, "exited with code 0 and did not report"),
    absurd_after: ("exited", 4, None, ""),
    absurd_word: ("lost", None, None, "the shell that waited for the command was ended"),
    signalled: ("lost", None, None, "exited with code 143 and did not report"),
    failing: ("failed_to_start", 125, None, "the worker's shell failed: "),
    hostile: ("exited", 0, None, ""),
    long_error: ("failed_to_start", 125, None, "the worker's shell failed: motd motd"),
}


def _status(process: Process, status: int) -> None:
    channel: Any = process.channel
    channel._send_request(b"exit-status", status.to_bytes(4, "big"))
    process.close()


@pytest.fixture(scope="module")
def lied(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The output of `exec` for all of them."""
    with fleet(serving, tmp_path_factory.mktemp("home")) as own:
        for handler in LIES:
            own.host(handler.__name__, "127.0.0.1", own.asyncssh(handler))
        own.host("leaving", "127.0.0.1", own.asyncssh(None, sshhosts.Leaving))
        own.host("vanishing", "127.0.0.1", own.asyncssh(None, sshhosts.Vanishing))
        own.host("good")
        run = own.exec("-o", "json", "--connect-timeout", "30", "--", "echo", "hi")
        few = own.file("failing", "hostile", "leaving")
        yield {
            "outcomes": outcomes(run.stdout),
            "lines": [json.loads(line) for line in run.stdout.splitlines()],
            "code": run.code,
            "pipe": own.cli("exec", "--hostfile", few, "--all", "--", "true").stderr,
            "screen": own.cli("exec", "--hostfile", few, "--all", "--", "true", tty=True).stdout,
            "ps": own.cli("ps", "--hostfile", few, tty=True, columns=300).stdout,
        }


@pytest.mark.parametrize("handler", LIES, ids=lambda handler: handler.__name__)
def test_a_server_that_lies(lied: dict[str, Any], handler: Callable[[Process], None]) -> None:
    found = lied["outcomes"][handler.__name__]
    outcome, code, number, reason = LIES[handler]
    assert (found["outcome"], found["exit_code"], found["signal"]) == (outcome, code, number), found
    assert reason in found["reason"]
    assert len(found["reason"]) < 400


def test_a_command_that_was_sent_and_not_answered_may_run(lied: dict[str, Any]) -> None:
    found = lied["outcomes"]["vanishing"]
    assert (found["outcome"], found["exit_code"], found["may_still_run"]) == ("lost", None, True)
    assert found["reason"] == "connection lost before the command's start was confirmed"


def test_beside_servers_that_lie(lied: dict[str, Any]) -> None:
    assert lied["code"] == 255
    assert lied["outcomes"]["good"]["exit_code"] == 0
    assert len(lied["outcomes"]) == len(LIES) + 4
    told = [line["data"] for line in lied["lines"] if line["type"] == "output" and line["worker"] == "good"]
    assert told == ["hi\n"]


@pytest.mark.parametrize("where", ["pipe", "screen", "ps"])
def test_what_hosts_say_forges_no_line_and_commands_no_terminal(lied: dict[str, Any], where: str) -> None:
    """On a pipe, output of commands is unchanged, so only atlctl's lines are checked there."""
    text = lied[where].decode(errors="replace")
    assert "pwn" in text
    if where == "pipe":
        text = "".join(line + "\n" for line in text.split("\n") if not line.startswith("hostile: "))
    for line in text.replace("\r\n", "\n").split("\n"):
        assert not line.startswith("ok: all"), line
    for bad in ("\x1b]", "\x07", "\u202e", "\x9b", "\r\u202e"):
        assert bad not in text


# Login shells


def test_a_login_shell_that_greets_or_is_no_sh(hosts: Fleet, serving: Serving) -> None:
    names = [hosts.host("greeting", sshhosts.GREETING)]
    shells = {"fish": sshhosts.FISH, "tcsh": sshhosts.CSH, "rbash": sshhosts.RESTRICTED}
    names += [hosts.host(name, address) for name, address in shells.items() if find_program(name)]
    words = (
        "a b",
        "$HOME",
        "`id`",
        "'",
        '"',
        "*",
        "\n",
        "",
        "~",
        "{a,b}",
        "(true)",
        "&",
        "?",
        "中",
        "!1",
        "^",
        "\\",
        "\\\\",
        "a\\'b!",
        "%self",
    )
    run = hosts.exec("-o", "json", "--", "sh", "-c", 'printf "%s|" "$@"; echo; exit 3', "sh", *words)
    found = outcomes(run.stdout)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    for name in names:
        assert (found[name]["outcome"], found[name]["exit_code"], found[name]["guarded"]) == ("exited", 3, True)
        data = "".join(line["data"] for line in lines if line.get("worker") == name and line.get("stream") == "stdout")
        greeted = "Welcome\nL 99\n{}\n" if name == "greeting" else ""
        assert data == greeted + "".join(word + "|" for word in words) + "\n"
    # A greeting is not parsed as part of a host's answer.
    listed = json.loads(hosts.cli("ps", "--hostfile", hosts.file(), "-o", "json").stdout)["data"]["workers"]
    assert [worker["state"] for worker in listed] == ["Running"] * len(names)
    assert all(worker["usage"]["load"] != 99 for worker in listed), listed
    started = hosts.cli("ssh", "run", "--hostfile", hosts.file(), "--", "sh", "-c", "echo out; exit 4")
    assert started.code == 4, started
    assert b"out\n" in started.stdout
    assert proc.wait_until(lambda: not serving.running())


def test_a_startup_file_that_reads_input(hosts: Fleet) -> None:
    """Like some sites' `.bashrc`: it gets a line or two. If it reads to the end, nothing is started, not even later."""
    hosts.host("reading", sshhosts.READING)
    run = hosts.exec("--", "sh", "-c", "cat; echo out")
    assert (run.stdout, run.code) == (b"out\n", 0)
    hosts.host("eating", sshhosts.EATING)
    touched = hosts.home / "touched"
    words = ("--hostfile", hosts.file("eating"), "--all", "-o", "json", "--connect-timeout", "1", "--")
    run = hosts.cli("exec", *words, "touch", str(touched))
    eating = outcomes(run.stdout)["eating"]
    assert (eating["outcome"], eating["may_still_run"], run.code) == ("timeout", True, 124)
    assert proc.wait_until(lambda: not hosts.serving.running())
    assert not touched.exists()
