"""`cp` in both directions, and `top` without a GPU."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tests.e2e.cluster import Cluster
from tests.e2e.kinds import Job
from tests.e2e.settings import token

#: Bytes of the copied file: more than any buffer in between.
SIZE = 5 * 2**20 + 1


def test_a_file_goes_to_every_worker_and_comes_back(cluster: Cluster, idle: Job) -> None:
    name = f"file-{token()}"
    Path(name).write_bytes(os.urandom(SIZE))
    Path(name).chmod(0o750)
    digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    there = cluster.cli("cp", *idle.words, "--all", name, f":{name}")
    assert there.code == 0, there
    code = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())"
    run = cluster.cli("exec", *idle.words, "--all", "--no-prefix", "-q", "--", "python3", "-c", code, name)
    assert run.stdout.decode().split() == [digest] * len(idle.kind.workers)
    back = cluster.cli("cp", *idle.words, "--all", f":{name}", "back")
    assert back.code == 0, back
    for worker in idle.names:
        assert hashlib.sha256(Path("back", worker, name).read_bytes()).hexdigest() == digest


def test_a_folder_keeps_its_names_and_leaves_links_behind(cluster: Cluster, job: Job) -> None:
    name = f"folder-{token()}"
    Path(name, "deep/er").mkdir(parents=True)
    Path(name, "deep/er/-x y 日本").write_bytes(b"one")
    Path(name, "empty").touch()
    Path(name, "link").symlink_to("/etc/passwd")
    there = cluster.cli("cp", *job.words, name, f"worker-1:{name}")
    assert there.code == 0, there
    assert b"link" in there.stderr
    back = cluster.cli("cp", *job.words, f"worker-1:{name}", "back")
    assert back.code == 0, back
    found = {str(path.relative_to("back")) for path in Path("back").rglob("*") if path.is_file()}
    assert found == {"deep/er/-x y 日本", "empty"}
    assert Path("back/deep/er/-x y 日本").read_bytes() == b"one"


def test_what_is_not_there_is_1_and_named(cluster: Cluster, job: Job) -> None:
    run = cluster.cli("cp", *job.words, "--all", f":no-{token()}", "back")
    assert run.code == 1
    assert b"no such file" in run.stderr


def test_top_says_that_there_are_no_gpus(cluster: Cluster, idle: Job) -> None:
    """The suite requests no GPUs, and its pods have no nvidia-smi."""
    run = cluster.cli("top", *idle.words, "--once")
    assert run.code == 0, run
    assert b"there is no nvidia-smi" in run.stderr
    document = json.loads(cluster.cli("top", *idle.words, "--once", "-o", "json").stdout)
    told = {worker["worker"]: (worker["gpus"], worker["memory_bytes"]) for worker in document["data"]["workers"]}
    assert sorted(told) == sorted(idle.names)
    assert all(gpus is None and memory for gpus, memory in told.values())
