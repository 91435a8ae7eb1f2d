"""What every test gets: its own environment and folders, no network, and a count of what it left running."""

from __future__ import annotations

import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.apiserver import handle
from tests.support import isolation, needs, proc

settings.register_profile("house", deadline=None, database=None)
settings.load_profile("house")

isolation.refuse_network()


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


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh HOME, working folder and environment; fails the test that leaves a process running.

    Yields the home folder. Its path is short, since a socket's path may have 107 bytes at most.
    """
    # Where `tmp_path` lies is settled once and for all tests: before this test's own TMPDIR.
    tmp_path_factory.getbasetemp()
    for name in isolation.foreign(list(os.environ)):
        monkeypatch.delenv(name)
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="atl-", ignore_cleanup_errors=True) as folder:
        home, cwd, temporary = (Path(folder, name) for name in ("home", "cwd", "tmp"))
        for path in (home, cwd, temporary):
            path.mkdir()
        home.joinpath("run").mkdir(mode=0o700)
        for name, value in isolation.environment(home).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setenv(proc.MARK, mark)
        monkeypatch.chdir(cwd)
        time.tzset()
        before = proc.started()
        yield home
        left = proc.leftovers(mark) if proc.started() > before else []
        monkeypatch.undo()
        time.tzset()
    if left:
        pytest.fail("left running (now killed):\n" + "\n".join(f"  {p.pid} {p.command}" for p in left), pytrace=False)


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
