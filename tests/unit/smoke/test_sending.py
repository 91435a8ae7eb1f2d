"""Sending the agent: its Python version, the Python that runs it, and imports to avoid."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from atlctl.remote import sending
from atlctl.smoke import session
from atlctl.smoke.session import Session
from tests.support import proc
from tests.support.plainhosts import PlainHosts, workers

SENT = sorted(Path(sending.__file__).parent.rglob("*.py"))
#: The base interpreter outside of virtual environments.
BASE = os.path.realpath(sys.executable)


@pytest.mark.parametrize("path", SENT, ids=lambda path: path.name)
def test_what_is_sent_is_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    if "annotations" in path.read_text().partition("\n\n")[2][:200]:
        return
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign | ast.FunctionDef) and _new(node)]


def _new(node: ast.AST) -> bool:
    """Whether Python 3.8 would evaluate this annotation and fail."""
    return any(
        isinstance(part, ast.BinOp | ast.Subscript)
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.arg)
        for part in ast.walk(child)
    )


def test_the_words_are_few() -> None:
    words = session.request_for(True, 1).argv.words
    # More would not fit into a request URL for a pod.
    assert sum(len(word.encode()) for word in words) < 4500


def hello(env: Mapping[str, str], torch: bool = False, patience: float = 1) -> tuple[dict[str, object], dict[str, str]]:
    """The first event of one agent, and the missing workers. `patience`: with the search for torch."""

    async def scenario() -> tuple[dict[str, object], dict[str, str]]:
        hosts = PlainHosts(env=lambda _: env)
        config = {"seconds": 20, "torch": False, "finds_torch": torch}
        async with Session(hosts, workers(1), config, patience) as asked:
            missing = await asked.roll_call(15)
            return asked.hello("worker-0"), missing

    return asyncio.run(scenario())


def bare(tmp_path: Path) -> Path:
    """A folder with programs, but without Python."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "readlink", "ls", "sleep"):
        (tools / name).symlink_to(str(shutil.which(name)))
    return tools


def test_modules_of_the_folder_where_the_worker_stands_are_not_run() -> None:
    here = Path.cwd()
    for name in ("json", "zlib", "socket", "platform", "threading", "torch", "importlib"):
        (here / f"{name}.py").write_text("open('was-run', 'w')\nraise SystemExit('hostile')\n")
    for env in ({}, {"PYTHONPATH": ""}):
        assert hello(env, torch=True)[1] == {}
    # torch is searched in PYTHONPATH, but not imported; the standard library is not imported from there. (Except
    # modules that Python needs for its start: a worker with such a module there runs no Python.)
    for name in ("zlib", "socket", "threading", "importlib"):
        (here / f"{name}.py").unlink()
    assert hello({"PYTHONPATH": str(here)}, torch=True)[1] == {}
    assert not (here / "was-run").exists()


def test_without_a_python_in_path_that_of_a_process_of_the_same_user_is_taken(tmp_path: Path) -> None:
    tools = bare(tmp_path)
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env/bin/python3"
    running = subprocess.Popen([python, "-c", "import time; time.sleep(60)"])
    try:
        said, missing = hello({"PATH": str(tools)})
        assert missing == {}
        # It may belong to another process of this user.
        assert os.path.basename(os.path.realpath(str(said["executable"]))).startswith("python3")
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize(("how", "patience", "taken"), [("path", 1, True), ("name", 1, True), ("path", 0.1, False)])
def test_a_python_with_torch_that_a_trainer_uses_goes_before_one_without(
    tmp_path: Path, how: str, patience: float, taken: bool
) -> None:
    """The trainer's venv is found by its start command, or by its PATH, if it answers within 5 s times `patience`."""
    tools = bare(tmp_path)
    venv.create(tmp_path / "plain", symlinks=True)
    (tools / "python3").symlink_to(tmp_path / "plain/bin/python3")
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("raise SystemExit('not to be imported')\n")
    (site / "sitecustomize.py").write_text("import time; time.sleep(0.6)\n")
    python = tmp_path / "env/bin/python"
    words = [str(python) if how == "path" else "python", "-c", "import time; time.sleep(60)"]
    env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "ATLCTL_JOB": "mine"}
    running = subprocess.Popen(words, env=env, executable=str(python))
    try:
        said, missing = hello({"PATH": str(tools), "ATLCTL_JOB": "mine"}, torch=True, patience=patience)
        assert missing == {}
        assert str(said["executable"]).startswith(str(tmp_path / "env/bin/")) is taken
    finally:
        running.kill()
        running.wait()


def test_a_path_that_is_not_the_program_that_runs_is_not_run(tmp_path: Path) -> None:
    """A process can change its name: its first argument must not be trusted as a program."""
    tools = bare(tmp_path)
    trap = tmp_path / "python-trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\nexit 96\n")
    trap.chmod(0o755)
    running = subprocess.Popen([str(trap), "-c", "import time; time.sleep(60)"], executable=BASE)
    try:
        _, missing = hello({"PATH": str(tools)})
        assert missing == {}
        venv.create(tmp_path / "plain", symlinks=True)
        (tools / "python3").symlink_to(tmp_path / "plain/bin/python3")
        hello({"PATH": str(tools)}, torch=True)
        assert not (tmp_path / "was-run").exists()
    finally:
        running.kill()
        running.wait()


def test_an_agent_ends_with_its_stream_and_leaves_nothing() -> None:
    async def scenario() -> None:
        asked = Session(PlainHosts(), workers(2), {"seconds": 20, "torch": False})
        async with asked:
            assert await asked.roll_call(15) == {}
            pids = [int(asked.hello(name)["pid"]) for name in asked.living()]
            assert all(proc.alive(pid) for pid in pids)
        assert asked.may_still_run() == []
        assert not any(proc.alive(pid) for pid in pids)

    asyncio.run(scenario())
