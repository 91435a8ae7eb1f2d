"""Diagnostics of atlctl itself, on stderr: silent by default, more with -v and -vv, libraries too with --debug."""

from __future__ import annotations

import logging
import sys


def redact(text: str) -> str:
    """`text` with everything that looks like a secret hidden. Imported late, to compile the patterns only if needed."""
    from atlctl.render.redact import redact_diagnostics

    return redact_diagnostics(text)


def harmless(text: str) -> str:
    """`text` of any origin for a terminal: secrets hidden, control characters made visible, lines kept."""
    from atlctl.render.sanitize import clean

    return "\n".join(clean(line) for line in redact(text).split("\n"))


class _Harmless(logging.Formatter):
    """Formats a record, then treats all of it: message, arguments, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


class _Stderr:
    """Where records go: past the writer before there is one, and once it is closed."""

    def write(self, text: str) -> None:
        from atlctl.cli.runtime import context

        if context().status is not None:
            context().writer.put("stderr", text.encode(errors="backslashreplace"))
        elif sys.stderr is not None:
            sys.stderr.write(text)

    def flush(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()


def set_up(verbose: int, debug: bool) -> None:
    """Send atlctl's records to stderr: warnings, with `verbose` 1 info, with 2 debug. `debug` adds other libraries'."""
    handler = logging.StreamHandler(_Stderr())
    handler.setFormatter(_Harmless("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler] if debug else [logging.NullHandler()]
    root.setLevel(logging.DEBUG if debug else logging.WARNING)
    own = logging.getLogger("atlctl")
    own.handlers = [] if debug else [handler]
    own.setLevel(logging.DEBUG if debug or verbose > 1 else logging.INFO if verbose else logging.WARNING)
