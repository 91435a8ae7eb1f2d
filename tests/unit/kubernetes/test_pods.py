from __future__ import annotations

from typing import Any

import pytest

from atlctl.backends.kubernetes.pods import Container, condition, trainer_container, worker_of
from atlctl.jobs.model import State
from tests.support.recordings import load, names, needs_recordings
from tests.unit.kubernetes.fakecluster import START, failed, pod
from tests.unit.kubernetes.fakecluster import condition as cond

Object = dict[str, Any]


def seen(made: Object, container: str = "main") -> tuple[State, str]:
    found = condition(made, container)
    return found.state, found.reason


def waiting(reason: str, **parts: Any) -> Object:
    return pod("p", None, {"waiting": {"reason": reason}}, **parts)


def ended(code: int, reason: str, **parts: Any) -> Object:
    return pod("p", None, {"terminated": {"exitCode": code, "reason": reason}}, **parts)


TAINTED = {"conditions": [cond("DisruptionTarget", reason="DeletionByTaintManager")]}
REFUSED = {"reason": "OutOfnvidia.com/gpu", "containerStatuses": None}
LATE = {"reason": "DeadlineExceeded"}
OTHER_OOM = {"name": "ship", "state": {"terminated": {"exitCode": 1, "reason": "OOMKilled"}}}


@pytest.mark.parametrize(
    ("made", "state", "reason"),
    [
        (pod("p"), State.RUNNING, ""),
        (failed("p"), State.FAILED, "Error"),
        (failed("p", code=137, reason="OOMKilled"), State.FAILED, "OOMKilled"),
        (failed("p", code=1, reason="OOMKilled"), State.FAILED, "OOMKilled"),
        (ended(0, "OOMKilled", phase="Succeeded"), State.SUCCEEDED, "OOMKilled"),
        (ended(0, "Completed", phase="Succeeded"), State.SUCCEEDED, "Completed"),
        (ended(0, "Completed", phase="Failed", status=LATE), State.FAILED, "DeadlineExceeded"),
        (failed("p", code=137, status={"reason": "Evicted"}), State.FAILED, "Evicted"),
        (pod("p", phase="Failed", status=REFUSED), State.FAILED, "OutOfnvidia.com/gpu"),
        (failed("p", status=TAINTED), State.FAILED, "DeletionByTaintManager"),
        (waiting("ContainerCreating", phase="Pending"), State.STARTING, "ContainerCreating"),
        (waiting("ImagePullBackOff", phase="Pending"), State.PENDING, "ImagePullBackOff"),
        (waiting("CreateContainerConfigError", phase="Pending"), State.PENDING, "CreateContainerConfigError"),
        (waiting("CrashLoopBackOff"), State.RESTARTING, "CrashLoopBackOff"),
        (pod("p", phase="Unknown", status={"reason": "NodeLost"}), State.UNKNOWN, "NodeLost"),
        (pod("p", phase="Strange"), State.UNKNOWN, ""),
        (ended(3, "Error"), State.FAILED, "Error"),
        (ended(3, "Error", spec={"restartPolicy": "OnFailure"}), State.RESTARTING, "Error"),
        (ended(0, "Completed", spec={"restartPolicy": "OnFailure"}), State.SUCCEEDED, "Completed"),
        (ended(0, "Completed", spec={"restartPolicy": "Always"}), State.RESTARTING, "Completed"),
    ],
)
def test_states(made: Object, state: State, reason: str) -> None:
    assert seen(made) == (state, reason)


@pytest.mark.parametrize(("reason", "state"), [("Unschedulable", State.PENDING), ("SchedulingGated", State.QUEUED)])
def test_a_pod_without_a_node(reason: str, state: State) -> None:
    status = {"conditions": [cond("PodScheduled", "False", reason, "0/2 nodes")], "containerStatuses": []}
    found = condition(pod("p", phase="Pending", status=status, spec={"nodeName": None}), "main")
    assert (found.state, found.reason, found.message) == (state, reason, "0/2 nodes")


def test_a_pod_that_no_scheduler_has_seen() -> None:
    made = pod("p", phase="Pending", status={"containerStatuses": []}, spec={"nodeName": None})
    assert seen(made) == (State.PENDING, "")


def terminating(**parts: Any) -> Object:
    made = pod("p", **parts)
    made["metadata"]["deletionTimestamp"] = START
    return made


def test_terminating_and_why() -> None:
    assert seen(terminating()) == (State.STOPPING, "Terminating")
    preempted = {"conditions": [cond("DisruptionTarget", reason="PreemptionByScheduler")]}
    assert seen(terminating(status=preempted)) == (State.STOPPING, "PreemptionByScheduler")
    gone = failed("p", code=137)
    gone["metadata"]["deletionTimestamp"] = START
    assert seen(gone) == (State.FAILED, "Error"), "a finalizer keeps an object whose containers have ended"


LOST = [cond("Ready", "False"), cond("ContainersReady", "True")]


def test_a_lost_node_shows_as_running_and_not_ready_without_a_reason() -> None:
    assert seen(pod("p", status={"conditions": LOST})) == (State.UNKNOWN, "NodeLost")
    assert seen(terminating(status={"conditions": LOST})) == (State.STOPPING, "NodeLost")
    probe = [cond("Ready", "False", "ContainersNotReady"), cond("ContainersReady", "False", "ContainersNotReady")]
    assert seen(pod("p", status={"conditions": probe})) == (State.RUNNING, "NotReady")
    gate = [cond("Ready", "False", "ReadinessGatesNotReady"), cond("ContainersReady", "True")]
    assert seen(pod("p", status={"conditions": gate})) == (State.RUNNING, "NotReady")


def with_init(state: Object, last: Object | None = None, **extra: Any) -> Object:
    inits = [{"name": "done"}, {"name": "init-pytorch", **extra.pop("spec", {})}]
    statuses = [
        {"name": "done", "state": {"terminated": {"exitCode": 0}}},
        {"name": "init-pytorch", "state": state, "lastState": {"terminated": last} if last else {}, **extra},
    ]
    now = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"initContainerStatuses": statuses, "containerStatuses": [now]}
    return pod("p", phase="Pending", status=status, spec={"initContainers": inits})


def test_init_containers() -> None:
    found = condition(with_init({"running": {}}), "main")
    assert (found.state, found.reason) == (State.STARTING, "Init:1/2")
    assert "master is not up" in found.message
    crashed = condition(with_init({"running": {}}, {"exitCode": 4}), "main")
    assert (crashed.reason, crashed.message) == ("Init:1/2", "init container init-pytorch ended with exit code 4")
    assert seen(with_init({"waiting": {"reason": "CrashLoopBackOff"}})) == (State.PENDING, "Init:CrashLoopBackOff")
    assert seen(with_init({"terminated": {"exitCode": 4}})) == (State.PENDING, "Init:Error")
    sidecar = with_init({"running": {}}, started=True, spec={"restartPolicy": "Always"})
    assert seen(sidecar) == (State.STARTING, "PodInitializing")


def test_a_failed_init_container_or_sidecar_is_named_when_the_trainer_did_not_fail() -> None:
    made = with_init({"terminated": {"exitCode": 4, "reason": "OOMKilled"}})
    made["status"]["phase"] = "Failed"
    assert seen(made) == (State.FAILED, "Init:OOMKilled")
    two = ended(0, "Completed", phase="Failed")
    two["status"]["containerStatuses"].append(OTHER_OOM)
    assert seen(two) == (State.FAILED, "ship: OOMKilled")
    both = failed("p")
    both["status"]["containerStatuses"].append(OTHER_OOM)
    assert seen(both) == (State.FAILED, "Error"), "the out-of-memory kill was another container's"


def test_exit_codes_signals_and_times() -> None:
    found = condition(failed("p", code=137), "main")
    assert (found.exit_code, found.signal) == (137, None)
    assert found.ended is not None
    assert found.started is not None
    assert found.ended - found.started == 60
    signalled = pod("p", None, {"terminated": {"exitCode": 137, "signal": 9}}, phase="Failed")
    assert condition(signalled, "main").signal == 9
    never = {"exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z"}
    assert condition(pod("p", None, {"terminated": never}, phase="Failed"), "main").started is None


def test_an_exit_code_that_the_kubelet_made_up_is_none() -> None:
    status = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 1}
    status["lastState"] = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
    made = pod("p", phase="Failed", status={"reason": "Evicted", "containerStatuses": [status]})
    found = condition(made, "main")
    assert (found.state, found.reason, found.exit_code) == (State.FAILED, "Evicted", None)


def containers(*items: Object, **parts: Any) -> Object:
    return pod("p", spec={"containers": list(items)}, **parts)


GPU = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}


def test_which_container_trains() -> None:
    two = ({"name": "ship"}, {"name": "train"})
    named = {"kubectl.kubernetes.io/default-container": "train"}
    assert trainer_container(containers(*two, annotations=named)) == Container("train")
    assert trainer_container(containers(*two), ("node", "train")) == Container("train")
    assert trainer_container(containers(*two, annotations=named), ("ship",)) == Container("train")
    assert trainer_container(containers({"name": "ship"}, {"name": "x", **GPU})) == Container("x", guessed=True)
    assert trainer_container(containers(*two)) == Container("ship", guessed=True)
    assert trainer_container(containers(*two), first=True) == Container("ship")
    assert trainer_container(containers({"name": "only"})) == Container("only")
    assert trainer_container(containers()) == Container(None)
    wrong = {"kubectl.kubernetes.io/default-container": "sidecar"}
    made = containers(*two, annotations=wrong)
    made["spec"]["initContainers"] = [{"name": "sidecar", "restartPolicy": "Always"}]
    assert trainer_container(made) == Container("ship", guessed=True)


@pytest.mark.parametrize(
    ("sidecar", "other", "expected"),
    [
        ({}, {"name": "trainer"}, Container("trainer")),
        ({}, {"name": "node"}, Container("node")),
        ({}, {"name": "main", **GPU}, Container("main")),
        ({"name": "main"}, {"name": "x", **GPU}, Container("x", guessed=True)),
        ({}, {"name": "x", "command": ["torchrun", "train.py"]}, Container("x", guessed=True)),
        (
            {"args": ["--port", "80"]},
            {
                "name": "x",
                "command": ["bash", "-c"],
                "args": ["cd /w && exec python3 -m torch.distributed.run train.py"],
            },
            Container("x", guessed=True),
        ),
        ({"env": [{"name": "HOME"}]}, {"name": "x", "env": [{"name": "PET_NNODES"}]}, Container("x", guessed=True)),
        ({"env": "x"}, {"name": "x", "env": [{"name": "MASTER_ADDR"}, 3]}, Container("x", guessed=True)),
        ({"command": ["torchrun"]}, {"name": "x", "command": ["torchrun"]}, Container("log-shipper", guessed=True)),
        ({"command": "torchrun"}, {"name": "x", "command": [3]}, Container("log-shipper", guessed=True)),
    ],
)
def test_a_sidecar_that_comes_first_does_not_train(sidecar: Object, other: Object, expected: Container) -> None:
    assert trainer_container(containers({"name": "log-shipper", **sidecar}, other)) == expected


def test_a_worker_of_a_pod() -> None:
    made = pod("p", None, status={"podIP": "10.0.0.7"}, spec={"containers": [{"name": "main", **GPU}]})
    made["status"]["containerStatuses"][0]["restartCount"] = 3
    made["spec"]["containers"][0]["image"] = "registry.example/train:latest"
    worker = worker_of(made, Container("main"))
    assert worker.image == "registry.example/train:latest"
    made["status"]["containerStatuses"][0]["imageID"] = f"registry.example/train@sha256:{'ab' * 32}"
    assert worker_of(made, Container("main")).image == "registry.example/train:latest@sha256:abababababab"
    assert (worker.pod, worker.uid, worker.namespace, worker.node) == ("p", "uid-Pod-p", "team", "node1")
    assert (worker.address, worker.gpus, worker.restarts, worker.container) == ("10.0.0.7", 8, 3, "main")


#: The expected data of each pod, from the recordings' index and notes.
RECORDED = {
    "api-evicted-terminating": (State.STOPPING, "EvictionByEvictionAPI", None),
    "completed": (State.SUCCEEDED, "Completed", 0),
    "containercreating": (State.STARTING, "ContainerCreating", None),
    "crashloop": (State.RESTARTING, "CrashLoopBackOff", 1),
    "createconfigerror": (State.PENDING, "CreateContainerConfigError", None),
    "deadline": (State.FAILED, "DeadlineExceeded", 0),
    "errimageneverpull": (State.PENDING, "ErrImageNeverPull", None),
    "evicted": (State.FAILED, "Evicted", 137),
    "exit-1": (State.FAILED, "Error", 1),
    "exit-137": (State.FAILED, "Error", 137),
    "exit-139": (State.FAILED, "Error", 139),
    "exit-143": (State.FAILED, "Error", 143),
    "exit-3": (State.FAILED, "Error", 3),
    "gated": (State.QUEUED, "SchedulingGated", None),
    "gpu-running": (State.RUNNING, "", None),
    "imagepullbackoff": (State.PENDING, "ImagePullBackOff", None),
    "init-0-1": (State.STARTING, "Init:0/1", None),
    "init-crash": (State.STARTING, "Init:0/1", None),
    "native-sidecar": (State.RUNNING, "", None),
    "notready": (State.RUNNING, "NotReady", None),
    "oom-child": (State.FAILED, "OOMKilled", 1),
    "oom-child-alive": (State.RUNNING, "", None),
    "oom-main": (State.FAILED, "OOMKilled", 137),
    "preempted-terminating": (State.STOPPING, "PreemptionByScheduler", None),
    "preemptor-pending": (State.PENDING, "Unschedulable", None),
    "sidecar": (State.RUNNING, "", None),
    "starterror": (State.FAILED, "StartError", 128),
    "terminating": (State.STOPPING, "Terminating", None),
    "terminating-finalizer": (State.FAILED, "Error", 137),
    "termination-message": (State.FAILED, "Error", 1),
    "unschedulable": (State.PENDING, "Unschedulable", None),
    "unschedulable-gpu": (State.PENDING, "Unschedulable", None),
}


@needs_recordings
def test_every_recorded_state_is_expected() -> None:
    single = {name.removeprefix("podstates/") for name in names("podstates/*.json")} - {"list", "table"}
    assert single == set(RECORDED)


@needs_recordings
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_recorded_states(name: str) -> None:
    made = load(f"podstates/{name}")["response"]["body"]
    worker = worker_of(made, trainer_container(made))
    assert (worker.state, worker.reason, worker.exit_code) == RECORDED[name]
    assert worker.signal is None


@needs_recordings
def test_recorded_pods_of_a_lost_node() -> None:
    for name, expected in {
        "pod-while-down-early": (State.RUNNING, ""),
        "pod-on-lost-node": (State.UNKNOWN, "NodeLost"),
        "pod-terminating-on-lost-node": (State.STOPPING, "NodeLost"),
    }.items():
        assert seen(load(f"kubelet/{name}")["response"]["body"]) == expected


@needs_recordings
def test_recorded_containers_and_cards() -> None:
    body = load("podstates/sidecar")["response"]["body"]
    assert trainer_container(body) == Container("trainer")
    body = load("podstates/native-sidecar")["response"]["body"]
    assert trainer_container(body) == Container("trainer")
    body = load("podstates/unschedulable-gpu")["response"]["body"]
    assert worker_of(body, Container("main")).gpus == 1000
