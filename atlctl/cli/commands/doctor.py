"""`atlctl doctor`: check backend, identity, permissions and tools, and print fixes."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlctl.cli import options, say
from atlctl.cli.runtime import context
from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError, NotAllowed, UsageError
from atlctl.jobs.model import HOSTS

if TYPE_CHECKING:
    from atlctl.backends.base import Backend
    from atlctl.cli.doctor.report import DoctorReport
    from atlctl.cli.target import Choice
    from atlctl.jobs.model import Job

#: Seconds for reaching a host or a worker; for an exec plugin of the kubeconfig; for all requests to a cluster.
CONNECT_SECONDS, LOGIN_SECONDS, CLUSTER_SECONDS = 10.0, 60.0, 60.0


TEXT = Message(
    "Changes nothing, and stores no host key. It logs in to hosts, and asks each worker of the current job for its "
    "Python and torch. Missing rights are printed as a Role for an administrator. Exit code: 0 if jobs can be "
    "read, 1 if something failed, 4 if the cluster refuses the login."
)
EXAMPLES = Message(
    """\
atlctl doctor
atlctl doctor -n ml-team --context gpu-cluster
atlctl doctor --hostfile hosts
atlctl doctor -j train-7
atlctl doctor -o json"""
)


async def command(
    option: Annotated[
        str | None,
        typer.Option(
            "-j",
            "--job",
            metavar="JOB",
            help=Message("the job whose workers are asked for their torch (default: the current one)"),
        ),
    ] = None,
    connect_timeout: Annotated[
        float, options.duration("--connect-timeout", help=Message("time limit for reaching a host or a worker"))
    ] = CONNECT_SECONDS,
    output: Annotated[str, options.output("table", "json")] = "table",
) -> int:
    from atlctl.cli.doctor.report import DoctorReport, report_text

    nothing: dict[str, Any] = {"backend": None, "cluster": None, "pod": None, "kinds": [], "permissions": []}
    report = DoctorReport(data={**nothing, "ssh": None, "job": None, "torch": [], "machine": {}})
    chosen = _chosen(report, option)
    if chosen is not None:
        await _place(report, chosen, option, connect_timeout)
    with say.doing(Message("checking this machine")):
        _machine(report, needed=chosen is not None and chosen.name == "local")
    if output == "json":
        _document(report)
    else:
        say.out(report_text(report, context().streams))
    return report.exit_code


def _chosen(report: DoctorReport, option: str | None) -> Choice | None:
    """The backend; None if it cannot be chosen because of errors in the configuration files."""
    from atlctl.cli.doctor import machine
    from atlctl.cli.target import choice
    from atlctl.jobs.config import load_config

    try:
        chosen = choice(None, option)
    except UsageError as error:
        try:
            load_config(os.environ)
        except AtlctlError:
            report.fail(
                "backend", Message("unknown: a configuration file has an error, see settings below"), error.hint
            )
            return None
        raise
    machine.check_backend(report, chosen)
    return chosen


async def _place(report: DoctorReport, chosen: Choice, option: str | None, seconds: float) -> None:
    """The backend, the current job there and its workers."""
    from atlctl.cli.doctor import hosts, machine
    from atlctl.cli.target import local

    source: Backend | None
    usable: list[str] | None = None
    if chosen.name == "kubernetes":
        source = await _cluster(report, option)
    elif chosen.name == "ssh":
        source, usable = await _hosts(report, option, seconds)
    else:
        machine.check_user(report)
        source = local()
    if chosen.name != "ssh":
        hosts.check_others(report)
    blind = any(right["purpose"] == "read" and right["allowed"] is False for right in report.data["permissions"])
    if source is None or blind:
        report.skip("job", Message("not looked for: see above what has to be mended first"))
        return
    from atlctl.cli.doctor.job import check_current

    job = await check_current(report, source, option, nothing_else=chosen.why == "no_cluster")
    if job is not None:
        await _workers(report, source, job, usable, seconds)


async def _cluster(report: DoctorReport, option: str | None) -> Backend | None:
    """The cluster; None if it cannot be used."""
    from atlctl.backends.kubernetes.backend import KubernetesBackend
    from atlctl.cli import patience, target
    from atlctl.cli.doctor import cluster

    cluster.check_pod(report)
    source = target.backend(None, option)
    assert isinstance(source, KubernetesBackend)
    try:
        with say.doing(Message("connecting to the cluster"), limit=LOGIN_SECONDS):
            client = await patience.login(source.api(), LOGIN_SECONDS)
    except NotAllowed as error:
        report.refused("cluster", error)
        return None
    except AtlctlError as error:
        report.fail("cluster", error.message, error.hint)
        return None
    cluster.check_access(report, client.access)
    try:
        with say.doing(Message("asking the cluster what it has and allows"), limit=CLUSTER_SECONDS):
            async with asyncio.timeout(CLUSTER_SECONDS):
                able = await cluster.examine(report, client, client.access.user)
    except TimeoutError:
        report.fail(
            "server",
            Message("not all questions were answered within {seconds} s", seconds=f"{CLUSTER_SECONDS:g}"),
            Message("try again; kubectl get --raw /readyz?verbose shows what the server waits for"),
        )
        return None
    return source if able else None


async def _hosts(report: DoctorReport, option: str | None, seconds: float) -> tuple[Backend | None, list[str] | None]:
    """The hosts, and the names of those that can be used; None if none of them can."""
    from atlctl.cli.doctor import hosts
    from atlctl.cli.target import stated

    try:
        named = stated(None, option)
        site = hosts.find(context().hostfile, None if named is None else named.name)
    except AtlctlError as error:
        report.fail("ssh.hosts", error.message, error.hint)
        return None, None
    context().closers.append(site.backend.aclose)
    usable = await hosts.examine(report, site, seconds)
    return (site.backend if usable or not site.hosts else None), usable


async def _workers(report: DoctorReport, source: Backend, job: Job, usable: list[str] | None, seconds: float) -> None:
    """Report the Python and torch of the current job's workers."""
    from atlctl.cli.doctor.job import check_workers

    if any(right["purpose"] == "exec" and right["allowed"] is False for right in report.data["permissions"]):
        report.skip("torch", Message("not asked: you may not run commands in workers, see rights.exec"))
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
        await check_workers(report, executor, asked, seconds, named, clocks=job.kind != HOSTS)
    finally:
        await executor.aclose()


def _machine(report: DoctorReport, *, needed: bool) -> None:
    from atlctl.cli.doctor import machine

    machine.check_python(report)
    machine.check_packages(report)
    machine.check_programs(report)
    machine.check_completion(report, os.environ)
    machine.check_state(report, os.environ, needed=needed)
    machine.check_settings(report, os.environ)
    machine.check_descriptors(report)
    machine.check_clock(report, time.time())
    machine.check_terminal(report, os.environ, context().streams, context().color)
    machine.check_locale(report, machine.given_environment(os.environ))


def _document(report: DoctorReport) -> None:
    checks = [
        {"name": item.name, "status": str(item.status), "text": item.text, "fix": item.fix} for item in report.checks
    ]
    first = [{"command": command, "text": text} for command, text in report.first_steps]
    say.document(
        {"verdict": str(report.verdict), "checks": checks, **report.data, "role": report.role, "first_steps": first}
    )
