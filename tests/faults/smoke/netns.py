"""Test hosts: network namespaces connected by a bridge in another namespace, with faults that can be added.

Root only (`refused()`). The namespaces' names contain the PID of the creating process, so the next run removes
leftovers of a killed run.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from atlctl.jobs.model import State, Worker
from tests.support.plainhosts import PlainHosts

_PREFIX = "atlsmoke"
_RUN = Path("/run/netns")
_count = itertools.count()


@functools.cache
def refused() -> str:
    """The reason why this machine cannot have such hosts; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Network(1):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        return f"no network namespaces here: {error}"


#: Words before a command of a host: `/sys` shows its interfaces, as in a container.
OWN_SYS = ("unshare", "--mount", "sh", "-c", 'mount -t sysfs none /sys && exec "$@"', "sh")


class Network:
    """`count` connected hosts, each with `mbit` in both directions (None: unlimited). Use with `with`.

    With `heaps` and without a limit, up to 64 kilobytes of segments are sent, and lost, as one.
    """

    def __init__(
        self, count: int, mbit: float | None = None, ipv6: bool = False, mtu: int = 1500, heaps: bool = False
    ) -> None:
        self._count, self._mbit, self._ipv6, self._mtu, self._heaps = count, mbit, ipv6, mtu, heaps
        self._tag = f"{_PREFIX}-{os.getpid()}-{next(_count)}{uuid.uuid4().hex[:4]}"
        self._classes = itertools.count(2)
        self.workers = [Worker(f"worker-{index}", index, State.RUNNING) for index in range(count)]

    def __enter__(self) -> Self:
        _clean()
        switch = self._switch
        try:
            for name in (switch, *map(self.space, range(self._count))):
                _run("ip", "netns", "add", name)
            _batch(switch, "ip", ["link add br0 type bridge", "link set br0 up", "link set lo up"])
            for index in range(self._count):
                self._join(index)
            # Each fault is a set, so one command removes all of them.
            _batch(
                switch, "nft", ["add table bridge f", "add chain bridge f c { type filter hook forward priority 0; }"]
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*map(self.space, range(self._count)), self._switch):
            _remove(name)

    @property
    def _switch(self) -> str:
        return f"{self._tag}-switch"

    def space(self, index: int) -> str:
        """The name of a host's namespace."""
        return f"{self._tag}-{index}"

    def address(self, index: int) -> str:
        return f"fd77::{index + 1:x}" if self._ipv6 else f"10.77.{index >> 8}.{(index & 255) + 1}"

    def _join(self, index: int) -> None:
        host = self.space(index)
        port = f"p{index}"
        single = [] if self._heaps or self._mbit is None else ["gso_max_segs", "1"]
        _run(*f"ip -n {self._switch} link add {port} type veth peer name eth0 netns {host}".split())
        _batch(
            self._switch,
            "ip",
            [f"link set {port} mtu {self._mtu}", f"link set {port} master br0 up"],
        )
        how = f"{self.address(index)}/64 dev eth0 nodad" if self._ipv6 else f"{self.address(index)}/16 dev eth0"
        _batch(
            host,
            "ip",
            [
                "link set lo up",
                " ".join([f"link set eth0 mtu {self._mtu}", *single]),
                f"address add {how}",
                "link set eth0 up",
            ],
        )
        if self._mbit is not None:
            for space, device in ((host, "eth0"), (self._switch, port)):
                _batch(space, "tc", [f"qdisc add dev {device} root handle 1: htb default 1"])
            self.rate(index, self._mbit)

    def hosts(
        self, environment: Mapping[str, str] | None = None, before: Mapping[int, Sequence[str]] | None = None
    ) -> PlainHosts:
        """An executor on these hosts, with this interpreter as python3. `before`: words before the command, by host."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

        def prefix(worker: Worker) -> Sequence[str]:
            return (
                "nsenter",
                f"--net={_RUN / self.space(worker.index)}",
                *(before or {}).get(worker.index, ()),
            )

        return PlainHosts(prefix, lambda _: {"PATH": path, **(environment or {})})

    # Faults. They can be combined; `heal` removes those of the filter.

    def rate(self, index: int, mbit: float) -> None:
        """Limit this host's bandwidth in both directions."""
        # Short bursts, because a fast moment would hide a slow link.
        shape = f"rate {mbit}mbit ceil {mbit}mbit burst 16k cburst 16k"
        for space, device in ((self.space(index), "eth0"), (self._switch, f"p{index}")):
            _batch(space, "tc", [f"class replace dev {device} parent 1: classid 1:1 htb {shape}"])

    def second(self, name: str = "eth1") -> None:
        """A second network of all hosts, with an interface of this name."""
        _batch(self._switch, "ip", ["link add br1 type bridge", "link set br1 up"])
        for index in range(self._count):
            host, port = self.space(index), f"q{index}"
            _run(*f"ip -n {self._switch} link add {port} type veth peer name {name} netns {host}".split())
            _batch(self._switch, "ip", [f"link set {port} master br1 up"])
            _batch(host, "ip", [f"address add 10.78.0.{index + 1}/16 dev {name}", f"link set {name} up"])

    def replug(self, index: int) -> None:
        """The host's link goes down and up again."""
        for state in ("down", "up"):
            _run("ip", "-n", self._switch, "link", "set", f"p{index}", state)

    def mtu(self, index: int, size: int) -> None:
        _batch(self.space(index), "ip", [f"link set eth0 mtu {size}"])

    def slow_link(self, one: int, other: int, mbit: float) -> None:
        for start, end in ((one, other), (other, one)):
            number = next(self._classes)
            shape = f"rate {mbit}mbit ceil {mbit}mbit burst 16k cburst 16k"
            family = "ipv6 u32 match ip6" if self._ipv6 else "ip u32 match ip"
            _batch(
                self.space(start),
                "tc",
                [
                    f"class replace dev eth0 parent 1: classid 1:{number} htb {shape}",
                    f"filter add dev eth0 parent 1: protocol {family} dst {self.address(end)} flowid 1:{number}",
                ],
            )

    def cut(self, one: int, other: int) -> None:
        self._between(one, other, "drop")

    def isolate(self, index: int) -> None:
        self._around(index, "drop")

    def lose(self, index: int, percent: float) -> None:
        self._around(index, f"numgen random mod 1000 < {round(percent * 10)} drop")

    def lose_between(self, one: int, other: int, percent: float) -> None:
        self._between(one, other, f"numgen random mod 1000 < {round(percent * 10)} drop")

    def drop_new(self, index: int) -> None:
        """Half of the new connections from and to this host lose their first packet, and half of these the second."""
        self._around(index, "tcp flags & (syn | ack) == syn numgen random mod 2 == 0 drop")

    def limit_new(self, index: int) -> None:
        """Limit the rate of new connections to this host."""
        self._rules(
            [f'oifname "p{index}" tcp flags & (syn | ack) == syn limit rate over 8/second burst 8 packets drop']
        )

    def hole(self, index: int, size: int) -> None:
        """Drop packets of more than `size` bytes from this host."""
        self._rules([f'iifname "p{index}" meta length > {size} drop'])

    def hole_between(self, one: int, other: int, size: int) -> None:
        self._between(one, other, f"meta length > {size} drop")

    def heal(self) -> None:
        _run("ip", "netns", "exec", self._switch, "nft", "flush", "chain", "bridge", "f", "c")

    def _between(self, one: int, other: int, what: str) -> None:
        ways = ((one, other), (other, one))
        self._rules([f'iifname "p{start}" oifname "p{end}" {what}' for start, end in ways])

    def _around(self, index: int, what: str) -> None:
        self._rules([f'{side} "p{index}" {what}' for side in ("iifname", "oifname")])

    def _rules(self, rules: Sequence[str]) -> None:
        _batch(self._switch, "nft", [f"add rule bridge f c {rule}" for rule in rules])


def _batch(space: str, program: str, lines: Sequence[str]) -> None:
    """Run several commands of `ip`, `tc` or `nft` in one namespace and one process."""
    words = {"ip": ("ip", "-batch", "-"), "tc": ("tc", "-batch", "-"), "nft": ("nft", "-f", "-")}[program]
    _run("nsenter", f"--net={_RUN / space}", *words, text="\n".join(lines) + "\n")


def _run(*words: str, text: str = "") -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()} {text}")


def _remove(name: str) -> None:
    """Remove a namespace and kill all processes in it."""
    if not (_RUN / name).exists():
        return
    inside = subprocess.run(("ip", "netns", "pids", name), capture_output=True, text=True, check=False, timeout=20)
    for pid in inside.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _run("ip", "netns", "delete", name)


def _clean() -> None:
    """Remove the namespaces of ended processes."""
    if not _RUN.is_dir():
        return
    for path in _RUN.glob(f"{_PREFIX}-*"):
        pid = path.name.split("-")[1]
        if not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):
                _remove(path.name)
