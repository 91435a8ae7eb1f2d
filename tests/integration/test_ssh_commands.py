"""Commands on two hosts, each with a separate sshd, and a real torchrun job on both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlctl.remote.supervisor.boot import free_port
from tests.integration.local import Registry, objects, problem, registry
from tests.integration.terminal import Terminal
from tests.support import proc
from tests.support.cli import Result
from tests.support.needs import needs
from tests.support.sshd import Sshd, make_key

pytestmark = needs("sshd")
REPOSITORY = Path(__file__).parents[2]
#: The folder of an interpreter with torch, for the workers' PATH.
BIN = Path(sys.executable).parent
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(10_000):
    dist.all_reduce(torch.ones(8))
    if dist.get_rank() == 0:
        print("step", step, flush=True)
    if dist.get_rank() == 3 and os.path.exists(sys.argv[1]):
        raise ValueError("shard 17: bad magic")
    time.sleep(0.05)
"""


class Cluster(Registry):
    """A client that knows gpu1 and gpu2. Processes there carry the registry's mark."""

    hosts: list[Sshd]

    def begin(self) -> None:
        ssh = self.home / ".ssh"
        ssh.mkdir(mode=0o700)
        key = make_key(ssh / "id_ed25519")
        self.hosts = [Sshd(self.home / f"sshd{n}", [key], [f"127.0.8.{n}"]) for n in (1, 2)]
        config, known = [], []
        for number, host in enumerate(self.hosts, 1):
            login = {"HOME": self.home / f"home{number}", "XDG_STATE_HOME": self.home / f"state{number}"}
            told = " ".join(f"{name}={value}" for name, value in {**login, proc.MARK: self.mark}.items())
            with host.config.open("a") as file:
                file.write(f"SetEnv {told} PATH={BIN}:/usr/bin:/bin\n")
            host.stop()
            host.start()
            config.append(f"Host gpu{number}\n  HostName {host.addresses[0]}\n  Port {host.port}\n")
            known.append(host.known)
        (ssh / "config").write_text("".join(config))
        (ssh / "known_hosts").write_text("".join(known))
        (self.home / "hosts").write_text("gpu1 slots=2\ngpu2 slots=2\n")

    def on(self, *words: str, **options: Any) -> Result:
        """Run atlctl with the hostfile."""
        return self.cli("--hostfile", str(self.home / "hosts"), *words, **options)

    def run(self, name: str, *words: str, options: tuple[str, ...] = ()) -> None:
        run = self.on("ssh", "run", "--name", name, "--detach", *options, "--", *words)
        assert run == (f"{name}\n".encode(), b"", 0), run

    def until_ended(self, job: str) -> None:
        """Wait until no worker of the job is active."""
        ended = {"Succeeded", "Failed", "Stopped", "Lost"}
        assert proc.wait_until(lambda: set(self.states(job)) <= ended, interval=0.2), self.states(job)

    def close(self) -> None:
        for host in self.hosts:
            host.close()


@pytest.fixture(scope="module")
def gpus() -> Iterator[Cluster]:
    with registry() as own:
        made = Cluster(own.home)
        made.begin()
        try:
            yield made
        finally:
            made.end()
            made.close()


def test_a_command_on_all_hosts(gpus: Cluster) -> None:
    run = gpus.on("exec", "--all", "sh", "-c", "echo $HOME; exit 3")
    assert sorted(run.stdout.decode().splitlines()) == [f"gpu{n}: {gpus.home}/home{n}" for n in (1, 2)]
    assert run.code == 3
    told = objects(gpus.on("exec", "-w", "gpu2", "-o", "json", "hostname").stdout)
    assert [one["worker"] for one in told if one["type"] == "outcome"] == ["gpu2"]
    assert gpus.on("exec", "-w", "1", "-i", "cat", stdin=b"\0\xff\n").stdout == b"\0\xff\n"


def test_hosts_that_are_there_and_one_that_is_not(gpus: Cluster) -> None:
    folder = gpus.home / "lists"
    folder.mkdir()
    (folder / "some").write_text("gpu1\nnobody@127.0.8.9:1\n")
    run = gpus.cli("--hostfile", str(folder / "some"), "ps", "-o", "json")
    data = json.loads(run.stdout)["data"]
    assert [(one["name"], one["state"]) for one in data["workers"]] == [("gpu1", "Running"), ("127.0.8.9", "Unknown")]
    assert "refused" in data["workers"][1]["reason"]
    usage = data["workers"][0]["usage"]
    assert usage["cpus"] == os.cpu_count()
    assert usage["load"] >= 0
    run = gpus.cli("--hostfile", str(folder / "some"), "exec", "--all", "true")
    assert (run.code, b"connection refused" in run.stderr) == (255, True)


def test_run_inside_makes_no_second_job(gpus: Cluster) -> None:
    script = "echo $ATLCTL_JOB $ATLCTL_WORKER; exit $((RANK * 3))"
    wrapped = f"PYTHONPATH={REPOSITORY} exec {sys.executable} -m atlctl run --items none --settle 0 --hold 10m"
    gpus.run("owner", "sh", "-c", f"{wrapped} --dir {gpus.home}/shared -- sh -c '{script}'")
    assert proc.wait_until(lambda: gpus.cli("logs", "owner").stdout.count(b" is kept: ") == 2, 60, 0.2)
    assert gpus.cli("jobs", "-o", "name").stdout == b"owner\n"
    said = gpus.cli("logs", "owner").stdout
    assert b"gpu1: owner gpu1\n" in said
    assert b"gpu2: owner gpu2\n" in said
    assert said.count(b"atlctl: this run belongs to job owner") == 1
    # On a host only the wrappers know the job.
    there = {"ATLCTL_JOB": "owner", "ATLCTL_WORKER": "gpu2", "ATLCTL_STATE_DIR": f"{gpus.home}/state2/atlctl"}
    states = [worker["state"] for worker in gpus.data("ps", env=there)["workers"]]
    assert states == ["Held", "Held"]
    assert gpus.cli("release", env=there).stderr == b"released: worker-[0-1]\n"
    gpus.until_ended("owner")
    assert gpus.states("owner") == ["Succeeded", "Failed"]
    assert "exit code 3" in gpus.cli("errors", "owner").stdout.decode()
    assert gpus.cli("ssh", "rm", "owner", "--yes").code == 0


def test_a_list_of_the_configuration(gpus: Cluster) -> None:
    folder = gpus.home / ".config/atlctl"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('[ssh.jobs.lab]\nhosts = ["gpu[1-2]"]\n')
    try:
        assert [one["name"] for one in gpus.data("ps", "lab")["workers"]] == ["gpu1", "gpu2"]
        assert gpus.cli("exec", "-j", "lab", "-x", "0", "--all", "true").code == 0
        # The only visible job.
        assert gpus.cli("jobs", "-o", "name").stdout == b"lab\n"
        assert gpus.data("doctor")["backend"]["name"] == "ssh"
    finally:
        (folder / "config.toml").unlink()


@pytest.mark.parametrize("words", [("logs",), ("errors",), ("record",), ("stop", "hosts")])
def test_a_list_has_no_logs_and_no_processes(gpus: Cluster, words: tuple[str, ...]) -> None:
    run = gpus.on(*words)
    assert run.code == 2
    message, hint = problem(run.stderr)
    assert "a list of hosts" in message
    assert "atlctl ssh run" in hint


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--backend", "local", "--hostfile", "x", "ps"), "'--hostfile' does not apply to the backend local"),
        (("-n", "ml", "ps", "--hostfile", "x"), "do not go together"),
        (("ps", "--hostfile", "/nonexistent"), "cannot read the hostfile"),
        (("ps", "--hostfile", "/dev"), "not a regular file"),
        (("ssh", "run", "--", "true"), "on which hosts?"),
        (("--backend", "ssh", "ps", "nowhere"), "no job named nowhere"),
    ],
)
def test_bad_words(gpus: Cluster, words: tuple[str, ...], says: str) -> None:
    run = gpus.cli(*words)
    assert run.code in (2, 3)
    assert says in problem(run.stderr)[0]


def test_files_to_hosts_and_back(gpus: Cluster, tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(os.urandom(300_000))
    target = gpus.home / "target"
    assert gpus.on("cp", "--all", str(tmp_path / "a b"), f":{target}").code == 0
    assert gpus.on("cp", "gpu2:" + str(target), str(tmp_path / "back")).code == 0
    assert (tmp_path / "back").read_bytes() == (tmp_path / "a b").read_bytes()


def test_a_shell_on_a_host(gpus: Cluster) -> None:
    with Terminal("--hostfile", str(gpus.home / "hosts"), "shell", "gpu2", env=gpus.env) as shell:
        shell.type(b"echo in-$((40+2))-$HOME; stty size; exit 7\n")
        shell.wait_for(f"in-42-{gpus.home}/home2".encode())
        shell.wait_for(b"24 80")
        assert shell.code() == 7


def test_ctrl_c_ends_a_job_that_is_watched(gpus: Cluster) -> None:
    client = gpus.popen(
        *("--hostfile", str(gpus.home / "hosts"), "ssh", "run", "--name", "watched"),
        *("--", "sh", "-c", "echo begun; sleep 2718"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert client.stdout is not None
    assert b"begun" in client.stdout.readline()
    client.send_signal(signal.SIGINT)
    _, said = client.communicate(timeout=100)
    assert client.returncode == 130, said
    assert proc.wait_until(lambda: not gpus.commands("sleep 2718"))
    assert set(gpus.states("watched")) == {"Stopped"}


def test_slots_that_are_picked_are_the_gpus_that_a_worker_sees(gpus: Cluster) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES $MASTER_ADDR"
    run = gpus.on("ssh", "run", "--name", "some", "--include", "gpu2:1@gpu1", "--", "sh", "-c", script)
    assert run.code == 0, run
    # The first host's alias is unknown on the other hosts.
    address = gpus.hosts[1].addresses[0]
    assert sorted(run.stdout.decode().splitlines()) == [f"gpu1: {address}", f"gpu2: 1 {address}"]


def test_a_job_outlives_its_client_and_goes_with_its_logs(gpus: Cluster) -> None:
    gpus.run("short", "sh", "-c", "echo $RANK of $WORLD_SIZE, $ATLCTL_WORKER; exit $RANK")
    gpus.until_ended("short")
    logs = gpus.cli("logs", "short").stdout.decode().splitlines()
    assert sorted(logs) == ["gpu1: 0 of 2, gpu1", "gpu2: 1 of 2, gpu2"]
    assert gpus.states("short") == ["Succeeded", "Failed"]
    assert gpus.cli("exec", "-j", "short", "--all", "true").code == 255
    assert gpus.cli("ssh", "rm", "short").code == 2, "nobody can be asked"
    assert gpus.cli("ssh", "rm", "short", "--yes").stdout == b"short\n"
    assert gpus.cli("ps", "short", "--backend", "ssh").code == 3
    assert not list(gpus.home.glob("state*/atlctl/ssh-workers/short"))


@pytest.mark.torch
def test_a_torchrun_job_across_hosts(gpus: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    trigger = tmp_path / "break"
    launch = (
        "exec torchrun --nnodes $WORLD_SIZE --nproc-per-node 2 --node-rank $RANK --master-addr $MASTER_ADDR "
        f"--master-port $MASTER_PORT {tmp_path}/train.py {trigger}"
    )
    # gloo on one machine: both hosts are addresses of it.
    options = ("--env", "GLOO_SOCKET_IFNAME=lo", "--master-port", str(free_port()))
    gpus.run("train", "sh", "-c", launch, options=options)
    with gpus.popen("logs", "train", "-f", "-w", "0", stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert any(line.startswith(b"step 3") for line in following.stdout)
        following.terminate()
    data = gpus.data("ps", "train")
    assert data["job"]["state"] == "Running"
    assert [one["usage"]["ranks"] for one in data["workers"]] == [2, 2]
    run = gpus.cli("exec", "-j", "train", "--rank", "3", "sh", "-c", "echo $ATLCTL_WORKER $RANK")
    assert run.stdout == b"gpu2 1\n"
    stacks = gpus.data("stacks", "train", timeout=60)
    assert sorted(rank for group in stacks["groups"] for rank in group["ranks"]) == [0, 1, 2, 3]
    smoke = gpus.data("smoke", "train", "--net-only", timeout=60)
    assert smoke["verdict"] in ("pass", "not_judged")
    assert all(worker["answered"] for worker in smoke["workers"])

    trigger.touch()
    gpus.until_ended("train")
    (cause,) = gpus.data("errors", "train")["root_causes"]
    assert (cause["rank"], cause["worker"]) == (3, "gpu2")
    trigger.unlink()
    gpus.run("again", "sh", "-c", launch, options=options)
    assert gpus.cli("stop", "again", "--yes", timeout=60).code == 0
    assert set(gpus.states("again")) == {"Stopped"}
    assert proc.wait_until(lambda: not gpus.running("train.py"))


SCRIPT = '#!/bin/sh\necho "rank $RANK in $PWD, $MASTER_PORT, $OWN"\n[ -e mended ] || exit 3\n'


def test_rerun_on_all_hosts_or_on_none(gpus: Cluster) -> None:
    place, port = gpus.home / "place", str(free_port())
    place.mkdir()
    (place / "train.sh").write_text(SCRIPT)
    (place / "train.sh").chmod(0o755)
    gpus.run("again", "./train.sh", options=("--env", "OWN=a b", "--master-port", port, "--chdir", str(place)))
    gpus.until_ended("again")
    told = [f"gpu{number}: rank {number - 1} in {place}, {port}, a b" for number in (1, 2)]

    def lines(*options: str) -> list[str]:
        return sorted(gpus.cli("logs", "again", *options).stdout.decode().splitlines())

    assert lines() == told
    assert b"gpu2: no log of that attempt" in gpus.cli("logs", "again", "--previous", "-w", "1").stderr

    def files() -> list[Path]:
        return sorted(gpus.home.glob("state?/atlctl/ssh-workers/again/**/*"))

    # One host refuses before anything is started, then its supervisor does not start: that of the other one has.
    own, before = gpus.home / "state2/atlctl/ssh-workers/again/gpu2", files()
    for part, why in (("env.json", "the record of its environment is damaged"), ("program", "ended at once")):
        (own / part).rename(own / "away")
        run = gpus.cli("rerun", "again", "--yes")
        (own / "away").rename(own / part)
        assert run.code == 1, run
        assert why in problem(run.stderr[run.stderr.index(b"error: ") :])[0]
        assert (gpus.states("again"), lines(), files()) == (["Failed", "Failed"], told, before)

    (place / "mended").touch()
    run = gpus.cli("rerun", "again", "--yes")
    assert (run.stdout, run.code) == (b"", 0), run
    assert b"\n  how: attempt 2: ./train.sh\n" in run.stderr
    gpus.until("again", "Succeeded")
    assert lines() == lines("--previous") == lines("--attempt", "1") == told
    ends = [gpus.data("errors", "again", "--attempt", str(number))["state"] for number in (1, 2)]
    assert ends == ["Failed", "Succeeded"]

    gpus.cli("rerun", "again", "--yes", "--", "sh", "-c", "echo other $RANK; exec sleep 1000")
    assert proc.wait_until(lambda: len(lines()) == 2)
    assert lines() == ["gpu1: other 0", "gpu2: other 1"]
    refused = problem(gpus.cli("rerun", "again", "--yes").stderr)
    assert refused == ("job again is still running", "stop it first: atlctl stop again")
    assert gpus.cli("stop", "again", "--keep", "--yes").code == 0
    assert gpus.states("again") == ["Stopped", "Stopped"]
    assert gpus.data("rerun", "again", "--dry-run")["attempt"] == 4
    assert gpus.cli("ssh", "rm", "again", "--yes").code == 0
