"""The user's settings for the suite, read at import, before the tests' isolation hides them."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

#: Label of all namespaces of the suite, to find leftovers.
LABEL = "atlctl.dev/e2e"
#: Seconds until pods run: images may have to be pulled first.
START = 300.0
#: Seconds for actions of a controller or the kubelet.
SOON = 120.0
_PROXIES = re.compile(r"(?i)(https?|all|no)_proxy")


@dataclass(frozen=True)
class Settings:
    """The cluster, the images, and variables needed by a kubeconfig's plugins and proxies."""

    kubeconfig: str
    image: str
    torch_image: str
    pull_policy: str
    environ: Mapping[str, str]

    @property
    def missing(self) -> str | None:
        """The reason why nothing can run. It does not contain the word 'needs' of tests/support/needs.py, because no
        package fixes it."""
        if not self.kubeconfig:
            return "no cluster for tests/e2e: KUBECONFIG is not set"
        if not self.image:
            return "no image for tests/e2e: ATLCTL_E2E_IMAGE is not set"
        return None

    @property
    def missing_torch(self) -> str | None:
        return None if self.torch_image else "no image with torch: ATLCTL_E2E_TORCH_IMAGE is not set"


def read(environ: Mapping[str, str], folder: str) -> Settings:
    """Settings from variables. Relative paths in KUBECONFIG start in `folder`, because tests change theirs."""
    paths = [path for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    kept = {name: value for name, value in environ.items() if name == "HOME" or _PROXIES.fullmatch(name)}
    return Settings(
        kubeconfig=os.pathsep.join(os.path.join(folder, os.path.expanduser(path)) for path in paths),
        image=environ.get("ATLCTL_E2E_IMAGE", ""),
        torch_image=environ.get("ATLCTL_E2E_TORCH_IMAGE", ""),
        pull_policy=environ.get("ATLCTL_E2E_PULL_POLICY", "") or "IfNotPresent",
        environ=kept,
    )


def token() -> str:
    """Six random characters for names."""
    return uuid.uuid4().hex[:6]


SETTINGS = read(dict(os.environ), os.getcwd())
