from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import proc, zygote
from tests.support.cli import popen_cli, run_cli


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("line", ["--version", "jobs", "jobs -o json", "frob", "ps nope", "completion bash", "stop x"])
def test_a_fork_shows_what_a_new_process_shows(line: str, tty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    forked = run_cli(*line.split(), tty=tty, env={"NO_COLOR": "1", "LANG": "zh_CN.UTF-8", "LC_ALL": "zh_CN.UTF-8"})
    monkeypatch.setattr(zygote, "forkable", lambda *_: False)
    new = run_cli(*line.split(), tty=tty, env={"NO_COLOR": "1", "LANG": "zh_CN.UTF-8", "LC_ALL": "zh_CN.UTF-8"})
    assert forked == new


def test_a_fork_has_its_folder_umask_mark_and_session(tmp_path: Path) -> None:
    before = os.umask(0o027)
    words = ("local", "run", "--name", "one", "--workers", "1", "--", "sleep", "1000")
    with (tmp_path / "out").open("wb") as out, popen_cli(*words, cwd=tmp_path, stdout=out, stderr=out) as run:
        os.umask(before)
        assert proc.wait_until(lambda: proc.named("sleep 1000"))
        assert run.pid in [one.pid for one in proc.marked()]
        assert (os.readlink(f"/proc/{run.pid}/cwd"), os.getsid(run.pid)) == (str(tmp_path), run.pid)
        assert "Umask:\t0027\n" in Path(f"/proc/{run.pid}/status").read_text()
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        assert run.wait(100) == 128 + signal.SIGTERM
        assert not proc.alive(run.pid)


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_another_process_forks_if_the_first_is_gone(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote, "NOTES", tmp_path / "log")
    first = run_cli("--version")
    if how == "closed":
        zygote._start().close()
    else:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        (pid,) = [int(child) for child in children if zygote.__file__.encode() in _command(child)]
        os.kill(pid, signal.SIGKILL)
        assert proc.wait_until(lambda: not _command(str(pid)))
    assert run_cli("--version") == first
    assert "(call)" in (tmp_path / "log").read_text()


def _command(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("env", "options"),
    [({"PYTHONPATH": "x"}, {}), ({"SSL_CERT_FILE": "x"}, {}), ({"LC_ALL": "C"}, {}), ({}, {"preexec_fn": print})],
)
def test_what_is_read_at_the_start_takes_a_new_process(env: dict[str, str], options: dict[str, object]) -> None:
    assert zygote.forkable(dict(os.environ), {"stdout": -1})
    assert not zygote.forkable({**os.environ, **env}, options)
