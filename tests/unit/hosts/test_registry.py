"""The registry: valid, damaged, foreign and unreachable entries."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atlctl.backends.hosts import registry
from atlctl.jobs.errors import AtlctlError, NotAllowed, NothingMatched
from atlctl.jobs.model import Job, State
from atlctl.jobs.statedir import ensure_dir, state_dir
from atlctl.remote.supervisor import processes
from tests.contract.world import eventually
from tests.support.proc import wait_until
from tests.unit.hosts.local import Local

MARKER = "ChildFailedError:"


@pytest.fixture
def written(isolated: object) -> Callable[..., Job]:
    """Write the entry of a job with one worker and no process, and load it."""

    def make(files: dict[str, object] | None = None, **changes: Any) -> Job:
        folder = Path(registry.LOCAL.root, "job")
        own = folder / "workers/worker-0"
        own.mkdir(parents=True, exist_ok=True)
        here = processes.identity(os.getpid())
        record = {
            "name": "job",
            "uid": "u",
            "created": 1.0,
            "workers": [{"name": "worker-0"}],
            "supervisor": here | changes.pop("supervisor", {}),
        }
        (folder / "job.json").write_text(json.dumps(record | changes))
        for name, value in (files or {}).items():
            (own / name).write_text(value if isinstance(value, str) else json.dumps(value))
        return registry.load("job").job

    return make


def test_no_registry_yet(isolated: Path) -> None:
    assert registry.LOCAL.names() == []
    assert registry.load_all() == ([], [])
    with pytest.raises(NothingMatched) as caught:
        registry.load("job")
    assert "local run" in (caught.value.hint or "")
    assert list(isolated.rglob("*atlctl*")) == [], "looking makes nothing"


@pytest.mark.parametrize(
    ("record", "state", "reason"),
    [
        ({"exit_code": 0, "signal": None}, State.SUCCEEDED, ""),
        ({"exit_code": 3, "signal": None}, State.FAILED, "exit 3"),
        ({"exit_code": None, "signal": 9}, State.FAILED, "signal 9"),
        ({"exit_code": 0, "signal": None, "stopped": True}, State.STOPPED, "exit 0"),
        ({"exit_code": None, "signal": 15, "stopped": True}, State.STOPPED, "signal 15"),
        ({"exit_code": 0, "signal": None, "log_bytes_lost": 7}, State.SUCCEEDED, "7 bytes of its log were lost"),
        ({"exit_code": 1, "signal": None, "log_bytes_lost": 7}, State.FAILED, "exit 1; 7 bytes of its log were lost"),
    ],
)
def test_ends(written: Callable[..., Job], record: dict[str, object], state: State, reason: str) -> None:
    job = written({"exit.json": {**record, "ended": 5.0}})
    assert (job.workers[0].state, job.workers[0].reason) == (state, reason)
    assert (job.state, job.ended) == (state, 5.0)


def test_exit_0_of_a_trainer_that_failed(written: Callable[..., Job]) -> None:
    job = written({"exit.json": {"exit_code": 0, "signal": None}, "trainer.json": {"failed_at": 1.0}})
    assert job.workers[0].state is State.SUCCEEDED
    assert "trainer failed" in job.workers[0].reason
    assert "shows a failure" in job.reason


def test_lost_bytes_are_no_failure_of_a_trainer(written: Callable[..., Job]) -> None:
    assert written({"exit.json": {"exit_code": 0, "signal": None, "log_bytes_lost": 7}}).reason == ""


def test_a_dead_supervisor(written: Callable[..., Job]) -> None:
    job = written(supervisor={"start": 1})
    assert (job.state, job.workers[0].state) == (State.LOST, State.LOST)
    # Earlier results are still known.
    job = written({"exit.json": {"exit_code": 0, "signal": None}}, supervisor={"start": 1})
    assert job.state is State.SUCCEEDED


def test_a_machine_that_was_started_anew(written: Callable[..., Job]) -> None:
    assert written(supervisor={"boot_id": "another"}).state is State.LOST


def test_another_machine(written: Callable[..., Job]) -> None:
    job = written(supervisor={"boot_id": "another", "host": "node-7"})
    assert job.state is State.UNKNOWN
    assert "node-7" in job.reason
    assert job.workers[0].state.active, "nobody here knows that it has ended"


def test_a_machine_that_was_renamed(written: Callable[..., Job]) -> None:
    assert written(supervisor={"host": "its-old-name"}).state is State.RUNNING


def test_another_container(written: Callable[..., Job]) -> None:
    job = written(supervisor={"pid_namespace": "pid:[1]"})
    assert job.state is State.UNKNOWN
    assert "container" in job.reason


def test_stopping_is_shown(written: Callable[..., Job]) -> None:
    assert written({"stopping": {}}).state is State.STOPPING


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"x"', "{}", '{"supervisor": 1}', "[" * 100_000, "\0"])
def test_a_damaged_entry_is_one_clear_error(local: Local, text: str) -> None:
    local.run(name="fine")
    local.run(name="bad")
    path = local.folder("bad") / "job.json"
    whole = path.read_bytes()
    path.write_text(text)
    with pytest.raises(AtlctlError) as caught:
        registry.load("bad")
    assert "bad" in caught.value.message
    assert "damaged" in caught.value.message
    assert str(local.folder("bad")) in (caught.value.hint or "")
    entries, problems = registry.load_all()
    assert [entry.job.name for entry in entries] == ["fine"]
    assert [type(problem) for problem in problems] == [AtlctlError]
    # Its name stays reserved, because some processes may be running.
    with pytest.raises(AtlctlError, match="damaged"):
        local.run(name="bad")
    path.write_bytes(whole)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(["name", "uid", "created", "workers", "supervisor", "master_port"]), value=JSON)
def test_any_value_loads_or_is_an_error(written: Callable[..., Job], key: str, value: object) -> None:
    written()
    path = Path(registry.LOCAL.root, "job", "job.json")
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {key: value}))
    entries, problems = registry.load_all()
    assert len(entries) + len(problems) == 1


@pytest.mark.parametrize("name", ["exit.json", "proc.json"])
def test_a_damaged_file_of_a_worker_is_not_a_success(written: Callable[..., Job], name: str) -> None:
    assert written({name: "{"}).state is State.RUNNING
    assert written({name: "[]"}, supervisor={"start": 1}).state is State.LOST


def test_a_start_that_was_never_finished_is_no_job_and_gives_way(local: Local) -> None:
    folder = local.folder("half")
    (folder / "workers/worker-0/work").mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    Path(registry.LOCAL.root, "a-file").write_text("x")
    assert registry.LOCAL.names() == []
    with pytest.raises(NothingMatched):
        registry.load("half")
    job = local.run(name="half")
    assert job.state is State.RUNNING


def test_what_killed_starts_left_is_swept_away(local: Local) -> None:
    folder = local.folder("half")
    (folder / "workers").mkdir(parents=True)
    kept = local.run(name="other")
    assert not folder.exists()
    assert registry.LOCAL.names() == [kept.name]


def test_a_linked_entry_is_refused(local: Local, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    ensure_dir(registry.LOCAL.root)
    local.folder().symlink_to(elsewhere)
    with pytest.raises(NotAllowed, match="symbolic link"):
        local.run()
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]


@contextlib.contextmanager
def as_somebody_else(top: Path, path: Path) -> Iterator[None]:
    """Run as a user without access to `path`, even if root runs the tests."""
    mode = path.stat().st_mode
    above = [parent for parent in path.parents if parent.is_relative_to(top)]
    own = [path, *(parent for parent in above if parent.is_relative_to(state_dir()))]
    modes = [(parent, parent.stat().st_mode) for parent in above]
    user = os.geteuid()
    for parent in above:
        parent.chmod(0o755)
    path.chmod(0)
    try:
        if user == 0:
            for folder in own:
                os.chown(folder, 65534, -1)
            os.seteuid(65534)
        yield
    finally:
        if user == 0:
            os.seteuid(0)
            for folder in own:
                os.chown(folder, 0, -1)
        path.chmod(mode)
        for parent, old in modes:
            parent.chmod(old)


def test_a_registry_that_cannot_be_read(local: Local, isolated: Path) -> None:
    local.run()
    with as_somebody_else(isolated.parent, local.folder().parent):
        with pytest.raises(NotAllowed) as caught:
            registry.load_all()
    assert "registry" in caught.value.message
    assert "ATLCTL_STATE_DIR" in (caught.value.hint or "")


def test_an_entry_that_cannot_be_read_is_not_passed_over(local: Local, isolated: Path) -> None:
    local.run(name="fine")
    local.run(name="closed")
    with as_somebody_else(isolated.parent, local.folder("closed")):
        assert registry.LOCAL.names() == ["closed", "fine"]
        _, problems = registry.load_all()
    assert any(isinstance(problem, NotAllowed) and "closed/job.json" in problem.message for problem in problems)


@pytest.mark.parametrize("level", ["", "local", "local/job"])
@pytest.mark.parametrize("how", ["others may write", "link", "another user's"])
def test_nothing_is_read_in_a_folder_that_may_be_forged(local: Local, level: str, how: str) -> None:
    if how == "another user's" and os.geteuid() != 0:
        pytest.skip("only root gives files to other users")
    job = local.run()
    forged = Path(state_dir(), level)
    moved = forged.with_name("moved")
    if how == "link":
        forged.rename(moved)
        forged.symlink_to(moved)
    elif how == "others may write":
        forged.chmod(0o702)
    else:
        os.chown(forged, 4243, -1)
    try:
        asks = [lambda: registry.glance("job"), lambda: registry.load("job"), lambda: registry.environment("job")]
        if level != "local/job":
            asks.append(registry.LOCAL.names)
            asks.append(lambda: local.run(name="next"))
        for ask in asks:
            with pytest.raises(NotAllowed) as caught:
                ask()
            assert caught.value.message.startswith(f"{forged} ")
    finally:
        if how == "link":
            forged.unlink()
            moved.rename(forged)
        else:
            os.chown(forged, os.geteuid(), -1)
            forged.chmod(0o700)
    assert local.load("job").uid == job.uid


# Held


def test_held_is_a_failed_trainer_under_a_script_that_lives_on(local: Local) -> None:
    local.sh(f"echo '{MARKER} boom' >&2; sleep 4400; exit 0", markers=[MARKER])
    job = eventually(local, "job", lambda found: found.state is State.HELD)
    assert job.workers[0].state is State.HELD
    assert "worker-0" in job.reason


def test_a_trainer_that_was_started_again_is_running(local: Local) -> None:
    script = (
        f"echo '{MARKER}'; while [ ! -e again ]; do sleep 0.02; done; exec python3 -c 'import time; time.sleep(60)'"
    )
    local.sh(script, markers=[MARKER])
    eventually(local, "job", lambda found: found.state is State.HELD)
    local.file("work/again").touch()
    job = eventually(local, "job", lambda found: found.state is State.RUNNING)
    assert "failed before" in job.workers[0].reason


def test_commands_executed_in_a_held_worker_do_not_hide_it(local: Local) -> None:
    job = local.sh(f"echo '{MARKER}'; sleep 4401", markers=[MARKER])
    eventually(local, "job", lambda found: found.state is State.HELD)
    with local.client(job, ["python3", "-c", "import time; time.sleep(60)"], stdin=False) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"started\n"
        assert local.load("job").state is State.HELD
        client.kill()
    assert wait_until(lambda: len(local.inside(job)) == 2)


@pytest.mark.parametrize("cut", [1, 8, len(MARKER) - 1])
def test_a_marker_is_found_wherever_the_output_is_cut(local: Local, cut: int) -> None:
    script = f"printf '%s' 'xx{MARKER[:cut]}'; sleep 0.05; printf '%s' '{MARKER[cut:]}yy'; sleep 4402"
    local.sh(script, markers=[MARKER])
    eventually(local, "job", lambda found: found.state is State.HELD)


def test_what_is_no_marker_holds_nobody(local: Local) -> None:
    local.sh(f"echo '{MARKER[:-1]}'; echo '{MARKER[-1]}'; touch up; sleep 4403", markers=[MARKER])
    assert wait_until(local.file("work/up").exists)
    assert local.load("job").state is State.RUNNING


def test_a_held_worker_that_exits_with_0_is_doubtful(local: Local) -> None:
    local.sh(f"echo '{MARKER}'; sleep 0.2; exit 0", markers=[MARKER])
    job = local.ended()
    assert "trainer failed" in job.workers[0].reason
