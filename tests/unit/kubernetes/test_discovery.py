from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atlctl.backends.kubernetes import discovery
from atlctl.backends.kubernetes.api import ApiError, NoServer, NotFound, Query
from atlctl.backends.kubernetes.discovery import Served, discover, read
from tests.support.recordings import load, names, needs_recordings
from tests.unit.kubernetes.fakecluster import FakeApi

Object = dict[str, Any]


def aggregated(**groups: dict[str, list[str]]) -> Object:
    """Groups (`_` for `.`, `__` for `-`) -> version -> plurals."""
    items = []
    for group, versions in groups.items():
        listed = [
            {
                "version": version,
                "resources": [
                    {"resource": plural, "scope": "Namespaced", "verbs": ["get", "list"]} for plural in plurals
                ],
            }
            for version, plurals in versions.items()
        ]
        items.append({"metadata": {"name": group.replace("__", "-").replace("_", ".")}, "versions": listed})
    return {"kind": "APIGroupDiscoveryList", "items": items}


def test_kinds_are_found_as_plural_and_group() -> None:
    document = aggregated(
        batch={"v1": ["jobs", "cronjobs"]}, batch_volcano_sh={"v1alpha1": ["jobs"]}, x_y={"v1": ["jobs"]}
    )
    served = read([document])
    assert served.versions == {"jobs.batch": "v1", "jobs.batch.volcano.sh": "v1alpha1"}
    assert [kind.title for kind, _ in served.kinds()] == ["VolcanoJob", "Job"]
    assert served.kind("jobs.batch") is not None
    assert served.kind("jobsets.jobset.x-k8s.io") is None
    assert served.kind("pods") is not None


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["v1"], "v1"),
        (["v2beta1"], "v2beta1"),
        (["v1", "v2beta1"], "v2beta1"),
        (["v1", "v2beta2"], "v1"),
        (["v3"], "v3"),
    ],
)
def test_mpijobs_are_read_as_the_served_version_says(versions: list[str], chosen: str) -> None:
    served = read([aggregated(kubeflow_org={version: ["mpijobs"] for version in versions})])
    assert served.versions["mpijobs.kubeflow.org"] == chosen
    ((kind, version),) = served.kinds()
    assert version == chosen
    assert kind.full == (chosen in ("v1", "v3"))


def test_a_version_that_is_not_known_is_still_asked_for() -> None:
    served = read([aggregated(trainer_kubeflow_org={"v1": ["trainjobs"]})])
    assert [(kind.title, version) for kind, version in served.kinds()] == [("TrainJob", "v1")]


def test_cluster_scoped_and_unreadable_resources_are_left_out() -> None:
    document = aggregated(batch={"v1": ["jobs"]})
    resource = document["items"][0]["versions"][0]["resources"][0]
    resource["scope"] = "Cluster"
    assert read([document]).versions == {}
    resource |= {"scope": "Namespaced", "verbs": ["watch"]}
    assert read([document]).versions == {}


def test_paths_are_quoted() -> None:
    served = Served({"jobs.batch": "v1"})
    (kind, _) = served.kinds()[0]
    assert served.path(kind.resource, "team", "x") == "/apis/batch/v1/namespaces/team/jobs/x"
    assert served.path(kind.resource, None) == "/apis/batch/v1/jobs"
    assert served.path(kind.resource, "../..", "a/b?c") == "/apis/batch/v1/namespaces/..%2F../jobs/a%2Fb%3Fc"
    assert served.path(discovery.COMMANDS, "team") is None


class Server(FakeApi):
    """Answers discovery with documents by path; errors are raised."""

    def __init__(self, documents: dict[str, Object | ApiError | NoServer]) -> None:
        super().__init__([])
        self.documents = documents

    async def get(self, path: str, query: Query = ()) -> Object:
        self.requests.append((path, ""))
        found = self.documents.get(path, NotFound(404, "", "404 page not found"))
        if isinstance(found, Exception):
            raise found
        return found


GROUPS = {
    "kind": "APIGroupList",
    "groups": [
        {"name": "batch", "versions": [{"version": "v1"}]},
        {"name": "kubeflow.org", "versions": [{"version": "v1"}, {"version": "v2beta1"}]},
        {"name": "metrics.k8s.io", "versions": [{"version": "v1beta1"}]},
    ],
}


OURS = ("batch/v1", "kubeflow.org/v1", "kubeflow.org/v2beta1")


def resources(group_version: str, *plurals: str) -> Object:
    listed = [{"name": plural, "namespaced": True, "verbs": ["get", "list"]} for plural in plurals]
    listed.append({"name": f"{plurals[0]}/status", "namespaced": True, "verbs": ["get"]})
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": listed}


def test_discovery_of_a_server_that_aggregates_takes_one_request() -> None:
    api = Server({"/apis": aggregated(batch={"v1": ["jobs"]})})
    assert asyncio.run(discover(api)).versions == {"jobs.batch": "v1"}
    assert len(api.requests) == 1


def test_classic_discovery_asks_for_our_groups_only_and_keeps_what_failed() -> None:
    broken = ApiError(503, "", "service unavailable")
    documents: dict[str, Object | ApiError | NoServer] = {
        "/apis": GROUPS,
        "/apis/batch/v1": resources("batch/v1", "jobs"),
        "/apis/kubeflow.org/v1": broken,
    }
    api = Server(documents)
    served = asyncio.run(discover(api))
    assert served.versions == {"jobs.batch": "v1"}
    assert served.problems == (broken,)
    assert {path for path, _ in api.requests} == {"/apis", *(f"/apis/{gv}" for gv in OURS)}
    assert len(api.requests) == 4
    with pytest.raises(NoServer):
        asyncio.run(discover(Server({**documents, "/apis/batch/v1": NoServer("gone")})))


@needs_recordings
def test_recorded_discovery_says_the_same_in_both_forms() -> None:
    whole = read([load("discovery/apis.aggregated")["response"]["body"]])
    assert whole.versions["trainjobs.trainer.kubeflow.org"] == "v1alpha1"
    assert whole.versions["mpijobs.kubeflow.org"] == "v1"
    assert whole.versions["jobs.batch.volcano.sh"] == "v1alpha1"
    assert "workloads.kueue.x-k8s.io" not in whole.versions
    classic = [load(name)["response"]["body"] for name in names("discovery/group.*.v1*.json")]
    assert read([item for item in classic if isinstance(item, dict)]).versions == whole.versions
    groups = discovery.group_versions(load("discovery/apis")["response"]["body"])
    assert {group for group, _ in groups} == {name.partition(".")[2] for name in whole.versions}
