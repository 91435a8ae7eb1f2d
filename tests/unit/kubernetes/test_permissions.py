"""Required permissions, the answers, and the Role with missing ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlctl.backends.kubernetes.api import ApiError, Denied, JsonAnswer, NoServer, NotFound, Object
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.permissions import (
    ACCESS_REVIEWS,
    PLACEHOLDER,
    USER_REVIEWS,
    Review,
    Right,
    User,
    missing_role,
    review,
    rights,
    user,
)
from tests.support.recordings import load, names, needs_recordings

SERVED = Served(
    {
        "jobs.batch": "v1",
        "statefulsets.apps": "v1",
        "trainjobs.trainer.kubeflow.org": "v1alpha1",
        "mpijobs.kubeflow.org": "v2beta1",
        "elasticjobs.elastic.iml.github.io": "v1alpha1",
        "jobs.batch.volcano.sh": "v1alpha1",
        "workloads.kueue.x-k8s.io": "v1beta1",
        "podgroups.scheduling.volcano.sh": "v1beta1",
    }
)
GET = Right("", "pods", "get", "read")
EXEC = Right("", "pods/exec", "create", "exec")
LIST_JOBS = Right("batch", "jobs", "list", "kinds")


class Reviews:
    """An `Api` that accepts only reviews: `decide` returns the status of the answer, or raises."""

    server, context, namespace = "https://example.invalid", None, "team"

    def __init__(self, decide: Callable[[Object], Any], pause: float = 0.0) -> None:
        self.decide, self.pause = decide, pause
        self.bodies: list[Object] = []
        self.running = self.most = 0

    async def send(self, method: str, path: str, body: Object | None, *_: Any, **__: Any) -> JsonAnswer:
        assert method == "POST"
        assert path in (ACCESS_REVIEWS, USER_REVIEWS)
        assert body is not None
        self.bodies.append(body)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.pause)
            return JsonAnswer({"status": self.decide(body)})
        finally:
            self.running -= 1


def asked(api: Reviews, wanted: list[Right], **options: Any) -> list[Review]:
    return asyncio.run(review(api, wanted, "team", **options))  # type: ignore[arg-type]


def attributes(body: Object) -> Object:
    found: Object = body["spec"]["resourceAttributes"]
    return found


def shown(served: Served, purpose: str) -> list[str]:
    return [f"{right.verb} {right.on}" for right in rights(served) if right.purpose == purpose]


def test_a_bare_server_is_asked_for_pods_alone() -> None:
    found = rights(Served())
    assert {right.group for right in found} == {""}
    assert shown(Served(), "read") == ["get pods", "list pods"]
    assert shown(Served(), "logs") == ["get pods/log"]
    assert shown(Served(), "follow") == ["watch pods"]
    assert shown(Served(), "exec") == ["get pods/exec", "create pods/exec"]
    assert shown(Served(), "events") == ["list events"]
    assert shown(Served(), "stop") == []
    assert shown(Served(), "delete") == ["delete pods"]


def test_what_a_kind_needs_follows_from_how_it_is_stopped() -> None:
    stop, delete = shown(SERVED, "stop"), shown(SERVED, "delete")
    assert "patch jobs.batch" in stop
    assert "patch trainjobs.trainer.kubeflow.org" in stop
    assert "patch workloads.kueue.x-k8s.io" in stop
    assert "create commands.bus.volcano.sh" in stop
    # Volcano's jobs are stopped by Commands; kinds that atlctl does not stop need no permission for it.
    assert "patch jobs.batch.volcano.sh" not in stop
    assert "patch statefulsets.apps" not in stop
    assert "patch mpijobs.kubeflow.org" not in stop
    assert "delete mpijobs.kubeflow.org" in delete
    assert "delete elasticjobs.elastic.iml.github.io" not in delete
    assert "list elasticjobs.elastic.iml.github.io" in shown(SERVED, "kinds")
    assert shown(SERVED, "queues") == [
        "get podgroups.scheduling.volcano.sh",
        "list podgroups.scheduling.volcano.sh",
        "get workloads.kueue.x-k8s.io",
        "list workloads.kueue.x-k8s.io",
    ]


def test_no_right_is_asked_for_twice() -> None:
    found = rights(SERVED)
    assert len({(right.group, right.resource, right.verb) for right in found}) == len(found)


def test_a_subresource_is_sent_apart() -> None:
    api = Reviews(lambda body: {"allowed": True})
    asked(api, [GET, EXEC, LIST_JOBS])
    common = {"namespace": "team"}
    assert sorted(map(attributes, api.bodies), key=str) == sorted(
        (
            {**common, "verb": "get", "group": "", "resource": "pods"},
            {**common, "verb": "create", "group": "", "resource": "pods", "subresource": "exec"},
            {**common, "verb": "list", "group": "batch", "resource": "jobs"},
        ),
        key=str,
    )


def test_answers_keep_the_order() -> None:
    wanted = list(rights(SERVED))
    found = asked(Reviews(lambda body: {"allowed": attributes(body)["verb"] == "get"}), wanted)
    assert [item.right for item in found] == wanted
    assert {item.right.verb for item in found if item.allowed} == {"get"}


def test_reviews_under_way_are_bounded() -> None:
    api = Reviews(lambda body: {"allowed": True}, pause=0.01)
    asked(api, list(rights(SERVED)), parallel=3)
    assert api.most == 3


def test_what_is_not_answered_in_time_is_not_known() -> None:
    found = asked(Reviews(lambda body: {"allowed": True}, pause=60), [GET, EXEC], seconds=0.05)
    assert [item.allowed for item in found] == [None, None]
    assert found[0].reason == "no answer within 0.05 s"


@pytest.mark.parametrize(
    "failure",
    [NoServer("gone"), ApiError(500, "", "gone", message="gone"), Denied(403, "Forbidden", "x", message="gone")],
)
def test_a_failure_is_no_answer(failure: ApiError) -> None:
    def decide(body: Object) -> Object:
        if attributes(body)["verb"] == "create":
            raise failure
        return {"allowed": False, "reason": "no"}

    first, second = asked(Reviews(decide), [GET, EXEC])
    assert (first.allowed, first.reason) == (False, "no")
    assert (second.allowed, second.reason) == (None, "gone")


def test_who_is_not_known_ends_it_at_once() -> None:
    def decide(body: Object) -> Object:
        raise Denied(401, "Unauthorized", "", message="who are you")

    api = Reviews(decide, pause=0.01)
    with pytest.raises(Denied, match="who are you"):
        asked(api, list(rights(SERVED)), parallel=1)
    assert len(api.bodies) <= 2


@pytest.mark.parametrize("status", [None, [], "yes", {}, {"allowed": "true"}, {"allowed": 1}])
def test_an_odd_answer_is_neither_yes_nor_no(status: Any) -> None:
    (found,) = asked(Reviews(lambda body: status), [GET])
    assert found.allowed is None


def test_an_evaluation_error_is_told() -> None:
    (found,) = asked(Reviews(lambda body: {"allowed": False, "evaluationError": "webhook is down"}), [GET])
    assert found == Review(GET, False, "webhook is down")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(("allowed", "reason", "userInfo", "username", "groups")), inner)
        ),
        max_leaves=8,
    )
)
def test_no_answer_breaks_it(status: Any) -> None:
    (found,) = asked(Reviews(lambda body: status), [GET])
    assert found.allowed in (True, False, None)
    who = asyncio.run(user(Reviews(lambda body: status)))  # type: ignore[arg-type]
    assert who is None or who.name


def test_who_asks() -> None:
    told = {"userInfo": {"username": "eve", "groups": ["a", 7, "", "b"]}}
    assert asyncio.run(user(Reviews(lambda body: told))) == User("eve", ("a", "b"))  # type: ignore[arg-type]


def test_an_old_server_does_not_say_who_asks() -> None:
    def decide(body: Object) -> Object:
        raise NotFound(404, "", "404 page not found")

    with pytest.raises(NotFound):
        asyncio.run(user(Reviews(decide)))  # type: ignore[arg-type]


def refused(*wanted: Right) -> list[Review]:
    return [Review(right, False) for right in wanted]


def test_nothing_missing_needs_no_role() -> None:
    assert missing_role([Review(GET, True), Review(EXEC, None)], "team", None) == []


def test_the_role_holds_what_is_missing_and_nothing_else() -> None:
    wanted = refused(
        EXEC,
        Right("", "pods/exec", "get", "exec"),
        LIST_JOBS,
        Right("batch.volcano.sh", "jobs", "list", "kinds"),
        Right("kubeflow.org", "pytorchjobs", "get", "kinds"),
        Right("kubeflow.org", "tfjobs", "get", "kinds"),
        Right("batch", "jobs", "delete", "delete"),
        Right("batch", "jobs", "patch", "stop"),
    )
    role, binding = missing_role([Review(GET, True), *wanted], "team", User("eve"))
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list", "patch"]},
        {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"], "verbs": ["list"]},
        {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs", "tfjobs"], "verbs": ["get"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["delete"]},
    ]
    assert role["metadata"] == binding["metadata"]
    assert role["metadata"]["namespace"] == "team"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]


def test_another_role_has_another_name() -> None:
    """With the same name, the second Role would replace the first one's permissions."""
    names = {
        missing_role(refused(*wanted), namespace, who)[0]["metadata"]["name"]
        for wanted in ((GET,), (GET, EXEC))
        for namespace in ("team", "other")
        for who in (User("eve"), User("frank"))
    }
    assert len(names) == 8
    assert missing_role(refused(GET), "team", None) == missing_role(refused(GET), "team", None)


@pytest.mark.parametrize(
    ("who", "subject"),
    [
        (None, {"kind": "User", "name": PLACEHOLDER}),
        (User("system:anonymous"), {"kind": "User", "name": PLACEHOLDER}),
        (User("system:serviceaccount:ml:trainer"), {"kind": "ServiceAccount", "name": "trainer", "namespace": "ml"}),
        (User("system:serviceaccount:odd"), {"kind": "User", "name": "system:serviceaccount:odd"}),
    ],
)
def test_who_gets_the_role(who: User | None, subject: Object) -> None:
    _, binding = missing_role(refused(GET), "team", who)
    (found,) = binding["subjects"]
    assert {key: value for key, value in found.items() if key != "apiGroup"} == subject


def recorded(name: str) -> tuple[Object, Object]:
    """The request, and the status in the answer."""
    found = load(name)
    return found["request"]["body"], found["response"]["body"]["status"]


@needs_recordings
@pytest.mark.parametrize("name", names("auth/ssar.*.json"))
def test_a_real_server_was_asked_the_same(name: str) -> None:
    body, status = recorded(name)
    of = attributes(body)
    sub = f"/{of['subresource']}" if "subresource" in of else ""
    right = Right(of["group"], of["resource"] + sub, of["verb"], "exec")
    api = Reviews(lambda _: status)
    (found,) = asyncio.run(review(api, [right], of["namespace"]))  # type: ignore[arg-type]
    assert api.bodies == [body]
    assert found == Review(right, status["allowed"], status.get("reason", ""))


@needs_recordings
def test_a_real_server_says_who_asks() -> None:
    body, status = recorded("auth/whoami")
    api = Reviews(lambda _: status)
    assert asyncio.run(user(api)) == User("frank", ("researchers2", "system:authenticated"))  # type: ignore[arg-type]
    assert api.bodies == [body]
