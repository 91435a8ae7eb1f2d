"""Hosts that cannot be reached or refuse the login: each is reported with the reason, and the suggested fix works."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import asyncssh
import pytest

from tests.faults import sshhosts
from tests.faults.sshhosts import HOSTILE, Fleet, Serving, fleet
from tests.support.needs import needs
from tests.support.sshd import make_key

pytestmark = needs("sshd")


class Refusing(sshhosts.Letting):
    def session_requested(self) -> bool:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, HOSTILE)


#: Host -> its exit code, and a pattern for the reason: the error, and the fix if there is one.
REASONS = {
    "refused": (255, r"127\.0\.0\.1:\d+: connection refused"),
    "reset": (255, r"127\.0\.0\.1:\d+: connection reset by peer"),
    "closed": (255, r"127\.0\.0\.1:\d+: .*(?i:connection)"),
    "full": (255, r"127\.0\.0\.1:\d+: .*(?i:connection)"),
    "http": (255, r"127\.0\.0\.1:\d+: "),
    "endless": (255, r"127\.0\.0\.1:\d+: "),
    "ancient": (255, r"127\.0\.0\.1:\d+: .*version"),
    "nowhere": (255, r"cannot resolve nonexistent\.invalid: .*; check its name"),
    "unknown": (255, r"the key of \[\S+\]:\d+ is not known \(ssh-ed25519 SHA256:\S+\); compare the fingerprint"),
    "changed": (255, r"the key of \[\S+\]:\d+ has changed \(ssh-ed25519 SHA256:\S+\): .*: ssh-keygen -f \S+ -R \S+"),
    "revoked": (255, r"the key of \[\S+\]:\d+ was revoked \(ssh-ed25519 SHA256:\S+\): .*; ask the host's owner"),
    "stranger": (255, r"stranger refused \w+: no key was accepted.*; try: ssh \S+@stranger true"),
    "nobody": (255, r"nobody refused no-such-user: no key was accepted"),
    "locked": (
        255,
        r"no key was accepted .*/locked is encrypted, and its passphrase was not given; ssh-add it to an agent",
    ),
    "open": (255, r"no key was accepted .*other users can read \S+/shared: chmod 600 \S+/shared"),
    "torn": (255, r"no key was accepted .*/torn cannot be read: "),
    "nologin": (125, r"the worker's shell failed: This account is currently not available\."),
    "false": (125, r"the worker's shell failed: code 1"),
    "refuses": (255, r"refuses: cannot open a session: "),
    "leaves": (255, r"127\.0\.0\.1:\d+: "),
}


def bad_hosts(hosts: Fleet) -> None:
    """Add the hosts of REASONS."""
    here, serving = "127.0.0.1", hosts.serving
    hosts.host("refused", here, hosts.refusing())
    hosts.host("reset", here, hosts.talking(sshhosts.reset))
    hosts.host("closed", here, hosts.talking(lambda _: None))
    hosts.host("full", here, hosts.talking(lambda one: one.sendall(b"Exceeded MaxStartups\r\n")))
    hosts.host("http", here, hosts.talking(lambda one: one.sendall(f"HTTP/1.1 400 {HOSTILE}\r\n\r\n".encode())))
    hosts.host("endless", here, hosts.talking(_endless))
    hosts.host("ancient", here, hosts.talking(lambda one: one.sendall(f"SSH-1.5-{HOSTILE}\r\n".encode())))
    hosts.host("nowhere", "nonexistent.invalid", known=False)
    other = make_key(hosts.home / "other")
    other_key = " ".join(other.with_suffix(".pub").read_text().split()[:2])
    hosts.host("unknown", sshhosts.SPARE[0], known=False)
    hosts.host("changed", sshhosts.SPARE[1], known=False)
    hosts.trust(sshhosts.SPARE[1], serving.sshd.port, other_key)
    hosts.host("revoked", sshhosts.SPARE[2], known=False)
    hosts.trust(sshhosts.SPARE[2], serving.sshd.port, hosts.host_key, "@revoked ")
    only = "IdentitiesOnly yes"
    hosts.host("stranger", sshhosts.ORDINARY, None, f"IdentityFile {other}", only)
    hosts.host("nobody", sshhosts.ORDINARY, None, "User no-such-user")
    locked, shared, torn = (hosts.home / name for name in ("locked", "shared", "torn"))
    for path in (locked, shared):
        shutil.copy(serving.key, path)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", locked], check=True)
    shared.chmod(0o640)
    torn.write_bytes(serving.key.read_bytes()[:100])
    torn.chmod(0o600)
    for name, path in (("locked", locked), ("open", shared), ("torn", torn)):
        hosts.host(name, sshhosts.ORDINARY, None, f"IdentityFile {path}", only)
    hosts.host("nologin", sshhosts.NOLOGIN)
    hosts.host("false", sshhosts.FALSE)
    hosts.host("refuses", here, hosts.asyncssh(None, Refusing))
    hosts.host("leaves", here, hosts.asyncssh(None, sshhosts.Leaving))
    hosts.host("good")


def _endless(one: socket.socket) -> None:
    while True:
        one.sendall(b"no version\r\n" * 1000)


@pytest.fixture(scope="module")
def told(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The results of `exec` and `ps` for all of them."""
    with fleet(serving, tmp_path_factory.mktemp("home")) as own:
        bad_hosts(own)
        outcomes, code = own.outcomes("--", "sh", "-c", "exit 7")
        listed = own.cli("ps", "--hostfile", own.file(), "-o", "json")
        yield {
            "outcomes": outcomes,
            "code": code,
            "ps": (json.loads(listed.stdout), listed.code, listed.stderr),
        }


@pytest.mark.parametrize("name", REASONS)
def test_a_host_that_was_not_reached_is_told_with_its_reason(told: dict[str, Any], name: str) -> None:
    found = told["outcomes"][name]
    code, reason = REASONS[name]
    assert (found["outcome"], found["exit_code"]) == ("failed_to_start", code)
    assert re.search(reason, found["reason"], re.DOTALL), found["reason"]
    assert not found["may_still_run"]


def test_only_the_keys_of_a_host_are_named_with_it(told: dict[str, Any]) -> None:
    assert "locked" not in told["outcomes"]["torn"]["reason"]
    assert "torn" not in told["outcomes"]["locked"]["reason"].partition(" let ")[2].replace("@torn", "")


@pytest.mark.parametrize("name", ["refused", "closed", "full", "http"])
def test_a_connection_that_nobody_takes_is_told_with_what_may_help(told: dict[str, Any], name: str) -> None:
    assert "; " in told["outcomes"][name]["reason"]


def test_every_other_host_is_served_and_all_are_counted(told: dict[str, Any]) -> None:
    good = told["outcomes"]["good"]
    assert (good["outcome"], good["exit_code"], good["guarded"]) == ("exited", 7, True)
    assert set(told["outcomes"]) == {*REASONS, "good", ""}
    summary = told["outcomes"][""]
    assert (summary["status"], summary["exit_code"], told["code"]) == ("error", 255, 255)
    assert summary["counts"]["failed_to_start"] == len(REASONS)
    assert summary["counts"]["failed"] == 1


def test_ps_lists_all_of_them_with_the_same_reasons(told: dict[str, Any]) -> None:
    document, code, stderr = told["ps"]
    assert code == 0, stderr
    listed = {worker["name"]: worker for worker in document["data"]["workers"]}
    assert set(listed) == {*REASONS, "good"}
    assert listed["good"]["state"] == "Running"
    for name in REASONS:
        assert listed[name]["state"] == "Unknown", name
        assert re.search(REASONS[name][1].partition("; ")[0], listed[name]["reason"], re.DOTALL), name


def test_a_job_is_started_on_all_hosts_or_on_none(hosts: Fleet) -> None:
    hosts.host("good")
    hosts.host("refused", "127.0.0.1", hosts.refusing())
    start = hosts.cli("ssh", "run", "--hostfile", hosts.file(), "--", "sleep", "1000.5", timeout=25)
    assert start.code == 255, start
    (error,) = [line for line in start.stderr.decode().splitlines() if line.startswith("error: ")]
    assert re.match(r"error: refused: 127\.0\.0\.1:\d+: connection refused", error)
    assert not hosts.serving.running("sleep 1000.5")
    assert json.loads(hosts.cli("jobs", "-o", "json").stdout)["data"]["jobs"] == []


# Fixes


def test_the_command_that_is_named_for_an_unknown_key_cures_it(hosts: Fleet) -> None:
    hosts.host("gpu1", sshhosts.SPARE[0], known=False)
    _cured(hosts, "is not known")


def test_the_configuration_of_ssh_may_take_new_hosts(hosts: Fleet) -> None:
    """`accept-new` stores the key of a new host, and rejects a changed one; `no` and `off` are ignored."""
    new, no, off, changed = sshhosts.SPARE[:4]
    hosts.host("new", new, None, "StrictHostKeyChecking accept-new", known=False)
    hosts.host("no", no, None, "StrictHostKeyChecking no", known=False)
    hosts.host("off", off, None, "StrictHostKeyChecking=off", known=False)
    hosts.host("changed", changed, None, "StrictHostKeyChecking accept-new", known=False)
    other = make_key(hosts.home / "other").with_suffix(".pub").read_text()
    hosts.trust(changed, hosts.serving.sshd.port, " ".join(other.split()[:2]))
    checked = json.loads(hosts.cli("doctor", "--hostfile", hosts.file("new"), "-o", "json").stdout)
    assert new not in hosts.known.read_text(), checked
    found, _ = hosts.outcomes("--", "true")
    assert {name: found[name]["outcome"] for name in ("new", "no", "off", "changed")} == {
        "new": "exited", "no": "failed_to_start", "off": "failed_to_start", "changed": "failed_to_start",
    }  # fmt: skip
    assert f"[{new}]:{hosts.serving.sshd.port} {hosts.host_key}\n" in hosts.known.read_text()
    assert no not in hosts.known.read_text()


def test_the_commands_that_are_named_for_a_changed_key_cure_it(hosts: Fleet) -> None:
    hosts.host("gpu1", sshhosts.SPARE[0], known=False)
    other = make_key(hosts.home / "other").with_suffix(".pub").read_text()
    hosts.trust(sshhosts.SPARE[0], hosts.serving.sshd.port, " ".join(other.split()[:2]))
    _cured(hosts, "has changed", "is not known")


def test_a_changed_key_in_another_file_of_known_hosts(hosts: Fleet) -> None:
    """The suggested command names the file with the key."""
    other = make_key(hosts.home / "other").with_suffix(".pub").read_text()
    second = hosts.ssh / "more hosts"
    second.write_text(f"[{sshhosts.SPARE[0]}]:{hosts.serving.sshd.port} {' '.join(other.split()[:2])}\n")
    files = f'UserKnownHostsFile {hosts.known} "{second}"'
    hosts.host("gpu1", sshhosts.SPARE[0], None, files, known=False)
    _cured(hosts, "has changed", "is not known")


def test_a_host_with_an_alias_for_its_key(hosts: Fleet) -> None:
    """The alias cannot be used to fetch a key, and is in the file without a port."""
    hosts.host("gpu1", sshhosts.SPARE[0], None, "HostKeyAlias fleet", known=False)
    _cured(hosts, "is not known")
    assert hosts.known.read_text().startswith("fleet ssh-ed25519 ")


def test_a_key_of_another_kind_is_a_changed_key(hosts: Fleet) -> None:
    """The client does not request only keys of the known type."""
    hosts.host("gpu1", sshhosts.SPARE[0], known=False)
    other = make_key(hosts.home / "other", "ecdsa").with_suffix(".pub").read_text()
    hosts.trust(sshhosts.SPARE[0], hosts.serving.sshd.port, " ".join(other.split()[:2]))
    _cured(hosts, "has changed", "is not known")


def test_a_key_that_was_revoked_for_a_port_is_not_trusted_for_the_host(hosts: Fleet) -> None:
    """The entry for the host, which covers all its ports, does not override it."""
    hosts.host("gpu1", sshhosts.SPARE[0], known=False)
    hosts.trust(sshhosts.SPARE[0], hosts.serving.sshd.port, hosts.host_key, "@revoked ")
    with hosts.known.open("a") as known:
        known.write(f"{sshhosts.SPARE[0]} {hosts.host_key}\n")
    outcomes, code = hosts.outcomes("--", "true")
    assert code == 255, outcomes
    assert "was revoked" in outcomes["gpu1"]["reason"]


def test_a_key_that_others_may_read(hosts: Fleet) -> None:
    hosts.host("gpu1")
    (hosts.ssh / "id_ed25519").chmod(0o644)
    outcomes, _ = hosts.outcomes("--", "true")
    cure = re.search(r"other users can read (\S+): (chmod 600) ", outcomes["gpu1"]["reason"])
    assert cure is not None, outcomes
    subprocess.run([*cure[2].split(), cure[1]], check=True)
    assert hosts.outcomes("--", "true")[1] == 0


def test_a_file_of_known_hosts_that_cannot_be_read(hosts: Fleet) -> None:
    hosts.host("gpu1")
    hosts.known.write_text("@maybe gpu1 x y\n")
    outcomes, code = hosts.outcomes("--", "true")
    assert code == 255
    assert f"{hosts.known} cannot be read: " in outcomes["gpu1"]["reason"]
    assert "fix the line, or remove it" in outcomes["gpu1"]["reason"]


@pytest.mark.parametrize(
    "line", ["-oProxyCommand=touch${IFS}owned", "gpu1;touch", "$(touch owned)", "-l@gpu1", "\x1b[31m"]
)
def test_a_name_that_could_be_more_than_a_name(hosts: Fleet, line: str) -> None:
    run = hosts.cli("exec", "--hostfile", hosts.file("gpu1", line), "--all", "--", "true")
    assert run.code == 2
    assert run.stderr.startswith(f"error: {hosts.home / 'hosts'}, line 2: ".encode())
    assert b"\x1b" not in run.stderr


def _cured(hosts: Fleet, *problems: str) -> None:
    """Each of these problems occurs in turn, and the suggested command fixes it."""
    for problem in problems:
        outcomes, code = hosts.outcomes("--", "true")
        reason = outcomes["gpu1"]["reason"]
        assert (code, problem in reason) == (255, True), reason
        # The command follows the last of these phrases.
        command = re.split(r"then: |confirms the change: ", reason)[-1]
        assert command != reason
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 0, (command, done.stderr)
    assert hosts.outcomes("--", "true")[1] == 0
