"""`atlctl doctor`: which backend, as whom, what is allowed, what is missing, with the fix."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async

if TYPE_CHECKING:
    from atlctl.cli.doctor.checks import Report, Words


def command(output: Annotated[str, options.output("table", "json")] = "table") -> int:
    return run_async(lambda: _examine(output))


async def _examine(output: str) -> int:
    from atlctl.cli.catalogue import language
    from atlctl.cli.doctor import machine
    from atlctl.cli.doctor.checks import Report, Words
    from atlctl.cli.target import choice

    chosen = choice()
    # Programs find the same words everywhere.
    words = Words("en" if output == "json" else language())
    report = Report(data={"backend": None, "cluster": None, "pod": None, "kinds": [], "permissions": []})
    machine.check_backend(report, words, chosen)
    if chosen.name == "kubernetes":
        await _cluster(report, words)
    machine.check_state(report, words, os.environ, needed=chosen.name == "local")
    machine.check_settings(report, words, os.environ)
    machine.check_terminal(report, words, os.environ, context().streams)
    machine.check_locale(report, words, os.environ)
    if output == "json":
        _document(report)
    else:
        from atlctl.cli.doctor.telling import report_text

        say.out(report_text(report, words, context().streams.stdout_color))
    return report.exit_code


async def _cluster(report: Report, words: Words) -> None:
    from atlctl.backends.kubernetes import access
    from atlctl.cli.doctor import cluster
    from atlctl.jobs.errors import AtlctlError, NotAllowed

    cluster.check_pod(report, words)
    asked = context()
    try:
        found = await asyncio.to_thread(access.load, asked.kubeconfig, asked.context, asked.namespace)
    except NotAllowed as error:
        report.refused("cluster", error)
        return
    except AtlctlError as error:
        report.fail("cluster", error.message, error.hint)
        return
    cluster.check_access(report, words, found)
    from atlctl.backends.kubernetes.client import Client

    client = Client(found)
    asked.closers.append(client.aclose)
    await cluster.examine(report, words, client, found.user)


def _document(report: Report) -> None:
    checks = [
        {"name": item.name, "status": str(item.status), "text": item.text, "fix": item.fix} for item in report.checks
    ]
    say.document({"verdict": str(report.verdict), "checks": checks, **report.data, "role": report.role})
