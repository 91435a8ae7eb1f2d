"""Diagnostics of atlctl itself, on stderr: silent by default, more with -v and -vv, libraries too with --debug."""

from __future__ import annotations

import logging
import re

_NAMES = r"(?:token|password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
_SECRETS = re.compile(
    rf"""
    (?P<keep>
        \bauthorization["']?\s*[:=]\s*(?:(?:bearer|basic|token)\s+)?
      | \bbearer\s+
      | (?<!\w)--[\w-]*{_NAMES}[\w-]*\s+
      | \b[\w-]*{_NAMES}[\w-]*["']?\s*[:=]\s*
    )
    (?:"[^"\n]*"|'[^'\n]*'|[^\s"',;&]+)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_URL_PASSWORD = re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE)
_HIDDEN = r"\g<keep>***"


def redact(text: str) -> str:
    """`text` with what looks like a secret replaced by `***`: tokens, passwords, Authorization headers, and values of
    variables whose names say they are secret."""
    return _URL_PASSWORD.sub(_HIDDEN, _SECRETS.sub(_HIDDEN, text))


def harmless(text: str) -> str:
    """`text` of any origin for a terminal: secrets hidden, control characters made visible, lines kept."""
    from atlctl.render.sanitize import clean

    return "\n".join(clean(line) for line in redact(text).split("\n"))


class _Harmless(logging.Formatter):
    """Formats a record, then treats all of it: message, arguments, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def set_up(verbose: int, debug: bool) -> None:
    """Send atlctl's records to stderr: warnings, with `verbose` 1 info, with 2 debug. `debug` adds other libraries'."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Harmless("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler] if debug else [logging.NullHandler()]
    root.setLevel(logging.DEBUG if debug else logging.WARNING)
    own = logging.getLogger("atlctl")
    own.handlers = [] if debug else [handler]
    own.setLevel(logging.DEBUG if debug or verbose > 1 else logging.INFO if verbose else logging.WARNING)
