"""Runs commands in the containers of one job."""

from __future__ import annotations

from atlctl.backends.base import FailedToStart
from atlctl.backends.guarded.executor import GuardedExecutor
from atlctl.backends.kubernetes.api import Api
from atlctl.backends.kubernetes.opening import Container
from atlctl.jobs.model import Job, Worker


class KubernetesExecutor(GuardedExecutor):
    """No pod is asked for: workers say where they live."""

    def __init__(self, api: Api, job: Job) -> None:
        own = job.namespace or api.namespace

        def place(worker: Worker) -> Container | FailedToStart:
            if not worker.pod:
                return FailedToStart(255, "not running: it has no pod")
            return Container(api, worker.namespace or own, worker.pod, worker.container)

        super().__init__(place)
