"""`error:`, `hint:`, `warning:` and `note:` lines for stderr, without a last newline."""

from __future__ import annotations

from atlctl.render.sanitize import clean


def _line(label: str, style: str, text: str, color: bool) -> str:
    return f"\x1b[{style}m{label}:\x1b[0m {clean(text)}" if color else f"{label}: {clean(text)}"


def error_text(message: str, hint: str | None, color: bool) -> str:
    """`error: what happened`, then `hint: the next command` where there is one."""
    text = _line("error", "1;31", message, color)
    return text if hint is None else f"{text}\n{_line('hint', '36', hint, color)}"


def warning_text(message: str, color: bool) -> str:
    return _line("warning", "33", message, color)


def note_text(message: str, color: bool) -> str:
    return _line("note", "36", message, color)
