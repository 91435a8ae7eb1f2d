"""How a kind of job is stopped and resumed: data, which `stop` shows and carries out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.i18n import Message


@dataclass(frozen=True, slots=True)
class Suspend:
    """A merge patch of one boolean field of the job. Every pod that runs is deleted, and its log with it."""

    path: tuple[str, ...]
    value: bool

    @property
    def body(self) -> Object:
        """The merge patch. Preconditions are the caller's to add."""
        body: Any = self.value
        for key in reversed(self.path):
            body = {key: body}
        return dict(body)


@dataclass(frozen=True, slots=True)
class VolcanoCommand:
    """A Command object for Volcano's controller: `AbortJob` or `ResumeJob`."""

    action: str

    def body(self, top: Object, version: str) -> Object:
        """The Command for the job `top`, as `vcctl` writes it but for blockOwnerDeletion.

        That flag would need the right to set finalizers on the job.
        """
        target = {
            "apiVersion": f"batch.volcano.sh/{version}",
            "kind": "Job",
            "name": objects.name(top),
            "uid": objects.uid(top),
            "controller": True,
            "blockOwnerDeletion": False,
        }
        prefix = f"{objects.name(top)}-{self.action.lower()}-"
        return {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {
                "generateName": prefix,
                "namespace": objects.namespace(top),
                "ownerReferences": [target],
            },
            "action": self.action,
            "target": target,
        }


@dataclass(frozen=True, slots=True)
class Workload:
    """A merge patch `spec.active` of Kueue's Workload: a suspended job would be started again at once.

    `name` and `uid` are empty where the Workload has not been found.
    """

    name: str
    uid: str
    active: bool

    @property
    def body(self) -> Object:
        return {"spec": {"active": self.active}}


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not done by atlctl. `why` is a sentence without its stop, `command` what does it natively, for a shell.

    `deletable`: deleting the job is still offered (`stop --delete`).
    """

    why: str
    command: str
    deletable: bool = False


def not_stopped(kinds: str) -> Message:
    """Why a stop is refused."""
    return Message("atlctl does not stop {kind}", kind=kinds)


def not_resumed(kinds: str) -> Message:
    """Why a resume is refused."""
    return Message("atlctl does not resume {kind}", kind=kinds)


Mechanism = Suspend | VolcanoCommand | Workload | Refuse


def kubectl(top: Object, *words: str) -> str:
    """A kubectl command line in the namespace of `top`; names are quoted for a shell."""
    namespace = objects.namespace(top)
    return shlex.join(["kubectl", *(["-n", namespace] if namespace else []), *words])


def scale(top: Object, resource: str, replicas: int) -> str:
    """The command line that scales `top`."""
    return kubectl(top, "scale", f"{resource}/{objects.name(top)}", f"--replicas={replicas}")


def patch(top: Object, resource: str, body: str) -> str:
    """The command line of a merge patch of `top`."""
    return kubectl(top, "patch", f"{resource}/{objects.name(top)}", "--type=merge", "-p", body)
