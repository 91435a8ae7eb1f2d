"""The test harness itself: removed variables, detected leftovers, and failures when it should fail."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import isolation, needs, proc
from tests.support.cli import popen_cli, run_cli


def test_collecting_loads_no_torch(pytestconfig: pytest.Config) -> None:
    """It takes 1.6 CPU seconds in each process of a run: tests start jobs that load it, or load it in a fixture."""
    assert pytestconfig.stash[isolation.COLLECTED] & {"torch", "numpy"} == set()


FOREIGN_NAMES = [
    "ATLCTL_JOB",
    "PET_NNODES",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "LC_CTYPE",
    "TZ",
    "XDG_STATE_HOME",
    "https_proxy",
    "HTTPS_PROXY",
    "TORCHELASTIC_RUN_ID",
]


def test_foreign_variables_are_taken_away() -> None:
    kept = ["PATH", "VIRTUAL_ENV", "PYTHONPATH", "CI", "HOSTNAME", "RANKING", "USER"]
    assert isolation.foreign(FOREIGN_NAMES + kept) == FOREIGN_NAMES


def test_environment_is_the_tests_own(isolated: Path) -> None:
    assert Path.home() == isolated
    assert not isolation.foreign(
        [name for name in os.environ if name not in isolation.environment(isolated) and name != proc.MARK]
    )
    assert os.environ["LC_ALL"] == "C.UTF-8"
    assert time.tzname == ("UTC", "UTC")
    assert Path.cwd().parent == isolated.parent
    assert len(str(isolated)) < 40


@given(st.integers())
def test_hypothesis_and_isolation_go_together(number: int) -> None:
    assert int(str(number)) == number


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "example.com"])
def test_network_beyond_loopback_is_refused(host: str) -> None:
    with pytest.raises(isolation.NetworkRefusedError):
        socket.create_connection((host, 9), timeout=1)


def test_datagrams_beyond_loopback_are_refused() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        with pytest.raises(isolation.NetworkRefusedError):
            datagram.sendto(b"x", ("192.0.2.1", 9))


def test_loopback_and_unix_sockets_work() -> None:
    with socket.create_server(("localhost", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        server.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("s")


def test_marked_finds_children_in_other_sessions_but_no_zombie() -> None:
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        assert proc.wait_until(lambda: [p.command for p in proc.marked()] == ["sleep 100"])
        assert [p.pid for p in proc.in_group(child.pid)] == [child.pid]
        assert proc.named("sleep")
        assert proc.alive(child.pid)
    finally:
        child.kill()
    assert proc.wait_until(lambda: not proc.alive(child.pid))
    assert not proc.marked()
    assert child.wait() == -signal.SIGKILL


def test_leftovers_are_named_and_ended() -> None:
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    assert proc.wait_until(lambda: proc.named("sleep 100"))
    assert [p.pid for p in proc.leftovers(os.environ[proc.MARK], patience=0.1)] == [child.pid]
    assert child.wait() == -signal.SIGKILL


INNER = """
import os

from tests.support.needs import needs


def test_leaves_a_process():
    os.system("setsid sleep 100 &")


def test_sees_nothing_of_it():
    from tests.support import proc
    assert not proc.marked()


@needs("fish")
def test_needs_a_program():
    raise AssertionError("must not run")
"""


def test_a_left_over_process_fails_its_test_and_skips_are_counted_last(tmp_path: Path) -> None:
    root = Path(isolation.__file__).parents[2]
    case = tmp_path / "test_inner.py"
    case.write_text(INNER)
    program = (
        "import sys, pytest; from tests.support import needs, proc; needs.find_program = lambda name: None;"
        "proc.leftovers.__defaults__ = (0.2,);"
        f"sys.exit(pytest.main(['-q', '-c', '{root}/pyproject.toml', '-p', 'tests.conftest', '{case}']))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = run.stdout.splitlines()
    assert run.returncode == 1, run.stdout + run.stderr
    assert any("sleep 100" in line for line in lines)
    assert lines[-1] == "skips by cause: needs fish 1"
    assert "2 passed, 1 skipped, 1 error" in lines[-2]


def test_needs_knows_only_listed_programs() -> None:
    assert needs.needs("zsh").args == ("zsh",)
    with pytest.raises(ValueError, match="nosuch"):
        needs.needs("nosuch")
    assert needs.skip_reason([]) is None


def test_causes() -> None:
    assert needs.causes([]) == "skips by cause: none"
    reasons = ["Skipped: needs zsh: make test-deps", "Skipped: needs zsh: make test-deps", "Skipped: no GPU"]
    assert needs.causes(reasons) == "skips by cause: needs zsh 2, no GPU 1"


@pytest.fixture
def fake_atlctl(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A fake package `atlctl` whose behaviour is its first argument."""
    package = Path("fake/atlctl")
    package.mkdir(parents=True)
    package.joinpath("__init__.py").touch()
    package.joinpath("__main__.py").write_text(
        "import os, sys, time\n"
        "match sys.argv[1]:\n"
        "    case 'streams': print('out'); print('err', file=sys.stderr); sys.exit(7)\n"
        "    case 'cat': sys.stdout.write(sys.stdin.read())\n"
        "    case 'tty': print([s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr)], os.get_terminal_size())\n"
        "    case 'line': print(input('? ').upper()); os.write(os.open('/dev/tty', os.O_WRONLY), b'tty\\n')\n"
        "    case 'env': print(os.environ.get('HOME'), os.environ['EXTRA'])\n"
        "    case 'kill': os.kill(os.getpid(), 9)\n"
        "    case 'hang': os.system('sleep 100 & sleep 100')\n"
        "    case 'flood': os.write(1, b'x' * 1_000_000)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path("fake").absolute()))
    return monkeypatch


@pytest.mark.usefixtures("fake_atlctl")
def test_run_cli_on_pipes() -> None:
    assert run_cli("streams") == (b"out\n", b"err\n", 7)
    assert run_cli("cat") == (b"", b"", 0)
    assert run_cli("cat", stdin=b"a\nb") == (b"a\nb", b"", 0)
    assert run_cli("tty").code != 0  # without a terminal, there is no size
    assert run_cli("env", env={"EXTRA": "1", "HOME": None}).stdout == b"None 1\n"
    assert run_cli("kill").code == -9
    with popen_cli("streams", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.communicate()[0] == b"out\n"


@pytest.mark.usefixtures("fake_atlctl")
def test_run_cli_on_a_terminal() -> None:
    result = run_cli("tty", tty=True, columns=123, rows=45)
    assert result.stdout == b"[True, True, True] os.terminal_size(columns=123, lines=45)\r\n"
    assert run_cli("streams", tty=True) == (b"out\r\nerr\r\n", b"", 7)
    assert run_cli("line", tty=True, stdin=b"yes\n").stdout.endswith(b"YES\r\ntty\r\n")
    assert len(run_cli("flood", tty=True).stdout) == 1_000_000
    assert run_cli("kill", tty=True).code == -9


@pytest.mark.usefixtures("fake_atlctl")
@pytest.mark.parametrize("tty", [False, True])
def test_run_cli_ends_what_hangs(tty: bool) -> None:
    with pytest.raises(AssertionError, match="not ended after"):
        run_cli("hang", tty=tty, timeout=0.5)
    assert proc.wait_until(lambda: not proc.marked())
