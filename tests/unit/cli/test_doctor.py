"""What `doctor` makes of what it finds: a server with any answers, a machine with any faults."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from atlctl.backends.kubernetes.access import Access
from atlctl.backends.kubernetes.api import Answer, ApiError, Busy, Missing, NoServer, Object, Refused
from atlctl.backends.kubernetes.permissions import ACCESS_REVIEWS, USER_REVIEWS
from atlctl.cli import hosts, runtime, target
from atlctl.cli.doctor import cluster, machine
from atlctl.cli.doctor.checks import Report, Status, Words
from atlctl.cli.doctor.telling import report_text
from atlctl.cli.target import Choice, choice
from atlctl.jobs.errors import UsageError
from atlctl.render.streams import Streams

EN = Words("en")
NOBODY = 'selfsubjectreviews is forbidden: User "system:anonymous" cannot create resource'


def kind(group: str, version: str, plural: str) -> Object:
    resource = {"resource": plural, "scope": "Namespaced", "verbs": ["get", "list"]}
    return {"metadata": {"name": group}, "versions": [{"version": version, "resources": [resource]}]}


class Cluster:
    """An `Api` of ready answers; an exception among them is raised. `denied`: `VERB RESOURCE` that are not allowed."""

    server, context, namespace = "https://example.invalid", "test", "team"

    def __init__(self, denied: tuple[str, ...] = (), **answers: Any) -> None:
        self.denied = denied
        self.answers = {
            "version": {"gitVersion": "v1.36.2"},
            "user": {"userInfo": {"username": "eve", "groups": ["ml"]}},
            "namespace": {"kind": "Namespace"},
            "apis": {"kind": "APIGroupDiscoveryList", "items": [kind("batch", "v1", "jobs")]},
            "review": None,
            **answers,
        }
        self.asked: list[str] = []

    def _answer(self, name: str) -> Any:
        self.asked.append(name)
        if isinstance(self.answers[name], Exception):
            raise self.answers[name]
        return self.answers[name]

    async def get(self, path: str, query: Any = ()) -> Object:
        names = {"/version": "version", "/apis": "apis", "/api/v1/namespaces/team": "namespace"}
        found: Object = self._answer(names[path])
        return found

    async def send(self, method: str, path: str, body: Object, *_: Any, **__: Any) -> Answer:
        assert method == "POST"
        if path == USER_REVIEWS:
            return Answer({"status": self._answer("user")})
        assert path == ACCESS_REVIEWS
        if (status := self._answer("review")) is None:
            of = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
            status = {"allowed": f"{of['verb']} {resource}" not in self.denied}
        return Answer({"status": status})


def examined(*denied: str, **answers: Any) -> tuple[Report, Cluster]:
    report, api = Report(), Cluster(denied, **answers)
    asyncio.run(cluster.examine(report, EN, api, "eve-of-the-file"))  # type: ignore[arg-type]
    return report, api


def status(report: Report) -> dict[str, str]:
    return {check.name: str(check.status) for check in report.checks}


def text(report: Report, name: str) -> str:
    (found,) = [check.text for check in report.checks if check.name == name]
    return found


def refused(code: int, words: str = "no") -> Refused:
    return Refused(code, "", words, message=words, hint="log in again")


def test_all_is_well() -> None:
    report, _ = examined()
    assert set(status(report).values()) == {"ok"}
    assert (report.verdict, report.exit_code, report.role) == (Status.OK, 0, [])
    assert text(report, "user") == "eve (groups ml)"
    assert text(report, "kinds") == "jobs.batch/v1"
    assert text(report, "server").startswith("Kubernetes v1.36.2, answered in ")
    assert report.data["cluster"] == {"version": "v1.36.2", "user": "eve", "groups": ["ml"]}
    assert all(item["allowed"] for item in report.data["permissions"])


@pytest.mark.parametrize(
    ("denied", "name", "worst", "code"),
    [
        ("list pods", "rights.read", "fail", 1),
        ("get pods/log", "rights.logs", "fail", 1),
        ("watch pods", "rights.follow", "warn", 0),
        ("get pods/exec", "rights.exec", "warn", 0),
        ("create pods/exec", "rights.exec", "warn", 0),
        ("list events", "rights.events", "warn", 0),
        ("list jobs", "rights.kinds", "warn", 0),
        ("patch jobs", "rights.stop", "warn", 0),
        ("delete pods", "rights.delete", "warn", 0),
    ],
)
def test_a_right_that_is_missing(denied: str, name: str, worst: str, code: int) -> None:
    report, _ = examined(denied)
    bad = {check: found for check, found in status(report).items() if found != "ok"}
    assert bad == {name: worst}
    assert report.exit_code == code
    verb, resource = denied.split()
    assert [(rule["resources"], rule["verbs"]) for rule in report.role[0]["rules"]] == [([resource], [verb])]
    assert report.role[1]["subjects"][0]["name"] == "eve"


def test_resources_with_the_same_verbs_are_told_together() -> None:
    report, _ = examined("get pods/exec", "create pods/exec", "list events")
    assert text(report, "rights.exec").endswith("not allowed to get, create pods/exec")
    shown = report_text(report, EN, False)
    assert shown.count("fix: give the Role") == 1  # of two checks in a row, below the second


def test_who_is_not_known_is_asked_nothing_more() -> None:
    report, api = examined(version=refused(401))
    assert (status(report), report.exit_code, api.asked) == ({"server": "fail"}, 4, ["version"])


@pytest.mark.parametrize(
    "answers",
    [
        {"user": refused(401)},
        {"user": refused(403, NOBODY)},
        {"user": {"userInfo": {"username": "system:anonymous"}}},
        {"user": Missing(404, "", "404 page not found"), "review": refused(403, NOBODY)},
        {"review": refused(401)},
    ],
)
def test_who_is_nobody(answers: Mapping[str, Any]) -> None:
    """Anybody may ask for the version, also with a token that is no good."""
    report, _ = examined(**answers)
    assert report.exit_code == 4
    assert report.role == []
    failed = [check for check in report.checks if check.status is Status.FAIL]
    assert len(failed) == 1
    assert failed[0].fix is not None


@pytest.mark.parametrize(
    "error", [NoServer("cannot be reached", "check"), Busy(429, "", ""), ApiError(500, "", "x", message="broken")]
)
def test_no_server(error: ApiError) -> None:
    report, api = examined(version=error)
    assert (status(report), report.exit_code, api.asked) == ({"server": "fail"}, 1, ["version"])
    assert text(report, "server") == error.message


@pytest.mark.parametrize("answer", [refused(403), Missing(404, "", "no")])
def test_a_gateway_that_hides_the_version(answer: Exception) -> None:
    report, _ = examined(version=answer)
    assert set(status(report).values()) == {"ok"}


def test_a_server_that_is_no_kubernetes() -> None:
    report, _ = examined(version={"hello": "world"})
    assert status(report)["server"] == "warn"


@pytest.mark.parametrize("answer", [Missing(404, "", "404 page not found"), ApiError(405, "", "")])
def test_an_old_server_does_not_tell_who_asks(answer: Exception) -> None:
    report, _ = examined("list events", user=answer)
    assert status(report)["user"] == "ok"
    assert text(report, "user").startswith("eve-of-the-file")
    assert report.role[1]["subjects"][0]["name"] == "REPLACE-WITH-THE-USER"


def test_a_namespace_that_does_not_exist() -> None:
    report, _ = examined(namespace=Missing(404, "", "gone"))
    assert (status(report)["namespace"], report.exit_code) == ("fail", 1)
    report, _ = examined(namespace=refused(403))
    assert "namespace" not in status(report)


def test_a_discovery_that_fails_leaves_pods() -> None:
    report, _ = examined("get pods/exec", apis=ApiError(503, "", "x", message="down"))
    assert status(report)["kinds"] == "warn"
    assert "down" in text(report, "kinds")
    assert status(report)["rights.exec"] == "warn"
    assert "rights.kinds" not in status(report)


def test_a_review_without_an_answer_is_no_refusal() -> None:
    report, _ = examined(review=ApiError(500, "", "x", message="webhook is down"))
    rights = {name: found for name, found in status(report).items() if name.startswith("rights.")}
    assert set(rights.values()) == {"warn"}
    assert report.role == []
    assert "webhook is down" in text(report, "rights.read")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_hostile_words_are_made_harmless(lang: Any) -> None:
    evil = "\x1b]0;x\x07{0}{name}\u202e\n"
    report = Report()
    words = Words(lang)
    answers = {
        "version": {"gitVersion": evil},
        "user": {"userInfo": {"username": evil, "groups": [evil]}},
        "namespace": ApiError(500, "", evil, message=evil, hint=evil),
        "apis": ApiError(500, "", evil, message=evil),
        "review": {"allowed": False, "reason": evil},
    }
    asyncio.run(cluster.examine(report, words, Cluster(**answers)))  # type: ignore[arg-type]
    shown = report_text(report, words, False)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "^[]0;x" in shown
    role, binding = yaml.safe_load_all(shown[shown.index("apiVersion") :])
    assert binding["subjects"][0]["name"] == evil
    assert role["rules"]


def test_the_yaml_is_the_role() -> None:
    report, _ = examined("list events", "delete pods", "get pods/exec")
    shown = report_text(report, EN, False)
    assert list(yaml.safe_load_all(shown[shown.index("# ") :])) == report.role


def test_colours_are_for_the_status_alone() -> None:
    report = Report()
    report.ok("a", "x")
    report.warn("bb", "y", "do z")
    report.fail("c", "z")
    assert report_text(report, EN, False) == "ok    a   x\nwarn  bb  y\n      fix: do z\nfail  c   z\n"
    assert report_text(report, EN, True) == (
        "\x1b[32mok  \x1b[0m  a   x\n\x1b[33mwarn\x1b[0m  bb  y\n      fix: do z\n\x1b[1;31mfail\x1b[0m  c   z\n"
    )


def test_how_the_server_is_reached() -> None:
    report = Report()
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    cluster.check_access(report, EN, Access("https://me:pw@k8s:6443", "c", "team", "context c of x", unchecked))
    assert text(report, "cluster") == "https://k8s:6443, namespace team (context c of x)"
    assert status(report)["tls"] == "warn"
    assert "pw" not in str(report.data)
    plain = Report()
    cluster.check_access(plain, EN, Access("http://k8s", "c", "team", "x"))
    assert status(plain)["tls"] == "warn"
    checked = Report()
    cluster.check_access(checked, EN, Access("https://k8s", "c", "team", "x", ssl.create_default_context()))
    assert status(checked) == {"cluster": "ok"}


# The machine


@pytest.mark.parametrize(
    ("asked", "env", "chosen"),
    [
        ({"backend": "local"}, {"ATLCTL_BACKEND": "kubernetes"}, Choice("local", "option", "local")),
        ({"namespace": "x"}, {"ATLCTL_BACKEND": "local"}, Choice("kubernetes", "cluster_option", "--namespace")),
        ({}, {"ATLCTL_BACKEND": "kubernetes"}, Choice("kubernetes", "variable", "kubernetes")),
        ({}, {"ATLCTL_WORKER": "worker-1", "KUBECONFIG": __file__}, Choice("local", "worker", "worker-1")),
        ({}, {"KUBECONFIG": __file__}, Choice("kubernetes", "configured")),
        ({}, {"KUBECONFIG": __file__, "ATLCTL_JOB": "not-here"}, Choice("kubernetes", "configured")),
        ({}, {}, Choice("local", "no_cluster")),
        ({"hostfile": "x"}, {"ATLCTL_BACKEND": "local"}, Choice("ssh", "hostfile", "x")),
        ({"backend": "ssh"}, {}, Choice("ssh", "option", "ssh")),
        ({}, {"PET_MASTER_ADDR": "tj-node-0-0.tj", "PET_NNODES": "2"}, Choice("ssh", "hosts")),
    ],
)
def test_why_a_backend_is_chosen(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], env: dict[str, str], chosen: Choice
) -> None:
    monkeypatch.setattr(target, "context", lambda: runtime.Context(**asked))  # type: ignore[arg-type]
    hosts.peers.cache_clear()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert choice() == chosen
    report = Report()
    machine.check_backend(report, EN, chosen)
    assert text(report, "backend").startswith(f"{chosen.name}: ")
    assert report.data["backend"]["why"] == chosen.why


def test_a_job_on_hosts_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, isolated: Path) -> None:
    monkeypatch.setattr(target, "context", runtime.Context)
    assert choice("lab") == Choice("local", "no_cluster")
    config = isolated / ".config/atlctl/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[ssh.jobs.lab]\nhosts = ["gpu1"]\n')
    assert choice("lab") == Choice("ssh", "ssh_job", "lab")
    assert choice() == Choice("ssh", "hosts")
    monkeypatch.setenv("KUBECONFIG", __file__)
    assert choice("lab") == Choice("ssh", "ssh_job", "lab")
    assert choice("other") == Choice("kubernetes", "configured")
    record = isolated / ".local/state/atlctl/ssh/started/job.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert choice("started") == Choice("ssh", "ssh_job", "started")
    assert choice("../ssh/started") == Choice("kubernetes", "configured")
    # In a worker that `ssh run` has started.
    monkeypatch.setenv("ATLCTL_WORKER", "gpu1")
    monkeypatch.setenv("ATLCTL_JOB", "started")
    assert choice() == Choice("ssh", "worker", "gpu1")


@pytest.mark.parametrize(
    ("asked", "env"),
    [
        ({"backend": "local", "context": "x"}, {}),
        ({"backend": "kubernetes", "hostfile": "x"}, {}),
        ({"namespace": "ml", "hostfile": "x"}, {}),
        ({}, {"ATLCTL_BACKEND": "slurm"}),
    ],
)
def test_a_choice_that_is_wrong(monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], env: dict[str, str]) -> None:
    monkeypatch.setattr(target, "context", lambda: runtime.Context(**asked))  # type: ignore[arg-type]
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError):
        choice()


def state(path: object, *, needed: bool = True) -> Report:
    report = Report()
    machine.check_state(report, EN, {"ATLCTL_STATE_DIR": str(path)}, needed=needed)
    return report


def test_the_folder_for_state(tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b"
    assert text(state(missing), "state") == f"{missing} can be made"
    assert not (tmp_path / "a").exists()
    missing.mkdir(0o700, parents=True)
    assert text(state(missing), "state") == f"{missing} can be written"
    assert list(missing.iterdir()) == []


def test_a_folder_for_state_that_is_no_good(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    private = tmp_path / "private"
    private.mkdir(0o700)
    (private / "local").symlink_to(tmp_path)
    for path in (tmp_path / "file", tmp_path / "file" / "below", shared, private, "relative"):
        report = state(path)
        assert (status(report), report.exit_code) == ({"state": "fail"}, 1), path
    assert status(state(shared, needed=False)) == {"state": "warn"}


def test_a_folder_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the system's answers are made up."""
    full = SimpleNamespace(f_blocks=1000, f_bavail=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: full)
        assert text(state(tmp_path / "new"), "state").startswith("no space left on the disk of ")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert text(state(tmp_path / "new"), "state") == f"{tmp_path}/new cannot be written"


def test_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(content: str) -> Report:
        file = tmp_path / "atlctl" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        report = Report()
        machine.check_settings(report, EN, {"XDG_CONFIG_HOME": str(tmp_path)})
        return report

    assert status(settings("")) == {"settings": "ok"}
    assert status(settings("[wrong]\n")) == {"settings": "fail"}
    assert status(settings('[errors]\nsignatures = ["absent.toml"]\n')) == {"settings": "warn"}
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert text(settings(""), "settings") == "the working folder: No such file or directory"
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("tty", "env", "found"),
    [(False, {}, "ok"), (True, {}, "warn"), (True, {"TERM": "dumb"}, "warn"), (True, {"TERM": "xterm"}, "ok")],
)
def test_the_terminal(tty: bool, env: dict[str, str], found: str) -> None:
    report = Report()
    machine.check_terminal(report, EN, env, Streams(stdout_tty=tty))
    assert status(report) == {"terminal": found}


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({"LANG": "C.UTF-8"}, "ok"),
        ({"LC_ALL": "zh_CN.utf8", "LANG": "C"}, "ok"),
        ({"LC_ALL": "", "LC_CTYPE": "de_DE.UTF-8"}, "ok"),
        ({"LC_ALL": "C", "LANG": "C.UTF-8"}, "warn"),
        ({"LANG": "zh_CN.GB18030"}, "warn"),
        ({}, "warn"),
    ],
)
def test_the_locale(env: dict[str, str], found: str) -> None:
    report = Report()
    machine.check_locale(report, EN, env)
    assert status(report) == {"locale": found}
