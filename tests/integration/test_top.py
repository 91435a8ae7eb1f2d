"""`atlctl top --once` on local workers with a fake `nvidia-smi`."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.handle import Server
from tests.integration.local import Registry, registry
from tests.support import proc
from tests.support.cli import Result, run_cli

#: A behaviour for each worker; $1 must be the query.
_NVIDIA_SMI = """#!/bin/sh
case "$1" in --query-gpu=index,uuid,name,*) ;; *) echo "odd query: $1"; exit 2;; esac
row() { printf '%s, GPU-%s%s, %s, %s\\n' "$1" "$RANK" "$1" "$2" "$3"; }
case $RANK in
0) row 1 'NVIDIA H100' '0, 10, 81559, 70.10, 30, 0'; row 0 'NVIDIA H100' '97, 70123, 81559, 690.62, 64, 2';;
1) row 0 'A100 MIG' '[N/A], [Insufficient Permissions], 40960, 50, 31, [N/A]';;
2) echo 'No devices were found'; exit 6;;
3) echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9;;
4) sleep 300;;
5) row 0 'T4' '1, 2, 3, 4, 5, 6'; echo 'Unable to determine the device handle for GPU 0000:3B:00.0'; exit 255;;
6) row 0 "$(printf 'evil\\033]0;x\\007')" '1, 2, 3, 4, 5, 6';;
7) head -c 3000000 /dev/zero;;
esac
"""
_LIMIT = ("--timeout", "3")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    """gpus: one worker for each behaviour. bare: no nvidia-smi. mixed: worker-1 has ended."""
    with registry() as own:
        tools = own.home / "tools"
        tools.mkdir()
        (tools / "nvidia-smi").write_text(_NVIDIA_SMI)
        (tools / "nvidia-smi").chmod(0o755)
        path = ("--env", f"PATH={tools}:{os.environ['PATH']}")
        own.start("gpus", 8, options=path)
        own.start("bare", 2, options=("--env", f"PATH={_without(own.home / 'bin')}"))
        own.start("mixed", 2, "sh", "-c", '[ "$RANK" = 1 ] && exit 3; exec sleep 1000', options=path)
        assert proc.wait_until(lambda: own.states("mixed")[1] == "Failed")
        yield own


def _without(folder: Path) -> str:
    """A PATH with only `sleep`: this machine may have an nvidia-smi."""
    folder.mkdir()
    (folder / "sleep").symlink_to("/bin/sleep")
    return str(folder)


def top(jobs: Registry, *words: str) -> Result:
    return jobs.cli("top", *words, "--once")


def cells(line: str) -> list[str]:
    return re.split(" {2,}", line)


def test_one_table(jobs: Registry) -> None:
    """CPU and memory of each worker's processes: `sleep` uses almost none."""
    run = top(jobs, "gpus", "-w", "0,1")
    heading, *rows = [cells(line) for line in run.stdout.decode().splitlines()]
    assert heading == [
        "WORKER", "GPU", "NAME", "UTIL %", "MEMORY MiB", "POWER W", "TEMP C", "ECC", "CPU", "RAM GiB", "SCOPE", "MARKS",
    ]  # fmt: skip
    assert rows[0][:8] == ["worker-0", "0", "NVIDIA H100", "97", "70123/81559", "691", "64", "2"]
    assert re.fullmatch("0/[0-9]+", rows[0][8])
    assert re.fullmatch("0/[0-9.]+", rows[0][9])
    assert rows[0][10:] == ["processes", "2 uncorrected ECC"]
    assert rows[1] == ["worker-0", "1", "NVIDIA H100", "0", "10/81559", "70", "30", "0", "empty"]
    assert rows[2][:8] == ["worker-1", "0", "A100 MIG", "-", "-/40960", "50", "31", "-"]
    assert rows[2][10:] == ["processes"]
    assert (run.stderr, run.code, len(rows)) == (b"", 0, 3)


def test_a_pipe_gets_one_table(jobs: Registry) -> None:
    run = jobs.cli("top", "gpus", "-w", "1", "--sort", "worker")
    assert (run.stdout.count(b"WORKER"), run.stdout.count(b"A100 MIG"), run.stderr, run.code) == (1, 1, b"", 0)


def test_what_the_processes_use(jobs: Registry) -> None:
    jobs.start("busy", 2, "sh", "-c", '[ "$RANK" = 1 ] && while :; do :; done; exec sleep 1000')
    try:
        idle, busy = jobs.data("top", "busy")["workers"]
    finally:
        jobs.cli("stop", "busy", "--yes", "-q")
    assert (idle["scope"], busy["scope"]) == ("processes", "processes")
    # Other tests may use the CPUs.
    assert busy["cpu_cores"] > 0.05 > idle["cpu_cores"]
    assert 0 < busy["memory_bytes"] < busy["memory_bytes_limit"]


def test_as_data(jobs: Registry) -> None:
    document = json.loads(top(jobs, "gpus", "-w", "1", "-o", "json").stdout)
    assert document["status"] == "success"
    assert document["data"]["job"] == "gpus"
    (worker,) = document["data"]["workers"]
    assert worker["gpus"] == [
        {
            "index": 0,
            "uuid": "GPU-10",
            "name": "A100 MIG",
            "utilization_percent": None,
            "memory_used_mib": None,
            "memory_total_mib": 40960.0,
            "power_watts": 50.0,
            "temperature_celsius": 31.0,
            "ecc_uncorrected": None,
            "clock_reasons": None,
            "marks": [],
        }
    ]
    assert (worker["worker"], worker["unread"], worker["scope"]) == ("worker-1", [], "processes")
    assert worker["cpu_cores"] < worker["cpu_cores_limit"]


@pytest.mark.parametrize(
    ("job", "worker", "says"),
    [("gpus", "2", "no GPU"), ("bare", "0", "no GPU data: nvidia-smi not found")],
)
def test_a_worker_without_a_gpu_is_no_failure(jobs: Registry, job: str, worker: str, says: str) -> None:
    run = top(jobs, job, "-w", worker)
    heading, row = [cells(line) for line in run.stdout.decode().splitlines()]
    assert heading == ["WORKER", "CPU", "RAM GiB", "SCOPE", "MARKS"]
    assert row[::3] == [f"worker-{worker}", "processes"]
    assert (run.stderr.decode(), run.code) == (f"note: worker-{worker}: {says}\n", 0)


@pytest.mark.parametrize(
    ("job", "worker", "says", "code"),
    [
        ("gpus", "3", "nvidia-smi ended with 9: NVIDIA-SMI has failed because it couldn't communicate", 1),
        ("gpus", "4", "nvidia-smi has not answered: not done within 3 s", 124),
        ("gpus", "7", "nvidia-smi printed no GPU: ^@^@^@", 1),
        ("mixed", "1", "not running (Failed)", 1),
    ],
)
def test_a_worker_that_cannot_tell(jobs: Registry, job: str, worker: str, says: str, code: int) -> None:
    run = top(jobs, job, "-w", worker, *_LIMIT)
    assert run.code == code
    assert run.stderr.decode().startswith(f"warning: worker-{worker}: {says}")
    # CPU and memory are still shown if the worker is alive.
    assert run.stdout.count(b"\n") == (0 if job == "mixed" else 2)


def test_the_others_are_shown_all_the_same(jobs: Registry) -> None:
    run = top(jobs, "gpus", "--sort", "worker", *_LIMIT)
    lines = [cells(line) for line in run.stdout.decode().splitlines()[1:]]
    assert [line[0] for line in lines if "/" in line[4]] == ["worker-0", "worker-0", "worker-1", "worker-5", "worker-6"]
    assert {line[0] for line in lines} == {f"worker-{number}" for number in range(8)}
    said = run.stderr.decode()
    for worker in (2, 3, 4, 5, 7):
        assert f": worker-{worker}: " in said
    assert run.code == 124
    assert not jobs.commands("sleep 300")


def test_equal_words_are_folded(jobs: Registry) -> None:
    run = top(jobs, "bare")
    assert (run.stderr, run.code) == (b"note: worker-[0-1]: no GPU data: nvidia-smi not found\n", 0)


def test_rows_count_whatever_the_exit_code(jobs: Registry) -> None:
    run = top(jobs, "gpus", "-w", "5")
    assert b"T4" in run.stdout
    assert run.code == 0
    assert b"worker-5: nvidia-smi also said: Unable to determine the device handle" in run.stderr


def test_hostile_output(jobs: Registry) -> None:
    run = top(jobs, "gpus", "-w", "6")
    assert b"evil^[]0;x^G" in run.stdout
    assert b"\x1b" not in run.stdout


def test_a_document_names_the_failures(jobs: Registry) -> None:
    run = top(jobs, "gpus", "-w", "0,3", "-o", "json")
    document: Any = json.loads(run.stdout)
    assert (document["status"], run.code) == ("partial", 1)
    (problem,) = document["errors"]
    assert (problem["worker"], problem["kind"]) == ("worker-3", "failed")
    assert [worker["gpus"] is None for worker in document["data"]["workers"]] == [False, True]


def test_an_interval_has_a_least_length(jobs: Registry) -> None:
    for given in ("0.5", "0"):
        run = jobs.cli("top", "gpus", "--interval", given)
        assert (run.stdout, run.code) == (b"", 2)
        assert run.stderr == b"error: --interval must be at least 1 s\nhint: use the default of 3 s, or: --interval 1\n"


def test_in_pods() -> None:
    with Server() as server, tempfile.TemporaryDirectory() as tools:
        script = Path(tools) / "nvidia-smi"
        script.write_text(_NVIDIA_SMI)
        script.chmod(0o755)
        for number, path in enumerate((f"{tools}:/usr/bin:/bin", _without(Path(tools) / "bare"))):
            variables = [{"name": "RANK", "value": "0"}, {"name": "PATH", "value": path}]
            container = {"name": "main", "command": ["sleep", "1000"], "env": variables}
            meta = {"name": f"w-{number}", "namespace": "default"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
            server.put(pod, run=True)

        def ask(pod: str) -> Result:
            return run_cli("top", f"pod/{pod}", "--once", env={"KUBECONFIG": str(server.kubeconfig)})

        run = ask("w-0")
        assert (run.stdout.count(b"NVIDIA H100"), run.stderr, run.code) == (2, b"", 0)
        run = ask("w-1")
        assert (run.stderr, run.code) == (b"note: w-1: no GPU data: nvidia-smi not found\n", 0)
        assert cells(run.stdout.decode().splitlines()[1])[0] == "w-1"
        server.fault("drop-before-end", kind="exec", times=1)
        run = ask("w-0")
        # The output so far is shown, with a warning that it may be incomplete.
        assert (run.stdout.count(b"NVIDIA H100"), run.code) == (2, 255)
        assert run.stderr.startswith(b"warning: w-0: lost: ")
