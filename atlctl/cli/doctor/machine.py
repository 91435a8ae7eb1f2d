"""Checks of this machine: the chosen backend, folders, settings, limits, clock, packages, terminal, locale."""

from __future__ import annotations

import contextlib
import importlib.util
import operator
import os
import platform
import pwd
import re
import resource
import shlex
import stat
import sys
import time
from collections.abc import Mapping
from importlib import metadata

from atlctl import __version__
from atlctl.cli.completion.scripts import SCRIPTS
from atlctl.cli.doctor.report import DoctorReport
from atlctl.cli.evidence.looking import pyspy_path
from atlctl.cli.hosts import unread
from atlctl.cli.installing import install_line
from atlctl.cli.target import Choice
from atlctl.i18n import Message, about, joined, language
from atlctl.jobs.config import load_config
from atlctl.jobs.configfiles import config_files
from atlctl.jobs.errors import AtlctlError, NotAllowed
from atlctl.jobs.statedir import ELSEWHERE, ensure_dir, file_error, state_dir
from atlctl.render.streams import ColorFlag, Streams, color_source

_WHY = {
    "used": Message("the backend of {value}, which 'atlctl use' has chosen"),
    "option": Message("chosen with --backend"),
    "cluster_option": Message("{value} is an option of it"),
    "variable": Message("chosen by the variable ATLCTL_BACKEND"),
    "worker": Message("this runs in {value}, a worker that atlctl has started (ATLCTL_WORKER)"),
    "local_job": Message("{value} is a job of this machine"),
    "hostfile": Message("chosen with --hostfile {value}"),
    "ssh_job": Message("{value} is a job on hosts, or a list of them"),
    "hosts": Message("no cluster is configured, and hosts are known"),
    "configured": Message("a cluster is configured ({value})"),
    "no_cluster": Message("no cluster is configured (no kubeconfig, and not in a pod), and no hosts are known"),
}
#: Bytes of room below which evidence may not fit.
_ROOM = 100 << 20
#: Workers at once that the limit on open files should allow, and how many of them start at one time.
_WORKERS, _STARTING = 1000, 64
#: Seconds that a file's time may be ahead of the clock: a file system of another machine.
_AHEAD = 24 * 3600.0
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]++)(?:\[[^\]]*\])?\s*+\(?([<>=!~0-9.,\s]*+)\)?\s*+")
_COMPARED = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "!=": operator.ne,
    "==": operator.eq,
}
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9.]*)")
#: The folders of completion scripts of a shell, and the one that `completion --help` recommends. zsh has no fixed
#: place, and its FPATH is not exported.
_SCRIPT_PLACES = {
    "bash": (
        "~/.local/share/bash-completion/completions/atlctl",
        "/etc/bash_completion.d/atlctl",
        "/usr/share/bash-completion/completions/atlctl",
        "/usr/local/share/bash-completion/completions/atlctl",
    ),
    "fish": (
        "~/.config/fish/completions/atlctl.fish",
        "/etc/fish/completions/atlctl.fish",
        "/usr/share/fish/vendor_completions.d/atlctl.fish",
    ),
}
_ENCODING_BY = ("LC_ALL", "LC_CTYPE", "LANG")
_LANGUAGE_BY = ("LC_ALL", "LC_MESSAGES", "LANG")


def check_backend(report: DoctorReport, chosen: Choice) -> None:
    """Which backend commands use from here, and why."""
    value = chosen.value
    if chosen.why == "configured":
        from atlctl.backends.kubernetes.kubeconfig import kubeconfig_paths

        value = ", ".join(kubeconfig_paths()) or Message("the service account of this pod")
    report.ok("backend", Message("{name}: {why}", name=chosen.name, why=_WHY[chosen.why].filled(value=value)))
    report.data["backend"] = {"name": chosen.name, "why": chosen.why, "value": chosen.value or None}


def check_user(report: DoctorReport) -> None:
    """As whom jobs of this machine are looked at."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    text = Message("{name} (uid {uid})") if name else Message("uid {uid}, which has no name here")
    report.ok("user", text.filled(name=name, uid=uid))


def check_state(report: DoctorReport, env: Mapping[str, str], *, needed: bool) -> None:
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
        report.warn(
            "state",
            Message("others may look into {path} (mode {mode})", path=folder, mode=f"{mode:04o}"),
            f"chmod 700 {shlex.quote(folder)}",
        )
    elif room < _ROOM:
        report.warn(
            "state",
            Message("{path}: only {room} free", path=folder, room=_mib(room)),
            Message("free some space, or set ATLCTL_STATE_DIR to a folder on another disk"),
        )
    else:
        able = Message("{path} can be written, {room} free") if there else Message("{path} can be made, {room} free")
        report.ok("state", able.filled(path=folder, room=_mib(room)))


def _room(folder: str) -> int:
    """Free bytes of its disk. Raises NotAllowed, AtlctlError if `folder` is not writable or cannot be created."""
    above = folder
    while not os.path.lexists(above):
        above = os.path.dirname(above) or "."
    if above == folder:
        for path in (folder, os.path.join(folder, "local")):
            if os.path.lexists(path):
                ensure_dir(path)
                above = path
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):
        raise NotAllowed(Message("{folder} cannot be written", folder=folder), ELSEWHERE)
    try:
        room = os.statvfs(above)
    except OSError as error:
        raise file_error(error, above) from error
    if room.f_blocks and not room.f_bavail:
        raise AtlctlError(Message("no space left on the disk of {folder}", folder=folder), Message("free some space"))
    return room.f_bavail * room.f_frsize


def _mib(size: int) -> str:
    return f"{size >> 30} GiB" if size >> 30 > 9 else f"{size >> 20} MiB"


def check_settings(report: DoctorReport, env: Mapping[str, str]) -> None:
    """The user's configuration file, and that of the project around the working folder."""
    try:
        files = config_files(env, os.getcwd())
        report.data["machine"]["settings"] = files
        config = load_config(env, os.getcwd())
    except OSError as error:
        report.fail("settings", file_error(error, Message("the working folder")).message, "cd")
        return
    except AtlctlError as error:
        report.fail("settings", error.message, error.hint)
        return
    if config.unread:
        report.warn("settings", unread(config.unread))
        return
    absent = [path for path in (*config.signatures, *config.busbw) if not os.access(path, os.R_OK)]
    if absent:
        report.warn(
            "settings",
            Message("files of the settings that cannot be read: {paths}", paths=", ".join(absent)),
            Message("correct errors.signatures (ATLCTL_SIGNATURES) or smoke.busbw (ATLCTL_BUSBW)"),
        )
    elif files:
        report.ok("settings", Message("no mistake in {files}", files=", ".join(files)))
    else:
        report.ok("settings", Message("no configuration file"))


def check_descriptors(report: DoctorReport) -> None:
    """On how many workers a command may run at once."""
    from atlctl.fanout.limits import most_workers

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_workers(_STARTING)
    report.data["machine"]["open_files"] = {"soft": _limit(soft), "hard": _limit(hard), "most_workers": most}
    if most is None:
        report.ok("open-files", about("open files", "no limit"))
    elif most < _WORKERS:
        text = Message("at most {hard}: a command may run on {most} workers at once, no more", hard=hard, most=most)
        fix = Message("raise the hard limit (limits.conf, LimitNOFILE), or: atlctl exec --batch {batch}")
        report.warn("open-files", text, fix.filled(batch=max(1, most)))
    else:
        text = Message("at most {hard}: a command may run on {most} workers at once", hard=hard, most=most)
        report.ok("open-files", text)


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def check_clock(report: DoctorReport, now: float) -> None:
    """Nothing here says what time it is, but that it is later than when this program was installed."""
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    installed = 0.0
    with contextlib.suppress(OSError):  # within an archive
        installed = os.stat(__file__).st_mtime
    report.data["machine"]["time"] = shown
    if installed > now + _AHEAD:
        report.warn(
            "clock",
            Message("{now}: earlier than the installation of atlctl, so this clock is wrong", now=shown),
            "timedatectl set-ntp true",
        )
    else:
        report.ok("clock", shown)


def check_python(report: DoctorReport) -> None:
    """Which interpreter runs this."""
    version = platform.python_version()
    report.data["machine"]["python"] = {"version": version, "executable": sys.executable, "atlctl": __version__}
    report.ok(
        "python",
        Message("Python {version} ({path}), atlctl {atlctl}", version=version, path=sys.executable, atlctl=__version__),
    )


def check_packages(report: DoctorReport) -> None:
    """Whether the packages that are needed are of the versions that were asked for at the installation."""
    try:
        needed = metadata.requires("atlctl") or []
    except metadata.PackageNotFoundError:
        report.skip("packages", Message("atlctl is not installed as a package, so what it needs is not known"))
        return
    found: dict[str, str | None] = {}
    wrong = []
    for requirement in needed:
        match = _REQUIREMENT.match(requirement)
        if match is None or ";" in requirement:  # an extra's
            continue
        name, bounds = match[1], match[2].strip()
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
        if found[name] is None or not fits(found[name] or "", bounds):
            wrong.append((name, bounds))
    report.data["machine"]["packages"] = found
    if wrong:
        names = ", ".join(f"{name} {found[name] or '-'} ({bounds})" for name, bounds in wrong)
        fix = install_line(*(f"{name}{''.join(bounds.split())}" for name, bounds in wrong))
        report.warn("packages", Message("not of the versions that atlctl is made for: {names}", names=names), fix)
    else:
        report.ok("packages", ", ".join(f"{name} {version}" for name, version in found.items()))


def fits(version: str, bounds: str) -> bool:
    """Whether a version is within bounds like `>=0.29,<0.30`; other forms of comparison are ignored."""
    own = _release(version)
    return all(_COMPARED[sign](own, _release(bound)) for sign, bound in _BOUND.findall(bounds))


def _release(version: str) -> tuple[int, ...]:
    """The release of a version, without zeros at its end: 1.2.0rc1 is (1, 2)."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def check_programs(report: DoctorReport) -> None:
    """Optional programs of single commands."""
    there = {"py-spy": pyspy_path(), "torch": "torch" if importlib.util.find_spec("torch") is not None else None}
    report.data["machine"]["programs"] = {name: bool(found) for name, found in there.items()}
    told = {"py-spy": Message("py-spy (stacks)"), "torch": Message("torch (demo)")}
    absent = [name for name, found in there.items() if not found]
    if absent:
        names = joined((told[name] for name in absent), ", ")
        text = Message("not installed, and needed by single commands alone: {names}", names=names)
        report.skip("programs", text, install_line(*absent))
    else:
        report.ok("programs", joined(told.values(), ", "))


def check_completion(report: DoctorReport, env: Mapping[str, str]) -> None:
    """Whether the shell's completion script is installed and of this version, if its place is known."""
    shell = os.path.basename(env.get("SHELL", ""))
    if shell not in _SCRIPT_PLACES:
        text = (
            Message("the folder of {name}'s scripts is unknown here", name=shell)
            if shell in SCRIPTS
            else Message("for bash, zsh and fish; SHELL names none of them")
        )
        report.skip("completion", text, "atlctl completion --help")
        return
    places = [_script_place(path, env) for path in _SCRIPT_PLACES[shell]]
    path = next(filter(os.path.isfile, places), None)
    target = path or places[0]
    install = f"mkdir -p {shlex.quote(os.path.dirname(target))} && atlctl completion {shell} > {shlex.quote(target)}"
    if path is None:
        report.skip("completion", Message("no script in the folders where {name} looks for one", name=shell), install)
    elif _script(path) != SCRIPTS[shell]:
        report.warn("completion", Message("{path} is of another version", path=path), install)
    else:
        report.ok("completion", f"{shell}: {path}")


def _script_place(path: str, env: Mapping[str, str]) -> str:
    data, config = env.get("XDG_DATA_HOME"), env.get("XDG_CONFIG_HOME")
    if data and path.startswith("~/.local/share/"):
        path = os.path.join(data, path.removeprefix("~/.local/share/"))
    elif config and path.startswith("~/.config/"):
        path = os.path.join(config, path.removeprefix("~/.config/"))
    return os.path.expanduser(path)


def _script(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def check_terminal(report: DoctorReport, env: Mapping[str, str], streams: Streams, color: ColorFlag = "auto") -> None:
    """How output will look."""
    colored, source = color_source(color, env, streams.stdout_tty)
    rows = _terminal_rows() if streams.stdout_tty else None
    report.data["machine"]["terminal"] = {
        "tty": streams.stdout_tty,
        "term": env.get("TERM"),
        "columns": streams.width if streams.stdout_tty else None,
        "rows": rows,
        "color": colored,
        "color_by": source or None,
    }
    how = Message("with colours") if colored else Message("without colours")
    how = Message("{how} ({source})", how=how, source=source) if source else how
    if not streams.stdout_tty:
        plain = Message("stdout is not a terminal: plain text, nothing is cut")
        report.ok("terminal", Message("stdout is not a terminal: nothing is cut; {how}", how=how) if colored else plain)
    elif env.get("TERM", "dumb") == "dumb":
        report.warn("terminal", Message("TERM is dumb or not set; {color}", color=how), "export TERM=xterm-256color")
    else:
        size = f"{streams.width} x {rows}" if rows else str(streams.width)
        report.ok("terminal", Message("{size} cells, TERM {term}, {color}", size=size, term=env["TERM"], color=how))


def _terminal_rows() -> int | None:
    """Lines of the terminal on stdout; None if unknown."""
    try:
        return os.get_terminal_size(1).lines or None
    except OSError:
        return None


def given_environment(env: Mapping[str, str], beginning: str = "/proc/self/environ") -> dict[str, str]:
    """`env` as this process was given it: in the locale C Python sets LC_CTYPE by itself (PEP 538)."""
    found = dict(env)
    with contextlib.suppress(OSError), open(beginning, "rb") as file:
        if not any(word.startswith(b"LC_CTYPE=") for word in file.read().split(b"\0")):
            found.pop("LC_CTYPE", None)
    return found


def check_locale(report: DoctorReport, env: Mapping[str, str]) -> None:
    """Output is UTF-8 whatever the locale says; a terminal of another encoding would show it wrongly."""
    said = next((name for name in _ENCODING_BY if env.get(name)), None)
    value = env[said] if said is not None else "C"
    speaks = language(env)
    told_by = next((name for name in _LANGUAGE_BY if env.get(name)), None)
    report.data["machine"]["locale"] = {"value": value, "by": said, "language": speaks, "language_by": told_by}
    tongue = Message("texts in Chinese ({source})") if speaks == "zh" else Message("texts in English ({source})")
    tongue = tongue.filled(source=told_by) if told_by else Message("texts in English; LC_ALL=zh_CN.UTF-8 gives Chinese")
    if "utf-8" in value.lower() or "utf8" in value.lower():
        report.ok("locale", Message("{value}; {language}", value=value, language=tongue))
    else:
        fitting = "zh_CN.UTF-8" if speaks == "zh" else "C.UTF-8"
        report.warn(
            "locale",
            Message(
                "{value} is not UTF-8, and atlctl writes UTF-8 all the same; {language}", value=value, language=tongue
            ),
            f"export LC_ALL={fitting}",
        )
