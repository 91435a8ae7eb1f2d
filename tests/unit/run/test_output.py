"""The output of a wrapped command: every byte on the screen, whatever the log's disk does."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from atlctl.diagnosis.stepfile import read_recorded
from atlctl.remote.supervisor.logs import CriLog
from atlctl.run import output
from atlctl.run.output import Log, Pump, StepsOfOutput, drained

PATIENCE = 30.0


def _pumped(log: Log, data: bytes) -> bytes:
    """What arrives on the screen of `data` that a command writes."""
    source, command = os.pipe()
    screen, shown = os.pipe()
    pump = Pump(source, shown, "stdout", log)
    seen = bytearray()

    def read() -> None:
        with os.fdopen(screen, "rb") as file:
            seen.extend(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(command, "wb") as file:
        file.write(data)
    drained([pump], PATIENCE)
    os.close(shown)
    reader.join()
    return bytes(seen)


def test_log_has_every_line(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    assert _pumped(log, b"one\ntwo\nthree") == b"one\ntwo\nthree"
    log.close(PATIENCE)
    lines = (tmp_path / "log" / "0.log").read_bytes().splitlines()
    assert [line.split(b" ", 3)[2:] for line in lines] == [[b"F", b"one"], [b"F", b"two"], [b"P", b"three"]]
    assert log.lost == 0


def test_log_on_a_hanging_disk_delays_nothing_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(CriLog, "feed", lambda *_: hanging.wait())
    log = Log(str(tmp_path / "log"))
    data = b"x" * (3 * output.BUFFER)
    assert _pumped(log, data) == data
    log.close(0.0)
    assert log.lost == len(data)
    hanging.set()
    log.close(PATIENCE)
    assert 2 * output.BUFFER <= log.lost < len(data)


def test_log_without_a_folder_loses_all_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = Log(str(tmp_path / "file" / "log"))
    assert _pumped(log, b"line\n") == b"line\n"
    log.close(PATIENCE)
    assert log.lost == 5


def test_a_slow_reader_of_the_screen_is_waited_for(tmp_path: Path) -> None:
    """Longer than a pipe that stays open is waited for."""
    log = Log(str(tmp_path / "log"))
    source, command = os.pipe()
    screen, shown = os.pipe()
    pump = Pump(source, shown, "stdout", log)
    data = b"line\n" * 40_000

    def write() -> None:
        with os.fdopen(command, "wb") as file:
            file.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    waiting = threading.Thread(target=drained, args=([pump], 0.1))
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive()
    seen = bytearray()
    while len(seen) < len(data):
        seen += os.read(screen, 1 << 16)
    for thread in (writer, waiting, pump):
        thread.join(PATIENCE)
    assert bytes(seen) == data
    for fd in (screen, shown):
        os.close(fd)
    log.close(PATIENCE)


def test_a_pipe_that_stays_open_is_not_waited_for_long(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    source, command = os.pipe()
    with open(os.devnull, "wb") as screen:
        pump = Pump(source, screen.fileno(), "stdout", log)
        drained([pump], 0.1)
        assert pump.is_alive()
        os.close(command)
        pump.join(PATIENCE)
    log.close(PATIENCE)


def test_log_goes_on_without_a_screen(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    source, command = os.pipe()
    screen, shown = os.pipe()
    os.close(screen)
    pump = Pump(source, shown, "stdout", log)
    with os.fdopen(command, "wb") as file:
        file.write(b"line\n" * 50_000)
    drained([pump], PATIENCE)
    os.close(shown)
    log.close(PATIENCE)
    assert (tmp_path / "log" / "0.log").read_bytes().count(b" line\n") == 50_000


def test_log_shows_its_bytes_to_a_watcher(tmp_path: Path) -> None:
    seen: list[bytes] = []
    log = Log(str(tmp_path / "log"), seen.append)
    log.put("stdout", b"line\n")
    log.close(PATIENCE)
    assert seen == [b"line\n"]


def test_slow_steps_warn_once_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """StepsOfOutput of 0.1 s become steps of 1 s; lines come in pieces."""
    now = 1_800_000_000.0
    monkeypatch.setattr("atlctl.run.output.time.time", lambda: now)
    warned: list[str] = []
    steps = StepsOfOutput("worker-0", str(tmp_path), lambda told: warned.append(str(told)))
    for step in range(400):
        now += 0.1 if step < 300 else 1.0
        line = b"step %d loss 0.5\n" % step
        steps.feed(line[:7])
        steps.feed(line[7:])
    steps.close()
    assert len(warned) == 1, warned
    assert "times slower" in warned[0]
    assert steps.last == (399, now)
    (track,) = read_recorded(str(tmp_path))["worker-0"]
    (slow,) = track.slowdowns
    assert track.number == 399
    assert 297 < slow.first <= 300  # an entry is for a second
    assert round(slow.factor) == 10
