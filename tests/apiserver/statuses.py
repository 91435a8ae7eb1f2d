"""The real server's refusals: a Status object, or plain text for some."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from tests.apiserver.resources import Resource

Object = dict[str, Any]


class Refusal(Exception):
    """An error response. `text`: as text/plain; `close`: close the connection after it."""

    def __init__(
        self,
        code: int,
        reason: str = "",
        message: str = "",
        details: Object | None = None,
        *,
        text: str | None = None,
        headers: dict[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message or text)
        self.code = code
        self.text = text
        self.headers = dict(headers or {})
        self.close = close
        self.status = failure(code, reason, message, details)


def failure(code: int, reason: str, message: str, details: Object | None = None) -> Object:
    """A Status of a failure, with its fields in the real server's order."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    return status | {"code": code}


def success(resource: Resource, name: str, uid: str) -> Object:
    """The answer to a DELETE with background propagation."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details(resource, name) | {"uid": uid},
    }


def details(resource: Resource, name: str, kind: str | None = None) -> Object:
    found: Object = {"name": name} if name else {}
    if resource.group:
        found["group"] = resource.group
    return found | {"kind": kind or resource.plural}


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def not_found(resource: Resource, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{resource.qualified} "{name}" not found', details(resource, name))


def page_not_found() -> Refusal:
    return Refusal(404, text="404 page not found\n", headers={"X-Content-Type-Options": "nosniff"})


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> Refusal:
    return Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def forbidden(resource: Resource, name: str, explanation: str) -> Refusal:
    subject = f'{resource.qualified} "{name}"' if name else resource.qualified
    headers = {"X-Content-Type-Options": "nosniff"} if explanation else {}
    return Refusal(403, "Forbidden", f"{subject} is forbidden: {explanation}", details(resource, name), headers=headers)


def forbidden_path(user: str, path: str, verb: str) -> Refusal:
    return Refusal(
        403,
        "Forbidden",
        f'forbidden: User "{user}" cannot {verb} path "{path}"',
        {},
        headers={"X-Content-Type-Options": "nosniff"},
    )


def modified(resource: Resource, name: str) -> Refusal:
    """A write with an outdated resourceVersion."""
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource.qualified} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again",
        details(resource, name),
    )


def precondition(resource: Resource, name: str, field: str, wanted: str, found: str) -> Refusal:
    """A DELETE whose precondition on `field` (uid or resourceVersion) fails."""
    title, end = {
        "uid": ("UID", "The object might have been deleted and then recreated"),
        "resourceVersion": ("ResourceVersion", "The object might have been modified"),
    }[field]
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": the {title} in the precondition '
        f"({wanted}) does not match the {title} in record ({found}). {end}",
        details(resource, name, resource.kind),
    )


def already_exists(resource: Resource, name: str) -> Refusal:
    return Refusal(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', details(resource, name))


def invalid(kind: str, group: str, name: str, *causes: tuple[str, str, str], repeat: int = 1) -> Refusal:
    """422. Each cause is (reason, field, message); CRDs repeat theirs."""
    texts = [f"{field}: {message}" for _, field, message in causes]
    subject = f"{kind}.{group}" if group else kind
    found: Object = {"name": name} | ({"group": group} if group else {}) | {"kind": kind}
    found["causes"] = [{"reason": r, "message": m, "field": f} for r, f, m in causes for _ in range(repeat)]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return Refusal(422, "Invalid", f'{subject} "{name}" is invalid: {text}', found)


def phrase(code: int) -> str:
    return HTTPStatus(code).phrase
