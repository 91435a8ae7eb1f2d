"""Which API server, as whom: a kubeconfig as kubectl reads it, else the service account of the pod.

The `kubernetes` package reads kubeconfigs, runs exec plugins and refreshes tokens. Around it stands what it leaves
out: kubectl's rule for the current context, impersonation, and that a plugin which fails is an error and not
an anonymous request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atlctl.backends.kubernetes.proxies import proxy_for
from atlctl.jobs.errors import NotAllowed, UsageError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_IN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
#: Seconds for which the headers are taken as they are before the package looks for an expired token again.
_FRESH = 20.0
_HINT = "look at it: kubectl config view"
#: Debian, Alpine and their kin; Fedora and its; SUSE; others.
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def kubeconfig_paths(stated: str | None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The kubeconfig files that exist, in kubectl's order: the one stated, else KUBECONFIG, else `~/.kube/config`."""
    text = stated or environ.get("KUBECONFIG") or "~/.kube/config"
    paths = [text] if stated else text.split(os.pathsep)
    return [path for path in map(os.path.expanduser, paths) if path and os.path.exists(path)]


def in_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a container with a service account of Kubernetes."""
    return all(environ.get(name) for name in _IN_CLUSTER) and os.path.exists(f"{SERVICE_ACCOUNT}/token")


def available(stated: str | None = None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a cluster is configured at all. Imports nothing and reads no file."""
    return bool(kubeconfig_paths(stated, environ)) or in_cluster(environ)


@dataclass
class Access:
    """A server, its TLS settings and who asks. `source` says where this was read.

    `proxy` is a URL, with credentials where it has some. `tls_name` is the name to expect in the server's certificate.
    """

    server: str
    context: str | None
    namespace: str
    source: str
    tls: ssl.SSLContext | None = None
    tls_name: str | None = None
    proxy: str | None = None
    user: str | None = None
    _impersonate: dict[str, str] = field(default_factory=dict)
    _configuration: Configuration | None = None
    _again: Callable[[], Access] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _headers: dict[str, str] = field(default_factory=dict)
    _read_at: float = float("-inf")

    def headers_at_hand(self) -> dict[str, str] | None:
        """Who asks, as headers; None where they have to be looked at again, which may run a plugin (`headers`)."""
        return self._headers if time.monotonic() - self._read_at < _FRESH else None

    def headers(self) -> dict[str, str]:
        """The same, read again where they are old. May run a plugin: call it in a thread. Raises NotAllowed."""
        with self._lock:
            if time.monotonic() - self._read_at >= _FRESH:
                self._headers = {**self._authorization(), **self._impersonate}
                self._read_at = time.monotonic()
            return self._headers

    def renew(self, refused: Mapping[str, str]) -> bool:
        """Reads everything anew after the server refused these headers: a token expired, a file was replaced.

        False where that changed nothing. May run a plugin: call it in a thread. Raises UsageError, NotAllowed.
        """
        with self._lock:
            if self._headers != refused or self._again is None:
                return True  # somebody else was quicker
            fresh = self._again()
            self._configuration, self.tls = fresh._configuration, fresh.tls
            self._headers = {**self._authorization(), **self._impersonate}
            self._read_at = time.monotonic()
            return self._headers != refused

    def _authorization(self) -> dict[str, str]:
        if self._configuration is None:
            return {}
        with _told_failures():
            value = self._configuration.get_api_key_with_prefix("BearerToken")
        if not value:
            return {}
        # The service account's loader writes the scheme small; the server does not mind, gateways do.
        return {"Authorization": f"Bearer {value[7:]}" if value[:7] == "bearer " else value}


def load(kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None) -> Access:
    """How to reach the cluster that the options, KUBECONFIG or the pod name. Blocks: a plugin may run.

    Raises UsageError for a configuration that is wrong or absent, NotAllowed where a plugin failed.
    """
    if kubeconfig and not os.path.exists(os.path.expanduser(kubeconfig)):
        raise UsageError(f"there is no kubeconfig {kubeconfig}", "check --kubeconfig")
    if paths := kubeconfig_paths(kubeconfig):
        return _from_files(paths, context, namespace)
    if context:
        raise UsageError("--context needs a kubeconfig, and there is none", "name it: --kubeconfig PATH")
    if in_cluster():
        return _from_pod(namespace)
    raise UsageError(
        "no cluster is configured: there is no kubeconfig, and this is no pod", "set KUBECONFIG or name --kubeconfig"
    )


def contexts(kubeconfig: str | None = None) -> dict[str, str | None]:
    """The contexts by name, each with its namespace where it states one. Runs no plugin.

    Raises UsageError for a configuration that is wrong.
    """
    try:
        entries = {entry.get("name"): entry.get("context") or {} for entry in _entries(_merged(kubeconfig), "contexts")}
        return {str(name): entry.get("namespace") for name, entry in entries.items()}
    except (AttributeError, TypeError) as error:
        raise UsageError("the kubeconfig cannot be used", _HINT) from error


def runs_program(kubeconfig: str | None = None, context: str | None = None) -> bool:
    """Whether `load` would run a program of the user's or renew a login to know who asks: one that may ask back, on
    a terminal or in a browser. Raises UsageError as `contexts`."""
    files = _merged(kubeconfig)
    try:
        entry = _named(files, "contexts", context or _current_context(files) or "").get("context") or {}
        user = _named(files, "users", str(entry.get("user"))).get("user") or {}
        return bool(user.get("exec") or user.get("auth-provider"))
    except AttributeError as error:
        raise UsageError("the kubeconfig cannot be used", _HINT) from error


def _merged(kubeconfig: str | None) -> Mapping[str, Any]:
    """The kubeconfig files that exist, by their paths."""
    from kubernetes.config import ConfigException, kube_config

    if not (paths := kubeconfig_paths(kubeconfig)):
        return {}
    try:
        files: Mapping[str, Any] = kube_config.KubeConfigMerger(os.pathsep.join(paths)).config_files
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, _yaml_error()) as error:
        text = " ".join(str(error).split())
        raise UsageError(f"the kubeconfig {', '.join(paths)} cannot be used: {text}", _HINT) from error
    return files


def _from_files(paths: list[str], context: str | None, namespace: str | None) -> Access:
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, kube_config

    try:
        merged = kube_config.KubeConfigMerger(os.pathsep.join(paths))
        chosen = context or _current_context(merged.config_files)
        if chosen is None:
            raise UsageError("the kubeconfig has no current context", "name one: --context NAME")
        known = [str(context.get("name")) for context in _entries(merged.config_files, "contexts")]
        if chosen not in known:
            hint = f"there are: {', '.join(known)}" if known else _HINT
            raise UsageError(f"the kubeconfig {', '.join(paths)} has no context {chosen}", hint)
        with _told_failures(), _no_files_left(kube_config):
            loader = kube_config.KubeConfigLoader(
                config_dict=merged.config, active_context=chosen, config_persister=merged.save_changes
            )
            configuration = Configuration()
            loader.load_and_set(configuration)
            tls = _tls(configuration)
        entry = _named(merged.config_files, "contexts", chosen).get("context") or {}
        cluster = _named(merged.config_files, "clusters", str(entry.get("cluster"))).get("cluster") or {}
        user = _named(merged.config_files, "users", str(entry.get("user"))).get("user") or {}
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, _yaml_error()) as error:
        text = " ".join(str(error).split())
        raise UsageError(f"the kubeconfig {', '.join(paths)} cannot be used: {text}", _HINT) from error
    if not configuration.host.startswith(("https://", "http://")):
        raise UsageError(f"the kubeconfig's context {chosen} names no server", _HINT)
    return Access(
        server=configuration.host.rstrip("/"),
        context=chosen,
        namespace=namespace or str(entry.get("namespace") or "default"),
        source=f"context {chosen} of {', '.join(paths)}",
        tls=tls,
        tls_name=configuration.tls_server_name or None,
        proxy=proxy_for(configuration.host, cluster.get("proxy-url")),
        user=str(entry.get("user")) if entry.get("user") else None,
        _impersonate=_impersonation(user),
        _configuration=configuration,
        _again=lambda: _from_files(paths, chosen, namespace),
    )


def _from_pod(namespace: str | None) -> Access:
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_incluster_config

    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
        own = _own_namespace()
        tls = _tls(configuration)
    except (ConfigException, OSError, ValueError) as error:
        raise UsageError(f"the pod's service account cannot be used: {error}", "set KUBECONFIG") from error
    return Access(
        server=configuration.host.rstrip("/"),
        context=None,
        namespace=namespace or own,
        source="the pod's service account",
        tls=tls,
        _configuration=configuration,
        proxy=proxy_for(configuration.host, None),
        _again=lambda: _from_pod(namespace),
    )


def _own_namespace() -> str:
    with contextlib.suppress(OSError), open(f"{SERVICE_ACCOUNT}/namespace", encoding="utf-8") as file:
        return file.read().strip() or "default"
    return "default"


def _current_context(files: Mapping[str, Any]) -> str | None:
    """kubectl's rule: the first file that has one. (The package takes the last.)"""
    found = (config.get("current-context") for config in files.values() if isinstance(config, dict))
    return next((str(name) for name in found if name), None)


def _entries(files: Mapping[str, Any], what: str) -> Iterator[dict[str, Any]]:
    """The contexts, clusters or users of all files, in the package's order."""
    for config in files.values():
        yield from (entry for entry in config.get(what) or () if isinstance(entry, dict))


def _named(files: Mapping[str, Any], what: str, name: str) -> dict[str, Any]:
    """The first entry of that name, as the package merges them."""
    return next((entry for entry in _entries(files, what) if entry.get("name") == name), {})


def _impersonation(user: Mapping[str, Any]) -> dict[str, str]:
    """Headers of `as` and `as-uid`. Groups would need a repeated header, and are refused rather than dropped."""
    if user.get("as-groups") or user.get("as-user-extra"):
        raise UsageError("the kubeconfig impersonates groups, which atlctl cannot", "use a user without as-groups")
    headers = {"Impersonate-User": user.get("as"), "Impersonate-Uid": user.get("as-uid")}
    return {name: str(value) for name, value in headers.items() if value}


def _tls(configuration: Configuration) -> ssl.SSLContext | None:
    """The TLS settings of a configuration; None for plain HTTP. Reads the files that it names."""
    if not configuration.host.startswith("https"):
        return None
    made = ssl.create_default_context(cafile=configuration.ssl_ca_cert or _system_authorities())
    # Python 3.13 asks for extensions that the CAs of many clusters lack; kubectl does not.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        made.load_cert_chain(configuration.cert_file, configuration.key_file or None)
    return made


def _system_authorities() -> str | None:
    """The file of this system's authorities, where Python's own idea of its place was true on another system alone."""
    places = ssl.get_default_verify_paths()
    if places.cafile or places.capath:
        return None
    return next(filter(os.path.exists, _AUTHORITIES), None)


@contextlib.contextmanager
def _no_files_left(kube_config: Any) -> Iterator[None]:
    """The package writes keys of a kubeconfig into temporary files. They are read by now: away with them."""
    try:
        yield
    finally:
        kube_config._cleanup_temp_files()


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def _told_failures() -> Iterator[None]:
    """The package logs a plugin's failure and goes on without credentials. Here it is an error: NotAllowed."""
    heard, root = _Heard(), logging.getLogger()
    root.addHandler(heard)
    try:
        yield
    finally:
        root.removeHandler(heard)
    if heard.texts:
        raise NotAllowed(f"no credentials: {heard.texts[0]}", "run the kubeconfig's plugin by hand, or log in again")


def _yaml_error() -> type[Exception]:
    import yaml

    return yaml.YAMLError
