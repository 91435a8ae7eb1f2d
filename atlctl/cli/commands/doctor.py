"""`atlctl doctor`: which backend, as whom, what is allowed, what is there, what is missing, with the fix."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any

from atlctl.cli import options, say
from atlctl.cli.runtime import context, run_async

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.cli.doctor.checks import Report, Words
    from atlctl.cli.target import Choice
    from atlctl.jobs.model import Job

#: Seconds for reaching a host or a worker; for a login program of the kubeconfig; for all questions to a cluster.
CONNECT_SECONDS, LOGIN_SECONDS, CLUSTER_SECONDS = 10.0, 60.0, 60.0


def command(
    job_option: options.JobOption = None,
    connect_timeout: Annotated[float, options.duration("--connect-timeout")] = CONNECT_SECONDS,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    return run_async(lambda: _examine(job_option, connect_timeout, output))


async def _examine(option: str | None, seconds: float, output: str) -> int:
    from atlctl.cli.catalogue import language
    from atlctl.cli.doctor.checks import Report, Words

    # Programs find the same words everywhere.
    words = Words("en" if output == "json" else language())
    nothing: dict[str, Any] = {"backend": None, "cluster": None, "pod": None, "kinds": [], "permissions": []}
    report = Report(data={**nothing, "ssh": None, "job": None, "torch": [], "machine": {}})
    chosen = _chosen(report, words, option)
    if chosen is not None:
        await _place(report, words, chosen, option, seconds)
    _machine(report, words, needed=chosen is not None and chosen.name == "local")
    if output == "json":
        _document(report)
    else:
        from atlctl.cli.doctor.telling import report_text

        say.out(report_text(report, words, context().streams.stdout_color))
    return report.exit_code


def _chosen(report: Report, words: Words, option: str | None) -> Choice | None:
    """The backend, None where the configuration files keep it from being chosen."""
    from atlctl.cli.doctor import machine
    from atlctl.cli.target import choice
    from atlctl.jobs.config import load_config
    from atlctl.jobs.errors import AtlctlError, UsageError

    try:
        chosen = choice(None, option)
    except UsageError as error:
        try:
            load_config(os.environ)
        except AtlctlError:
            report.fail("backend", words("backend_unknown"), error.hint)
            return None
        raise
    machine.check_backend(report, words, chosen)
    return chosen


async def _place(report: Report, words: Words, chosen: Choice, option: str | None, seconds: float) -> None:
    """The backend, the current job there and its workers."""
    from atlctl.cli.doctor import current, hosts, machine
    from atlctl.cli.target import local

    source: Backend | None
    usable: list[str] | None = None
    if chosen.name == "kubernetes":
        source = await _cluster(report, words, option)
    elif chosen.name == "ssh":
        source, usable = await _hosts(report, words, option, seconds)
    else:
        machine.check_user(report, words)
        source = local()
    if chosen.name != "ssh":
        hosts.check_others(report, words)
    blind = any(right["purpose"] == "read" and right["allowed"] is False for right in report.data["permissions"])
    if source is None or blind:
        report.skip("job", words("job_not_asked"))
        return
    job = await current.check(report, words, source, option, nothing_else=chosen.why == "no_cluster")
    if job is not None:
        await _workers(report, words, source, job, usable, seconds)


async def _cluster(report: Report, words: Words, option: str | None) -> Backend | None:
    """The cluster, None where it is of no use."""
    from atlctl.backends.kubernetes.backend import KubernetesBackend
    from atlctl.cli import patience, target
    from atlctl.cli.doctor import cluster
    from atlctl.jobs.errors import AtlctlError, NotAllowed

    cluster.check_pod(report, words)
    source = target.backend(None, option)
    assert isinstance(source, KubernetesBackend)
    try:
        client = await patience.login(source.api(), LOGIN_SECONDS)
    except NotAllowed as error:
        report.refused("cluster", error)
        return None
    except AtlctlError as error:
        report.fail("cluster", error.message, error.hint)
        return None
    cluster.check_access(report, words, client.access)
    try:
        async with asyncio.timeout(CLUSTER_SECONDS):
            able = await cluster.examine(report, words, client, client.access.user)
    except TimeoutError:
        report.fail("server", words("server_slow", seconds=f"{CLUSTER_SECONDS:g}"), words("server_slow_fix"))
        return None
    return source if able else None


async def _hosts(
    report: Report, words: Words, option: str | None, seconds: float
) -> tuple[Backend | None, list[str] | None]:
    """The hosts, and the names of those that can be used; None where there are hosts and none of them can."""
    from atlctl.cli.doctor import hosts
    from atlctl.cli.options import stated_job
    from atlctl.jobs.errors import AtlctlError

    try:
        site = hosts.find(context().hostfile, stated_job(None, option))
    except AtlctlError as error:
        report.fail("ssh.hosts", error.message, error.hint)
        return None, None
    context().closers.append(site.backend.aclose)
    usable = await hosts.examine(report, words, site, seconds)
    return (site.backend if usable or not site.hosts else None), usable


async def _workers(
    report: Report, words: Words, source: Backend, job: Job, usable: list[str] | None, seconds: float
) -> None:
    """What the workers of the current job have installed."""
    from atlctl.cli.doctor import workers
    from atlctl.jobs.errors import AtlctlError
    from atlctl.jobs.model import HOSTS

    if any(right["purpose"] == "exec" and right["allowed"] is False for right in report.data["permissions"]):
        report.skip("torch", words("torch_not_allowed"))
        return
    asked = [worker for worker in job.workers if usable is None or worker.host in usable or worker.name in usable]
    try:
        executor = source.executor(job)
    except AtlctlError as error:
        report.warn("torch", error.message, error.hint)
        return
    try:
        hostfile = context().hostfile
        named = f"-j {shlex.quote(job.name)}" if hostfile is None else f"--hostfile {shlex.quote(hostfile)}"
        await workers.check(report, words, executor, asked, seconds, named, clocks=job.kind != HOSTS)
    finally:
        await executor.aclose()


def _machine(report: Report, words: Words, *, needed: bool) -> None:
    from atlctl.cli.doctor import installed, machine, terminal

    installed.check_python(report, words)
    installed.check_packages(report, words)
    installed.check_programs(report, words)
    installed.check_completion(report, words, os.environ)
    machine.check_state(report, words, os.environ, needed=needed)
    machine.check_settings(report, words, os.environ)
    machine.check_descriptors(report, words)
    machine.check_clock(report, words, time.time())
    terminal.check_terminal(report, words, os.environ, context().streams, context().color)
    terminal.check_locale(report, words, terminal.given(os.environ))


def _document(report: Report) -> None:
    checks = [
        {"name": item.name, "status": str(item.status), "text": item.text, "fix": item.fix} for item in report.checks
    ]
    first = [{"command": command, "text": text} for command, text in report.first_steps]
    say.document(
        {
            "verdict": str(report.verdict),
            "checks": checks,
            **report.data,
            "role": report.role,
            "first_steps": first,
        }
    )
