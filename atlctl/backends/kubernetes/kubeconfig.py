"""Kubeconfig files: finds them and merges them as kubectl does.

Shell completion uses this module and must start fast: it imports only os before it reads a file.
"""

import os

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

_IN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
#: Parts of a kubeconfig, with their fields that contain paths, relative to the kubeconfig's folder.
_FILES = {
    "contexts": (),
    "clusters": ("certificate-authority",),
    "users": ("client-certificate", "client-key", "tokenFile"),
}

#: Maximum number of brackets and list entries for the C loader.
_NESTED = 5000

Entry = dict[str, object]


def kubeconfig_paths(stated: str | None = None) -> list[str]:
    """The existing kubeconfig files in kubectl's order: `stated`, else KUBECONFIG, else `~/.kube/config`."""
    text = stated or os.environ.get("KUBECONFIG") or "~/.kube/config"
    paths = [text] if stated else text.split(os.pathsep)
    return [path for path in map(os.path.expanduser, paths) if path and os.path.exists(path)]


def in_cluster() -> bool:
    """Whether this is a container with a Kubernetes service account."""
    return all(os.environ.get(name) for name in _IN_CLUSTER) and os.path.exists(f"{SERVICE_ACCOUNT}/token")


def available() -> bool:
    """Whether any cluster is configured. Reads no file."""
    return bool(kubeconfig_paths()) or in_cluster()


class Kubeconfig:
    """Merged kubeconfigs: the first entry of each name wins, and the first current context."""

    def __init__(self, files: dict[str, object]) -> None:
        """`files`: parsed documents by path. Raises ValueError if one is not a kubeconfig."""
        from atlctl.i18n import Message

        self.current: str | None = None
        self._parts: dict[str, dict[str, Entry]] = {part: {} for part in _FILES}
        for path, document in files.items():
            if not isinstance(document, dict):
                raise ValueError(
                    Message("{path} is not a mapping", path=path)
                    if document is not None
                    else Message("{path} is empty", path=path)
                )
            if not self.current and (current := document.get("current-context")):
                self.current = str(current)
            for part, known in self._parts.items():
                for entry in document.get(part) or ():
                    if not isinstance(entry, dict) or "name" not in entry:
                        raise ValueError(Message("{path} has {part} without a name", path=path, part=part))
                    known.setdefault(str(entry["name"]), _resolved(part, entry.get(part[:-1]), path))

    def contexts(self) -> dict[str, Entry]:
        return self._parts["contexts"]

    def cluster(self, context: str) -> Entry:
        """The cluster of a context, with absolute paths. Raises ValueError if there is none."""
        from atlctl.i18n import Message

        name = str(self.contexts()[context].get("cluster"))
        if (found := self._parts["clusters"].get(name)) is None:
            raise ValueError(Message("cluster {cluster} not found", cluster=name))
        return found

    def user(self, context: str) -> Entry:
        """The user of a context, with absolute paths; empty if there is none."""
        return self._parts["users"].get(str(self.contexts().get(context, {}).get("user")), {})


def _resolved(part: str, stated: object, path: str) -> Entry:
    from atlctl.i18n import Message

    if stated is not None and not isinstance(stated, dict):
        raise ValueError(Message("{path} has {part} that are not mappings", path=path, part=part))
    found = dict(stated or {})
    folder = os.path.dirname(os.path.abspath(path))
    return found | {key: os.path.join(folder, str(found[key])) for key in _FILES[part] if found.get(key)}


def read(paths: list[str]) -> Kubeconfig:
    """Read and merge kubeconfigs. Raises UsageError if one cannot be read."""
    import yaml

    try:
        files = {}
        for path in paths:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            # The C loader is twenty times as fast, but overflows the stack on deep nesting.
            quick = sum(map(text.count, ("[", "{", "- ", "? "))) < _NESTED
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if quick else yaml.SafeLoader
            files[path] = yaml.load(text, Loader=loader)  # noqa: S506 - both are safe
        return Kubeconfig(files)
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise unusable(paths, error) from error


def hint() -> str:
    from atlctl.i18n import Message

    return Message("look at it: kubectl config view")


def unusable(paths: list[str], error: Exception) -> Exception:
    from atlctl.i18n import Message
    from atlctl.jobs.errors import UsageError

    said = error.args[0] if error.args else ""
    why = said if isinstance(said, Message) else " ".join(str(error).split())
    return UsageError(Message("the kubeconfig {paths} cannot be used: {why}", paths=", ".join(paths), why=why), hint())


def contexts(stated: str | None = None) -> dict[str, str | None]:
    """Contexts by name, with their namespaces if set. Raises UsageError as `read`."""
    found = read(kubeconfig_paths(stated)).contexts()
    return {name: str(entry["namespace"]) if entry.get("namespace") else None for name, entry in found.items()}


def runs_program(stated: str | None = None, context: str | None = None) -> bool:
    """Whether authentication runs an exec plugin or renews a token, and so may prompt on a terminal or in a browser.
    Raises UsageError as `read`."""
    config = read(kubeconfig_paths(stated))
    user = config.user(context or config.current or "")
    return bool(user.get("exec") or user.get("auth-provider"))
