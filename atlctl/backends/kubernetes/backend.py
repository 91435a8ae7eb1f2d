"""Kubernetes implementation of the protocols in `atlctl.backends.base`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from atlctl.backends.base import Listing, LogLine, LogRequest, Plan, S, StopRequest, StopResult
from atlctl.backends.guarded.asking import file_of, living
from atlctl.backends.kubernetes import access, inventory, kubeconfig, objects, pods, queueing
from atlctl.backends.kubernetes.api import Denied, NotFound, Object
from atlctl.backends.kubernetes.client import Client, LaterApi
from atlctl.backends.kubernetes.discovery import Served, discover
from atlctl.backends.kubernetes.identity import OwnPod, own_pod
from atlctl.backends.kubernetes.inventory import FoundJob
from atlctl.backends.kubernetes.kinds import registry
from atlctl.i18n import Message
from atlctl.jobs import fields
from atlctl.jobs.errors import NothingMatched, Replaced
from atlctl.jobs.model import Job, RankMap, State, Worker

if TYPE_CHECKING:
    from atlctl.backends.kubernetes.events import About, JobEvent
    from atlctl.backends.kubernetes.execs import KubernetesExecutor
    from atlctl.backends.kubernetes.logs import PodLogs, TailReader

#: Streams that may stay open for a recorder, about 200 KB each.
MOST_STREAMS = 256
#: Seconds before a slow login is reported.
_LOGIN_NOTICE = 0.8
#: Maximum age in seconds of the job's data when a log reader checks whether the job has ended.
_FRESH = 2.0
#: Default time limit of a stop in seconds.
_STOP_SECONDS = 120.0
#: States that a queue may explain better than the pods.
_WAITING = (State.PENDING, State.QUEUED, State.SUSPENDED)
_PODS = registry.PODS.resource


class KubernetesBackend:
    """See `atlctl.backends.base.Backend`. Reads and connects only when first used."""

    name = "kubernetes"

    def __init__(
        self,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        *,
        selector: str | None = None,
        container: str | None = None,
        all_namespaces: bool = False,
        waiting: Callable[[str], None] | None = None,
        around: access.Around = contextlib.nullcontext,
    ) -> None:
        """`waiting` is called with a note when the API server, a login or a log is slow. `around`: see
        `access.load`."""
        self._waiting, self._around = waiting, around
        self._asked = (kubeconfig, context, namespace)
        self._selector = selector
        self._container = container
        self._everywhere = all_namespaces
        self._client: Client | None = None
        self._served: asyncio.Future[Served] | None = None
        self._opening = asyncio.Lock()
        self._known: dict[str, tuple[float, FoundJob]] = {}
        #: UID of a job -> UIDs of its pods -> last known name and index of each worker.
        self._numbers: dict[str, dict[str, tuple[str, int]]] = {}
        self._checking = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._checked: set[str] = set()
        self._logs: PodLogs | None = None

    async def api(self) -> Client:
        """The client. Raises UsageError, NotAllowed if the configuration gives no usable server."""
        async with self._opening:
            if self._client is None:
                notice = asyncio.get_running_loop().call_later(_LOGIN_NOTICE, self._tell_login)
                try:
                    loaded = await asyncio.to_thread(access.load, *self._asked, self._around)
                finally:
                    notice.cancel()
                self._client = Client(loaded, self._waiting)
            return self._client

    def _tell_login(self) -> None:
        if self._waiting is not None and kubeconfig.runs_program(*self._asked[:2]):
            self._waiting(Message("waiting for the kubeconfig's exec plugin..."))

    async def served(self) -> Served:
        if self._served is None:
            self._served = asyncio.ensure_future(discover(await self.api()))
        return await self._served

    async def list_jobs(self) -> Listing:
        if self._selector is not None:
            return Listing(((await self.found(self._selector)).job,))
        api = await self.api()
        return await inventory.list_jobs(api, None if self._everywhere else [api.namespace], await self.served())

    async def get_job(self, name: str) -> Job:
        return (await self.found(name)).job

    async def found(self, name: str) -> FoundJob:
        """The job of that name, with the objects that it was read from."""
        api = await self.api()
        if self._selector is not None and name == self._selector:
            found = await inventory.select(api, name)
        else:
            found = await inventory.find(api, name, await self.served())
        if found.job.state in _WAITING:
            found = await self._queued(api, found)
        if self._container is not None:
            found = replace(found, job=_in_container(found, self._container))
        found = replace(found, job=self._as_before(found.job))
        self._known[found.job.uid or found.job.name] = (asyncio.get_running_loop().time(), found)
        return found

    def _as_before(self, job: Job) -> Job:
        """`job` with the last known names and indexes of its workers."""
        before = self._numbers.setdefault(job.uid, {})
        if job.numbered:
            before |= {worker.uid: (worker.name, worker.index) for worker in job.workers if worker.uid}
        if job.numbered or not all(worker.uid in before for worker in job.workers):
            return job
        workers = []
        for worker in job.workers:
            name, index = before[worker.uid or ""]
            workers.append(replace(worker, name=name, index=index))
        return replace(job, workers=tuple(sorted(workers, key=lambda worker: worker.index)), numbered=True)

    def recall(self, job: Job, names: Mapping[str, tuple[str, int]]) -> Job:
        """`job` with the given names and indexes of workers, by pod UID; they are kept for later calls."""
        self._numbers.setdefault(job.uid, {}).update(names)
        known = self._as_before(job)
        at, found = self._known[job.uid or job.name]
        self._known[job.uid or job.name] = at, replace(found, job=known)
        return known

    async def _queued(self, api: Client, found: FoundJob) -> FoundJob:
        """`found` with the reason why the job waits: its queue, or a gang that does not fit."""
        workloads, groups, _ = await inventory.queues(api, found, await self.served())
        entries = [*map(queueing.workload, workloads), *map(queueing.pod_group, groups)]
        return replace(found, job=queueing.refined(found.job, entries))

    async def current(self) -> Job | None:
        """The job of the pod that runs this process; None outside a pod or if the pod has no job.

        Raises NotAllowed if the pod may not be read.
        """
        if self._selector is not None:
            return (await self.found(self._selector)).job
        own = own_pod()
        if own is None:
            return None
        api = await self.api()
        if own.namespace is not None and own.namespace != api.namespace:
            return None
        pod = await self._own_object(own)
        if pod is None or objects.controller(pod) is None:
            return None
        return (await self.found(f"pod/{objects.name(pod)}")).job

    async def current_worker(self, job: Job) -> str | None:
        own = own_pod()
        if own is None:
            return None
        alike = [w for w in job.workers if (w.uid == own.uid if own.uid is not None else w.pod == own.name)]
        return alike[0].name if alike else None

    async def _own_object(self, own: OwnPod) -> Object | None:
        api = await self.api()
        if own.name is not None:
            try:
                pod = await api.get(_PODS.path("v1", api.namespace, own.name))
            except NotFound:
                pod = {}
            if pod and own.uid in (None, objects.uid(pod)):
                return pod
        if own.uid is None:
            return None
        # For indexed Jobs the host name differs from the pod's name, and the API cannot select by UID.
        listed = await api.list(_PODS.path("v1", api.namespace))
        return next((pod for pod in listed.items if objects.uid(pod) == own.uid), None)

    async def ranks(self, job: Job) -> RankMap | None:
        executor = self.executor(job)
        try:
            alive = [worker for worker in job.workers if worker.state in (State.RUNNING, State.HELD)]
            if (found := await living(executor, alive)) is not None:
                return found
        finally:
            await executor.aclose()
        return pods.stated_ranks(job, (await self._look(job, fresh=False)).pods)

    async def events(self, job: Job) -> Sequence[JobEvent]:
        """Cluster events of the job, its child objects, pods, queue and nodes, oldest first."""
        from atlctl.backends.kubernetes.events import sorted_events

        return sorted_events(*await self._fetch_events(job))

    async def raw_events(self, job: Job) -> Sequence[Object]:
        from atlctl.backends.kubernetes.events import own_objects

        return own_objects(*await self._fetch_events(job))

    async def _fetch_events(self, job: Job) -> tuple[list[Object], Mapping[str, About]]:
        from atlctl.backends.kubernetes.events import About, fetch, fetch_gone, reported

        api, found = await self.api(), await self._look(job, fresh=False)
        workloads, groups, _ = await inventory.queues(api, found, await self.served())
        about = dict.fromkeys(found.uids, About()) | {objects.uid(obj): About() for obj in (*workloads, *groups)}
        about |= {worker.uid: About(worker.name, worker.node) for worker in found.job.workers if worker.uid}
        nodes = {worker.node for worker in found.job.workers if worker.node}
        namespace = found.job.namespace or api.namespace
        items, known = await fetch(api, namespace, about, nodes)
        gone = reported(items, known) - {objects.name(pod) for pod in found.pods}
        more, lost = await fetch_gone(api, namespace, found.job, gone)
        return [*items, *more], {**lost, **known}

    def executor(self, job: Job) -> KubernetesExecutor:
        from atlctl.backends.kubernetes.execs import KubernetesExecutor

        return KubernetesExecutor(LaterApi(lambda: self._same(job), job.namespace or "default"), job)

    async def lines(self, job: Job, worker: Worker, request: LogRequest) -> AsyncIterator[Sequence[LogLine]]:
        async for batch in self._log_source().lines(job, worker, request):
            yield batch

    def end_reader(self, job: Job, worker: Worker, new_sink: Callable[[], S]) -> TailReader[S]:
        """See `LogEnds`."""
        from atlctl.backends.kubernetes.logs import TailReader

        return TailReader(self._log_source(), job, worker, new_sink)

    def allow_logs(self, count: int) -> None:
        """See `ManyLogs`. Above `MOST_STREAMS`, logs are read in turns."""
        from atlctl.backends.kubernetes.logs import STREAMS, LogStreams

        self._log_source().streams = LogStreams(max(STREAMS, min(count + STREAMS // 4, MOST_STREAMS)))

    def _log_source(self) -> PodLogs:
        if self._logs is None:
            from atlctl.backends.kubernetes.logs import PodLogs

            self._logs = PodLogs(LaterApi(self.api, "default"), self, waiting=self._waiting)
        return self._logs

    async def pod(self, job: Job, worker: str, *, fresh: bool) -> Object | None:
        """See `Places`."""
        found = await self._look(job, fresh=fresh)
        name = next((w.pod for w in found.job.workers if w.name == worker), None)
        return next((pod for pod in found.pods if objects.name(pod) == name), None)

    def container(self, pod: Object) -> str:
        """See `Places`."""
        if self._container is not None:
            return self._container
        uid = objects.uid(pod)
        for _, found in self._known.values():
            if any(objects.uid(own) == uid for own in found.pods):
                return pods.trainer_container(pod, found.kind.containers, first=found.kind.first_trains).name or ""
        return pods.trainer_container(pod).name or ""

    async def over(self, job: Job) -> bool:
        """See `Places`."""
        try:
            found = await self._look(job, fresh=True)
        except (NothingMatched, Replaced):
            return True
        return not found.job.state.active

    async def _look(self, job: Job, *, fresh: bool) -> FoundJob:
        """The current data of exactly this job. Raises AtlctlError if another job has taken its name."""
        # Log readers ask at the same moment: one of them queries the server for all.
        async with self._looking:
            at, known = self._known.get(job.uid or job.name, (float("-inf"), None))
            age = asyncio.get_running_loop().time() - at
            if known is not None and (not fresh or age < _FRESH):
                return known
            name = self._selector or (job.name if known is None else _form(known))
            found = await self.found(name)
            if job.uid and found.job.uid != job.uid:
                raise Replaced(job.name)
            return found

    async def _same(self, job: Job) -> Client:
        """The client, after checking the job's UID: a new job of the same name would have pods of the same names."""
        api = await self.api()
        key = job.uid or job.name
        async with self._checking:
            at, _ = self._known.get(key, (float("-inf"), None))
            if key not in self._checked and asyncio.get_running_loop().time() - at > _FRESH:
                kind = (await self.served()).kind(job.resource) if job.uid and job.resource else None
                if kind is not None and kind[0] is not registry.PODS:
                    await self._compare(api, job, kind[0].resource.path(kind[1], job.namespace, job.name))
            self._checked.add(key)
        return api

    async def _compare(self, api: Client, job: Job, path: str) -> None:
        try:
            now = await api.get(path)
        except Denied:
            return  # the job may not be readable although its pods are
        if objects.uid(now) != job.uid:
            raise Replaced(job.name)

    async def read_file(self, job: Job, worker: Worker, path: str, limit: int) -> bytes | None:
        executor = self.executor(job)
        try:
            return await file_of(executor, worker, path, limit)
        finally:
            await executor.aclose()

    async def plan_stop(self, job: Job, workers: Sequence[Worker], request: StopRequest) -> Plan:
        from atlctl.backends.kubernetes import stopping, stopplan

        found = await self._look(job, fresh=False)
        return stopplan.stop(found, await stopping.world(self, found), workers, request)

    async def plan_resume(self, job: Job) -> Plan:
        from atlctl.backends.kubernetes import stopping, stopplan

        found = await self._look(job, fresh=False)
        return stopplan.resume(found, await stopping.world(self, found))

    async def check(self, plan: Plan) -> None:
        from atlctl.backends.kubernetes import stopping

        await stopping.check(self, plan)

    async def carry_out(self, plan: Plan, timeout: float, told: Callable[[str], None]) -> Sequence[StopResult]:
        from atlctl.backends.kubernetes import stopping

        return await stopping.carry_out(self, plan, timeout, told)

    async def stop(self, job: Job, workers: Sequence[Worker], grace: float) -> Sequence[StopResult]:
        plan = await self.plan_stop(job, workers, StopRequest(grace=grace))
        if plan.nothing:
            return [StopResult(worker.name, "already-ended") for worker in workers]
        return await self.carry_out(plan, _STOP_SECONDS, lambda _: None)

    def options(self) -> tuple[str, ...]:
        """The command-line options that select the same server and namespace again."""
        named = zip(("--kubeconfig", "--context", "--namespace"), self._asked, strict=True)
        return tuple(word for name, value in named if value is not None for word in (name, value))

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _in_container(found: FoundJob, container: str) -> Job:
    """The job with `container` as each worker's container. Raises NothingMatched if no worker has it."""
    parts = ("containers", "initContainers")
    names = {
        objects.uid(pod): [
            fields.text(item.get("name")) for part in parts for item in fields.entries(objects.spec(pod).get(part))
        ]
        for pod in found.pods
    }
    if not any(container in names.get(worker.uid or "", ()) for worker in found.job.workers):
        exist = ", ".join(dict.fromkeys(name for known in names.values() for name in known))
        raise NothingMatched(
            Message("no worker of {job} has a container {container}", job=found.job.name, container=container),
            Message("there are: {names}", names=exist),
        )
    workers = [replace(worker, container=container, container_guessed=False) for worker in found.job.workers]
    return replace(found.job, workers=tuple(workers))


def _form(found: FoundJob) -> str:
    """The unambiguous name of this job, `KIND/NAME` if necessary."""
    return registry.form(found.kind.resource, found.job.name)
