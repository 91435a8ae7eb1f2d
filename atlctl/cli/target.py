"""From what was typed to a job and its workers. The only place that picks a backend."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from atlctl.cli import current, say
from atlctl.cli.options import BACKENDS, not_together, stated_job
from atlctl.cli.runtime import context, undisturbed
from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.errors import (
    LEAVE_ONE_OUT,
    NAME_HOSTS,
    SEE_PERMISSIONS,
    AtlctlError,
    NotAllowed,
    NothingMatched,
    Replaced,
    UsageError,
)
from atlctl.jobs.model import HOSTS, Job, RankMap, Worker
from atlctl.jobs.naming import fold_names
from atlctl.jobs.selection import Selection, resolve

if TYPE_CHECKING:
    from atlctl.backends.base import Backend


BACKEND_VARIABLE = "ATLCTL_BACKEND"
START_ONE = Message("start one: atlctl local run --workers 2 -- CMD, or try: atlctl demo")


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend and what decided for it. `value`: the option, the variable's value, the worker or the job."""

    name: str
    why: Literal[
        "used",
        "option",
        "cluster_option",
        "hostfile",
        "variable",
        "worker",
        "wrapper",
        "local_job",
        "ssh_job",
        "configured",
        "hosts",
        "no_cluster",
    ]
    value: str = ""


@dataclass(frozen=True, slots=True)
class Stated:
    """The name of a job and what named it. `uid`: the only job of that name that is meant, None if any is."""

    name: str
    how: Literal["named", "variable", "used"]
    uid: str | None = None


def stated(argument: str | None, option: str | None = None) -> Stated | None:
    """The job that is named: by the argument or -j, by ATLCTL_JOB, or by `atlctl use` unless options name another
    place. Raises as `stated_job`, and as `current.load`."""
    name = stated_job(argument, option)
    if name is not None:
        return Stated(name, "variable" if argument is None and option is None else "named")
    used = _used()
    return None if used is None else Stated(used.name, "used", used.uid)


def _used() -> current.Used | None:
    used = current.load()
    return used if used is not None and used.fits(vars(context())) else None


def choice(argument: str | None = None, option: str | None = None, *, of_job: bool = True) -> Choice:
    """Which backend this command has; `argument` and `option` name its job. `of_job`: the command is about one job.

    In falling order: where the job of `atlctl use` is, --backend, an option that only one of them has,
    ATLCTL_BACKEND, the worker that this runs in, a job of that name on this machine or on hosts, a cluster that is
    configured, a job that runs on this machine, hosts that are known, this machine. Raises UsageError.
    """
    asked = context()
    if of_job and stated_job(argument, option) is None and (used := _used()) is not None:
        for name, value in used.asked.items():
            setattr(asked, name, value)
        return Choice(used.asked["backend"], "used", used.name)
    cluster = next(
        (n for n in ("context", "kubeconfig", "namespace", "selector") if getattr(asked, n) is not None), None
    )
    if cluster is not None:
        _agree(f"--{cluster}", "kubernetes", asked.backend)
        if asked.hostfile is not None:
            raise not_together(cluster, "hostfile")
        return Choice("kubernetes", "cluster_option", f"--{cluster}")
    if asked.hostfile is not None:
        _agree("--hostfile", "ssh", asked.backend)
        return Choice("ssh", "hostfile", asked.hostfile)
    if asked.backend is not None:
        return Choice(asked.backend, "option", asked.backend)
    if stated := os.environ.get(BACKEND_VARIABLE):
        if stated not in BACKENDS:
            raise UsageError(
                Message("invalid value '{value}' for {variable}", value=stated, variable=BACKEND_VARIABLE),
                Message("one of {values}", values=joined(BACKENDS, LIST)),
            )
        return Choice(stated, "variable", stated)
    return _fitting(stated_job(argument, option))


def _agree(option: str, needs: str, asked: str | None) -> None:
    if asked is not None and asked != needs:
        raise UsageError(not_for(option, asked), LEAVE_ONE_OUT)


def not_for(option: str, backend: str) -> Message:
    return Message("'{option}' does not apply to the backend {backend}", option=option, backend=backend)


def backend(
    argument: str | None = None, option: str | None = None, *, of_job: bool = True, everywhere: bool = False
) -> Backend:
    """The backend that `choice` names. `everywhere`: it lists the jobs of all namespaces."""
    chosen = choice(argument, option, of_job=of_job)
    if chosen.why == "local_job":
        say.note(
            Message("{job} is a job of this machine; for one of the cluster: --backend kubernetes", job=chosen.value)
        )
    asked = context()
    if chosen.name != "kubernetes" and asked.container is not None:
        raise UsageError(not_for("--container", chosen.name), Message("leave it out"))
    if chosen.name == "local":
        return local()
    if chosen.name == "ssh":
        from atlctl.cli import hosts

        reached = hosts.backend(asked.hostfile, around=stated(argument, option) is None)
        asked.closers.append(reached.aclose)
        return reached
    from atlctl.backends.kubernetes.backend import KubernetesBackend

    if asked.selector is not None and stated_job(argument, option) is not None:
        raise UsageError(
            Message("a job and a selector are given"), Message("leave one of them out: JOB, or -l SELECTOR")
        )
    made = KubernetesBackend(
        asked.kubeconfig,
        asked.context,
        asked.namespace,
        selector=asked.selector,
        container=asked.container,
        all_namespaces=everywhere,
        waiting=say.note,
        around=undisturbed,
    )
    asked.closers.append(made.aclose)
    return made


def local() -> Backend:
    """Jobs of this machine."""
    from atlctl.backends.hosts.local import LocalBackend

    return LocalBackend()


def _fitting(name: str | None) -> Choice:
    """The backend if none was asked for."""
    from atlctl.backends.kubernetes.kubeconfig import available
    from atlctl.cli import hosts

    if worker := os.environ.get("ATLCTL_WORKER"):
        ssh = name is not None and (
            hosts.started(name) or (not _is_local(name) and hosts.wrappers_of(name) is not None)
        )
        return Choice("ssh" if ssh else "local", "worker", worker)
    if hosts.wrapped(name):
        return Choice("ssh", "wrapper", name or "")
    cluster = available()
    if name is None:
        return Choice("kubernetes", "configured") if cluster else _without_a_cluster()
    if _is_local(name):
        return Choice("local", "local_job" if cluster else "no_cluster", name)
    if hosts.known(name):
        return Choice("ssh", "ssh_job", name)
    return Choice("kubernetes", "configured") if cluster else Choice("local", "no_cluster")


def _is_local(name: str) -> bool:
    """Whether a job of this machine has that name."""
    from atlctl.backends.hosts import registry

    try:
        registry.glance(name)
    except AtlctlError:
        return False
    return True


def _without_a_cluster() -> Choice:
    """If nothing is named: this machine if a job runs there, else hosts that are known."""
    from atlctl.cli import hosts

    if not _lives_here() and hosts.available():
        return Choice("ssh", "hosts")
    return Choice("local", "no_cluster")


def _lives_here() -> bool:
    """Whether a job runs on this machine. One that cannot be read does not count; the commands that read jobs report
    it."""
    from atlctl.backends.hosts import registry

    def lives(name: str) -> bool:
        with contextlib.suppress(AtlctlError):
            return registry.glance(name).presence == "alive"
        return False

    return any(map(lives, registry.LOCAL.names()))


@dataclass(frozen=True, slots=True)
class Current:
    """A job and how it was selected: by name, ATLCTL_JOB, `atlctl use`, the place (the current worker, named hosts or a
    selector), or as the only active one."""

    job: Job
    how: Literal["named", "variable", "used", "place", "only"]


async def find_job(
    source: Backend, argument: str | None, option: str | None = None, *, reads_only: bool, plan: bool = False
) -> Job:
    """`current_job`, and on stderr how it was found if the command line does not name it. `plan`: a plan that follows
    says so if `atlctl use` has named it."""
    with say.doing(looking(stated_job(argument, option))):
        found = await current_job(source, argument, option, reads_only=reads_only)
    if not found.job.numbered:
        found = replace(found, job=_as_recorded(source, found.job))
    remember(source, [found.job])
    if found.how == "place" and context().selector is None and source.name != "ssh":
        say.note(Message("job {job}, which this worker belongs to", job=found.job.name))
    elif found.how == "only":
        say.note(Message("job {job}, the only active one", job=found.job.name))
    elif found.how == "used" and not plan:
        say.note(Message("job {job}, by atlctl use", job=found.job.name))
    elif found.job.kind == HOSTS and context().hostfile is None:
        from atlctl.cli import hosts

        hosts.say_project(found.job.name)
    if not found.job.numbered:
        text = Message(
            "pods of job {job} are gone, and nothing shows the order in which they were made: "
            "its workers have the names of their pods, and their numbers count only those that are left"
        )
        say.note(text.filled(job=found.job.name))
    return found.job


def looking(name: str | None) -> Message:
    """The status line's text while a job is searched; `name`: the one that was named."""
    return Message("looking for the current job") if name is None else Message("looking for job {job}", job=name)


async def current_job(source: Backend, argument: str | None, option: str | None = None, *, reads_only: bool) -> Current:
    """The job that was named, else the current one.

    In falling order: the argument or -j, ATLCTL_JOB (set in every worker: the job that owns it), `atlctl use`, the
    worker that this runs in, and for commands that only read the single active job in sight. Raises UsageError if
    nothing names a job, NothingMatched if there is none, Replaced if `atlctl use` has named one that is gone.
    """
    named = stated(argument, option)
    if named is not None:
        return Current(await _get(source, named), named.how)
    try:
        own = await source.current()
    except NotAllowed as error:
        raise _or_peers(error) from error
    if own is not None:
        return Current(own, "place")
    listing = await source.list_jobs()
    jobs = listing.jobs
    remember(source, jobs, whole=not listing.problems)
    active = [job for job in jobs if any(worker.state.active for worker in job.workers)]
    if reads_only and len(active) == 1 and not listing.problems:
        return Current(active[0], "only")
    if not jobs and listing.problems:
        raise listing.problems[0]
    if not jobs:
        hints = {
            "local": START_ONE,
            "kubernetes": Message("look in all: atlctl jobs -A"),
            "ssh": NAME_HOSTS,
        }
        raise NothingMatched(Message("there is no job here"), hints[source.name])
    shown = joined((job.name for job in (active or jobs)[:8]), LIST)
    raise UsageError(Message("no job is named"), Message("name one with -j: {jobs}; all: atlctl jobs", jobs=shown))


async def _get(source: Backend, named: Stated) -> Job:
    try:
        job = await source.get_job(named.name)
    except NothingMatched as error:
        match named.how:
            case "named":
                raise NothingMatched(error.message, _elsewhere(named.name, error)) from error
            case "variable":
                text = Message("{problem} (named by ATLCTL_JOB)", problem=error.message)
                raise NothingMatched(text, _elsewhere(named.name, error)) from error
            case "used":
                text = Message("{problem} (named by atlctl use)", problem=error.message)
                raise NothingMatched(text, current.FORGET) from error
    if named.uid is not None and job.uid != named.uid:
        again = Message("'atlctl use' means the one before; for the new one: atlctl use {job}", job=job.name)
        raise Replaced(job.name, again)
    return job


def _as_recorded(source: Backend, job: Job) -> Job:
    """The job with the names and indexes that its recording knows."""
    from atlctl.backends.kubernetes.backend import KubernetesBackend
    from atlctl.cli.evidence import recorded

    return source.recall(job, recorded.numbers(job)) if isinstance(source, KubernetesBackend) else job


def remember(source: Backend, jobs: Sequence[Job], *, whole: bool = False, everywhere: bool = False) -> None:
    """Keep the names of jobs that only a server knows, for completion. `whole`: there are no others."""
    if source.name == "kubernetes":
        from atlctl.cli.completion import keep

        keep.seen_jobs(jobs, whole=whole, everywhere=everywhere)


def _elsewhere(name: str, error: NothingMatched) -> str | None:
    from atlctl.cli import hosts

    if hosts.placed_here(name):
        return Message(
            "a worker of it runs here; 'atlctl ssh run' was called elsewhere, and only there the job is known"
        )
    return error.hint


def _or_peers(error: NotAllowed) -> NotAllowed:
    """The refusal inside a worker, without kubectl: peers may be known without the cluster."""
    from atlctl.cli import hosts

    found = hosts.peers()
    if found is None:
        return NotAllowed(error.message, SEE_PERMISSIONS)
    peers = Message("the workers can be reached with --backend ssh ({how})", how=found.used)
    return NotAllowed(error.message, joined((peers, SEE_PERMISSIONS)))


async def find_logged(source: Backend, argument: str | None, option: str | None = None) -> Job:
    """`find_job` for a command that reads logs. Raises UsageError for a list of hosts, which has none."""
    job = await find_job(source, argument, option, reads_only=True)
    if job.kind == HOSTS:
        raise UsageError(
            Message("{job} is a list of hosts: there are no logs that atlctl knows of", job=job.name),
            Message(
                "a job that 'atlctl ssh run' starts has logs; for files: atlctl exec --hostfile FILE --all -- tail FILE"
            ),
        )
    return job


async def job_and_workers(
    source: Backend, argument: str | None, option: str | None, selection: Selection, timeout: float | None
) -> tuple[Job, Sequence[Worker]]:
    """The job and its workers that a command which only reads is about, found within `timeout` seconds."""
    from atlctl.cli.patience import within

    async with within(timeout):
        job = await find_job(source, argument, option, reads_only=True)
        return job, await choose(source, job, selection)


async def with_wrappers(source: Backend, job: Job) -> tuple[Backend, Job]:
    """The job as `atlctl run` has it, which knows its attempts, if that wraps a worker of it in this container; else
    as it is."""
    from atlctl.cli import hosts

    record = hosts.wrappers_of(job.name)
    if record is None:
        return source, job
    asked = context()
    if asked.wrappers is None:
        asked.wrappers = wrapped = hosts.backend(None, around=False)

        async def close() -> None:
            asked.wrappers = None
            await wrapped.aclose()

        asked.closers.append(close)
    return asked.wrappers, await asked.wrappers.launched(record)


async def with_attempt(source: Backend, job: Job, number: int) -> tuple[Backend, Job, int | None]:
    """The job in an attempt, and its number for a log: None if it is the last one. Raises NothingMatched if it does not
    exist, UsageError if attempts are not counted. In a cluster only the logs show which there are."""
    from atlctl.backends.hosts.backend import SupervisedBackend
    from atlctl.cli.loglines import no_attempt

    source, job = await with_wrappers(source, job)
    if source.name == "kubernetes":
        return source, job, number
    if not isinstance(source, SupervisedBackend):
        raise UsageError(
            Message("the attempts of job {job} are not counted: 'atlctl run' does that", job=job.name),
            Message("before the last restart: {command}", command=f"atlctl logs {job.name} --previous"),
        )
    last = job.attempts or 1
    if number > last:
        raise no_attempt(job, number, last)
    return (source, job, None) if number == last else (source, await source.in_attempt(job, number), number)


async def choose(
    source: Backend, job: Job, selection: Selection, *, irreversible: bool = False, looked: bool = False
) -> Sequence[Worker]:
    """The selected workers; all of them if the selection is empty.

    `irreversible`: a computed map of ranks is refused. `looked`: Held workers are known by now. Raises NothingMatched
    (exit 3).
    """
    if not job.workers:
        raise NothingMatched(Message("job {job} has no workers", job=job.name), f"atlctl ps {job.name}")
    if selection.empty:
        selection = replace(selection, all=True)
    if selection.failed and not looked:
        from atlctl.cli.evidence import held

        job = await held.look(source, job)
    ranks: RankMap | None = None
    if selection.ranks:
        from atlctl.cli.evidence import recorded

        with say.doing(Message("looking where the ranks of job {job} run", job=job.name)):
            ranks = recorded.completed(job, await source.ranks(job))
        if ranks is not None:
            if ranks.guess and irreversible:
                raise AtlctlError(
                    Message("the workers of ranks are only a guess ({source})", source=ranks.source),
                    Message("select workers with -w"),
                )
            by = Message("ranks to workers by {source}", source=ranks.source)
            say.note(Message("{by}, a guess", by=by) if ranks.guess else by)
    chosen = resolve(selection, job, ranks)
    context().chosen = len(chosen)
    return chosen


def say_guessed(workers: Sequence[Worker]) -> None:
    """Says which container was taken where nothing names the one that trains."""
    guessed = [worker for worker in workers if worker.container_guessed]
    if guessed:
        names = ", ".join(dict.fromkeys(str(worker.container) for worker in guessed))
        whose = fold_names(worker.name for worker in guessed)
        say.note(Message("container {names} of {workers} is a guess; name one with -c", names=names, workers=whose))
