"""Commands on a cluster: the choice of cluster, job and container, and their reports."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.support.cli import Result, run_cli

GROUP = "kubeflow.org/v1"
PREFIX = "training.kubeflow.org/"
FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(namespace="ml") as made:
        yield made


def start(server: Server, name: str, *scripts: str, run: bool = True, spec: dict[str, Any] | None = None) -> str:
    """Start a PyTorchJob whose workers run these scripts; returns its UID."""
    job = {
        "apiVersion": GROUP,
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": len(scripts)}}, **(spec or {})},
        "status": {"conditions": [{"type": "Running", "status": "True"}]},
    }
    uid: str = server.put(job)["metadata"]["uid"]
    for index, script in enumerate(scripts):
        labels = {"job-name": name, "operator-name": "pytorchjob-controller", "replica-type": "worker"}
        labels["replica-index"] = str(index)
        container = {"name": "pytorch", "command": ["sh", "-c", script]}
        side = {"name": "side", "command": ["sh", "-c", "echo from the side; sleep 4000"]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-worker-{index}",
                "namespace": "ml",
                "labels": {PREFIX + key: value for key, value in labels.items()},
                "ownerReferences": [
                    {"apiVersion": GROUP, "kind": "PyTorchJob", "name": name, "uid": uid, "controller": True}
                ],
            },
            "spec": {"restartPolicy": "Never", "containers": [container, side]},
        }
        server.put(pod, run=run, fake=not run)
    return uid


def cluster(server: Server, *words: str, **env: str) -> Result:
    return run_cli(*words, env={"KUBECONFIG": str(server.kubeconfig), **env})


def data(run: Result) -> Any:
    assert run.code == 0, run
    return json.loads(run.stdout)["data"]


def test_a_job_is_found_by_name_by_kind_and_by_pod(server: Server) -> None:
    uid = start(server, "found", "sleep 4000", run=False)
    for name in ("found", "pytorchjob/found", "pytorchjobs.kubeflow.org/found", "found-worker-0", "pod/found-worker-0"):
        shown = data(cluster(server, "ps", name, "-o", "json"))
        assert (shown["job"]["uid"], shown["workers"][0]["name"]) == (uid, "worker-0"), name
    run = cluster(server, "ps", "foundd")
    assert (run.code, run.stdout) == (3, b"")
    assert b"found" in run.stderr.splitlines()[1]


def test_the_namespace(server: Server) -> None:
    start(server, "spaced", "sleep 4000", run=False)
    assert b"spaced" in cluster(server, "jobs").stdout
    assert b"spaced" not in cluster(server, "-n", "other", "jobs").stdout
    everywhere = cluster(server, "jobs", "-A").stdout.decode().splitlines()
    assert any(line.split()[0] == "spaced" and line.split()[-1] == "ml" for line in everywhere)


def test_pods_of_a_selector(server: Server) -> None:
    start(server, "chosen", "sleep 4000", "sleep 4000", run=False)
    selector = f"{PREFIX}job-name=chosen"
    assert cluster(server, "ps", "-l", selector, "-o", "name").stdout == b"chosen-worker-0\nchosen-worker-1\n"
    assert data(cluster(server, "jobs", "-l", selector, "-o", "json"))["jobs"][0]["name"] == selector
    run = cluster(server, "ps", "chosen", "-l", selector)
    assert (run.code, run.stderr.split(b"\n")[0]) == (2, b"error: a job and a selector are given")


def test_containers(server: Server) -> None:
    start(server, "boxed", "echo from the trainer; sleep 4000")
    assert cluster(server, "logs", "boxed").stdout == b"from the trainer\n"
    assert cluster(server, "logs", "boxed", "-c", "side").stdout == b"from the side\n"
    run = cluster(server, "exec", "-j", "boxed", "-c", "nosuch", "true")
    assert (run.code, run.stderr.decode().splitlines()) == (
        3,
        ["error: no worker of boxed has a container nosuch", "hint: there are: pytorch, side"],
    )
    run = run_cli("logs", "-c", "side", "x", env={"ATLCTL_BACKEND": "local"})
    assert (run.code, b"--container" in run.stderr) == (2, True)


def test_a_worker_whose_trainer_has_failed_is_held(server: Server) -> None:
    start(server, "held", f"echo '{FAILED}'; sleep 4000", "echo step 1/10; sleep 4000")
    found = data(cluster(server, "ps", "held", "-o", "json"))
    assert [worker["state"] for worker in found["workers"]] == ["Held", "Running"]
    assert (found["job"]["state"], found["job"]["reason"]) == ("Held", "worker-0 held")
    run = cluster(server, "exec", "-j", "held", "--failed", "printenv", "HOSTNAME")
    assert (run.code, run.stdout) == (0, b"held-worker-0\n")


def test_a_gang_that_does_not_fit_is_told(server: Server) -> None:
    uid = start(server, "waits", spec={"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}})
    server.patch("PyTorchJob", "waits", {"status": {"conditions": []}}, "ml", GROUP)
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": "waits",
            "namespace": "ml",
            "ownerReferences": [{"apiVersion": GROUP, "kind": "PyTorchJob", "name": "waits", "uid": uid}],
        },
        "spec": {"minMember": 4, "queue": "gold"},
        "status": {
            "phase": "Inqueue",
            "conditions": [
                {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "2/4 tasks fit"}
            ],
        },
    }
    server.put(group)
    run = cluster(server, "ps", "waits", "-o", "json")
    job = data(run)["job"]
    assert (job["state"], job["reason"], job["message"], job["queue"]) == (
        "Queued",
        "NotEnoughResources",
        "2/4 tasks fit",
        "gold",
    )
    run = cluster(server, "ps", "waits")
    assert b"job waits is Queued (NotEnoughResources): 2/4 tasks fit" in run.stderr
    assert run.stdout.count(b"missing") == 2


def test_events_of_a_job_and_its_pods(server: Server) -> None:
    start(server, "eventful", "sleep 4000", run=False)
    pod = server.get("Pod", "eventful-worker-0", "ml")
    assert pod is not None
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e1", "namespace": "ml"},
            "involvedObject": {"kind": "Pod", "name": "eventful-worker-0", "uid": pod["metadata"]["uid"]},
            "reason": "FailedScheduling",
            "message": "0/2 nodes are available\x1b[31m",
            "type": "Warning",
            "count": 3,
            "lastTimestamp": "2026-11-20T17:45:00Z",
        }
    )
    (event,) = data(cluster(server, "events", "eventful", "-o", "json"))["events"]
    assert (event["worker"], event["reason"], event["count"]) == ("worker-0", "FailedScheduling", 3)
    shown = cluster(server, "events", "eventful").stdout
    assert b"FailedScheduling" in shown
    assert b"\x1b" not in shown
    run = run_cli("events", "x", env={"ATLCTL_BACKEND": "local"})
    assert (run.code, b"keeps no events" in run.stderr) == (2, True)


def test_inside_a_pod_the_job_needs_no_name(server: Server) -> None:
    start(server, "mine", "sleep 4000", "sleep 4000", run=False)
    run = cluster(server, "ps", "-o", "name", HOSTNAME="mine-worker-1", KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert (run.code, run.stdout) == (0, b"worker-0\nworker-1\n")
    assert b"note: job mine, which this worker belongs to" in run.stderr


def test_a_local_job_of_that_name_is_meant_and_said(server: Server) -> None:
    start(server, "twice", "sleep 4000", run=False)
    assert run_cli("local", "run", "--name", "twice", "--workers", "1", "--detach", "--", "true").code == 0
    run = cluster(server, "ps", "twice", "-o", "json")
    assert data(run)["job"]["backend"] == "local"
    assert b"--backend kubernetes" in run.stderr
    assert data(cluster(server, "ps", "twice", "--backend", "kubernetes", "-o", "json"))["job"]["kind"] == "PyTorchJob"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--backend", "local", "-n", "ml", "jobs"), 2, "'--namespace' does not apply to the backend local"),
        (("--context", "nowhere", "jobs"), 2, "nowhere"),
        (("--kubeconfig", "/nonexistent", "jobs"), 2, "kubeconfig /nonexistent not found"),
        (("--backend", "local", "jobs", "-A"), 2, "'--all-namespaces' does not apply"),
    ],
)
def test_options_that_do_not_fit(server: Server, words: tuple[str, ...], code: int, says: str) -> None:
    run = cluster(server, *words)
    assert (run.code, run.stdout) == (code, b"")
    assert says in run.stderr.decode().splitlines()[0]


def test_who_is_not_known_and_who_may_not(server: Server) -> None:
    config = server.write_kubeconfig("bad", token="canary-0815", namespace="ml")
    run = run_cli("jobs", "-vv", "--debug", env={"KUBECONFIG": str(config)})
    assert run.code == 4
    assert b"401" in run.stderr
    assert b"canary" not in run.stdout + run.stderr
    server.user("eve", [])
    config = server.write_kubeconfig("eve", user="eve", namespace="ml")
    run = run_cli("ps", "x", env={"KUBECONFIG": str(config)})
    assert run.code == 4
    assert b"not allowed" in run.stderr


def test_a_server_that_is_gone(tmp_path: Path) -> None:
    with Server() as server:
        config = tmp_path / "config"
        config.write_text(server.kubeconfig.read_text().replace(server.ca, str(tmp_path / "ca")))
        (tmp_path / "ca").write_bytes(Path(server.ca).read_bytes())
    run = run_cli("jobs", env={"KUBECONFIG": str(config)})
    assert run.code == 255
    assert b"cannot be reached" in run.stderr


def test_errors_reads_a_container_before_its_restart(server: Server) -> None:
    """The failure is in the log of the previous container instance."""
    start(server, "again", "sleep 4000", run=False)
    stamp = "2026-11-20T17:45:0{}.000000000Z "
    trace = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/job/train.py", line 20, in main',
        "[rank0]:     step()",
        "[rank0]: ValueError: bad magic in shard 3",
    ]
    server.log("again-worker-0", "ml", lines=[stamp.format(1) + line for line in trace], previous=True)
    server.log("again-worker-0", "ml", lines=[stamp.format(5) + "waiting for the others"])
    pod = server.get("Pod", "again-worker-0", "ml")
    assert pod is not None
    states = pod["status"]["containerStatuses"]
    for state in states:
        state["restartCount"] = 1
    server.patch("Pod", "again-worker-0", {"status": {"containerStatuses": states}}, "ml")
    found = data(cluster(server, "errors", "again", "-o", "json"))
    (cause,) = found["root_causes"] + found["candidates"]
    assert (cause["worker"], cause["rank"], cause["message"]) == ("worker-0", 0, "ValueError: bad magic in shard 3")


def test_a_plugin_gives_the_token(server: Server, tmp_path: Path) -> None:
    plugin = tmp_path / "login"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "token-admin"},
    }
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    plugin.chmod(0o755)
    authority = base64.b64encode(Path(server.ca).read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority-data": authority}}],
        "users": [{"name": "u", "user": {"exec": {"apiVersion": credential["apiVersion"], "command": str(plugin)}}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    before = set(os.listdir(os.environ["TMPDIR"]))
    assert run_cli("jobs", env={"KUBECONFIG": str(path)}).code == 0
    assert set(os.listdir(os.environ["TMPDIR"])) == before
    plugin.write_text("#!/bin/sh\necho 'log in first' >&2\nexit 1\n")
    run = run_cli("jobs", env={"KUBECONFIG": str(path)})
    assert (run.code, b"no credentials" in run.stderr) == (4, True)


def test_the_list_of_jobs_imports_no_model_of_the_package() -> None:
    script = (
        "import sys; import atlctl.backends.kubernetes.backend; "
        "print([n for n in sys.modules if n.startswith(('kubernetes.client.models', 'torch', 'asyncssh'))])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_namespace_that_does_not_exist_is_named(server: Server) -> None:
    """A real server answers every list request for it with 200 and an empty list."""
    env = {"KUBECONFIG": str(server.kubeconfig)}
    for words in (("jobs",), ("ps", "train"), ("ps",)):
        run = run_cli(*words, "-n", "mll", env=env)
        assert (run.stdout, run.code) == (b"", 3)
        assert run.stderr == b"error: namespace mll does not exist\nhint: name one of yours: -n NAMESPACE\n"
    assert run_cli("jobs", "-n", "ml", env=env).code == 0


def test_words_in_a_worker_without_rights_name_doctor_and_not_kubectl(server: Server) -> None:
    server.user("nobody", [])
    env = {"KUBECONFIG": str(server.write_kubeconfig("nobody", user="nobody", namespace="ml"))}
    worker = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "HOSTNAME": "bert-worker-0"}
    ranks = {"MASTER_ADDR": "bert-master-0", "WORLD_SIZE": "2", "RANK": "1"}
    alone = run_cli("ps", env={**env, **worker})
    assert alone.code == 4
    assert alone.stderr.endswith(b"\nhint: see your permissions: atlctl doctor\n")
    among = run_cli("ps", env={**env, **worker, **ranks})
    assert among.code == 4
    hint = among.stderr.splitlines()[-1]
    assert hint.startswith(
        b"hint: the workers can be reached with --backend ssh (2 hosts by the pattern of their names: "
    )
    assert hint.endswith(b"; see your permissions: atlctl doctor")
    named = run_cli("ps", "js", env=env)
    assert named.code == 4
    assert named.stderr.startswith(b"error: not allowed to look for job js in namespace ml: ")
    assert b"kubectl" not in alone.stderr + among.stderr + named.stderr
