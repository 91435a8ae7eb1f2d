"""Why the API server has no log of a worker, in the words that help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlctl.backends.kubernetes.api import ApiError, Missing, Object
from atlctl.jobs.errors import AtlctlError, NothingMatched, Unreachable

_WAITING = "is waiting to start: "
_TERMINATED = "is terminated"
_NO_PREVIOUS = "previous terminated container "
#: What a container waits for that comes by itself. Image and configuration errors are for the user to mend.
PASSING = frozenset({"", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"})
_TEXT = 300


class NotYet(AtlctlError):
    """There is no log so far; `reason` is the waiting container's, empty where the pod has no node."""

    def __init__(self, message: str, hint: str, reason: str) -> None:
        super().__init__(message, hint)
        self.reason = reason


class NoLog(AtlctlError):
    """The node has no log of the pod (any more)."""


def no_node(pod: str, found: Object | None, job: str) -> NotYet:
    """204: the pod was not given to a node."""
    why = ""
    for condition in objects(found, "status", "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            why = f" ({condition.get('reason', '')}: {str(condition.get('message', ''))[:_TEXT]})"
    return NotYet(f"pod {pod} has no node yet, so it has no log{why}", f"atlctl ps {job}", "")


def refused(error: ApiError, pod: str, container: str | None, job: str) -> AtlctlError:
    """What an error answer to a log request means; the error itself where it says all."""
    named = f"container {container} of pod {pod}" if container else f"pod {pod}"
    if isinstance(error, Missing):
        return NothingMatched(f"pod {pod} is gone, and its log with it", f"atlctl ps {job}")
    if error.status == 400 and _WAITING in error.text:
        reason = error.text.rpartition(_WAITING)[2].strip()[:_TEXT]
        return NotYet(f"{named} has no log yet, it waits to start: {reason}", f"atlctl ps {job}", reason)
    if error.status == 400 and error.text.startswith(_NO_PREVIOUS):
        return NothingMatched(
            f"{named} was not restarted: there is no log of a previous instance", "leave out --previous"
        )
    if error.status == 400 and error.text.endswith(_TERMINATED):
        return NoLog(f"{named} has ended, and its node has no log of it any more", f"atlctl ps {job}")
    if error.status >= 500:
        return Unreachable(
            f"the node of pod {pod} does not answer: {error.text[:_TEXT] or error.reason}", f"atlctl ps {job}"
        )
    return error


def no_log(words: str, pod: str, found: Object | None, job: str) -> NoLog:
    """The node said `words` in place of a log."""
    status = objects_at(found, "status")
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")[:_TEXT]
    ended = f" ({reason}: {message})" if reason and message else f" ({reason})" if reason else ""
    return NoLog(f"the node of pod {pod} has no log of it{ended}: {words}", f"atlctl ps {job}")


def objects_at(found: Object | None, *path: str) -> Mapping[str, Any]:
    """The mapping at `path`, an empty one where something else stands there."""
    here: Any = found or {}
    for key in path:
        here = here.get(key) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}


def objects(found: Object | None, *path: str) -> Sequence[Mapping[str, Any]]:
    """The mappings of the list at `path`."""
    here = objects_at(found, *path[:-1]).get(path[-1])
    return [item for item in here if isinstance(item, dict)] if isinstance(here, list) else []
