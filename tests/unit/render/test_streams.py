import os
import pty

import pytest

from atlctl.render.streams import ColorFlag, Streams, decide_color


@pytest.mark.parametrize(
    ("flag", "env", "tty", "expected"),
    [
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"CLICOLOR_FORCE": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": ""}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"TERM": "xterm"}, True, True),
        ("auto", {}, False, False),
    ],
)
def test_decide_color(flag: ColorFlag, env: dict[str, str], tty: bool, expected: bool) -> None:
    assert decide_color(flag, env, tty) is expected


def test_detect_on_a_terminal_and_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    main, side = pty.openpty()
    read, write = os.pipe()
    real_isatty = os.isatty
    fds = {0: side, 1: write, 2: side}
    monkeypatch.setattr(os, "isatty", lambda fd: real_isatty(fds[fd]))
    streams = Streams.detect("auto", {"TERM": "xterm", "COLUMNS": "132"})
    assert (streams.stdin_tty, streams.stdout_tty, streams.stderr_tty) == (True, False, True)
    assert (streams.stdout_color, streams.stderr_color) == (False, True)
    assert streams.can_prompt
    assert not streams.interactive
    assert streams.width == 132
    for fd in (main, side, read, write):
        os.close(fd)


@pytest.mark.parametrize("columns", ["", "0", "-5", "many", "٣"])
def test_a_useless_width_is_ignored(columns: str) -> None:
    assert Streams.detect("never", {"COLUMNS": columns}).width > 0
