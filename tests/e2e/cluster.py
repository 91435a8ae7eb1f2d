"""The cluster for tests: `atlctl` in a separate namespace, and access to its objects through the keeper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote

import pytest

from tests.e2e.settings import SETTINGS, SOON, token
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.cli import Result, popen_cli, run_cli

Object = dict[str, Any]
REPOSITORY = Path(__file__).parents[2]
#: Default seconds for a command line.
COMMAND = 120.0
#: Seconds for the keeper to delete the namespace.
END = 300.0


class ServerError(AssertionError):
    """The API server refused a test's request."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Cluster:
    """A context manager: a namespace that is deleted at the end, whatever the tests do.

    `kinds`: the server's resources, `plural.group` -> version.
    """

    def __init__(self) -> None:
        self.namespace = f"atlctl-e2e-{token()}"
        self.kinds: dict[str, str] = {}
        #: State of the cluster when a test failed, before its job was deleted.
        self.evidence = ""
        self._asked = 0
        environ = {name: value for name, value in os.environ.items() if name != proc.MARK}
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.keeper", self.namespace],
            cwd=REPOSITORY,
            env={**environ, **self.environ(), "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests: the keeper then sees their end, and cleans up
        )

    def __enter__(self) -> Self:
        try:
            self.kinds = cast("dict[str, str]", self._read()["kinds"])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.close() != 0:
            pytest.fail(f"namespace {self.namespace} was left behind: see the keeper's words on stderr", pytrace=False)

    def close(self) -> int:
        """Delete the namespace; returns the keeper's exit code."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.stdout.close()
        return self._keeper.wait(END)

    @staticmethod
    def environ() -> dict[str, str]:
        """The user's variables that a client needs. HOME is the user's, because plugins store credentials there."""
        return {**SETTINGS.environ, "KUBECONFIG": SETTINGS.kubeconfig}

    # objects

    def ask(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Object | None = None) -> Any:
        """Send a request through the keeper. LIST returns the items. Raises ServerError."""
        assert self._keeper.stdin is not None
        self._asked += 1
        words = {"id": self._asked, "method": method, "path": path, "query": query or {}, "body": body}
        self._keeper.stdin.write(json.dumps(words).encode() + b"\n")
        self._keeper.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._keeper.stdout is not None
        answer: Object = {}
        while answer.get("id") != self._asked:  # Ctrl-C may have left an unread answer
            line = self._keeper.stdout.readline()
            if not line:
                raise ServerError("the keeper has ended: see its words on stderr", 0)
            answer = json.loads(line)
        if "error" in answer:
            raise ServerError(answer["error"], answer["status"])
        return answer["data"]

    def path(self, resource: str, name: str = "") -> str:
        """The path of a `plural.group` in this namespace. The version is that of the group's job kinds, else v1."""
        plural, _, group = resource.partition(".")
        same = [version for name, version in self.kinds.items() if group and name.partition(".")[2] == group]
        version = self.kinds.get(resource) or (same[0] if same else "v1")
        head = f"/apis/{group}/{version}" if group else "/api/v1"
        return f"{head}/namespaces/{self.namespace}/{plural}" + (f"/{quote(name)}" if name else "")

    def create(self, resource: str, obj: Object) -> Object:
        """Create an object; retries while an admission webhook is not reachable."""
        deadline = time.monotonic() + SOON
        while True:
            try:
                return cast("Object", self.ask("POST", self.path(resource), None, obj))
            except ServerError as error:
                if error.status != 500 or time.monotonic() > deadline:
                    raise
            time.sleep(2)

    def get(self, resource: str, name: str) -> Object | None:
        try:
            return cast("Object", self.ask("GET", self.path(resource, name)))
        except ServerError as error:
            if error.status == 404:
                return None
            raise

    def delete(self, resource: str, name: str) -> None:
        """Delete with background propagation. Ignores objects that are gone."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            self.ask("DELETE", self.path(resource, name), None, body)
        except ServerError as error:
            if error.status != 404:
                raise

    def list(self, resource: str, selector: str = "") -> list[Object]:
        query = {"labelSelector": selector} if selector else {}
        return cast("list[Object]", self.ask("LIST", self.path(resource), query))

    # atlctl

    def cli(
        self, *words: str, env: Mapping[str, str | None] | None = None, timeout: float = COMMAND, **more: Any
    ) -> Result:
        """Run `atlctl` in the suite's namespace."""
        return run_cli("-n", self.namespace, *words, env={**self.environ(), **(env or {})}, timeout=timeout, **more)

    def data(self, *words: str) -> Any:
        """`data` of a command's JSON document; fails if the command fails."""
        run = self.cli(*words, "-o", "json")
        assert run.code == 0, run
        return json.loads(run.stdout)["data"]

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `atlctl` in the background, killed at the end. Its input stays open; its output is in the files `out` and
        `err`."""
        with Path("out").open("wb") as out, Path("err").open("wb") as err:
            streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": out, "stderr": err}
            with popen_cli("-n", self.namespace, *words, env=self.environ(), **streams) as process:
                try:
                    yield process
                finally:
                    process.kill()

    def terminal(self, *words: str, **options: Any) -> Terminal:
        return Terminal("-n", self.namespace, *words, env=self.environ(), **options)


def until(what: str, probe: Callable[[], Any], seconds: float = SOON, pause: float = 1.0) -> Any:
    """Poll `probe` until its answer is true, and return it. Fails after `seconds`, with the last answer."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := probe():
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s: {what}; the last answer was {answer!r}")
        time.sleep(pause)
