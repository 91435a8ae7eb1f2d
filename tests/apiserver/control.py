"""Operations for tests: the methods behind the control port, called by name with JSON values."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from tests.apiserver import certs, deleting, podstatus, processes, writing
from tests.apiserver.cluster import Cluster
from tests.apiserver.controllers import Controllers
from tests.apiserver.logfile import Run
from tests.apiserver.resources import Resource
from tests.apiserver.store import Record, dumps

Object = dict[str, Any]


class Control:
    """Every public method is an operation, with JSON values as arguments and result."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.controllers = Controllers(cluster)

    # objects

    def put(self, obj: Object, run: bool = False, fake: bool = False) -> Object:
        """Create or replace an object unchanged, including status. `run` starts a pod, `fake` only marks it as
        running."""
        resource = self.cluster.served.of(obj)
        if resource.plural == "pods":
            spec = dict(obj.get("spec") or {})
            if run or fake:
                spec.setdefault("nodeName", "node1")
            obj = obj | {"spec": spec}
            if run:
                obj.setdefault("status", {"phase": "Pending"})
        record = self.cluster.store.write(resource, obj)
        if fake:
            record = self._fake(resource, record)
        if run:
            self.cluster.kubelet.run(record)
        return record.obj

    def _fake(self, resource: Resource, record: Record) -> Record:
        return self.cluster.store.write(resource, record.obj | {"status": podstatus.fake_running(record.obj)})

    def put_many(self, objects: list[Object]) -> int:
        for obj in objects:
            self.put(obj)
        return len(objects)

    def scale(self, template: Object, count: int, start: int = 0, run: bool = False, fake: bool = True) -> list[str]:
        """Create many pods from a template; `{i}` in its texts is the number. Returns the names."""
        text = json.dumps(template)
        made = [
            self.put(json.loads(text.replace("{i}", str(i))), run=run, fake=fake and not run)
            for i in range(start, start + count)
        ]
        return [obj["metadata"]["name"] for obj in made]

    def get(self, kind: str, name: str, namespace: str = "default", api_version: str = "v1") -> Object | None:
        resource = self._resource(kind, api_version)
        record = self.cluster.store.get(resource, namespace if resource.namespaced else "", name)
        return None if record is None else record.obj

    def patch(
        self, kind: str, name: str, patch: Object, namespace: str = "default", api_version: str = "v1"
    ) -> Object | None:
        """Merge into an object, including status, without checks. None if it does not exist."""
        resource = self._resource(kind, api_version)
        record = self.cluster.store.get(resource, namespace if resource.namespaced else "", name)
        if record is None:
            return None
        merged = writing.merge(json.loads(json.dumps(record.obj)), patch)
        return self.cluster.store.write(resource, merged).obj

    def remove(self, kind: str, name: str, namespace: str = "default", api_version: str = "v1") -> bool:
        """Remove an object immediately; kills the processes of a pod."""
        resource = self._resource(kind, api_version)
        record = self.cluster.store.remove(resource, namespace if resource.namespaced else "", name)
        if record is not None and resource.plural == "pods":
            if (pod := self.cluster.kubelet.pods.get(record.uid)) is not None:
                pod.ending = True
                processes.kill_marked(self.cluster.id, {record.uid})
            self.cluster.kubelet.forget(record.uid)
        return record is not None

    def delete(
        self, kind: str, name: str, namespace: str = "default", api_version: str = "v1", grace: int = 30
    ) -> bool:
        """Delete like a DELETE with background propagation."""
        resource = self._resource(kind, api_version)
        record = self.cluster.store.get(resource, namespace if resource.namespaced else "", name)
        if record is None:
            return False
        options = {"propagationPolicy": "Background", "gracePeriodSeconds": grace}
        deleting.delete(self.cluster, resource, record, options)
        return True

    def _resource(self, kind: str, api_version: str) -> Resource:
        return self.cluster.served.of({"kind": kind, "apiVersion": api_version})

    def serve(self, group: str, version: str, plural: str, kind: str, namespaced: bool = True) -> None:
        """Serve an additional resource."""
        self.cluster.served.add(Resource(group, version, plural, kind, namespaced))

    def unserve(self, group: str) -> None:
        """Stop serving a group."""
        self.cluster.served.drop(group)

    def broken(self, group: str, version: str) -> None:
        """An aggregated API group whose server is down: stale in discovery, 503 otherwise."""
        self.cluster.served.broken[group] = version

    def compact(self) -> None:
        """Forget the history: older watches and pages get 410."""
        self.cluster.store.compact()

    # pods

    def processes(self, pod: str, namespace: str = "default") -> list[Object]:
        """The live processes of a pod, including those of exec commands."""
        record = self.cluster.store.pod(namespace, pod)
        if record is None:
            return []
        found = [processes.describe(pid) for pid in processes.marked(self.cluster.id, {record.uid})]
        return [one for one in found if one["state"] not in ("Z", "X", "?")]

    def folder(self, pod: str, namespace: str = "default") -> str:
        """The working folder of commands in the pod, which is also HOME."""
        return self.cluster.kubelet.pod(self._pod(pod, namespace)).folder

    def kill(self, pod: str, namespace: str = "default", signal: int = 9, container: str = "") -> None:
        """Send a signal to the first process of a container (default: of all containers)."""
        known = self.cluster.kubelet.pod(self._pod(pod, namespace))
        for name, one in known.containers.items():
            if one.child is not None and container in ("", name):
                one.child.signal(signal)

    def log(
        self,
        pod: str,
        namespace: str = "default",
        container: str = "",
        path: str = "",
        lines: list[str] | None = None,
        previous: bool = False,
        ended: bool | None = None,
    ) -> None:
        """Set a container's log: a file of `TIMESTAMP TEXT` lines on disk, or `lines` (with the current time).

        Without `previous`, later calls with `lines` append to the same log. `ended`: no more lines will come; by
        default True for a file and False for lines.
        """
        record = self._pod(pod, namespace)
        known = self.cluster.kubelet.pod(record)
        name = container or podstatus.containers(record.obj)[0]["name"]
        runs = known.logs.setdefault(name, [])
        if path:
            run = Run(path, stamped=True, ended=ended is not False)
            if previous:
                runs.insert(max(len(runs) - 1, 0), run)
            else:
                if runs and not runs[-1].path:
                    runs.pop().ended = True
                runs.append(run)
            return
        if previous or not runs or not runs[-1].path:
            run = Run(f"{known.folder}.{name}.{len(runs)}.log", self.cluster.kubelet.settings.rotate)
            if previous:
                runs.insert(max(len(runs) - 1, 0), run)
            else:
                if runs and not runs[-1].path:
                    waiting = runs.pop()
                    waiting.path = run.path
                    run = waiting
                runs.append(run)
        else:
            run = runs[-1]
        run.write_lines(lines or [])
        if ended or previous:
            run.end()

    def _pod(self, pod: str, namespace: str) -> Record:
        record = self.cluster.store.pod(namespace, pod)
        if record is None:
            raise ValueError(f"no pod {namespace}/{pod}")
        return record

    def node(self, name: str, up: bool) -> None:
        """Stop or restart a node's kubelet."""
        self.cluster.kubelet.node(name, up=up)

    # faults, users, requests

    def fault(self, values: Object) -> int:
        """Set a fault (see faults.Fault); returns its number."""
        return self.cluster.faults.add(**values).id

    def faults(self) -> list[Object]:
        """All faults with their hits."""
        return [fault.asdict() for fault in self.cluster.faults.faults]

    def clear_faults(self) -> None:
        self.cluster.faults.clear()

    def user(self, name: str, rules: list[Object] | None, groups: list[str] | None = None) -> str:
        """Create or change a user (rules None: administrator); returns the token."""
        return self.cluster.access.put(name, rules, groups)

    def client_certificate(self, user: str) -> list[str]:
        """A certificate and its key (PEM) that identify `user`."""
        certificate, key = certs.client(user)
        return [certificate.decode(), key.decode()]

    def expire(self, token: str) -> None:
        """Answer this token with 401 from now on."""
        self.cluster.access.tokens.pop(token, None)

    def token(self, user: str, token: str) -> None:
        """An additional token of a user."""
        self.cluster.access.tokens[token] = user

    def requests(self, since: int = 0) -> list[Object]:
        return self.cluster.requests[since:]

    def forget_requests(self) -> None:
        self.cluster.requests.clear()

    def settings(self, values: Object) -> None:
        """Settings of the kubelet (see kubelet.Settings), `garbage` (seconds), `page` (maximum of a list), `rough`
        (seed)."""
        for key, value in values.items():
            if key in ("garbage", "page", "rough"):
                setattr(self.cluster, key, value)
            elif key in ("path", "backoff", "fake_stop", "rotate", "pid1"):
                setattr(self.cluster.kubelet.settings, key, value)
            else:
                raise ValueError(f"no such setting: {key}")

    def controller(self, on: bool, delay: float = 0.05) -> None:
        """Whether controllers run (suspend, resume, Volcano's commands, Kueue, failures)."""
        self.controllers.switch(on, delay)


def application(control: Control) -> web.Application:
    """POST /METHOD with a JSON object of arguments; answers {"result": ...} or {"error": text} with 400."""

    async def handle(request: web.Request) -> web.Response:
        name = request.match_info["method"]
        method = None if name.startswith("_") else getattr(control, name, None)
        if not callable(method):
            return web.json_response({"error": f"no such operation: {name}"}, status=400)
        try:
            result = method(**await request.json())
        except (ValueError, KeyError, TypeError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)
        return web.Response(body=dumps({"result": result}), content_type="application/json")

    app = web.Application(client_max_size=512 << 20)
    app.router.add_post("/{method}", handle)
    return app
