"""`atlctl use`: the terminal's current job has priority over a worker's job, and options have priority over it."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.apiserver.handle import Server
from tests.integration.local import Registry, problem, registry
from tests.integration.test_kubernetes import start
from tests.support.cli import ATLCTL, Result


class Session:
    """A shell that stays open, as in a terminal: its commands share one session."""

    def __init__(self, env: Mapping[str, str | None], folder: Path) -> None:
        self._folder = folder
        given = {name: value for name, value in env.items() if value is not None}
        self._shell = subprocess.Popen(
            ["sh"], env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
        )

    def __call__(self, *words: str, **env: str) -> Result:
        out, err = self._folder / "out", self._folder / "err"
        line = shlex.join(["env", *(f"{name}={value}" for name, value in env.items()), *ATLCTL, *words])
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{line} </dev/null >{out} 2>{err}; echo $?\n")
        self._shell.stdin.flush()
        code = int(self._shell.stdout.readline())
        return Result(out.read_bytes(), err.read_bytes(), code)

    def close(self) -> None:
        self._shell.communicate(timeout=100)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Registry]:
    with registry() as own:
        own.start("one", 2)
        own.start("two", 2)
        yield own


@pytest.fixture
def shell(jobs: Registry, tmp_path: Path) -> Iterator[Session]:
    made = Session(jobs.env, tmp_path)
    yield made
    made.close()


def test_a_job_is_chosen_shown_and_forgotten(jobs: Registry, shell: Session) -> None:
    run = shell("use")
    assert (run.stdout, run.code) == (b"", 3)
    assert problem(run.stderr) == ("this terminal has no current job", "choose one: atlctl use JOB")
    uid = jobs.data("ps", "one")["job"]["uid"]
    shown = f"one (local, uid {uid})\n".encode()
    assert shell("use", "one") == (shown, b"", 0)
    assert shell("use") == (shown, b"", 0)
    data = json.loads(shell("use", "-o", "json").stdout)["data"]
    assert (data["job"]["name"], data["job"]["uid"], data["job"]["backend"]) == ("one", uid, "local")
    assert shell("use", "-") == (b"", b"note: this terminal has no current job\n", 0)
    assert json.loads(shell("use", "-", "-o", "json").stdout)["data"] == {"job": None}
    assert shell("ps").code == 2


def test_a_job_that_does_not_exist_changes_nothing(shell: Session) -> None:
    shell("use", "one", "-q")
    assert shell("use", "three").code == 3
    assert shell("use").stdout.startswith(b"one ")


def test_what_is_typed_comes_first_then_the_variable(shell: Session) -> None:
    shell("use", "one")
    note = b"note: job one, by atlctl use\n"
    who = ("exec", "-w", "0", "printenv", "ATLCTL_JOB")
    assert shell(*who) == (b"one\n", note, 0)
    assert shell(*who[:1], "-j", "two", *who[1:]).stdout == b"two\n"
    assert shell(*who, ATLCTL_JOB="two") == (b"two\n", b"", 0)
    assert shell("ps", "-o", "name") == (b"worker-0\nworker-1\n", note, 0)
    assert shell("ps", "two", "-o", "name") == (b"worker-0\nworker-1\n", b"", 0)
    run = shell("use", ATLCTL_JOB="two")
    assert run.stdout.startswith(b"one ")
    assert run.stderr == b"note: ATLCTL_JOB names job two, which comes first\n"


def test_another_terminal_has_none(jobs: Registry, shell: Session, tmp_path: Path) -> None:
    shell("use", "one")
    (tmp_path / "b").mkdir()
    other = Session(jobs.env, tmp_path / "b")
    assert problem(other("exec", "--all", "true").stderr)[0] == "no job is named"
    other.close()


def test_a_place_that_is_typed_is_another_one(shell: Session) -> None:
    shell("use", "one")
    assert shell("ps", "--backend", "ssh").code == 3
    assert shell("ps", "--backend", "local").code == 0
    assert sorted(shell("jobs", "-o", "name").stdout.split()) == [b"one", b"two"]


def test_doctor_says_where_it_looks(shell: Session) -> None:
    shell("use", "one")
    data = json.loads(shell("doctor", "-o", "json").stdout)["data"]
    assert data["backend"] == {"name": "local", "why": "used", "value": "one"}
    assert (data["job"]["name"], data["job"]["how"]) == ("one", "used")


def test_tab_knows_it(jobs: Registry, shell: Session) -> None:
    jobs.start("small", 1)
    shell("use", "small")
    assert shell("--complete", "bash", "3", "atlctl", "exec", "-w", "").stdout == b":words\nworker-0\n"
    named = ("atlctl", "exec", "-j", "one", "-w", "")
    assert shell("--complete", "bash", "5", *named).stdout == b":words\nworker-0\nworker-1\n"


def test_stop_names_what_it_stops_and_refuses_a_job_that_took_the_name(jobs: Registry, shell: Session) -> None:
    jobs.start("brief", 1)
    shell("use", "brief")
    planned = shell("stop", "--dry-run").stderr.decode().splitlines()[0]
    assert planned.startswith("stops job brief (")
    assert planned.endswith(", by atlctl use)")
    assert shell("stop", "--yes").code == 0
    jobs.until("brief", "Stopped")
    assert jobs.cli("local", "rm", "brief", "--yes").code == 0
    run = shell("stop", "--yes")
    assert run.code == 3
    assert b"(named by atlctl use)\nhint: forget it: atlctl use -\n" in run.stderr
    jobs.start("brief", 1)
    for words in (("stop", "--yes"), ("exec", "--all", "true"), ("ps",), ("errors",)):
        run = shell(*words)
        assert (run.stdout, run.code) == (b"", 1), words
        assert problem(run.stderr) == (
            "job brief was replaced by another of the same name meanwhile",
            "'atlctl use' means the one before; for the new one: atlctl use brief",
        )
    assert jobs.states("brief") == ["Running"]
    assert shell("use", "brief").code == 0
    assert shell("stop", "--yes").code == 0


def test_a_job_of_a_cluster_is_found_again_in_its_context_and_namespace(tmp_path: Path) -> None:
    with Server(namespace="ml") as server, registry() as home:
        for name in ("first", "second"):
            start(server, name, "sleep 4000", run=False)
        shell = Session({**home.env, "KUBECONFIG": str(server.kubeconfig)}, tmp_path)
        run = shell("use", "first")
        context = json.loads(shell("use", "-o", "json").stdout)["data"]["job"]["context"]
        assert context
        assert run.stdout.startswith(f"first (kubernetes, context {context}, namespace ml, uid ".encode())
        run = shell("ps", "-o", "json")
        assert json.loads(run.stdout)["data"]["job"]["name"] == "first"
        assert run.stderr == b"note: job first, by atlctl use\n"
        # The current job is not in the other namespace.
        assert shell("ps", "-n", "other").code == 3
        assert shell("use", "-l", "app=x", "first").code == 2
        shell.close()
