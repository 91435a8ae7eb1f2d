"""Mechanisms to stop and resume a kind of job, as data that `stop` shows and carries out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.i18n import Message


@dataclass(frozen=True, slots=True)
class Suspend:
    """A merge patch of a boolean field. Running pods are deleted, together with their logs."""

    path: tuple[str, ...]
    value: bool

    @property
    def body(self) -> Object:
        """The merge patch. The caller adds preconditions."""
        body: Any = self.value
        for key in reversed(self.path):
            body = {key: body}
        return dict(body)


@dataclass(frozen=True, slots=True)
class VolcanoCommand:
    """A Command object for Volcano's controller: `AbortJob` or `ResumeJob`."""

    action: str

    def body(self, top: Object, version: str) -> Object:
        """The Command for the job `top`, like that of `vcctl` but without blockOwnerDeletion.

        That flag requires permission to set finalizers on the job.
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
            "metadata": {"generateName": prefix, "namespace": objects.namespace(top), "ownerReferences": [target]},
            "action": self.action,
            "target": target,
        }


@dataclass(frozen=True, slots=True)
class Workload:
    """A merge patch of `spec.active` in Kueue's Workload, because Kueue would restart a suspended job at once.

    `name` and `uid` are empty if the Workload was not found.
    """

    name: str
    uid: str
    active: bool

    @property
    def body(self) -> Object:
        return {"spec": {"active": self.active}}


@dataclass(frozen=True, slots=True)
class Refuse:
    """atlctl does not do it. `why`: a sentence without full stop; `command`: the native shell command.

    `deletable`: `stop --delete` is still possible.
    """

    why: str
    command: str
    deletable: bool = False


def not_stopped(kinds: str) -> Message:
    return Message("atlctl does not stop {kind}", kind=kinds)


def not_resumed(kinds: str) -> Message:
    return Message("atlctl does not resume {kind}", kind=kinds)


Mechanism = Suspend | VolcanoCommand | Workload | Refuse


def kubectl(top: Object, *words: str) -> str:
    """A kubectl command line in the namespace of `top`, quoted for a shell."""
    namespace = objects.namespace(top)
    return shlex.join(["kubectl", *(["-n", namespace] if namespace else []), *words])


def scale(top: Object, resource: str, replicas: int) -> str:
    return kubectl(top, "scale", f"{resource}/{objects.name(top)}", f"--replicas={replicas}")


def patch(top: Object, resource: str, body: str) -> str:
    """The command line for a merge patch of `top`."""
    return kubectl(top, "patch", f"{resource}/{objects.name(top)}", "--type=merge", "-p", body)
