"""Starts of jobs on hosts: complete or not at all, whatever fails, on a real sshd."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from atlctl.backends.base import Argv
from atlctl.backends.hosts import records, starting, stopping
from atlctl.backends.hosts.asking import CannotStartError
from atlctl.backends.hosts.starting import StartSpec
from atlctl.jobs.errors import AtlctlError, NothingMatched
from atlctl.jobs.model import State
from tests.integration.sshjobs import HOSTS, Site, client, tools
from tests.support import proc
from tests.support.needs import needs

pytestmark = needs("sshd")


@pytest.mark.parametrize("step", ["go", "keep"])
def test_a_client_that_is_killed_in_the_middle_of_a_start_leaves_nothing(site: Site, step: str) -> None:
    before = f"""
    real = starting.asking.encoded
    def encoded(message):
        if message.get("do") == "{step}":
            print("reached", flush=True)
            time.sleep({0 if step == "go" else 1})
            os.kill(os.getpid(), signal.SIGKILL)
        return real(message)
    starting.asking.encoded = encoded"""
    process = client(site, "sleep", "1000", before=before)
    assert process.communicate(timeout=100)[0].startswith(b"reached")
    assert proc.wait_until(lambda: not site.running()), site.running()
    assert not list(site.state.glob("*/*/job.json"))
    # The name can be used again.
    record = site.start("sleep", "1000")
    assert site.look(record).state is State.RUNNING


@pytest.mark.parametrize("at", ["ready", "started", "kept"])
def test_a_start_that_fails_on_one_host_leaves_nothing_on_the_other(
    site: Site, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    real = starting._Host.step

    async def step(self: Any, message: dict[str, Any], expected: str) -> dict[str, Any]:
        if (self.name, expected) == ("gpu2", at):
            await asyncio.sleep(0.3)
            raise AtlctlError("gpu2: made to fail")
        return await real(self, message, expected)

    monkeypatch.setattr(starting._Host, "step", step)
    with pytest.raises(AtlctlError, match=r"^gpu2: made to fail$"):
        site.start("sleep", "1000")
    assert proc.wait_until(lambda: not site.running()), site.running()
    assert list(site.state.iterdir()) == []
    with pytest.raises(NothingMatched):
        records.load("job")
    assert list(Path(records.RECORDS.root).iterdir()) == []


def test_why_a_host_cannot_start(site: Site) -> None:
    with pytest.raises(CannotStartError, match=r"gpu\[1-2\]: nonesuch: command not found") as caught:
        site.start("nonesuch")
    assert caught.value.exit_code == 127
    with pytest.raises(CannotStartError, match=r"gpu\[1-2\]: /etc/passwd: cannot be executed") as caught:
        site.start("/etc/passwd")
    assert caught.value.exit_code == 126
    (site.folder / "bad").write_text("no program")
    (site.folder / "bad").chmod(0o755)
    with pytest.raises(CannotStartError, match=rf"gpu\[1-2\]: {site.folder}/bad: Exec format error"):
        site.start(str(site.folder / "bad"))
    assert list(site.state.iterdir()) == []
    (site.state / "job").mkdir()
    (site.state / "job" / "gpu2").symlink_to(site.folder)
    with pytest.raises(AtlctlError, match=r"^gpu2: .*/gpu2 is a symbolic link, which is not followed$") as refused:
        site.start("true")
    assert refused.value.exit_code == 4
    assert [path.name for path in (site.state / "job").iterdir()] == ["gpu2"]


def test_a_name_that_is_taken(site: Site) -> None:
    first = site.start("sleep", "1000")
    with pytest.raises(AtlctlError, match="job job is still running on gpu"):
        site.start("true")
    # A job of another client, without a record here.
    records.forget(first)
    with pytest.raises(AtlctlError, match=r"gpu\[1-2\]: a job of the name job runs there"):
        site.start("true")
    assert site.look(first).state is State.RUNNING
    site.stop(first)
    second = site.start("sh", "-c", "echo second")
    assert site.text(second, "gpu1", follow=True) == ["second"]
    site.until(second, State.SUCCEEDED)
    site.until(site.start("sh", "-c", "echo third", hosts={"gpu1": HOSTS["gpu1"]}), State.SUCCEEDED)
    assert [path.name for path in (site.state / "job").iterdir()] == ["gpu1"]
    assert site.look(first).workers[0].reason == "another job of that name has taken its place on this host"
    names = [site.start("true", name=None).name for _ in range(2)]
    assert names == ["ssh-1", "ssh-2"]
    records.forget(records.load("ssh-1"))
    assert site.start("true", name=None).name == "ssh-3"


def test_a_start_that_fails_leaves_the_ended_job_of_that_name(site: Site) -> None:
    first = site.start("echo", "kept")
    site.until(first, State.SUCCEEDED)
    with pytest.raises(CannotStartError):
        site.start("nonesuch")
    assert records.load("job") == first
    assert site.text(first, "gpu2") == ["kept"]


def test_what_is_left_is_removed(site: Site) -> None:
    record = site.start("sleep", "1000")

    def remove() -> dict[str, AtlctlError]:
        return site.run(lambda executors: stopping.remove(executors(record.hosts), record))

    errors = remove()
    assert {name: error.message for name, error in errors.items()} == {
        "gpu1": "gpu1: it still runs",
        "gpu2": "gpu2: it still runs",
    }
    assert records.load("job") == record
    site.stop(record)
    assert remove() == {}
    assert list(site.state.iterdir()) == []
    assert list(Path(records.RECORDS.root).iterdir()) == []
    assert site.look(record).state is State.LOST


def test_a_host_without_a_python_that_is_new_enough(site: Site) -> None:
    site.environment(PATH=tools(site.folder / "none"))
    with pytest.raises(AtlctlError, match=r"^gpu\[1-2\]: no Python 3.8 or newer found") as caught:
        site.start("true")
    assert "python3" in (caught.value.hint or "")
    old = 'if [ "$1" = -V ]; then echo Python 3.6.8; else exit 97; fi'
    site.environment(PATH=tools(site.folder / "old", python3=old))
    with pytest.raises(AtlctlError, match=r"^gpu\[1-2\]: .*found; too old: python3 \(Python 3.6.8\)$"):
        site.start("true")
    assert not site.state.exists()
    # A newer Python next to it is found.
    site.environment(PATH=tools(site.folder / "both", python3=old, python3_9=f'exec {sys.executable} "$@"'))
    assert site.text(site.start("echo", "here"), "gpu1", follow=True) == ["here"]


def test_a_start_that_is_cancelled_leaves_nothing(site: Site) -> None:
    async def main(executors: starting.Executors) -> None:
        task = asyncio.create_task(starting.start(executors, StartSpec(Argv(("sleep", "1000")), "job"), HOSTS))
        while not list(site.state.glob("*/*/job.json")):  # noqa: ASYNC110  another process sets no event
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    site.run(main)
    assert not [one for one in site.running() if one.command == "sleep 1000"]
    assert list(site.state.iterdir()) == []
    assert list(Path(records.RECORDS.root).iterdir()) == []


def test_a_client_that_is_killed_when_all_hosts_have_kept_leaves_the_job(site: Site) -> None:
    """The guard, which kills processes of a lost client, does not own the supervisors."""
    before = """
    real, kept = starting._StartOnHosts._keep, []
    async def keep(self, host):
        kept.append(await real(self, host))
        if len(kept) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return kept[-1]
    starting._StartOnHosts._keep = keep"""
    assert client(site, "sleep", "1000", before=before).communicate(timeout=100)[0] == b""
    assert proc.wait_until(lambda: not site.running("atlctl-start"))
    time.sleep(1.5)
    job = site.look(records.load("job"))
    assert [worker.state for worker in job.workers] == [State.RUNNING, State.RUNNING]
