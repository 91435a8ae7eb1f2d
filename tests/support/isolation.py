"""Isolates tests from the user's environment and files and from the network beyond loopback."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

#: Removed before each test: variables of users, CI machines and training platforms.
FOREIGN = re.compile(
    r"(ATLCTL|_ATLCTL|PET|MASTER|KUBE|KUBERNETES|TORCHELASTIC|TORCH|GLOO|NCCL|GROUP|ROLE|XDG|LC|SSH|HYDRA|SLURM)_.*"
    r"|.*_proxy|.*_PROXY|KUBECONFIG|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|WORLD_SIZE|LANG|LANGUAGE|TZ"
    r"|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|COLORTERM|COLUMNS|LINES|PAGER|LESS|EDITOR|VISUAL"
    r"|COMP_.*|PYTHON|BASH_ENV|ENV|ZDOTDIR|PYTHONWARNINGS"
)

#: Names that resolve without a DNS server.
LOCAL_NAMES = {None, "", "localhost", "ip6-localhost", socket.gethostname()}


#: The modules that were loaded when all tests were collected.
COLLECTED = pytest.StashKey[frozenset[str]]()


class NetworkRefusedError(RuntimeError):
    """A test tried to access the network beyond loopback."""


def environment(home: Path) -> dict[str, str]:
    """The environment of each test. Its folders are in `home`; there is no current job and no cluster."""
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "KUBECONFIG": str(home / "no-kubeconfig"),
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm-256color",
    }


def foreign(names: list[str]) -> list[str]:
    """Those of `names` that tests must not see."""
    return [name for name in names if FOREIGN.fullmatch(name)]


def refuse_network() -> None:
    """From now on, any connection, datagram or lookup beyond loopback raises NetworkRefusedError in this process.

    It is an audit hook, which sees all uses of sockets and cannot be removed.
    """
    sys.addaudithook(_guard)


def _guard(event: str, args: tuple[Any, ...]) -> None:
    if not event.startswith("socket."):
        return
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = args[1]
        if isinstance(address, tuple) and not _is_local(address[0]):
            raise NetworkRefusedError(f"{event} to {address[0]}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and not _is_local(args[0]):
        raise NetworkRefusedError(f"{event} of {args[0]}")


def _is_local(host: Any) -> bool:
    name = os.fsdecode(host) if isinstance(host, str | bytes) else host
    if name in LOCAL_NAMES:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
