"""For how long a thread was ready to run and had to wait for a CPU, as far as the kernel tells."""

from __future__ import annotations

from . import files


def waited(task: object) -> float | None:
    """Seconds until now. `task`: `thread-self`, or a process, of which it is the first thread."""
    try:
        return int(files.read(f"/proc/{task}/schedstat").split()[1]) / 1e9
    except (ValueError, IndexError):
        return None


def since(task: object, before: float | None) -> float:
    """Seconds since `waited` told `before`; 0 where it tells nothing."""
    now = waited(task)
    return 0.0 if now is None or before is None else now - before
