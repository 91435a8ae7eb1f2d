"""Checks of the cluster: reachability, identity, served kinds, permissions."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Sequence
from importlib import metadata
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from atlctl.backends.kubernetes.access import Access
from atlctl.backends.kubernetes.api import Api, ApiError, Denied, NotFound
from atlctl.backends.kubernetes.discovery import Served, discover
from atlctl.backends.kubernetes.identity import own_pod
from atlctl.backends.kubernetes.permissions import (
    ANONYMOUS,
    PURPOSES,
    Purpose,
    Review,
    User,
    missing_role,
    review,
    rights,
    user,
)
from atlctl.cli.doctor.report import DoctorReport
from atlctl.cli.installing import install_line
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.errors import AtlctlError, Unreachable

T = TypeVar("T")

#: Seconds for each question but the reviews, repeats included.
PATIENCE = 20.0
#: The oldest server that atlctl is made for, and how many minor versions a server may be ahead of the library.
_OLDEST, _AHEAD = 28, 1
_VERSION = re.compile(r"v?1\.([0-9]{1,4})(?![0-9])")
#: The status codes with which a server without SelfSubjectReview answers.
_UNSERVED = (404, 405)

_FOR: dict[Purpose, str] = {
    "read": Message("see workers"),
    "logs": Message("read logs"),
    "follow": Message("follow workers as they change"),
    "exec": Message("run commands in workers (exec, shell, cp, top)"),
    "events": Message("read events"),
    "kinds": Message("read job objects"),
    "queues": Message("read queues and gangs"),
    "stop": Message("stop and resume jobs"),
    "delete": Message("delete jobs (stop --delete)"),
}
#: Without these no job can be looked at.
_NEEDED = ("read", "logs")
#: Groups of a user that are shown.
_GROUPS = 8


def check_access(report: DoctorReport, access: Access) -> None:
    """Where the configuration leads."""
    parts = urlsplit(access.server)
    server = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # no password is shown
    text = Message("{server}, namespace {namespace} ({source})")
    report.ok("cluster", text.filled(server=server, source=access.source, namespace=access.namespace))
    report.data["cluster"] = {
        "server": server,
        "context": access.context,
        "namespace": access.namespace,
        "source": access.source,
        "proxied": access.proxy is not None,
        "version": None,
        "user": None,
        "groups": [],
    }
    if access.tls is None:
        report.warn("tls", Message("the connection is not encrypted (http)"), Message("use an https address"))
    elif not access.tls.check_hostname:
        report.warn(
            "tls",
            Message("the server's certificate is not checked (insecure-skip-tls-verify)"),
            Message("put the cluster's CA into the kubeconfig: certificate-authority-data"),
        )


def check_pod(report: DoctorReport) -> None:
    """The pod of this process, if any. No requests."""
    own = own_pod()
    if own is None:
        return
    name = own.name or own.uid or ""
    text = (
        Message("{name} in namespace {namespace} (by {source})", name=name, namespace=own.namespace, source=own.source)
        if own.namespace
        else Message("{name} (by {source})", name=name, source=own.source)
    )
    report.ok("pod", text)
    report.data["pod"] = {"name": own.name, "uid": own.uid, "namespace": own.namespace, "source": own.source}


async def examine(report: DoctorReport, api: Api, kubeconfig_user: str | None = None) -> bool:
    """Asks the server everything. Stops where an answer makes the rest pointless, and returns False then.

    Raises nothing of the server's."""
    if not await _server(report, api):
        return False
    who = await _user(report, api, kubeconfig_user)
    if report.unauthenticated:
        return False
    await _namespace(report, api)
    served = await _kinds(report, api)
    try:
        reviews = await review(api, rights(served), api.namespace)
    except AtlctlError as error:
        report.refused("rights", error)
        return False
    if all(item.allowed is None and ANONYMOUS in item.reason for item in reviews):
        _unknown_user(report)
        return False
    _judge(report, reviews)
    report.role = missing_role(reviews, api.namespace, who)
    report.data["permissions"] = [
        {
            "group": item.right.group,
            "resource": item.right.resource,
            "verb": item.right.verb,
            "purpose": item.right.purpose,
            "allowed": item.allowed,
            "reason": item.reason,
        }
        for item in reviews
    ]
    return True


async def _server(report: DoctorReport, api: Api) -> bool:
    """Whether it answers at all. A gateway may keep the version to itself."""
    begun = time.monotonic()
    try:
        told = await _within(api.get("/version"))
    except (Denied, NotFound) as error:
        if isinstance(error, Denied) and error.status == 401:
            report.refused("server", error)
            return False
        report.ok("server", Message("answers, and keeps its version to itself"))
        return True
    except AtlctlError as error:
        report.fail("server", error.message, error.hint)
        return False
    version = fields.text(told.get("gitVersion"))
    if not version:
        report.warn(
            "server",
            Message("answers, but not as Kubernetes does"),
            Message("check the server's address: kubectl config view"),
        )
        return True
    _cluster(report)["version"] = version
    ms = round((time.monotonic() - begun) * 1000)
    report.ok("server", Message("Kubernetes {version}, answered in {ms} ms", version=version, ms=ms))
    _skew(report, version)
    return True


def _skew(report: DoctorReport, version: str) -> None:
    """The server beside the library that reads kubeconfigs and logs in, whose major version is a minor one here."""
    library = metadata.version("kubernetes")
    _cluster(report)["library"] = library
    server, own = _VERSION.match(version), library.partition(".")[0]
    if server is None or not own.isdigit():
        report.skip(
            "skew", Message("unknown: library kubernetes {library}, server {version}", library=library, version=version)
        )
    elif int(server[1]) < _OLDEST:
        text = Message("{version} is older than {oldest}, the first that atlctl is made for")
        fix = Message("expect commands to fail; ask for a newer cluster")
        report.warn("skew", text.filled(version=version, oldest=f"1.{_OLDEST}"), fix)
    elif int(server[1]) > int(own) + _AHEAD:
        text = Message("{version} is newer than the library that logs in: kubernetes {library} is made for {own}")
        text = text.filled(version=version, library=library, own=f"1.{own}")
        report.warn("skew", text, install_line(f"kubernetes>={server[1]}"))
    else:
        text = Message("the server is {server}, the library that logs in (kubernetes {library}) is made for {own}")
        report.ok("skew", text.filled(library=library, own=f"1.{own}", server=f"1.{server[1]}"))


async def _user(report: DoctorReport, api: Api, kubeconfig_user: str | None) -> User | None:
    """The user's identity. An invalid certificate or token makes an anonymous user, who may only query the version."""
    try:
        who = await _within(user(api))
    except Denied as error:
        if error.status == 401:
            report.refused("user", error)
        elif ANONYMOUS in error.text:
            _unknown_user(report)
        else:
            report.warn("user", error.message, error.hint)
        return None
    except AtlctlError as error:
        if not isinstance(error, ApiError) or error.status not in _UNSERVED:
            report.warn("user", error.message, error.hint)
            return None
        who = None
    if who is None:
        unknown = Message("the server does not report the user")
        named = Message("{name} in the kubeconfig; the server does not report which user that is", name=kubeconfig_user)
        report.ok("user", named if kubeconfig_user else unknown)
        return None
    if who.name == ANONYMOUS:
        _unknown_user(report)
        return who
    _cluster(report).update(user=who.name, groups=list(who.groups))
    shown = ", ".join(who.groups[:_GROUPS]) + (", ..." if len(who.groups) > _GROUPS else "")
    report.ok("user", Message("{name} (groups {groups})", name=who.name, groups=shown) if shown else who.name)
    return who


def _unknown_user(report: DoctorReport) -> None:
    report.unauthenticated = True
    report.fail(
        "user",
        Message("the server does not know you: you are system:anonymous to it"),
        Message("log in again, or check the user of the kubeconfig's context"),
    )


async def _namespace(report: DoctorReport, api: Api) -> None:
    """A list in a namespace that does not exist is empty and no error, so it has to be asked for."""
    try:
        await _within(api.get(f"/api/v1/namespaces/{quote(api.namespace, safe='')}"))
    except NotFound:
        report.fail(
            "namespace",
            Message("there is no namespace {name}", name=api.namespace),
            Message("name another with -n, or change the context's"),
        )
    except Denied:
        return  # most users may not read it, and need not
    except AtlctlError as error:
        report.warn("namespace", error.message, error.hint)
    else:
        report.ok("namespace", api.namespace)


async def _kinds(report: DoctorReport, api: Api) -> Served:
    try:
        served = await _within(discover(api))
    except AtlctlError as error:
        report.warn(
            "kinds", Message("which kinds of job are served is not known: {error}", error=error.message), error.hint
        )
        return Served()
    found = served.kinds()
    names = [f"{kind.resource.name}/{version}" for kind, version in found]
    report.data["kinds"] = [{"resource": kind.resource.name, "version": version} for kind, version in found]
    shown = ", ".join(names) or Message("no kind of job, pods alone")
    if served.problems:
        first = served.problems[0]
        report.warn(
            "kinds", Message("{names}; some of it is not known: {error}", names=shown, error=first.message), first.hint
        )
    else:
        report.ok("kinds", shown)
    return served


def _judge(report: DoctorReport, reviews: Sequence[Review]) -> None:
    """One check for each purpose: the rights that are refused, and those that are unknown."""
    for purpose in PURPOSES:
        mine = [item for item in reviews if item.right.purpose == purpose]
        if not mine:
            continue
        what = _FOR[purpose]
        refused = [item for item in mine if item.allowed is False]
        open_ones = [item for item in mine if item.allowed is None]
        bad = report.fail if purpose in _NEEDED else report.warn
        if refused:
            text = Message("{what}: not allowed to {rights}", what=what, rights=_shown(refused))
            bad(f"rights.{purpose}", text, Message("give the Role below to an administrator"))
        elif open_ones:
            text = Message("{what}: the server does not say whether you may {rights}: {reason}")
            filled = text.filled(what=what, rights=_shown(open_ones), reason=open_ones[0].reason)
            report.warn(f"rights.{purpose}", filled)
        else:
            report.ok(f"rights.{purpose}", what)


def _shown(reviews: Sequence[Review]) -> str:
    """`get, list jobs.batch, trainjobs.trainer.kubeflow.org; create pods/exec`: grouped by verbs."""
    verbs: dict[str, list[str]] = {}
    for item in reviews:
        verbs.setdefault(item.right.on, []).append(item.right.verb)
    alike: dict[str, list[str]] = {}
    for resource, stated in verbs.items():
        alike.setdefault(", ".join(stated), []).append(resource)
    return "; ".join(f"{stated} {', '.join(names)}" for stated, names in alike.items())


async def _within(asked: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(PATIENCE):
            return await asked
    except TimeoutError as error:
        raise Unreachable(
            Message("the API server did not answer within {seconds:g} s", seconds=PATIENCE),
            Message("check the network"),
        ) from error


def _cluster(report: DoctorReport) -> dict[str, Any]:
    found: dict[str, Any] = report.data.setdefault("cluster", {})
    return found
