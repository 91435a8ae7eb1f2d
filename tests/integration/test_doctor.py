"""`atlctl doctor` on this machine, and against an API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.apiserver.handle import Server
from tests.support.cli import Result, run_cli

#: What `view` gives, and nothing else.
VIEW = {
    "namespace": "ml",
    "verbs": ["get", "list", "watch"],
    "apiGroups": ["*"],
    "resources": ["pods", "pods/log", "events"],
    "role": "view",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        made.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        yield made


def doctor(server: Server, user: str, *words: str, token: str | None = None, **env: str) -> Result:
    config = server.write_kubeconfig(f"{user}-{token}", user=user, token=token, namespace="ml")
    return run_cli("doctor", *words, env={"KUBECONFIG": str(config), **env})


def data(run: Result) -> Any:
    return json.loads(run.stdout)["data"]


def test_without_a_cluster() -> None:
    run = run_cli("doctor")
    assert (run.code, run.stderr) == (0, b"")
    lines = run.stdout.decode().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", name] for name in ("backend", "state", "settings", "terminal", "locale")
    ]


def test_an_administrator(server: Server) -> None:
    run = doctor(server, "admin", "-o", "json")
    found = data(run)
    assert (run.code, found["verdict"], found["role"]) == (0, "ok", [])
    assert {"resource": "jobs.batch", "version": "v1"} in found["kinds"]
    assert found["cluster"]["user"] == "admin"
    assert found["backend"] == {"name": "kubernetes", "why": "configured", "value": None}


def test_the_role_gives_what_was_missing(server: Server) -> None:
    """The printed Role, given to the user, leaves nothing to ask for."""
    server.user("eve", [VIEW])
    run = doctor(server, "eve")
    assert run.code == 0
    shown = run.stdout.decode()
    assert "warn  rights.exec" in shown
    assert "ok    rights.read" in shown
    role, binding = yaml.safe_load_all(shown[shown.index("apiVersion") :])
    assert binding["subjects"][0]["name"] == "eve"
    assert not any("pods/log" in rule["resources"] for rule in role["rules"])
    server.user("eve", [VIEW, *({**rule, "namespace": "ml", "role": "more"} for rule in role["rules"])])
    again = data(doctor(server, "eve", "-o", "json"))
    assert (again["verdict"], again["role"]) == ("ok", [])


def test_exec_needs_both_verbs(server: Server) -> None:
    server.user("half", [VIEW, {**VIEW, "verbs": ["create"], "resources": ["pods/exec"]}])
    found = data(doctor(server, "half", "-o", "json"))
    exec_rights = {item["verb"]: item["allowed"] for item in found["permissions"] if item["resource"] == "pods/exec"}
    assert exec_rights == {"get": False, "create": True}


def test_nothing_is_allowed(server: Server) -> None:
    server.user("bob", [])
    run = doctor(server, "bob")
    assert run.code == 1
    assert b"fail  rights.read" in run.stdout


def test_a_token_that_is_no_good(server: Server) -> None:
    run = doctor(server, "eve", "-o", "json", token="wrong")
    assert run.code == 4
    assert data(run)["verdict"] == "fail"


def test_nobody_listens(tmp_path: Any) -> None:
    config = tmp_path / "config"
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    text = {
        "current-context": "c",
        "contexts": [context],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
    }
    config.write_text(yaml.safe_dump(text))
    run = run_cli("doctor", env={"KUBECONFIG": str(config)})
    assert run.code == 1
    assert b"fail  server" in run.stdout
    config.write_text("[")
    run = run_cli("doctor", env={"KUBECONFIG": str(config)})
    assert (run.code, run.stderr) == (1, b"")
    assert b"fail  cluster" in run.stdout


def test_in_chinese(server: Server) -> None:
    server.user("bob", [])
    shown = doctor(server, "bob", LC_ALL="zh_CN.UTF-8").stdout.decode()
    assert "不允许" in shown
    assert "not allowed" not in shown
