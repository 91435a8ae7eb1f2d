"""Server address and credentials, from a kubeconfig or the pod's service account.

Static credentials and service accounts are read here, because importing the `kubernetes` package takes longer than a
whole command. The package handles exec plugins, auth providers and passwords. This module adds what it lacks: kubectl's
rule for the current context, impersonation, and an error (not an anonymous request) when a plugin fails.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from atlctl.backends.kubernetes import kubeconfig
from atlctl.backends.kubernetes.kubeconfig import Entry, Kubeconfig
from atlctl.i18n import Message
from atlctl.jobs.errors import NotAllowed, UsageError

#: Seconds for which the headers are reused before the token is read again.
_FRESH = 20.0
#: Kinds of user that need the package.
_BY_PACKAGE = ("exec", "auth-provider", "username", "password")
#: Debian and Alpine; Fedora; SUSE; others.
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass
class Access:
    """A server with TLS settings and credentials. `source`: origin of the settings, for the user.

    `proxy`: a URL, possibly with credentials. `tls_name`: the name to expect in the server's certificate.
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
    #: Returns the Authorization header; "" for none. May run a plugin and raise NotAllowed.
    _login: Callable[[], str] = str
    _again: Callable[[], Access] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _headers: dict[str, str] = field(default_factory=dict)
    _read_at: float = float("-inf")

    def headers_at_hand(self) -> dict[str, str] | None:
        """The authentication headers; None if they must be read again, which may run a plugin (see `headers`)."""
        return self._headers if time.monotonic() - self._read_at < _FRESH else None

    def headers(self) -> dict[str, str]:
        """The authentication headers, read again when old. May run a plugin: call it in a thread. Raises NotAllowed."""
        with self._lock:
            if time.monotonic() - self._read_at >= _FRESH:
                self._look()
            return self._headers

    def renew(self, refused: Mapping[str, str]) -> bool:
        """Read the configuration again after the server refused these headers (expired token, replaced file).

        Returns False if that changed nothing. May run a plugin: call it in a thread. Raises UsageError, NotAllowed.
        """
        with self._lock:
            if self._headers != refused or self._again is None:
                return True  # another thread was quicker
            fresh = self._again()
            self._login, self.tls = fresh._login, fresh.tls
            self._look()
            return self._headers != refused

    def _look(self) -> None:
        login = self._login()
        self._headers = {**({"Authorization": login} if login else {}), **self._impersonate}
        self._read_at = time.monotonic()


#: A context manager for code that may use the terminal.
Around = Callable[[], contextlib.AbstractContextManager[object]]


def load(
    stated: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    around: Around = contextlib.nullcontext,
) -> Access:
    """Access to the cluster given by the options, KUBECONFIG or the pod. Blocks: may run a plugin, inside `around`.

    Raises UsageError for a wrong or missing configuration, NotAllowed if a plugin fails.
    """
    if stated and not os.path.exists(os.path.expanduser(stated)):
        raise UsageError(Message("kubeconfig {path} not found", path=stated), Message("check --kubeconfig"))
    if paths := kubeconfig.kubeconfig_paths(stated):
        return _from_files(paths, context, namespace, around)
    if context:
        raise UsageError(
            Message("--context needs a kubeconfig, and none was found"), Message("name it: --kubeconfig PATH")
        )
    if kubeconfig.in_cluster():
        return _from_pod(namespace)
    raise UsageError(
        Message("no cluster is configured: no kubeconfig found, and not running in a pod"),
        Message("set KUBECONFIG or name --kubeconfig"),
    )


def _from_files(paths: list[str], context: str | None, namespace: str | None, around: Around) -> Access:
    config = kubeconfig.read(paths)
    chosen = context or config.current
    if chosen is None:
        raise UsageError(Message("the kubeconfig has no current context"), Message("name one: --context NAME"))
    if (entry := config.contexts().get(chosen)) is None:
        there = ", ".join(config.contexts())
        text = Message("the kubeconfig {paths} has no context {context}", paths=", ".join(paths), context=chosen)
        raise UsageError(text, Message("there are: {names}", names=there) if there else kubeconfig.hint())
    user = config.user(chosen)
    impersonate = _impersonation(user)
    try:
        cluster = config.cluster(chosen)
        server = str(cluster.get("server") or "").rstrip("/")
        if not server.startswith(("https://", "http://")):
            raise UsageError(
                Message("the kubeconfig's context {context} names no server", context=chosen), kubeconfig.hint()
            )
        if any(user.get(key) for key in _BY_PACKAGE) or (user.get("token") and user.get("tokenFile")):
            login, tls = _by_package(paths, chosen, around)
        else:
            login, tls = _static_login(user), _static_tls(server, cluster, user)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise kubeconfig.unusable(paths, error) from error
    return Access(
        server=server,
        context=chosen,
        namespace=namespace or str(entry.get("namespace") or "default"),
        source=Message("context {context} of {paths}", context=chosen, paths=", ".join(paths)),
        tls=tls,
        tls_name=str(cluster.get("tls-server-name") or "") or None,
        proxy=proxy_for(server, str(cluster.get("proxy-url") or "")),
        user=str(entry.get("user")) if entry.get("user") else None,
        _impersonate=impersonate,
        _login=login,
        _again=lambda: _from_files(paths, chosen, namespace, around),
    )


def _impersonation(user: Entry) -> dict[str, str]:
    """Headers for `as` and `as-uid`. Groups need a repeated header, so they are refused and not silently dropped."""
    if user.get("as-groups") or user.get("as-user-extra"):
        raise UsageError(
            Message("the kubeconfig impersonates groups, which atlctl does not support"),
            Message("use a user without as-groups"),
        )
    headers = {"Impersonate-User": user.get("as"), "Impersonate-Uid": user.get("as-uid")}
    return {name: str(value) for name, value in headers.items() if value}


def _static_login(user: Entry) -> Callable[[], str]:
    if path := user.get("tokenFile"):
        return _token_file(str(path))
    token = str(user.get("token") or "").strip()
    return lambda: f"Bearer {token}" if token else ""


def _token_file(path: str) -> Callable[[], str]:
    """Reads the token from a file that is replaced now and then; keeps the last token while the file cannot be read.

    Raises OSError, ValueError if the file cannot be read now.
    """

    def read() -> str:
        with open(path, encoding="utf-8") as file:
            if not (token := file.read().strip()):
                raise ValueError(Message("{path} is empty", path=path))
        return f"Bearer {token}"

    last = read()

    def login() -> str:
        nonlocal last
        with contextlib.suppress(OSError, ValueError):
            last = read()
        return last

    return login


def _static_tls(server: str, cluster: Entry, user: Entry) -> ssl.SSLContext | None:
    """Raises OSError, ValueError for unusable files and data."""
    with contextlib.ExitStack() as held:
        return _tls(
            server,
            _as_file(cluster, "certificate-authority", held),
            _as_file(user, "client-certificate", held),
            _as_file(user, "client-key", held),
            verified=not cluster.get("insecure-skip-tls-verify"),
        )


def _as_file(entry: Entry, key: str, held: contextlib.ExitStack) -> str | None:
    """The path in `key`, or a temporary file with the data in `key-data`: OpenSSL reads keys only from files."""
    if data := entry.get(f"{key}-data"):
        import base64
        import tempfile

        file = held.enter_context(tempfile.NamedTemporaryFile(prefix="atlctl-"))  # noqa: SIM115
        file.write(base64.b64decode(str(data)))
        file.flush()
        return file.name
    path = str(entry.get(key) or "")
    if path and not os.path.isfile(path):
        raise ValueError(Message("file {path} not found", path=path))
    return path or None


def _tls(
    server: str, authority: str | None, certificate: str | None, key: str | None, *, verified: bool = True
) -> ssl.SSLContext | None:
    """TLS settings of a server, from files; None for plain HTTP."""
    if not server.startswith("https"):
        return None
    if verified:
        made = ssl.create_default_context(cafile=authority or _system_authorities())
        # Python 3.13 requires extensions that the CAs of many clusters lack; kubectl does not.
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    else:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if certificate:
        made.load_cert_chain(certificate, key)
    return made


def _system_authorities() -> str | None:
    """This system's CA file. Needed if Python was built on another system and its default paths do not exist here."""
    places = ssl.get_default_verify_paths()
    if places.cafile or places.capath:
        return None
    return next(filter(os.path.exists, _AUTHORITIES), None)


def _from_pod(namespace: str | None) -> Access:
    folder = kubeconfig.SERVICE_ACCOUNT
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        login = _token_file(f"{folder}/token")
        tls = _static_tls(server, {"certificate-authority": f"{folder}/ca.crt"}, {})
    except (OSError, ValueError) as error:
        raise UsageError(
            Message("the pod's service account cannot be used: {why}", why=error.args[0] if error.args else error),
            Message("set KUBECONFIG"),
        ) from error
    own = ""
    with contextlib.suppress(OSError), open(f"{folder}/namespace", encoding="utf-8") as file:
        own = file.read().strip()
    return Access(
        server=server,
        context=None,
        namespace=namespace or own or "default",
        source=Message("the pod's service account"),
        tls=tls,
        proxy=proxy_for(server, None),
        _login=login,
        _again=lambda: _from_pod(namespace),
    )


def _by_package(paths: list[str], context: str, around: Around) -> tuple[Callable[[], str], ssl.SSLContext | None]:
    """Credentials and TLS settings from the `kubernetes` package, which runs exec plugins and renews tokens.

    A renewed token is written back into the user's file. Raises NotAllowed if a plugin fails, and ValueError and other
    errors of the package for a wrong configuration.
    """
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, kube_config

    merger = kube_config.KubeConfigMerger(os.pathsep.join(paths))
    merged = Kubeconfig(merger.config_files)
    entries = {
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "clusters": [{"name": context, "cluster": merged.cluster(context)}],
        "users": [{"name": context, "user": merged.user(context)}],
    }
    configuration = Configuration()
    try:
        with around(), _failures_raised():
            loader = kube_config.KubeConfigLoader(config_dict=entries, config_persister=merger.save_changes)
            loader.load_and_set(configuration)
            found = configuration
            tls = _tls(found.host, found.ssl_ca_cert, found.cert_file, found.key_file, verified=found.verify_ssl)
    except ConfigException as error:
        raise ValueError(str(error)) from error
    finally:
        kube_config._cleanup_temp_files()  # removes its temporary key files, which have been read by now

    def login() -> str:
        with around(), _failures_raised():
            return str(configuration.get_api_key_with_prefix("BearerToken") or "")

    return login, tls


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def _failures_raised() -> Iterator[None]:
    """Raises NotAllowed when a plugin fails: the package only logs that and continues without credentials."""
    heard, root = _Heard(), logging.getLogger()
    root.addHandler(heard)
    try:
        yield
    finally:
        root.removeHandler(heard)
    if heard.texts:
        raise NotAllowed(
            Message("no credentials: {why}", why=heard.texts[0]),
            Message("run the kubeconfig's plugin by hand, or log in again"),
        )


def proxy_for(server: str, stated: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The proxy URL for `server`; None for a direct connection. `stated`: the kubeconfig's, which has no exceptions.

    Reads HTTPS_PROXY (HTTP_PROXY for plain HTTP), also in lower case, unless NO_PROXY excludes the host. Raises
    UsageError if it is not an HTTP proxy.
    """
    found = stated or _from(environ, server)
    if found is None:
        return None
    url = found if "://" in found else f"http://{found}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        scheme = urlsplit(url).scheme
        raise UsageError(
            Message("a proxy of type {scheme} is not supported", scheme=scheme),
            Message("use an HTTP proxy, or none (NO_PROXY)"),
        )
    return url


def _from(environ: Mapping[str, str], server: str) -> str | None:
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    found = environ.get(name.upper()) or environ.get(name)
    if not found or not parts.hostname:
        return None
    exceptions = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    return None if _excepted(parts.hostname, parts.port, exceptions) else found


def _excepted(host: str, port: int | None, exceptions: str) -> bool:
    """Go's NO_PROXY rules: `*`; a domain with its subdomains; `.domain` for subdomains only; an address or network; a
    port may follow."""
    host = host.rstrip(".").lower()
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for entry in (text.strip().lower() for text in exceptions.split(",")):
        if entry == "*":
            return True
        if address is not None and "/" in entry:
            try:
                if address in ipaddress.ip_network(entry, strict=False):
                    return True
            except ValueError:
                continue
        name, colon, number = entry.rpartition(":")
        if colon and number.isdigit() and _address(entry) is None:
            if int(number) != port:
                continue
            entry = name.strip("[]")
        if entry and (host == entry or (address is None and host.endswith("." + entry.removeprefix("*").lstrip(".")))):
            return True
    return False


def _address(text: str) -> _Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
