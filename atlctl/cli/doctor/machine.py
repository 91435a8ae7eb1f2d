"""What this machine has to offer: the backend's choice, the folder for state, settings, terminal, locale."""

from __future__ import annotations

import os
from collections.abc import Mapping

from atlctl.cli.doctor.checks import Report, Words
from atlctl.cli.target import Choice
from atlctl.jobs.config import load_config
from atlctl.jobs.errors import AtlctlError, NotAllowed
from atlctl.jobs.statedir import ensure_dir, file_error, state_dir
from atlctl.render.streams import Streams

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


def check_backend(report: Report, words: Words, chosen: Choice) -> None:
    """Which backend commands use from here, and why."""
    report.ok("backend", f"{chosen.name}: {words(_WHY[chosen.why], value=chosen.value)}")
    report.data["backend"] = {"name": chosen.name, "why": chosen.why, "value": chosen.value or None}


def check_state(report: Report, words: Words, env: Mapping[str, str], *, needed: bool) -> None:
    """Whether jobs and notes can be kept. Writes nothing. `needed`: jobs of this machine are what is looked at."""
    try:
        folder = state_dir(env)
        _writable(folder)
    except AtlctlError as error:
        (report.fail if needed else report.warn)("state", error.message, error.hint)
        return
    report.ok("state", words("state_ok" if os.path.isdir(folder) else "state_new", path=folder))


def _writable(folder: str) -> None:
    """Raises NotAllowed, AtlctlError where nothing could be put into `folder`, or where it could not be made."""
    above = folder
    while not os.path.lexists(above):
        above = os.path.dirname(above)
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


def check_settings(report: Report, words: Words, env: Mapping[str, str]) -> None:
    """The user's configuration file, and that of the project around the working folder."""
    try:
        config = load_config(env, os.getcwd())
    except OSError as error:
        report.fail("settings", file_error(error, "the working folder").message, "cd")
        return
    except AtlctlError as error:
        report.fail("settings", error.message, error.hint)
        return
    absent = [path for path in (*config.signatures, *config.busbw) if not os.access(path, os.R_OK)]
    if absent:
        report.warn("settings", words("signatures_gone", paths=", ".join(absent)), words("signatures_fix"))
    else:
        report.ok("settings", words("settings_ok"))


def check_terminal(report: Report, words: Words, env: Mapping[str, str], streams: Streams) -> None:
    """How output will look."""
    if not streams.stdout_tty:
        report.ok("terminal", words("no_terminal"))
    elif env.get("TERM", "dumb") == "dumb":
        report.warn("terminal", words("dumb_terminal"), "export TERM=xterm-256color")
    else:
        color = words("with_color" if streams.stdout_color else "without_color")
        report.ok("terminal", words("terminal_ok", columns=streams.width, color=color))


def check_locale(report: Report, words: Words, env: Mapping[str, str]) -> None:
    """Output is UTF-8 whatever the locale says; a terminal of another encoding would show it wrongly."""
    value = next((env[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if env.get(name)), "C")
    if "utf-8" in value.lower() or "utf8" in value.lower():
        report.ok("locale", words("locale_ok", value=value))
    else:
        report.warn("locale", words("locale_other", value=value), "export LC_ALL=C.UTF-8")
