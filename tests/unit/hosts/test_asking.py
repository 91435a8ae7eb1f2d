"""What is sent to hosts: whole, in order, and good for the oldest Python that is promised."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from atlctl.backends.hosts import asking
from atlctl.backends.hosts.stream import COMMAND_LIMIT

MODULES = sorted(asking._FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_it_is_python_3_8(path: Path) -> None:
    """Of what 3.8 refuses only at run time this knows annotations; an integration test runs it all on a real 3.8."""
    text = path.read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    assert "from __future__ import annotations" in text or path.stem == "__init__"
    aliases = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp)
        if any(isinstance(part, ast.Name) and part.id in ("Callable", "dict", "list") for part in ast.walk(node))
    ]
    assert not aliases, "subscripted when the module is run"


def test_everything_is_sent_that_is_there() -> None:
    sent = {*asking._ANSWERING, *asking._STARTING, *asking.PROGRAM}
    assert sent == {path.stem for path in MODULES}


@pytest.mark.parametrize("names", [asking._ANSWERING, asking._STARTING])
def test_each_module_comes_behind_those_that_it_imports(names: tuple[str, ...]) -> None:
    for at, name in enumerate(names):
        tree = ast.parse(asking._source(name))
        top = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1]
        wanted = {alias.name for node in top if node.module is None for alias in node.names}
        wanted |= {node.module for node in top if node.module is not None}
        assert wanted <= set(names[:at]), name


@pytest.mark.parametrize("question", ["look", "log", "stop", "remove", "read"])
def test_a_question_is_answered_by_what_was_sent_alone(question: str, tmp_path: Path) -> None:
    details = {"folder": str(tmp_path / "none"), "uid": "x", "worker": "w", "grace": 1, "path": "x", "limit": 1}
    words = asking.request(question, details).argv.words
    run = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, cwd=tmp_path)
    told = json.loads(run.stdout)
    if question == "remove":
        assert (run.returncode, told) == (0, {"event": "removed"})
    else:
        assert (run.returncode, told["kind"]) == (asking.REFUSED, "absent"), run
    assert run.stderr == b""


def test_commands_are_short_enough_for_any_host() -> None:
    for question in ("start", "look"):
        words = asking.request(question, {"folder": "/" * 4096}).argv.words
        assert sum(len(word) for word in words) < COMMAND_LIMIT / 2


def test_a_python_that_is_too_old_does_nothing() -> None:
    boot = asking._BOOT.replace("(3, 8)", "(9, 9)")
    run = subprocess.run([sys.executable, "-c", boot, "nonsense"], capture_output=True, timeout=30)
    assert run.returncode == 97
    ast.parse(asking._BOOT, feature_version=(3, 4))
