"""Find the configuration files and decide whether they are trusted. `config` reads them.

Shell completion uses this module: it imports nothing slow.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from atlctl.i18n import Message
from atlctl.jobs.statedir import home_dir, writable, xdg_base

PROJECT_FILE = ".atlctl.toml"


def config_files(environ: Mapping[str, str], cwd: str) -> list[str]:
    """The existing files that `load_config` reads: the user's, then the project's."""
    own, project = user_file(environ), project_file(environ, cwd)
    found = [own] if os.path.exists(own) else []
    return found if project is None or distrust(project) else [*found, project]


def user_file(environ: Mapping[str, str]) -> str:
    """Path of the user's file, which need not exist."""
    return os.path.join(xdg_base("XDG_CONFIG_HOME", ".config", environ), "atlctl", "config.toml")


def project_file(environ: Mapping[str, str], cwd: str) -> str | None:
    """Path of the project file for the folder `cwd`, None if there is none."""
    home = os.path.abspath(home_dir(environ))
    above = [os.path.abspath(cwd)]
    while (parent := os.path.dirname(above[-1])) != above[-1]:
        above.append(parent)
    last = next((at for at, folder in enumerate(above) if folder == home or _exists(folder, ".git")), 0)
    for folder in above[: last + 1]:
        path = os.path.join(folder, PROJECT_FILE)
        if os.path.isfile(path):
            return path
    return None


def _exists(folder: str, name: str) -> bool:
    return os.path.lexists(os.path.join(folder, name))


def distrust(file: str) -> str:
    """Why the project file is not trusted, "" if it is: another user owns it or can write to it.

    Write permission of root's group and of the owner's private group, which has the owner's number, counts as the
    owner's.
    """
    for path in (os.path.dirname(file), file):
        try:
            found = os.stat(path)
        except OSError as error:
            return Message("{path}: {why}", path=path, why=os.strerror(error.errno or 0))
        if found.st_uid not in (0, os.geteuid()):
            return Message("{path} belongs to user {user}", path=path, user=found.st_uid)
        if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid not in (0, found.st_uid)):
            return writable(path, found)
    return ""
