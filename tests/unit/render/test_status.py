"""The status line: its text, and its separation from output."""

from __future__ import annotations

import itertools
import os
import pty
import re
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atlctl.i18n import Message
from atlctl.render import writer as module
from atlctl.render.status import StatusLine, Wait
from atlctl.render.width import display_width
from atlctl.render.writer import ERASE, Writer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, set by a test; waits start at 1000."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def status(color: bool = False, **env: str) -> StatusLine:
    return StatusLine(color, env)


def said(line: StatusLine, wait: Wait, columns: int = 80) -> str:
    with line.doing(wait):
        return line.line(columns).decode()


def test_what_is_waited_for_and_how_long(clock: list[float]) -> None:
    wait = Wait(Message("waiting for {worker}", worker="worker-3"), begun=1000.0)
    assert said(status(), wait) == "⠋ waiting for worker-3  0s"
    clock[0] += 75
    assert said(status(), wait) == "⠋ waiting for worker-3  75s"
    assert said(status(), Wait("x", limit=240.0, begun=1075.0)) == "⠋ x  0s of 4m at most"


def test_in_chinese(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    line = status(LC_ALL="zh_CN.UTF-8")
    assert (
        said(line, Wait(Message("waiting for {worker}", worker="w"), limit=5.0, begun=1000.0))
        == "⠋ 正在等待 w  0s（最多 5s）"
    )


def test_a_bar_with_counts_or_with_bytes_and_their_rate(clock: list[float]) -> None:
    done = [0.0]
    counts = Wait("reading", lambda: done[0], 24, begun=1000.0)
    sizes = Wait("copying", lambda: done[0], 2048, size=True, begun=1000.0)
    line = status()
    assert said(line, counts) == "⠋ reading  ░░░░░░░░░░░░ 0/24  0s"
    assert said(line, sizes) == "⠙ copying  ░░░░░░░░░░░░ 0 B/2.0 KiB  0 B/s  0s"
    done[0], clock[0] = 12, clock[0] + 1
    assert said(line, counts) == "⠹ reading  ██████░░░░░░ 12/24  1s"
    done[0], clock[0] = 1024, clock[0] + 1
    assert said(line, sizes) == "⠸ copying  ██████░░░░░░ 1.0 KiB/2.0 KiB  512 B/s  2s"
    clock[0] += 60  # the rate is for the last seconds
    assert "  0 B/s  " in said(line, sizes)


def test_plain_characters_in_the_locale_c() -> None:
    assert said(status(LC_ALL="C"), Wait("x", lambda: 1, 2)) == "| x  ######------ 1/2  0s"


@pytest.mark.parametrize("env", [{}, {"LC_ALL": "C"}, {"LANG": "zh_CN.UTF-8"}])
def test_it_is_narrower_than_any_terminal(env: dict[str, str]) -> None:
    line = StatusLine(False, env)
    for columns, text in itertools.product((*range(1, 45), 80, 119), ("short", "等待" * 40, "worker-[0-3] " * 9)):
        for wait in (Wait(text), Wait(text, lambda: 3e9, 4e9, size=True, limit=60)):
            shown = said(line, wait, columns)
            bar = sum(shown.count(char) for char in "█░")  # two cells each on some terminals
            assert display_width(shown) + (bar if env.get("LANG") else 0) < max(columns, 2), (columns, shown)


def test_hostile_names_are_harmless() -> None:
    shown = said(status(), Wait(Message("waiting for {worker}", worker="\x1b]0;own\x07\r\nme\u202e")))
    assert "\x1b" not in shown
    assert shown.isprintable()


def test_the_innermost_wait_is_shown_and_nothing_for_a_moment_after_the_last(clock: list[float]) -> None:
    line = status()
    with line.doing(Wait("outer")):
        with line.doing(Wait("inner")):
            assert b"inner" in line.line(80)
        assert b"outer" in line.line(80)
    assert line.line(80) == b""
    clock[0] += 1
    assert b"working" in line.line(80)


class Screen:
    """A terminal, its output, and a writer on it."""

    def __init__(self, fd: int, writer: Writer) -> None:
        self._fd = fd
        self.writer = writer
        self.got = b""

    def wait_for(self, pattern: bytes) -> bytes:
        until = time.monotonic() + 10
        while not re.search(pattern, self.got):
            assert time.monotonic() < until, self.got
            self.got += os.read(self._fd, 65536)
        return self.got


@contextmanager
def screen(stdout: int | None = None) -> Iterator[Screen]:
    """`stdout`: its descriptor; default: the terminal, like stderr."""
    fd, line = pty.openpty()
    tty.setraw(line, termios.TCSANOW)
    made = Writer(line if stdout is None else stdout, line)
    try:
        yield Screen(fd, made)
    finally:
        made.close(5)
        os.close(line)
        os.close(fd)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 0.01)
    monkeypatch.setattr(module, "QUIET", 0.02)


@pytest.mark.usefixtures("soon")
def test_it_is_erased_before_output_and_comes_back() -> None:
    with screen() as made:
        made.writer.show(lambda columns: b"STATUS")
        made.wait_for(rb"STATUS")
        made.writer.put("stdout", b"output\n")
        made.wait_for(rb"STATUS\r\x1b\[Koutput\n\r\x1b\[KSTATUS")
        made.writer.show(None)
        assert not made.writer.drawn
        made.wait_for(rb"STATUS\r\x1b\[K$")


@pytest.mark.usefixtures("soon")
def test_it_is_erased_before_output_that_is_put_just_before_its_end() -> None:
    with screen() as made:
        for _ in range(20):
            made.writer.show(lambda columns: b"STATUS")
            made.wait_for(rb"STATUS")
            made.writer.put("stdout", b"output\n")
            made.writer.show(None)
            made.writer.flush(5)
            assert b"STATUSoutput" not in made.wait_for(rb"output\n(\r\x1b\[K(STATUS\r\x1b\[K)?)?$")
            made.got = b""


@pytest.mark.usefixtures("soon")
def test_it_stays_away_from_a_line_that_has_not_ended() -> None:
    with screen() as made:
        made.writer.put("stdout", b"no newline yet")
        made.writer.show(lambda columns: b"STATUS")
        made.wait_for(rb"yet")
        time.sleep(0.1)
        assert not made.writer.drawn
        made.writer.put("stdout", b"\n")
        assert made.wait_for(rb"STATUS").startswith(b"no newline yet\n" + ERASE + b"STATUS")


@pytest.mark.usefixtures("soon")
def test_it_is_hidden_while_something_else_writes() -> None:
    with screen() as made:
        made.writer.show(lambda columns: b"STATUS")
        made.wait_for(rb"STATUS")
        with made.writer.hidden():
            assert not made.writer.drawn
            made.wait_for(rb"STATUS\r\x1b\[K$")
            time.sleep(0.1)
            assert not made.writer.drawn
        made.got = b""
        made.wait_for(rb"STATUS")


@pytest.mark.usefixtures("soon")
def test_once_a_pipe_gets_output_it_does_not_come_back() -> None:
    """The pipe's reader may write to the same terminal."""
    read, write = os.pipe()
    with screen(write) as made:
        made.writer.show(lambda columns: b"STATUS")
        made.wait_for(rb"STATUS")
        made.writer.put("stdout", b"output\n")
        assert os.read(read, 100) == b"output\n"
        made.wait_for(rb"STATUS\r\x1b\[K$")
        made.writer.show(lambda columns: b"STATUS")
        time.sleep(0.1)
        assert not made.writer.drawn
    os.close(read)
    os.close(write)


@pytest.mark.usefixtures("soon")
def test_a_line_that_fails_keeps_no_output_back() -> None:
    def broken(columns: int) -> bytes:
        raise ValueError(columns)

    with screen() as made:
        made.writer.show(broken)
        time.sleep(0.1)
        made.writer.put("stdout", b"output\n")
        made.wait_for(rb"^output\n$")


def test_it_draws_at_most_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 0.0)
    drawn: list[int] = []

    def line(columns: int) -> bytes:
        drawn.append(columns)
        return b"STATUS"

    with screen() as made:
        begun = time.monotonic()
        made.writer.show(line)
        for _ in range(50):
            made.writer.put("stdout", b"output\n")
            time.sleep(0.01)
            os.read(made._fd, 65536)
        seconds = time.monotonic() - begun
    assert len(drawn) <= 10 * seconds + 2
