"""What the pictures show: real jobs, and the command that is run on each."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import string
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import choices
from typing import Any

from tests.apiserver.handle import Server
from tests.integration.local import Registry
from tests.integration.stopping import TRAINING, Cluster, pod
from tests.integration.terminal import Terminal
from tests.pictures.screen import PLAIN, Look, Screen
from tests.pictures.svg import svg, text_of
from tests.support.cli import run_cli

HERE = Path(__file__).parent
#: Columns of a terminal, and languages.
COLUMNS = (80, 160)
LANGUAGES = {"en": "C.UTF-8", "zh": "zh_CN.UTF-8"}
#: The home and the address of the API that a picture shows. The real ones have as many letters.
HOME, API = "/home/user", "10.96.0.10:6443"
#: The host that a picture shows.
HOST = "gpu-11"

Run = Callable[[int, str], Screen]


@contextlib.contextmanager
def home() -> Iterator[Registry]:
    """A home with a training script, and a virtual environment as a training has it."""
    folder = Path("/tmp", "".join(choices(string.ascii_lowercase, k=len(HOME) - len("/tmp/"))))
    folder.mkdir(mode=0o700)
    own = Registry(folder)
    try:
        for name in ("run", "tmp", "bin"):
            folder.joinpath(name).mkdir(mode=0o700)
        shutil.copy(HERE / "train.py", folder)
        shutil.copy(HERE / "nvidia-smi", folder / "bin")
        folder.joinpath("venv").symlink_to(sys.prefix)
        yield own
    finally:
        own.end()
        shutil.rmtree(folder, ignore_errors=True)


def runner(env: dict[str, str | None], folder: str, *words: str) -> Run:
    """Runs `atlctl WORDS` on a terminal; its screen, with the command line on top."""

    def run(columns: int, language: str) -> Screen:
        texts = {"LC_ALL": LANGUAGES[language], "LANG": LANGUAGES[language]}
        result = run_cli(*words, env={**env, **texts}, tty=True, columns=columns, rows=50, timeout=50)
        return drawn(columns, folder, result.stdout, words)

    return run


def live(env: dict[str, str | None], folder: str, *words: str) -> Run:
    """As `runner`, of a command that draws until `q`: its screen of 14 rows some seconds after the first worker."""

    def run(columns: int, language: str) -> Screen:
        texts = {"LC_ALL": LANGUAGES[language], "LANG": LANGUAGES[language]}
        with Terminal(*words, env={**env, **texts}, columns=columns, rows=14) as terminal:
            terminal.wait_for(b"worker-", 40)
            deadline = time.monotonic() + 7
            while time.monotonic() < deadline:
                terminal.poll()
            shown = terminal.screen
            terminal.type(b"q")
            terminal.code()
        return drawn(columns, folder, shown, words)

    return run


def drawn(columns: int, folder: str, shown: bytes, words: tuple[str, ...]) -> Screen:
    """The screen, with the command line on top, and with names in place of this machine's."""
    screen = Screen(columns)
    screen.feed(re.sub(rb"127\.0\.0\.1:\d{5}\b", API.encode(), shown.replace(folder.encode(), HOME.encode())))
    screen.replace(socket.gethostname(), HOST)
    screen.rows.insert(0, [*_typed(" ".join(("atlctl", *words)))])
    return screen


def _typed(line: str) -> Iterator[tuple[str, Look]]:
    yield from (("$", Look(dim=True)), (" ", PLAIN))
    yield from ((letter, Look(bold=True)) for letter in line)


def training(own: Registry, name: str, fault: str) -> str:
    """Two workers of two ranks, one of which fails or hangs. As on many platforms the launch script stays."""
    script = (
        "$HOME/venv/bin/python -m torch.distributed.run --nnodes $WORLD_SIZE --node-rank $RANK --nproc-per-node 2 "
        "--master-addr 127.0.0.1 --master-port $MASTER_PORT --log-dir $HOME/elastic $HOME/train.py "
        f"{fault} 3; sleep 4000"
    )
    env = ("OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo", f"HOME={own.home}")
    return own.start(name, 2, "sh", "-c", script, options=tuple(word for pair in env for word in ("--env", pair)))


@contextlib.contextmanager
def errors() -> Iterator[Run]:
    with home() as own:
        training(own, "train-7", "fail")
        own.until("train-7", "Held", 50)
        yield runner(own.env, str(own.home), "errors", "train-7")


@contextlib.contextmanager
def stacks() -> Iterator[Run]:
    with home() as own:
        training(own, "train-7", "hang")
        deadline = time.monotonic() + 50
        while "step 10 " not in own.cli("logs", "train-7").stdout.decode():
            assert time.monotonic() < deadline
            time.sleep(0.5)
        time.sleep(3)  # ten more steps; then the others wait
        yield runner(own.env, str(own.home), "stacks", "train-7")


@contextlib.contextmanager
def gpus(state: str) -> Iterator[Registry]:
    """A job of 4 workers on nodes of eight GPUs, of which one is `hot` or `lost`."""
    with home() as own:
        path = f"PATH={own.home / 'bin'}:{os.environ['PATH']}"
        own.start("train-7", 4, options=("--env", path, "--env", f"GPUS={state}"))
        yield own


@contextlib.contextmanager
def top() -> Iterator[Run]:
    with gpus("hot") as own:
        yield live(own.env, str(own.home), "top", "train-7", "--interval", "1")


@contextlib.contextmanager
def smoke() -> Iterator[Run]:
    with gpus("lost") as own:
        yield runner(own.env, str(own.home), "smoke", "train-7", "--no-gpu")


def status(phase: str, **container: Any) -> dict[str, Any]:
    """A pod's status, of whose container some fields are given."""
    one = {"name": "pytorch", "image": "x", "imageID": "x", "ready": phase == "Running", "restartCount": 0, **container}
    return {"phase": phase, "podIP": "10.0.3.17", "containerStatuses": [one]}


def ended(reason: str, code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": _ago(7200), "finishedAt": _ago(180)}}


def _ago(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))


@contextlib.contextmanager
def cluster() -> Iterator[tuple[Registry, Cluster]]:
    """A PyTorchJob of six workers on nodes of eight GPUs, of which one was killed, one restarts and one has no node."""
    running = {"running": {"startedAt": _ago(7200)}}
    unplaced = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
    }
    states = [
        *[status("Running", state=running, started=True)] * 3,
        status("Failed", state=ended("OOMKilled", 137)),
        status(
            "Running", state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended("Error", 1), restartCount=4
        ),
        unplaced,
    ]
    with home() as own, Server(namespace="ml", rough=None) as server:
        made = Cluster(server)
        own.env["KUBECONFIG"] = str(server.kubeconfig)
        kind = {"apiVersion": TRAINING, "kind": "PyTorchJob"}
        meta = {"name": "train-7", "namespace": "ml", "creationTimestamp": _ago(7300)}
        spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": len(states)}}, "runPolicy": {}}
        condition = {"type": "Running", "status": "True"}
        job = server.put({**kind, "metadata": meta, "spec": spec, "status": {"conditions": [condition]}})
        for index, state in enumerate(states):
            words = {"job-name": "train-7", "replica-type": "worker", "replica-index": str(index)}
            labels = {f"training.kubeflow.org/{key}": value for key, value in words.items()}
            container = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
            more = {"nodeName": f"gpu-{index + 11}"} if state is not unplaced else {"nodeName": None}
            one = pod(f"train-7-worker-{index}", job, labels, container=container, **more)
            one["metadata"] |= {"namespace": "ml", "creationTimestamp": _ago(7290)}
            server.put({**one, "status": {"startTime": _ago(7280), **state}})
        yield own, made


@contextlib.contextmanager
def ps() -> Iterator[Run]:
    with cluster() as (own, _):
        yield runner(own.env, str(own.home), "ps", "train-7")


@contextlib.contextmanager
def stop() -> Iterator[Run]:
    with cluster() as (own, _):
        yield runner(own.env, str(own.home), "stop", "train-7", "--dry-run")


@contextlib.contextmanager
def helping() -> Iterator[Run]:
    with home() as own:
        yield runner(own.env, str(own.home), "--help")


#: Name of a picture -> what it shows.
SCENES: dict[str, Callable[[], contextlib.AbstractContextManager[Run]]] = {
    "errors": errors,
    "stacks": stacks,
    "ps": ps,
    "top": top,
    "smoke": smoke,
    "stop": stop,
    "help": helping,
}


PICTURES = HERE.parents[1] / "docs" / "pictures"


def made(name: str) -> Iterator[tuple[Path, str]]:
    """Runs the command of a picture in all widths and languages; file and content of each picture."""
    with SCENES[name]() as run:
        for language in LANGUAGES:
            for columns in COLUMNS:
                lines = run(columns, language).lines()
                yield PICTURES / f"{name}-{columns}.{language}.svg", svg(f"atlctl {name}", lines, columns)


def normal(picture: str) -> list[str]:
    """The words of a picture, without lines, bars, numbers, ages and IDs, which differ from run to run, and without the
    worker that smoke names if it answered late."""
    text = re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text_of(picture))
    text = re.sub(r"none_\w{8}", "none_ID", text)
    text = re.sub(r"[\u2500-\u259f·]+", " ", text)
    text = re.sub(r"\d+(?:[.:-]\d+)*", "0", text)
    text = re.sub(r"\b0[smhd](?: 0[smhd])?\b|\b0 (?:min|h|s)\b(?: 0 (?:min|s)\b)?", "AGE", text)
    text = re.sub(r"[,，]\s*worker-0\s+(?:after|用时)\s+AGE", "", text)
    return text.split()
