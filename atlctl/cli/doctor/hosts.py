"""What `doctor` finds on SSH hosts: which are known, which logins and keys work, their Python and their clocks."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atlctl.cli import hosts, say
from atlctl.cli.doctor.report import DoctorReport
from atlctl.i18n import Message, general, joined, plural
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.naming import fold_names

if TYPE_CHECKING:
    from atlctl.backends.hosts.checkup import HostCheck
    from atlctl.backends.hosts.connect import Connections, Target
    from atlctl.backends.hosts.hostfile import Host
    from atlctl.backends.hosts.keys import KeyFile, Keys
    from atlctl.backends.hosts.ssh import SshBackend

#: Seconds for all hosts together.
ALL_SECONDS = 60.0
#: Seconds that clocks may be apart.
APART = 2.0
#: The most lines about hosts that failed, one for each kind of failure.
_MOST_LINES = 8
_NOTES_KEYS = Message("none needed: other commands note new keys (accept-new); doctor notes none")


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
    """The hosts to check: those of `hostfile`, of the job or list `name`, around this worker, or all that are known. No
    passphrase is prompted for, and no host key is stored. Raises AtlctlError."""
    from atlctl.backends.hosts import records
    from atlctl.backends.hosts.connect import Connections, user_config
    from atlctl.backends.hosts.hostkeys import KnownHosts
    from atlctl.backends.hosts.keys import Keys
    from atlctl.backends.hosts.ssh import SshBackend

    meant = hosts.meant_list(hostfile, around=name is None)
    listed = hosts.lists_named()
    keys = Keys(lambda _: None)
    connections = Connections(keys, KnownHosts(stores=False), user_config())
    reached = (SshBackend(connections, listed, meant), connections, keys)
    if meant is not None and name in (None, meant.name):
        return Site(_by_name([meant.hosts]), meant.source, True, meant.remarks, *reached)
    if name is not None:
        try:
            return Site(records.load(name).hosts, name, True, (), *reached)
        except NothingMatched:
            found = [one for one in listed if one.name == name]
            return Site(_by_name(one.hosts for one in found), found[0].source if found else "", True, (), *reached)
    started, problems = records.load_all()
    all_hosts = _by_name([*(record.hosts.values() for record in started), *(one.hosts for one in listed)])
    source = ", ".join([*(record.name for record in started), *(one.name for one in listed)])
    return Site(all_hosts, source, False, [problem.message for problem in problems], *reached)


def check_others(report: DoctorReport) -> None:
    """Hosts that are known, where another backend is used. They are not asked."""
    from atlctl.backends.hosts import records

    try:
        names = [*(record.name for record in records.load_all()[0]), *hosts.configured().jobs]
    except AtlctlError:
        return  # errors in the settings and in the state folder are reported by other checks
    if names:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        report.skip(
            "ssh", Message("hosts are known ({names}), and were not asked", names=shown), "atlctl doctor --backend ssh"
        )


async def examine(report: DoctorReport, site: Site, seconds: float) -> list[str]:
    """Asks every host, `seconds` for each login. Returns the names of those that can be used."""
    from atlctl.backends.hosts import checkup
    from atlctl.backends.hosts.connect import user_config
    from atlctl.fanout.limits import make_room

    data: dict[str, Any] = {"source": site.source or None, "config": user_config(), "hosts": []}
    report.data["ssh"] = data

    if not site.hosts:
        report.skip(
            "ssh.hosts", joined([Message("no hosts are known"), *site.remarks]), "atlctl doctor --hostfile FILE"
        )
        return []
    config = Message("{path} is read", path=data["config"]) if data["config"] else Message("no ~/.ssh/config")
    text = Message("{count}: {source}; {config}", count=len(site.hosts), source=site.source, config=config)
    report.ok("ssh.hosts", joined([text, *site.remarks]))
    try:
        make_room(min(len(site.hosts), 4 * checkup.PARALLEL), checkup.PARALLEL, None)
    except AtlctlError as error:
        report.fail("ssh.login", error.message, error.hint)
        return []
    with say.doing(plural("logging in on {n} host", "logging in on {n} hosts", len(site.hosts)), limit=ALL_SECONDS):
        found = await checkup.examine(site.connections, site.hosts, seconds, ALL_SECONDS)
    data["hosts"] = [_as_data(check, site.hosts[check.name]) for check in found]
    targets = [check.target for check in found if check.target is not None]
    if users := dict.fromkeys(target.user for target in targets):
        report.ok("user", ", ".join(users))
    _agents(report, site.keys, targets)
    _keys(report, site.keys, targets)
    _known(report, targets)
    _logins(report, site, found)
    able = [check for check in found if check.status == "ok"]
    _pythons(report, able)
    judge_clocks(report, "ssh.clock", {check.name: check.clock for check in able if check.clock is not None})
    return [check.name for check in able]


def _agents(report: DoctorReport, keys: Keys, targets: Sequence[Target]) -> None:
    sockets = [socket for socket in dict.fromkeys(target.agent for target in targets) if socket]
    report.data["ssh"]["agents"] = [{"socket": socket, "keys": keys.held(socket)} for socket in sockets]
    if not sockets:
        report.skip("ssh.agent", Message("no agent (SSH_AUTH_SOCK is not set)"))
    for socket in sockets:
        count = keys.held(socket)
        if count is None:
            report.warn(
                "ssh.agent", Message("no agent answers at {socket}", socket=socket), 'eval "$(ssh-agent)" && ssh-add'
            )
        elif count == 0:
            report.warn("ssh.agent", Message("the agent at {socket} holds no key", socket=socket), "ssh-add")
        else:
            report.ok("ssh.agent", Message("keys: {count}", count=count))


def _keys(report: DoctorReport, keys: Keys, targets: Sequence[Target]) -> None:
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
        in_agent = Message(", in the agent")
        told = [
            joined([f"{file.path} ({file.algorithm}", *([in_agent] if file.status == "agent" else []), ")"], "")
            for file in good
        ]
        report.ok("ssh.keys", joined(told, ", "))
    for file in there:
        path = shlex.quote(file.path)
        if file.status == "open":
            report.warn(
                "ssh.keys", Message("{path} is not used: other users can read it", path=file.path), f"chmod 600 {path}"
            )
        elif file.status == "encrypted":
            answers = any(keys.held(target.agent) is not None for target in targets if target.agent)
            fix = f"ssh-add {path}" if answers else f'eval "$(ssh-agent)" && ssh-add {path}'
            report.warn(
                "ssh.keys",
                Message(
                    "{path} is encrypted, and no agent holds it: not tried; other commands ask for a passphrase",
                    path=file.path,
                ),
                fix,
            )
        elif file.status == "unreadable":
            report.warn("ssh.keys", file.text, Message("name another with IdentityFile in ~/.ssh/config"))
    held = any(keys.held(target.agent) for target in targets)
    if not good and not held:
        report.warn("ssh.keys", Message("no key to log in with"), "ssh-keygen -t ed25519 && ssh-copy-id HOST")


def _known(report: DoctorReport, targets: Sequence[Target]) -> None:
    from atlctl.backends.hosts.checkup import known_files

    files = known_files(list(dict.fromkeys(path for target in targets for path in target.known_files)))
    report.data["ssh"]["known_hosts"] = [
        {"path": file.path, "entries": file.entries, "problem": file.problem}
        for file in files
        if file.entries is not None or file.problem is not None
    ]
    there = [file for file in files if file.entries is not None]
    for file in files:
        if file.problem is not None:
            report.fail("ssh.known-hosts", file.problem, Message("mend the file, or move it away"))
    if there:
        report.ok(
            "ssh.known-hosts",
            joined((Message("{path} (entries: {count})", path=file.path, count=file.entries) for file in there), ", "),
        )
    elif targets and not any(file.problem for file in files):
        if all(map(_notes_new, targets)):
            report.skip("ssh.known-hosts", _NOTES_KEYS)
            return
        report.warn(
            "ssh.known-hosts",
            Message("no known_hosts file: every host is refused"),
            Message("ssh HOST true, and compare the fingerprint that it shows with the host's"),
        )


def _notes_new(target: Target) -> bool:
    """Whether other commands store the key of a host that is not known."""
    return target.accept_new or hosts.configured().host_keys == "accept-new"


def _logins(report: DoctorReport, site: Site, found: Sequence[HostCheck]) -> None:
    """One line for all that let this client in, and one for each way to fail."""
    groups: dict[tuple[str, str], list[HostCheck]] = {}
    for check in found:
        shared = "" if check.error is None else general(check.error.message)
        groups.setdefault((check.status, shared), []).append(check)
    good = groups.pop(("ok", ""), [])
    if good:
        report.ok("ssh.login", Message("{hosts} ({count}) ok", hosts=_fold(good), count=len(good)))
    tell = report.fail if site.meant else report.warn
    failed = sorted(groups.items(), key=lambda group: len(group[1]), reverse=True)
    for (status, shared), checks in failed[:_MOST_LINES]:
        error = checks[0].error or AtlctlError("")
        said, fix = error.message, error.hint
        if len(checks) > 1:
            said, fix = shared, fix and general(fix)
        text = Message("{hosts} ({count}): {why}", hosts=_fold(checks), count=len(checks), why=said)
        if status == "key-unknown" and all(check.target is not None and _notes_new(check.target) for check in checks):
            report.skip("ssh.login", text, _NOTES_KEYS)
            continue
        tell("ssh.login", text, fix)
    if more := [check for _, checks in failed[_MOST_LINES:] for check in checks]:
        tell(
            "ssh.login",
            Message("{hosts} ({count}): fail in other ways", hosts=_fold(more), count=len(more)),
            "atlctl doctor -o json",
        )


def _pythons(report: DoctorReport, able: Sequence[HostCheck]) -> None:
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
        found = Message("only Python {versions}, 3.8 is needed", versions=old) if old else Message("no python3 in PATH")
        text = Message(
            "{hosts} ({count}): {found}; exec, cp, shell work, ssh run, smoke, stacks do not",
            hosts=_fold(lacking),
            count=len(lacking),
            found=found,
        )
        report.warn(
            "ssh.python", text, Message("install Python 3.8 or newer there as python3 (apt-get, dnf install python3)")
        )


def judge_clocks(report: DoctorReport, name: str, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Compare the clocks of other machines with this one's, because logs of many workers are merged by time.

    `bounds`: the bounds of the clock offset in seconds, by worker or host.
    """
    if not bounds:
        return
    off = {one: _proven_distance(*limits) for one, limits in bounds.items()}
    wrong = {one: distance for one, distance in off.items() if abs(distance) > APART}
    good = len(bounds) - len(wrong)
    if wrong:
        farthest = max(wrong, key=lambda one: abs(wrong[one]))
        distance = abs(wrong[farthest])
        ahead, behind = Message("{name} is {seconds:.0f} s ahead"), Message("{name} is {seconds:.0f} s behind")
        worst = (ahead if wrong[farthest] > 0 else behind).filled(name=farthest, seconds=distance)
        text = Message("not this machine's time: {names} ({count})", names=fold_names(wrong), count=len(wrong))
        report.warn(
            name, joined([text, worst]), Message("timedatectl set-ntp true, on the machine whose time is wrong")
        )
    if good:
        report.ok(name, Message("within {seconds} s of this machine's ({count})", count=good, seconds=f"{APART:g}"))


def _proven_distance(low: float, high: float) -> float:
    """The least possible offset of a clock; 0 if it may be right."""
    return low if low > 0 else min(high, 0.0)


def _by_name(lists: Iterable[Iterable[Host]]) -> dict[str, Host]:
    """Hosts by their names; a host listed with two users or ports has them in its name."""
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
