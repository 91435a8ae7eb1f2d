"""Completion of names from a cluster: names cached by commands, and lookups in the background."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from atlctl.cli.completion import cache
from tests.apiserver.handle import Server
from tests.integration.test_kubernetes import start
from tests.support import proc
from tests.support.cli import run_cli


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(namespace="ml") as made:
        start(made, "tuner", "sleep 4000", "sleep 4000", run=False)
        start(made, "other", "sleep 4000", run=False)
        yield made


@pytest.fixture(autouse=True)
def _cluster(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))


def tab(*words: str) -> list[str]:
    """Candidates for the last word, as requested by the shell scripts."""
    request = [sys.executable, "-m", "atlctl", "--complete", "zsh", str(len(words)), "atlctl", *words]
    done = subprocess.run(request, capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return done.stdout.splitlines()[1:]


def settled() -> None:
    assert proc.wait_until(lambda: not os.path.lexists(os.path.join(cache.folder(), cache.LOCK)))


def config(server: Server, path: Path, **changes: dict[str, Any]) -> None:
    """Write the server's kubeconfig to `path`, with changes to the `user` or `cluster`."""
    made = yaml.safe_load(server.kubeconfig.read_text())
    for what, change in changes.items():
        made[f"{what}s"][0][what] |= change
    path.write_text(yaml.safe_dump(made))


def requested(server: Server) -> list[tuple[str, str]]:
    """All requests, sorted, because several run at the same time."""
    return sorted((request["method"], request["path"]) for request in server.requests())


def test_commands_leave_their_names_and_ask_for_nothing_more(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.forget_requests()
    assert run_cli("ps", "tuner").code == 0
    asked = requested(server)
    assert tab("stop", "tu") == ["tuner"]
    assert tab("exec", "-j", "tuner", "-w", "worker-0,") == ["worker-0,worker-1"]
    settled()
    assert run_cli("jobs").code == 0
    assert set(tab("stop", "")) == {"other", "tuner"}
    server.forget_requests()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self/nowhere")
    run = run_cli("ps", "tuner")
    assert (run.code, run.stderr) == (0, b"")
    assert requested(server) == asked
    assert b"names for completion were not kept" in run_cli("-vv", "ps", "tuner").stderr
    assert tab("stop", "tu") == []


def test_all_namespaces(server: Server) -> None:
    assert run_cli("jobs", "-A").code == 0
    assert set(tab("-n", "ml", "stop", "")) == {"other", "tuner"}


def test_tab_looks_in_the_background_once(server: Server) -> None:
    server.forget_requests()
    assert tab("stop", "") == []
    settled()
    asked = len(server.requests())
    assert asked > 0
    assert set(tab("stop", "")) == {"other", "tuner"}
    assert tab("--backend", "kubernetes", "stop", "tu") == ["tuner"]
    assert tab("--backend", "local", "stop", "") == []
    settled()
    assert len(server.requests()) == asked


def test_a_user_who_may_not_look(server: Server, isolated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = server.user("nobody", [])
    config(server, isolated / "kubeconfig", user={"token": token})
    monkeypatch.setenv("KUBECONFIG", str(isolated / "kubeconfig"))
    assert tab("stop", "") == []
    assert tab("-n", "") == []
    settled()
    server.forget_requests()
    assert tab("stop", "") == []
    assert not os.path.lexists(os.path.join(cache.folder(), cache.LOCK))
    assert server.requests() == []


@pytest.mark.parametrize("how", ["exec", "auth-provider"])
def test_no_program_is_started_to_log_in(
    how: str, server: Server, isolated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may open a browser. A command may start it, and then the names are cached."""
    plugin = isolated / "plugin"
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    status = {"token": "token-admin"}
    plugin.write_text(f"#!/bin/sh\ntouch '{isolated}/started'\necho '{json.dumps({**credential, 'status': status})}'\n")
    plugin.chmod(0o755)
    started = {"apiVersion": credential["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}
    users: dict[str, dict[str, Any]] = {
        "exec": {"exec": started},
        "auth-provider": {"auth-provider": {"name": "oidc", "config": {}}},
    }
    config(server, isolated / "kubeconfig", user=users[how])
    made = yaml.safe_load((isolated / "kubeconfig").read_text())
    del made["users"][0]["user"]["token"]
    (isolated / "kubeconfig").write_text(yaml.safe_dump(made))
    monkeypatch.setenv("KUBECONFIG", str(isolated / "kubeconfig"))
    server.forget_requests()
    assert tab("stop", "") == []
    settled()
    assert not (isolated / "started").exists()
    assert server.requests() == []
    assert tab("--context", "") == []
    settled()
    assert tab("--context", "") == ["test"]
    if how == "exec":
        assert run_cli("jobs").code == 0
        assert (isolated / "started").exists()
        assert set(tab("stop", "")) == {"other", "tuner"}
        settled()


def test_no_secret_is_kept(server: Server, isolated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "token-canary-5719"
    server.token("admin", canary)
    config(server, isolated / "kubeconfig", user={"token": canary})
    monkeypatch.setenv("KUBECONFIG", str(isolated / "kubeconfig"))
    assert tab("stop", "") == tab("-n", "") == tab("--context", "") == []
    settled()
    assert run_cli("-vv", "ps", "tuner").code == 0
    files = [path for path in Path(cache.folder()).parent.rglob("*") if path.is_file()]
    assert files
    assert not any(canary.encode() in path.read_bytes() for path in files)


def test_lists_of_hosts_of_a_project(isolated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "")
    Path(".git").mkdir()
    Path(".atlctl.toml").write_text('[ssh.jobs.lab]\nhosts = ["gpu[1-2]"]\n\n[ssh.jobs.bad]\nhostfile = "nowhere"\n')
    assert tab("exec", "-j", "") == []
    settled()
    assert set(tab("exec", "-j", "")) == {"lab", "bad"}
    assert tab("exec", "-j", "lab", "-w", "") == ["gpu1", "gpu2"]
    assert tab("ssh", "run", "-j", "la") == ["lab"]
