"""`atlctl notify`, and `run` and `record` with --notify: messages to a webhook on loopback, by apprise."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from atlctl.remote.supervisor.boot import free_port
from tests.integration.local import problem, registry
from tests.integration.wrapped import wrapped
from tests.support import proc
from tests.support.cli import run_cli

TOKEN = "sk-proj-abcdefghij1234567890XYZ"


class Hook(ThreadingHTTPServer):
    """A webhook; `came`: the messages."""

    daemon_threads = True

    def __init__(self) -> None:
        self.came: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def texts(self) -> list[str]:
        return [f"{message['title']}\n{message['message']}" for message in self.came]


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.came.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """The webhook `team` of the user's configuration, beside names that do not work."""
    with Hook() as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        (tmp_path / "atlctl").mkdir()
        (tmp_path / "atlctl/config.toml").write_text(
            f'[notify]\nteam = "json://127.0.0.1:{made.server_port}/{TOKEN}"\n'
            f'odd = ["nope://{TOKEN}"]\nclosed = "json://127.0.0.1:{free_port()}/{TOKEN}"\n'
        )
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        yield made
        made.shutdown()


def test_a_text_is_sent_and_its_secrets_are_hidden(hook: Hook) -> None:
    run = run_cli(
        "notify", "team", "--title", f"api_key={TOKEN}", stdin=f"rank 3 failed, key {TOKEN}\n{9000 * 'x'}".encode()
    )
    assert (run.code, run.stdout, run.stderr) == (0, b"sent: team\n", b"")
    (message,) = hook.came
    assert message["title"] == "api_key=[redacted]"
    assert message["message"].startswith("rank 3 failed, key [redacted]\nxxx")
    assert 2900 < len(message["message"]) < 3100


@pytest.mark.parametrize(
    ("name", "given", "code", "said", "hint"),
    [
        ("nix", "x", 2, "no notification is named nix", "known: team, odd, closed"),
        ("odd", "x", 2, "URL 1 of notify.odd is not one of apprise", "see https://appriseit.com/services"),
        ("team", " \n", 2, "standard input is empty: nothing to send", ""),
        ("closed", "x", 1, "closed: not sent: ", ""),
    ],
)
def test_a_text_that_is_not_sent(hook: Hook, name: str, given: str, code: int, said: str, hint: str) -> None:
    run = run_cli("notify", name, stdin=given.encode())
    message, cure = problem(run.stderr)
    assert (run.code, run.stdout, cure) == (code, b"", hint)
    assert message.startswith(said)
    assert TOKEN not in run.stderr.decode()
    assert hook.came == []


def test_without_apprise_the_command_to_install_it(hook: Hook, tmp_path: Path) -> None:
    (tmp_path / "apprise.py").write_text("raise ImportError\n")
    run = run_cli("notify", "team", stdin=b"x", env={"PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))})
    assert (run.code, hook.came) == (1, [])
    assert problem(run.stderr)[1].endswith("-m pip install apprise")


def test_run_sends_one_message_for_a_failure(hook: Hook, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('a bad batch')\n"
    )
    with wrapped(tmp_path, 2) as job:
        job.start("--settle", "0", "--notify", "team", "--", sys.executable, "train.py")
        assert job.codes() == [0, 1]
        (text,) = hook.texts()
        assert "worker-1 failed" in text.splitlines()[0]
        assert "ValueError: a bad batch" in text
        assert "notification" not in job.said(0) + job.said(1)


def test_run_sends_once_that_a_job_is_slow(hook: Hook, tmp_path: Path) -> None:
    """The steps are printed by worker 1, as by those frameworks that print on the last rank."""
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "for step in range(1, 200 * int(os.environ['RANK'])):\n"
        "    time.sleep(0.05 if step < 140 else 0.8)\n"
        "    print(f'step {step} loss 2.5', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with wrapped(tmp_path, 2) as job:
        job.start("--notify", "team", "--", sys.executable, "train.py")
        assert proc.wait_until(lambda: bool(hook.came), 60), job.said(1)
        (text,) = hook.texts()
        assert text.splitlines()[0].endswith(" is slow")
        assert "times slower since" in text
        assert text.splitlines()[1] in job.said(1)


def test_record_sends_that_a_job_is_slow_and_why_it_failed(hook: Hook, tmp_path: Path) -> None:
    script = (
        "import time\n"
        "for step in range(1, 160):\n"
        "    time.sleep(0.05 if step < 140 else 0.8)\n"
        "    print(f'step {step} loss 2.5', flush=True)\n"
        "raise ValueError('a bad batch')\n"
    )
    with registry() as own:
        own.start("train", 1, sys.executable, "-c", script)
        words = ("record", "train", "--notify", "team", "--out", str(tmp_path / "recorded"))
        run = own.cli(*words, env={"XDG_CONFIG_HOME": str(tmp_path)})
    slow, failed = hook.texts()
    assert slow.startswith("train is slow\ntraining is "), run
    assert failed.startswith("train: worker-0 failed\n1 worker from "), run
    assert "what      ValueError: a bad batch" in failed
    assert run.stderr.count(b"note: notify: sent: team\n") == 2


def test_record_refuses_a_name_that_is_not_known(hook: Hook) -> None:
    run = run_cli("record", "train", "--notify", "nix")
    assert (run.code, problem(run.stderr)) == (2, ("no notification is named nix", "known: team, odd, closed"))


def test_a_notification_that_fails_is_said_and_changes_nothing(hook: Hook, tmp_path: Path) -> None:
    with wrapped(tmp_path, 1) as job:
        job.start("--settle", "0", "--notify", "closed", "--", "sh", "-c", "exit 7")
        assert job.codes() == [7]
        assert "the notification was not sent; try: echo hello | atlctl notify closed" in job.said(0)
        job.start("--settle", "0", "--notify", "nix", "--", "true")
        assert job.codes() == [0]
        assert "atlctl: no notification is named nix" in job.said(0)
