"""What is undone when the agent ends, whatever ends it short of SIGKILL: files it wrote, processes it started."""

from __future__ import annotations

import threading

TYPE_CHECKING = False  # that of `typing` takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable

_lock = threading.Lock()
_steps: dict[str, Callable[[], object]] = {}


def add(name: str, step: Callable[[], object]) -> None:
    """`step` runs at the end, unless it is dropped by `name` before."""
    with _lock:
        _steps[name] = step


def drop(name: str) -> None:
    with _lock:
        _steps.pop(name, None)


def run() -> None:
    """Newest first; a step that fails keeps no other from running."""
    while True:
        with _lock:
            if not _steps:
                return
            _, step = _steps.popitem()
        try:
            step()
        except OSError:
            continue
