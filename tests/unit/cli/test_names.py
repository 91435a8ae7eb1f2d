"""Names for completion: sources, cache files, and trusted owners."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlctl.backends.kubernetes import kubeconfig as kubeconfigs
from atlctl.cli import runtime
from atlctl.cli.completion import cache, complete, keep
from atlctl.cli.completion.complete import Names
from atlctl.jobs.model import Job, State, Worker
from tests.support import proc

HOSTILE = ["$(touch F)", "-rf", "a b", "a'b", "a\nb", "\x1b[2J", "任务", "", "a\\", "x" * 600]


@pytest.fixture
def kubeconfig(isolated, monkeypatch):
    path = isolated / "kubeconfig"
    path.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture(autouse=True)
def _fresh_context(monkeypatch):
    monkeypatch.setattr(runtime, "_current", runtime.Context())


def job(name, workers=2, state=State.RUNNING, **about):
    made = tuple(Worker(f"worker-{index}", index, state, role="worker") for index in range(workers))
    return Job(name, "PyTorchJob", "kubernetes", state, f"uid-{name}", workers, made, **about)


def scope_of(namespace: str = "") -> cache.Scope:
    scope = cache.cluster_scope("jobs", namespace=namespace)
    assert scope is not None
    return scope


def lists() -> cache.Scope:
    scope = cache.lists_scope()
    assert scope is not None
    return scope


def the_file():
    (path,) = Path(cache.folder()).glob("*.json")
    return path


def test_what_a_command_has_seen_is_offered(kubeconfig):
    keep.seen_jobs([job("train"), job("old", 1, State.FAILED)], whole=True)
    names = Names()
    assert names.jobs() == ["train", "old"]
    assert names.workers("train") == names.workers(None) == ["worker-0", "worker-1"]
    assert names.workers("old") == names.workers("pytorchjob/old") == ["worker-0"]
    assert names.roles("train") == names.roles(None) == ["worker"]
    assert names.workers("other") == []
    assert names.stale == []


def test_each_place_has_its_own_names(kubeconfig, isolated):
    keep.seen_jobs([job("here")], whole=True)
    runtime.start("jobs", namespace="ml", context="prod")
    keep.seen_jobs([job("there")], whole=True)
    assert Names().jobs() == ["here"]
    assert Names(asked={"namespace": "ml", "context": "prod"}).jobs() == ["there"]
    for asked in ({"namespace": "ml"}, {"context": "prod"}, {"kubeconfig": str(isolated / "kubeconfig")}):
        assert Names(asked=asked).jobs() == ([] if "kubeconfig" not in asked else ["here"])
    assert Names(asked={"kubeconfig": "nowhere"}).jobs() == []


def test_names_of_all_namespaces_are_told_apart(kubeconfig):
    keep.seen_jobs([job("a", namespace="x"), job("b", namespace="y")], whole=True, everywhere=True)
    assert [Names(asked={"namespace": name}).jobs() for name in "xyz"] == [["a"], ["b"], []]


def test_one_job_is_added_and_a_whole_list_replaces(kubeconfig):
    keep.seen_jobs([job("a")], whole=False)
    names = Names()
    assert names.jobs() == ["a"]
    assert len(names.stale) == 1  # there may be more
    keep.seen_jobs([job("b"), job("c")], whole=True)
    keep.seen_jobs([job("b", 5)], whole=False)
    names = Names()
    assert names.jobs() == ["b", "c"]
    assert len(names.workers("b")) == 5
    assert names.stale == []


def test_two_jobs_of_one_name_are_named_by_their_kinds(kubeconfig):
    keep.seen_jobs([job("a", resource="pytorchjobs.kubeflow.org"), job("a", resource="jobs.batch")], whole=True)
    assert Names().jobs() == ["pytorchjobs.kubeflow.org/a", "jobs.batch/a"]
    keep.seen_jobs([job("a", 7, resource="jobs.batch")], whole=False)
    assert len(Names().workers("jobs.batch/a")) == 7


def test_a_selector_and_hosts_leave_no_names(kubeconfig):
    for selector, hostfile_ in (("app=x", None), (None, "hosts")):
        runtime.start("ps", selector=selector, hostfile=hostfile_)
        keep.seen_jobs([job("app=x")], whole=True)
    assert not os.path.exists(cache.folder())
    assert Names(asked={"selector": "app=x"}).workers(None) == []


def test_hostile_names_are_neither_written_nor_read(kubeconfig):
    workers = tuple(Worker(name, 0, State.RUNNING, role=name) for name in (*HOSTILE, "fine-0"))
    jobs = [Job(name, "Job", "kubernetes", State.RUNNING, "u", 1, workers) for name in (*HOSTILE, "fine")]
    keep.seen_jobs(jobs, whole=True)
    entry = json.loads(the_file().read_text())
    assert list(entry["names"]) == ["fine"]
    assert entry["names"]["fine"]["workers"] == entry["names"]["fine"]["roles"] == ["fine-0"]
    about = {**entry["names"]["fine"], "workers": [*HOSTILE, "fine-0", 7, None, ["x"]]}
    entry["names"] = dict.fromkeys((*HOSTILE, "fine"), about)
    the_file().write_text(json.dumps(entry))
    names = Names()
    assert (names.jobs(), names.workers("fine")) == (["fine"], ["fine-0"])
    assert all(names.workers(name) == [] for name in HOSTILE if name)


def test_names_that_were_not_seen_for_long_are_gone(kubeconfig, monkeypatch):
    keep.seen_jobs([job("a")], whole=True)
    now = time.time()
    for later, shown, stale in [(5.0, ["a"], 0), (cache.FRESH + 1, ["a"], 1), (cache.KEPT + 1, [], 1), (-60.0, [], 1)]:
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        names = Names()
        assert (names.jobs(), len(names.stale)) == (shown, stale), later


def test_another_kubeconfig_in_its_place_has_other_names(kubeconfig):
    keep.seen_jobs([job("a")], whole=True)
    kubeconfig.write_text("{current-context: other}")
    names = Names()
    assert names.jobs() == []
    assert len(names.stale) == 1


def test_a_refresh_that_fails_waits(kubeconfig, monkeypatch):
    scope = scope_of()
    keep.seen_jobs([job("a")], whole=True)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + cache.FRESH + 1)
    keep.trying(scope)
    names = Names()
    assert (names.jobs(), names.stale) == (["a"], [])
    monkeypatch.setattr(time, "time", lambda: now + cache.FRESH + cache.RETRY + 2)
    names = Names()
    assert (names.jobs(), len(names.stale)) == (["a"], 1)


def test_modes_whatever_the_umask(kubeconfig, isolated):
    before = os.umask(0)
    try:
        keep.seen_jobs([job("a")], whole=True)
        assert cache._claimed()
    finally:
        os.umask(before)
    folder = Path(cache.folder())
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)] == [0o700, 0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("which", ["names", "atlctl"])
def test_a_linked_folder_is_refused(which, kubeconfig, isolated):
    keep.seen_jobs([job("a")], whole=True)
    folder = next(path for path in (Path(cache.folder()), Path(cache.folder()).parent) if path.name == which)
    folder.rename(isolated / "elsewhere")
    folder.symlink_to(isolated / "elsewhere")
    before = sorted((path, path.stat().st_mtime_ns) for path in (isolated / "elsewhere").rglob("*"))
    keep.seen_jobs([job("b")], whole=True)
    assert Names().jobs() == []
    assert not cache._claimed()
    assert before == sorted((path, path.stat().st_mtime_ns) for path in (isolated / "elsewhere").rglob("*"))


def test_what_belongs_to_somebody_else_is_refused(kubeconfig, monkeypatch):
    keep.seen_jobs([job("a")], whole=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert Names().jobs() == []
        assert not cache._claimed()
        keep.seen_jobs([job("b")], whole=True)
    assert "b" not in json.loads(the_file().read_text())["names"]


@pytest.mark.parametrize("mode", [0o660, 0o606])
def test_what_others_may_write_to_is_refused(mode, kubeconfig):
    keep.seen_jobs([job("a")], whole=True)
    the_file().chmod(mode)
    assert Names().jobs() == []
    the_file().chmod(0o600)
    Path(cache.folder()).chmod(mode | 0o100)
    assert Names().jobs() == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from([*HOSTILE, "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["seen", "workers", "roles", "active", *HOSTILE, "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(names=_JSON, listed=_JSON, tried=_JSON)
def test_any_content_gives_safe_names_or_none(names, listed, tried):
    Path(os.environ["KUBECONFIG"]).write_text("{}")
    scope = scope_of()
    keep.seen_jobs([job("a")], whole=True)
    whole = {"schema": cache.SCHEMA, "scope": scope.key, "stamp": scope.stamp(), "listed": listed, "tried": tried}
    Path(scope.path()).write_text(json.dumps({**whole, "names": names}))
    found = Names()
    shown = [*found.jobs(), *found.workers("a"), *found.workers(None), *found.roles("a")]
    assert set(shown) <= {"a", "seen", "workers", "roles", "active"}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"schema": 1}', b"x" * 2_000_000]
)
def test_a_file_that_is_none_of_ours(content, kubeconfig):
    keep.seen_jobs([job("a")], whole=True)
    path = the_file()
    path.write_bytes(content)
    names = Names()
    assert (names.jobs(), len(names.stale)) == ([], 1)
    keep.seen_jobs([job("b")], whole=False)
    assert Names().jobs() == ["b"]


def test_a_collision_is_a_miss(kubeconfig):
    keep.seen_jobs([job("a")], whole=True)
    runtime.start("jobs", namespace="other")
    os.rename(the_file(), scope_of("other").path())
    assert Names(asked={"namespace": "other"}).jobs() == []


def test_the_cache_is_bounded(kubeconfig):
    many = [job(f"job-{number}", 200, State.FAILED) for number in range(500)]
    keep.seen_jobs([*many, job("alive", 1000), *(job(f"more-{number}", 0) for number in range(20_000))], whole=True)
    assert the_file().stat().st_size <= cache.MAX_FILE
    assert len(Names().workers("alive")) == 1000
    assert Names().jobs()[0] == "alive"
    for number in range(keep.MOST_FILES + 5):
        runtime.start("jobs", namespace=f"space-{number}")
        keep.seen_jobs([job("a")], whole=True)
    files = list(Path(cache.folder()).iterdir())
    assert len(files) == keep.MOST_FILES
    old = time.time() - keep.OLD - 1
    for path in files:
        os.utime(path, (old, old))
    keep.seen_jobs([job("a")], whole=True)
    assert list(Path(cache.folder()).iterdir()) == [Path(scope_of(f"space-{number}").path())]


@pytest.mark.parametrize("spoil", ["file", "read-only"])
def test_a_cache_that_cannot_be_written_is_no_failure(spoil, kubeconfig, caplog):
    folder = Path(cache.folder())
    folder.parent.mkdir(parents=True, mode=0o700)
    if spoil == "file":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
    with caplog.at_level(logging.DEBUG, "atlctl"):
        keep.seen_jobs([job("a")], whole=True)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert not cache._claimed()
    assert Names().jobs() == []


def test_one_refresh_at_a_time(kubeconfig, monkeypatch):
    assert cache._claimed()
    assert not cache._claimed()
    lock = os.path.join(cache.folder(), cache.LOCK)
    for moment in (time.time() - cache.LIMIT - 10, time.time() + 1000):  # left behind; from a wrong clock
        os.utime(lock, (moment, moment))
        assert cache._claimed()
        assert not cache._claimed()


def test_the_refresh_has_neither_terminal_nor_descriptors(kubeconfig, isolated, monkeypatch):
    """Not even descriptors opened by other code."""
    told = isolated / "told"
    fake = isolated / "python"
    looks = 'readlink /proc/$$/fd/*; cut -d" " -f5,6,7 /proc/$$/stat; echo $$ "$1"'
    fake.write_text(f"#!/bin/sh\n{{ {looks}; }} > {told}.new\nmv {told}.new {told}\n")
    fake.chmod(0o755)
    read, write = os.pipe()
    os.set_inheritable(write, True)  # as a shell passes its descriptors on
    monkeypatch.setattr("sys.executable", str(fake))
    cache.refresh([scope_of()])
    os.close(write)
    assert os.read(read, 1) == b""  # the end of the pipe, although the refresh may still be running
    os.close(read)
    assert proc.wait_until(told.exists)
    *links, session, last = told.read_text().splitlines()
    assert {link for link in links if not link.startswith(str(isolated))} == {"/dev/null"}
    pid, first = last.split()
    assert session.split() == [pid, pid, "0"]
    assert first == "-P"


def test_a_refresh_imports_nothing_from_where_one_stands(kubeconfig, isolated):
    for name in ("json", "asyncio", "atlctl", "yaml"):
        Path(f"{name}.py").write_text(f"open({str(isolated / 'imported')!r}, 'w')")
    kubeconfig.write_text("contexts: [{name: prod, context: {namespace: ml}}, {name: $(touch F)}]")
    names = Names()
    assert names.contexts() == []
    cache.refresh(names.stale)
    assert proc.wait_until(lambda: not os.path.exists(os.path.join(cache.folder(), cache.LOCK)))
    assert Names().contexts() == ["prod"]
    assert "ml" in Names().namespaces()
    assert not (isolated / "imported").exists()


def test_a_pod_is_a_cluster_too(isolated, monkeypatch):
    monkeypatch.setattr(kubeconfigs, "SERVICE_ACCOUNT", str(isolated))
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        assert cache.cluster_scope("jobs") is None
        monkeypatch.setenv(name, "1")
    assert cache.cluster_scope("jobs") is None
    (isolated / "token").write_text("t")
    assert kubeconfigs.in_cluster()
    assert cache.cluster_scope("jobs") is not None
    assert cache.contexts_scope() is None
    assert cache.cluster_scope("jobs", kubeconfig="nowhere") is None


def test_a_line_that_cannot_be_read_costs_its_own_hosts(isolated):
    (isolated / "hosts").write_text("\ufeffa slots=8\n-x\nml@b[1-3]:22  # three\nc d\na\n")
    assert complete.hosts(str(isolated / "hosts")) == ["a", "b1", "b2", "b3"]


@pytest.mark.parametrize("text", ["gpu[1-999999999]", "gpu[1-", "gpu[x]", "[", "\x00", "gpu[1-2" * 1000, "٣[٣-٤]"])
def test_a_strange_hostfile_is_bounded(text, isolated):
    (isolated / "hosts").write_text(text)
    assert len(complete.hosts(str(isolated / "hosts"))) <= 2000


def test_hostfiles_that_are_no_files(isolated):
    os.mkfifo(isolated / "pipe")
    with (isolated / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("pipe", "huge", "nowhere", "", "a\0b"):
        assert complete.hosts(str(isolated / name)) == []


def test_damaged_records_have_no_workers(isolated, monkeypatch):
    monkeypatch.setenv("ATLCTL_STATE_DIR", str(isolated))
    (isolated / "ssh" / "x").mkdir(parents=True)
    path = isolated / "ssh" / "x" / "job.json"
    for content in ("{", "[]", '{"workers": 7}', '{"workers": [7]}', '{"workers": [{"name": ["a"]}, {"name": "b"}]}'):
        path.write_text(content)
        assert Names().workers("x") in ([], ["b"])


@pytest.mark.parametrize(
    ("level", "place"), [("", "local"), ("local", "local"), ("local/a", "local"), ("ssh/b", "ssh")]
)
def test_names_in_a_state_folder_that_may_be_forged_are_not_shown(isolated, monkeypatch, level, place):
    monkeypatch.setenv("ATLCTL_STATE_DIR", str(isolated / "state"))
    monkeypatch.chdir(isolated)
    (isolated / "workers/here").mkdir(parents=True)
    (isolated / "state/local/a/workers/w").mkdir(parents=True)
    (isolated / "state/local/a/job.json").write_text("{}")
    (isolated / "state/ssh/b").mkdir(parents=True)
    (isolated / "state/ssh/b/job.json").write_text('{"workers": [{"name": "h"}]}')
    job, worker = {"local": ("a", "w"), "ssh": ("b", "h")}[place]
    assert (complete.registered(place), Names().workers(job)) == ([job], [worker])
    (isolated / "state" / level).chmod(0o770)
    assert Names().workers(job) == []
    assert complete.registered(place) == ([] if level in ("", "local") else [job])


def test_lists_of_the_configuration(isolated, monkeypatch):
    monkeypatch.setenv("HOME", str(isolated))
    monkeypatch.chdir(isolated)
    assert cache.lists_scope() is None
    config = isolated / ".config" / "atlctl" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("")
    (isolated / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(isolated / "a" / "b")
    mine = lists()
    keep.seen_names(mine, {"cluster": ["gpu1", "gpu2"], "$(touch F)": ["x"]})
    assert Names().jobs() == ["cluster"]
    assert Names(path="ssh run").jobs() == ["cluster"]
    assert Names(asked={"backend": "ssh"}).workers("cluster") == ["gpu1", "gpu2"]
    assert Names(asked={"backend": "local"}).jobs() == []
    (isolated / "a" / ".atlctl.toml").write_text("")
    assert Names().jobs() == []
    assert lists().key != mine.key


def test_a_removed_working_folder(isolated, monkeypatch):
    (isolated / "gone").mkdir()
    monkeypatch.chdir(isolated / "gone")
    (isolated / "gone").rmdir()
    assert Names().jobs() == []
