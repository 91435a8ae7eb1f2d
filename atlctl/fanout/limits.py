"""Room for many connections: this process's limit on open descriptors."""

from __future__ import annotations

import resource

from atlctl.i18n import Message
from atlctl.jobs.errors import AtlctlError

#: Descriptors for everything that is no connection: standard streams, the event loop, logs, modules.
SPARE = 64
#: What one running command takes: its pipes, and what is open for a moment at its start.
_EACH, _AT_START = 4, 6


def make_room(workers: int, parallel: int, at_once: int | None) -> None:
    """Room for a command on so many workers, of which `parallel` start and `at_once` run (None: all) at one time.

    Raises AtlctlError as `raise_descriptor_limit` does.
    """
    running = min(workers, at_once or workers)
    raise_descriptor_limit(running * _EACH + min(running, parallel) * _AT_START, _EACH + _AT_START)


def most_workers(parallel: int) -> int | None:
    """On how many workers a command may run at once under the hard limit, `parallel` of them starting; None: no limit.

    At least 0.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else max(0, (hard - SPARE - parallel * _AT_START) // _EACH)


def raise_descriptor_limit(needed: int, each: int) -> None:
    """Make room for `needed` descriptors beside the usual ones: raises the soft RLIMIT_NOFILE, never lowers it.

    `each`: what one more worker takes at most, for the hint.

    Raises AtlctlError with the numbers where the hard limit is too low.
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
