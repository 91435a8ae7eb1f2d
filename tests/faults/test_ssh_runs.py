"""Hosts that fail, hang or flood while commands run there: correct outcomes, and no leftover processes."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.faults import sshhosts
from tests.faults.sshhosts import Fleet, Serving, closes, outcomes
from tests.support import proc
from tests.support.needs import needs
from tests.support.pace import slowness
from tests.support.sshd import make_key

pytestmark = needs("sshd")

Process = asyncssh.SSHServerProcess[bytes]
SLEEP = "sleep 1000.75"


def lines_until(run: subprocess.Popen[bytes], enough: Callable[[list[dict[str, Any]]], bool]) -> bytes:
    """The output of `exec -o json` until `enough` accepts it."""
    assert run.stdout is not None
    read = b""
    found: list[dict[str, Any]] = []
    while not enough(found):
        line = run.stdout.readline()
        assert line, read
        read += line
        found.append(json.loads(line))
    return read


def said(found: list[dict[str, Any]], *names: str) -> bool:
    """Whether each of these hosts has printed something."""
    return {line["worker"] for line in found if line["type"] == "output"} >= set(names)


# Connections lost during a command


def test_a_connection_that_is_cut_in_the_middle_is_lost_and_its_command_ended(hosts: Fleet, serving: Serving) -> None:
    """One connection is reset, the server process of another is killed; a third continues."""
    proxy = hosts.proxy()
    hosts.host("reset", "127.0.0.1", proxy.port)
    hosts.host("killed", sshhosts.SPARE[0])
    hosts.host("good")
    with hosts.popen("-o", "json", "--", "sh", "-c", f"echo begun; exec {SLEEP}") as run:
        told = lines_until(run, lambda found: said(found, "reset", "killed", "good"))
        assert proc.wait_until(lambda: len(sleeping(serving)) == 3)
        proxy.reset()
        server = _server_of(next(one for one in sleeping(serving) if _address(one.pid) == sshhosts.SPARE[0]))
        os.kill(server, signal.SIGKILL)
        told += lines_until(run, lambda found: sum(line["type"] == "outcome" for line in found) == 2)
        # The guard ends commands without a client; the third continues.
        assert proc.wait_until(lambda: len(sleeping(serving)) == 1), sleeping(serving)
        proc.kill(sleeping(serving)[0])
        rest, stderr = run.communicate(timeout=100)
    found = outcomes(told + rest)
    for name in ("reset", "killed"):
        assert (found[name]["outcome"], found[name]["exit_code"]) == ("lost", None)
        assert found[name]["may_still_run"]
    assert (found["good"]["outcome"], found["good"]["signal"]) == ("exited", 9)
    assert run.returncode == 255
    assert b"lost: killed,reset (2): " in stderr
    assert b"may still run: killed,reset (2)\n" in stderr


def test_all_servers_are_killed_while_commands_run(hosts: Fleet, serving: Serving) -> None:
    names = [hosts.host(f"gpu{index}") for index in range(4)]
    try:
        with hosts.popen("-o", "json", "--", "sh", "-c", f"echo begun; exec {SLEEP}") as run:
            told = lines_until(run, lambda found: said(found, *names))
            serving.sshd.kill_all()
            rest, _ = run.communicate(timeout=100)
    finally:
        serving.sshd.kill_all()
        serving.sshd.start()
    found = outcomes(told + rest)
    assert [found[name]["outcome"] for name in names] == ["lost"] * 4
    assert run.returncode == 255
    assert proc.wait_until(lambda: not sleeping(serving))


def test_a_network_that_parts_without_a_word_is_a_timeout(hosts: Fleet, serving: Serving) -> None:
    """The remote command cannot be reached: this is reported, and it ends once the connection is known to be lost."""
    proxy = hosts.proxy()
    hosts.host("parted", "127.0.0.1", proxy.port)
    hosts.host("good")
    words = ("sh", "-c", f"echo begun; exec {SLEEP}")
    with hosts.popen("-o", "json", "--timeout", "3", "--", *words) as run:
        told = lines_until(run, lambda found: said(found, "parted"))
        proxy.stall()
        rest, stderr = run.communicate(timeout=100)
    found = outcomes(told + rest)
    assert found["parted"]["outcome"] == found["good"]["outcome"] == "timeout"
    assert found["parted"]["reason"] == "not done within 3 s"
    assert (found["parted"]["may_still_run"], found["good"]["may_still_run"]) == (True, False)
    assert run.returncode == 124
    assert b"may still run: parted (1)\n" in stderr
    proxy.reset()
    assert proc.wait_until(lambda: not sleeping(serving))


# Hosts that do not answer


async def never() -> None:
    await asyncio.get_running_loop().create_future()


class Hanging(sshhosts.Letting):
    """Accepts a session request but never opens it."""

    async def session_requested(self) -> bool:
        await never()
        return True


class Pondering(asyncssh.SSHServer):
    """Never answers the login."""

    async def begin_auth(self, username: str) -> bool:
        await never()
        return True


async def mute(process: Process) -> None:
    """Accepts the command and then sends nothing."""
    await never()


def test_hosts_that_do_not_answer_within_the_time_to_connect(hosts: Fleet) -> None:
    _unanswering(hosts)
    hosts.host("mute", "127.0.0.1", hosts.asyncssh(mute))
    hosts.host("hanging", "127.0.0.1", hosts.asyncssh(None, Hanging))
    hosts.host("good")
    found, code = hosts.outcomes("--connect-timeout", "5", "--", "true")
    summary, good = found.pop(""), found.pop("good")
    assert {name: one["outcome"] for name, one in found.items()} == dict.fromkeys(found, "timeout")
    waits = {name: one["reason"].removeprefix("not started within 5 s: ") for name, one in found.items()}
    assert waits == {
        "filtered": "no connection",
        "silent": "connected, but sshd has not answered",
        "pondering": "connected, but the login is not done",
        "mute": "the command may have been sent, but no answer came",
        "hanging": "the command may have been sent, but no answer came",
    }
    assert good["outcome"] == "exited"
    assert (code, summary["counts"]["timeout"], summary["counts"]["ok"]) == (124, 5, 1)
    # It has received the command.
    assert found["mute"]["may_still_run"]


def test_the_smoke_test_names_the_stage_of_hosts_that_do_not_answer(hosts: Fleet) -> None:
    _unanswering(hosts)
    hosts.host("mute", "127.0.0.1", hosts.asyncssh(mute))
    hosts.host("good")
    run = hosts.cli("smoke", "--hostfile", hosts.file(), "--net-only", "-o", "json")
    findings = json.loads(run.stdout)["data"]["findings"]
    stages = {one["culprit"]["worker"]: one["evidence"] for one in findings}
    # The second ones are those of SSH itself, which come first on a slow machine.
    expected = {
        "filtered": r": no connection$|: no connection within 15 s",
        "silent": r": connected, but sshd has not answered$|accepts connections, but sent nothing",
        "pondering": r": connected, but the login is not done$|the login was not done",
        "mute": r": the command may have been sent, but no answer came$|the command was sent, but not started",
    }
    assert stages.keys() == expected.keys()
    for name, words in expected.items():
        assert re.search(words, stages[name]), stages


def test_what_was_never_sent_cannot_still_run(hosts: Fleet) -> None:
    _unanswering(hosts)
    found, _ = hosts.outcomes("--connect-timeout", "1", "--", "true")
    del found[""]
    assert {name: one["may_still_run"] for name, one in found.items()} == dict.fromkeys(found, False)


def test_hosts_that_do_not_answer_are_not_waited_for_for_ever(hosts: Fleet, tmp_path: Path) -> None:
    """Without --connect-timeout, which bounds a copy's start, too. All at once: each takes half a minute."""
    _unanswering(hosts)
    hosts.host("mute", "127.0.0.1", hosts.asyncssh(mute))
    hosts.host("hanging", "127.0.0.1", hosts.asyncssh(None, Hanging))
    # Like a host that is overloaded for a moment: its login is tried again.
    proxy = hosts.proxy()
    proxy.stall()
    hosts.host("slow", "127.0.0.1", proxy.port)
    opened = tmp_path / "opened"
    opened.write_text("mute\nhanging\n")
    later = threading.Timer(16, proxy.resume)
    later.start()
    with hosts.popen("-o", "json", "--", "echo", "here") as run:
        words = ("--hostfile", str(opened), "--all", "-o", "json", ":/etc/hostname", str(tmp_path))
        copied = hosts.cli("cp", *words, timeout=100)
        stdout, stderr = run.communicate(timeout=100)
    later.join()
    found = outcomes(stdout)
    assert (run.returncode, copied.code) == (255, 255), (stderr, copied)
    overloaded = "sshd there is overloaded or stopped, or it is not an sshd"
    for name, reason in {
        "filtered": "no connection within 15 s; the host is down, or a firewall is dropping packets",
        "silent": f"accepts connections, but sent nothing, twice within 15 s; {overloaded}",
        "pondering": f"the login was not done, twice within 15 s; {overloaded}",
    }.items():
        assert (found[name]["outcome"], found[name]["exit_code"]) == ("failed_to_start", 255)
        assert re.fullmatch(rf"127\.0\.0\.1:\d+: {reason}", found[name]["reason"]), found[name]["reason"]
    assert (found["slow"]["outcome"], found["slow"]["exit_code"]) == ("exited", 0)
    assert (found["mute"]["outcome"], found["mute"]["may_still_run"]) == ("lost", True)
    assert found["mute"]["reason"].startswith("the command was sent, but not started within 30 s; ")
    assert (found["hanging"]["outcome"], found["hanging"]["may_still_run"]) == ("failed_to_start", False)
    assert found["hanging"]["reason"] == "hanging: cannot open a session: no answer within 15 s"
    assert {worker["worker"] for worker in json.loads(copied.stdout)["data"]["workers"]} == {"mute", "hanging"}


def _unanswering(hosts: Fleet) -> None:
    hosts.host("filtered", "127.0.0.1", hosts.filtered())
    hosts.host("silent", "127.0.0.1", hosts.silent())
    hosts.host("pondering", "127.0.0.1", hosts.asyncssh(None, Pondering))


# Floods


def test_a_flood_from_one_host_holds_up_no_other_and_no_memory(hosts: Fleet, serving: Serving) -> None:
    hosts.host("flood", sshhosts.SPARE[0])
    names = [hosts.host(f"gpu{index}") for index in range(3)]
    line = "7" * 2000
    flooding = f'case $SSH_CONNECTION in *" {sshhosts.SPARE[0]} "*) exec yes {line};; *) sleep 0.5; echo hi;; esac'
    with hosts.popen("-o", "json", "--", "sh", "-c", flooding, bufsize=-1) as run:
        # All other hosts end meanwhile.
        assert run.stdout is not None
        ended: set[str] = set()
        size = 0
        while len(ended) < 3 or size < 20_000_000:
            printed = run.stdout.readline()
            assert printed
            size += len(printed)
            if printed.startswith(b'{"type": "outcome"'):
                told = json.loads(printed)
                assert (told["worker"] in names, told["exit_code"]) == (True, 0)
                ended.add(told["worker"])
        assert _peak_megabytes(run.pid) < 200
        run.send_signal(signal.SIGINT)
        rest, _ = run.communicate(timeout=100)
    assert run.returncode == 130
    last = [json.loads(line) for line in rest.splitlines()[-2:]]
    assert (last[0]["worker"], last[0]["outcome"], last[0]["may_still_run"]) == ("flood", "cancelled", False)
    assert proc.wait_until(lambda: not serving.running(line))


# End of the client


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_the_end_of_the_client_ends_the_commands_on_64_hosts(
    hosts: Fleet, serving: Serving, number: signal.Signals
) -> None:
    for index in range(64):
        hosts.host(f"gpu{index:02d}")
    # It must not delay the end of the others.
    hosts.host("filtered", "127.0.0.1", hosts.filtered())
    with hosts.popen("--parallel", "65", "--", *SLEEP.split()) as run:
        assert proc.wait_until(lambda: len(sleeping(serving)) == 64, interval=0.2), len(sleeping(serving))
        run.send_signal(number)
        _, stderr = run.communicate(timeout=100)
        assert proc.wait_until(lambda: not sleeping(serving), interval=0.1), len(sleeping(serving))
    if number == signal.SIGINT:
        assert run.returncode == 130
        assert b"cancelled: filtered,gpu[00-63] (65): interrupted\n" in stderr, stderr
    else:
        assert run.returncode == -9


# Many hosts


def test_two_hundred_hosts_of_which_some_are_broken(hosts: Fleet, serving: Serving) -> None:
    """Each is reported once and correctly; hosts that were lost or given up have no processes left."""
    chosen = random.Random(7)
    other = make_key(hosts.home / "other")
    proxy = hosts.proxy()
    ways: dict[str, tuple[str, int | None, tuple[str, ...]]] = {
        "refused": ("127.0.0.1", hosts.refusing(), ()),
        "filtered": ("127.0.0.1", hosts.filtered(), ()),
        "reset": ("127.0.0.1", hosts.talking(sshhosts.reset), ()),
        "closed": ("127.0.0.1", hosts.talking(lambda _: None), ()),
        "pondering": ("127.0.0.1", hosts.asyncssh(None, Pondering), ()),
        "stranger": (sshhosts.ORDINARY, None, (f"IdentityFile {other}", "IdentitiesOnly yes")),
        "cut": ("127.0.0.1", proxy.port, ()),
        "closes": ("127.0.0.1", hosts.asyncssh(closes), ()),
        "nologin": (sshhosts.NOLOGIN, None, ()),
        "slow": (sshhosts.SPARE[0], None, ()),
    }
    true = {
        "refused": ("failed_to_start", 255),
        "filtered": ("failed_to_start", 255),
        "reset": ("failed_to_start", 255),
        "closed": ("failed_to_start", 255),
        "pondering": ("failed_to_start", 255),
        "stranger": ("failed_to_start", 255),
        "cut": ("lost", None),
        "closes": ("lost", None),
        "nologin": ("failed_to_start", 125),
        "slow": ("timeout", None),
    }
    names = [f"gpu{index:03d}" for index in range(200)]
    broken = dict(zip(chosen.sample(names, len(ways)), ways, strict=True))
    for name in names:
        address, port, lines = ways[broken[name]] if name in broken else (sshhosts.ORDINARY, None, ())
        hosts.host(name, address, port, *lines)
    proxy.cut_after(12_000)
    script = (
        f'case $SSH_CONNECTION in *" {sshhosts.SPARE[0]} "*) exec {SLEEP};; esac; '
        f"echo hi; head -c 40000 /dev/zero; exit 5"
    )
    deadline = ("--timeout", f"{math.ceil(15 * slowness())}")
    run = hosts.exec("-o", "json", "--connect-timeout", "40", *deadline, "--", "sh", "-c", script, timeout=250)
    found = outcomes(run.stdout)
    assert run.code == 255
    assert set(found) == {*names, ""}
    for name in names:
        expected = true[broken[name]] if name in broken else ("exited", 5)
        assert (found[name]["outcome"], found[name]["exit_code"]) == expected, (broken.get(name), found[name])
    counts = found[""]["counts"]
    assert counts == {"ok": 0, "failed": 190, "failed_to_start": 7, "timeout": 1, "lost": 2, "cancelled": 0}
    sizes: dict[str, int] = {}
    for line in map(json.loads, run.stdout.splitlines()):
        if line["type"] == "output":
            sizes[line["worker"]] = sizes.get(line["worker"], 0) + len(line["data"])
    assert all(sizes[name] == 40003 for name in names if name not in broken)
    assert proc.wait_until(lambda: not serving.running()), serving.running()


def sleeping(serving: Serving) -> list[proc.Process]:
    """The commands themselves, without the processes that wait for them."""
    return [process for process in serving.running(SLEEP) if process.command == SLEEP]


def _address(pid: int) -> str:
    """The server's address of the login that a process belongs to."""
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (connection,) = [word for word in environ if word.startswith(b"SSH_CONNECTION=")]
    return connection.split()[2].decode()


def _server_of(process: proc.Process) -> int:
    """The sshd process that serves a command."""
    while "sshd" not in process.command:
        above = proc.read(process.parent)
        assert above is not None
        process = above
    return process.pid


def _peak_megabytes(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024
