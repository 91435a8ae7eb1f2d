"""Read the configuration: the user's file, the project's file, environment variables.

Each setting comes from the first of these that has it: flags, `ATLCTL_*`, the project file, the user's file. Lists are
not merged. The settings:

    [errors]
    signatures = ["PATH", ...]    # or ATLCTL_SIGNATURES=PATH:PATH; set but empty: none

    [smoke]
    busbw = ["PATH", ...]         # or ATLCTL_BUSBW=PATH:PATH

    [notify]                      # only in the user's file
    NAME = "URL"                  # or ["URL", ...], of apprise

    [ssh]
    host_keys = "strict"          # or "accept-new"; only in the user's file

    [ssh.jobs.NAME]               # NAME in the project file hides NAME in the user's file
    hosts = ["gpu[01-16]", ...]   # or hostfile = "PATH"
    include = "..."               # or exclude = "...", or neither

The user's file is `$XDG_CONFIG_HOME/atlctl/config.toml`, by default in `~/.config`. Its paths may begin with `~`;
relative paths are relative to its folder, those of the environment variable to the working folder.

The project file is `.atlctl.toml` in the working folder or the nearest folder above it, up to the home folder or to a
folder with `.git`; outside of both only the working folder is searched. Its author is the author of the checkout, so it
is restricted: its paths must be below its own folder (links included), it cannot set `host_keys` or `[notify]`, and it
is only read if this user or root owns the file and its folder and no other user can write to them. No setting of either
file starts a program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from atlctl.i18n import LIST, Message, joined
from atlctl.jobs.configfiles import distrust, project_file, user_file
from atlctl.jobs.errors import LEAVE_ONE_OUT, UsageError, not_regular, too_large
from atlctl.jobs.fields import items
from atlctl.jobs.naming import check_job_name
from atlctl.jobs.statedir import home_dir, read_head

SIGNATURES_VARIABLE = "ATLCTL_SIGNATURES"
BUSBW_VARIABLE = "ATLCTL_BUSBW"

_LIMIT = 1 << 20
#: Lists of paths, by table.
_PATH_KEYS = {"errors": ("signatures",), "smoke": ("busbw",)}
_TABLES = (*_PATH_KEYS, "notify", "ssh")
#: Titles of notifications.
FAILED_TITLE, SLOW_TITLE = Message("{job}: {worker} failed"), Message("{job} is slow")
HostKeys = Literal["strict", "accept-new"]
_SSH_KEYS = ("host_keys", "jobs")
_JOB_KEYS = ("hosts", "hostfile", "include", "exclude")
_AS_TEXT = Message('write it as {key} = "..."')


@dataclass(frozen=True, slots=True)
class SshJob:
    """A job given as a list of hosts: either `hosts`, each as a line of a hostfile, or the path of a `hostfile`.

    `include` or `exclude`, in deepspeed's grammar, or neither. `where` names the place in messages. `project`: the
    project file that it is from, None for the user's file. `hides`: the user's file has a job of the same name.
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
    """The settings of `[ssh]`. `host_keys`: whether an unknown host key is refused or accepted. `jobs` by name."""

    host_keys: HostKeys = "strict"
    jobs: Mapping[str, SshJob] = field(default_factory=dict)

    def under(self, project: SshConfig) -> SshConfig:
        """These user settings with the jobs of a project; a project's job replaces the user's job of the same name."""
        named = {name: replace(job, hides=name in self.jobs) for name, job in project.jobs.items()}
        return SshConfig(self.host_keys, {**self.jobs, **named})


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration: absolute paths, which need not exist. `signatures` of failures; `busbw`: bandwidth figures of
    hardware for the smoke test; `notify`: URLs by name; `ssh`: jobs that are lists of hosts. `unread`: why the project
    file was not read, "" if it was read or there is none."""

    signatures: tuple[str, ...] = ()
    busbw: tuple[str, ...] = ()
    notify: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    ssh: SshConfig = field(default_factory=SshConfig)
    unread: str = ""

    def notified(self, name: str) -> tuple[str, ...]:
        """The URLs of a name of `[notify]`. Raises UsageError."""
        if name in self.notify:
            return self.notify[name]
        raise UsageError(
            Message("no notification is named {name}", name=name),
            Message("known: {names}", names=joined(self.notify, LIST))
            if self.notify
            else Message('write {name} = "URL" below [notify] in your config.toml', name=name),
        )


@dataclass(frozen=True, slots=True)
class _File:
    """The settings of one file: lists of paths by `table.key`, and the tables `notify` and `ssh`."""

    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notify: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    ssh: SshConfig = field(default_factory=SshConfig)


def load_config(environ: Mapping[str, str], cwd: str | None = None) -> Config:
    """The configuration for the folder `cwd` (default: the working folder). A deleted working folder has no project
    file.

    Raises UsageError for an invalid file or variable.

    Both files are read and checked even if a variable overrides them, so that a mistake is found at once.
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
        user.notify,
        user.ssh.under(project.ssh),
        unread,
    )


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def read_toml(path: str, what: str) -> dict[str, Any]:
    """Read the TOML file `path`. `what` names its kind in errors.

    Links are followed. Anything but a regular file is refused without blocking. Raises FileNotFoundError if there is no
    file, UsageError if it cannot be read, is larger than 1 MiB or is not TOML.
    """
    import tomllib

    named = Message("{what} {path}", what=what, path=path)
    try:
        data = read_head(path, _LIMIT + 1, links=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(
            Message("cannot read {path}: {why}", path=named, why=os.strerror(error.errno or 0)),
            Message("check the path"),
        ) from error
    if data is None:
        raise UsageError(not_regular(named), Message("name a TOML file"))
    if len(data) > _LIMIT:
        raise UsageError(too_large(named, _LIMIT), Message("name a smaller file"))
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(Message("{path} is not UTF-8", path=named), Message("save it as UTF-8")) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            Message("{path} is not valid TOML: {why}", path=named, why=error), Message("see https://toml.io")
        ) from error


def _read(path: str, what: str, resolve: Callable[[str], str], *, trusted: bool) -> _File:
    """The settings of one file. `resolve` makes its paths absolute; `trusted`: it is the user's own."""
    if not os.path.exists(path):  # also below a home folder that does not exist or that this user may not enter
        return _File()
    tables, where = read_toml(path, what), Message("{what} {path}", what=what, path=path)
    for table, content in tables.items():
        if table not in _TABLES or not isinstance(content, dict):
            raise UsageError(_unknown_key(where, table), Message("known tables: {tables}", tables=", ".join(_TABLES)))
        if table in _PATH_KEYS:
            _check_keys(content, _PATH_KEYS[table], where, table)
    ssh = read_ssh(tables.pop("ssh", {}), where, resolve, trusted=trusted)
    notify = _read_notify(tables.pop("notify", {}), where, trusted=trusted)
    if not trusted:
        ssh = replace(ssh, jobs={name: replace(job, project=path) for name, job in ssh.jobs.items()})
    found = {}
    for table, content in tables.items():
        for key, value in content.items():
            if not isinstance(value, list) or not all(isinstance(i, str) and i and "\0" not in i for i in value):
                hint = Message('write it as {key} = ["PATH"]', key=key)
                raise UsageError(
                    Message("{where}: {key} must be a list of paths", where=where, key=f"{table}.{key}"), hint
                )
            found[f"{table}.{key}"] = tuple(resolve(item) for item in value)
    return _File(found, notify, ssh)


def _absolute(path: str, folder: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.normpath(os.path.join(folder, path))


def _inside(path: str, file: str) -> str:
    """An absolute path of the project file `file`; refused if it is not below its folder, links resolved."""
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
    """Parse the table `[ssh]` of the file that `where` names. `resolve` makes a path absolute. Raises UsageError.

    `trusted`: it is the user's own file. A checkout may not decide which hosts are trusted.
    """
    _check_keys(table, _SSH_KEYS, where, "ssh")
    host_keys: HostKeys = "strict"
    if "host_keys" in table:
        if not trusted:
            raise _users_only(where, "ssh.host_keys")
        said = table["host_keys"]
        if said not in ("strict", "accept-new"):
            raise UsageError(
                Message("{where}: ssh.host_keys must be strict or accept-new", where=where),
                Message('write it as host_keys = "strict"'),
            )
        host_keys = said
    jobs = table.get("jobs", {})
    if not isinstance(jobs, dict):
        raise UsageError(_no_table(where, "ssh.jobs"), _table("ssh.jobs.NAME"))
    return SshConfig(host_keys, {name: _job(name, job, where, resolve) for name, job in jobs.items()})


def _read_notify(table: Mapping[str, Any], where: str, *, trusted: bool) -> dict[str, tuple[str, ...]]:
    """The table `[notify]`. A checkout may not decide who gets the evidence. URLs are not shown: they hold secrets."""
    if table and not trusted:
        raise _users_only(where, "notify")
    found = {name: (value,) if isinstance(value, str) else tuple(items(value)) for name, value in table.items()}
    for name, urls in found.items():
        if not urls or not all(map(_is_line, urls)):
            raise UsageError(
                Message("{where}: {key} must be a URL or a list of them", where=where, key=f"notify.{name}"),
                _AS_TEXT.filled(key=name),
            )
    return found


def _users_only(where: str, key: str) -> UsageError:
    return UsageError(
        Message("{where}: a project cannot set {key}", where=where, key=key), Message("set it in your own config.toml")
    )


def _job(name: str, job: Any, where: str, resolve: Callable[[str], str]) -> SshJob:
    try:
        check_job_name(name)
    except UsageError as error:
        raise UsageError(Message("{where}: ssh.jobs: {why}", where=where, why=error.message), error.hint) from None
    key = f"ssh.jobs.{name}"
    if not isinstance(job, dict):
        raise UsageError(_no_table(where, key), _table(key))
    _check_keys(job, _JOB_KEYS, where, key)
    if ("hosts" in job) == ("hostfile" in job):
        found = Message("both hosts and hostfile") if "hosts" in job else Message("neither hosts nor hostfile")
        raise UsageError(
            Message("{where}: {key} has {found}", where=where, key=key, found=found),
            Message('write hosts = ["gpu[1-4]"] or hostfile = "PATH"'),
        )
    if "include" in job and "exclude" in job:
        raise UsageError(Message("{where}: {key} has both include and exclude", where=where, key=key), LEAVE_ONE_OUT)
    if "hosts" in job and not (isinstance(job["hosts"], list) and job["hosts"] and all(map(_is_line, job["hosts"]))):
        hint = Message('write it as hosts = ["gpu[1-4]", "ml@gpu9:2222"]')
        raise UsageError(Message("{where}: {key} must be a list of hosts", where=where, key=f"{key}.hosts"), hint)
    for text in ("hostfile", "include", "exclude"):
        if text in job and not _is_line(job[text]):
            raise UsageError(
                Message("{where}: {key} must be a string", where=where, key=f"{key}.{text}"),
                _AS_TEXT.filled(key=text),
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


def _is_line(value: Any) -> bool:
    """Whether `value` is one line of text. A line end inside would make two hosts of one."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()
