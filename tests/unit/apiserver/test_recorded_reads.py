"""Logs, permissions and discovery of the test API server, compared with recordings of a real one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.recordings import load, names, needs_recordings
from tests.unit.apiserver import world
from tests.unit.apiserver.world import Object, World, content_type, same_refusal

pytestmark = needs_recordings


# logs

LOG_REFUSALS = [
    name
    for name in names("logs/*.json")
    if load(name)["response"]["status"] >= 400 and "follow" not in name and "/state." not in name and "rdzv" not in name
]


@pytest.mark.parametrize("name", LOG_REFUSALS)
def test_refused_logs(name: str) -> None:
    recorded = load(name)

    async def work(here: World) -> None:
        here.api.control.put(world.pod("chatter", "main", "sidecar"), fake=True)
        status, headers, body = await here.send(recorded["request"])
        assert status == recorded["response"]["status"]
        assert content_type(headers) == content_type(recorded["response"]["headers"])
        same_refusal(body, recorded["response"]["body"])

    world.run(work)


@pytest.mark.parametrize("name", names("logs/state.*.json"))
def test_logs_of_states(name: str) -> None:
    """The pod of `podstates/` is restored, with output if it had printed any."""
    recorded = load(name)
    state = name.removeprefix("logs/state.").removesuffix(".init")

    async def work(here: World) -> None:
        pod = load(f"podstates/{state}")["response"]["body"]
        here.api.control.put(pod)
        response = recorded["response"]
        text = response["body"] if response["status"] == 200 else ""
        if text and "unable to retrieve" not in text:
            container = recorded["request"]["query"].get("container", [""])[0]
            here.api.control.log(pod["metadata"]["name"], "ml-team", container, lines=text.splitlines(), ended=True)
        status, headers, body = await here.send(recorded["request"])
        assert status == response["status"]
        assert content_type(headers) == content_type(response["headers"])
        same_refusal(body, response["body"])

    world.run(work)


@pytest.mark.parametrize("name", ["tail", "tail0", "limitBytes", "sinceTime", "timestamps"])
def test_logs_of_a_recorded_file(name: str, tmp_path: Any) -> None:
    """The recorded log with timestamps is the file; each option returns the same as the real server."""
    whole = load("logs/timestamps")["response"]["body"]
    recorded = load(f"logs/{name}")
    path = tmp_path / "log"
    path.write_text(whole)

    async def work(here: World) -> None:
        here.api.control.put(world.pod("chatter", "main", "sidecar"), fake=True)
        here.api.control.log("chatter", "ml-team", "main", path=str(path))
        status, _, body = await here.send(recorded["request"])
        assert status == 200
        wanted = recorded["response"]["body"]
        # The log grew by a line or two between the recordings.
        if name in ("tail", "sinceTime"):
            assert body.splitlines()[0].split(" ")[-2:] == wanted.splitlines()[0].split(" ")[-2:] or body in whole
        if name in ("tail0", "limitBytes", "timestamps"):
            assert body == wanted

    world.run(work)


# permissions

AUTH = [name for name in names("auth/*.json") if not name.startswith(("auth/ssrr.admin", "auth/whoami"))]


@pytest.mark.parametrize("name", AUTH)
def test_access(name: str) -> None:
    recorded = load(name)

    async def work(here: World) -> None:
        status, headers, body = await here.send(recorded["request"])
        wanted = recorded["response"]
        assert status == wanted["status"]
        assert content_type(headers) == content_type(wanted["headers"])
        if status >= 400:
            same_refusal(body, wanted["body"])
            assert headers.get("X-Content-Type-Options") == wanted["headers"].get("X-Content-Type-Options")
        elif "ssar" in name:
            assert (body["spec"], body["status"]) == (wanted["body"]["spec"], wanted["body"]["status"])
        else:
            rules = [rule for rule in wanted["body"]["status"]["resourceRules"] if "certificates" not in str(rule)]
            both = (body["status"]["resourceRules"], rules)
            found, real = (sorted(json.dumps(rule, sort_keys=True) for rule in one) for one in both)
            assert found == real

    world.run(work)


# discovery

DISCOVERY = ["anonymous-apis", "apis.not-acceptable", "badtoken", "group.none", "group.kubeflow.org", "healthz"]
DISCOVERY += ["version", "api"]


@pytest.mark.parametrize("name", [f"discovery/{name}" for name in DISCOVERY])
def test_discovery(name: str) -> None:
    recorded = load(name)

    async def work(here: World) -> None:
        if name.endswith("kubeflow.org"):
            served = here.api.cluster.served
            served.resources = [r for r in served.resources if r.version != "v2beta1"]
            served.drop("none")
        status, headers, body = await here.send(recorded["request"])
        wanted = recorded["response"]
        assert (status, content_type(headers)) == (wanted["status"], content_type(wanted["headers"]))
        if status >= 400:
            same_refusal(body, wanted["body"])
        elif isinstance(body, str):
            assert body == wanted["body"]
        else:
            assert set(body) == set(wanted["body"])

    world.run(work)


def described(listed: list[Object]) -> dict[str, Object]:
    return {one["name"]: {key: one.get(key) for key in ("kind", "namespaced", "singularName")} for one in listed}


@pytest.mark.parametrize("name", [*names("discovery/group.*.v1*.json"), "discovery/api-v1"])
def test_resources_are_described_as_they_were(name: str) -> None:
    recorded = load(name)

    async def work(here: World) -> None:
        status, _, body = await here.send(recorded["request"])
        assert status == 200
        wanted = described(recorded["response"]["body"]["resources"])
        found = {key: value for key, value in described(body["resources"]).items() if key in wanted}
        assert found == {key: wanted[key] for key in found}
        assert found, "nothing in common"

    world.run(work)


@pytest.mark.parametrize("name", ["discovery/api.aggregated", "discovery/apis.aggregated"])
def test_aggregated_discovery(name: str) -> None:
    recorded = load(name)

    async def work(here: World) -> None:
        status, headers, body = await here.send(recorded["request"])
        wanted = recorded["response"]
        assert (status, content_type(headers)) == (wanted["status"], content_type(wanted["headers"]))
        real = {item["metadata"].get("name"): item for item in wanted["body"]["items"]}
        common = [item for item in body["items"] if item["metadata"].get("name") in real]
        assert len(common) > 5 or name.endswith("api.aggregated")
        for item in common:
            versions = {one["version"]: one for one in real[item["metadata"].get("name")]["versions"]}
            for version in item["versions"]:
                if version["version"] not in versions:
                    continue
                known = {one["resource"]: one for one in versions[version["version"]]["resources"]}
                for one in version["resources"]:
                    if one["resource"] in known:
                        keys = ("responseKind", "scope", "singularResource")
                        real_one = known[one["resource"]]
                        assert {k: one[k] for k in keys} == {k: real_one[k] for k in keys}
        etag = headers["Etag"]
        async with here.session.get(
            here.url(recorded["request"]), headers=here.headers(recorded["request"]) | {"If-None-Match": etag}
        ) as again:
            assert again.status == 304

    world.run(work)
