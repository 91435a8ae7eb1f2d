"""The writes of a stop: dry runs, preconditions, unsuccessful answers, and recordings of real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from atlctl.backends.kubernetes import client, stopping
from atlctl.backends.kubernetes.api import ApiError, Conflict, Denied, JsonAnswer, NoServer, NotFound
from atlctl.backends.kubernetes.stopplan import Write
from atlctl.jobs.errors import AtlctlError, NotAllowed
from tests.support.recordings import load, needs_recordings
from tests.unit.kubernetes.fakecluster import FakeApi

Object = dict[str, Any]
PATH = "/apis/batch/v1/namespaces/team/jobs/x"
PATCH = Write("PATCH", PATH, {"spec": {"suspend": True}}, "Job x", "uid-1", expect=(("spec", "suspend"), True))
DELETE = Write("DELETE", PATH, {"propagationPolicy": "Foreground", "preconditions": {"uid": "uid-1"}}, "Job x", "uid-1")
POST = Write("POST", "/apis/bus/v1/commands", {"action": "AbortJob"}, "Job x", "uid-1", PATH, (("action",), "AbortJob"))


class Server(FakeApi):
    """Answers writes with `answer`, which may raise, and records them."""

    def __init__(self, answer: Callable[[str, Object], JsonAnswer], uid: str = "uid-1") -> None:
        super().__init__([])
        self.answer, self.uid = answer, uid
        self.sent: list[tuple[str, Object | None, list[tuple[str, str]], bool]] = []

    async def get(self, path: str, query: Any = ()) -> Object:
        return {"metadata": {"uid": self.uid}}

    async def send(
        self, method: str, path: str, body: Object | None, query: Any = (), *, merge_patch: bool = False
    ) -> JsonAnswer:
        self.sent.append((method, body, list(query), merge_patch))
        return self.answer(method, body or {})


def echo(_method: str, body: Object) -> JsonAnswer:
    return JsonAnswer(body)


def failing(error: Exception) -> Callable[[str, Object], JsonAnswer]:
    def answer(_method: str, _body: Object) -> JsonAnswer:
        raise error

    return answer


def send(server: Server, *writes: Write, dry_run: bool = False) -> list[str]:
    return asyncio.run(stopping.send(server, writes, dry_run=dry_run))


def test_a_dry_run_stands_in_the_query_of_a_patch_and_in_the_body_of_a_delete() -> None:
    server = Server(echo)
    send(server, PATCH, DELETE, POST, dry_run=True)
    assert server.sent == [
        ("PATCH", PATCH.body, [("dryRun", "All")], True),
        ("DELETE", {**DELETE.body, "dryRun": ["All"]}, [], False),
        ("POST", POST.body, [("dryRun", "All")], False),
    ]


def test_a_real_run_is_none() -> None:
    server = Server(echo)
    send(server, PATCH, DELETE, POST)
    assert server.sent == [
        ("PATCH", PATCH.body, [], True),
        ("DELETE", DELETE.body, [], False),
        ("POST", POST.body, [], False),
    ]


def test_a_field_that_the_server_dropped_is_no_success() -> None:
    warned = JsonAnswer({"spec": {}}, ('unknown field "spec.suspend"',))
    with pytest.raises(AtlctlError) as caught:
        send(Server(lambda *_: warned), PATCH)
    assert caught.value.message == (
        "Job x was not changed: its spec.suspend is not True in the server's answer; "
        'the server says: unknown field "spec.suspend"'
    )
    with pytest.raises(AtlctlError):
        send(Server(lambda *_: JsonAnswer({"kind": "Status", "status": "Success"})), PATCH)


def test_other_warnings_are_told() -> None:
    assert send(Server(lambda *_: JsonAnswer(PATCH.body, ("deprecated",))), PATCH) == ["deprecated"]


REPLACED = "Job x was replaced by another object of the same name meanwhile; it was not changed"
CONFLICT = Conflict(409, "Conflict", "Precondition failed: the UID in the precondition (a) does not match the UID ..")
IMMUTABLE = ApiError(422, "Invalid", 'Job.batch "x" is invalid: [metadata.uid: Invalid value: "a": field is immutable]')


@pytest.mark.parametrize(("write", "error"), [(DELETE, CONFLICT), (PATCH, IMMUTABLE)])
def test_an_object_made_anew_is_left_alone(write: Write, error: ApiError) -> None:
    with pytest.raises(AtlctlError) as caught:
        send(Server(failing(error), uid="uid-2"), write)
    assert caught.value.message == REPLACED
    with pytest.raises(ApiError):  # another conflict, regardless of its text
        send(Server(failing(error)), write)


def test_a_command_is_not_sent_to_an_object_made_anew() -> None:
    server = Server(echo, uid="uid-2")
    with pytest.raises(AtlctlError) as caught:
        send(server, POST)
    assert (caught.value.message, server.sent) == (REPLACED, [])


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Denied(403, "Forbidden", "no patch for you"), NotAllowed, "Job x was not changed: no patch for you"),
        (NotFound(404, "NotFound", "gone"), AtlctlError, "Job x is gone: nothing was changed"),
        (NoServer("broken pipe"), NoServer, "whether the change took effect is not known"),
        (Conflict(409, "Conflict", "the object has been modified"), Conflict, "the object has been modified"),
        (ApiError(422, "Invalid", "spec.other: field is immutable"), ApiError, "spec.other"),
    ],
)
def test_refusals(error: Exception, kind: type[AtlctlError], text: str) -> None:
    with pytest.raises(kind) as caught:
        send(Server(failing(error)), PATCH)
    assert text in caught.value.message


def test_what_is_gone_needs_no_deletion() -> None:
    assert send(Server(failing(NotFound(404, "NotFound", "gone"))), DELETE) == []


def test_one_that_fails_does_not_keep_the_others_from_being_sent() -> None:
    def answer(_method: str, body: Object) -> JsonAnswer:
        if body["preconditions"]["uid"] == "uid-1":
            raise Denied(403, "Forbidden", "not this one")
        return JsonAnswer(body)

    server = Server(answer)
    other = Write("DELETE", PATH, {"preconditions": {"uid": "uid-2"}}, "Pod y", "uid-2")
    with pytest.raises(NotAllowed, match="not this one"):
        send(server, DELETE, other)
    assert len(server.sent) == 2


def recorded(name: str) -> Callable[[str, Object], JsonAnswer]:
    """The answer of a real server, parsed by the real client."""
    response = load(f"mutations/{name}")["response"]

    def answer(_method: str, _body: Object) -> JsonAnswer:
        if response["status"] >= 400:
            import json

            body = response["body"]
            data = body if isinstance(body, str) else json.dumps(body)
            raise client.refusal(response["status"], response["headers"].get("Retry-After"), data.encode())
        warnings = response["headers"].get("Warning")
        return JsonAnswer(response["body"], (warnings,) if warnings else ())

    return answer


@needs_recordings
@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob"])
def test_real_answers_to_a_suspension_and_a_deletion(kind: str) -> None:
    path = ("spec", "runPolicy", "suspend") if kind == "pytorchjob" else ("spec", "suspend")
    write = Write("PATCH", PATH, {}, "Job x", "uid-1", expect=(path, True))
    assert send(Server(recorded(f"{kind}-suspend.patch")), write) == []
    assert send(Server(recorded(f"{kind}-suspend.dryrun")), write, dry_run=True) == []
    for name, asked in ((f"{kind}-suspend.uid-conflict", write), (f"{kind}-delete.uid-mismatch", DELETE)):
        with pytest.raises(AtlctlError) as caught:
            send(Server(recorded(name), uid="uid-2"), asked)
        assert caught.value.message == REPLACED
    with pytest.raises(Conflict):
        send(Server(recorded(f"{kind}-suspend.conflict")), write)
    with pytest.raises(NotAllowed):
        send(Server(recorded(f"{kind}-suspend.forbidden")), write)
    with pytest.raises(AtlctlError, match="is gone"):
        send(Server(recorded(f"{kind}-suspend.notfound")), write)


@needs_recordings
@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_a_real_answer_to_an_unknown_field(kind: str) -> None:
    with pytest.raises(AtlctlError, match="unknown field"):
        send(Server(recorded(f"{kind}-patch.unknown-field")), PATCH)


@needs_recordings
def test_a_real_answer_to_volcanos_command() -> None:
    assert send(Server(recorded("volcano-command-abort.dryrun.post")), POST, dry_run=True) == []
