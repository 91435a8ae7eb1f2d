"""Proxies, and hosts excluded from them."""

from __future__ import annotations

import pytest

from atlctl.backends.kubernetes.access import proxy_for
from atlctl.jobs.errors import UsageError

PROXY = "http://proxy.test:8080"


@pytest.mark.parametrize(
    ("server", "exceptions", "used"),
    [
        ("https://api.test:6443", "", True),
        ("https://api.test:6443", "other.test", True),
        ("https://api.test:6443", "api.test", False),
        ("https://api.test:6443", "test", False),
        ("https://api.test:6443", ".test", False),
        ("https://api.test:6443", "*.test", False),
        ("https://api.test:6443", ".api.test", True),
        ("https://myapi.test:6443", "api.test", True),
        ("https://API.test:6443", " x , Api.Test ", False),
        ("https://api.test:6443", "api.test:6443", False),
        ("https://api.test:6443", "api.test:443", True),
        ("https://api.test", "*", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://11.1.2.3:6443", "10.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2", True),
        ("https://10.1.2.3:6443", "nonsense/8,x", True),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "fd00::1", False),
        ("https://127.0.0.1:6443", "", False),
        ("https://localhost:6443", "", False),
    ],
)
def test_exceptions(server: str, exceptions: str, used: bool) -> None:
    found = proxy_for(server, None, {"HTTPS_PROXY": PROXY, "NO_PROXY": exceptions})
    assert found == (PROXY if used else None)


def test_where_the_proxy_stands() -> None:
    assert proxy_for("https://a.test", None, {}) is None
    assert proxy_for("https://a.test", None, {"https_proxy": "proxy.test:1"}) == "http://proxy.test:1"
    assert proxy_for("http://a.test", None, {"HTTPS_PROXY": PROXY}) is None
    assert proxy_for("http://a.test", None, {"HTTP_PROXY": PROXY}) == PROXY


def test_a_stated_proxy_knows_no_exceptions() -> None:
    assert proxy_for("https://a.test", PROXY, {"NO_PROXY": "*"}) == PROXY


@pytest.mark.parametrize("proxy", ["socks5://p.test:1080", "http://", "ftp://x"])
def test_a_proxy_of_another_kind_is_refused(proxy: str) -> None:
    with pytest.raises(UsageError, match="proxy"):
        proxy_for("https://a.test", proxy, {})
