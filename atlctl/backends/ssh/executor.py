"""Runs commands on the hosts of one job."""

from __future__ import annotations

from collections.abc import Mapping

from atlctl.backends.base import FailedToStart
from atlctl.backends.guarded.executor import GuardedExecutor
from atlctl.backends.ssh.connect import Connections
from atlctl.backends.ssh.hostfile import Host
from atlctl.backends.ssh.stream import HostPlace, Within
from atlctl.jobs.model import Worker


class SshExecutor(GuardedExecutor):
    """A host is connected to when the first command is run there."""

    def __init__(
        self, connections: Connections, hosts: Mapping[str, Host], within: Mapping[str, Within] | None = None
    ) -> None:
        """`hosts`, and what commands there are given, by the names of their workers."""

        def place(worker: Worker) -> HostPlace | FailedToStart:
            host = hosts.get(worker.name)
            if host is None:
                return FailedToStart(255, "it has no host")
            if not worker.state.active:
                return FailedToStart(255, f"not running ({worker.state}); on its host: atlctl exec --hostfile FILE")
            return HostPlace(connections, host, (within or {}).get(worker.name))

        super().__init__(place)
