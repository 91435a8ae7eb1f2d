"""Kubelet: runs containers of pods as local processes, maintains their status and logs, ends them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.apiserver import podstatus, processes
from tests.apiserver.logfile import Run
from tests.apiserver.processes import Child
from tests.apiserver.store import Record, Store, now

Object = dict[str, Any]

_REFERENCE = re.compile(r"\$\((\w+)\)")
#: Annotation of a pod that takes the whole grace period to end.
STUBBORN = "tests/ignores-term"


@dataclass(slots=True)
class Settings:
    """Settings for tests: seconds, bytes of a log file before it is rotated (0: never).

    With `pid1`, a first process without a handler does not receive SIGTERM, as on a real node.
    """

    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    backoff: float = 0.3
    fake_stop: float = 0.05
    rotate: int = 0
    pid1: bool = False


@dataclass(slots=True)
class Container:
    """A container on a node."""

    spec: Object
    state: Object
    last: Object = field(default_factory=dict)
    restarts: int = 0
    id: str = ""
    child: Child | None = None

    def status(self) -> Object:
        return podstatus.one_container(self.spec, self.state, self.last, self.restarts, self.id)


@dataclass(slots=True)
class Pod:
    """The kubelet's data of a pod. `execs`: commands executed in it; `logs`: runs of each container; `cutters`:
    functions that cut the connections of these commands."""

    uid: str
    folder: str
    record: Record
    started: str
    containers: dict[str, Container] = field(default_factory=dict)
    logs: dict[str, list[Run]] = field(default_factory=dict)
    execs: list[Child] = field(default_factory=list)
    cutters: set[Callable[[], None]] = field(default_factory=set)
    init: list[str] = field(default_factory=list)
    ending: bool = False
    used: bool = False
    task: asyncio.Task[None] | None = None


class Kubelet:
    """All nodes together. `down`: names of nodes that do not answer."""

    def __init__(self, store: Store, folder: str, server_id: str) -> None:
        self.store = store
        self.folder = folder
        self.id = server_id
        self.settings = Settings()
        self.down: set[str] = set()
        self.pods: dict[str, Pod] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._doomed: set[str] = set()
        self._sweep: asyncio.Task[None] | None = None
        self._resource = store.served.find("", "v1", "pods")
        assert self._resource is not None

    def pod(self, record: Record) -> Pod:
        """The kubelet's data of a pod, created when first used."""
        if (known := self.pods.get(record.uid)) is None:
            folder = os.path.join(self.folder, record.uid)
            os.makedirs(folder, exist_ok=True)
            known = self.pods[record.uid] = Pod(record.uid, folder, record, now())
        return known

    def env(self, pod: Object, container: Object | None) -> dict[str, str]:
        """The environment of a container: from its spec, PATH, and the variables common to all containers."""
        metadata = pod["metadata"]
        env = {"PATH": self.settings.path, "HOSTNAME": metadata["name"]}
        env["HOME"] = os.path.join(self.folder, metadata["uid"])
        for entry in (container or {}).get("env") or []:
            value = entry.get("value", "")
            if source := (entry.get("valueFrom") or {}).get("fieldRef"):
                value = _field(pod, source["fieldPath"])
            env[entry["name"]] = _REFERENCE.sub(lambda found: env.get(found[1], found[0]), value)
        env[processes.MARK] = f"{self.id}/{metadata['uid']}"
        if processes.TEST_MARK in os.environ:
            env[processes.TEST_MARK] = os.environ[processes.TEST_MARK]
        return env

    def cwd(self, pod: Pod, container: Object | None) -> str:
        wanted = (container or {}).get("workingDir", "")
        return wanted if wanted and os.path.isdir(wanted) else pod.folder

    # running

    def run(self, record: Record) -> None:
        """Start the pod's containers. The pod is Running once the first of them is."""
        pod = self.pod(record)
        pod.init = [spec["name"] for spec in podstatus.init_containers(record.obj)]
        for spec in podstatus.init_containers(record.obj) + podstatus.containers(record.obj):
            reason = "PodInitializing" if pod.init else "ContainerCreating"
            pod.containers[spec["name"]] = Container(spec, podstatus.waiting(reason))
        pod.task = self.spawn(self._life(pod))

    async def _life(self, pod: Pod) -> None:
        for name in pod.init:
            container = pod.containers[name]
            self._start(pod, container)
            self.sync(pod)
            if container.child is not None:
                await container.child.ended
                await asyncio.sleep(0)
            if pod.ending or (container.state.get("terminated") or {"exitCode": 1})["exitCode"]:
                self.sync(pod)
                return
        rest = [container for name, container in pod.containers.items() if name not in pod.init]
        for container in rest:
            self._start(pod, container)
        self.sync(pod)

    def _start(self, pod: Pod, container: Container) -> None:
        spec = container.spec
        container.id = f"containerd://{uuid.uuid4().hex}{uuid.uuid4().hex}"
        folder = os.path.join(pod.folder, ".logs", spec["name"])
        os.makedirs(folder, exist_ok=True)
        run = Run(os.path.join(folder, f"{container.restarts}.log"), self.settings.rotate)
        run.open()
        pod.logs.setdefault(spec["name"], []).append(run)
        pod.record = self._current(pod)
        env = self.env(pod.record.obj, spec)
        argv = [
            _REFERENCE.sub(lambda found: env.get(found[1], found[0]), word)
            for word in (spec.get("command") or []) + (spec.get("args") or [])
        ]
        ends = [os.pipe(), os.pipe()]
        started = now()
        try:
            with open(os.devnull, "rb") as null:
                child = processes.start(argv, env, self.cwd(pod, spec), null.fileno(), ends[0][1], ends[1][1])
        except processes.StartError as error:
            for reading, _ in ends:
                os.close(reading)
            run.end()
            container.child = None
            container.state = podstatus.terminated(128, "StartError", "1970-01-01T00:00:00Z", container.id, str(error))
            return
        finally:
            for _, writing in ends:
                os.close(writing)
        pod.used = True
        container.child = child
        container.state = podstatus.running(started)
        self.spawn(self._watch(pod, container, run, [ends[0][0], ends[1][0]], started))

    async def _watch(self, pod: Pod, container: Container, run: Run, ends: list[int], started: str) -> None:
        pipes = [processes.Pipe(fd) for fd in ends]
        readers = [
            self.spawn(_copy(pipe, run, stream)) for pipe, stream in zip(pipes, ("stdout", "stderr"), strict=True)
        ]
        child = container.child
        assert child is not None
        code = await child.ended
        # The end of the first process also ends all other processes of the container and its exec commands.
        await self._kill(pod, container)
        await asyncio.wait(readers, timeout=20.0)
        for task in readers:
            task.cancel()
        for pipe in pipes:
            pipe.close()
        run.end()
        reason = "Completed" if code == 0 else "Error"
        container.child = None
        container.state = podstatus.terminated(code, reason, started, container.id)
        self.sync(pod)
        if not pod.ending and container.spec["name"] not in pod.init:
            await self._again(pod, container, code)

    async def _kill(self, pod: Pod, container: Container) -> None:
        others = [c for c in pod.containers.values() if c.child is not None and c is not container]
        if others:
            if container.child is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(container.child.pid, signal.SIGKILL)
            return
        await self.sweep(pod.uid)

    async def _again(self, pod: Pod, container: Container, code: int) -> None:
        policy = self._current(pod).obj["spec"].get("restartPolicy", "Always")
        if policy == "Never" or (policy == "OnFailure" and code == 0):
            return
        container.last = container.state
        if container.restarts:
            text = f"back-off 10s restarting failed container={container.spec['name']}"
            container.state = podstatus.waiting("CrashLoopBackOff", text)
            self.sync(pod)
            await asyncio.sleep(self.settings.backoff)
        if pod.ending:
            return
        container.restarts += 1
        self._start(pod, container)
        self.sync(pod)

    def sync(self, pod: Pod) -> None:
        """Update the pod's status from its containers."""
        if pod.containers:
            record = self._current(pod)
            init = [c.status() for name, c in pod.containers.items() if name in pod.init]
            main = [c.status() for name, c in pod.containers.items() if name not in pod.init]
            status = podstatus.pod_status(record.obj, main, init, pod.started)
            assert self._resource is not None
            pod.record = self.store.update(self._resource, record, status=status) or record

    def _current(self, pod: Pod) -> Record:
        metadata = pod.record.obj["metadata"]
        found = self.store.pod(metadata["namespace"], metadata["name"])
        return found if found is not None and found.uid == pod.uid else pod.record

    # ending

    async def stop(self, record: Record, grace: float) -> None:
        """SIGTERM to the containers, SIGKILL after `grace` seconds. Returns when all processes of the pod have ended.

        A node that is down does nothing until it is back.
        """
        node = record.obj["spec"].get("nodeName", "")
        while node in self.down:
            await self.store.changed(0.05)
        pod = self.pods.get(record.uid)
        living = [c for c in pod.containers.values() if c.child is not None] if pod else []
        if pod is not None:
            pod.ending = True
        if not living:
            stubborn = (record.obj["metadata"].get("annotations") or {}).get(STUBBORN)
            await asyncio.sleep(grace if stubborn else min(grace, self.settings.fake_stop))
        for container in living:
            if container.child is not None:
                self._term(container.child)
        ended = [c.child.ended for c in living if c.child is not None]
        if ended:
            await asyncio.wait(ended, timeout=max(grace, 0.01))
        if pod is not None and pod.used:
            await self.sweep(pod.uid)
        if ended:
            await asyncio.wait(ended)

    def _term(self, child: Child) -> None:
        """SIGTERM to the first process only; with `pid1`, only if it has a handler."""
        if not self.settings.pid1 or processes.catches(child.pid, signal.SIGTERM):
            child.signal(signal.SIGTERM)

    async def sweep(self, uid: str) -> None:
        """Kill all processes of a pod. Pods that end at the same time share one scan of the processes."""
        self._doomed.add(uid)
        if self._sweep is None:
            self._sweep = self.spawn(self._sweeping())
        await asyncio.shield(self._sweep)

    async def _sweeping(self) -> None:
        await asyncio.sleep(0.01)
        doomed, self._doomed, self._sweep = self._doomed, set(), None
        processes.kill_marked(self.id, doomed)

    def node(self, name: str, *, up: bool) -> None:
        """Stop or restart a node's kubelet. A stop cuts connections and kills the exec commands in its pods."""
        if up:
            self.down.discard(name)
            return
        self.down.add(name)
        for pod in self.pods.values():
            if self._current(pod).obj["spec"].get("nodeName") != name:
                continue
            for cut in list(pod.cutters):
                cut()
            for child in pod.execs:
                child.signal(signal.SIGKILL, group=True)
            for runs in pod.logs.values():
                for run in runs:
                    run.wake()

    def forget(self, uid: str) -> None:
        """The pod was removed from the API: end followers of its logs."""
        if pod := self.pods.pop(uid, None):
            for runs in pod.logs.values():
                for run in runs:
                    run.ended = True
                    run.wake()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """A task that the server awaits or cancels at its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End all processes of all pods."""
        for pod in self.pods.values():
            pod.ending = True
        processes.kill_marked(self.id)
        children = [c.child.ended for pod in self.pods.values() for c in pod.containers.values() if c.child is not None]
        children += [child.ended for pod in self.pods.values() for child in pod.execs]
        if children:
            await asyncio.wait(children, timeout=1.0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _copy(pipe: processes.Pipe, run: Run, stream: str) -> None:
    while data := await pipe.read(65536):
        run.feed(stream, data)


def _field(pod: Object, path: str) -> str:
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: Any = pod
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)
