"""The cost of `exec` and `ps` on many pods of the test API server, which is a process of its own, over TLS.

CPU is that of the client: the server, the commands and what guards them run on the same machine and are not counted.
Wall time is theirs, too, so it is shown and not judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import pytest

from tests.apiserver.handle import Server
from tests.benchmarks.logs import FAILURE, mixed
from tests.benchmarks.measure import Cost, cost, report
from tests.integration.stopping import Cluster
from tests.support.needs import find_program

ATLCTL = (sys.executable, "-m", "atlctl")
BARE = (sys.executable, str(Path(__file__).with_name("bare.py")))
SIZES = (16, 256, 1000)
#: Turns. The cheapest run is shown, since a busy machine only ever adds; the ratio is the median of the turns' ratios.
RUNS = {16: 5, 256: 7, 1000: 7}
#: Against the bare loop, both without what a run on one worker takes: interpreter, imports, finding the job.
BARE_RATIO = 1.3
KUBECTL_RATIO = 10
PEAK_MB = 200
#: `ps` of 1,000 pods against the imports that no command on a cluster does without (3.1 where the bar was set).
PS_RATIO = 3.5
#: `errors` on logs that are far larger than what has to be read of them.
LOGS, LOG_SIZE = 64, 50 << 20
ERRORS_WALL = 10.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Jobs bench-16, bench-256, bench-1000. Their pods run nothing but what `exec` starts in them."""
    with Server(rough=None) as server:
        own = Cluster(server)
        for size in SIZES:
            own.pytorchjob(f"bench-{size}", size)
        yield own


@pytest.fixture
def env(cluster: Cluster) -> dict[str, str]:
    """With compiled modules kept, as in every installation."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "KUBECONFIG": str(cluster.server.kubeconfig)}


@pytest.fixture
def large(cluster: Cluster, tmp_path: Path) -> str:
    """A job of 64 pods with 50 MiB of log each. One failed in the last minute, the others go on training."""
    cluster.pytorchjob("large", LOGS)
    healthy, failed = tmp_path / "healthy.log", tmp_path / "failed.log"
    lines = mixed(LOG_SIZE * 4 // 5).splitlines()  # a stamp is about a fifth of what it stands before
    begun = datetime(2026, 11, 20, 9, tzinfo=UTC)
    step = timedelta(hours=8) / len(lines)
    stamped = [
        b"%sZ %s\n" % ((begun + step * at).isoformat("T", "microseconds")[:26].encode(), line)
        for at, line in enumerate(lines)
    ]
    healthy.write_bytes(b"".join(stamped))
    last = (begun + timedelta(hours=8)).isoformat("T", "microseconds")[:26].encode()
    failed.write_bytes(healthy.read_bytes() + b"".join(b"%sZ %s\n" % (last, line) for line in FAILURE.splitlines()))
    for index in range(LOGS):
        cluster.server.log(f"large-worker-{index}", path=failed if index == 17 else healthy)
    return "large"


def turns(runs: int, env: dict[str, str], *commands: Sequence[str]) -> list[list[Cost]]:
    """The runs of each command. They take turns, so that a busy minute hits all alike."""
    found: list[list[Cost]] = [[] for _ in commands]
    for turn in range(runs + 1):
        for costs, argv in zip(found, commands, strict=True):
            one = cost(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if turn > 0:  # the first fills caches
                costs.append(one)
    return found


def cheapest(runs: int, env: dict[str, str], *commands: Sequence[str]) -> list[Cost]:
    return [min(costs, key=lambda run: run.cpu) for costs in turns(runs, env, *commands)]


@pytest.mark.parametrize("size", SIZES)
def test_exec_true_on_many_pods(cluster: Cluster, env: dict[str, str], size: int) -> None:
    server, job = cluster.server, f"bench-{size}"
    pods = [f"{job}-worker-{index}" for index in range(size)]
    loop = (*BARE, server.url, server.ca, "token-admin")
    found = turns(
        RUNS[size],
        env,
        (*loop, *pods),
        (*loop, pods[0]),
        (*ATLCTL, "exec", "-j", job, "--all", "true"),
        (*ATLCTL, "exec", "-j", job, "-w", "0", "true"),
    )
    bare, bare_one, ours, ours_one = (min(costs, key=lambda run: run.cpu) for costs in found)
    each = (ours.cpu - ours_one.cpu) / (size - 1)
    ratio = median((a.cpu - o.cpu) / max(b.cpu - b1.cpu, 1e-9) for b, b1, a, o in zip(*found, strict=True))
    rows = [
        ("bare aiohttp", bare),
        ("bare aiohttp, 1 pod", bare_one),
        ("exec --all true", ours),
        ("exec -w 0", ours_one),
    ]
    report(f"true in {size} pods", rows, f"{each * 1e3:.2f} CPU-ms for one more pod, {ratio:.2f} x the bare loop's")
    assert ours.peak < PEAK_MB
    if size > 16:  # with a few, the difference of two starts is noise
        assert ratio <= BARE_RATIO


@pytest.mark.parametrize("size", [16, 256])
def test_exec_beside_kubectl(cluster: Cluster, env: dict[str, str], size: int) -> None:
    if find_program("kubectl") is None:
        pytest.skip("no kubectl")
    job = f"bench-{size}"
    Path("pods").write_text("".join(f"{job}-worker-{index}\n" for index in range(size)))
    xargs, ours = cheapest(
        1,
        env,
        ("sh", "-c", "xargs -P 64 -I POD kubectl exec POD -- true < pods"),
        (*ATLCTL, "exec", "-j", job, "--all", "true"),
    )
    report(f"true in {size} pods", [("xargs -P 64 kubectl exec", xargs), ("exec --all true", ours)])
    if size > 16:
        assert ours.cpu * KUBECTL_RATIO <= xargs.cpu


def test_ps_of_a_thousand_pods_into_a_pipe(cluster: Cluster, env: dict[str, str]) -> None:
    imports = "import atlctl.cli.app, asyncio, ssl"
    piped = f"{' '.join(ATLCTL)} ps bench-1000 | cat"
    bare, ours = cheapest(4, env, (sys.executable, "-c", imports), ("sh", "-c", piped))
    rows = [("the imports alone", bare), ("ps, with sh and cat", ours)]
    if find_program("kubectl") is not None:
        (kubectl,) = cheapest(4, env, ("kubectl", "get", "pods"))
        rows.append(("kubectl get pods (1,272 of them)", kubectl))
    report("ps of 1,000 pods", rows, f"{ours.cpu - bare.cpu:.2f} CPU-s above the imports")
    assert ours.cpu <= PS_RATIO * bare.cpu


def test_errors_of_64_pods_with_large_logs(cluster: Cluster, env: dict[str, str], large: str) -> None:
    answer = Path("answer")
    with answer.open("w+b") as file:
        ours = cost((*ATLCTL, "errors", large, "-o", "json"), env=env, stdout=file, stderr=subprocess.DEVNULL)
    bare = cost((sys.executable, "-c", "import kubernetes.config, aiohttp, atlctl.cli.app"), env=env)
    report(f"errors, {LOGS} pods x {LOG_SIZE >> 20} MiB", [("the imports alone", bare), ("errors", ours)])
    [cause] = json.loads(answer.read_text())["data"]["root_causes"]
    assert cause["worker"] == "worker-17"
    assert ours.wall <= ERRORS_WALL
    assert ours.peak < PEAK_MB
