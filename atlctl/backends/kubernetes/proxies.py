"""Which proxy leads to a server: a kubeconfig's own, else the environment's, with exceptions as kubectl takes them."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from atlctl.jobs.errors import UsageError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def proxy_for(server: str, stated: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL of the proxy towards `server`, None for none. `stated` is the kubeconfig's, which knows no exceptions.

    HTTPS_PROXY (HTTP_PROXY for plain HTTP) counts, small letters too, unless NO_PROXY excepts the host. Raises
    UsageError for a proxy that is no HTTP proxy.
    """
    found = stated or _from(environ, server)
    if found is None:
        return None
    url = found if "://" in found else f"http://{found}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        scheme = urlsplit(url).scheme
        raise UsageError(f"a proxy of the kind {scheme} cannot be used", "use an HTTP proxy, or none (NO_PROXY)")
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
    """Go's rules: `*`, a name and all below it, `.name` only those below, an address, a network; a port may follow."""
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
