"""What the cluster says: is it there, who asks, what does it serve, what is allowed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Sequence
from importlib import metadata
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from atlctl.backends.kubernetes.access import Access
from atlctl.backends.kubernetes.api import Api, ApiError, Missing, Refused
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
from atlctl.cli.doctor.checks import Report, Words
from atlctl.cli.installing import install_line
from atlctl.jobs.errors import AtlctlError, Unreachable

T = TypeVar("T")

#: Seconds for each question but the reviews, repeats included.
PATIENCE = 20.0
#: The oldest server that atlctl is made for, and how many minor versions a server may be ahead of the library.
_OLDEST, _AHEAD = 28, 1
_VERSION = re.compile(r"v?1\.([0-9]{1,4})(?![0-9])")
#: What an old server lacks, and one that hides it, answers to SelfSubjectReview with.
_UNSERVED = (404, 405)

_FOR: dict[Purpose, str] = {
    "read": "for_read",
    "logs": "for_logs",
    "follow": "for_follow",
    "exec": "for_exec",
    "events": "for_events",
    "kinds": "for_kinds",
    "queues": "for_queues",
    "stop": "for_stop",
    "delete": "for_delete",
}
#: Without these no job can be looked at.
_NEEDED = ("read", "logs")
#: Groups of a user that are shown.
_GROUPS = 8


def check_access(report: Report, words: Words, access: Access) -> None:
    """Where the configuration leads."""
    parts = urlsplit(access.server)
    server = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # no password is shown
    report.ok("cluster", words("cluster_ok", server=server, source=access.source, namespace=access.namespace))
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
        report.warn("tls", words("no_tls"), words("no_tls_fix"))
    elif not access.tls.check_hostname:
        report.warn("tls", words("unverified"), words("unverified_fix"))


def check_pod(report: Report, words: Words) -> None:
    """The pod around this process, where there is one. Asks nobody."""
    own = own_pod()
    if own is None:
        return
    name = own.name or own.uid or ""
    text = "pod_ok" if own.namespace else "pod_nowhere"
    report.ok("pod", words(text, name=name, namespace=own.namespace, source=own.source))
    report.data["pod"] = {"name": own.name, "uid": own.uid, "namespace": own.namespace, "source": own.source}


async def examine(report: Report, words: Words, api: Api, kubeconfig_user: str | None = None) -> bool:
    """Asks the server everything. Stops where an answer makes the rest pointless, and returns False then.

    Raises nothing of the server's."""
    if not await _server(report, words, api):
        return False
    who = await _user(report, words, api, kubeconfig_user)
    if report.unauthenticated:
        return False
    await _namespace(report, words, api)
    served = await _kinds(report, words, api)
    try:
        reviews = await review(api, rights(served), api.namespace)
    except AtlctlError as error:
        report.refused("rights", error)
        return False
    if _nobody(reviews):
        report.unauthenticated = True
        report.fail("user", words("anonymous"), words("log_in"))
        return False
    _judge(report, words, reviews)
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


async def _server(report: Report, words: Words, api: Api) -> bool:
    """Whether it answers at all. A gateway may keep the version to itself."""
    begun = time.monotonic()
    try:
        told = await _within(api.get("/version"))
    except Refused as error:
        if error.status == 401:
            report.refused("server", error)
            return False
        report.ok("server", words("server_silent"))
        return True
    except Missing:
        report.ok("server", words("server_silent"))
        return True
    except AtlctlError as error:
        report.fail("server", error.message, error.hint)
        return False
    version = _text(told.get("gitVersion"))
    if not version:
        report.warn("server", words("server_odd"), words("server_odd_fix"))
        return True
    _cluster(report)["version"] = version
    ms = round((time.monotonic() - begun) * 1000)
    report.ok("server", words("server_ok", version=version, ms=ms))
    _skew(report, words, version)
    return True


def _skew(report: Report, words: Words, version: str) -> None:
    """The server beside the library that reads kubeconfigs and logs in, whose major version is a minor one here."""
    library = metadata.version("kubernetes")
    _cluster(report)["library"] = library
    server, own = _VERSION.match(version), library.partition(".")[0]
    if server is None or not own.isdigit():
        report.skip("skew", words("skew_unknown", library=library, version=version))
    elif int(server[1]) < _OLDEST:
        report.warn("skew", words("skew_old", version=version, oldest=f"1.{_OLDEST}"), words("skew_old_fix"))
    elif int(server[1]) > int(own) + _AHEAD:
        text = words("skew_ahead", version=version, library=library, own=f"1.{own}")
        report.warn("skew", text, install_line(f"kubernetes>={server[1]}"))
    else:
        report.ok("skew", words("skew_ok", library=library, own=f"1.{own}", server=f"1.{server[1]}"))


async def _user(report: Report, words: Words, api: Api, kubeconfig_user: str | None) -> User | None:
    """Who asks. A certificate or token that is no good makes an anonymous user, who may ask for the version alone."""
    try:
        who = await _within(user(api))
    except Refused as error:
        if error.status == 401:
            report.refused("user", error)
        elif ANONYMOUS in error.text:
            report.unauthenticated = True
            report.fail("user", words("anonymous"), words("log_in"))
        else:
            report.warn("user", error.message, error.hint)
        return None
    except ApiError as error:
        if error.status in _UNSERVED:
            who = None
        else:
            report.warn("user", error.message, error.hint)
            return None
    except AtlctlError as error:
        report.warn("user", error.message, error.hint)
        return None
    if who is None:
        key = "user_of_kubeconfig" if kubeconfig_user else "user_unknown"
        report.ok("user", words(key, name=kubeconfig_user))
        return None
    if who.name == ANONYMOUS:
        report.unauthenticated = True
        report.fail("user", words("anonymous"), words("log_in"))
        return who
    _cluster(report).update(user=who.name, groups=list(who.groups))
    shown = ", ".join(who.groups[:_GROUPS]) + (", ..." if len(who.groups) > _GROUPS else "")
    report.ok("user", words("user_ok", name=who.name, groups=shown) if shown else who.name)
    return who


async def _namespace(report: Report, words: Words, api: Api) -> None:
    """A list in a namespace that does not exist is empty and no error, so it has to be asked for."""
    try:
        await _within(api.get(f"/api/v1/namespaces/{quote(api.namespace, safe='')}"))
    except Missing:
        report.fail("namespace", words("namespace_gone", name=api.namespace), words("namespace_fix"))
    except Refused:
        return  # most users may not read it, and need not
    except AtlctlError as error:
        report.warn("namespace", error.message, error.hint)
    else:
        report.ok("namespace", api.namespace)


async def _kinds(report: Report, words: Words, api: Api) -> Served:
    try:
        served = await _within(discover(api))
    except AtlctlError as error:
        report.warn("kinds", words("kinds_unknown", error=error.message), error.hint)
        return Served()
    found = served.kinds()
    names = [f"{kind.resource.name}/{version}" for kind, version in found]
    report.data["kinds"] = [{"resource": kind.resource.name, "version": version} for kind, version in found]
    shown = ", ".join(names) or words("kinds_none")
    if served.problems:
        first = served.problems[0]
        report.warn("kinds", words("kinds_partly", names=shown, error=first.message), first.hint)
    else:
        report.ok("kinds", shown)
    return served


def _nobody(reviews: Sequence[Review]) -> bool:
    return all(item.allowed is None and ANONYMOUS in item.reason for item in reviews)


def _judge(report: Report, words: Words, reviews: Sequence[Review]) -> None:
    """One check for each purpose: what is refused, what is not known."""
    for purpose in PURPOSES:
        mine = [item for item in reviews if item.right.purpose == purpose]
        if not mine:
            continue
        what = words(_FOR[purpose])
        refused = [item for item in mine if item.allowed is False]
        open_ones = [item for item in mine if item.allowed is None]
        bad = report.fail if purpose in _NEEDED else report.warn
        if refused:
            names = _shown(refused)
            bad(f"rights.{purpose}", words("refused", what=what, rights=names), words("refused_fix"))
        elif open_ones:
            names, why = _shown(open_ones), open_ones[0].reason
            report.warn(f"rights.{purpose}", words("not_told", what=what, rights=names, reason=why))
        else:
            report.ok(f"rights.{purpose}", what)


def _shown(reviews: Sequence[Review]) -> str:
    """`get, list jobs.batch, trainjobs.trainer.kubeflow.org; create pods/exec`: what has the same verbs together."""
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
        raise Unreachable(f"the API server did not answer within {PATIENCE:g} s", "check the network") from error


def _cluster(report: Report) -> dict[str, Any]:
    found: dict[str, Any] = report.data.setdefault("cluster", {})
    return found


def _text(value: object) -> str:
    return value if type(value) is str else ""
