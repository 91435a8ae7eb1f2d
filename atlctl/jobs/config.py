"""The configuration: a file of the user's, a file of the project's, environment variables.

Each setting comes from the first of these that has it: flags, `ATLCTL_*`, the project file, the user's file.
Lists are not merged. Settings so far:

    [errors]
    signatures = ["PATH", ...]    # or ATLCTL_SIGNATURES=PATH:PATH; set and empty, it means none

    [smoke]
    busbw = ["PATH", ...]         # or ATLCTL_BUSBW=PATH:PATH

    [ssh]
    host_keys = "strict"          # or "accept-new"; the user's file alone

    [ssh.jobs.NAME]               # NAME of the project's file hides that of the user's
    hosts = ["gpu[01-16]", ...]   # or hostfile = "PATH"
    include = "..."               # or exclude = "...", or neither

The user's file is `$XDG_CONFIG_HOME/atlctl/config.toml`, by default in `~/.config`. Its paths may begin with
`~`, others are relative to its folder; those of the environment variable to the working folder.

The project file is `.atlctl.toml` in the working folder or the nearest folder above it, up to the home folder or
to one that holds `.git`; outside of both only the working folder counts. It comes from whoever wrote the checkout,
so it can do little: its paths must stay below its own folder, links included, it has no say in which host keys are
taken, and it is not read unless this user or root owns the file and its folder, and nobody else may write to them.
No setting of either file starts a program.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from atlctl.i18n import Message
from atlctl.jobs.configfiles import distrust, project_file, user_file
from atlctl.jobs.errors import LEAVE_ONE_OUT, UsageError, not_regular, too_large
from atlctl.jobs.naming import check_job_name
from atlctl.jobs.statedir import home_dir

SIGNATURES_VARIABLE = "ATLCTL_SIGNATURES"
BUSBW_VARIABLE = "ATLCTL_BUSBW"

_LIMIT = 1 << 20
#: Lists of paths, by their tables.
_PATH_KEYS = {"errors": ("signatures",), "smoke": ("busbw",)}
_TABLES = (*_PATH_KEYS, "ssh")
HostKeys = Literal["strict", "accept-new"]
_SSH_KEYS = ("host_keys", "jobs")
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


@dataclass(frozen=True, slots=True)
class Config:
    """What was configured: absolute paths, which need not exist. `signatures` of failures; `busbw`: figures of
    hardware for the smoke test; `ssh`: jobs that are lists of hosts. `unread`: why the project file is not read, ""
    for one that is read or not there."""

    signatures: tuple[str, ...] = ()
    busbw: tuple[str, ...] = ()
    ssh: SshConfig = field(default_factory=SshConfig)
    unread: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    """What one file sets: lists of paths by `table.key`, and the table `ssh`."""

    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ssh: SshConfig = field(default_factory=SshConfig)


def load_config(environ: Mapping[str, str], cwd: str | None = None) -> Config:
    """The settings that hold in the folder `cwd`, by default the working folder. One that was removed has no project.

    Raises UsageError for a file or a variable that is wrong.

    Both files are read and checked even where a variable overrides them: a mistake does not wait to be found.
    """
    home = home_dir(environ)
    own = user_file(environ)
    folder = os.path.dirname(own)
    user = _read(own, Message("configuration file"), lambda path: _absolute(path, folder, home), trusted=True)
    here = _working_folder() if cwd is None else cwd
    checkout = project_file(environ, here) if here else None
    project, unread = _File(), distrust(checkout) if checkout is not None else ""
    if checkout is not None and not unread:
        project = _read(checkout, Message("project file"), lambda path: _inside(path, checkout), trusted=False)

    def setting(table: str, key: str, variable: str) -> tuple[str, ...]:
        if variable in environ:
            return tuple(_absolute(path, here, home) for path in environ[variable].split(":") if path)
        name = f"{table}.{key}"
        return project.paths.get(name, user.paths.get(name, ()))

    return Config(
        setting("errors", "signatures", SIGNATURES_VARIABLE),
        setting("smoke", "busbw", BUSBW_VARIABLE),
        user.ssh.under(project.ssh),
        unread,
    )


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def read_toml(path: str, what: str) -> dict[str, Any]:
    """The tables of the TOML file `path`. `what` names its kind in errors.

    Links are followed; anything but a regular file is refused without waiting for it. Raises FileNotFoundError
    where there is none, UsageError where it cannot be read, is larger than 1 MiB or is no TOML.
    """
    import tomllib

    named = Message("{what} {path}", what=what, path=path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            data = _all(fd) if regular else b""
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(
            Message("cannot read {path}: {why}", path=named, why=os.strerror(error.errno or 0)),
            Message("check the path"),
        ) from error
    if not regular:
        raise UsageError(not_regular(named), Message("name a TOML file"))
    if len(data) > _LIMIT:
        raise UsageError(
            too_large(named, _LIMIT),
            Message("name a smaller file"),
        )
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(Message("{path} is not UTF-8", path=named), Message("save it as UTF-8")) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            Message("{path} is not valid TOML: {why}", path=named, why=error),
            Message("see https://toml.io"),
        ) from error


def _all(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read(_LIMIT + 1)


def _read(path: str, what: str, resolve: Callable[[str], str], *, trusted: bool) -> _File:
    """The settings of one file. `resolve` makes its paths absolute; `trusted`: it is the user's own."""
    if not os.path.exists(path):  # also below a home that does not exist, or that this user may not enter
        return _File()
    tables, where = read_toml(path, what), Message("{what} {path}", what=what, path=path)
    for table, content in tables.items():
        if table not in _TABLES or not isinstance(content, dict):
            raise UsageError(_unknown_key(where, table), Message("known tables: {tables}", tables=", ".join(_TABLES)))
        if table in _PATH_KEYS:
            _check_keys(content, _PATH_KEYS[table], where, table)
    ssh = read_ssh(tables.pop("ssh", {}), where, resolve, trusted=trusted)
    if not trusted:
        ssh = replace(ssh, jobs={name: replace(job, project=path) for name, job in ssh.jobs.items()})
    found = {}
    for table, content in tables.items():
        for key, value in content.items():
            if not isinstance(value, list) or not all(isinstance(i, str) and i and "\0" not in i for i in value):
                hint = Message('write it as {key} = ["PATH"]', key=key)
                raise UsageError(
                    Message("{where}: {key} must be a list of paths", where=where, key=f"{table}.{key}"),
                    hint,
                )
            found[f"{table}.{key}"] = tuple(resolve(item) for item in value)
    return _File(found, ssh)


def _absolute(path: str, folder: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.normpath(os.path.join(folder, path))


def _inside(path: str, file: str) -> str:
    """A path of the project file `file`: below its folder, wherever links lead."""
    folder = os.path.dirname(file)
    whole = os.path.normpath(os.path.join(folder, path))
    root = os.path.realpath(folder)
    if os.path.isabs(path) or os.path.commonpath((root, os.path.realpath(whole))) != root:
        raise UsageError(
            Message("project file {file}: {path} is outside of the project's folder", file=file, path=path),
            Message("move the file into the project, or name it in your own config.toml"),
        )
    return whole


def read_ssh(table: Mapping[str, Any], where: str, resolve: Callable[[str], str], *, trusted: bool) -> SshConfig:
    """The table `[ssh]` of the file that `where` names. `resolve` makes a path absolute. Raises UsageError.

    `trusted`: it is the user's own file. Whom the user trusts is for no checkout to say.
    """
    _check_keys(table, _SSH_KEYS, where, "ssh")
    host_keys: HostKeys = "strict"
    if "host_keys" in table:
        if not trusted:
            raise UsageError(
                Message("{where}: a project cannot set ssh.host_keys", where=where),
                Message("set it in your own config.toml"),
            )
        said = table["host_keys"]
        if said not in ("strict", "accept-new"):
            raise UsageError(
                Message("{where}: ssh.host_keys must be strict or accept-new", where=where),
                Message('write it as host_keys = "strict"'),
            )
        host_keys = said
    jobs = table.get("jobs", {})
    if not isinstance(jobs, dict):
        raise UsageError(
            _no_table(where, "ssh.jobs"),
            _table("ssh.jobs.NAME"),
        )
    return SshConfig(host_keys, {name: _job(name, job, where, resolve) for name, job in jobs.items()})


def _job(name: str, job: Any, where: str, resolve: Callable[[str], str]) -> SshJob:
    try:
        check_job_name(name)
    except UsageError as error:
        raise UsageError(Message("{where}: ssh.jobs: {why}", where=where, why=error.message), error.hint) from None
    key = f"ssh.jobs.{name}"
    if not isinstance(job, dict):
        raise UsageError(
            _no_table(where, key),
            _table(key),
        )
    _check_keys(job, _JOB_KEYS, where, key)
    if ("hosts" in job) == ("hostfile" in job):
        found = Message("both hosts and hostfile") if "hosts" in job else Message("neither hosts nor hostfile")
        raise UsageError(
            Message("{where}: {key} has {found}", where=where, key=key, found=found),
            Message('write hosts = ["gpu[1-4]"] or hostfile = "PATH"'),
        )
    if "include" in job and "exclude" in job:
        raise UsageError(
            Message("{where}: {key} has both include and exclude", where=where, key=key),
            LEAVE_ONE_OUT,
        )
    if "hosts" in job and not _are_lines(job["hosts"]):
        hint = Message('write it as hosts = ["gpu[1-4]", "ml@gpu9:2222"]')
        raise UsageError(Message("{where}: {key} must be a list of hosts", where=where, key=f"{key}.hosts"), hint)
    for text in ("hostfile", "include", "exclude"):
        if text in job and not _is_line(job[text]):
            raise UsageError(
                Message("{where}: {key} must be a string", where=where, key=f"{key}.{text}"),
                Message('write it as {key} = "..."', key=text),
            )
    return SshJob(
        Message("{where}: {key}", where=where, key=key),
        tuple(job.get("hosts", ())),
        resolve(job["hostfile"]) if "hostfile" in job else None,
        job.get("include", ""),
        job.get("exclude", ""),
    )


def _table(key: str) -> Message:
    return Message('write [{key}], and below it hosts = ["gpu[1-4]"]', key=key)


def _no_table(where: str, key: str) -> Message:
    return Message("{where}: {key} must be a table", where=where, key=key)


def _unknown_key(where: str, key: str) -> Message:
    return Message("{where}: unknown key {key}", where=where, key=key)


def _check_keys(table: Mapping[str, Any], keys: tuple[str, ...], where: str, name: str) -> None:
    for key in table:
        if key not in keys:
            raise UsageError(
                _unknown_key(where, f"{name}.{key}"),
                Message("known keys of [{name}]: {keys}", name=name, keys=", ".join(keys)),
            )


def _are_lines(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_line, value))


def _is_line(value: Any) -> bool:
    """One line of text. A line end inside would make two hosts of one."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()
