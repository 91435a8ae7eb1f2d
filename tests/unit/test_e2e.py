"""Without a cluster, the end-to-end suite is skipped with the cause; its namespace is deleted however the tests end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.handle import Server
from tests.e2e.settings import LABEL, read
from tests.support import proc

REPOSITORY = Path(__file__).parents[2]
NAMESPACE = "atlctl-e2e-unit"


@pytest.mark.parametrize(
    ("env", "cause"),
    [
        ({}, "no cluster for tests/e2e: KUBECONFIG is not set"),
        ({"KUBECONFIG": "config"}, "no image for tests/e2e: ATLCTL_E2E_IMAGE is not set"),
    ],
)
def test_without_a_cluster_every_test_is_skipped(env: dict[str, str], cause: str) -> None:
    """The cause is not a program of `make test-deps`, so continuous integration does not fail because of it."""
    environ = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | env
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/e2e", "-q"],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run
    assert " passed" not in run.stdout
    assert run.stdout.splitlines()[-1].startswith(f"skips by cause: {cause} ")
    assert "needs " not in run.stdout.splitlines()[-1]


def test_settings() -> None:
    found = read({"KUBECONFIG": "one:/two:~/three", "HOME": "/home/user", "https_proxy": "p", "RANK": "3"}, "/here")
    assert found.kubeconfig == f"/here/one:/two:{Path('~/three').expanduser()}"
    assert (found.missing, found.pull_policy) == ("no image for tests/e2e: ATLCTL_E2E_IMAGE is not set", "IfNotPresent")
    assert dict(found.environ) == {"HOME": "/home/user", "https_proxy": "p"}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as own:
        own.serve("", "v1", "serviceaccounts", "ServiceAccount")
        account = {"apiVersion": "v1", "kind": "ServiceAccount"}
        own.put({**account, "metadata": {"name": "default", "namespace": NAMESPACE}})
        yield own


@pytest.mark.parametrize("end", ["input", "SIGINT", "SIGTERM", "SIGHUP"])
def test_the_namespace_goes_with_the_tests(server: Server, end: str) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.keeper", NAMESPACE],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(server.kubeconfig)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert "jobs.batch" in json.loads(keeper.stdout.readline())["data"]["kinds"]
        made = server.get("Namespace", NAMESPACE, "")
        assert made is not None
        assert made["metadata"]["labels"][LABEL] == "true"
        keeper.stdin.write(b'{"id": 1, "method": "GET", "path": "/api/v1/namespaces/nowhere"}\n{"half a line')
        keeper.stdin.flush()
        answer = json.loads(keeper.stdout.readline())
        assert (answer["id"], answer["status"]) == (1, 404)
        if end == "input":
            keeper.stdin.close()
        else:
            keeper.send_signal(signal.Signals[end])
        assert keeper.wait(20) == 0
    assert server.get("Namespace", NAMESPACE, "") is None
    assert not proc.alive(keeper.pid)
