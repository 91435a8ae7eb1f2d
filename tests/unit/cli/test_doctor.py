"""How `doctor` judges and reports a server's answers."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import pytest
import yaml

from atlctl.backends.kubernetes.access import Access
from atlctl.backends.kubernetes.api import ApiError, Busy, Denied, JsonAnswer, NoServer, NotFound, Object
from atlctl.backends.kubernetes.permissions import ACCESS_REVIEWS, USER_REVIEWS
from atlctl.cli.doctor import cluster
from atlctl.cli.doctor.report import DoctorReport, Status, report_text
from atlctl.render.palette import Tone
from atlctl.render.streams import Streams

NOBODY = 'selfsubjectreviews is forbidden: User "system:anonymous" cannot create resource'


def kind(group: str, version: str, plural: str) -> Object:
    resource = {"resource": plural, "scope": "Namespaced", "verbs": ["get", "list"]}
    return {"metadata": {"name": group}, "versions": [{"version": version, "resources": [resource]}]}


class Cluster:
    """An `Api` with prepared answers; exceptions are raised. `denied`: forbidden `VERB RESOURCE` pairs."""

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

    async def send(self, method: str, path: str, body: Object, *_: Any, **__: Any) -> JsonAnswer:
        assert method == "POST"
        if path == USER_REVIEWS:
            return JsonAnswer({"status": self._answer("user")})
        assert path == ACCESS_REVIEWS
        if (status := self._answer("review")) is None:
            of = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
            status = {"allowed": f"{of['verb']} {resource}" not in self.denied}
        return JsonAnswer({"status": status})


def examined(*denied: str, **answers: Any) -> tuple[DoctorReport, Cluster]:
    report, api = DoctorReport(), Cluster(denied, **answers)
    report.data["cluster"] = {}
    asyncio.run(cluster.examine(report, api, "eve-of-the-file"))  # type: ignore[arg-type]
    return report, api


def status(report: DoctorReport) -> dict[str, str]:
    return {check.name: str(check.status) for check in report.checks}


def text(report: DoctorReport, name: str) -> str:
    (found,) = [check.text for check in report.checks if check.name == name]
    return found


def refused(code: int, words: str = "no") -> Denied:
    return Denied(code, "", words, message=words, hint="log in again")


def test_all_is_well() -> None:
    report, _ = examined()
    assert set(status(report).values()) == {"ok"}
    assert (report.verdict, report.exit_code, report.role) == (Status.OK, 0, [])
    assert text(report, "user") == "eve (groups ml)"
    assert text(report, "kinds") == "jobs.batch/v1"
    assert text(report, "server").startswith("Kubernetes v1.36.2, answered in ")
    library = metadata.version("kubernetes")
    assert report.data["cluster"] == {"version": "v1.36.2", "library": library, "user": "eve", "groups": ["ml"]}
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
    shown = report_text(report, Streams(), "en")
    assert shown.count("fix: give the Role") == 1  # the second of two checks in a row


def test_who_is_not_known_is_asked_nothing_more() -> None:
    report, api = examined(version=refused(401))
    assert (status(report), report.exit_code, api.asked) == ({"server": "fail"}, 4, ["version"])


@pytest.mark.parametrize(
    "answers",
    [
        {"user": refused(401)},
        {"user": refused(403, NOBODY)},
        {"user": {"userInfo": {"username": "system:anonymous"}}},
        {"user": NotFound(404, "", "404 page not found"), "review": refused(403, NOBODY)},
        {"review": refused(401)},
    ],
)
def test_who_is_nobody(answers: Mapping[str, Any]) -> None:
    """Any user can read the version, even with an invalid token."""
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


@pytest.mark.parametrize("answer", [refused(403), NotFound(404, "", "no")])
def test_a_gateway_that_hides_the_version(answer: Exception) -> None:
    report, _ = examined(version=answer)
    assert set(status(report).values()) == {"ok"}


@pytest.mark.parametrize(
    ("version", "library", "found"),
    [
        ("v1.36.2", "36.0.1", "ok"),
        ("v1.37.0", "36.0.1", "ok"),
        ("v1.38.0-alpha.1", "36.0.1", "warn"),
        ("v1.28.0+k3s1", "36.0.1", "ok"),
        ("v1.27.16-gke.100", "36.0.1", "warn"),
        ("v2.0.0", "36.0.1", "skipped"),
        ("v1.360000000000", "36.0.1", "skipped"),
        ("v1.36.2", "main", "skipped"),
    ],
)
def test_a_server_and_a_library_of_two_ages(
    monkeypatch: pytest.MonkeyPatch, version: str, library: str, found: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: library)
    report, _ = examined(version={"gitVersion": version})
    assert status(report)["skew"] == found
    assert (version if found == "warn" else library) in text(report, "skew")
    assert report.exit_code == 0


def test_a_server_that_is_no_kubernetes() -> None:
    report, _ = examined(version={"hello": "world"})
    assert status(report)["server"] == "warn"


@pytest.mark.parametrize("answer", [NotFound(404, "", "404 page not found"), ApiError(405, "", "")])
def test_an_old_server_does_not_tell_who_asks(answer: Exception) -> None:
    report, _ = examined("list events", user=answer)
    assert status(report)["user"] == "ok"
    assert text(report, "user").startswith("eve-of-the-file")
    assert report.role[1]["subjects"][0]["name"] == "REPLACE-WITH-THE-USER"


def test_a_namespace_that_does_not_exist() -> None:
    report, _ = examined(namespace=NotFound(404, "", "gone"))
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
    report = DoctorReport()
    answers = {
        "version": {"gitVersion": evil},
        "user": {"userInfo": {"username": evil, "groups": [evil]}},
        "namespace": ApiError(500, "", evil, message=evil, hint=evil),
        "apis": ApiError(500, "", evil, message=evil),
        "review": {"allowed": False, "reason": evil},
    }
    asyncio.run(cluster.examine(report, Cluster(**answers)))  # type: ignore[arg-type]
    shown = report_text(report, Streams(), lang)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "^[]0;x" in shown
    role, binding = yaml.safe_load_all(shown[shown.index("apiVersion") :])
    assert binding["subjects"][0]["name"] == evil
    assert role["rules"]


def test_the_yaml_is_the_role() -> None:
    report, _ = examined("list events", "delete pods", "get pods/exec")
    shown = report_text(report, Streams(), "en")
    assert list(yaml.safe_load_all(shown[shown.index("# ") :])) == report.role


def test_colours_are_for_the_status_alone() -> None:
    report = DoctorReport()
    report.ok("a", "x")
    report.warn("bb", "y", "do z")
    report.fail("c", "z")
    report.skip("d", "w")
    plain = "ok    a   x\nwarn  bb  y\n      fix: do z\nfail  c   z\n-     d   w\n"
    assert report_text(report, Streams(), "en") == plain
    colored = report_text(report, Streams(stdout_color=True), "en")
    assert re.sub("\x1b\\[[0-9;]*m", "", colored) == plain
    assert colored.startswith(f"\x1b[{Tone.OK.value}mok  \x1b[0m  a   x\n\x1b[{Tone.WARN.value}mwarn\x1b[0m  bb  y\n")


def test_what_was_not_looked_at_is_no_fault() -> None:
    report = DoctorReport()
    assert report.verdict is Status.OK
    report.skip("a", "nothing there", "do it")
    assert (report.verdict, report.exit_code) == (Status.OK, 0)
    assert report_text(report, Streams(), "en") == "-     a  nothing there\n      fix: do it\n"


def test_the_first_steps_stand_in_columns() -> None:
    report = DoctorReport(first_steps=[("atlctl demo", "see it"), ("x", "y")])
    assert report_text(report, Streams(), "en").endswith(":\n  atlctl demo  see it\n  x            y\n")


def test_how_the_server_is_reached() -> None:
    report = DoctorReport()
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    cluster.check_access(report, Access("https://me:pw@k8s:6443", "c", "team", "context c of x", unchecked))
    assert text(report, "cluster") == "https://k8s:6443, namespace team (context c of x)"
    assert status(report)["tls"] == "warn"
    assert "pw" not in str(report.data)
    plain = DoctorReport()
    cluster.check_access(plain, Access("http://k8s", "c", "team", "x"))
    assert status(plain)["tls"] == "warn"
    checked = DoctorReport()
    cluster.check_access(checked, Access("https://k8s", "c", "team", "x", ssl.create_default_context()))
    assert status(checked) == {"cluster": "ok"}
