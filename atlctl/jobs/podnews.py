"""Parse the events of a job about its pods: created, deleted by the controller, exited.

The patterns match the texts of the Job controller and of the training-operator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_POD = r"([a-z0-9][a-z0-9.-]{0,252})"
_CREATED = re.compile(rf"Created pod: {_POD}")
_DELETED = re.compile(rf"Deleted pod: {_POD}")
_EXITED = re.compile(r"Pod: [a-z0-9-]{1,63}\.([a-z0-9][a-z0-9.-]{0,252}) exited with code (-?[0-9]{1,10})")
#: The part of a pod's name after the job's name, if it is the name of a worker.
_WORKER = re.compile(r"[a-z]{1,40}-[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class PodNews:
    """An event of the pod of that name; `code` is the exit code of `exited`."""

    pod: str
    what: Literal["created", "deleted", "exited"]
    code: int | None = None


def read(reason: str, message: str) -> PodNews | None:
    """Parse an event about a pod; None if it is about something else."""
    if reason in ("SuccessfulCreate", "SuccessfulCreatePod") and (found := _CREATED.fullmatch(message)):
        return PodNews(found[1], "created")
    if reason in ("SuccessfulDelete", "SuccessfulDeletePod") and (found := _DELETED.fullmatch(message)):
        return PodNews(found[1], "deleted")
    if reason == "ExitedWithCode" and (found := _EXITED.fullmatch(message)):
        return PodNews(found[1], "exited", int(found[2]))
    return None


def worker_of(job: str, pod: str) -> str | None:
    """The worker of a pod without a random suffix: `bert-worker-1` of the job `bert` is `worker-1`."""
    rest = pod.removeprefix(f"{job}-")
    return rest if rest != pod and _WORKER.fullmatch(rest) else None
