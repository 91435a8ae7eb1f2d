"""What hosts say: which are known, who lets this client in with which keys, and what is there."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atlctl.cli import hosts
from atlctl.cli.doctor.checks import Report, Words
from atlctl.cli.doctor.clocks import judge
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.naming import fold_names

if TYPE_CHECKING:
    from atlctl.backends.ssh.backend import SshBackend
    from atlctl.backends.ssh.checkup import HostCheck
    from atlctl.backends.ssh.connect import Connections, Target
    from atlctl.backends.ssh.hostfile import Host
    from atlctl.backends.ssh.keys import KeyFile, Keys

#: Seconds for all hosts together.
ALL_SECONDS = 60.0
#: Lines for hosts that failed in ways of their own.
_MOST_LINES = 8
_SAID = {
    "key-unknown": "key_unknown",
    "key-changed": "key_changed",
    "key-revoked": "key_revoked",
    "login": "no_key_accepted",
    "name": "name_unknown",
    "refused": "connection_refused",
    "late": "no_answer",
    "shell": "no_command",
}


@dataclass(frozen=True, slots=True)
class Site:
    """Hosts, what they are to this command, and how they are reached. `meant`: they were named, or are those around
    this worker; else they are just known."""

    hosts: Mapping[str, Host]
    source: str
    meant: bool
    remarks: Sequence[str]
    backend: SshBackend
    connections: Connections
    keys: Keys


def find(hostfile: str | None, name: str | None) -> Site:
    """The hosts that are to be asked: those of `hostfile`, of the job or list `name`, around this worker, or all that
    are known. Nobody will be asked for a passphrase, and no key of a host is noted. Raises AtlctlError."""
    from atlctl.backends.ssh.backend import SshBackend
    from atlctl.backends.ssh.connect import Connections, user_config
    from atlctl.backends.ssh.hostkeys import KnownHosts
    from atlctl.backends.ssh.keys import Keys
    from atlctl.backends.ssh.launched import records

    meant = hosts.meant_list(hostfile, around=name is None)
    listed = hosts.lists_named()
    keys = Keys(lambda _: None)
    connections = Connections(keys, KnownHosts(accept_new=False), user_config())
    reached = (SshBackend(connections, listed, meant), connections, keys)
    if meant is not None and name in (None, meant.name):
        return Site(_by_name([meant.hosts]), meant.source, True, meant.remarks, *reached)
    if name is not None:
        found = next((one for one in listed if one.name == name), None)
        try:
            record = records.load(name)
        except NothingMatched:
            given = _by_name([found.hosts]) if found is not None else {}
            return Site(given, found.source if found is not None else "", True, (), *reached)
        return Site(record.hosts, name, True, (), *reached)
    started, problems = records.load_all()
    all_hosts = _by_name([*(record.hosts.values() for record in started), *(one.hosts for one in listed)])
    source = ", ".join([*(record.name for record in started), *(one.name for one in listed)])
    return Site(all_hosts, source, False, [problem.message for problem in problems], *reached)


def check_others(report: Report, words: Words) -> None:
    """Hosts that are known, where another backend is used. They are not asked."""
    from atlctl.backends.ssh.launched import records

    try:
        names = [*(record.name for record in records.load_all()[0]), *hosts.configured().jobs]
    except AtlctlError:
        return  # a check of its own tells what is wrong with the settings and the folder for state
    if names:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        report.skip("ssh", words("ssh_others", names=shown), "atlctl doctor --backend ssh")


async def examine(report: Report, words: Words, site: Site, seconds: float) -> list[str]:
    """Asks every host, `seconds` for each login. Returns the names of those that can be used."""
    from atlctl.backends.ssh import checkup
    from atlctl.backends.ssh.connect import user_config
    from atlctl.fanout.limits import make_room

    data: dict[str, Any] = {"source": site.source or None, "config": user_config(), "hosts": []}
    report.data["ssh"] = data
    remarks = "".join(f"; {remark}" for remark in site.remarks)
    if not site.hosts:
        report.skip("ssh.hosts", words("ssh_no_hosts") + remarks, "atlctl doctor --hostfile FILE")
        return []
    config = words("ssh_config", path=data["config"]) if data["config"] else words("ssh_no_config")
    text = words("ssh_hosts", count=len(site.hosts), source=site.source, config=config)
    report.ok("ssh.hosts", text + remarks)
    try:
        make_room(min(len(site.hosts), 4 * checkup.PARALLEL), checkup.PARALLEL, None)
    except AtlctlError as error:
        report.fail("ssh.login", error.message, error.hint)
        return []
    found = await checkup.examine(site.connections, site.hosts, seconds, ALL_SECONDS)
    data["hosts"] = [_as_data(check, site.hosts[check.name]) for check in found]
    targets = [check.target for check in found if check.target is not None]
    _users(report, targets)
    _agents(report, words, site.keys, targets)
    _keys(report, words, site.keys, targets)
    _known(report, words, targets)
    _logins(report, words, site, found)
    able = [check for check in found if check.status == "ok"]
    _pythons(report, words, able)
    judge(report, words, "ssh.clock", {check.name: check.clock for check in able if check.clock is not None})
    return [check.name for check in able]


def _users(report: Report, targets: Sequence[Target]) -> None:
    names = dict.fromkeys(target.user for target in targets)
    if names:
        report.ok("user", ", ".join(names))


def _agents(report: Report, words: Words, keys: Keys, targets: Sequence[Target]) -> None:
    sockets = [socket for socket in dict.fromkeys(target.agent for target in targets) if socket]
    report.data["ssh"]["agents"] = [{"socket": socket, "keys": keys.held(socket)} for socket in sockets]
    if not sockets:
        report.skip("ssh.agent", words("no_agent"))
    for socket in sockets:
        count = keys.held(socket)
        if count is None:
            report.warn("ssh.agent", words("agent_silent", socket=socket), 'eval "$(ssh-agent)" && ssh-add')
        elif count == 0:
            report.warn("ssh.agent", words("agent_empty", socket=socket), "ssh-add")
        else:
            report.ok("ssh.agent", words("agent_ok", count=count))


def _keys(report: Report, words: Words, keys: Keys, targets: Sequence[Target]) -> None:
    """Each file of a key once, as the first login that meant it found it."""
    found: dict[str, KeyFile] = {}
    for agent, paths in dict.fromkeys((target.agent, target.identities) for target in targets):
        for file in keys.files(paths, agent):
            if found.setdefault(file.path, file).status == "absent":
                found[file.path] = file
    there = [file for file in found.values() if file.status != "absent"]
    report.data["ssh"]["keys"] = [
        {"path": file.path, "status": file.status, "algorithm": file.algorithm or None, "problem": file.text or None}
        for file in there
    ]
    good = [file for file in there if file.status in ("read", "agent")]
    if good:
        in_agent = words("in_agent")
        told = [f"{file.path} ({file.algorithm}{in_agent if file.status == 'agent' else ''})" for file in good]
        report.ok("ssh.keys", ", ".join(told))
    for file in there:
        path = shlex.quote(file.path)
        if file.status == "open":
            report.warn("ssh.keys", words("key_open", path=file.path), f"chmod 600 {path}")
        elif file.status == "encrypted":
            answers = any(keys.held(target.agent) is not None for target in targets if target.agent)
            fix = f"ssh-add {path}" if answers else f'eval "$(ssh-agent)" && ssh-add {path}'
            report.warn("ssh.keys", words("key_encrypted", path=file.path), fix)
        elif file.status == "unreadable":
            report.warn("ssh.keys", file.text, words("key_unreadable_fix"))
    held = any(keys.held(target.agent) for target in targets)
    if not good and not held:
        report.warn("ssh.keys", words("keys_none"), "ssh-keygen -t ed25519 && ssh-copy-id HOST")


def _known(report: Report, words: Words, targets: Sequence[Target]) -> None:
    from atlctl.backends.ssh.checkup import known_files

    files = known_files(list(dict.fromkeys(path for target in targets for path in target.known_files)))
    report.data["ssh"]["known_hosts"] = [
        {"path": file.path, "entries": file.entries, "problem": file.problem}
        for file in files
        if file.entries is not None or file.problem is not None
    ]
    there = [file for file in files if file.entries is not None]
    for file in files:
        if file.problem is not None:
            report.fail("ssh.known-hosts", file.problem, words("known_fix"))
    if there:
        report.ok("ssh.known-hosts", ", ".join(words("known_ok", path=f.path, count=f.entries) for f in there))
    elif targets and not any(file.problem for file in files):
        if hosts.configured().host_keys == "accept-new":
            report.skip("ssh.known-hosts", words("notes_new"))
            return
        report.warn("ssh.known-hosts", words("known_none"), words("known_none_fix"))


def _logins(report: Report, words: Words, site: Site, found: Sequence[HostCheck]) -> None:
    """One line for all that let this client in, and one for each way to fail."""
    notes_new = hosts.configured().host_keys == "accept-new"
    groups: dict[tuple[str, str], list[HostCheck]] = {}
    for check in found:
        # Messages of these name their host, or nothing that can be summed up.
        own = "" if check.status in _SAID or check.error is None else check.error.message
        groups.setdefault((check.status, own), []).append(check)
    good = groups.pop(("ok", ""), [])
    if good:
        report.ok("ssh.login", words("login_ok", hosts=_fold(good), count=len(good)))
    tell = report.fail if site.meant else report.warn
    failed = sorted(groups.values(), key=len, reverse=True)
    for checks in failed[:_MOST_LINES]:
        first = checks[0]
        error = first.error or AtlctlError("")
        apart = len(checks) == 1 or first.status not in _SAID
        said = error.message if apart else words(_SAID[first.status])
        text = words("login_bad", hosts=_fold(checks), count=len(checks), why=said)
        if first.status == "key-unknown" and notes_new:
            report.skip("ssh.login", text, words("notes_new"))
            continue
        alike = len({check.error.hint for check in checks if check.error is not None}) == 1
        fix = error.hint if alike or error.hint is None else words("fix_of_first", name=first.name, fix=error.hint)
        tell("ssh.login", text, fix)
    if more := [check for checks in failed[_MOST_LINES:] for check in checks]:
        tell("ssh.login", words("login_more", hosts=_fold(more), count=len(more)), "atlctl doctor -o json")


def _pythons(report: Report, words: Words, able: Sequence[HostCheck]) -> None:
    """What `ssh run` needs there; `exec` does without."""
    versions: dict[str, list[HostCheck]] = {}
    for check in able:
        if check.fits:
            versions.setdefault(str(check.python), []).append(check)
    if versions:
        told = [f"{version} ({_fold(checks)})" for version, checks in versions.items()]
        report.ok("ssh.python", ", ".join(told))
    if lacking := [check for check in able if not check.fits]:
        old = ", ".join(dict.fromkeys(check.python for check in lacking if check.python is not None))
        found = words("python_old", versions=old) if old else words("python_none")
        text = words("python_lacking", hosts=_fold(lacking), count=len(lacking), found=found)
        report.warn("ssh.python", text, words("python_fix"))


def _by_name(lists: Iterable[Iterable[Host]]) -> dict[str, Host]:
    """Hosts by their names; one that is listed with two users or ports is told by them, too."""
    found: dict[str, Host] = {}
    for host in dict.fromkeys(host for hosts_of_one in lists for host in hosts_of_one):
        same = found.get(host.name)
        if same is None:
            found[host.name] = host
        elif (same.user, same.port) != (host.user, host.port):
            found[f"{host.user or ''}@{host.name}:{host.port or ''}"] = host
    return found


def _fold(checks: Iterable[HostCheck]) -> str:
    return fold_names(check.name for check in checks)


def _as_data(check: HostCheck, host: Host) -> dict[str, Any]:
    error, target = check.error, check.target
    return {
        "name": check.name,
        "host": host.name if target is None else target.host,
        "port": host.port if target is None else target.port,
        "user": host.user if target is None else target.user,
        "status": check.status,
        "reason": None if error is None else error.message,
        "fix": None if error is None else error.hint,
        "python": check.python,
        "clock": None if check.clock is None else [round(bound, 3) for bound in check.clock],
    }
