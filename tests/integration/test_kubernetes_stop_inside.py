"""`stop --keep`, and `stop` run inside a worker of the same job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlctl.recording.save import mounts, shared_folder
from tests.apiserver.handle import Server
from tests.integration.stopping import Cluster
from tests.support import proc
from tests.unit.kubernetes.test_endtraining import UNSHARE, can_unshare

#: In a pod of the test server, a command sees all processes of this machine. This `sh` enters the pod's namespaces.
ENTER = """#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec nsenter --target "$(cat {folder}/pid-$HOSTNAME)" --pid --mount /bin/sh "$@"
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Server() as own:
        own.controller(on=True)
        yield Cluster(own)


def first_in(cluster: Cluster, name: str) -> int | None:
    """The PID on this machine of the first process in a pod's namespace."""
    for one in cluster.server.processes(name):
        try:
            inside = Path(f"/proc/{one['pid']}/status").read_text().split("NSpid:")[1].splitlines()[0].split()
        except (OSError, IndexError):
            continue
        if len(inside) > 1 and inside[-1] == "1":
            return int(one["pid"])
    return None


def start(cluster: Cluster, folder: Path, script: str) -> list[str]:
    """Start two pods whose first process is a shell with that script, in a new PID namespace; returns their names."""
    (folder / "sh").write_text(ENTER.format(folder=folder))
    (folder / "sh").chmod(0o755)
    container = {
        "command": [shutil.which("unshare") or "", *UNSHARE[1:], "/bin/sh", "-c", script],
        "env": [{"name": "PATH", "value": f"{folder}:{os.environ['PATH']}"}],
    }
    cluster.pytorchjob("dev", run=True, container=container)
    pods = [f"dev-worker-{index}" for index in range(2)]
    for name in pods:
        assert proc.wait_until(lambda name=name: first_in(cluster, name) is not None)  # type: ignore[misc]
        (folder / f"pid-{name}").write_text(str(first_in(cluster, name)))
    return pods


namespaces = pytest.mark.skipif(os.geteuid() != 0 or not can_unshare(), reason="only root may enter a PID namespace")


@namespaces
def test_a_shell_loop_that_may_be_the_training_is_not_told_as_ended(cluster: Cluster, tmp_path: Path) -> None:
    start(cluster, tmp_path, "while :; do echo step; sleep 0.2; done")
    run = cluster.cli("stop", "dev", "--keep", "--yes", "--no-save")
    assert (run.stdout, run.code) == (b"NOT stopped: worker-[0-1] (2)\n", 1)
    assert (
        b"  worker-0: no launcher or Python process was found, and ending the first process (sh) would end"
        in run.stderr
    )
    assert all(cluster.pods("dev", 2))


@namespaces
def test_keep_pods_ends_the_training_and_keeps_the_pods(cluster: Cluster, tmp_path: Path) -> None:
    train = f"export TORCHELASTIC_RUN_ID=1; {sys.executable} -c 'import time; time.sleep(4000)'"
    pods = start(cluster, tmp_path, f"({train}) & sleep 4000")

    def trains() -> int:
        found = [one["command"] for name in pods for one in cluster.server.processes(name)]
        return sum(command.startswith(f"{sys.executable} -c import time") for command in found)

    assert proc.wait_until(lambda: trains() == 2)
    since = len(cluster.server.requests())
    run = cluster.cli("stop", "dev", "--keep", "--yes", "--no-save", "--grace", "5")
    assert run.code == 0, run
    assert run.stdout == b"ended after SIGTERM: worker-[0-1] (2, 2 processes)\n"
    assert b"risk: if a container ends with its training" in run.stderr
    assert proc.wait_until(lambda: trains() == 0)
    assert all(cluster.pods("dev", 2))
    assert [write for write in cluster.writes(since) if "/exec" not in write["path"]] == []
    again = cluster.cli("stop", "dev", "--keep", "--yes", "--no-save", "-w", "1")
    assert again.stdout == b"had ended already: worker-1 (1)\n"


def inside(cluster: Cluster, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run `atlctl` in a mount namespace that looks like worker-0 with an overlay file system."""
    pod = cluster.server.get("Pod", "own-worker-0")
    assert pod is not None
    uid = pod["metadata"]["uid"]
    folder = tmp_path / "pods" / uid / "containers"
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "pods" / uid / "etc-hosts").write_text("")
    setup = f'mount --bind {tmp_path}/pods/{uid}/etc-hosts /etc/hosts && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", setup, "sh", sys.executable, "-m", "atlctl", *words]
    env = {**os.environ, "KUBECONFIG": str(cluster.server.kubeconfig), "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    return subprocess.run(argv, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


@pytest.mark.skipif(os.geteuid() != 0 or not can_unshare(), reason="only root may mount")
def test_inside_a_worker_the_evidence_must_go_where_it_outlives_the_pod(cluster: Cluster, tmp_path: Path) -> None:
    # The mounts must show the kubelet's folder of the pod: /var/lib/kubelet/pods/UID/etc-hosts.
    cluster.pytorchjob("own", metadata={"uid": "5c5d4e1c-1111-4222-8333-444455556666"}, workers=1)
    if shared_folder(mounts(), str(Path.cwd())) is not None:
        pytest.skip("a shared file system is mounted here: the evidence would go there")
    refused = inside(cluster, tmp_path, "stop", "own", "--yes")
    assert refused.returncode == 2, refused
    assert b"error: nothing was stopped: this runs in one of these workers, and no shared file system" in refused.stderr
    planned = inside(cluster, tmp_path, "stop", "own", "--dry-run")
    assert planned.returncode == 2, planned
    plan, error = planned.stderr.split(b"error: nothing was stopped", 1)
    assert plan.startswith(b"stops job own (PyTorchJob")
    assert b"\n  how: spec.runPolicy.suspend of the PyTorchJob is set to true\n" in plan
    assert b"--no-save" in error
    assert all(cluster.pods("own", 1))
    passing = inside(cluster, tmp_path, "stop", "own", "--yes", "--out", "/dev/shm/kept")
    assert (passing.returncode, b"which is deleted with this pod" in passing.stderr) == (2, True)
    dry = inside(cluster, tmp_path, "stop", "own", "--dry-run", "--no-save")
    assert b"warning: the stop ends this terminal, too: it runs in one of these workers\n" in dry.stderr
    assert dry.stderr.endswith(b"note: dry run: nothing was stopped\n")
    done = inside(cluster, tmp_path, "stop", "own", "--yes", "--no-save")
    assert done.returncode == 0, done.stderr
    assert cluster.pods("own", 1) == [None]
