"""`atlctl doctor` on hosts: each failure is reported with a fix, in a bounded time, and no file is written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlctl.backends.hosts import checkup
from tests.faults import sshhosts
from tests.faults.sshhosts import HOSTILE, Fleet, Serving, fleet
from tests.faults.test_ssh_faults import REASONS, bad_hosts
from tests.integration.sshjobs import tools
from tests.support.cli import Result
from tests.support.needs import needs
from tests.support.pace import within

pytestmark = needs("sshd")

#: The status reported for the hosts of REASONS. All others: other.
STATUS = {
    "refused": "refused",
    "nowhere": "name",
    "unknown": "key-unknown",
    "changed": "key-changed",
    "revoked": "key-revoked",
    **dict.fromkeys(("stranger", "nobody", "locked", "open", "torn"), "login"),
    **dict.fromkeys(("nologin", "false", "refuses"), "shell"),
}
_BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2028\u2029]")


def snapshot(folder: Path) -> dict[str, str]:
    """A hash of every file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() + oct(path.stat().st_mode) for path in files}


def doctor(hosts: Fleet, *words: str, **options: Any) -> tuple[Any, Result]:
    run = hosts.cli("doctor", "--hostfile", hosts.file(), "-o", "json", *words, **options)
    assert run.stderr == b""
    return json.loads(run.stdout)["data"], run


def checks(data: Any, name: str) -> list[tuple[str, str, str | None]]:
    return [(one["status"], one["text"], one["fix"]) for one in data["checks"] if one["name"] == name]


@pytest.fixture(scope="module")
def told(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The output of `doctor` for all bad hosts, as JSON and on a pipe, and whether files changed."""
    with fleet(serving, tmp_path_factory.mktemp("home")) as own:
        bad_hosts(own)
        hostfile = own.file()
        before = snapshot(own.home)
        data, run = doctor(own)
        shown = own.cli("doctor", "--hostfile", hostfile)
        yield {"data": data, "run": run, "shown": shown, "same": snapshot(own.home) == before, "home": own.home}


@pytest.mark.parametrize("name", [*REASONS, "good"])
def test_every_host_is_told_once_with_its_kind_and_reason(told: dict[str, Any], name: str) -> None:
    (found,) = [host for host in told["data"]["ssh"]["hosts"] if host["name"] == name]
    if name == "good":
        assert (found["status"], found["reason"], found["fix"]) == ("ok", None, None)
        assert re.fullmatch(r"3\.\d+\.\d+", found["python"])
        low, high = found["clock"]
        assert low <= 0 <= high
        return
    assert found["status"] == STATUS.get(name, "other"), found
    whole = f"{found['reason']}; {found['fix']}"
    if found["status"] == "shell":
        assert found["reason"].startswith("the login works, but no command can run: ")
    else:
        assert re.search(REASONS[name][1], whole, re.DOTALL), whole


def test_good_ones_and_bad_ones_are_told_apart(told: dict[str, Any]) -> None:
    found = checks(told["data"], "ssh.login")
    assert found[0][:2] == ("ok", "good (1) ok")
    assert {status for status, _, _ in found[1:]} == {"fail"}
    # Five hosts that accepted no key are one line.
    (refused,) = [text for _, text, _ in found if "no key was accepted" in text]
    assert refused == "locked,nobody,open,stranger,torn (5): no key was accepted"
    assert told["run"].code == told["shown"].code == 1


def test_the_files_of_keys_that_are_of_no_use_are_told_with_the_cure(told: dict[str, Any]) -> None:
    home = told["home"]
    found = {text: fix for status, text, fix in checks(told["data"], "ssh.keys") if status == "warn"}
    assert found[f"{home}/shared is not used: other users can read it"] == f"chmod 600 {home}/shared"
    (encrypted,) = [fix for text, fix in found.items() if "locked is encrypted" in text]
    assert encrypted == f'eval "$(ssh-agent)" && ssh-add {home}/locked'
    assert any("torn cannot be read" in text for text in found)
    statuses = {Path(key["path"]).name: key["status"] for key in told["data"]["ssh"]["keys"]}
    expected = {"id_ed25519": "read", "other": "read", "locked": "encrypted", "shared": "open", "torn": "unreadable"}
    assert statuses == expected


def test_nothing_is_written_down(told: dict[str, Any]) -> None:
    assert told["same"]


def test_what_hosts_say_is_harmless_on_a_screen_and_whole_in_the_document(told: dict[str, Any]) -> None:
    assert not _BAD.search(told["shown"].stdout.decode())
    reasons = "".join(host["reason"] or "" for host in told["data"]["ssh"]["hosts"])
    assert HOSTILE[:8] in reasons


def test_only_hosts_that_let_us_in_are_asked_for_torch(told: dict[str, Any]) -> None:
    assert [one["worker"] for one in told["data"]["torch"]] == ["good"]


def test_no_new_key_is_noted_though_other_commands_would(hosts: Fleet) -> None:
    folder = hosts.home / ".config/atlctl"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('[ssh]\nhost_keys = "accept-new"\n')
    hosts.host("gpu1", sshhosts.SPARE[0], known=False)
    before = hosts.known.read_text()
    data, run = doctor(hosts)
    ((status, text, fix),) = checks(data, "ssh.login")
    assert (status, run.code) == ("skipped", 0)
    assert "is not known" in text
    assert "accept-new" in str(fix)
    assert hosts.known.read_text() == before
    hosts.known.unlink()
    assert checks(doctor(hosts)[0], "ssh.known-hosts")[0][0] == "skipped"
    hosts.known.write_text(before)
    # Other commands do.
    assert hosts.cli("exec", "--hostfile", hosts.file(), "--all", "true").code == 0
    assert hosts.known.read_text() != before
    assert checks(doctor(hosts)[0], "ssh.login")[0][0] == "ok"


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("silent", "connected, but sshd has not answered"),
        ("filtered", "no connection"),
        ("stalled", "connected, but sshd has not answered"),
    ],
)
def test_hosts_that_say_nothing_cost_no_more_than_was_asked_for(hosts: Fleet, kind: str, stage: str) -> None:
    for index in range(3):
        if kind == "stalled":
            proxy = hosts.proxy()
            proxy.stall()
            hosts.host(f"gpu{index}", "127.0.0.1", proxy.port)
        else:
            hosts.host(f"gpu{index}", "127.0.0.1", hosts.silent() if kind == "silent" else hosts.filtered())
    begun = time.monotonic()
    data, run = doctor(hosts, "--connect-timeout", "1")
    assert within(time.monotonic() - begun, 8)
    ((status, text, fix),) = checks(data, "ssh.login")
    assert (status, text, run.code) == ("fail", f"gpu[0-2] (3): no answer within 1 s: {stage}", 1)
    assert "ssh -v HOST true" in str(fix)
    # No remaining host could know a job.
    assert checks(data, "job")[0][0] == "skipped"


def test_a_command_that_never_ends_there_is_given_up(hosts: Fleet) -> None:
    async def never(process: Any) -> None:
        sshhosts.say(process, "S 1 1")
        await process.stdin.read()

    hosts.host("gpu1", "127.0.0.1", hosts.asyncssh(never))
    data, run = doctor(hosts, "--connect-timeout", "1")
    ((status, text, _),) = checks(data, "ssh.login")
    assert (status, run.code) == ("fail", 1)
    assert "a command did not end within 1 s" in text


def test_an_agent(hosts: Fleet, tmp_path: Path) -> None:
    hosts.host("gpu1")
    key = hosts.ssh / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True)
    env = {**hosts.env, "SSH_AUTH_SOCK": str(tmp_path / "agent")}
    data, run = doctor(hosts, env=env)
    assert checks(data, "ssh.agent")[0][0] == "warn"
    assert (checks(data, "ssh.login")[0][0], run.code) == ("fail", 1)
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 100
        while not (tmp_path / "agent").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        data, _ = doctor(hosts, env=env)
        assert checks(data, "ssh.agent")[0] == ("warn", f"the agent at {tmp_path}/agent holds no key", "ssh-add")
        assert f"ssh-add {key}" in {fix for _, _, fix in checks(data, "ssh.keys")}
        shutil.copy(hosts.serving.key, tmp_path / "key")
        given = {name: value for name, value in env.items() if value is not None}
        subprocess.run(["ssh-add", "-q", tmp_path / "key"], env=given, check=True)
        shutil.copy(hosts.serving.key.with_suffix(".pub"), key.with_suffix(".pub"))
        data, run = doctor(hosts, env=env)
        assert checks(data, "ssh.agent") == [("ok", "keys: 1", None)]
        assert checks(data, "ssh.keys") == [("ok", f"{key} (ssh-ed25519, in the agent)", None)]
        assert (checks(data, "ssh.login")[0][0], run.code) == ("ok", 0)
    finally:
        agent.terminate()
        agent.wait(30)


def test_files_of_known_hosts(hosts: Fleet) -> None:
    hosts.host("gpu1")
    hosts.known.unlink()
    data, _ = doctor(hosts)
    assert checks(data, "ssh.known-hosts")[0][0] == "warn"
    hosts.known.mkdir()
    data, _ = doctor(hosts)
    assert checks(data, "ssh.known-hosts")[0][:2] == ("fail", f"{hosts.known} is not a regular file")
    hosts.known.rmdir()
    hosts.known.write_text("# nothing\n\n@revoked\n")
    data, _ = doctor(hosts)
    assert data["ssh"]["known_hosts"][0]["path"] == str(hosts.known)


def test_no_key_at_all(hosts: Fleet) -> None:
    hosts.host("gpu1")
    (hosts.ssh / "id_ed25519").unlink()
    data, run = doctor(hosts)
    assert checks(data, "ssh.keys") == [
        ("warn", "no key to log in with", "ssh-keygen -t ed25519 && ssh-copy-id HOST"),
    ]
    assert run.code == 1


def test_a_configuration_of_ssh_that_is_wrong(hosts: Fleet) -> None:
    hosts.host("gpu1", sshhosts.ORDINARY, None, "Port many")
    data, run = doctor(hosts)
    ((status, text, fix),) = checks(data, "ssh.login")
    assert (status, run.code) == ("fail", 1)
    assert ".ssh/config" in text
    assert fix == "see how ssh reads it: ssh -G HOST"


def test_a_list_of_the_configuration_is_asked_and_beside_a_cluster_it_is_not(hosts: Fleet) -> None:
    folder = hosts.home / ".config/atlctl"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('[ssh.jobs.lab]\nhosts = ["gpu1", "gone"]\n')
    hosts.host("gpu1")
    hosts.host("gone", "127.0.0.1", hosts.refusing())
    run = hosts.cli("doctor", "-o", "json")
    data = json.loads(run.stdout)["data"]
    # The user did not name the hosts: an unreachable one is not a failure.
    assert [status for status, _, _ in checks(data, "ssh.login")] == ["ok", "warn"]
    assert (run.code, data["job"]["name"], data["job"]["how"]) == (0, "lab", "only")
    named = hosts.cli("doctor", "-j", "lab", "-o", "json")
    data = json.loads(named.stdout)["data"]
    assert [status for status, _, _ in checks(data, "ssh.login")] == ["ok", "fail"]
    assert (named.code, data["job"]["how"]) == (1, "named")
    beside = json.loads(hosts.cli("doctor", "--backend", "local", "-o", "json").stdout)["data"]
    assert checks(beside, "ssh") == [
        ("skipped", "hosts are known (lab), and were not asked", "atlctl doctor --backend ssh")
    ]
    assert beside["ssh"] is None


def test_a_job_that_was_started_on_hosts(hosts: Fleet) -> None:
    hosts.host("gpu1")
    words = ("ssh", "run", "--hostfile", hosts.file(), "--name", "try", "--detach", "--", "sleep", "1000.5")
    assert hosts.cli(*words).code == 0
    try:
        run = hosts.cli("doctor", "-o", "json")
        data = json.loads(run.stdout)["data"]
        assert (data["backend"]["why"], data["job"]["kind"], data["job"]["how"]) == ("hosts", "SSH", "only")
        assert [host["name"] for host in data["ssh"]["hosts"]] == ["gpu1"]
        assert [one["problem"] for one in data["torch"]] == [None]
        assert checks(data, "worker.clock")[0][0] == "ok"
        named = json.loads(hosts.cli("doctor", "-j", "try", "-o", "json").stdout)["data"]
        assert (named["backend"]["why"], named["job"]["how"]) == ("ssh_job", "named")
    finally:
        assert hosts.cli("stop", "try", "--yes").code == 0
        assert hosts.cli("ssh", "rm", "try", "--yes").code == 0


@pytest.mark.parametrize("path", ["", "/nonexistent"])
def test_a_hostfile_that_cannot_be_used(hosts: Fleet, path: str) -> None:
    empty = hosts.home / "empty"
    empty.touch()
    run = hosts.cli("doctor", "--hostfile", path or str(empty), "-o", "json")
    data = json.loads(run.stdout)["data"]
    assert (checks(data, "ssh.hosts")[0][0], run.code) == ("fail", 1)
    assert checks(data, "locale")[0][0] == "ok"


# The script that hosts run


def asked(path: str) -> checkup.HostCheck:
    """The output of the script on a machine with these programs."""
    begun = time.time()
    said = subprocess.run(list(checkup._QUESTION), env={"PATH": path}, stdout=-1, check=True, timeout=20).stdout
    return checkup._read(checkup.HostCheck("gpu1", "ok"), b"Welcome\n" + said, begun, time.time())


def test_a_host_without_python_or_with_an_old_one(tmp_path: Path) -> None:
    none = asked(tools(tmp_path / "none"))
    assert (none.python, none.fits) == (None, False)
    old = 'echo "P 3.6.8"; exit 97'
    found = asked(tools(tmp_path / "old", python3=old))
    assert (found.python, found.fits) == ("3.6.8", False)
    newer = asked(tools(tmp_path / "both", python3=old, python3_11='echo "P 3.11.2"'))
    assert (newer.python, newer.fits) == ("3.11.2", True)
    broken = asked(tools(tmp_path / "broken", python3="echo P 3.x; exit 97"))
    assert (broken.python, broken.fits) == (None, False)
    assert all(one.clock is not None and one.clock[0] <= 0 <= one.clock[1] for one in (none, found, newer, broken))


def test_this_machine_has_a_python_that_fits() -> None:
    assert asked(os.environ["PATH"]).fits


@pytest.mark.parametrize(
    "said", [b"", b"T x\nP 3\n", b"T 9999999999999\nP 3.11.1.1\n", b"\xff\x00T 1", HOSTILE.encode()]
)
def test_nonsense_is_not_believed(said: bytes) -> None:
    found = checkup._read(checkup.HostCheck("gpu1", "ok"), said, 0.0, 1.0)
    assert (found.python, found.fits, found.clock) == (None, False, None)
