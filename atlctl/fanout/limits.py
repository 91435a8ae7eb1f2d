"""The limit on open descriptors (RLIMIT_NOFILE), raised for many connections."""

from __future__ import annotations

import resource

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError

#: Descriptors other than connections: standard streams, event loop, logs, modules.
SPARE = 64
#: Descriptors of a running command: its pipes, and more during its start.
_EACH, _AT_START = 4, 6


def make_room(workers: int, parallel: int, at_once: int | None) -> None:
    """Raise the limit for a command on `workers`, `parallel` of which start and `at_once` run (None: all) at a time.

    Raises AtlctlError as `raise_descriptor_limit`.
    """
    running = min(workers, at_once or workers)
    raise_descriptor_limit(running * _EACH + min(running, parallel) * _AT_START, _EACH + _AT_START)


def most_workers(parallel: int) -> int | None:
    """Maximum number of workers at once under the hard limit, `parallel` of which start; at least 0. None: no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else max(0, (hard - SPARE - parallel * _AT_START) // _EACH)


def raise_descriptor_limit(needed: int, each: int) -> None:
    """Raise the soft RLIMIT_NOFILE to `needed` descriptors and `SPARE` more; never lowers it.

    `each`: maximum per additional worker, for the hint. Raises AtlctlError with the numbers if the hard limit is too
    low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed + SPARE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise AtlctlError(
            Message(
                "{wanted} open files are needed, the limit is {hard} (soft {soft})", wanted=wanted, hard=hard, soft=soft
            ),
            Message(
                "raise it: ulimit -n {wanted}; or run on fewer workers at once: --batch {value}",
                wanted=wanted,
                value=max(1, (hard - SPARE) // each),
            ),
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        raise AtlctlError(
            Message(
                "{wanted} open files are needed and the limit of {soft} cannot be raised: {why}",
                wanted=wanted,
                soft=soft,
                why=error,
            ),
            f"ulimit -n {wanted}",
        ) from error
