"""The cost of starting: CPU time of child processes, as ratios measured in the same run."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from atlctl.cli.completion import cache, keep
from atlctl.jobs.model import Job, State, Worker
from tests.apiserver.handle import Server
from tests.support import proc

MAIN = "from atlctl.__main__ import main; main()"


def cpu(code, *argv, runs=7):
    """CPU seconds (user and system), the best of several runs."""
    best = float("inf")
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stderr == b""
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def loaded(*argv):
    """Modules in memory after a command line has run."""
    code = (
        "import sys\nfrom atlctl.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


def test_version_costs_hardly_more_than_python():
    assert cpu(MAIN, "--version") <= 3 * cpu("pass")


def test_completion_costs_a_few_times_python(isolated, monkeypatch):
    monkeypatch.setenv("ATLCTL_STATE_DIR", str(isolated))
    for index in range(200):
        os.makedirs(isolated / "local" / f"job-{index}")
        (isolated / "local" / f"job-{index}" / "job.json").write_text("{}")
    assert cpu(MAIN, "--complete", "bash", "3", "atlctl", "ps", "-j", "job-1") <= 5 * cpu("pass")


@pytest.fixture
def cached(isolated, monkeypatch):
    """A cluster with the maximum number of jobs in the cache, and a hostfile of a thousand hosts."""
    (isolated / "kubeconfig").write_text("{}")
    (isolated / "hosts").write_text("gpu[0001-1000]\n")
    monkeypatch.setenv("KUBECONFIG", str(isolated / "kubeconfig"))
    workers = [Worker(f"worker-{index}", index, State.RUNNING) for index in range(20)]
    jobs = [Job(f"job-{n}", "Job", "kubernetes", State.RUNNING, "u", 20, tuple(workers)) for n in range(1000)]
    keep.seen_jobs(jobs, whole=True)
    return isolated


def test_completion_from_a_full_cache_costs_a_few_times_python(cached):
    assert cpu(MAIN, "--complete", "bash", "3", "atlctl", "ps", "-j", "job-1") <= 5 * cpu("pass")


@pytest.mark.parametrize("words", [("ps", "-j", ""), ("exec", "-j", "job-1", "-w", ""), ("-n", ""), ("--context", "")])
def test_completion_imports_only_what_is_light(words, cached):
    """Neither dataclasses nor any other module that is slower than reading the names."""
    out, modules = loaded("--complete", "zsh", str(len(words)), "atlctl", *words)
    assert out
    _, bare = loaded("--version")
    code = "import __future__, sys, json, signal, errno, math, typing, contextlib; print(*sys.modules)"
    bare |= set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    ours = {
        "atlctl.cli",
        "atlctl.cli.completion.complete",
        "atlctl.cli.completion",
        "atlctl.cli.completion.cache",
        "atlctl.backends",
        "atlctl.backends.kubernetes",
        "atlctl.backends.kubernetes.kubeconfig",
        "atlctl.i18n",
        "atlctl.jobs",
        "atlctl.jobs.configfiles",
        "atlctl.jobs.errors",
        "atlctl.jobs.statedir",
    }
    assert modules - bare <= ours
    assert proc.wait_until(lambda: not os.path.lexists(os.path.join(cache.folder(), cache.LOCK)))


def test_help_costs_little_more_than_typer():
    assert cpu(MAIN, "--help") <= 2 * cpu("import typer")


@pytest.mark.parametrize("argv", [("--version",), ("--complete", "zsh", "1", "atlctl", "")])
def test_fast_paths_import_no_parser(argv):
    out, modules = loaded(*argv)
    assert out
    assert not {"typer", "asyncio", "logging", "subprocess", "atlctl.cli.app"} & modules


def test_version_of_the_slow_path_is_the_same():
    assert (
        loaded("--version")[0]
        == subprocess.run(
            [sys.executable, "-m", "atlctl", "-q", "--version"], capture_output=True, text=True, check=True
        ).stdout
    )


def test_running_a_command_needs_no_pydantic():
    """typer would use it for conversions, which takes more CPU time than the rest of the start."""
    _, modules = loaded("jobs", "-o", "json")
    assert "pydantic" not in modules
    assert "atlctl.cli.commands.jobs" in modules


@pytest.fixture(scope="module")
def cluster():
    """A small job on the test server."""
    with Server(rough=None) as server:
        metadata = {"name": "w-{i}", "namespace": "default", "labels": {"job": "x"}}
        spec = {"containers": [{"name": "main", "image": "x"}]}
        server.scale({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, 4)
        yield server


@pytest.mark.parametrize("certificate", [False, True])
def test_ps_with_static_credentials_imports_only_what_it_needs(certificate, cluster, monkeypatch):
    """Importing `kubernetes` takes as much CPU time as the rest of the command, and aiohttp half of that."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig("static", certificate=certificate)))
    out, modules = loaded("ps", "-l", "job=x")
    assert "w-3" in out
    needless = {"kubernetes", "pydantic", "requests", "urllib3", "aiohttp", "yarl", "attr"}
    needless |= {f"atlctl.backends.kubernetes.{name}" for name in ("stopping", "events", "permissions")}
    assert needless & modules == set()
    assert {"atlctl.backends.kubernetes.logs", "yaml"} <= modules
