"""Look up names for completion in the background, after a TAB that found the cache old.

    python -P -m atlctl.cli.completion.refresh '[{"kind": "jobs", "context": "prod"}]'

No process waits for it or reads its output; the attempt is noted before it is made. It has no terminal and never starts
an exec plugin of a kubeconfig: such a plugin may open a browser, which a user who presses TAB does not expect. The
names of such a cluster are stored only by commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from atlctl.cli import runtime
from atlctl.cli.completion import cache, keep
from atlctl.cli.completion.cache import Scope
from atlctl.jobs.errors import AtlctlError

if TYPE_CHECKING:
    from atlctl.backends.base import Backend

#: Seconds for the questions of one scope.
_SECONDS = 20.0


def main(argv: list[str]) -> int:
    """Look up the requested names, and release the lock that the parent process took."""
    signal.alarm(cache.LIMIT)
    try:
        for asked in json.loads(argv[0]):
            if (scope := _scope(asked)) is not None:
                keep.trying(scope)
                with contextlib.suppress(AtlctlError, TimeoutError):
                    _look(scope)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(cache.folder(), cache.LOCK))
    return 0


def _scope(asked: dict[str, str]) -> Scope | None:
    options = [asked.get(name, "") for name in ("kubeconfig", "context", "namespace")]
    if asked["kind"] == "lists":
        return cache.lists_scope()
    if asked["kind"] == "contexts":
        return cache.contexts_scope(options[0])
    return cache.cluster_scope(asked["kind"], *options)


def _look(scope: Scope) -> None:
    """Raises AtlctlError, TimeoutError."""
    if scope.kind == "lists":
        keep.seen_names(scope, _lists())
        return
    from atlctl.backends.kubernetes.kubeconfig import contexts, runs_program

    kubeconfig, context = (scope.asked.get(name) for name in ("kubeconfig", "context"))
    if scope.kind == "contexts":
        found = contexts(kubeconfig)
        keep.seen_names(scope, {name: [namespace] if namespace else [] for name, namespace in found.items()})
    elif not runs_program(kubeconfig, context):
        namespace = scope.asked.get("namespace")
        runtime.start("", backend="kubernetes", kubeconfig=kubeconfig, context=context, namespace=namespace)
        runtime.run_async(lambda: _ask(scope))


def _lists() -> dict[str, list[str]]:
    """Lists of hosts of the configuration. One that cannot be read costs its hosts."""
    from atlctl.backends.hosts.lists import of_config
    from atlctl.cli.hosts import configured

    found: dict[str, list[str]] = {}
    for name, setting in configured().jobs.items():
        found[name] = []
        with contextlib.suppress(AtlctlError):
            found[name] = [host.name for host in of_config(name, setting).hosts]
    return found


async def _ask(scope: Scope) -> None:
    from atlctl.cli.target import backend

    source = backend(of_job=False)
    async with asyncio.timeout(_SECONDS):
        if scope.kind == "namespaces":
            keep.seen_names(scope, dict.fromkeys(await _namespaces(source), ()))
            return
        listing = await source.list_jobs()
    if listing.jobs or not listing.problems:
        keep.seen_jobs(listing.jobs, whole=True)


async def _namespaces(source: Backend) -> list[str]:
    from atlctl.backends.kubernetes import objects
    from atlctl.backends.kubernetes.backend import KubernetesBackend

    if not isinstance(source, KubernetesBackend):
        return []
    return [objects.name(obj) for obj in (await (await source.api()).list("/api/v1/namespaces")).items]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
