"""Standard kubectl with the test API server: it behaves as with a real cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.apiserver.handle import Server
from tests.support.pace import within

#: Read during import: a test's environment has no KUBE variables.
KUBECTL = os.environ.get("KUBECTL") or shutil.which("kubectl")


def _version(program: str) -> tuple[int, int]:
    found = subprocess.run([program, "version", "--client", "-o", "json"], capture_output=True, text=True, check=False)
    try:
        version = json.loads(found.stdout)["clientVersion"]
        return int(version["major"]), int(version["minor"].rstrip("+"))
    except (ValueError, KeyError):
        return (0, 0)


pytestmark = pytest.mark.skipif(
    KUBECTL is None or _version(KUBECTL) < (1, 31), reason="no kubectl 1.31 or newer: set KUBECTL"
)

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "worker", "namespace": "default", "labels": {"job": "x"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "command": ["sh", "-c", "echo one; echo two >&2; exec sleep 100"]}],
    },
}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(rough=None) as found:
        found.put(POD, run=True)
        found.wait_phase("worker", "Running")
        yield found
        assert found.errors() == ""


def kubectl(server: Server, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    assert KUBECTL is not None
    command = [KUBECTL, "--kubeconfig", str(server.kubeconfig), *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=40, check=False)


def test_get(server: Server) -> None:
    table = kubectl(server, "get", "pods")
    assert table.stdout.splitlines()[1].split()[:4] == ["worker", "1/1", "Running", "0"]
    listed = json.loads(kubectl(server, "get", "pods", "-l", "job=x", "-o", "json").stdout)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["worker"]
    assert kubectl(server, "get", "pods", "-l", "job=y").stderr.startswith("No resources found")
    missing = kubectl(server, "get", "pod", "nobody")
    assert missing.returncode == 1
    assert 'Error from server (NotFound): pods "nobody" not found' in missing.stderr
    assert "trainjobs" in kubectl(server, "api-resources").stdout


def test_exec(server: Server) -> None:
    done = kubectl(server, "exec", "worker", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "err\n" in done.stderr
    assert "command terminated with exit code 7" in done.stderr
    assert kubectl(server, "exec", "-i", "worker", "--", "cat", stdin="hello\n" * 1000).stdout == "hello\n" * 1000
    missing = kubectl(server, "exec", "worker", "--", "no-such-program")
    assert missing.returncode == 1
    assert "executable file not found in $PATH" in missing.stderr
    nobody = kubectl(server, "exec", "nobody", "--", "true")
    assert 'pods "nobody" not found' in nobody.stderr
    protocols = {r["headers"].get("sec-websocket-protocol") for r in server.requests() if r["path"].endswith("/exec")}
    assert protocols == {"v5.channel.k8s.io"}


def test_logs(server: Server) -> None:
    # The streams are two pipes, so their order varies.
    assert sorted(kubectl(server, "logs", "worker").stdout.splitlines()) == ["one", "two"]
    stamped = kubectl(server, "logs", "worker", "--timestamps", "--tail=1").stdout
    assert stamped.rstrip().endswith(("one", "two"))
    assert stamped.startswith("20")
    previous = kubectl(server, "logs", "worker", "--previous")
    assert 'previous terminated container "main" in pod "worker" not found' in previous.stderr


def test_logs_follow_until_the_container_ends(server: Server) -> None:
    assert KUBECTL is not None
    command = [KUBECTL, "--kubeconfig", str(server.kubeconfig), "logs", "-f", "worker"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        first = {follower.stdout.readline(), follower.stdout.readline()}
        assert first == {"one\n", "two\n"}
        server.kill("worker")
        assert follower.stdout.read() == ""
        assert follower.wait(30) == 0
    ended = server.wait_phase("worker", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_patch(server: Server) -> None:
    change = json.dumps({"metadata": {"labels": {"color": "red"}}})
    dry = kubectl(server, "patch", "pod", "worker", "--type=merge", "--dry-run=server", "-p", change)
    assert dry.returncode == 0
    found = server.get("Pod", "worker")
    assert found is not None
    assert "color" not in found["metadata"]["labels"]
    assert kubectl(server, "patch", "pod", "worker", "--type=merge", "-p", change).returncode == 0
    found = server.get("Pod", "worker")
    assert found is not None
    assert found["metadata"]["labels"] == {"job": "x", "color": "red"}


def test_delete(server: Server) -> None:
    assert server.processes("worker")
    started = time.monotonic()
    dry = kubectl(server, "delete", "pod", "worker", "--dry-run=server")
    assert "deleted (server dry run)" in dry.stdout
    assert server.get("Pod", "worker") is not None
    gone = kubectl(server, "delete", "pod", "worker", "--grace-period=5")
    assert 'pod "worker" deleted' in gone.stdout
    assert within(time.monotonic() - started, 15)
    assert server.get("Pod", "worker") is None
    assert kubectl(server, "delete", "pod", "worker").returncode == 1


def test_watch(server: Server) -> None:
    assert KUBECTL is not None
    command = [KUBECTL, "--kubeconfig", str(server.kubeconfig), "get", "pods", "-w", "-o", "name"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "pod/worker\n"
        server.patch("Pod", "worker", {"metadata": {"labels": {"seen": "yes"}}})
        assert watcher.stdout.readline() == "pod/worker\n"
        watcher.terminate()
        watcher.stdout.read()


def test_a_client_certificate(server: Server) -> None:
    assert KUBECTL is not None
    server.user("bob", [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}])
    config = server.write_kubeconfig("bob", user="bob", certificate=True)
    command = [KUBECTL, "--kubeconfig", str(config), "get", "pods", "-o", "name"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert found.stdout == "pod/worker\n", found.stderr
    assert server.requests()[-1]["user"] == "bob"


def test_rights(server: Server) -> None:
    assert KUBECTL is not None
    server.user("eve", [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}])
    config = server.write_kubeconfig("eve", user="eve")
    command = [KUBECTL, "--kubeconfig", str(config), "delete", "pod", "worker"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert 'User "eve" cannot delete resource "pods" in API group ""' in refused.stderr
