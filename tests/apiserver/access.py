"""Authentication (bearer tokens), authorization (a table of rules), and the server's reviews of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.apiserver import statuses
from tests.apiserver.resources import Resource
from tests.apiserver.store import now

Object = dict[str, Any]

ANONYMOUS = "system:anonymous"
#: Paths that are public, and paths that require an authenticated user.
PUBLIC = ("/healthz", "/livez", "/readyz", "/version")


@dataclass(slots=True)
class User:
    """A user; `rules` None: a cluster administrator. A rule has verbs, apiGroups, resources, and a namespace (or
    "*")."""

    name: str
    groups: list[str] = field(default_factory=lambda: ["system:authenticated"])
    rules: list[Object] | None = None


class Access:
    """Users and their tokens. `token-NAME` belongs to user NAME until it expires."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {"admin": User("admin", ["system:masters", "system:authenticated"])}
        self.tokens: dict[str, str] = {"token-admin": "admin"}

    def put(self, name: str, rules: list[Object] | None, groups: list[str] | None = None) -> str:
        """Create or change a user; returns the token."""
        self.users[name] = User(name, [*(groups or []), "system:authenticated"], rules)
        token = f"token-{name}"
        self.tokens.setdefault(token, name)
        return token

    def who(self, headers: Mapping[str, str], certified: str) -> User:
        """The user of a request, from its token or client certificate.

        Raises Refusal (401) for an unknown or expired token.
        """
        word, _, token = headers.get("Authorization", "").partition(" ")
        if certified in self.users and not token:
            return self.users[certified]
        if word.lower() != "bearer" or not token:
            return User(ANONYMOUS, ["system:unauthenticated"], [])
        name = self.tokens.get(token.strip())
        if name is None:
            raise statuses.unauthorized()
        return self.users[name]

    def check(self, user: User, verb: str, resource: Resource, namespace: str, name: str, sub: str = "") -> None:
        """Raises Refusal (403) with RBAC's message."""
        if self.rule(user, verb, resource.group, resource.plural, sub, namespace, name) is None:
            full = f"{resource.plural}/{sub}" if sub else resource.plural
            place = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            text = f'User "{user.name}" cannot {verb} resource "{full}" in API group "{resource.group}" {place}'
            raise statuses.forbidden(resource, name, text)

    def check_path(self, user: User, path: str) -> None:
        if user.name == ANONYMOUS and path.rstrip("/") not in PUBLIC:
            raise statuses.forbidden_path(user.name, path, "get")

    def rule(
        self, user: User, verb: str, group: str, plural: str, sub: str, namespace: str, name: str
    ) -> Object | None:
        """The first rule that allows the request; an empty one for an administrator."""
        if user.rules is None:
            return {}
        full = f"{plural}/{sub}" if sub else plural
        if user.name != ANONYMOUS and verb == "create" and plural.startswith("selfsubject"):
            return {}
        for rule in user.rules:
            where = rule.get("namespace", "*")
            names = rule.get("resourceNames")
            if (
                _has(rule["verbs"], verb)
                and _has(rule.get("apiGroups", [""]), group)
                and _has(rule["resources"], full)
                and (where == "*" or where == namespace)
                and (not names or name in names)
            ):
                return rule
        return None

    # reviews

    def review(self, user: User, kind: str, body: Object) -> Object:
        """The answer to SelfSubjectAccessReview, SelfSubjectRulesReview and SelfSubjectReview."""
        spec = body.get("spec") or {}
        if kind == "SelfSubjectReview":
            info = {"username": user.name, "groups": user.groups}
            metadata = {"creationTimestamp": now()}
            return _object("authentication.k8s.io", kind, metadata) | {"status": {"userInfo": info}}
        if kind == "SelfSubjectRulesReview":
            status = {"resourceRules": self._rules(user, spec.get("namespace", "")), "nonResourceRules": _PATHS}
            return _object("authorization.k8s.io", kind) | {"spec": {}, "status": status | {"incomplete": False}}
        return _object("authorization.k8s.io", kind) | {
            "spec": _without_empty(spec),
            "status": self._allowed(user, spec),
        }

    def _allowed(self, user: User, spec: Object) -> Object:
        if path := (spec.get("nonResourceAttributes") or {}).get("path"):
            return {"allowed": user.name != ANONYMOUS or path.rstrip("/") in PUBLIC}
        wanted = spec.get("resourceAttributes") or {}
        rule = self.rule(
            user,
            wanted.get("verb", ""),
            wanted.get("group", ""),
            wanted.get("resource", ""),
            wanted.get("subresource", ""),
            wanted.get("namespace", ""),
            wanted.get("name", ""),
        )
        if rule is None:
            return {"allowed": False}
        if role := rule.get("role"):
            place = f'RoleBinding "{role}/{rule.get("namespace", "")}"'
            return {"allowed": True, "reason": f'RBAC: allowed by {place} of Role "{role}" to User "{user.name}"'}
        return {"allowed": True}

    def _rules(self, user: User, namespace: str) -> list[Object]:
        reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
        found: list[Object] = [
            {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": reviews},
            {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
        ]
        if user.rules is None:
            return [*found, {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        for rule in user.rules:
            if rule.get("namespace", "*") in ("*", namespace):
                keys = ("verbs", "apiGroups", "resources", "resourceNames")
                found.append({"apiGroups": [""]} | {key: rule[key] for key in keys if key in rule})
        return found


_PATHS = [
    {"verbs": ["get"], "nonResourceURLs": [*PUBLIC, "/version/"]},
    {"verbs": ["get"], "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]},
]


def _has(listed: list[str], wanted: str) -> bool:
    return "*" in listed or wanted in listed


def _object(group: str, kind: str, metadata: Object | None = None) -> Object:
    return {"kind": kind, "apiVersion": f"{group}/v1", "metadata": metadata or {}}


def _without_empty(spec: Object) -> Object:
    return {
        key: {k: v for k, v in value.items() if v != ""} if isinstance(value, dict) else value
        for key, value in spec.items()
    }
