"""Objects of the suite: small, for any cluster, in each job kind."""

from __future__ import annotations

from typing import Any

from tests.e2e.settings import SETTINGS

Object = dict[str, Any]

#: Seconds after which the platform ends the suite's pods by itself, if all else fails.
LIFETIME = 3600
#: An idle worker that prints a line each second. Relative paths begin in /tmp, also in commands.
IDLE = 'echo "begin $HOSTNAME"; i=0; while :; do echo "step $i $HOSTNAME"; i=$((i + 1)); sleep 1; done'
#: Ends when a test requests it with a file: `echo 3 > end` is exit code 3. The pause lets the test's command end first.
ENDING = 'echo "begin $HOSTNAME"; until [ -s end ]; do sleep 0.2; done; sleep 1; echo "leaving $HOSTNAME"; '
ENDING += 'code=$(cat end); rm end; exit "$code"'


def container(script: str, name: str = "main", *, torch: bool = False, **more: Any) -> Object:
    """A container that runs `script` in sh."""
    memory = "256Mi" if torch else "16Mi"
    return {
        "name": name,
        "image": SETTINGS.torch_image if torch else SETTINGS.image,
        "imagePullPolicy": SETTINGS.pull_policy,
        "command": ["sh", "-c", script],
        "workingDir": "/tmp",
        "resources": {"requests": {"cpu": "10m", "memory": memory}},
        **more,
    }


def spec(one: Object, **more: Any) -> Object:
    """A pod's spec with one container."""
    own: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "activeDeadlineSeconds": LIFETIME,
        "automountServiceAccountToken": False,
        "containers": [one],
    }
    return {name: value for name, value in (own | more).items() if value is not None}


def pod(name: str, labels: Object, pod_spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": pod_spec}


def batch_spec(pod_spec: Object, workers: int, *, indexed: bool = True) -> Object:
    mode = {"completionMode": "Indexed"} if indexed else {}
    template = {"spec": pod_spec}
    return {"parallelism": workers, "completions": workers, "backoffLimit": 0, "template": template, **mode}


def batch_job(name: str, pod_spec: Object, workers: int, *, indexed: bool = True) -> Object:
    job_spec = batch_spec(pod_spec, workers, indexed=indexed)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job_spec}


def jobset(name: str, version: str, pod_spec: Object, roles: dict[str, int]) -> Object:
    """A replicated Job for each role."""
    jobs = [
        {"name": role, "replicas": 1, "template": {"spec": batch_spec(pod_spec, count)}}
        for role, count in roles.items()
    ]
    spec_ = {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": 0}}
    return {"apiVersion": f"jobset.x-k8s.io/{version}", "kind": "JobSet", "metadata": {"name": name}, "spec": spec_}


def training_runtime(name: str, version: str, pod_spec: Object) -> Object:
    """A runtime of this namespace whose only role is the trainer, like Trainer's own runtimes."""
    role = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": pod_spec}},
        },
    }
    policy = {"numNodes": 1, "torch": {"numProcPerNode": 1}}
    return {
        "apiVersion": f"trainer.kubeflow.org/{version}",
        "kind": "TrainingRuntime",
        "metadata": {"name": name},
        "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [role]}}},
    }


def trainjob(name: str, version: str, runtime: str, workers: int) -> Object:
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": runtime}
    return {
        "apiVersion": f"trainer.kubeflow.org/{version}",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": reference, "trainer": {"numNodes": workers}},
    }


def pytorchjob(name: str, version: str, pod_spec: Object, roles: dict[str, int]) -> Object:
    """`roles`: Master and Worker with their replicas."""
    # The operator takes the policy from the replica, and refuses a template with another one.
    pod_spec = {key: value for key, value in pod_spec.items() if key != "restartPolicy"}
    replicas = {
        role: {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod_spec}}
        for role, count in roles.items()
    }
    return {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "pytorchReplicaSpecs": replicas},
    }


def statefulset(name: str, pod_spec: Object, workers: int, *, ordered: bool = False) -> Object:
    """Pods restart; a StatefulSet allows no deadline for them. `ordered`: each waits until the previous one is
    ready."""
    pod_spec = pod_spec | {"restartPolicy": "Always"}
    pod_spec.pop("activeDeadlineSeconds", None)
    labels = {"atlctl-e2e-set": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": workers,
            "podManagementPolicy": "OrderedReady" if ordered else "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec},
        },
    }
