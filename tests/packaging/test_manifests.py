"""The manifests for a terminal inside a worker: just the rights that `doctor` asks for, and what they allow."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from atlctl.backends.kubernetes import discovery
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.kinds import registry
from atlctl.backends.kubernetes.permissions import Purpose, rights
from tests.apiserver.handle import Server
from tests.integration.stopping import Cluster
from tests.support.cli import Result, run_cli

Object = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "docs/manifests"
ACCOUNT = "atlctl-worker"
NAMESPACE = "default"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
PURPOSES: dict[str, tuple[Purpose, ...]] = {
    "atlctl-read": ("read", "logs", "follow", "events", "kinds", "queues"),
    "atlctl-exec": ("exec",),
    "atlctl-stop": ("stop",),
}
UPDATE = "ATLCTL_UPDATE_GOLDEN" in os.environ
VERBS = ("get", "list", "watch", "create", "patch")


def objects(*files: str) -> list[Object]:
    return [obj for name in files for obj in yaml.safe_load_all((FOLDER / name).read_text())]


def rules_of(objs: list[Object]) -> dict[str, list[Object]]:
    """The rules of each Role."""
    return {obj["metadata"]["name"]: obj["rules"] for obj in objs if obj["kind"] == "Role"}


def wanted(purposes: tuple[Purpose, ...]) -> set[tuple[str, str, str]]:
    """What `doctor` asks for where every kind is served; of a kind with two versions, for both."""
    everything = [kind.resource for kind in registry.KINDS]
    everything += [discovery.WORKLOADS, discovery.VOLCANO_PODGROUPS, discovery.COSCHEDULING_PODGROUPS]
    oldest = Served({resource.name: resource.versions[-1] for resource in everything})
    newest = Served({resource.name: resource.versions[0] for resource in reversed(everything)})
    asked = {*rights(oldest), *rights(newest)}
    assert {kind for kind, _ in (*oldest.kinds(), *newest.kinds())} == set(registry.KINDS)
    return {(right.group, right.resource, right.verb) for right in asked if right.purpose in purposes}


def written(text: str) -> str:
    """A manifest with the rules of its Roles as they should be: a line for resources of a group with the same verbs."""
    for role, purposes in PURPOSES.items():
        verbs: dict[tuple[str, str], list[str]] = {}
        for group, resource, verb in wanted(purposes):
            verbs.setdefault((group, resource), []).append(verb)
        alike: dict[tuple[str, str], list[str]] = {}
        for (group, resource), allowed in sorted(verbs.items()):
            alike.setdefault((group, ", ".join(sorted(allowed, key=VERBS.index))), []).append(resource)
        rules = ""
        for (group, shown), names in alike.items():
            resources = ", ".join(names)
            rules += "- {{apiGroups: [{}], resources: [{}], verbs: [{}]}}\n".format(group or '""', resources, shown)
        text = re.sub(rf"(name: {role}\nrules:\n)(?:- .*\n)+", rf"\g<1>{rules}", text)
    return text


@pytest.mark.parametrize("name", ["web-terminal.yaml", "web-terminal-stop.yaml"])
def test_the_roles_give_what_doctor_asks_for_and_no_more(name: str) -> None:
    """`ATLCTL_UPDATE_GOLDEN=1 pytest tests/packaging/test_manifests.py` writes their rules anew."""
    path = FOLDER / name
    expected = written(path.read_text())
    if UPDATE:
        path.write_text(expected)
    assert path.read_text() == expected


def test_the_roles_are_bound_to_the_account_and_nothing_names_a_namespace() -> None:
    found = objects("web-terminal.yaml", "web-terminal-stop.yaml")
    (account,) = (obj for obj in found if obj["kind"] == "ServiceAccount")
    assert (account["metadata"], account["automountServiceAccountToken"]) == ({"name": ACCOUNT}, False)
    bindings = [obj for obj in found if obj["kind"] == "RoleBinding"]
    assert [obj["roleRef"]["name"] for obj in bindings] == ["atlctl-read", "atlctl-exec", "atlctl-stop"]
    assert all(obj["subjects"] == [{"kind": "ServiceAccount", "name": ACCOUNT}] for obj in bindings)
    assert [obj["metadata"]["name"] for obj in bindings] == list(rules_of(found))
    assert len(found) == 1 + 2 * len(bindings)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as own:
        yield own


@pytest.fixture
def cluster(server: Server) -> Cluster:
    server.controller(on=True)
    return Cluster(server)


class Worker:
    """`atlctl` with the token of the account, which has the rights of these files."""

    def __init__(self, server: Server, *files: str) -> None:
        rules = [rule for found in rules_of(objects(*files)).values() for rule in found]
        server.user(USER, [{**rule, "namespace": NAMESPACE} for rule in rules], ["system:serviceaccounts"])
        self._config = server.write_kubeconfig("worker", user=USER, token=f"token-{USER}", namespace=NAMESPACE)

    def __call__(self, *words: str) -> Result:
        return run_cli(*words, env={"KUBECONFIG": str(self._config)})

    def data(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json").stdout)["data"]


def test_a_worker_looks_and_runs_commands_and_cannot_stop(server: Server, cluster: Cluster) -> None:
    cluster.pytorchjob("train", run=True)
    for index in range(2):
        server.wait_phase(f"train-worker-{index}", "Running")
    worker = Worker(server, "web-terminal.yaml")
    assert [job["name"] for job in worker.data("jobs")["jobs"]] == ["train"]
    assert [one["state"] for one in worker.data("ps", "train")["workers"]] == ["Running", "Running"]
    assert b"worker-1: step 1" in worker("logs", "train").stdout
    assert worker("events", "train").code == 0
    ran = worker("exec", "-j", "train", "--all", "--", "echo", "from inside")
    assert (ran.stdout.count(b"from inside"), ran.code) == (2, 0)
    missing = {item["purpose"] for item in worker.data("doctor")["permissions"] if not item["allowed"]}
    assert missing == {"stop", "delete"}
    refused = worker("stop", "train", "--yes", "--no-save")
    assert refused.code == 4
    assert b"pytorchjobs" in refused.stderr
    assert all(cluster.pods("train", 2))


def test_with_the_second_file_it_stops_and_resumes_and_cannot_delete(server: Server, cluster: Cluster) -> None:
    cluster.pytorchjob("other")
    worker = Worker(server, "web-terminal.yaml", "web-terminal-stop.yaml")
    missing = {item["purpose"] for item in worker.data("doctor")["permissions"] if not item["allowed"]}
    assert missing == {"delete"}
    assert worker("stop", "other", "--yes", "--delete", "--no-save").code == 4
    assert all(cluster.pods("other", 2))
    assert worker("stop", "other", "--yes", "--no-save").code == 0
    assert cluster.pods("other", 2) == [None, None]
    assert worker("resume", "other", "--yes").code == 0


def test_in_other_namespaces_it_may_nothing(server: Server, cluster: Cluster) -> None:
    worker = Worker(server, "web-terminal.yaml", "web-terminal-stop.yaml")
    assert worker("jobs", "-n", "kube-system").code == 4
