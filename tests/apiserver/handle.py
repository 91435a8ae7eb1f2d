"""Runs the test API server in a separate process and controls it."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self, cast

import yaml

from tests.apiserver import processes

ROOT = Path(__file__).parents[2]
#: Seed of the rough mode (README): the same in each test run, another in each soak run.
SEED = int(os.environ.setdefault("ATLCTL_ROUGH_SEED", "1"))
Object = dict[str, Any]


class Server:
    """Starts the server; `close()` (or leaving the context) ends it with all processes of its pods.

    `url`: of the API; `ca`: path of its CA; `kubeconfig`: path of a file with the user `admin`. Raises RuntimeError if
    it does not start or an operation fails.
    """

    def __init__(self, namespace: str = "default", rough: int | None = SEED) -> None:
        """`rough`: see README; None for tests that measure, or compare single frames."""
        self._temporary = tempfile.TemporaryDirectory(prefix="atl-api-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self._errors = (self.folder / "stderr").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.apiserver", str(self.folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")
            self.close()
            raise RuntimeError(f"the API server did not start:\n{text}")
        where = json.loads(line)
        self.url: str = where["url"]
        self.ca: str = where["ca"]
        self._id: str = where["id"]
        self._control = where["control"].removeprefix("http://")
        self._connection: http.client.HTTPConnection | None = None
        #: A test may use several threads.
        self._lock = threading.Lock()
        self.kubeconfig = self.write_kubeconfig("kubeconfig", namespace=namespace)
        if rough is not None:
            self.call("settings", values={"rough": rough})
        if namespace != "default":
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and the remaining processes of its pods."""
        if getattr(self, "_connection", None) is not None:
            self._connection.close()  # type: ignore[union-attr]
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if hasattr(self, "_id"):
            processes.kill_marked(self._id)
        self._errors.close()
        self._temporary.cleanup()

    def errors(self) -> str:
        """The server's stderr, with tracebacks of its own errors."""
        return (self.folder / "stderr").read_text(errors="replace")

    def call(self, method: str, **values: Any) -> Any:
        """Call an operation of control.Control by name."""
        body = json.dumps(values)
        with self._lock:
            found = self._ask(method, body)
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']}")
        return found["result"]

    def _ask(self, method: str, body: str) -> dict[str, Any]:
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._control, timeout=60)
            try:
                self._connection.request("POST", f"/{method}", body, {"Content-Type": "application/json"})
                return cast("dict[str, Any]", json.loads(self._connection.getresponse().read()))
            except (http.client.HTTPException, ConnectionError):
                # The server closes connections after a long idle time.
                self._connection.close()
                self._connection = None
                if attempt == 2:
                    raise
        raise AssertionError("not reached")

    def write_kubeconfig(
        self,
        name: str,
        *,
        user: str = "admin",
        token: str | None = None,
        certificate: bool = False,
        namespace: str = "default",
        **cluster: Any,
    ) -> Path:
        """A kubeconfig file for a user, with a token or a client certificate.

        `cluster`: additional fields of the cluster (`tls-server-name`, ...).
        """
        identity = {"token": token or f"token-{user}"}
        if certificate:
            keys = ("client-certificate-data", "client-key-data")
            texts = self.call("client_certificate", user=user)
            identity = {key: base64.b64encode(text.encode()).decode() for key, text in zip(keys, texts, strict=True)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": self.ca} | cluster}],
            "users": [{"name": user, "user": identity}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": namespace}}],
        }
        path = self.folder / name
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    # objects

    def put(self, obj: Object, *, run: bool = False, fake: bool = False) -> Object:
        """Create or replace an object unchanged. `run` starts a pod's containers, `fake` only marks them as running."""
        return cast("Object", self.call("put", obj=obj, run=run, fake=fake))

    def put_many(self, objects: list[Object]) -> int:
        return cast("int", self.call("put_many", objects=objects))

    def scale(self, template: Object, count: int, *, start: int = 0, run: bool = False, fake: bool = True) -> list[str]:
        """Create pods from a template; `{i}` in its texts is the number."""
        return cast("list[str]", self.call("scale", template=template, count=count, start=start, run=run, fake=fake))

    def get(self, kind: str, name: str, namespace: str = "default", api_version: str = "v1") -> Object | None:
        return cast(
            "Object | None", self.call("get", kind=kind, name=name, namespace=namespace, api_version=api_version)
        )

    def patch(
        self, kind: str, name: str, patch: Object, namespace: str = "default", api_version: str = "v1"
    ) -> Object | None:
        """Merge into an object, including status, without checks."""
        return cast(
            "Object | None",
            self.call("patch", kind=kind, name=name, patch=patch, namespace=namespace, api_version=api_version),
        )

    def remove(self, kind: str, name: str, namespace: str = "default", api_version: str = "v1") -> bool:
        """Remove an object immediately; kills the processes of a pod."""
        return cast("bool", self.call("remove", kind=kind, name=name, namespace=namespace, api_version=api_version))

    def delete(
        self, kind: str, name: str, namespace: str = "default", api_version: str = "v1", grace: int = 30
    ) -> bool:
        """Delete like a DELETE with background propagation."""
        return cast(
            "bool", self.call("delete", kind=kind, name=name, namespace=namespace, api_version=api_version, grace=grace)
        )

    # pods

    def processes(self, pod: str, namespace: str = "default") -> list[Object]:
        """Live processes of a pod: pid, parent, group, state, command."""
        return cast("list[Object]", self.call("processes", pod=pod, namespace=namespace))

    def kill(self, pod: str, namespace: str = "default", number: int = signal.SIGKILL, container: str = "") -> None:
        """Send a signal to the first process of the pod's containers."""
        self.call("kill", pod=pod, namespace=namespace, signal=int(number), container=container)

    def log(self, pod: str, namespace: str = "default", **values: Any) -> None:
        """Set a container's log: `path` of a file of `TIMESTAMP TEXT` lines, or `lines`.

        Other values: `container`, `previous`, `ended` (see control.Control.log).
        """
        if "path" in values:
            values["path"] = str(values["path"])
        self.call("log", pod=pod, namespace=namespace, **values)

    def node(self, name: str, *, up: bool) -> None:
        """Stop a node's kubelet (its connections are cut) or restart it."""
        self.call("node", name=name, up=up)

    def wait_phase(self, pod: str, phase: str, namespace: str = "default", timeout: float = 100.0) -> Object:
        """Wait until a pod is in a phase. Raises RuntimeError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.get("Pod", pod, namespace)
            if found is not None and found.get("status", {}).get("phase") == phase:
                return found
            if time.monotonic() > deadline:
                raise RuntimeError(f"pod {pod} is not {phase}: {json.dumps((found or {}).get('status'))}")
            time.sleep(0.02)

    # the rest

    def fault(self, action: str, **values: Any) -> int:
        """Set a fault (see faults.Fault for actions and values); returns its number."""
        return cast("int", self.call("fault", values={"action": action, **values}))

    def faults(self) -> list[Object]:
        """All faults with their `hits`."""
        return cast("list[Object]", self.call("faults"))

    def clear_faults(self) -> None:
        self.call("clear_faults")

    def user(self, name: str, rules: list[Object] | None, groups: list[str] | None = None) -> str:
        """Create or change a user; returns the token."""
        return cast("str", self.call("user", name=name, rules=rules, groups=groups))

    def expire(self, token: str) -> None:
        """Answer this token with 401 from now on."""
        self.call("expire", token=token)

    def token(self, user: str, token: str) -> None:
        """An additional token of a user."""
        self.call("token", user=user, token=token)

    def requests(self, since: int = 0) -> list[Object]:
        """API requests so far: time, method, path, query (pairs), headers, body, user, status, fault."""
        return cast("list[Object]", self.call("requests", since=since))

    def forget_requests(self) -> None:
        self.call("forget_requests")

    def settings(self, **values: Any) -> None:
        """path, backoff, fake_stop, rotate, pid1, garbage, page: see control.Control.settings."""
        self.call("settings", values=values)

    def controller(self, *, on: bool = True, delay: float = 0.05) -> None:
        """Whether controllers run."""
        self.call("controller", on=on, delay=delay)

    def compact(self) -> None:
        self.call("compact")

    def serve(self, group: str, version: str, plural: str, kind: str, *, namespaced: bool = True) -> None:
        """Serve an additional resource."""
        self.call("serve", group=group, version=version, plural=plural, kind=kind, namespaced=namespaced)

    def broken(self, group: str, version: str) -> None:
        """An aggregated API group whose server is down: stale in discovery, 503 otherwise."""
        self.call("broken", group=group, version=version)

    def unserve(self, group: str) -> None:
        """Stop serving a group."""
        self.call("unserve", group=group)
