"""The pod of this process, found without the API server.

Sources, the most reliable first: claims of the service account's token (pod, UID, namespace), mounts made by the
kubelet (UID), host name (equals the pod's name for most kinds, but not for indexed Jobs).
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from atlctl.backends.kubernetes.kubeconfig import SERVICE_ACCOUNT
from atlctl.i18n import Message

#: The kubelet mounts /etc/hosts and the termination log from the pod's own folder.
_MOUNT = re.compile(
    r"/pods/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})/(?:etc-hosts|containers/[^/ ]{1,253}/)"
)
_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The pod of this process. At least one of `name` and `uid` is known; `source` names the source."""

    name: str | None
    uid: str | None
    namespace: str | None
    source: str


def own_pod(environ: Mapping[str, str] = os.environ, root: str = "/") -> OwnPod | None:
    """The pod of this process; None outside Kubernetes. `root`: of the file system."""
    uid = _mounted(os.path.join(root, "proc/self/mountinfo"))
    token = _read(os.path.join(root, f"{SERVICE_ACCOUNT.lstrip('/')}/token"))
    if token is not None and (claims := _claims(token)):
        pod = claims.get("pod")
        name, told = (pod.get("name"), pod.get("uid")) if isinstance(pod, dict) else (None, None)
        if isinstance(name, str) and isinstance(told, str):
            namespace = claims.get("namespace")
            own = namespace if isinstance(namespace, str) else None
            return OwnPod(name, told, own, Message("the service account's token"))
    if not environ.get("KUBERNETES_SERVICE_HOST") and uid is None:
        return None
    namespace = _read(os.path.join(root, f"{SERVICE_ACCOUNT.lstrip('/')}/namespace"))
    namespace = namespace.strip() if namespace else None
    name = environ.get("HOSTNAME") or None
    if uid is not None:
        return OwnPod(name, uid, namespace, Message("the kubelet's mounts"))
    return OwnPod(name, None, namespace, Message("the host name")) if name else None


def _claims(token: str) -> Mapping[str, object] | None:
    """The Kubernetes part of a token's payload. The server verifies the signature."""
    parts = token.strip().split(".")
    if len(parts) != 3:
        return None
    try:
        payload = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    found = payload.get("kubernetes.io") if isinstance(payload, dict) else None
    return found if isinstance(found, dict) else None


def _mounted(path: str) -> str | None:
    """The pod's UID, from the kubelet's mounts."""
    for line in (_read(path) or "").splitlines():
        fields = line.split(" ", 6)
        # Only these mount points count: a pod that mounts another pod's folder has it elsewhere.
        if len(fields) < 6 or fields[4] not in ("/etc/hosts", "/dev/termination-log"):
            continue
        if match := _MOUNT.search(fields[3]):
            return match[1]
    return None


def _read(path: str) -> str | None:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_LIMIT)
    return None
