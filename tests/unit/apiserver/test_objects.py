"""Objects of the test API server: selectors, pages, watches, owners, permissions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.unit.apiserver.client import PODS, Client, pod, run

JOBS = "/apis/batch/v1/namespaces/default/jobs"
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "default"}, "spec": {}}


def labelled(name: str, **labels: str) -> dict[str, Any]:
    made = pod(name)
    made["metadata"]["labels"] = labels
    return made


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("a=1", "pq"),
        ("a==1,b=x", "p"),
        ("a!=1", "rs"),
        ("a in (2, 3)", "r"),
        ("a notin (1,2)", "s"),
        ("a", "pqr"),
        ("!a", "s"),
        ("b in (x,y),a", "pq"),
        ("", "pqrs"),
    ],
)
def test_label_selectors(selector: str, names: str) -> None:
    async def work(client: Client) -> None:
        for one in (labelled("p", a="1", b="x"), labelled("q", a="1", b="y"), labelled("r", a="2"), labelled("s")):
            client.control.put(one)
        status, body = await client.call("GET", PODS, labelSelector=selector)
        assert status == 200
        assert "".join(item["metadata"]["name"] for item in body["items"]) == names
        status, _ = await client.call("GET", PODS, labelSelector="a b")
        assert status == 400

    run(work)


def test_field_selectors() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p", nodeName="n1"), fake=True)
        client.control.put(pod("q"))
        for selector, names in (
            ("metadata.name=q", ["q"]),
            ("status.phase!=Running", ["q"]),
            ("spec.nodeName=n1,status.phase=Running", ["p"]),
        ):
            _, body = await client.call("GET", PODS, fieldSelector=selector)
            assert [item["metadata"]["name"] for item in body["items"]] == names

    run(work)


def test_pages() -> None:
    async def work(client: Client) -> None:
        client.control.scale(pod("p-{i}"), 25)
        seen: list[str] = []
        token = ""
        for left in (15, 5, None):
            status, body = await client.call("GET", f"{PODS}?continue={token}", limit="10")
            assert status == 200
            seen += [item["metadata"]["name"] for item in body["items"]]
            token = body["metadata"].get("continue", "")
            assert body["metadata"].get("remainingItemCount") == left
        assert not token
        assert len(set(seen)) == len(seen) == 25
        _, body = await client.call("GET", PODS, limit="10")
        client.control.compact()
        client.control.put(pod("another"))
        client.control.compact()
        status, refused = await client.call("GET", f"{PODS}?continue={body['metadata']['continue']}", limit="10")
        assert (status, refused["reason"]) == (410, "Expired")

    run(work)


def watch(client: Client, path: str, **query: str) -> Any:
    text = "&".join(f"{key}={value}" for key, value in {"watch": "true", **query}.items())
    return client.session.get(f"{client.api.url}{path}?{text}", headers={"Authorization": f"Bearer {client.token}"})


def test_watch() -> None:
    async def work(client: Client) -> None:
        client.control.put(labelled("p", a="1"))
        _, listed = await client.call("GET", PODS)
        version = listed["metadata"]["resourceVersion"]
        async with watch(
            client, PODS, resourceVersion=version, labelSelector="a%3D1", timeoutSeconds="2", allowWatchBookmarks="true"
        ) as response:
            client.control.put(labelled("other"))
            client.control.patch("Pod", "p", {"status": {"phase": "Running"}})
            client.control.put(labelled("q", a="1"))
            client.control.patch("Pod", "q", {"metadata": {"labels": {"a": "2"}}})
            client.control.remove("Pod", "p")
            events = [json.loads(line) async for line in response.content]
        told = [(event["type"], event["object"]["metadata"].get("name")) for event in events]
        # If an object does not match any more, the watcher gets DELETED.
        assert told == [
            ("MODIFIED", "p"),
            ("ADDED", "q"),
            ("DELETED", "q"),
            ("DELETED", "p"),
            ("BOOKMARK", None),
        ]
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
        assert versions == sorted(versions)
        assert events[0]["object"]["kind"] == "Pod"

    run(work)


def test_watch_too_old_and_cut() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"))
        _, listed = await client.call("GET", PODS)
        client.control.put(pod("q"))
        client.control.compact()
        version = listed["metadata"]["resourceVersion"]
        async with watch(client, PODS, resourceVersion=version) as response:
            assert response.status == 200
            event = json.loads(await response.read())
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        client.control.fault({"action": "drop-after", "kind": "watch", "bytes": 1, "times": 1})
        async with watch(client, PODS, resourceVersion=str(client.api.cluster.store.version)) as response:
            client.control.put(pod("r"))
            assert json.loads(await response.content.readline())["object"]["metadata"]["name"] == "r"
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await response.read()

    run(work)


def owned(name: str, uid: str) -> dict[str, Any]:
    made = pod(name)
    made["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid}]
    return made


@pytest.mark.parametrize("policy", ["", "Background", "Foreground", "Orphan"])
def test_what_becomes_of_pods(policy: str) -> None:
    async def work(client: Client) -> None:
        client.control.settings({"fake_stop": 0.3})
        uid = client.control.put(JOB)["metadata"]["uid"]
        client.control.put(owned("p", uid), fake=True)
        body = {"propagationPolicy": policy} if policy else None
        status, answer = await client.call("DELETE", f"{JOBS}/j", body)
        assert (status, answer["kind"]) == (200, "Status" if policy == "Background" else "Job")
        gone, _ = await client.call("GET", f"{JOBS}/j")
        assert gone == (404 if policy == "Background" else 200)
        await client.until(lambda: client.control.get("Job", "j", api_version="batch/v1") is None)
        left = client.control.get("Pod", "p")
        if policy in ("", "Orphan"):
            assert left is not None
            assert "ownerReferences" not in left["metadata"]
            assert "deletionTimestamp" not in left["metadata"]
        elif policy == "Foreground":
            assert left is None
        else:
            await client.until(lambda: client.control.get("Pod", "p") is None)

    run(work)


def test_a_body_silently_cancels_a_dry_run_in_the_query() -> None:
    async def work(client: Client) -> None:
        for body, stays in ((None, True), ({"dryRun": ["All"]}, True), ({"propagationPolicy": "Background"}, False)):
            client.control.put(JOB)
            status, _ = await client.call("DELETE", f"{JOBS}/j", body, dryRun="All")
            assert status == 200
            assert (client.control.get("Job", "j", api_version="batch/v1") is not None) is stays

    run(work)


def test_writes() -> None:
    async def work(client: Client) -> None:
        made = {"metadata": {"generateName": "j-"}, "spec": {"suspend": True}}
        status, dry = await client.call("POST", JOBS, made, dryRun="All")
        assert (status, dry["metadata"]["name"][:2]) == (201, "j-")
        assert (await client.call("GET", JOBS))[1]["items"] == []
        status, job = await client.call("POST", JOBS, made)
        path = f"{JOBS}/{job['metadata']['name']}"
        assert (status, job["metadata"]["generation"]) == (201, 1)
        again = {"metadata": {"name": job["metadata"]["name"]}}
        assert (await client.call("POST", JOBS, again))[1]["reason"] == "AlreadyExists"
        status, changed = await client.call("PATCH", path, {"spec": {"suspend": None}}, merge=True)
        assert (status, changed["spec"], changed["metadata"]["generation"]) == (200, {}, 2)
        stale = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}, "spec": {"suspend": True}}
        assert (await client.call("PATCH", path, stale, merge=True))[0] == 409
        other = {"metadata": {"uid": "x"}, "spec": {"suspend": True}}
        assert (await client.call("PATCH", path, other, merge=True))[0] == 422
        same = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": {"suspend": True}}
        assert (await client.call("PATCH", path, same, merge=True))[1]["spec"] == {"suspend": True}
        wrong = {"preconditions": {"uid": "x"}}
        assert (await client.call("DELETE", path, wrong))[1]["reason"] == "Conflict"

    run(work)


def test_rights_and_tokens() -> None:
    async def work(client: Client) -> None:
        client.control.put(pod("p"), fake=True)
        rules = [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/exec"], "namespace": "default"}]
        client.token = client.control.user("eve", rules)
        assert (await client.call("GET", f"{PODS}/p"))[0] == 200
        assert (await client.call("GET", PODS))[0] == 403
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.exec("p", "true")
        assert caught.value.status == 403, "exec needs create beside get"
        client.control.user("eve", [*rules, {"verbs": ["create"], "resources": ["pods/exec"]}])
        assert (await client.exec("p", "true")).close == 1000
        client.control.expire("token-eve")
        assert (await client.call("GET", f"{PODS}/p"))[0] == 401
        client.control.token("eve", "fresh")
        client.token = "fresh"
        assert (await client.call("GET", f"{PODS}/p"))[0] == 200
        assert [entry["status"] for entry in client.control.requests()][-2:] == [401, 200]
        assert client.control.requests()[-1]["user"] == "eve"

    run(work)


def test_what_is_not_served() -> None:
    async def work(client: Client) -> None:
        trainjobs = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs"
        assert (await client.call("GET", trainjobs))[0] == 200
        client.control.unserve("trainer.kubeflow.org")
        assert await client.call("GET", trainjobs) == (404, "404 page not found\n")
        client.control.serve("example.com", "v1", "things", "Thing")
        assert (await client.call("GET", "/apis/example.com/v1/things"))[1]["kind"] == "ThingList"

    run(work)


def test_a_broken_aggregated_api() -> None:
    async def work(client: Client) -> None:
        client.control.broken("metrics.k8s.io", "v1beta1")
        assert await client.call("GET", "/apis/metrics.k8s.io/v1beta1") == (503, "service unavailable\n")
        assert (await client.call("GET", "/apis/metrics.k8s.io/v1beta1/pods"))[0] == 503
        _, found = await client.call("GET", "/apis")
        assert "metrics.k8s.io" in [group["name"] for group in found["groups"]]
        form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        headers = {"Authorization": "Bearer token-admin", "Accept": form}
        async with client.session.get(f"{client.api.url}/apis", headers=headers) as response:
            listed = {item["metadata"]["name"]: item["versions"] for item in (await response.json())["items"]}
        assert listed["metrics.k8s.io"] == [{"version": "v1beta1", "freshness": "Stale"}]
        assert listed["batch"][0]["freshness"] == "Current"

    run(work)


def test_many_at_once() -> None:
    async def work(client: Client) -> None:
        client.control.scale(pod("p-{i}"), 100)
        done = await asyncio.gather(*(client.exec(f"p-{i}", "echo", str(i)) for i in range(100)))
        assert [one.channels[1].decode() for one in done] == [f"{i}\n" for i in range(100)]

    run(work)
