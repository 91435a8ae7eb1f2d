"""`atlctl doctor` on this machine and with an API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.handle import Server
from tests.support.cli import Result, run_cli

REPOSITORY = Path(__file__).parents[2]
#: The permissions of `view`, and no others.
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


def checks(found: Any) -> dict[str, tuple[str, str]]:
    return {check["name"]: (check["status"], check["text"]) for check in found["checks"]}


def test_with_nothing_at_all() -> None:
    """A new user's first command: no error, and the first steps are shown."""
    run = run_cli("doctor")
    assert (run.code, run.stderr) == (0, b"")
    shown = run.stdout.decode()
    report, _, first = shown.partition("\n\n")
    told = {line.split()[1]: line.split()[0] for line in report.splitlines() if not line.startswith("  ")}
    names = ("backend", "user", "python", "packages", "state", "settings", "clock", "terminal", "locale")
    assert {told[name] for name in names} == {"ok"}
    assert told["job"] == "-"
    title, *steps = first.splitlines()
    assert title == "Nothing is set up yet. To begin, one of these:"
    assert [step.split("  ")[1] for step in steps] == [
        "atlctl demo",
        "atlctl local run --workers 2 -- CMD",
        "atlctl exec --hostfile FILE --all -- hostname",
        "export KUBECONFIG=PATH",
    ]
    found = data(run_cli("doctor", "-o", "json"))
    assert (found["verdict"], found["job"], found["ssh"], found["torch"]) == ("ok", None, None, [])
    assert [step["command"] for step in found["first_steps"]] == [step.split("  ")[1] for step in steps]
    assert found["machine"]["python"]["executable"]
    for document in (REPOSITORY / f"docs/{language}/doctor.md" for language in ("en", "zh")):
        assert [name for name in found if f"`{name}`" not in document.read_text()] == []
    chinese = run_cli("doctor", env={"LC_ALL": "zh_CN.UTF-8"}).stdout.decode()
    assert "还没有任何配置" in chinese


def test_nothing_is_written(isolated: Path) -> None:
    before = sorted(isolated.rglob("*"))
    assert run_cli("doctor").code == 0
    assert sorted(isolated.rglob("*")) == before


def test_settings_with_a_mistake_are_told_and_everything_else_too(isolated: Path) -> None:
    folder = isolated / ".config/atlctl"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("[sshh]\n")
    run = run_cli("doctor", "-o", "json")
    found = checks(data(run))
    assert (run.code, found["backend"][0], found["settings"][0]) == (1, "fail", "fail")
    assert "unknown key sshh" in found["settings"][1]
    assert found["locale"][0] == "ok"


@pytest.mark.parametrize("words", [("-n", "ml", "--hostfile", "x"), ("--backend", "local", "--context", "x")])
def test_a_command_line_that_is_wrong_is_no_report(words: tuple[str, ...]) -> None:
    run = run_cli("doctor", *words)
    assert (run.code, run.stdout) == (2, b"")


def test_an_administrator(server: Server) -> None:
    run = doctor(server, "admin", "-o", "json")
    found = data(run)
    assert (run.code, found["verdict"], found["role"]) == (0, "ok", [])
    assert {"resource": "jobs.batch", "version": "v1"} in found["kinds"]
    assert found["cluster"]["user"] == "admin"
    assert found["backend"] == {"name": "kubernetes", "why": "configured", "value": None}
    assert checks(found)["skew"][0] == "ok"
    assert found["cluster"]["library"] == metadata.version("kubernetes")
    assert found["first_steps"] == []


def test_the_role_gives_what_was_missing(server: Server) -> None:
    """With the printed Role, the user has all needed permissions."""
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
    assert b"-     job " in run.stdout


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
    assert b"-     job " in run.stdout
    config.write_text("[")
    run = run_cli("doctor", env={"KUBECONFIG": str(config)})
    assert (run.code, run.stderr) == (1, b"")
    assert b"fail  cluster" in run.stdout


def test_in_chinese(server: Server) -> None:
    server.user("bob", [])
    shown = doctor(server, "bob", LC_ALL="zh_CN.UTF-8").stdout.decode()
    assert "不允许" in shown
    assert "not allowed" not in shown
