"""Tokens, keys and a proxy password from the kubeconfig are in no message, log, command or file."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.apiserver.handle import Server
from tests.integration.stopping import Cluster
from tests.support import proc
from tests.support.cli import Result, popen_cli, run_cli

TOKEN, EXPIRED, PROXY, PLUGIN, KEY = (f"canary-{name}-4711" for name in ("token", "expired", "proxy", "plugin", "key"))
CANARIES = (TOKEN, EXPIRED, PROXY, PLUGIN, KEY, base64.b64encode(KEY.encode()).decode())
LOUD = ("-vv", "--debug")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """job: two running workers."""
    with Server() as server:
        own = Cluster(server)
        own.pytorchjob("job", 2, run=True)
        server.token("admin", TOKEN)
        server.token("admin", EXPIRED)
        server.token("admin", PLUGIN)
        server.expire(EXPIRED)
        server.wait_phase("job-worker-1", "Running")
        yield own


def kubeconfig(server: Server, kind: str) -> str:
    """A user's kubeconfig with canaries: a valid one, or one that fails in a certain way."""
    plugin = Path("plugin").resolve()
    credential = '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"%s"}}'
    broken = "exit 1" if kind == "failing plugin" else "exit 0"
    plugin.write_text(f"#!/bin/sh\necho '{credential % PLUGIN}'\n{broken}\n")
    plugin.chmod(0o700)
    asked = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    secret = base64.b64encode(KEY.encode()).decode()
    users: dict[str, dict[str, object]] = {
        "expired": {"token": EXPIRED},
        "plugin": {"exec": {**asked, "env": [{"name": "SECRET", "value": KEY}]}},
        "failing plugin": {"exec": {**asked, "args": ["--secret", KEY]}},
        "broken key": {"client-certificate-data": secret, "client-key-data": secret},
        "password": {"username": "u", "password": KEY},
    }
    path = server.write_kubeconfig(kind.replace(" ", "-"), token=TOKEN)
    config = yaml.safe_load(path.read_text())
    config["users"][0]["user"] = users.get(kind, {"token": TOKEN})
    if kind == "proxy":
        config["clusters"][0]["cluster"]["proxy-url"] = f"http://user:{PROXY}@127.0.0.1:1"
    if kind == "no server":
        config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    if kind == "other authority":
        del config["clusters"][0]["cluster"]["certificate-authority"]
    path.write_text(yaml.safe_dump(config))
    return str(path)


def silent(run: Result) -> Result:
    for canary in CANARIES:
        assert canary.encode() not in run.stdout + run.stderr, run
    return run


KINDS = (
    "good", "expired", "plugin", "failing plugin", "broken key", "password", "proxy", "no server", "other authority",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [("ps", "job"), ("exec", "-j", "job", "--all", "--", "echo", "out")], ids=" ".join)
def test_no_command_tells_it_however_loud_and_failing(cluster: Cluster, kind: str, words: tuple[str, ...]) -> None:
    path = kubeconfig(cluster.server, kind)
    run = silent(run_cli(*LOUD, *words, env={"KUBECONFIG": path}, timeout=50))
    assert (run.code == 0) == (kind in ("good", "plugin")), run


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "-o", "yaml"),
        ("ps", "job", "-o", "json"),
        ("logs", "job"),
        ("errors", "job"),
        ("events", "job"),
        ("doctor",),
        ("doctor", "-j", "job", "-o", "json"),
        ("stop", "job", "--dry-run"),
        ("exec", "-j", "job", "--all", "--", "no-such-program"),
        ("exec", "-j", "job", "--all", "--timeout", "0.5", "--", "sleep", "999"),
        ("shell", "-j", "job", "0"),
    ],
    ids=" ".join,
)
def test_no_other_command_tells_it_either(cluster: Cluster, words: tuple[str, ...]) -> None:
    path = kubeconfig(cluster.server, "good")
    silent(run_cli(*LOUD, *words, env={"KUBECONFIG": path}, stdin=b"", timeout=50))


@pytest.mark.parametrize("action", ["drop", "status", "throttle"])
def test_no_broken_answer_makes_it_told(cluster: Cluster, action: str) -> None:
    cluster.server.fault(action, kind="any", times=6, code=500, seconds=0)
    path = kubeconfig(cluster.server, "good")
    for words in (("ps", "job"), ("exec", "-j", "job", "--all", "true")):
        silent(run_cli(*LOUD, *words, env={"KUBECONFIG": path}, timeout=50))
    cluster.server.clear_faults()


def test_a_server_that_sends_it_back_is_not_repeated(cluster: Cluster) -> None:
    """A proxy may return the headers that it received."""
    cluster.server.fault("status", kind="any", code=403, message=f"Authorization: Bearer {TOKEN}")
    run = run_cli(*LOUD, "ps", "job", env={"KUBECONFIG": kubeconfig(cluster.server, "good")})
    cluster.server.clear_faults()
    assert run.code == 4
    silent(run)


def test_no_command_line_and_no_environment_of_the_pods_tells_it(cluster: Cluster) -> None:
    path = kubeconfig(cluster.server, "plugin")
    words = ("exec", "-j", "job", "--all", "-i", "--", "sleep", "981")
    with popen_cli(*words, env={"KUBECONFIG": path}, stdin=subprocess.PIPE, stdout=-1, stderr=-1) as run:
        assert proc.wait_until(lambda: sum(p.command == "sleep 981" for p in proc.processes()) == 2)
        shown = [process.command for process in proc.processes()]
        around = [
            Path(f"/proc/{found['pid']}/environ").read_bytes()
            for index in range(2)
            for found in cluster.server.processes(f"job-worker-{index}")
        ]
        run.terminate()
        run.communicate(timeout=100)
    assert around
    for canary in CANARIES:
        assert not [command for command in shown if canary in command]
        assert not [text for text in around if canary.encode() in text]


def test_no_file_but_the_users_own_holds_it(cluster: Cluster, isolated: Path) -> None:
    path = kubeconfig(cluster.server, "plugin")
    for words in (("ps", "job"), ("exec", "-j", "job", "--all", "true"), ("jobs",)):
        run_cli(*LOUD, *words, env={"KUBECONFIG": path})
    for file in (found for found in isolated.rglob("*") if found.is_file()):
        assert not [canary for canary in CANARIES if canary.encode() in file.read_bytes()], file
