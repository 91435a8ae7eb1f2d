"""How output will look here, and in which language."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from atlctl.cli.catalogue import language
from atlctl.cli.doctor.checks import Report, Words
from atlctl.render.streams import ColorFlag, Streams, color_source

_ENCODING = ("LC_ALL", "LC_CTYPE", "LANG")
_LANGUAGE = ("LC_ALL", "LC_MESSAGES", "LANG")


def check_terminal(
    report: Report, words: Words, env: Mapping[str, str], streams: Streams, color: ColorFlag = "auto"
) -> None:
    """How output will look."""
    colored, source = color_source(color, env, streams.stdout_tty)
    rows = _rows() if streams.stdout_tty else None
    report.data["machine"]["terminal"] = {
        "tty": streams.stdout_tty,
        "term": env.get("TERM"),
        "columns": streams.width if streams.stdout_tty else None,
        "rows": rows,
        "color": colored,
        "color_by": source or None,
    }
    how = words("with_color" if colored else "without_color")
    how = words("color_by", how=how, source=source) if source else how
    if not streams.stdout_tty:
        report.ok("terminal", words("no_terminal_color", how=how) if colored else words("no_terminal"))
    elif env.get("TERM", "dumb") == "dumb":
        report.warn("terminal", words("dumb_terminal", color=how), "export TERM=xterm-256color")
    else:
        size = f"{streams.width} x {rows}" if rows else str(streams.width)
        report.ok("terminal", words("terminal_ok", size=size, term=env["TERM"], color=how))


def _rows() -> int | None:
    """Lines of the terminal on stdout, None where it does not tell."""
    try:
        return os.get_terminal_size(1).lines or None
    except OSError:
        return None


def given(env: Mapping[str, str], beginning: str = "/proc/self/environ") -> dict[str, str]:
    """`env` as this process was given it: in the locale C Python sets LC_CTYPE by itself (PEP 538)."""
    found = dict(env)
    with contextlib.suppress(OSError), open(beginning, "rb") as file:
        if not any(word.startswith(b"LC_CTYPE=") for word in file.read().split(b"\0")):
            found.pop("LC_CTYPE", None)
    return found


def check_locale(report: Report, words: Words, env: Mapping[str, str]) -> None:
    """Output is UTF-8 whatever the locale says; a terminal of another encoding would show it wrongly."""
    said = next((name for name in _ENCODING if env.get(name)), None)
    value = env[said] if said is not None else "C"
    speaks = language(env)
    told_by = next((name for name in _LANGUAGE if env.get(name)), None)
    report.data["machine"]["locale"] = {"value": value, "by": said, "language": speaks, "language_by": told_by}
    tongue = (
        words("speaks_zh" if speaks == "zh" else "speaks_en", source=told_by) if told_by else words("speaks_default")
    )
    if "utf-8" in value.lower() or "utf8" in value.lower():
        report.ok("locale", words("locale_ok", value=value, language=tongue))
    else:
        fitting = "zh_CN.UTF-8" if speaks == "zh" else "C.UTF-8"
        report.warn("locale", words("locale_other", value=value, language=tongue), f"export LC_ALL={fitting}")
