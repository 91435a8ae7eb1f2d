"""What this machine says: which backend and as whom, its folders, its settings, its clock, its limits."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import shlex
import stat
import time
from collections.abc import Mapping

from atlctl.cli.doctor.checks import Report, Words
from atlctl.cli.target import Choice
from atlctl.jobs.config import config_files, load_config
from atlctl.jobs.errors import AtlctlError, NotAllowed
from atlctl.jobs.statedir import ensure_dir, file_error, state_dir

_WHY = {
    "option": "why_option",
    "cluster_option": "why_cluster_option",
    "variable": "why_variable",
    "worker": "why_worker",
    "local_job": "why_local_job",
    "hostfile": "why_hostfile",
    "ssh_job": "why_ssh_job",
    "hosts": "why_hosts",
    "configured": "why_configured",
    "no_cluster": "why_no_cluster",
}
#: Bytes of room below which evidence may not fit.
_ROOM = 100 << 20
#: Workers at once that the limit on open files should allow, and how many of them start at one time.
_WORKERS, _STARTING = 1000, 64
#: Seconds that a file's time may be ahead of the clock: a file system of another machine.
_AHEAD = 24 * 3600.0


def check_backend(report: Report, words: Words, chosen: Choice) -> None:
    """Which backend commands use from here, and why."""
    value = chosen.value
    if chosen.why == "configured":
        from atlctl.backends.kubernetes.access import kubeconfig_paths

        value = ", ".join(kubeconfig_paths(None)) or words("in_cluster")
    report.ok("backend", f"{chosen.name}: {words(_WHY[chosen.why], value=value)}")
    report.data["backend"] = {"name": chosen.name, "why": chosen.why, "value": chosen.value or None}


def check_user(report: Report, words: Words) -> None:
    """As whom jobs of this machine are looked at."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    report.ok("user", words("user_here", name=name, uid=uid) if name else words("user_nameless", uid=uid))


def check_state(report: Report, words: Words, env: Mapping[str, str], *, needed: bool) -> None:
    """Whether jobs and notes can be kept. Writes nothing. `needed`: jobs of this machine are what is looked at."""
    try:
        folder = state_dir(env)
        room = _room(folder)
    except AtlctlError as error:
        (report.fail if needed else report.warn)("state", error.message, error.hint)
        return
    there = os.path.isdir(folder)
    mode = stat.S_IMODE(os.stat(folder).st_mode) if there else None
    report.data["machine"]["state"] = {"path": folder, "mode": mode and f"{mode:04o}", "free_bytes": room}
    if mode is not None and mode & 0o077:
        report.warn("state", words("state_open", path=folder, mode=f"{mode:04o}"), f"chmod 700 {shlex.quote(folder)}")
    elif room < _ROOM:
        report.warn("state", words("state_tight", path=folder, room=_mib(room)), words("state_tight_fix"))
    else:
        report.ok("state", words("state_ok" if there else "state_new", path=folder, room=_mib(room)))


def _room(folder: str) -> int:
    """Free bytes of its disk. Raises NotAllowed, AtlctlError where nothing could be put into `folder`, or where it
    could not be made."""
    above = folder
    while not os.path.lexists(above):
        above = os.path.dirname(above) or "."
    if above == folder:
        for path in (folder, os.path.join(folder, "local")):
            if os.path.lexists(path):
                ensure_dir(path)
                above = path
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):
        raise NotAllowed(f"{folder} cannot be written", "set ATLCTL_STATE_DIR to a folder of your own")
    try:
        room = os.statvfs(above)
    except OSError as error:
        raise file_error(error, above) from error
    if room.f_blocks and not room.f_bavail:
        raise AtlctlError(f"no space left on the disk of {folder}", "free some space")
    return room.f_bavail * room.f_frsize


def _mib(size: int) -> str:
    return f"{size >> 30} GiB" if size >> 30 > 9 else f"{size >> 20} MiB"


def check_settings(report: Report, words: Words, env: Mapping[str, str]) -> None:
    """The user's configuration file, and that of the project around the working folder."""
    try:
        files = config_files(env, os.getcwd())
        report.data["machine"]["settings"] = files
        config = load_config(env, os.getcwd())
    except OSError as error:
        report.fail("settings", file_error(error, "the working folder").message, "cd")
        return
    except AtlctlError as error:
        report.fail("settings", error.message, error.hint)
        return
    if config.unread:
        report.warn("settings", words("project_unread", why=config.unread))
        return
    absent = [path for path in (*config.signatures, *config.busbw) if not os.access(path, os.R_OK)]
    if absent:
        report.warn("settings", words("signatures_gone", paths=", ".join(absent)), words("signatures_fix"))
    elif files:
        report.ok("settings", words("settings_ok", files=", ".join(files)))
    else:
        report.ok("settings", words("settings_none"))


def check_descriptors(report: Report, words: Words) -> None:
    """On how many workers a command may run at once."""
    from atlctl.fanout.limits import most_workers

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_workers(_STARTING)
    report.data["machine"]["open_files"] = {"soft": _limit(soft), "hard": _limit(hard), "most_workers": most}
    if most is None:
        report.ok("open-files", words("files_free"))
    elif most < _WORKERS:
        text = words("files_few", hard=hard, most=most)
        report.warn("open-files", text, words("files_fix", batch=max(1, most)))
    else:
        report.ok("open-files", words("files_ok", hard=hard, most=most))


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def check_clock(report: Report, words: Words, now: float) -> None:
    """Nothing here says what time it is, but that it is later than when this program was installed."""
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    installed = 0.0
    with contextlib.suppress(OSError):  # within an archive
        installed = os.stat(__file__).st_mtime
    report.data["machine"]["time"] = shown
    if installed > now + _AHEAD:
        report.warn("clock", words("clock_behind", now=shown), "timedatectl set-ntp true")
    else:
        report.ok("clock", shown)
