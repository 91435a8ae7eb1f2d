"""Real mount faults, each on one of four hosts with separate mount namespaces: exactly that host is named."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from atlctl.jobs.model import Worker
from atlctl.smoke import storage
from atlctl.smoke.context import Options, Run
from atlctl.smoke.findings import Check, Report, Severity, SmokeVerdict
from atlctl.smoke.session import Session
from atlctl.smoke.storage import check_storage
from tests.faults.smoke import fusefs
from tests.support.pace import within
from tests.support.plainhosts import PlainHosts, workers


def _mounting_works() -> bool:
    words = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]
    return os.getuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0


def _fuse_works() -> bool:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENODEV, errno.EPERM, errno.EACCES)
    return True


pytestmark = [
    pytest.mark.skipif(not _mounting_works(), reason="mount namespaces are not allowed here"),
    pytest.mark.speed,
]
needs_fuse = pytest.mark.skipif(not _fuse_works(), reason="/dev/fuse is not here")

BAD = 2


class Site:
    """The folder shared by all hosts, and its mount point on each of them."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.at = folder / "shared", folder / "mnt"
        self.shared.mkdir()
        self.at.mkdir()

    def prefix(self, bad: Callable[[], str]) -> Callable[[Worker], Sequence[str]]:
        """The words before the command of each host. `bad` returns the shell command that mounts it on host 2."""

        def words(worker: Worker) -> Sequence[str]:
            mount = bad() if worker.index == BAD else f"mount --bind {self.shared} {self.at}"
            return ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")

        return words

    def fuse(self, *faults: str) -> str:
        words = [sys.executable, fusefs.__file__, str(self.at), str(self.shared), *faults]
        return f'set -- {shlex.join(words)} -- "$@"; true'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def _run(site: Site, bad: str, count: int = 4) -> Report:
    report = Report("quick")
    config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
    hosts = workers(count)
    async with Session(PlainHosts(site.prefix(lambda: bad)), hosts, config) as session:
        assert await session.roll_call(20) == {}
        run = Run(session, tuple(hosts), Options(mounts=(str(site.at),)), report)
        await check_storage(run)
    return report


def check(site: Site, bad: str, count: int = 4) -> Report:
    report = asyncio.run(_run(site, bad, count))
    assert os.listdir(site.shared) == []
    return report


def named(report: Report) -> list[tuple[str | None, str | None]]:
    return [(f.culprit.worker, f.culprit.path) for f in report.findings if f.culprit is not None]


def only(report: Report, site: Site, text: str, severity: Severity = Severity.FAIL) -> None:
    assert named(report) == [(f"worker-{BAD}", str(site.at))], report.findings
    (finding,) = report.findings
    assert finding.severity is severity
    assert finding.culprit is not None
    assert finding.culprit.kind == "mount"
    assert text in finding.evidence
    assert finding.confirmed
    assert finding.advice


def test_one_volume_passes_and_nothing_stays(site: Site) -> None:
    report = check(site, f"mount --bind {site.shared} {site.at}")
    assert report.findings == []
    (verdict,) = report.checks
    assert (verdict.name, verdict.verdict) == ("storage", SmokeVerdict.PASS)
    assert len(report.data["storage"][str(site.at)]) == 4


def test_read_only(site: Site) -> None:
    report = check(site, f"mount --bind {site.shared} {site.at} && mount -o remount,ro,bind {site.at}")
    only(report, site, "is read-only (create: Read-only file system)")


def test_another_volume(site: Site) -> None:
    only(check(site, f"mount -t tmpfs none {site.at}"), site, "it does not see the files of worker-[0-1,3]")


def test_not_there(site: Site) -> None:
    report = check(site, f"mount -t tmpfs none {site.at.parent}")
    only(report, site, "is not there (open: No such file or directory)")


def test_full(site: Site) -> None:
    fill = f"dd if=/dev/zero of={site.at}/all bs=64k 2>/dev/null"
    report = check(site, f"mount -t tmpfs -o size=1m none {site.at} && {{ {fill} || true; }}")
    only(report, site, "is full (write: No space left on device)")


def test_full_for_all_accuses_no_worker(site: Site) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", site.shared], check=True)
    try:
        with (site.shared / "all").open("wb", buffering=0) as file:
            for _ in range(16):
                file.write(bytes(1 << 16))
        report = asyncio.run(_run(site, f"mount --bind {site.shared} {site.at}"))
        assert os.listdir(site.shared) == ["all"]
    finally:
        subprocess.run(["umount", site.shared], check=True)
    assert named(report) == [(None, str(site.at))]
    assert "on all workers: is full" in report.findings[0].evidence


def test_a_volume_of_its_own_on_each_is_not_judged(site: Site) -> None:
    async def run() -> Report:
        report = Report("quick")
        config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
        own = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none {site.at} && exec "$@"', "sh")
        async with Session(PlainHosts(lambda _: own), workers(4), config) as session:
            await session.roll_call(20)
            await check_storage(Run(session, tuple(workers(4)), Options(mounts=(str(site.at),)), report))
        return report

    report = asyncio.run(run())
    assert [(f.severity, f.culprit.worker if f.culprit else "") for f in report.findings] == [
        (Severity.NOT_JUDGED, None)
    ]


@needs_fuse
@pytest.mark.parametrize(("operation", "step"), [("opendir", "open"), ("fsync", "fsync")])
def test_a_mount_that_hangs(site: Site, monkeypatch: pytest.MonkeyPatch, operation: str, step: str) -> None:
    """A real hang: the reader is in an uninterruptible wait, and SIGKILL has no effect. The agent still ends."""
    monkeypatch.setattr(storage, "_PATIENCE", 1.0)
    begun = time.monotonic()
    report = asyncio.run(_run(site, site.fuse(f"{operation}=hang")))
    assert within(time.monotonic() - begun, 20)
    assert os.listdir(site.shared) == []  # removed by another worker
    only(report, site, f" s to {step} (process state ")
    assert report.findings[0].evidence.startswith("hangs: no answer in 1.")


@needs_fuse
def test_a_slow_mount(site: Site) -> None:
    only(check(site, site.fuse("write=0.04")), site, "slow: ", Severity.WARN)


@needs_fuse
def test_a_mount_that_reads_otherwise(site: Site) -> None:
    only(check(site, site.fuse("read=flip")), site, "it reads otherwise than others what worker-[0-3] wrote")


@needs_fuse
def test_a_mount_that_reads_otherwise_once(site: Site) -> None:
    """The second look is correct, but the fault stays reported."""
    (finding,) = check(site, site.fuse("read=once")).findings
    assert finding.culprit is not None
    assert (finding.culprit.worker, finding.severity, finding.confirmed) == (f"worker-{BAD}", Severity.FAIL, False)


@needs_fuse
def test_what_all_mount_of_a_network_is_found(site: Site) -> None:
    """The user did not name it; FUSE counts as a shared file system."""

    async def run() -> Report:
        report = Report("quick")
        config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
        words = ("unshare", "-m", "sh", "-c", f'{site.fuse()} && exec "$@"', "sh")
        async with Session(PlainHosts(lambda _: words), workers(3), config) as session:
            assert await session.roll_call(20) == {}
            await check_storage(Run(session, tuple(workers(3)), Options(), report))
        return report

    report = asyncio.run(run())
    assert report.findings == []
    assert len(report.data["storage"][str(site.at)]) == 3


@needs_fuse
def test_two_faults_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_PATIENCE", 1.5)
    prefix = site.prefix(lambda: f"mount -t tmpfs none {site.at}")

    def words(worker: Worker) -> Sequence[str]:
        if worker.index == 5:
            return ("unshare", "-m", "sh", "-c", f'{site.fuse("create=hang")} && exec "$@"', "sh")
        return prefix(worker)

    async def run() -> Report:
        report = Report("quick")
        config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
        async with Session(PlainHosts(words), workers(8), config) as session:
            assert await session.roll_call(20) == {}
            await check_storage(Run(session, tuple(workers(8)), Options(mounts=(str(site.at),)), report))
        return report

    report = asyncio.run(run())
    assert sorted(named(report)) == [("worker-2", str(site.at)), ("worker-5", str(site.at))], report.findings


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_files_go_when_the_agent_is_killed(site: Site, number: signal.Signals) -> None:
    async def run() -> None:
        config = {"seconds": 60, "torch": False, "nice": 0, "token": secrets.token_hex(8)}
        async with Session(PlainHosts(), workers(2), config) as session:
            await session.roll_call(20)
            ask = {
                "cmd": "storage_write",
                "paths": {"0": str(site.shared)},
                "want": 1 << 20,
                "workers": 2,
                "patience": 5,
            }
            answers = await session.ask(dict.fromkeys(session.living(), ask), 20)
            assert all(answer.fields for answer in answers.values())
            assert len(os.listdir(site.shared)) == 2
            for name in session.living():
                os.kill(int(session.hello(name)["pid"]), number)
            for _ in range(500):
                if not os.listdir(site.shared):
                    break
                await asyncio.sleep(0.02)
        assert os.listdir(site.shared) == []

    asyncio.run(run())


def test_files_go_when_the_client_is_interrupted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def interrupted(self: object) -> None:
        seen.append(len(os.listdir(site.shared)))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(5)

    monkeypatch.setattr(storage._Test, "look", interrupted)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_run(site, f"mount --bind {site.shared} {site.at}"))
    assert seen == [4]
    assert os.listdir(site.shared) == []


def test_a_file_that_somebody_put_there_is_neither_followed_nor_removed(site: Site, tmp_path: Path) -> None:
    """An attacker who guessed the token and created a link there gets no data written through it."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    token = secrets.token_hex(8)
    trap = site.shared / f".atlctl-smoke-{token}-0-0.new"
    trap.symlink_to(victim)

    async def run() -> list[Check]:
        report = Report("quick")
        config = {"seconds": 60, "torch": False, "nice": 0, "token": token}
        async with Session(PlainHosts(), workers(2), config) as session:
            await session.roll_call(20)
            await check_storage(Run(session, tuple(workers(2)), Options(mounts=(str(site.shared),)), report))
        return report.checks

    asyncio.run(run())
    assert victim.read_text() == "precious"
    assert os.listdir(site.shared) == [trap.name]
