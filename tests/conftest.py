"""What every test gets: its own environment and folders, no network, and a count of what it left running."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver import handle
from tests.support import examples, isolation, needs, proc

examples.settle()

isolation.refuse_network()

# Where a version manager's script is the first `python3`, each start costs 0.1 CPU-s, and there are thousands.
if (first := shutil.which("python3")) and Path(first).read_bytes()[:2] == b"#!":
    os.environ["PATH"] = os.pathsep.join([f"{sys.base_prefix}/bin", os.environ["PATH"]])

# In the background of a shell, or under nohup, these are ignored, also by what is started; handlers are not inherited.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


def pytest_report_header() -> str:
    return f"rough mode of the test API server: ATLCTL_ROUGH_SEED={handle.SEED}"


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Commands that run in this process set up logging for all of it: put back what was there."""
    loggers = [logging.getLogger(), logging.getLogger("atlctl")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers


class Folders(tempfile.TemporaryDirectory[str]):
    """The folders of one test, and of the next if it left them empty: on some disks a removal costs 5 ms."""

    def __init__(self) -> None:
        super().__init__(prefix="atl-", ignore_cleanup_errors=True)
        for name in ("home", "cwd", "tmp"):
            Path(self.name, name).mkdir()
        Path(self.name, "home/run").mkdir(mode=0o700)
        self._empty = self._content()

    def empty(self) -> bool:
        """True if they are as they were made."""
        return self._content() == self._empty

    def _content(self) -> list[tuple[str, int, int, list[str], list[str]]]:
        walked = [(top, os.stat(top), inner, files) for top, inner, files in os.walk(self.name)]
        return [(top, about.st_mode, about.st_uid, inner, files) for top, about, inner, files in walked]


@pytest.fixture(scope="session")
def spare_folders() -> Iterator[list[Folders]]:
    spare: list[Folders] = []
    yield spare
    for folders in spare:
        folders.cleanup()


@pytest.fixture(autouse=True)
def isolated(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, spare_folders: list[Folders]
) -> Iterator[Path]:
    """An empty HOME, working folder and environment; fails the test that leaves a process running.

    Yields the home folder. Its path is short, since a socket's path may have 107 bytes at most.
    """
    # Where `tmp_path` lies is settled once and for all tests: before this test's own TMPDIR.
    tmp_path_factory.getbasetemp()
    for name in isolation.foreign(list(os.environ)):
        monkeypatch.delenv(name)
    mark = uuid.uuid4().hex
    folders = spare_folders.pop() if spare_folders else Folders()
    home = Path(folders.name, "home")
    for name, value in isolation.environment(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", f"{folders.name}/tmp")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(proc.MARK, mark)
    monkeypatch.chdir(f"{folders.name}/cwd")
    time.tzset()
    before = proc.started()
    yield home
    left = proc.leftovers(mark) if proc.started() > before else []
    monkeypatch.undo()
    time.tzset()
    if not left and folders.empty():
        spare_folders.append(folders)
    else:
        folders.cleanup()
    if left:
        pytest.fail("left running (now killed):\n" + "\n".join(f"  {p.pid} {p.command}" for p in left), pytrace=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays until the end: the garbage collector need not go over it a thousand times."""
    session.config.stash[isolation.COLLECTED] = frozenset(sys.modules)
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a program that is not here; `needs` checks the names."""
    programs = [program for marker in item.iter_markers("needs") for program in marker.args]
    if reason := needs.skip_reason(programs):
        pytest.skip(reason)


_skips: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _skips.extend(
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", [])
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """The very last line of a run, below pytest's own."""
    if (terminal := config.pluginmanager.get_plugin("terminalreporter")) is not None:
        terminal.write_line(needs.causes(_skips))
