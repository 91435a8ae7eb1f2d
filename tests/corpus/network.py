"""Where the workers live: all on loopback (anywhere), or each in namespaces of its own, as pods do.

The second form gives each worker an address, a host name and process numbers of its own. The maker then runs
in namespaces too: when it ends, whatever way, the kernel ends all processes in them and takes the network down.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Set in the maker that already runs in its namespaces.
INSIDE = "CORPUS_INSIDE"
_OUTER = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_INNER = ("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
#: The namespaces of the last case and their links. Never empty after the first one.
_made: list[tuple[str, str]] = []
_ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


@dataclass(frozen=True, slots=True)
class Place:
    """How one worker is started: the words in front of its command, its address, and where the rendezvous is."""

    prefix: tuple[str, ...]
    address: str
    rendezvous: str
    port: int
    options: tuple[str, ...]


def reenter(words: Sequence[str]) -> int:
    """Runs `python -m tests.corpus.make WORDS` in new namespaces; its exit code.

    Root needs nothing; others need user namespaces, which the kernel may forbid.
    """
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    command = [_OUTER[0], *user, *_OUTER[1:], sys.executable, "-m", "tests.corpus.make", *words]
    return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode


def is_inside() -> bool:
    """Whether this process runs in the namespaces of `reenter`."""
    return INSIDE in os.environ


def loopback(count: int) -> list[Place]:
    """All workers on 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return [Place((), "127.0.0.1", "127.0.0.1", port, ("--local-addr", "127.0.0.1")) for _ in range(count)]


def namespaces(names: Sequence[str], folder: Path) -> list[Place]:
    """A network for these workers, instead of the one that the last case had. Only inside."""
    if not _made:  # a /run of our own: names of network namespaces are files there
        _run("mount", "-t", "tmpfs", "tmpfs", "/run")
        _run("ip", "link", "set", "lo", "up")
    else:
        _run("ip", "link", "delete", "pods")
    while _made:
        space, outer = _made.pop()
        _run("ip", "link", "delete", outer)  # the kernel takes a namespace down later
        _run("ip", "netns", "delete", space)
    _run("ip", "link", "add", "pods", "type", "bridge")
    _run("ip", "link", "set", "pods", "up")
    addresses = [f"10.42.{index}.{17 + 3 * index}" for index in range(len(names))]
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for address, name in zip(addresses, names, strict=True))]
    hosts.write_text("".join(f"{line}\n" for line in lines))
    places = []
    for index, (name, address) in enumerate(zip(names, addresses, strict=True)):
        space, inner, outer = f"pod{index}", "eth0", f"veth{index}"
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
        _made.append((space, outer))
        _run("ip", "link", "set", outer, "master", "pods", "up")
        _run("ip", "-n", space, "link", "set", "lo", "up")
        _run("ip", "-n", space, "address", "add", f"{address}/16", "dev", inner)
        _run("ip", "-n", space, "link", "set", inner, "up")
        enter = ("nsenter", f"--net=/run/netns/{space}", *_INNER, "sh", "-c", _ENTER, "sh", name, str(hosts))
        places.append(Place(enter, address, names[0], 29400, ()))
    return places


def disconnect(index: int) -> None:
    """Takes the cable out of worker `index`: nothing comes through any more, and nobody is told."""
    _run("ip", "link", "set", f"veth{index}", "down")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
