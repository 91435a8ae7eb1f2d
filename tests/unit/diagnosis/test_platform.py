from __future__ import annotations

import pytest

from atlctl.diagnosis.platform import Event, PlatformState, judge_event, judge_state, xid


def judged(reason="", message="", **more):
    found = judge_state(PlatformState(reason=reason, message=message, **more))
    return found and (found.category, found.certainty)


def event(reason, message="", kind="Pod"):
    found = judge_event(Event(None, "w-0", "node1", kind, reason, message))
    return found and (found.category, found.certainty)


def test_out_of_memory_is_never_proved_by_its_reason():
    """A killed child sets the reason, too; only together with SIGKILL is it a strong hint."""
    child = judge_state(PlatformState(exit_code=1, reason="OOMKilled"))
    main = judge_state(PlatformState(exit_code=137, reason="OOMKilled"))
    by_signal = judge_state(PlatformState(signal=9, reason="OOMKilled"))
    assert child is not None
    assert main is not None
    assert (child.category, child.certainty, child.strong) == ("memory_limit_kill", "hints", False)
    assert (main.category, main.certainty, main.strong) == ("memory_limit_kill", "hints", True)
    assert by_signal == main


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ('Usage of EmptyDir volume "shm" exceeds the limit "4Mi". ', "disk_full"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ", "disk_full"),
        ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 3Mi. ", "host_oom_kill"),
        ("The node was low on resource: inodes. ", "disk_full"),
        ("", "preemption"),
    ],
)
def test_evictions_are_told_apart_by_what_was_short(message, category):
    assert judged("Evicted", message, exit_code=137) == (category, "proves")
    assert event("Evicted", message) == (category, "proves")


@pytest.mark.parametrize(
    ("reason", "answer"),
    [
        ("Preempting", ("preemption", "proves")),
        ("PreemptionByScheduler", ("preemption", "proves")),
        ("EvictionByEvictionAPI", ("preemption", "proves")),
        ("DeletionByTaintManager", ("node_lost", "hints")),
        ("DeletionByPodGC", ("node_lost", "hints")),
        ("TerminationByKubelet", ("preemption", "proves")),
        ("NodeLost", ("node_lost", "hints")),
        ("NodeShutdown", ("node_lost", "proves")),
        ("ContainerStatusUnknown", ("node_lost", "hints")),
        ("DeadlineExceeded", ("deadline", "proves")),
        ("UnexpectedAdmissionError", ("admission", "proves")),
        ("OutOfnvidia.com/gpu", ("admission", "proves")),
    ],
)
def test_reasons_come_before_exit_codes(reason, answer):
    assert judged(reason, exit_code=137) == answer


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("Unschedulable", "not_scheduled"),
        ("SchedulingGated", "not_scheduled"),
        ("ImagePullBackOff", "image_pull"),
        ("ErrImagePull", "image_pull"),
        ("CreateContainerConfigError", "container_config"),
    ],
)
def test_a_worker_that_waits_never_started_unless_it_had_run(reason, category):
    assert judged(reason) == (category, "proves")
    assert judged(reason, restarts=1) == (category, "hints")
    assert judged(reason, exit_code=1) == (category, "hints")


def test_a_command_that_cannot_be_started_has_a_code_that_is_made_up():
    assert judged("StartError", exit_code=128) == ("container_config", "proves")
    assert judged("StartError", exit_code=128, restarts=2) == ("container_config", "hints")


@pytest.mark.parametrize(
    ("code", "category"),
    [
        (129, "terminal_hangup"),
        (130, "interrupted"),
        (134, "native_crash"),
        (135, "shm_bus_error"),
        (137, "killed"),
        (139, "native_crash"),
        (143, "preemption"),
        (160, "terminated"),
    ],
)
def test_codes_above_128_hint_at_a_signal(code, category):
    assert judged("Error", exit_code=code) == (category, "hints")
    assert judged(exit_code=None, signal=code - 128) == (category, "hints")
    assert judged("CrashLoopBackOff", exit_code=code, restarts=3) == (category, "hints")


@pytest.mark.parametrize(
    "state", [{}, {"exit_code": 0}, {"exit_code": 1}, {"exit_code": 128}, {"exit_code": 193}, {"exit_code": 255}]
)
def test_other_codes_say_nothing(state):
    assert judged("Completed", **state) is None
    assert judged("Error", signal=0, **state) is None


@pytest.mark.parametrize(
    ("reason", "message", "answer"),
    [
        ("OOMKilling", "Memory cgroup out of memory: Killed process 77 (python)", ("memory_limit_kill", "hints")),
        ("OOMKilling", "Out of memory: Killed process 77 (python)", ("host_oom_kill", "hints")),
        ("OOMKilling", "a process was killed", ("oom_kill", "hints")),
        ("SystemOOM", "System OOM encountered, victim process: python, pid: 77", ("host_oom_kill", "hints")),
        ("EvictionThresholdMet", "Attempting to reclaim memory", ("host_oom_kill", "hints")),
        ("EvictionThresholdMet", "Attempting to reclaim ephemeral-storage", ("disk_full", "hints")),
        ("NodeNotReady", "Node node1 status is now: NodeNotReady", ("node_lost", "hints")),
        ("Rebooted", "Node node1 has been rebooted, boot id: x", ("node_lost", "proves")),
        ("TaintManagerEviction", "Marking for deletion Pod ml/w-0", ("node_lost", "hints")),
        ("TaintManagerEviction", "Cancelling deletion of Pod ml/w-0", None),
        ("Preempted", "Preempted by pod x on node node2", ("preemption", "proves")),
        ("FailedScheduling", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", ("not_scheduled", "hints")),
        ("FailedMount", 'MountVolume.SetUp failed for volume "d"', ("volume_mount", "hints")),
        ("Failed", "Error: ImagePullBackOff", ("image_pull", "hints")),
        ("Failed", 'Failed to pull image "x/y:1"', ("image_pull", "hints")),
        ("Failed", 'Error: secret "wandb-key" not found', ("container_config", "hints")),
        ("BackOff", 'Back-off pulling image "x/y:1"', ("image_pull", "hints")),
        ("BackOff", "Back-off restarting failed container main in pod w-0_ml(9045)", None),
        ("Killing", "Container main failed liveness probe, will be restarted", ("liveness_probe", "proves")),
        ("Killing", "Stopping container main", None),
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", ("deadline", "proves")),
        ("Scheduled", "Successfully assigned ml/w-0 to node2", None),
        ("NodeReady", "Node node1 status is now: NodeReady", None),
    ],
)
def test_events(reason, message, answer):
    assert event(reason, message) == answer


@pytest.mark.parametrize(
    ("message", "found", "answer"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.", ("0000:3b:00", 79), "gpu_hardware"),
        ("kernel: NVRM: Xid (PCI:0000:9d:00): 31, Ch 00000010", ("0000:9d:00", 31), "gpu_xid_app"),
        ("NVRM: Xid (0000:03:00): 45, Ch 0", ("0000:03:00", 45), "gpu_xid_cascade"),
        ("GPU 3 reported XID error 48", (None, 48), "gpu_hardware"),
        ("GPU 3 reported XID error 140", (None, 140), "gpu_hardware"),
        ("Xid (PCI:0000:3b:00): 94, Contained", ("0000:3b:00", 94), "gpu_hardware"),
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery", ("0000:3b:00", 154), "gpu_xid_context"),
        ("xid: 63", (None, 63), "gpu_xid_context"),
        ("Xid 999", (None, 999), "gpu_xid_context"),
    ],
)
def test_xids_are_read_from_the_message(message, found, answer):
    assert xid(message) == found
    judgement = judge_event(Event(None, None, "node1", "Node", "XidError", message))
    assert judgement is not None
    assert judgement.category == answer
    assert (judgement.certainty == "proves") == (answer == "gpu_hardware")


def test_what_is_no_xid():
    assert [xid(text) for text in ("", "Xid", "exid 79", "Xid 1234", "taxid 12", "Xid (PCI:x): 79")] == [None] * 6
    assert event("GPULost", "GPU at PCI:0000:3b:00 has fallen off the bus") == ("gpu_hardware", "proves")
