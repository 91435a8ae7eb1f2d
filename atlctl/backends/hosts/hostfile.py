"""Lists of hosts as text: plain lists, hostfiles of MPI and deepspeed, folded ranges. Pure: nothing is resolved.

gpu[01-16,20]            sixteen hosts and one more
worker-0 slots=8         deepspeed, Open MPI
worker-0:8               MPICH: slots where the file uses `slots` nowhere and the number is below 65, else a port,
                         as it is behind a user and behind brackets
ml@gpu7:2222             user and port
[fd00::7]:22             an IPv6 address stands in brackets where a port follows
# a comment
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from atlctl.i18n import Message, plural
from atlctl.jobs.errors import LEAVE_ONE_OUT, UsageError
from atlctl.jobs.naming import and_more, pad_alike

#: Hosts of one list, and how often all of them may be named together: a line for each slot is usual.
MAX_HOSTS, MAX_NAMED = 10_000, 100_000
#: A number behind a colon from here on is a port.
FIRST_PORT = 65
#: Valid host names: without characters that are special to a shell, an option parser or a terminal.
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\$?")
_RANGE = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*")
_GRAMMAR = Message("one host a line: gpu1, gpu[01-16], user@gpu1:2222, gpu1 slots=8")


@dataclass(frozen=True, slots=True)
class Host:
    """One host as it was written: `name` may be an alias of ~/.ssh/config.

    `slots`: processes that it has room for; `devices`: those of them that were picked, where some were.
    """

    name: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    devices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Hosts:
    """A list of hosts in its order. `remarks` say what was understood where a text can be read in two ways."""

    hosts: tuple[Host, ...]
    remarks: tuple[str, ...] = ()


@dataclass(slots=True)
class _Read:
    found: dict[str, Host] = field(default_factory=dict)
    slots: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    twice: dict[str, None] = field(default_factory=dict)
    named: int = 0


def parse(text: str, where: str) -> Hosts:
    """The hosts of a file's text. `where` names it in messages. Raises UsageError, with the line's number."""
    lines = list(_lines(text))
    named = any(re.search(r"\s(?:max[_-])?slots\s*=", line) for _, line in lines)
    read = _Read()
    for number, line in lines:
        try:
            _take(line, read, slots_named=named)
        except UsageError as error:
            raise UsageError(
                Message("{where}, line {number}: {why}", where=where, number=number, why=error.message), error.hint
            ) from None
    if not read.found:
        raise UsageError(Message("{where} names no host", where=where), _GRAMMAR)
    remarks = []
    if read.slots:
        remarks.append(_read_as(where, read.slots, Message("a host and its slots")))
    if read.ports and read.slots:
        remarks.append(_read_as(where, read.ports, Message("a host and its port")))
    if read.twice:
        remarks.append(
            plural(
                "{where}: {lines} is named more than once: one worker, with all of its slots",
                "{where}: {lines} are named more than once: one worker, with all of its slots",
                len(read.twice),
                where=where,
                lines=_some(list(read.twice)),
            )
        )
    return Hosts(tuple(read.found.values()), tuple(remarks))


def pick(hosts: Sequence[Host], include: str = "", exclude: str = "") -> tuple[Host, ...]:
    """deepspeed's selection, `worker-0:0,2@worker-1`: hosts, or some of their slots. Raises UsageError."""
    if include and exclude:
        raise UsageError(Message("--include and --exclude do not go together"), LEAVE_ONE_OUT)
    known = {host.name: host for host in hosts}
    wanted = dict(_picked(include or exclude, known))
    if include:
        return tuple(
            replace(known[name], devices=devices, slots=len(devices)) if devices else known[name]
            for name, devices in wanted.items()
        )
    left = []
    for host in hosts:
        gone = wanted.get(host.name, ())
        if host.name not in wanted:
            left.append(host)
        elif gone and host.slots is not None and (kept := tuple(n for n in range(host.slots) if n not in gone)):
            left.append(replace(host, devices=kept, slots=len(kept)))
    if not left:
        raise UsageError(Message("--exclude leaves no host"), Message("keep at least one host"))
    return tuple(left)


def _picked(text: str, known: dict[str, Host]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for item in text.split("@") if text else ():
        name, colon, numbers = item.partition(":")
        if name not in known:
            raise UsageError(
                Message("{name!a} is not in the hostfile", name=name),
                Message("write hosts as in the file: worker-0:0,2@worker-1"),
            )
        if colon and not re.fullmatch(r"[0-9]{1,4}(?:,[0-9]{1,4})*", numbers):
            raise UsageError(Message("{item!a}: slots must be numbers", item=item), "worker-0:0,2@worker-1")
        devices = tuple(dict.fromkeys(int(number) for number in numbers.split(","))) if colon else ()
        slots = known[name].slots
        if slots is not None and any(device >= slots for device in devices):
            raise UsageError(
                Message("{item!a}: {name} has {slots} slots, from 0", item=item, name=name, slots=slots),
                "worker-0:0,2@worker-1",
            )
        yield name, devices


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if kept := line.partition("#")[0].strip():
            yield number, kept


def _take(line: str, read: _Read, *, slots_named: bool) -> None:
    first, *rest = line.split()
    slots = _slots(rest)
    user, at, place = first.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(Message("{first}: this user name is not allowed", first=_shown(first)), _GRAMMAR)
    place, number = _port(place)
    port = None
    if number is not None and (slots_named or number >= FIRST_PORT or at or first.startswith("[")):
        if not 0 < number < 65536:
            raise UsageError(
                Message("{first}: {number} is not a valid port", first=_shown(first), number=number), _GRAMMAR
            )
        port = number
        read.ports.append(first)
    elif number is not None:
        slots = number
        read.slots.append(first)
    for name in _expanded(place):
        host = Host(name, user or None, port, slots)
        before = read.found.get(name)
        if before is not None:
            if (before.user, before.port) != (host.user, host.port):
                raise UsageError(
                    Message("{name} is named twice, with two users or ports", name=name),
                    Message("give one of them an alias"),
                )
            read.twice[name] = None
            host = replace(host, slots=None if slots is None or before.slots is None else before.slots + slots)
        read.found[name] = host
        read.named += 1
        if len(read.found) > MAX_HOSTS or read.named > MAX_NAMED:
            raise too_many()


def _slots(words: Sequence[str]) -> int | None:
    """`slots=8`; further `key=value` of launchers mean nothing here."""
    slots = None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_-]{1,30}", key):
            raise UsageError(Message("cannot parse {word}", word=_shown(word)), _GRAMMAR)
        if key == "slots":
            if not re.fullmatch(r"[0-9]{1,4}", value):
                raise UsageError(Message("slots={value} is not a number", value=_shown(value)), _GRAMMAR)
            slots = int(value)
    return slots


def _port(place: str) -> tuple[str, int | None]:
    """Host, and the number behind it."""
    if place.startswith("[") and (match := re.fullmatch(r"\[([^\]:]*:[^\]]*)\](?::([0-9]{1,5}))?", place)):
        return match[1], int(match[2]) if match[2] else None
    if place.count(":") > 1:
        return place, None
    name, colon, number = place.partition(":")
    if colon and not re.fullmatch(r"[0-9]{1,5}", number):
        raise UsageError(Message("{place}: a number is expected after the colon", place=_shown(place)), _GRAMMAR)
    return name, int(number) if colon else None


def _expanded(place: str) -> Iterator[str]:
    if ":" in place:
        if not _ADDRESS.fullmatch(place):
            raise UsageError(Message("{place} is not an address", place=_shown(place)), _GRAMMAR)
        yield place
        return
    start, bracket, rest = place.partition("[")
    if not bracket:
        yield checked(place)
        return
    inside, closed, end = rest.partition("]")
    if not closed or "[" in end or not _RANGE.fullmatch(inside):
        raise UsageError(Message("{place} is not a range of hosts", place=_shown(place)), "gpu[01-16,20]")
    for item in inside.split(","):
        low, _, high = item.partition("-")
        high = high or low
        if max(len(low), len(high)) > 9 or int(high) < int(low):
            raise UsageError(Message("{item} is not a range", item=_shown(item)), "gpu[01-16,20]")
        width = len(low) if low[0] == "0" and len(low) > 1 else 0
        if width and len(high) != width:
            raise UsageError(
                Message("{item}: both ends must have the same number of digits", item=_shown(item)),
                pad_alike("gpu[01-16]"),
            )
        if int(high) - int(low) >= MAX_HOSTS:
            raise too_many()
        for number in range(int(low), int(high) + 1):
            yield checked(f"{start}{number:0{width}d}{end}")


def checked(name: str) -> str:
    """A host's name or address as it is. Raises UsageError for one that could be read as an option, or worse."""
    if not _HOST.fullmatch(name) or len(name) > 253:
        raise UsageError(
            Message("{name} is not a host name", name=_shown(name)),
            Message("letters, digits, '.', '_' and '-', no '-' at the start"),
        )
    return name


def too_many() -> UsageError:
    """The error for a list that is longer than any cluster."""
    return UsageError(Message("more than {most} hosts", most=MAX_HOSTS), Message("name fewer hosts"))


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def _some(items: Sequence[str]) -> str:
    return and_more(", ".join(items[:3]), len(items) - 3)


def _read_as(where: str, items: Sequence[str], what: Message) -> Message:
    return plural(
        "{where}: {lines} is read as {what}",
        "{where}: {lines} are read as {what}",
        len(items),
        where=where,
        lines=_some(items),
        what=what,
    )
