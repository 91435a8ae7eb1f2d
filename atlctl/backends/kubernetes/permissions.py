"""The user's identity and permissions, and a Role with the missing ones.

The server decides each permission (SelfSubjectAccessReview). Its list of all rules may be incomplete if a webhook or a
cloud's IAM is involved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from atlctl.backends.kubernetes import discovery
from atlctl.backends.kubernetes.api import Api, Object
from atlctl.backends.kubernetes.discovery import Served
from atlctl.backends.kubernetes.kinds.base import Resource
from atlctl.backends.kubernetes.kinds.mechanism import Refuse, Suspend, VolcanoCommand
from atlctl.backends.kubernetes.kinds.registry import PODS
from atlctl.backends.questions import ask_all
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, no_answer
from atlctl.jobs.fields import mapping, text

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
USER_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ANONYMOUS = "system:anonymous"
#: The Role's subject if the server does not report the user.
PLACEHOLDER = "REPLACE-WITH-THE-USER"

#: Concurrent reviews; seconds for all of them.
PARALLEL = 16
PATIENCE = 30.0

_RBAC = "rbac.authorization.k8s.io"
_SERVICE_ACCOUNT = "system:serviceaccount:"

#: Purposes of permissions. All commands need `read`.
Purpose = Literal["read", "logs", "follow", "exec", "events", "kinds", "queues", "stop", "delete"]
PURPOSES: tuple[Purpose, ...] = ("read", "logs", "follow", "exec", "events", "kinds", "queues", "stop", "delete")


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource of a namespace. `resource` may have a subresource (`pods/exec`)."""

    group: str
    resource: str
    verb: str
    purpose: Purpose

    @property
    def on(self) -> str:
        """The resource in the format of `kubectl auth can-i`: `pods/exec`, `jobs.batch`."""
        plural, slash, sub = self.resource.partition("/")
        return f"{plural}{f'.{self.group}' if self.group else ''}{slash}{sub}"


@dataclass(frozen=True, slots=True)
class Review:
    """The server's answer. `allowed` is None if there is none; `reason` then says why. `reason` is untrusted text."""

    right: Right
    allowed: bool | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """The user, as the server sees it. Untrusted text."""

    name: str
    groups: tuple[str, ...] = ()


#: exec needs both verbs: a WebSocket is a GET, and from 1.35 on the server also requires `create`.
_ALWAYS = (
    Right("", "pods", "get", "read"),
    Right("", "pods", "list", "read"),
    Right("", "pods/log", "get", "logs"),
    Right("", "pods", "watch", "follow"),
    Right("", "pods/exec", "get", "exec"),
    Right("", "pods/exec", "create", "exec"),
    Right("", "events", "list", "events"),
)


def rights(served: Served) -> tuple[Right, ...]:
    """All permissions that atlctl's commands need on a server with these kinds."""
    found: dict[Right, None] = dict.fromkeys(_ALWAYS)

    def add(resource: Resource, purpose: Purpose, *verbs: str) -> None:
        found.update(dict.fromkeys(Right(resource.group, resource.plural, verb, purpose) for verb in verbs))

    for kind, _ in (*served.kinds(), (PODS, "v1")):
        if kind is not PODS:
            add(kind.resource, "kinds", "get", "list")
        how = kind.stop({})
        if isinstance(how, Suspend):
            add(kind.resource, "stop", "patch")
        elif isinstance(how, VolcanoCommand):
            add(discovery.COMMANDS, "stop", "create")
        if not isinstance(how, Refuse) or how.deletable:
            add(kind.resource, "delete", "delete")
    for groups in (discovery.VOLCANO_PODGROUPS, discovery.COSCHEDULING_PODGROUPS):
        if groups.name in served.versions:
            add(groups, "queues", "get", "list")
    if discovery.WORKLOADS.name in served.versions:
        add(discovery.WORKLOADS, "queues", "get", "list")
        add(discovery.WORKLOADS, "stop", "patch")
    return tuple(sorted(found, key=lambda right: PURPOSES.index(right.purpose)))


async def user(api: Api) -> User | None:
    """The authenticated user; None if the server does not report it (before 1.28). Raises the request's errors."""
    body: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    info = mapping(mapping((await api.send("POST", USER_REVIEWS, body)).data.get("status")).get("userInfo"))
    groups = info.get("groups")
    named = tuple(text(group) for group in groups) if type(groups) is list else ()
    name = text(info.get("username"))
    return User(name, tuple(group for group in named if group)) if name else None


async def review(
    api: Api, asked: Sequence[Right], namespace: str, *, parallel: int = PARALLEL, seconds: float = PATIENCE
) -> list[Review]:
    """The server's answers for `asked`, in order, with up to `parallel` requests at once.

    Raises NotAllowed if authentication fails (401). For other failures, and without an answer within `seconds`, the
    Review has no answer.
    """
    answers = await ask_all(asked, lambda right: _ask(api, right, namespace), seconds, parallel)
    return [answers.get(right) or Review(right, None, no_answer(seconds)) for right in asked]


async def _ask(api: Api, right: Right, namespace: str) -> Review:
    plural, _, sub = right.resource.partition("/")
    attributes = {"namespace": namespace, "verb": right.verb, "group": right.group, "resource": plural}
    body: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, **({"subresource": sub} if sub else {})}},
    }
    try:
        status = mapping((await api.send("POST", ACCESS_REVIEWS, body)).data.get("status"))
    except AtlctlError as error:
        if isinstance(error, NotAllowed) and getattr(error, "status", None) == 401:
            raise
        return Review(right, None, error.message)
    allowed = status.get("allowed")
    if type(allowed) is not bool:
        return Review(right, None, Message("the answer is neither yes nor no"))
    return Review(right, allowed, text(status.get("reason")) or text(status.get("evaluationError")))


def missing_role(reviews: Sequence[Review], namespace: str, who: User | None) -> list[Object]:
    """A Role with all refused permissions and its RoleBinding, for `kubectl apply`; empty if none was refused.

    Unanswered permissions are not included. Resources of one group with the same verbs share a rule. `delete` has
    separate rules at the end, so that an administrator can remove them.
    """
    verbs: dict[tuple[bool, str, str], list[str]] = {}
    for item in reviews:
        if item.allowed is False:
            place = (item.right.verb == "delete", item.right.group, item.right.resource)
            verbs.setdefault(place, []).append(item.right.verb)
    if not verbs:
        return []
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (_, group, resource), stated in sorted(verbs.items(), key=lambda item: item[0][0]):
        grouped.setdefault((group, tuple(stated)), []).append(resource)
    rules = [
        {"apiGroups": [group], "resources": names, "verbs": list(stated)} for (group, stated), names in grouped.items()
    ]
    subject = _subject(who)
    # The name depends on the content: applying a fixed name would revoke permissions of an earlier Role.
    digest = hashlib.sha256(json.dumps([namespace, rules, subject]).encode()).hexdigest()[:8]
    meta: Object = {"name": f"atlctl-{digest}", "namespace": namespace}
    role: Object = {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": meta, "rules": rules}
    binding: Object = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": dict(meta),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": meta["name"]},
        "subjects": [subject],
    }
    return [role, binding]


def _subject(who: User | None) -> Object:
    name = who.name if who is not None and who.name != ANONYMOUS else PLACEHOLDER
    if name.startswith(_SERVICE_ACCOUNT) and name.count(":") == 3:
        namespace, _, account = name.removeprefix(_SERVICE_ACCOUNT).partition(":")
        return {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return {"apiGroup": _RBAC, "kind": "User", "name": name}
