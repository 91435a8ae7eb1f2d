"""StatefulSet (apps). It never finishes."""

from __future__ import annotations

from collections.abc import Mapping

from atlctl.backends.kubernetes import objects
from atlctl.backends.kubernetes.api import Object
from atlctl.backends.kubernetes.kinds.base import JobRole, PodPlace, Resource, Sight
from atlctl.backends.kubernetes.kinds.leaderworkerset import Scaled, replicas
from atlctl.jobs import fields

_INDEX = "apps.kubernetes.io/pod-index"
_ROLE = "worker"


class StatefulSet(Scaled):
    """Numbers are the pods' ordinals minus the set's first ordinal."""

    resource = Resource("apps", "statefulsets", "StatefulSet", ("v1",), ("sts",))

    def selectors(self, top: Object, /) -> tuple[str, ...]:
        """Its own selector, equality only; the check of owners does the rest."""
        wanted = fields.mapping(objects.dig(top, "spec", "selector", "matchLabels"))
        return (",".join(f"{key}={value}" for key, value in wanted.items() if type(value) is str),)

    def place(self, pod: Object, top: Object, /) -> PodPlace:
        ordinal = objects.count(objects.labels(pod).get(_INDEX))
        if ordinal is None:  # before Kubernetes 1.28
            ordinal = objects.count(objects.name(pod).rpartition("-")[2])
        start = objects.count(objects.dig(top, "spec", "ordinals", "start")) or 0
        number = None if ordinal is None or ordinal < start else ordinal - start
        return PodPlace(_ROLE, number, None)

    def roles(self, sight: Sight, seen: Mapping[str, int], /) -> tuple[JobRole, ...]:
        stated = replicas(sight.top) if objects.spec(sight.top) else seen.get(_ROLE, 0)
        return (JobRole(_ROLE, stated or 0, 0),)
