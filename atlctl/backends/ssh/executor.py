"""Runs commands on the hosts of one job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from atlctl.backends.base import ExecRequest
from atlctl.backends.guarded.execution import GuardedExecution
from atlctl.backends.ssh.connect import Connections
from atlctl.backends.ssh.hostfile import Host
from atlctl.backends.ssh.stream import HostPlace
from atlctl.jobs.model import Worker


class SshExecutor:
    """See `atlctl.backends.base.Executor`. A host is connected to when the first command is run there."""

    def __init__(self, connections: Connections, hosts: Mapping[str, Host]) -> None:
        """`hosts` by the names of their workers."""
        self._connections, self._hosts = connections, hosts
        self._open: set[GuardedExecution] = set()
        #: Hosts without `sh`, which are none.
        self._shellless: set[str] = set()

    def run(self, worker: Worker, request: ExecRequest) -> GuardedExecution:
        host = self._hosts.get(worker.name)
        place = None if host is None else HostPlace(self._connections, host)
        execution = GuardedExecution(place, request, self._shellless, self._open.discard)
        self._open.add(execution)
        return execution

    async def aclose(self) -> None:
        await asyncio.gather(*[execution.aclose() for execution in list(self._open)])
        await self._connections.aclose()
