"""Execs on the test API server: its faults, a container without `sh`, and leftovers in the pod."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlctl.backends.base import Argv, Event, ExecRequest, Exited, FailedToStart, Lost, Output, Started
from atlctl.backends.guarded import execution as execution_module
from atlctl.backends.kubernetes import access
from atlctl.backends.kubernetes.client import Client
from atlctl.backends.kubernetes.execs import KubernetesExecutor
from atlctl.jobs.model import Job, State, Worker
from tests.apiserver.handle import Server
from tests.support.proc import wait_until

COMMAND = ("sh", "-c", "echo out; echo err >&2; sleep 0.4; exit 3")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as begun:
        yield begun


@pytest.fixture
def pod(server: Server, tmp_path: Path) -> Iterator[str]:
    name = tmp_path.name.replace("_", "-")[:50].strip("-")
    container: dict[str, Any] = {"name": "main", "command": ["/bin/sleep", "1000"]}
    if "no-sh" in name:
        container["env"] = [{"name": "PATH", "value": str(tmp_path)}]
        (tmp_path / "printf").symlink_to("/usr/bin/printf")
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [container]},
        },
        run=True,
    )
    server.wait_phase(name, "Running")
    yield name
    server.clear_faults()
    server.remove("Pod", name)


def run(server: Server, pod: str, argv: tuple[str, ...] = COMMAND, **request: Any) -> list[Event]:
    worker = Worker("worker-0", 0, State.RUNNING, pod=pod, container="main")
    job = Job("job", "Pod", "kubernetes", State.RUNNING, "uid", 1, (worker,), namespace="default")

    async def main() -> list[Event]:
        client = Client(access.load(str(server.kubeconfig), None, None))
        executor = KubernetesExecutor(client, job)
        try:
            return [event async for event in executor.run(worker, ExecRequest(Argv(argv), **request))]
        finally:
            await executor.aclose()
            await client.aclose()

    return asyncio.run(asyncio.wait_for(main(), 100))


@pytest.mark.parametrize(
    ("action", "values", "end"),
    [
        ("drop-after", {"seconds": 0.2}, Lost),
        ("drop-before-end", {}, Lost),
        ("drop-before-exit", {}, Exited(exit_code=3)),
        ("drop-inside-exit", {}, Exited(exit_code=3)),
        ("drop-after-exit", {}, Exited(exit_code=3)),
        ("stall-before-exit", {"seconds": 0}, Exited(exit_code=3, truncated=True)),
        ("split", {"bytes": 1}, Exited(exit_code=3)),
        ("slow", {"seconds": 0.05}, Exited(exit_code=3)),
        ("dialing", {}, Exited(exit_code=3)),
    ],
)
def test_faults(
    server: Server,
    pod: str,
    action: str,
    values: dict[str, Any],
    end: Event | type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution_module, "LOOK_SECONDS", 1.0)
    server.fault(action, kind="exec", times=1, **values)
    events = run(server, pod)
    assert isinstance(events[-1], end) if isinstance(end, type) else events[-1] == end
    assert events[0] == Started(True)
    output = [event for event in events if isinstance(event, Output)]
    assert b"".join(event.data for event in output if event.stream == "stdout") == b"out\n"
    assert b"".join(event.data for event in output if event.stream == "stderr") == b"err\n"
    assert wait_until(lambda: [one["command"] for one in server.processes(pod)] == ["/bin/sleep 1000"])


def test_no_sh(server: Server, pod: str) -> None:
    events = run(server, pod, ("printf", "%s|", "a b", ""))
    assert events == [Started(False), Output("stdout", b"a b||"), Exited(exit_code=0)]
    (end,) = run(server, pod, ("missing",))
    assert isinstance(end, FailedToStart)
    assert end.exit_code == 127


def test_a_pod_that_is_gone(server: Server, pod: str) -> None:
    server.remove("Pod", pod)
    (end,) = run(server, pod)
    assert isinstance(end, FailedToStart)
    assert end.exit_code == 255
    assert "not running" in end.reason
