"""Programs sent to hosts: complete, in order, and compatible with the oldest supported Python."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from atlctl.backends.hosts import asking
from atlctl.backends.hosts.stream import COMMAND_LIMIT
from atlctl.remote import sending, supervisor

MODULES = sorted(Path(supervisor.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_it_is_python_3_8(path: Path) -> None:
    """Of 3.8's run-time errors, this checks only annotations; an integration test runs everything on a real 3.8."""
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


def test_a_start_brings_everything_that_is_there() -> None:
    sent = sending.needed("atlctl.remote.supervisor.inplace")
    package = "atlctl.remote.supervisor."
    assert {name.removeprefix(package) for name in sent if name.startswith(package)} == {
        path.stem for path in MODULES if path.stem != "__init__"
    }
    start = sending.needed("atlctl.remote.supervisor.starting")
    assert len(sending.needed("atlctl.remote.supervisor.asked")) < len(start) < len(sent)


@pytest.mark.parametrize("question", ["look", "log", "stop", "remove", "read"])
def test_a_question_is_answered_by_what_was_sent_alone(question: str, tmp_path: Path) -> None:
    folder = tmp_path / "state/local/none/worker"  # the folders above it are looked at, too
    details = {"folder": str(folder), "uid": "x", "worker": "w", "grace": 1, "path": "x", "limit": 1}
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
