"""Runs commands in the containers of one job."""

from __future__ import annotations

import asyncio

from atlctl.backends.base import ExecRequest
from atlctl.backends.guarded.execution import GuardedExecution
from atlctl.backends.kubernetes.api import Api
from atlctl.backends.kubernetes.opening import Container
from atlctl.jobs.model import Job, Worker


class KubernetesExecutor:
    """See `atlctl.backends.base.Executor`. No pod is asked for: workers say where they live."""

    def __init__(self, api: Api, job: Job) -> None:
        self._api = api
        self._namespace = job.namespace or api.namespace
        self._open: set[GuardedExecution] = set()
        #: Pods whose container has no `sh`: tried once.
        self._shellless: set[str] = set()

    def run(self, worker: Worker, request: ExecRequest) -> GuardedExecution:
        namespace = worker.namespace or self._namespace
        container = Container(self._api, namespace, worker.pod, worker.container) if worker.pod else None
        execution = GuardedExecution(container, request, self._shellless, self._open.discard)
        self._open.add(execution)
        return execution

    async def aclose(self) -> None:
        await asyncio.gather(*[execution.aclose() for execution in list(self._open)])
