"""The status line is gone before output comes, also before what is put just as it is taken back."""

from __future__ import annotations

import os
import pty
import time
import tty

import pytest

from atlctl.render import writer as module
from atlctl.render.writer import ERASE, Writer


def test_output_that_comes_as_the_line_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST", "QUIET"):
        monkeypatch.setattr(module, name, 0.01, raising=False)
    terminal, line = pty.openpty()
    tty.setraw(line)
    writer = Writer(line, line)
    try:
        for _ in range(8):
            writer.show(lambda columns: b"waiting")
            deadline = time.monotonic() + 5
            while not writer.drawn:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            writer.put("stdout", b"text\n")
            writer.show(None)
        assert writer.close(5)
        screen = os.read(terminal, 65536)
    finally:
        os.close(terminal)
        os.close(line)
    assert screen.count(b"text\n") == 8
    assert b"waitingtext" not in screen
    assert ERASE + b"text" in screen
