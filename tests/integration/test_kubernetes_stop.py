"""`stop` and `resume` of jobs in a cluster: changes, unchanged objects, saved evidence, failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.integration.stopping import TRAINING, Cluster, pod
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.unit.diagnosis.samples import block, entry


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as own:
        yield own


@pytest.fixture
def cluster(server: Server) -> Cluster:
    server.clear_faults()
    server.controller(on=True)
    return Cluster(server)


def job_object(cluster: Cluster, name: str) -> dict[str, Any]:
    found = cluster.server.get("PyTorchJob", name, api_version=TRAINING)
    assert found is not None
    return found


def test_the_plan_says_where_whose_how_much_and_what_is_lost(cluster: Cluster) -> None:
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    made = cluster.pytorchjob("planned", 2, annotations={"example.org/creator": "li\x1b[31mhua"}, container=gpus)
    lines = cluster.cli("stop", "planned", "--dry-run").stderr.decode().splitlines()
    assert lines[0].startswith("stops job planned (PyTorchJob, Running, since 20")
    assert lines[0].endswith(f"uid {made['metadata']['uid']})")
    told = dict(line.strip().split(": ", 1) for line in lines[1:-1])
    assert told["where"] == f"context test, namespace default, {cluster.server.url}"
    assert told["by"].endswith("hua")
    assert "\x1b" not in told["by"]
    assert told["workers"] == "worker-[0-1] (2 of 2), 16 GPUs"
    assert told["how"] == "spec.runPolicy.suspend of the PyTorchJob is set to true"
    assert told["lost"].startswith("all pods, with their logs")
    assert told["back"].startswith("atlctl resume pytorchjob/planned --namespace default --context test")
    assert {"age", "saved"} <= set(told)


@pytest.mark.parametrize("more", [(), ("--delete",), ("--keep",)])
def test_a_dry_run_and_a_missing_yes_change_nothing(cluster: Cluster, more: tuple[str, ...]) -> None:
    name = f"dry{''.join(more).replace('--', '-')}"
    before = cluster.pytorchjob(name)
    since = len(cluster.server.requests())
    assert cluster.cli("stop", name, "--dry-run", "--yes", *more).code == 0
    assert cluster.data("stop", name, "--dry-run", *more)["dry_run"] is True
    refused = cluster.cli("stop", name, *more, stdin=b"y\n")
    assert (refused.stdout, refused.code) == (b"", 2)
    assert refused.stderr.endswith(b"hint: add --yes\n")
    for write in cluster.writes(since):
        assert ["dryRun", "All"] in write["query"] or json.loads(write["body"])["dryRun"] == ["All"]
    assert job_object(cluster, name) == before
    assert all(cluster.pods(name, 2))
    assert list(Path().iterdir()) == []


def test_the_dry_run_of_a_deletion_stands_in_its_body(cluster: Cluster) -> None:
    """A server ignores the query of a DELETE with a body, and would delete."""
    cluster.pytorchjob("trap")
    since = len(cluster.server.requests())
    cluster.cli("stop", "trap", "--delete", "--dry-run")
    (write,) = cluster.writes(since)
    assert write["query"] == []
    assert json.loads(write["body"])["dryRun"] == ["All"]


def test_a_stop_saves_suspends_waits_and_says_how_to_take_it_back(cluster: Cluster) -> None:
    made = cluster.pytorchjob("train", run=True)
    for index in range(2):
        cluster.server.wait_phase(f"train-worker-{index}", "Running")
        lines = [f"RuntimeError: boom of worker {index}"]
        cluster.server.log(f"train-worker-{index}", lines=lines)
    for name, uid in (("ours", made["metadata"]["uid"]), ("theirs", "another")):
        about = {"kind": "PyTorchJob", "name": "train", "uid": uid}
        event = {"metadata": {"name": name}, "involvedObject": about, "reason": name, "message": "words"}
        cluster.server.put({"apiVersion": "v1", "kind": "Event", **event})
    since = len(cluster.server.requests())
    run = cluster.cli("stop", "train", "--yes", "--out", "kept")
    assert run.code == 0
    resume = "atlctl resume pytorchjob/train --namespace default --context test"
    assert run.stdout.decode() == f"pods are gone: worker-[0-1] (2)\nresume: {resume}\n"
    (write,) = cluster.writes(since)
    body = {"spec": {"runPolicy": {"suspend": True}}, "metadata": {"uid": made["metadata"]["uid"]}}
    assert (write["method"], json.loads(write["body"])) == ("PATCH", body)
    asked = [r["path"] for r in cluster.server.requests(since)]
    logs = [at for at, path in enumerate(asked) if path.endswith("/log")]
    assert logs
    assert max(logs) < asked.index(write["path"], max(logs)), "the logs come first"
    assert cluster.pods("train", 2) == [None, None]
    files = sorted(path.name for path in Path("kept").iterdir())
    assert {"atlctl.json", "worker-0.ts.log", "worker-1.ts.log"} <= set(files)
    assert b"boom of worker 1" in Path("kept/worker-1.ts.log").read_bytes()
    reasons = [json.loads(line)["reason"] for line in Path("kept/events.jsonl").read_text().splitlines()]
    assert sorted(set(reasons) - {"Killing"}) == ["SuccessfulCreatePod", "ours"]
    assert b"boom of worker" in cluster.cli("errors", "--from", "kept").stdout
    assert {Path("kept").stat().st_mode & 0o777, Path("kept/atlctl.json").stat().st_mode & 0o777} == {0o700, 0o600}
    # running the command again is safe, and the hint works as printed
    assert cluster.cli("stop", "train", "--yes") == (b"", b"job train is Suspended: nothing to stop\n", 0)
    back = cluster.cli(*resume.split()[1:], "--yes")
    assert (back.stdout, back.code) == (b"resumed: job train\n", 0)
    assert proc.wait_until(lambda: all(cluster.pods("train", 2)))
    assert cluster.cli("resume", "train").stderr == b"job train is Running: nothing to resume\n"


def test_error_files_that_the_logs_name_are_saved_before_their_pods_go(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "torchelastic_a" / "none_b" / "attempt_0" / "1" / "error.json"
    file.parent.mkdir(parents=True)
    stamp = {"message": "ValueError: bad shard", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1795369507"}}
    file.write_text(json.dumps({"message": stamp}))
    cluster.pytorchjob("failed", run=True)
    for index in range(2):
        cluster.server.wait_phase(f"failed-worker-{index}", "Running")
    summary = block(entry(0, rank=3, local=1, text="ValueError: bad shard", file=str(file)))
    cluster.server.log("failed-worker-1", lines=summary)
    run = cluster.cli("stop", "failed", "--yes", "--out", "kept")
    assert run.code == 0
    assert b", 1 error file; read them with: atlctl errors --from kept" in run.stderr
    (kept,) = Path("kept/worker-1").rglob("error.json")
    assert kept.read_text() == file.read_text()
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    found = json.loads(cluster.cli("errors", "--from", "kept", "-o", "json").stdout)["data"]
    assert (found["source"]["error_files"], found["root_causes"][0]["rank"]) == (1, 3)


def test_the_default_folder_is_named_after_job_and_time(cluster: Cluster) -> None:
    cluster.pytorchjob("named")
    data = cluster.data("stop", "named", "--yes")
    (folder,) = Path().iterdir()
    assert folder.name.startswith("atlctl-named-20")
    assert (data["saved"]["folder"], data["mechanism"]) == (folder.name, "suspend")
    assert [w["how"] for w in data["workers"]] == ["gone", "gone"]


def test_a_delete_is_in_the_foreground_and_for_this_uid_alone(cluster: Cluster) -> None:
    made = cluster.pytorchjob("doomed")
    since = len(cluster.server.requests())
    run = cluster.cli("stop", "doomed", "--delete", "--yes", "--no-save")
    assert (run.stdout, run.code) == (b"pods are gone: worker-[0-1] (2)\n", 0)
    (write,) = cluster.writes(since)
    body = json.loads(write["body"])
    assert (body["propagationPolicy"], body["preconditions"]) == ("Foreground", {"uid": made["metadata"]["uid"]})
    assert cluster.server.get("PyTorchJob", "doomed", api_version=TRAINING) is None
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("more", [(), ("--delete",)])
def test_a_job_made_anew_between_plan_and_answer_is_left_alone(cluster: Cluster, more: tuple[str, ...]) -> None:
    name = f"again{len(more)}"
    cluster.pytorchjob(name)
    env = {"KUBECONFIG": str(cluster.server.kubeconfig)}
    with Terminal("stop", name, "--no-save", *more, env=env, columns=400) as terminal:
        terminal.wait_for(b"[y/N] ")
        assert b"(context test, namespace default, https://" in terminal.screen
        cluster.server.remove("PyTorchJob", name, api_version=TRAINING)
        second = cluster.pytorchjob(name)
        terminal.type(b"y\r")
        assert terminal.code() == 1
    assert b"was replaced by another object of the same name meanwhile" in terminal.screen
    assert job_object(cluster, name) == second


def test_a_declined_question_stops_nothing(cluster: Cluster) -> None:
    before = cluster.pytorchjob("asked")
    with Terminal("stop", "asked", env={"KUBECONFIG": str(cluster.server.kubeconfig)}) as terminal:
        terminal.wait_for(b"[y/N] ")
        terminal.type(b"n\r")
        assert terminal.code() == 1
    assert job_object(cluster, "asked") == before
    assert list(Path().iterdir()) == []


def test_a_child_object_means_its_job(cluster: Cluster) -> None:
    cluster.pytorchjob("parent")
    lines = cluster.cli("stop", "parent-worker-1", "--dry-run").stderr.decode().splitlines()
    assert lines[0].startswith("stops job parent (PyTorchJob")


def test_volcano_gets_a_command(cluster: Cluster) -> None:
    made = cluster.volcano("vc")
    since = len(cluster.server.requests())
    run = cluster.cli("stop", "vc", "--yes", "--no-save")
    assert run.code == 0
    assert b"Volcano's command AbortJob" in run.stderr
    (write,) = cluster.writes(since)
    body = json.loads(write["body"])
    assert (write["method"], body["action"], body["target"]["uid"]) == ("POST", "AbortJob", made["metadata"]["uid"])
    assert proc.wait_until(lambda: b"Suspended" in cluster.cli("jobs").stdout)
    assert cluster.cli("resume", "vc", "--yes").code == 0
    assert proc.wait_until(lambda: all(cluster.pods("vc", 2)))


def test_kueue_is_asked_through_its_workload(cluster: Cluster) -> None:
    job = cluster.pytorchjob("queued", labels={"kueue.x-k8s.io/queue-name": "team"})
    workload = cluster.workload(job, "pytorchjob-queued-1")
    since = len(cluster.server.requests())
    run = cluster.cli("stop", "queued", "--yes", "--no-save")
    assert run.code == 0
    (write,) = cluster.writes(since)
    assert write["path"].endswith("/workloads/pytorchjob-queued-1")
    uid = workload["metadata"]["uid"]
    assert json.loads(write["body"]) == {"spec": {"active": False}, "metadata": {"uid": uid}}
    assert cluster.cli("stop", "queued").stderr.endswith(b"nothing to stop\n")
    assert cluster.cli("resume", "queued", "--yes").code == 0
    assert proc.wait_until(lambda: all(cluster.pods("queued", 2)))


def test_where_nothing_acts_on_the_request_it_is_1_and_says_so(cluster: Cluster) -> None:
    cluster.server.controller(on=False)
    cluster.pytorchjob("ignored")
    run = cluster.cli("stop", "ignored", "--yes", "--no-save", "--timeout", "3")
    assert run.code == 1
    assert b"  worker-0: nothing has requested its end; it is Running\n" in run.stderr
    assert run.stderr.endswith(
        b"error: not stopped: worker-[0-1]\nhint: look at it: atlctl ps ignored; a second stop is safe\n"
    )
    assert b"resume: atlctl resume" in run.stdout


def test_ctrl_c_ends_the_wait_and_not_the_stop(cluster: Cluster) -> None:
    cluster.server.controller(on=False)
    cluster.pytorchjob("left")
    env = {"KUBECONFIG": str(cluster.server.kubeconfig)}
    with Terminal("stop", "left", "--yes", "--no-save", env=env) as terminal:
        terminal.wait_for(b"until 2 pods are gone")
        terminal.type(b"\x03")
        assert terminal.code() == 130
    assert b"interrupted; the request continues without atlctl" in terminal.screen
    assert job_object(cluster, "left")["spec"]["runPolicy"]["suspend"] is True


def test_finalizers_are_named(cluster: Cluster) -> None:
    cluster.pytorchjob("stuck", nodeName="stuck-node", terminationGracePeriodSeconds=1)
    cluster.server.patch("Pod", "stuck-worker-0", {"metadata": {"finalizers": ["example.org/hold"]}})
    run = cluster.cli("stop", "stuck", "--yes", "--no-save", "--timeout", "5")
    assert run.code == 1
    assert b"  worker-0: finalizers are left: example.org/hold\n" in run.stderr
    assert b"pods are gone: worker-1" in run.stdout
    cluster.server.patch("Pod", "stuck-worker-0", {"metadata": {"finalizers": None}})


def test_logs_that_cannot_be_read_do_not_keep_a_job_running(cluster: Cluster) -> None:
    cluster.pytorchjob("dumb")
    cluster.server.fault("status", kind="log", code=403, message="logs are forbidden")
    run = cluster.cli("stop", "dumb", "--yes", "--out", "what-there-is")
    assert run.code == 0
    assert b"warning: missing in what-there-is:\n" in run.stderr
    assert b"  worker-[0-1]: " in run.stderr
    assert cluster.pods("dumb", 2) == [None, None]


def test_without_a_folder_to_save_in_nothing_is_stopped(cluster: Cluster) -> None:
    cluster.pytorchjob("unsaved")
    Path("full").mkdir()
    Path("full/other").touch()
    for out in ("full", "no/such/parent"):
        run = cluster.cli("stop", "unsaved", "--yes", "--out", out)
        assert run.code == 2, run
    assert all(cluster.pods("unsaved", 2))


def test_without_the_right_it_is_4_and_names_what_was_refused(cluster: Cluster) -> None:
    cluster.pytorchjob("foreign")
    cluster.server.user("reader", [{"verbs": ["get", "list", "watch"], "apiGroups": ["*"], "resources": ["*"]}])
    own = str(cluster.server.write_kubeconfig("reader", user="reader"))
    run = cluster.cli("stop", "foreign", "--yes", "--no-save", env={"KUBECONFIG": own})
    assert run.code == 4
    assert b"error: PyTorchJob foreign was not changed: " in run.stderr
    assert all(cluster.pods("foreign", 2))


def test_kinds_that_are_not_stopped_name_the_command_that_does_it(cluster: Cluster) -> None:
    cluster.server.put(pod("alone", None, {"app": "x"}), fake=True)
    run = cluster.cli("stop", "alone", "--yes", "--no-save")
    assert run.code == 2
    assert b"hint: kubectl -n default delete pod alone\n" in run.stderr
    gone = cluster.cli("stop", "alone", "--delete", "--yes", "--no-save")
    assert gone.code == 0, gone.stderr
    assert cluster.server.get("Pod", "alone") is None


def test_a_failed_job_whose_pods_run_on_is_not_called_stopped(cluster: Cluster) -> None:
    cluster.pytorchjob("half")
    failed = [{"type": "Failed", "status": "True", "reason": "PyTorchJobFailed"}]
    cluster.server.patch("PyTorchJob", "half", {"status": {"conditions": failed}}, api_version=TRAINING)
    run = cluster.cli("stop", "half", "--yes")
    assert run.code == 1
    assert b"2 of its workers still run" in run.stderr
    assert run.stderr.endswith(b"--delete\n")


def test_some_workers_alone_are_not_stopped(cluster: Cluster) -> None:
    cluster.pytorchjob("part")
    run = cluster.cli("stop", "part", "-w", "1", "--yes")
    assert run.code == 2
    assert b"--keep" in run.stderr
    assert all(cluster.pods("part", 2))


def test_resume_asks_as_stop_does(cluster: Cluster) -> None:
    cluster.pytorchjob("later")
    cluster.cli("stop", "later", "--yes", "--no-save")
    since = len(cluster.server.requests())
    assert cluster.cli("resume", "later").code == 2
    assert cluster.writes(since) == []
    assert cluster.cli("resume", "later", "--dry-run").code == 0
    assert [write["query"] for write in cluster.writes(since)] == [[["dryRun", "All"]]]
    assert job_object(cluster, "later")["spec"]["runPolicy"]["suspend"] is True
