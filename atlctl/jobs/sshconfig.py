"""The table `[ssh]` of a configuration file: how host keys are taken, and jobs that are lists of hosts.

Only kinds are checked here. What the hosts mean is the backend's to say, when a job is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from atlctl.jobs.errors import UsageError
from atlctl.jobs.naming import check_job_name

HostKeys = Literal["strict", "accept-new"]

_KEYS = ("host_keys", "jobs")
_JOB_KEYS = ("hosts", "hostfile", "include", "exclude")


@dataclass(frozen=True, slots=True)
class SshJob:
    """A job of hosts: either `hosts`, each as a line of a hostfile, or the path of a `hostfile`.

    `include` or `exclude`, in deepspeed's grammar, or neither. `where` names the place in messages. `project`: the
    project file that it is from, None for the user's own; `hides`: a job of this name in the user's own file.
    """

    where: str
    hosts: tuple[str, ...] = ()
    hostfile: str | None = None
    include: str = ""
    exclude: str = ""
    project: str | None = None
    hides: bool = False


@dataclass(frozen=True, slots=True)
class SshConfig:
    """`host_keys`: whether the key of a host that is not known yet is refused or noted. `jobs` by name."""

    host_keys: HostKeys = "strict"
    jobs: Mapping[str, SshJob] = field(default_factory=dict)

    def under(self, project: SshConfig) -> SshConfig:
        """These settings of the user's with those of a project over them: jobs, each as a whole, and nothing else."""
        named = {name: replace(job, hides=name in self.jobs) for name, job in project.jobs.items()}
        return SshConfig(self.host_keys, {**self.jobs, **named})


def read_ssh(table: Mapping[str, Any], where: str, resolve: Callable[[str], str], *, trusted: bool) -> SshConfig:
    """The table `[ssh]` of the file that `where` names. `resolve` makes a path absolute. Raises UsageError.

    `trusted`: it is the user's own file. Whom the user trusts is for no checkout to say.
    """
    _known(table, _KEYS, where, "ssh")
    host_keys: HostKeys = "strict"
    if "host_keys" in table:
        if not trusted:
            raise UsageError(
                f"{where}: ssh.host_keys is not for a project to set", "set it in your own config.toml, if you want it"
            )
        said = table["host_keys"]
        if said not in ("strict", "accept-new"):
            raise UsageError(f"{where}: ssh.host_keys must be strict or accept-new", 'write it as host_keys = "strict"')
        host_keys = said
    jobs = table.get("jobs", {})
    if not isinstance(jobs, dict):
        raise UsageError(
            f"{where}: ssh.jobs must be a table", 'write [ssh.jobs.NAME], and below it hosts = ["gpu[1-4]"]'
        )
    return SshConfig(host_keys, {name: _job(name, job, where, resolve) for name, job in jobs.items()})


def _job(name: str, job: Any, where: str, resolve: Callable[[str], str]) -> SshJob:
    try:
        check_job_name(name)
    except UsageError as error:
        raise UsageError(f"{where}: ssh.jobs: {error.message}", error.hint) from None
    key = f"ssh.jobs.{name}"
    if not isinstance(job, dict):
        raise UsageError(f"{where}: {key} must be a table", f'write [{key}], and below it hosts = ["gpu[1-4]"]')
    _known(job, _JOB_KEYS, where, key)
    if ("hosts" in job) == ("hostfile" in job):
        count = "both hosts and hostfile" if "hosts" in job else "neither hosts nor hostfile"
        raise UsageError(f"{where}: {key} has {count}", 'write hosts = ["gpu[1-4]"] or hostfile = "PATH"')
    if "include" in job and "exclude" in job:
        raise UsageError(f"{where}: {key} has both include and exclude", "leave one of them out")
    if "hosts" in job and not _are_lines(job["hosts"]):
        hint = 'write it as hosts = ["gpu[1-4]", "ml@gpu9:2222"]'
        raise UsageError(f"{where}: {key}.hosts must be a list of hosts", hint)
    for text in ("hostfile", "include", "exclude"):
        if text in job and not _is_line(job[text]):
            raise UsageError(f"{where}: {key}.{text} must be a text", f'write it as {text} = "..."')
    return SshJob(
        f"{where}: {key}",
        tuple(job.get("hosts", ())),
        resolve(job["hostfile"]) if "hostfile" in job else None,
        job.get("include", ""),
        job.get("exclude", ""),
    )


def _known(table: Mapping[str, Any], keys: tuple[str, ...], where: str, name: str) -> None:
    for key in table:
        if key not in keys:
            raise UsageError(f"{where}: unknown key {name}.{key}", f"known in [{name}] are {', '.join(keys)}")


def _are_lines(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_line, value))


def _is_line(value: Any) -> bool:
    """One line of text. A line end inside would make two hosts of one."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()
